"""Figures of a plan: sizes, workload, warnings."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from backfill_assets.campaign.plan import Estimate, PlannedDataset, counted
from backfill_assets.campaign.specification import Specification
from backfill_assets.core.days import Days, day_range, days_argument
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import format_duration
from backfill_assets.core.unit import Hold
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import in_force
from backfill_assets.dataset.loaded import Catalog, LoadedDataset
from backfill_assets.dataset.sources import OnMissing
from backfill_assets.evidence.known_deliveries import KnownDeliveries
from backfill_assets.storage.sources import delivered_sizes
from backfill_assets.warehouse import OnWarehouse


@dataclass(frozen=True)
class Amount:
    """A number of rows and bytes."""

    rows: int
    bytes: int


NOTHING: Final = Amount(0, 0)
Amounts = Mapping[dt.date, Amount]


@dataclass(frozen=True)
class Figures:
    """Sizes of a dataset's days: published, delivered (by delivery day), and published by its upstreams.

    With files of a month, `published` also has the other days of these months.

    `expected` is the approximate size of each day after the build: its published size, or else what was delivered on that
    day, or what its upstreams hold for it.
    """

    dataset: Dataset
    published: Amounts
    delivered: Amounts
    upstream: Mapping[str, Amounts]
    expected: Amounts

    def bytes_read(self, batch: Days, layer: Layer = Layer.shadow) -> int:
        """Bytes (compressed, on disk) of the files that one batch of a layer reads; plans and budgets count the same.

        These are the deliveries of the days and of the other days of their windows, the published files that they are compared
        with, and the published files of the upstream days; raw and staging read only deliveries. The small references are
        left out.
        """
        parts = [(self.delivered, self.dataset.fact_delivery_days(batch))]
        if layer == Layer.shadow:
            parts.append((self.published, batch))
            parts += [(self.upstream[name], self.dataset.upstream_days(name, batch)) for name in self.dataset.upstream]
        return sum(amounts.get(day, NOTHING).bytes for amounts, days in parts for day in days)


@dataclass(frozen=True)
class FigureReader(OnWarehouse):
    """Reads figures; each source is read once, for any number of days."""

    def read(self, name: str, days: Days, above: Mapping[str, Figures], *, landing: bool) -> Figures:
        """Figures of one dataset; `above` holds those of its upstreams that are also planned.

        With `landing`, source files that are not landed yet count as well: their rows are estimated from their sizes.
        """
        loaded = self.datasets[name]
        dataset = loaded.dataset
        published = self._published(name, _with_months(dataset, days))
        delivered = self._delivered(loaded, dataset.fact_delivery_days(days), landing=landing)
        upstream = {u: self._published(u, dataset.upstream_days(u, days)) for u in dataset.upstream}
        known = [{day: _due(dataset, day, delivered) for day in days}] if dataset.source is not None else [
            {**amounts, **(above[u].expected if u in above else {})} for u, amounts in upstream.items()
        ]  # fmt: skip
        expected = {day: published.get(day) or _sum(amounts.get(day, NOTHING) for amounts in known) for day in days}
        return Figures(dataset, published, delivered, upstream, expected)

    def _published(self, name: str, days: Collection[dt.date]) -> Amounts:
        active = self.tables[name].active(days) if days else {}
        return {day: _sum(Amount(f.rows or 0, f.size) for f in files) for day, files in active.items() if files}

    def _delivered(self, loaded: LoadedDataset, window: Days, *, landing: bool) -> Amounts:
        if not window:
            return {}
        found: dict[dt.date, Amount] = {}
        for delivery in in_force(loaded.dataset, KnownDeliveries(self.warehouse).of(loaded.name, window)):
            found[delivery.day] = _sum((found.get(delivery.day, NOTHING), Amount(delivery.rows, delivery.size)))
        if landing and loaded.dataset.lands_files:
            known = _sum(found.values())
            share = known.rows / known.bytes if known.bytes else 0
            sizes = delivered_sizes(loaded, self.layout, [day for day in window if day not in found])
            found |= {day: Amount(round(size * share), size) for day, size in sizes.items()}
        return found


def _with_months(dataset: Dataset, days: Days) -> set[dt.date]:
    """The days; if files have whole months, all of their months."""
    firsts = {day.replace(day=1) for day in days} if dataset.is_monthly else ()
    return {*days, *(day for first in firsts for day in day_range(first, dataset.due(first)))}


def _due(dataset: Dataset, day: dt.date, delivered: Amounts) -> Amount:
    """What was delivered for a day; of a month's files, its share."""
    due = dataset.due(day)
    found, days = delivered.get(due, NOTHING), due.day if dataset.is_monthly else 1
    return Amount(found.rows // days, found.bytes // days)


def _sum(amounts: Iterable[Amount]) -> Amount:
    found = tuple(amounts)
    return Amount(sum(amount.rows for amount in found), sum(amount.bytes for amount in found))


@dataclass(frozen=True)
class PlanBasis:
    """The input of the warnings; datasets in the order of the plan."""

    specification: Specification
    catalog: Catalog
    datasets: tuple[PlannedDataset, ...]
    figures: Mapping[str, Figures]
    holds: Mapping[str, tuple[Hold, ...]]
    estimate: Estimate


def warnings_of(survey: PlanBasis) -> tuple[str, ...]:
    """All warnings, each a sentence that names the problem and the days."""
    of_dataset: tuple[Callable[[PlanBasis, PlannedDataset], Iterator[str]], ...] = (
        _without_source, _without_upstream, _unpublished, _rest_of_months, _on_hold,
    )  # fmt: skip
    found = [text for dataset in survey.datasets for rule in of_dataset for text in rule(survey, dataset)]
    return (*found, *_left_behind(survey), *_longer_than_allowed(survey))


def _without_source(survey: PlanBasis, planned: PlannedDataset) -> Iterator[str]:
    figures = survey.figures[planned.name]
    source = figures.dataset.source
    if source is None:
        return
    missing = [day for day in planned.days if figures.dataset.due(day) not in figures.delivered]
    if missing:
        fails = source.on_missing is OnMissing.fail or figures.dataset.is_monthly
        empty = "they will have only rows from later files" if source.late_days else "they will be empty"
        then = "they will fail their check source_present" if fails else empty
        yield f"{planned.name}, {counted(missing)}: no source data; {then}"


def _without_upstream(survey: PlanBasis, planned: PlannedDataset) -> Iterator[str]:
    figures = survey.figures[planned.name]
    building = {d.name: frozenset(d.days) for d in survey.datasets}
    for name, upstream in figures.dataset.upstream.items():
        there = figures.upstream[name].keys() | building.get(name, frozenset())
        missing = [day for day in figures.dataset.upstream_days(name, planned.days) if day not in there]
        if missing:
            then = (
                "their days will fail their check upstream_present"
                if upstream.on_missing is OnMissing.fail
                else "none of its rows will be found"
            )
            yield f"{planned.name}: its upstream {name} has published nothing on {counted(missing)}; {then}"


def _unpublished(survey: PlanBasis, planned: PlannedDataset) -> Iterator[str]:
    published = survey.figures[planned.name].published
    days = [day for day in planned.days if day not in published]
    if days:
        yield f"{planned.name}, {counted(days)}: nothing is published yet, so there is nothing to compare with"


def _rest_of_months(survey: PlanBasis, planned: PlannedDataset) -> Iterator[str]:
    rest = survey.figures[planned.name].published.keys() - set(planned.days)
    if rest:
        yield (
            f"{planned.name}, {counted(sorted(rest))}: published, of the same months and not in the scope; recompute whole "
            "months: a row that a corrected file has on another day would be on both"
        )


def _on_hold(survey: PlanBasis, planned: PlannedDataset) -> Iterator[str]:
    by_reason: dict[str, list[dt.date]] = {}
    for hold in survey.holds[planned.name]:
        by_reason.setdefault(hold.reason, []).append(hold.target[1])
    for reason, days in by_reason.items():
        yield (
            f"{planned.name}, {counted(days)}: on hold ({reason}); live runs skip them until you run: "
            f"backfill hold lift {planned.name} {days_argument(days)}"
        )


def _left_behind(survey: PlanBasis) -> Iterator[str]:
    names = [dataset.name for dataset in survey.datasets]
    for name in survey.catalog.downstream_of(names):
        above = [u for u in survey.catalog.dataset(name).dataset.upstream if u in names]
        if name not in names and above:
            yield f"{name} is built from {', '.join(above)} and not in the scope: its published days become stale"


def _longer_than_allowed(survey: PlanBasis) -> Iterator[str]:
    allowed = survey.specification.execution.budget.wall_time
    if allowed is not None and survey.estimate.seconds > allowed.total_seconds():
        time = dt.timedelta(seconds=round(survey.estimate.seconds))
        yield f"execution.budget.wall_time: {format_duration(allowed)} is less than the estimate, {time}: it will stop half-way"
