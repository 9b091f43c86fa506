"""Which values of which dimension explain a change, and which files a release touches."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import TimeTravelError
from backfill_assets.core.measured import DayComparison
from backfill_assets.core.release import DataFile, DaySwap, Manifest, ReleaseKind, layout_digest
from backfill_assets.core.text import in_words, number_of
from backfill_assets.core.unit import ReleaseRecord
from backfill_assets.delta.table import PublishedTable
from backfill_assets.evidence.readiness import Survey

_ENOUGH: Final = Decimal("0.9")
"""The share of a change that is enough to explain: the rest may be rounding, or another cause."""
_PRICE: Final = 0.01
"""What each further value must add, so that one store ranks before the hundred baskets that were bought in it."""
_TELLING: Final = 0.1
"""The minimum excess of a cause that is worth reporting."""
_NAMED: Final = 3


@dataclass(frozen=True)
class Cause:
    """Values of one dimension that together explain a share of a measure's change.

    `explained` is that share, `of_rows` their share of all rows of the changed days; both from 0 to 1.
    """

    dimension: str
    values: tuple[str, ...]
    explained: float
    of_rows: float

    @property
    def excess(self) -> float:
        """How much more these values explain than in a change that is spread evenly over the rows; up to 1."""
        return self.explained - self.of_rows


@dataclass(frozen=True)
class Attribution:
    """The causes of a measure's change, one per dimension, the most telling first.

    `moved` adds up the absolute differences of all rows; `unexplained` is what the first cause leaves, from 0 to 1.
    """

    dataset: str
    measure: str
    moved: Decimal
    causes: tuple[Cause, ...]
    unexplained: float

    def __str__(self) -> str:
        if not self.causes or self.causes[0].excess < _TELLING:
            return f"the {self.measure} change is spread over the rows; no dimension explains it"
        first = self.causes[0]
        named, rest = first.values[:_NAMED], len(first.values) - _NAMED
        parts = [*named, f"{rest} more"] if rest > 0 else [*named]
        has = "which has" if len(parts) == 1 else "which have"
        return (
            f"{_percent(first.explained)} of the {self.measure} change is in {first.dimension} {in_words(parts)}, "
            f"{has} {_percent(first.of_rows)} of the rows"
        )


@dataclass
class _Sum:
    moved: Decimal = Decimal(0)
    of: int = 0


def attribute(comparisons: Iterable[DayComparison]) -> tuple[Attribution, ...]:
    """Explain the change of each measure of each dataset that moved, over all compared days; sorted by dataset and measure.

    After Adtributor (Bhagwan et al., "Adtributor: Revenue Debugging in Advertising Systems", NSDI 2014): each dimension
    proposes the few values that explain most of the change (*explanatory power*, *succinctness*), leaving out those that
    are not surprising, and the dimensions are sorted by how surprising their proposals are. Where it differs:

    - Explanatory power is the share of the absolute differences of rows, not of the difference of the totals: two errors
      that cancel out in the sum are found as well, and every share lies between 0 and 1.
    - Surprise is the share of the change less the share of the rows (`Cause.excess`), not the Jensen-Shannon divergence from
      a forecast: a correction has none, and people can read percentages of rows. A value that explains no more than its rows
      would is not surprising. If no value of a dimension is surprising, its largest are proposed.
    - A proposal ends at 90 % rather than 67 %, since a faulty computation is rarely a matter of chance. A threshold per value
      (there 10 %) would hide an error in twenty stores; instead each value beyond the first lowers the rank by one percent point.

    Each day records only values that make up one percent of its change or more: at most that is missing from any value.
    Figures that are not finite count as zero; a measure that did not move is left out.
    """
    of_dataset: dict[str, list[DayComparison]] = {}
    for one in sorted(comparisons, key=lambda c: (c.dataset, c.day, c.attempt)):
        of_dataset.setdefault(one.dataset, []).append(one)
    found = []
    for dataset, days in sorted(of_dataset.items()):
        for measure in sorted({measure for day in days for measure in day.moved}):
            total = sum((_finite(day.moved.get(measure)) for day in days), Decimal(0))
            if total:
                causes = _causes(days, measure, _Sum(total, sum(day.of for day in days)))
                left = 1 - causes[0].explained if causes else 1.0
                found.append(Attribution(dataset, measure, total, causes, left))
    return tuple(found)


def _causes(days: Iterable[DayComparison], measure: str, overall: _Sum) -> tuple[Cause, ...]:
    sums: dict[str, dict[str, _Sum]] = {}
    for day in days:
        for share in day.shares:
            one = sums.setdefault(share.dimension, {}).setdefault(share.value, _Sum())
            one.moved += _finite(share.moved.get(measure))
            one.of += share.of
    causes = [_cause(dimension, values, overall) for dimension, values in sums.items()]
    return tuple(sorted(causes, key=_rank))


def _rank(cause: Cause) -> tuple[bool, float, int, str]:
    # A cause that covers all rows explains everything, and so nothing.
    worth = cause.excess - _PRICE * (len(cause.values) - 1)
    return cause.of_rows >= 1, -worth, len(cause.values), cause.dimension


def _cause(dimension: str, values: Mapping[str, _Sum], overall: _Sum) -> Cause:
    moved = {value: one for value, one in values.items() if one.moved > 0}
    surprising = {v: one for v, one in moved.items() if one.moved * overall.of > overall.moved * one.of}
    chosen: list[str] = []
    taken = _Sum()
    for value, one in sorted((surprising or moved).items(), key=lambda item: (-item[1].moved, item[1].of, item[0])):
        if taken.moved >= _ENOUGH * overall.moved:
            break
        chosen.append(value)
        taken = _Sum(taken.moved + one.moved, taken.of + one.of)
    of_rows = min(1.0, taken.of / overall.of) if overall.of else 1.0
    return Cause(dimension, tuple(chosen), min(1.0, float(taken.moved / overall.moved)), of_rows)


def _finite(value: Decimal | None) -> Decimal:
    return value if value is not None and value.is_finite() else Decimal(0)


def _percent(share: float) -> str:
    # What is not exactly 0 % or 100 % must not look as if it were.
    if 0 < share < 0.01:  # noqa: PLR2004 - the least that is shown
        return "under 1 %"
    return f"{share * 100:.0f} %" if share == 1 or share <= 0.99 else "over 99 %"  # noqa: PLR2004 - the most


@dataclass(frozen=True)
class Reach:
    """Which files a release touches: those of its days, and no other.

    `removed` and `added` count files; `outside` counts the files of other days. `altered` names other days whose files
    changed, and own days with other files than they should have. `held` is None if that can no longer be determined.
    """

    dataset: str
    release: str
    days: int
    removed: int
    added: int
    outside: int
    outside_days: int
    altered: tuple[dt.date, ...]
    held: bool | None
    words: str


FilesByDay = Mapping[dt.date, tuple[DataFile, ...]]


def planned_reach(tables: Mapping[str, PublishedTable], survey: Survey) -> tuple[Reach, ...]:
    """What releasing a unit would touch, for each of its datasets."""
    return tuple(_planned(tables[name], survey, name) for name in sorted(survey.unit.targets))


def made_reach(tables: Mapping[str, PublishedTable], record: ReleaseRecord) -> Reach | None:
    """The files that a release touched: its table version against the previous one; None if it was never committed."""
    manifest, version = record.manifest, record.version
    table = tables.get(manifest.dataset)
    if table is None or version is None:
        return None
    verb = "put back" if manifest.kind is ReleaseKind.rollback else "brought"
    words = f"{manifest.release} {verb} {_swapped(manifest.days)}"
    try:
        before, after = table.at(version - 1), table.at(version)
    except TimeTravelError as error:
        words += f"; it is no longer possible to check whether other files are unchanged: {error}"
        return replace(_reach(manifest, {}), held=None, words=words)
    days = frozenset(swap.day for swap in manifest.days)
    outside = {day: files for day, files in after.items() if day not in days}
    altered = _altered({day: files for day, files in before.items() if day not in days}, outside)
    wrong = tuple(s.day for s in manifest.days if layout_digest(after.get(s.day, ())) != layout_digest(s.add))
    words += f". Version {version} against version {version - 1} of the Delta log: {_outside(outside, altered)}"
    if wrong:
        words += f" {format_days(wrong, most=3)} show other files than the release brought."
    every = (*altered, *wrong)
    return replace(_reach(manifest, outside), altered=every, held=not every, words=words)


def _planned(table: PublishedTable, survey: Survey, name: str) -> Reach:
    days, swaps = frozenset(survey.unit.targets[name]), survey.swaps(name)
    outside = {day: files for day, files in table.active().items() if day not in days}
    strangers = tuple(s.day for s in swaps if any(f.day != s.day for f in (*s.add, *s.remove)))
    words = (
        f"Publishing {name} brings {_swapped(swaps)}: exactly the files that these days have now. "
        f"{_kept(outside)} not touched."
    )
    if strangers:
        words = f"The shadow of {name} holds files of other days than its own: {format_days(strangers, most=3)}."
    counts = _counts(swaps, outside)
    return Reach(name, "", len(swaps), *counts, altered=strangers, held=not strangers, words=words)


def _reach(manifest: Manifest, outside: FilesByDay) -> Reach:
    counts = _counts(manifest.days, outside)
    return Reach(manifest.dataset, manifest.release, len(manifest.days), *counts, altered=(), held=True, words="")


def _counts(swaps: Sequence[DaySwap], outside: FilesByDay) -> tuple[int, int, int, int]:
    """Files that leave and come, files and days outside."""
    files = sum(len(found) for found in outside.values())
    return sum(len(s.remove) for s in swaps), sum(len(s.add) for s in swaps), files, len(outside)


def _altered(before: FilesByDay, after: FilesByDay) -> tuple[dt.date, ...]:
    days = sorted({*before, *after})
    return tuple(day for day in days if layout_digest(before.get(day, ())) != layout_digest(after.get(day, ())))


def _swapped(swaps: Sequence[DaySwap]) -> str:
    removed, added, *_ = _counts(swaps, {})
    days = number_of(len(swaps), "day")
    return f"{number_of(added, 'file')} for {days} in place of {number_of(removed, 'file')}"


def _kept(outside: FilesByDay) -> str:
    count = sum(len(files) for files in outside.values())
    if not count:
        return "No other day has files: other days are"
    return (
        f"The {number_of(count, 'file')} of the {number_of(len(outside), 'other day')} {'is' if count == 1 else 'are'}"
    )


def _outside(outside: FilesByDay, altered: Sequence[dt.date]) -> str:
    if altered:
        return f"outside of its days, {format_days(altered, most=3)} differ before and after."
    count = sum(len(files) for files in outside.values())
    if not count:
        return "no other day has files."
    return f"the {number_of(count, 'file')} of the {number_of(len(outside), 'other day')} are unchanged."
