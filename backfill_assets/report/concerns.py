"""Concerns: what speaks against a release, by the level at which it was found, the worst first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from backfill_assets.core.certificate import Certificate
from backfill_assets.core.evidence import DatasetDay, DayEvidence, Row
from backfill_assets.core.measured import Seam
from backfill_assets.core.text import in_words, number_of
from backfill_assets.dataset.checks import Check, Level

_FAR: Final = 1000


@dataclass(frozen=True)
class Concern:
    """One problem that one check found on one day; without a day if it is about all of them.

    `blocks` says that it alone keeps the unit from being released; `sample` holds offending rows.
    """

    level: Level
    dataset: str
    check: str
    day: dt.date | None
    found: str
    expected: str
    blocks: bool
    note: str = ""
    sample: tuple[Row, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class CheckRow:
    """What one check has found on all days together: the first day with its figures, and how many days."""

    first: Concern
    days: int


def of_verdicts(
    evidence: Mapping[DatasetDay, DayEvidence], checks: Mapping[str, Sequence[Check]]
) -> tuple[Concern, ...]:
    """The failed verdicts of all days; `checks` are those that each dataset declares."""
    known = {(name, check.name): check for name, declared in checks.items() for check in declared}
    found = []
    for (name, day), one in sorted(evidence.items()):
        for verdict in one.verdicts:
            check = known.get((name, verdict.check))
            if verdict.passed:
                continue
            # The level of a check that is no longer declared is unknown: better too high on the list than too low.
            level = Level.structural if check is None else check.level
            found.append(
                Concern(
                    level,
                    name,
                    verdict.check,
                    day,
                    verdict.found,
                    verdict.expected,
                    verdict.refuses,
                    verdict.note,
                    verdict.sample,
                )
            )
    return tuple(found)


def of_unloaded(datasets: Iterable[str]) -> tuple[Concern, ...]:
    """Datasets of a unit that are not loaded, so that it is unknown whether their days still pass."""
    return tuple(
        Concern(
            Level.structural, name, "loaded", None, "no dataset of that name", "a valid folder", blocks=True,
            note="put its folder back, or repair its dataset.yaml",
        )
        for name in datasets
    )  # fmt: skip


def of_seams(seams: Iterable[Seam]) -> tuple[Concern, ...]:
    """The seams that the recomputation introduced; they only warn, because only people know what happened that day."""
    return tuple(
        Concern(
            Level.aggregate, seam.dataset, f"{seam.metric}_seam", seam.day,
            f"a step of {_step(seam.new_step)} from the day before ({_score(seam.new_score)})",
            f"a usual step; it was {_step(seam.old_step)} ({_score(seam.old_score)})",
            blocks=False,
        )
        for seam in seams
        if seam.introduced
    )  # fmt: skip


def of_certificate(certificate: Certificate, *, blocks: bool) -> tuple[Concern, ...]:
    """What a certificate found: days that come out differently, and tables or days that should not have changed."""
    found = [
        Concern(
            Level.certificate, certificate.dataset, "recomputation", one.day,
            f"{in_words(one.columns) if one.columns else 'rows'} came out differently ({one.recomputation})",
            "the same rows from every recomputation", blocks, sample=one.rows,
        )
        for one in certificate.disagreements
    ]  # fmt: skip
    found += [
        Concern(
            Level.certificate, certificate.dataset, "recomputation", None, f"{touched} changed meanwhile",
            "nothing changes outside of the recomputed days", blocks,
        )
        for touched in certificate.touched
    ]  # fmt: skip
    return tuple(found)


def of_missing_certificate(dataset: str, campaign: str) -> Concern:
    """A certificate that the specification requires is missing, or is for other evidence."""
    return Concern(
        Level.certificate, dataset, "recomputation", None, "no certificate of this evidence", "one that has passed", blocks=True,
        note=f"validation.certificate requires it; get it with: backfill prove {campaign}",
    )  # fmt: skip


def checks_of(concerns: Iterable[Concern]) -> tuple[CheckRow, ...]:
    """What failed, check by check, the worst first: what blocks before what warns, then by level, then by number of days."""
    order, grouped = list(Level), dict[tuple[bool, int, str, str], list[Concern]]()
    for f in concerns:
        grouped.setdefault((not f.blocks, order.index(f.level), f.dataset, f.check), []).append(f)
    keys = sorted(grouped, key=lambda key: (key[0], key[1], -len(grouped[key])))
    return tuple(CheckRow(min(grouped[key], key=_day), len({f.day for f in grouped[key]})) for key in keys)


def _day(concern: Concern) -> tuple[bool, dt.date]:
    return concern.day is None, concern.day or dt.date.max


def in_one_sentence(concerns: Iterable[Concern], days: int) -> str:
    """The worst concern as a sentence without full stop: level, check, day, found, expected; empty if there is none.

    `days` is the number of all days. Of the other checks, those that found something equally bad are counted.
    """
    checks = checks_of(concerns)
    if not checks:
        return ""
    f, failing = checks[0].first, checks[0].days
    alike = sum(one.first.blocks is f.blocks for one in checks) - 1
    on = f" on {failing:,} of {number_of(days, 'day')}, first on {f.day}" if failing > 1 else f" on {f.day}"
    note = f" ({f.note})" if f.note else ""
    others = f"; {number_of(alike, 'other check')} found something too" if alike else ""
    verb = "fails" if f.blocks else "warns"
    return (
        f"{f.level.value} check {f.check} of {f.dataset} {verb}{on if f.day else ''}: found {f.found}, "
        f"expected {f.expected}{note}{others}"
    )


def _step(value: object) -> str:
    return "nothing" if value is None else f"{value:+,.6g}"


def _score(value: float | None) -> str:
    if value is None:
        return "no score"
    # In a series that hardly ever moves, every step is millions of times the usual one.
    return f"{value:+.1f} times the usual spread" if abs(value) < _FAR else "far beyond any usual one"
