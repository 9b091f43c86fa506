"""Converts records to database text and back without loss, so that hashes survive the round trip."""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache

from sqlalchemy import RowMapping

from backfill_assets.campaign.plan import Plan
from backfill_assets.campaign.specification import Specification
from backfill_assets.campaign.state import Action, Campaign, JournalEntry, Knobs, Phase
from backfill_assets.core.canonical import canonical_json, from_json, to_json
from backfill_assets.core.evidence import SEEN, DayEvidence
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.layers import Layer
from backfill_assets.core.measured import GoldenCounts
from backfill_assets.core.release import Manifest, ReleaseState
from backfill_assets.core.unit import (
    Attempt,
    AttemptState,
    DayFindings,
    ReleaseMode,
    ReleaseRecord,
    Unit,
    UnitState,
    Work,
)
from backfill_assets.dataset.checks import golden_check


def evidence_from_text(text: str, recorded: str | None = None) -> DayEvidence:
    """Read evidence from its JSON; it counts as altered if its hash differs from the `recorded` one.

    Raises:
        ValueError: the text is not evidence.
    """
    evidence, found = _read_evidence(text)
    # A copy, because the caller may mark its own evidence as altered; the cached one must not change.
    evidence = copy.copy(evidence)
    if recorded is not None:
        # Stored where the cached properties keep them: a copy with other fields (`replace`) does not inherit them.
        vars(evidence)["hash"] = found
        vars(evidence)["altered"] = found != recorded
    return evidence


@lru_cache(maxsize=2048)
def _read_evidence(text: str) -> tuple[DayEvidence, str]:
    """Evidence and its hash, cached by its text: a publication reads the evidence of its days several times."""
    return from_json(DayEvidence, text), _hash_of(text)


def _hash_of(text: str) -> str:
    """The hash of evidence from its text, much faster than from its parts; empty if the text is not canonical."""
    parts: dict[str, str] = {}
    at = 0
    try:
        while text[at] != "}":
            name, end = _scan(text, at + 1)
            _, at = _scan(text, end + 1)
            parts[name] = text[end + 1 : at]
        seen = [parts[name] for name in SEEN]
    except (LookupError, ValueError, TypeError):
        return ""
    compared = parts.get("compared", "null")
    hashed = ",".join(seen if compared == "null" else [*seen, compared])
    return hashlib.sha256(f"[{hashed}]".encode()).hexdigest()


def unit_from_row(row: RowMapping, targets: Mapping[str, Sequence[dt.date]]) -> Unit:
    """A unit from its row and its days by dataset."""
    return Unit(
        id=row["id"],
        opened_by=row["opened_by"],
        opened_at=row["opened_at"],
        by=row["by"],
        targets={name: tuple(sorted(days)) for name, days in sorted(targets.items())},
        mode=ReleaseMode(row["mode"]),
        contract=from_json(Contract, row["contract"]),
        state=UnitState(row["state"]),
        live=row["live"],
    )


def attempt_from_row(row: RowMapping, days: Sequence[dt.date]) -> Attempt:
    """An attempt from its row and its days."""
    fields = {name: value for name, value in row.items() if name not in _WORK}
    work = _work(*(row[name] for name in _WORK))
    return Attempt(days=tuple(sorted(days)), **{**fields, **vars(work), "state": AttemptState(row["state"])})


def work_columns(work: Work) -> dict[str, int | float | str]:
    """The cost of an attempt, as columns of its row."""
    return dict(zip(_WORK, (work.rows, work.bytes_read, work.waited.total_seconds(), work.layer), strict=True))


def release_from_row(row: RowMapping, corrected: Mapping[str, dt.datetime]) -> ReleaseRecord:
    """A release from its row; `corrected` has the times of releases whose own time cannot be right."""
    manifest, state = from_json(Manifest, row["manifest"]), ReleaseState(row["state"])
    at = corrected.get(manifest.release)
    return ReleaseRecord(manifest, state, row["version"], row["committed_at"], row["number"], at)


# The gate reads the same campaign before every batch, and a plan over ten thousand days takes long to parse.
@lru_cache(maxsize=8)
def _plan(text: str) -> Plan:
    return from_json(Plan, text)


@lru_cache(maxsize=8)
def _specification(text: str) -> Specification:
    return Specification.from_json(text)


def campaign_from_row(row: RowMapping) -> Campaign:
    """A campaign from its row."""
    return Campaign(
        specification=_specification(row["specification"]),
        plan=_plan(row["plan"]),
        knobs=Knobs(row["max_concurrency"], row["partitions_per_batch"]),
        created_at=row["created_at"],
        file=row["file"],
        phase=Phase(row["phase"]),
        unit=row["unit"] or "",
        canary_only=row["canary_only"],
        revision=row["revision"],
    )


def campaign_columns(campaign: Campaign) -> dict[str, object]:
    """A campaign, as columns of its row, without its id."""
    return {
        "file": campaign.file,
        "specification": canonical_json(campaign.specification.to_plain()),
        "plan": to_json(campaign.plan),
        "created_at": campaign.created_at,
        **vars(campaign.knobs),
        "phase": campaign.phase.value,
        "unit": campaign.unit or None,
        "canary_only": campaign.canary_only,
        "revision": campaign.revision,
    }


def entry_from_row(row: RowMapping) -> JournalEntry:
    """A journal entry from its row."""
    detail = json.loads(row["detail"])
    return JournalEntry(
        row["campaign"], row["at"], row["by"], Action(row["action"]), row["reason"], detail, row["number"]
    )


def entry_columns(entry: JournalEntry) -> dict[str, object]:
    """A journal entry, as columns of its row."""
    stored = {name: value for name, value in vars(entry).items() if name != "number"}
    return {**stored, "action": entry.action.value, "detail": canonical_json(entry.detail)}


_scan = json.JSONDecoder().raw_decode
_WORK = ("rows", "bytes_read", "waited_seconds", "layer")


def _work(rows: int | None, bytes_read: int | None, waited: float | None, layer: str | None) -> Work:
    return Work(rows or 0, bytes_read or 0, dt.timedelta(seconds=waited or 0), Layer(layer or Layer.shadow))


@dataclass(frozen=True)
class _Metrics:
    row_count: Decimal | None = None


@dataclass(frozen=True)
class _Counts:
    duplicate_keys: int = 0


@dataclass(frozen=True)
class _Side:
    metrics: _Metrics
    counts: _Counts


@dataclass(frozen=True)
class _Measured:
    shadow: _Side


@dataclass(frozen=True)
class _Verdict:
    check: str
    passed: bool
    blocks: bool


@dataclass(frozen=True)
class _Compared:
    golden: Mapping[str, GoldenCounts] = field(default_factory=dict)


@dataclass(frozen=True)
class _Evidence:
    measured: _Measured
    verdicts: tuple[_Verdict, ...]
    compared: _Compared | None = None


def findings_from_text(text: str) -> DayFindings:
    """The findings in the body of stored evidence."""
    evidence = from_json(_Evidence, text)
    shadow, golden = evidence.measured.shadow, evidence.compared.golden if evidence.compared else {}
    failed = [verdict for verdict in evidence.verdicts if not verdict.passed]
    apart = {golden_check(name) for name in golden}
    return DayFindings(
        rows=int(shadow.metrics.row_count or 0),
        duplicate_keys=shadow.counts.duplicate_keys,
        golden_mismatches=sum(counts.mismatches for counts in golden.values()),
        tolerated=tuple(v.check for v in failed if not v.blocks and v.check not in apart),
        passed=bool(evidence.verdicts) and not any(v.blocks for v in failed),
    )
