"""Findings out of stored evidence: only the figures that overviews need are read, all else is skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache

from pydantic import TypeAdapter

from backfill_assets.core.measured import GoldenCounts
from backfill_assets.core.unit import DayFindings
from backfill_assets.dataset.sources import golden_check


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
    """What the body of stored evidence found."""
    evidence = _reader().validate_json(text)
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


@cache
def _reader() -> TypeAdapter[_Evidence]:
    return TypeAdapter(_Evidence)
