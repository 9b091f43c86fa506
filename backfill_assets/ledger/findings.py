"""Findings out of stored evidence: only the figures that overviews need are read, all else is skipped."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import NotRequired, TypedDict

from pydantic import TypeAdapter

from backfill_assets.domain.comparison import GoldenCounts
from backfill_assets.domain.findings import DayFindings
from backfill_assets.domain.judge import golden_check


class _Metrics(TypedDict):
    row_count: NotRequired[Decimal | None]


class _Counts(TypedDict):
    duplicate_keys: NotRequired[int]


class _Side(TypedDict):
    metrics: _Metrics
    counts: _Counts


class _Measured(TypedDict):
    shadow: _Side


class _Verdict(TypedDict):
    check: str
    passed: bool
    blocks: bool


class _Compared(TypedDict):
    golden: Mapping[str, GoldenCounts]


class _Evidence(TypedDict):
    measured: _Measured
    verdicts: tuple[_Verdict, ...]
    compared: NotRequired[_Compared | None]


def findings_from_text(text: str) -> DayFindings:
    """What the body of stored evidence found."""
    evidence = _reader().validate_json(text)
    shadow, compared = evidence["measured"]["shadow"], evidence.get("compared")
    golden = compared["golden"] if compared else {}
    failed = [v for v in evidence["verdicts"] if not v["passed"]]
    apart = {golden_check(name) for name in golden}
    return DayFindings(
        rows=int(shadow["metrics"].get("row_count") or 0),
        duplicate_keys=shadow["counts"].get("duplicate_keys", 0),
        golden_mismatches=sum(counts.mismatches for counts in golden.values()),
        tolerated=tuple(v["check"] for v in failed if not v["blocks"] and v["check"] not in apart),
        passed=bool(evidence["verdicts"]) and not any(v["blocks"] for v in failed),
    )


@cache
def _reader() -> TypeAdapter[_Evidence]:
    return TypeAdapter(_Evidence)
