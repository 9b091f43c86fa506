"""Warnings of a plan: what will not stop a campaign, but somebody should know before it is launched."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from backfill_assets.campaign.plan import Estimate, PlannedDataset, counted
from backfill_assets.campaign.specification import Specification
from backfill_assets.campaigns.planning.figures import Figures
from backfill_assets.core.text import format_duration
from backfill_assets.core.unit import Hold
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.dataset.sources import OnMissing


@dataclass(frozen=True)
class Survey:
    """All that warnings are made from; datasets in the order of the plan.

    `slots` is the number of runs that the run queue lets backfills have at once; none where nobody knows.
    """

    specification: Specification
    catalog: Catalog
    datasets: tuple[PlannedDataset, ...]
    figures: Mapping[str, Figures]
    holds: Mapping[str, tuple[Hold, ...]]
    estimate: Estimate
    slots: int | None


def warnings_of(survey: Survey) -> tuple[str, ...]:
    """All warnings, each a sentence that names what and which days."""
    of_dataset: tuple[Callable[[Survey, PlannedDataset], Iterator[str]], ...] = (
        _without_source, _without_upstream, _unpublished, _on_hold,
    )  # fmt: skip
    found = [text for dataset in survey.datasets for rule in of_dataset for text in rule(survey, dataset)]
    return (*found, *_left_behind(survey), *_more_than_the_queue_gives(survey), *_longer_than_allowed(survey))


def _without_source(survey: Survey, planned: PlannedDataset) -> Iterator[str]:
    figures = survey.figures[planned.name]
    source = figures.dataset.source
    if source is None:
        return
    missing = [day for day in planned.days if day not in figures.delivered]
    if missing:
        fails = source.on_missing is OnMissing.fail
        empty = "they will have only what later files hold of them" if source.late_days else "they will come out empty"
        then = "they will fail their check source_present" if fails else empty
        yield f"{planned.name}, {counted(missing)}: no source data; {then}"


def _without_upstream(survey: Survey, planned: PlannedDataset) -> Iterator[str]:
    figures = survey.figures[planned.name]
    building = {d.name: frozenset(d.days) for d in survey.datasets}
    for name, upstream in figures.dataset.upstream.items():
        there = figures.upstream[name].keys() | building.get(name, frozenset())
        lacking = [day for day in figures.dataset.upstream_days(name, planned.days) if day not in there]
        if lacking:
            then = (
                "their days will fail their check upstream_present"
                if upstream.on_missing is OnMissing.fail
                else "none of its rows will be found"
            )
            yield f"{planned.name}: its upstream {name} has published nothing on {counted(lacking)}; {then}"


def _unpublished(survey: Survey, planned: PlannedDataset) -> Iterator[str]:
    published = survey.figures[planned.name].published
    days = [day for day in planned.days if day not in published]
    if days:
        yield f"{planned.name}, {counted(days)}: nothing is published yet, so that there is nothing to compare with"


def _on_hold(survey: Survey, planned: PlannedDataset) -> Iterator[str]:
    by_reason: dict[str, list[dt.date]] = {}
    for hold in survey.holds[planned.name]:
        by_reason.setdefault(hold.reason, []).append(hold.target[1])
    for reason, days in by_reason.items():
        yield (
            f"{planned.name}, {counted(days)}: on hold ({reason}); live runs leave them alone until: "
            f"backfill hold lift {planned.name} {min(days)} {max(days)}"
        )


def _left_behind(survey: Survey) -> Iterator[str]:
    names = [dataset.name for dataset in survey.datasets]
    for name in survey.catalog.downstream_of(names):
        above = [u for u in survey.catalog.dataset(name).dataset.upstream if u in names]
        if name not in names and above:
            yield f"{name} is built from {', '.join(above)} and not in the scope: what is published of it becomes outdated"


def _more_than_the_queue_gives(survey: Survey) -> Iterator[str]:
    wanted = survey.specification.execution.max_concurrency
    if survey.slots is not None and wanted > survey.slots:
        yield (
            f"execution.max_concurrency: {wanted}, but the run queue lets backfills have {survey.slots} at once; raise the "
            "limit of dagster/backfill in dagster.yaml, and max_concurrent_runs above it"
        )


def _longer_than_allowed(survey: Survey) -> Iterator[str]:
    allowed = survey.specification.execution.budget.wall_time
    if allowed is not None and survey.estimate.seconds > allowed.total_seconds():
        time = dt.timedelta(seconds=round(survey.estimate.seconds))
        yield f"execution.budget.wall_time: {format_duration(allowed)} is less than the estimate, {time}: it will stop on the way"
