"""The published asset: the one step that releases a unit, and only a unit whose evidence is complete."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import EvidenceError
from backfill_assets.core.text import in_words
from backfill_assets.core.unit import Unit, UnitState, shown_days
from backfill_assets.dataset.definition import Dataset, Publication
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.evidence.readiness import UNFINISHED, explain_faults
from backfill_assets.orchestration.assets import AssetDecorator, common, executable
from backfill_assets.orchestration.launches import LaunchTarget, built_together, target_of, targets_of, unit_of
from backfill_assets.orchestration.names import asset_key, days_of, last_metadata, last_said, layers_of
from backfill_assets.orchestration.outdated import report_outdated
from backfill_assets.orchestration.release_events import (
    LAUNCH_METADATA,
    RELEASE_METADATA,
    release_metadata,
    released_events,
)
from backfill_assets.release.publish import AlreadyReleased, Released
from dagster_batched_events import batched_events


def published_asset(loaded: LoadedDataset, application: Application) -> dg.AssetsDefinition | dg.AssetSpec:
    """The published asset: launchable where units release themselves, otherwise reported by the publish job."""
    dataset = loaded.dataset
    description = f"What readers of {dataset.name} see; changed only by releases, each one atomic commit."
    if dataset.publication is Publication.approval:
        return dg.AssetSpec(
            **common("published", loaded),
            deps=[asset_key("shadow", dataset.name)],
            description=description + " Released by the job publish_unit after approval.",
        )

    def published(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        days = days_of(context.partition_keys)
        target = target_of(context, dataset.name)
        units = _units(context, application, dataset, target)
        outcomes = [o for unit in units if (o := _release(context, application, dataset, unit, days)) is not None]
        if not outcomes:
            return
        own, told = {(dataset.name, day) for day in days}, _told(context, outcomes)
        metadata = release_metadata(application, outcomes, target.launched_by, context.log)
        with batched_events(context.instance):
            for event in released_events(outcomes, metadata, own | told):
                context.log_event(event)
            report_outdated(context.instance, application, outcomes, own)
        if own <= told:
            # Another run of this launch, or the step of another dataset of the unit, has released all, and said so.
            return
        released = {day: o for o in outcomes for day in o.days.get(dataset.name, ())}
        for day in days:
            said = metadata.of(released[day].release, (dataset.name, day))
            context.add_asset_metadata(said, partition_key=day.isoformat())
        yield dg.MaterializeResult()

    decorate: AssetDecorator = dg.asset(
        **executable("published", loaded, application),
        deps=[asset_key("shadow", dataset.name)],
        output_required=False,
        description=description,
    )
    return decorate(published)


def _told(
    context: dg.AssetExecutionContext, outcomes: Sequence[Released | AlreadyReleased]
) -> set[tuple[str, dt.date]]:
    """Days of which Dagster has been told already; all of them, unless the run that made the release died in between.

    Of this launch's own days only what the launch said itself: Dagster takes a backfill's days for done by events of its
    own runs, and for failed if another launch has released them.
    """
    told: set[tuple[str, dt.date]] = set()
    for outcome in outcomes:
        if not isinstance(outcome, AlreadyReleased):
            continue
        for name, target in targets_of(context, tuple(outcome.days)).items():
            key, days = asset_key("published", name), outcome.days[name]
            own = set(target.days) if target.published else set()
            told |= {
                (name, day)
                for day, said in last_metadata(context.instance, key, days).items()
                if said.get(RELEASE_METADATA) == outcome.release
                and (day not in own or said.get(LAUNCH_METADATA) == target.launched_by)
            }
    return told


def _units(
    context: dg.AssetExecutionContext, application: Application, dataset: Dataset, target: LaunchTarget
) -> tuple[Unit, ...]:
    """The units that this launch releases: its own, or the open ones that hold evidence for its days."""
    if target.shadow:
        return (unit_of(context, application, dataset),)
    claims = application.ledger.claims(dataset.name, target.days)
    unclaimed = [day for day in target.days if day not in claims]
    # A sibling run of the same backfill may have released the unit already, and said so with the launch's id.
    said = last_said(context.instance, asset_key("published", dataset.name), unclaimed, LAUNCH_METADATA)
    unclaimed = [day for day in unclaimed if said.get(day) != target.launched_by]
    if unclaimed:
        raise EvidenceError(
            f"{dataset.name} {format_days(unclaimed)}: no open unit holds evidence for these days, so nothing is "
            f"published. Materialize {in_words(layers_of(dataset))} of {dataset.name} for them together."
        )
    units = tuple(application.ledger.unit(u) for u in sorted(set(claims.values())))
    for unit in units:
        _require_whole(unit, targets_of(context, tuple(unit.targets)))
    return units


def _require_whole(unit: Unit, targets: Mapping[str, LaunchTarget]) -> None:
    """Refuse a launch of published alone that leaves out days, or whole datasets, of the unit that it would release."""
    launched = {(name, day) for name, found in targets.items() if found.published for day in found.days}
    left_out = set(unit.days) - launched
    if left_out:
        raise EvidenceError(
            f"unit {unit.id} also holds {shown_days(left_out)}, and a unit is released whole. Launch published for all of "
            f"{shown_days(unit.days)}, or run: backfill publish {unit.id}"
        )


def _release(
    context: dg.AssetExecutionContext, application: Application, dataset: Dataset, unit: Unit, days: Sequence[dt.date]
) -> Released | AlreadyReleased | None:
    """Release the unit; wait if all that it lacks is still being built, or has failed, in this very launch.

    Raises:
        EvidenceError: evidence is missing, failed or stale, or the unit was rolled back.
    """
    if unit.state is UnitState.rolled_back:
        # Its evidence may be fresh again. A retry of an old run must not undo what somebody decided since.
        raise EvidenceError(f"unit {unit.id} was rolled back; to release it again: backfill publish {unit.id}")
    if unit.state is UnitState.open:
        faults = application.publisher.missing(unit.id)
        unfinished = {(f.dataset, f.day) for f in faults if f.fault in UNFINISHED}
        here = {(dataset.name, day) for day in days}
        together = built_together(context, application, dataset.name)
        elsewhere = {(name, day) for name, found in together.items() for day in found.days} - here
        if faults and {(f.dataset, f.day) for f in faults} <= unfinished & elsewhere:
            context.log.info(
                f"unit {unit.id}: the release waits for {len(unfinished)} other days\n{explain_faults(faults)}"
            )
            return None
    return application.publisher.release(unit.id)
