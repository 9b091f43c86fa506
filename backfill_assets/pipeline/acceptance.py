"""The expected change that would let the failed days of a unit pass, for a person who has seen what was found."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

from backfill_assets.core.days import day_range
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.expected_change import LONGEST_TAG, Change, Clause, Contract
from backfill_assets.core.unit import Unit
from backfill_assets.dataset.checks import CheckKind, checks_of
from backfill_assets.dataset.definition import Dataset
from backfill_assets.pipeline.judge import judge

_STEP: Final = Decimal("0.000001")
"""Bands have four digits of a percentage."""
_WIDEST: Final = Decimal("0.01")
"""Days whose shares differ by more have bands of their own: an odd day must not hide in the band of the others."""
_MOST: Final = 10**7
"""The parser reads no larger share."""


def expected_change_for(unit: Unit, evidence: Iterable[DayEvidence], datasets: Mapping[str, Dataset]) -> str:
    """The expected change, as JSON by dataset, under which a unit's failed days would pass; empty if none is offered.

    It keeps what the unit declares, and adds the failed metrics of each day in narrow bands that hold what was found. It also
    frees the rows of these metrics. None is offered if a check of anything else failed, a promise was broken, a figure came
    from or went to nothing or zero, the unit belongs to a campaign, a dataset is not loaded, or the text is too long for a launch.
    """
    failed: dict[str, list[DayEvidence]] = {}
    for one in evidence:
        if not one.passed:
            failed.setdefault(one.dataset, []).append(one)
    if failed.keys() - datasets.keys():
        return ""
    offered = {name: _clauses(datasets[name], unit.contract.of(name), days) for name, days in failed.items()}
    text = json.dumps(offered)
    return text if offered and all(offered.values()) and not unit.campaign and len(text) <= LONGEST_TAG else ""


def _clauses(dataset: Dataset, contract: Contract, failed: Sequence[DayEvidence]) -> list[dict[str, object]]:
    """The contract with clauses for all failed metrics, as its parser reads it; empty if a day would fail all the same."""
    wider = Contract((*contract.clauses, *_added(dataset, contract, failed)))
    for one in failed:
        if one.compared is None or any(v.refuses for v in judge(dataset, one.measured, wider, one.compared)):
            return []
    return [_plain(clause) for clause in wider.clauses]


def _added(dataset: Dataset, contract: Contract, failed: Sequence[DayEvidence]) -> list[Clause]:
    """One clause for the metrics that failed on the same days by nearly the same share; rows follow their sums."""
    subjects = {check.name: check.subject for check in checks_of(dataset) if check.kind is CheckKind.change}
    found: dict[str, list[tuple[Decimal, dt.date]]] = {}
    for one in failed:
        refused = [subjects[verdict.check] for verdict in one.verdicts if verdict.refuses and verdict.check in subjects]
        for metric in refused:
            share = _share(one.measured.published.metrics.get(metric), one.measured.shadow.metrics.get(metric))
            if share is not None and contract.expected(metric, one.day) is None:
                found.setdefault(metric, []).append((share, one.day))
    by_days: dict[tuple[dt.date, ...], dict[str, Change]] = {}
    for metric, shares in found.items():
        for near in _near(shares):
            low, high = near[0][0], near[-1][0]
            band = Change(low.quantize(_STEP, ROUND_FLOOR), high.quantize(_STEP, ROUND_CEILING))
            by_days.setdefault(tuple(sorted(day for _, day in near)), {})[metric] = band
    return [Clause(days, metrics) for days, metrics in sorted(by_days.items())]


def _near(shares: Iterable[tuple[Decimal, dt.date]]) -> list[list[tuple[Decimal, dt.date]]]:
    """The shares in groups of one sign that are at most `_WIDEST` apart, each in order."""
    groups: list[list[tuple[Decimal, dt.date]]] = []
    for share, day in sorted(shares):
        begin = groups[-1][0][0] if groups else None
        if begin is None or share - begin > _WIDEST or (share < 0) != (begin < 0):
            groups.append([])
        groups[-1].append((share, day))
    return groups


def _share(old: Decimal | None, new: Decimal | None) -> Decimal | None:
    """The relative change; None if a figure is missing, zero or not finite, so that no band or only a careless one names it."""
    if not old or not new or not (old.is_finite() and new.is_finite()):
        return None
    share = (new - old) / old
    return share if abs(share) < _MOST else None


def _plain(clause: Clause) -> dict[str, object]:
    """A clause as people write it: days in a row by the first and the last, the dataset outside."""
    (plain,) = Contract((replace(clause, dataset=""),)).to_plain()
    if len(clause.days) > 1 and clause.days == day_range(clause.days[0], clause.days[-1]):
        plain["days"] = {"start": str(clause.days[0]), "end": str(clause.days[-1])}
    return plain
