"""The plan of a campaign: one list of steps, which `launch` follows and `explain` prints, and how long they take."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from itertools import islice, pairwise
from statistics import linear_regression
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer

from backfill_assets.campaign.specification import Notice, Specification
from backfill_assets.core.canonical import digest, plain
from backfill_assets.core.days import Days, day_range, format_days, runs_of_days, slices
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import format_duration, number_of
from backfill_assets.core.unit import Attempt, AttemptState


def _ranges(days: Iterable[dt.date]) -> list[tuple[dt.date, dt.date]]:
    return list(runs_of_days(days))


def _days(ranges: Iterable[Sequence[str]]) -> Days:
    edges = ((dt.date.fromisoformat(first), dt.date.fromisoformat(last)) for first, last in ranges)
    return tuple(day for first, last in edges for day in day_range(first, last))


StoredDays = Annotated[Days, BeforeValidator(_days), PlainSerializer(_ranges)]
"""Days that are stored as ranges: the first and the last day of each run without a gap."""
_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB")
_THOUSAND = 1000
SHOWN_DIGITS = 12
"""Hex digits of a plan's fingerprint in file names and for people."""


@dataclass(frozen=True)
class PlannedDataset:
    """One dataset of a plan: its days, the layers that will be built, and the code and inputs.

    `inputs` maps each day to the digest of its inputs when the plan was made. `rows` and `bytes` are the totals that its
    days hold now: as published, otherwise as delivered.
    """

    name: str
    layers: tuple[Layer, ...]
    days: StoredDays
    code_version: str
    inputs: Mapping[dt.date, str]
    rows: int
    bytes: int


class StepKind(StrEnum):
    """What a step of a campaign does, in the order in which steps come."""

    announce = "announce"
    open_unit = "open_unit"
    canary = "canary"
    rest = "rest"
    approve = "approve"
    publish = "publish"
    sign_off = "sign_off"
    cleanup = "cleanup"


@dataclass(frozen=True)
class Step:
    """One step: its number from 1 on, what it does in words, and the days that it is about, in order."""

    number: int
    kind: StepKind
    text: str
    days: StoredDays


@dataclass(frozen=True)
class Estimate:
    """Expected totals over all datasets: rows to write, bytes to read, batches, and the seconds that they take.

    `cost` is a number and a currency; empty without a price.
    """

    rows: int
    bytes: int
    batches: int
    seconds: float
    cost: str = ""


@dataclass(frozen=True)
class Plan:
    """A frozen plan: what `launch` does, and what `plan` shows; datasets come upstream first.

    `specification` is the hash of the specification that it was made from.
    """

    campaign: str
    specification: str
    created_at: dt.datetime
    datasets: tuple[PlannedDataset, ...]
    canaries: Days
    steps: tuple[Step, ...]
    estimate: Estimate
    warnings: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """Digest of specification, code, inputs, canaries and steps; planning again at another time does not change it."""
        datasets = [[d.name, d.layers, _ranges(d.days), d.code_version, d.inputs] for d in self.datasets]
        steps = [[s.number, s.kind, s.text, _ranges(s.days)] for s in self.steps]
        return digest(plain([self.campaign, self.specification, datasets, self.canaries, steps]))

    @property
    def targets(self) -> dict[str, Days]:
        """The days of each dataset, upstream first, as a release unit needs them."""
        return {dataset.name: dataset.days for dataset in self.datasets}

    @cached_property
    def days(self) -> Days:
        """Every day of the plan, in order."""
        return tuple(sorted({day for dataset in self.datasets for day in dataset.days}))


def choose_canaries(days: Iterable[dt.date], sizes: Mapping[dt.date, int], count: int) -> Days:
    """At most `count` days that show problems early, the most useful first.

    The order is oldest, newest, largest (by `sizes`; the earliest of several), then first and last days of months in
    order, then by size. If `count` is larger, all days are chosen.
    """
    known = sorted(set(days))
    by_size = sorted(known, key=lambda day: (-sizes.get(day, 0), day))
    telling = (*known[:1], *known[-1:], *by_size[:1], *_month_edges(known), *by_size)
    return tuple(islice(dict.fromkeys(telling), max(count, 0)))


def batches(days: Iterable[dt.date], size: int, chunk_days: int) -> tuple[Days, ...]:
    """The batches of one dataset, in order: gapless days are split into runs of `chunk_days`, and these into `size` days.

    A batch never crosses the end of a run, so both numbers decide its size.
    """
    runs = (run for first, last in runs_of_days(days) for run in slices(day_range(first, last), chunk_days))
    return tuple(batch for run in runs for batch in slices(run, size))


def explain(plan: Plan) -> str:
    """The plan for people: datasets, steps, estimate and warnings, in several lines."""
    lines = [f"campaign {plan.campaign}, plan {plan.fingerprint[:SHOWN_DIGITS]}"]
    lines += [
        f"  {d.name}: {', '.join(d.layers)} of {counted(d.days)}, {d.rows:,} rows in {shown_bytes(d.bytes)}, "
        f"code {d.code_version}"
        for d in plan.datasets
    ]
    lines += ["steps", *(f"  {step.number}. {step.text}" for step in plan.steps), "estimate"]
    e = plan.estimate
    cost = f", {e.cost}" if e.cost else ""
    time = dt.timedelta(seconds=round(e.seconds))
    lines.append(
        f"  {number_of(e.batches, 'batch')}, {time} one after another{cost}; {e.rows:,} rows, reads {shown_bytes(e.bytes)}"
    )
    lines += ["warnings", *(f"  {text}" for text in plan.warnings)] if plan.warnings else []
    return "\n".join(lines)


def shown_bytes(size: int) -> str:
    """Bytes for people, to three digits: `1.23 GB`."""
    value, unit = float(size), 0
    while round(value) >= _THOUSAND and unit < len(_UNITS) - 1:
        value, unit = value / _THOUSAND, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"


def counted(days: Sequence[dt.date]) -> str:
    """Days for people, with their number: `547 days 1995-01-01..1996-06-30`."""
    return f"{number_of(len(days), 'day')} {format_days(days, most=3)}"


def _month_edges(days: Sequence[dt.date]) -> Iterator[dt.date]:
    for one, other in pairwise(days):
        if (one.year, one.month) != (other.year, other.month):
            yield from (one, other)


def steps(
    specification: Specification, datasets: Sequence[PlannedDataset], canaries: Days, chunk_days: int
) -> tuple[Step, ...]:
    """The steps of a campaign from its launch on; steps that the specification does not ask for are left out.

    `chunk_days` is the number of days of one run; a batch never crosses its end.
    """
    found = _steps(specification, datasets, canaries, chunk_days)
    return tuple(Step(number, kind, text, days) for number, (kind, text, days) in enumerate(found, 1))


def _steps(
    specification: Specification, datasets: Sequence[PlannedDataset], canaries: Days, chunk_days: int
) -> Iterator[tuple[StepKind, str, Days]]:
    days, chosen = datasets[0].days, frozenset(canaries)
    rest = tuple(day for day in days if day not in chosen)
    names = ", then ".join(d.name if d.days == days else f"{d.name} (from {d.days[0]} on)" for d in datasets)
    notify = specification.notify
    if notify is not None and Notice.announced in notify.on:
        yield StepKind.announce, f"announce {specification.backfill_id} at the webhook in {notify.variable}", days
    yield StepKind.open_unit, f"open one release unit and claim {counted(days)} of {names}", days
    size = specification.execution.partitions_per_batch
    for kind, some in ((StepKind.canary, tuple(sorted(canaries))), (StepKind.rest, rest)):
        if some:
            own = (tuple(day for day in some if day in planned.days) for planned in datasets)
            count = sum(len(batches(mine, size, chunk_days)) for mine in own if mine)
            yield kind, _building(kind, specification, datasets, some, count), some
    if specification.approval.required:
        who = " or ".join(specification.approval.by) or "anybody"
        yield StepKind.approve, f"wait until {who} has approved exactly the evidence of all days", days
    windows = " or ".join(str(window) for window in specification.publish_window)
    when = f", between {windows} ({specification.time_zone})" if windows else ""
    commits = "one commit" if len(datasets) == 1 else "one commit each"
    yield StepKind.publish, f"rehearse the rollback, then publish {counted(days)} of {names} in {commits}{when}", days
    kept = format_duration(specification.rollback.keep_for)
    yield StepKind.sign_off, f"wait for the sign-off; the release can be rolled back for {kept}", days
    yield StepKind.cleanup, "after sign-off and that time, remove the files that nothing refers to", days


def _building(
    kind: StepKind, specification: Specification, datasets: Sequence[PlannedDataset], days: Days, count: int
) -> str:
    execution = specification.execution
    layers = "; ".join(f"{', '.join(d.layers)} of {d.name}" for d in datasets)
    canary = kind is StepKind.canary
    which = (
        f"the canaries {format_days(days)}"
        if canary
        else f"{'all' if len(days) == len(datasets[0].days) else 'the other'} {counted(days)}"
    )
    most = f"at most {number_of(execution.partitions_per_batch, 'day')} each, at most {execution.max_concurrency} at a time"
    after = "stop there if a check fails, go on if none does" if canary else "stop if a check fails"
    return f"build and check {which} ({layers}) in {number_of(count, 'batch')}, {most}; {after}"


_PRICE: Final = re.compile(r"\s*(\d{1,9}(?:\.\d{1,4})?)\s*([A-Z]{3}|[€$£])\s*", re.ASCII)
_ENOUGH: Final = 4
_NEWEST: Final = 200
_SPREAD: Final = 2
_HOUR: Final = 3600

Cut = Callable[[Iterable[dt.date]], Sequence[Days]]
"""How days become batches."""


@dataclass(frozen=True)
class Price:
    """What an hour of batch time costs."""

    amount: Decimal
    currency: str

    def of(self, seconds: float) -> str:
        """The price of some seconds, to the hundredth: `12.60 EUR`."""
        return f"{self.amount * Decimal(seconds) / _HOUR:.2f} {self.currency}"


def parse_price(text: str) -> Price:
    """Read a number and a currency, such as `4.20 EUR`.

    Raises:
        ValueError: the text is anything else.
    """
    match = _PRICE.fullmatch(text)
    if match is None:
        raise ValueError("write a price per hour as a number and a currency, such as 4.20 EUR")
    return Price(Decimal(match[1]), match[2])


@dataclass(frozen=True)
class Rate:
    """How long a batch takes: `fixed` seconds for every batch, and `per_row` seconds for each row that it writes.

    `measured` is the number of batches behind it; 0 for an assumed rate.
    """

    fixed: float
    per_row: float
    measured: int = 0

    def seconds(self, batches: int, rows: float) -> float:
        """Seconds of batch time for so many batches with so many rows together."""
        return self.fixed * batches + self.per_row * rows


ASSUMED: Final = Rate(7.0, 1e-5)
"""The rate before anything is measured: a batch of small days takes 7 s on two cores with a warm server, and 10 s more per
million rows is a cautious guess; the canary corrects both."""


def rate_of(attempts: Iterable[Attempt], otherwise: Rate = ASSUMED) -> Rate:
    """The rate of the newest finished attempts (at most 200) with a known number of rows, from start to end.

    A straight line through them, if some have few and some have many rows and the line makes sense; if not, `otherwise`,
    scaled by one factor to the total time that they took.
    """
    points = [
        (float(a.rows), (a.ended_at - a.started_at).total_seconds())
        for a in attempts
        if a.state is AttemptState.done and a.rows and a.ended_at
    ][-_NEWEST:]
    expected = sum(otherwise.seconds(1, rows) for rows, _ in points)
    if not expected:
        return otherwise
    line = _line(points)
    if line is not None:
        return Rate(*line, len(points))
    factor = sum(seconds for _, seconds in points) / expected
    return Rate(otherwise.fixed * factor, otherwise.per_row * factor, len(points))


def rates_of(names: Iterable[str], attempts: Sequence[Attempt], otherwise: Mapping[str, Rate]) -> dict[str, Rate]:
    """The rate of each dataset from its own attempts; without attempts, its rate in `otherwise`, or the rate of all."""
    of_all = rate_of(attempts)
    own: dict[str, list[Attempt]] = {name: [] for name in names}
    for attempt in attempts:
        own.setdefault(attempt.dataset, []).append(attempt)
    return {name: rate_of(own[name], otherwise.get(name, of_all)) for name in names}


def estimate_left(plan: Plan, attempts: Sequence[Attempt], rates: Mapping[str, Rate], cut: Cut) -> Estimate:
    """What is left of a plan after the finished attempts; without a cost.

    Rows are the plan's average per day (or the finished attempts', if the plan has no rows) for the days that are left. Bytes
    are the finished attempts' average per day, if there are any: they measure what the plan can only guess.
    """
    done = [a for a in attempts if a.state is AttemptState.done]
    rows, read, count, seconds = 0, 0, 0, 0.0
    for dataset in plan.datasets:
        layers = [[a for a in done if (a.dataset, a.layer) == (dataset.name, layer)] for layer in dataset.layers]
        own = layers[-1]
        built = {day for attempt in own for day in attempt.days}
        days = [day for day in dataset.days if day not in built]
        its_rows = _rows_left(dataset, len(days), own)
        its_batches = len(cut(days))
        rows, count = rows + its_rows, count + its_batches
        read += sum(
            _share(sum(a.bytes_read for a in some), len(days), sum(len(a.days) for a in some)) for some in layers
        )
        seconds += rates[dataset.name].seconds(its_batches, its_rows)
    if not any(a.layer == d.layers[-1] for a in done for d in plan.datasets):
        read = plan.estimate.bytes
    return Estimate(rows, read, count, round(seconds, 1))


def _rows_left(dataset: PlannedDataset, days: int, own: Sequence[Attempt]) -> int:
    if dataset.rows:
        return _share(dataset.rows, days, len(dataset.days))
    return _share(sum(a.rows for a in own), days, sum(len(a.days) for a in own))


def _share(total: int, part: int, whole: int) -> int:
    return round(total * part / whole) if whole else 0


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Least squares as (fixed, per row); None if the points do not show what a row costs."""
    rows = [x for x, _ in points]
    if len(points) < _ENOUGH or max(rows) < _SPREAD * max(min(rows), 1):
        return None
    slope, fixed = linear_regression(rows, [y for _, y in points])
    return (fixed, slope) if slope >= 0 and fixed >= 0 else None
