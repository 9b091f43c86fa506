"""The assets of one dataset: raw, staging, shadow, and published, the one step that releases a unit."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession

from backfill_assets.application import Application
from backfill_assets.control.conductor import Batch
from backfill_assets.core.days import format_days
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import EvidenceError
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import in_words
from backfill_assets.core.unit import REASON_TAG, Unit, UnitState, shown_days
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.evidence.inputs import deliveries_of, force_by_day
from backfill_assets.evidence.readiness import UNFINISHED, explain_blockers
from backfill_assets.orchestration.batches import build, in_batches
from backfill_assets.orchestration.launches import (
    BACKFILL_TAG,
    LaunchTarget,
    built_together,
    is_live,
    target_of,
    targets_of,
    unit_of,
)
from backfill_assets.orchestration.names import (
    asset_key,
    days_of,
    last_metadata,
    last_metadata_value,
    op_name,
    partitions_of,
    policy_of,
)
from backfill_assets.orchestration.release_events import (
    LAUNCH_METADATA,
    RELEASE_METADATA,
    release_metadata,
    released_events,
    report_stale,
)
from backfill_assets.release.publish import AlreadyReleased, Released
from dagster_batched_events import batched_events

SHADOW_CONFIG = {
    "expected_change": dg.Field(
        dg.Any,
        is_required=False,
        description="The expected change: {row_count: -50%}, {metrics: …, rows: …}, or a list of these with days.",
    )
}


def pipeline_assets(loaded: LoadedDataset, application: Application) -> list[dg.AssetsDefinition]:
    """The assets of the layers of a dataset up to its shadow."""
    make = {Layer.raw: _raw, Layer.staging: _staging, Layer.shadow: _shadow}
    return [make[layer](loaded, application) for layer in loaded.dataset.built_layers]


def _spec(
    layer: Layer, loaded: LoadedDataset, deps: Sequence[dg.AssetKey], description: str, application: Application
) -> dg.AssetSpec:
    """An asset of a dataset as Dagster shows it: key, partitions, group, code version, owner."""
    dataset = loaded.dataset
    return dg.AssetSpec(
        asset_key(layer, dataset.name),
        deps=deps,
        description=description,
        # A step of published releases nothing while other runs of its launch are still building the unit.
        skippable=layer is Layer.published,
        partitions_def=partitions_of(dataset, application.catalog),
        group_name=dataset.name,
        code_version=loaded.code_version,
        kinds={"delta"} if layer is Layer.published else {"delta", "spark"},
        metadata={
            "dataset": dataset.name,
            "time_zone": dataset.time_zone,
            **({"owner": dataset.owner} if dataset.owner else {}),
        },
    )


def _executable(layer: Layer, spec: dg.AssetSpec, loaded: LoadedDataset, application: Application) -> dict[str, Any]:
    """How Dagster runs an asset: op, policy and pool."""
    return {
        # Run config names an op layer first; `dg.asset` would name it after the key.
        "name": op_name(layer, loaded.dataset.name),
        "specs": [spec],
        "description": spec.description,
        "backfill_policy": policy_of(loaded.dataset, application.settings),
        "pool": f"dataset_{loaded.dataset.name}",
    }


def _raw(loaded: LoadedDataset, application: Application) -> dg.AssetsDefinition:
    name = loaded.dataset.name

    def raw(context: dg.AssetExecutionContext) -> None:
        days = _admitted_days(context, application, loaded)
        if not days:
            return
        # In a campaign, days without a file skip the gate and land nothing.
        application.pipeline.require_sources(name)
        new: list[Delivery] = []

        def land(spark: SparkSession, batch: tuple[dt.date, ...]) -> None:
            new.extend(application.pipeline.land(spark, name, batch, live=is_live(context)).new)

        in_batches(context, application, Batch(name, days, Layer.raw), land)
        fresh = frozenset(new)
        deliveries = application.ledger.deliveries(name, loaded.dataset.delivery_days(days))
        known = force_by_day(loaded.dataset, deliveries)
        for day in days:
            own = deliveries_of(loaded.dataset, day, known)
            metadata = {
                "deliveries": len(own), "new_deliveries": sum(d in fresh for d in own),
                "dagster/row_count": sum(d.rows for d in own), "corrupt_rows": sum(d.corrupt_rows for d in own),
                "files": [d.path for d in own],
            }  # fmt: skip
            context.add_asset_metadata(metadata, partition_key=day.isoformat())
        context.log.info(f"landed {len(new)} new deliveries for {format_days(days)}")

    description = f"Every delivery of {name}, as landed, with its file, fingerprint and load time."
    spec = _spec(Layer.raw, loaded, [], description, application)
    return dg.multi_asset(**_executable(Layer.raw, spec, loaded, application))(raw)


def _staging(loaded: LoadedDataset, application: Application) -> dg.AssetsDefinition:
    name = loaded.dataset.name

    def staging(context: dg.AssetExecutionContext) -> None:
        days = _admitted_days(context, application, loaded)
        if not days:
            return
        rows: dict[dt.date, int] = {}

        def stage(spark: SparkSession, batch: tuple[dt.date, ...]) -> None:
            rows.update(application.pipeline.stage(spark, name, batch, live=is_live(context)))

        in_batches(context, application, Batch(name, days, Layer.staging), stage)
        for day in days:
            metadata: Mapping[str, object] = (
                {"dagster/row_count": rows[day], "staged": "now"} if day in rows else {"staged": "already up to date"}
            )
            context.add_asset_metadata(metadata, partition_key=day.isoformat())

    description = f"{name} cleaned and typed, with only the newest delivery of each key."
    raw = [asset_key(Layer.raw, name)] if loaded.dataset.lands_files else []
    spec = _spec(Layer.staging, loaded, raw, description, application)
    return dg.multi_asset(**_executable(Layer.staging, spec, loaded, application))(staging)


def _shadow(loaded: LoadedDataset, application: Application) -> dg.AssetsDefinition:
    name = loaded.dataset.name

    def shadow(context: dg.AssetExecutionContext) -> None:
        days = _own_days(context, loaded)
        if not days:
            return
        unit = unit_of(context, application, loaded.dataset)
        if unit.state is UnitState.open:
            built = build(context, application, unit, name, days)
        else:
            built = ()
            context.log.info(f"unit {unit.id} is {unit.state.value}: nothing is left to build")
        for day in days:
            metadata = {"unit": unit.id, "built": "now" if day in built else "kept: its evidence is still valid"}
            context.add_asset_metadata(metadata, partition_key=day.isoformat())

    description = f"The new version of {name}, invisible to readers until it is released."
    spec = _spec(Layer.shadow, loaded, _origins(loaded), description, application)
    return dg.multi_asset(**_executable(Layer.shadow, spec, loaded, application), config_schema=SHADOW_CONFIG)(shadow)


def _origins(loaded: LoadedDataset) -> list[dg.AssetKey]:
    """What a shadow is built from: its staging, and the shadows of its upstreams, which the same unit may hold.

    Day by day even if a day looks back: with an offset Dagster would add days to every backfill and split its runs.
    Evidence names the upstream days of a day in any case.
    """
    dataset = loaded.dataset
    own = [asset_key(Layer.staging, dataset.name)] if dataset.source is not None else []
    return own + [asset_key(Layer.shadow, name) for name in dataset.upstream]


def _admitted_days(
    context: dg.AssetExecutionContext, application: Application, loaded: LoadedDataset
) -> tuple[dt.date, ...]:
    """The step's days; refuses, before anything is written, a launch that must not build its shadow."""
    days = _own_days(context, loaded)
    if days and target_of(context, application, loaded.dataset.name).shadow:
        unit_of(context, application, loaded.dataset)
    return days


def _own_days(context: dg.AssetExecutionContext, loaded: LoadedDataset) -> tuple[dt.date, ...]:
    """The step's days that belong to the dataset's history; says of the others that there is nothing to do."""
    days = days_of(context.partition_keys)
    own = loaded.dataset.from_start(days)
    for day in days:
        if day not in own:
            context.add_asset_metadata(_before(loaded.dataset), partition_key=day.isoformat())
    return own


def _before(dataset: Dataset) -> Mapping[str, str]:
    return {"nothing to do": f"the history of {dataset.name} begins on {dataset.start}"}


def published_asset(loaded: LoadedDataset, application: Application) -> dg.AssetsDefinition | dg.AssetSpec:
    """The published asset: launchable if runs release units, otherwise reported by the publish job."""
    dataset = loaded.dataset
    description = f"What readers of {dataset.name} see; changed only by releases, each one atomic commit."
    if dataset.is_draft:
        description += " A draft: live runs leave it out. Released by the job unit_publish."
    elif not dataset.is_released_by_runs:
        description += " Released by the job unit_publish after approval."
    spec = _spec(Layer.published, loaded, [asset_key(Layer.shadow, dataset.name)], description, application)
    if not dataset.is_released_by_runs:
        return spec

    def published(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        days = _own_days(context, loaded)
        target = target_of(context, application, dataset.name)
        units = _units(context, application, dataset, target) if days else ()
        outcomes = [o for unit in units if (o := _release(context, application, dataset, unit, days)) is not None]
        if not outcomes:
            _pass_by(context, dataset)
            return
        own, reported = {(dataset.name, day) for day in days}, _reported(context, application, outcomes)
        metadata = release_metadata(application, outcomes, target.launched_by, context.log)
        with batched_events(context.instance):
            for event in released_events(outcomes, metadata, own | reported):
                context.log_event(event)
            report_stale(context.instance, application, outcomes, own)
        if own <= reported:
            # Another run of this launch, or another dataset's step of the unit, has released and reported everything.
            _pass_by(context, dataset)
            return
        released = {day: o for o in outcomes for day in o.days.get(dataset.name, ())}
        for day in days:
            said = metadata.of(released[day].release, (dataset.name, day))
            context.add_asset_metadata(said, partition_key=day.isoformat())
        yield dg.MaterializeResult()

    return dg.multi_asset(**_executable(Layer.published, spec, loaded, application))(published)


def _pass_by(context: dg.AssetExecutionContext, dataset: Dataset) -> None:
    """Report the days of a backfill before the history of the dataset, which nothing will release: Dagster waits for them."""
    key, days = asset_key(Layer.published, dataset.name), days_of(context.partition_keys)
    for day in days if BACKFILL_TAG in context.run.tags else ():
        if day < dataset.start:
            context.log_event(dg.AssetMaterialization(key, partition=day.isoformat(), metadata=_before(dataset)))


def _reported(
    context: dg.AssetExecutionContext, application: Application, outcomes: Sequence[Released | AlreadyReleased]
) -> set[tuple[str, dt.date]]:
    """Days already reported to Dagster: all of them, unless the run that made the release died in between.

    This launch's own days count only if the launch itself reported them: Dagster takes a backfill's days as done by
    events of its own runs, and as failed if another launch has released them.
    """
    reported: set[tuple[str, dt.date]] = set()
    for outcome in outcomes:
        if not isinstance(outcome, AlreadyReleased):
            continue
        for name, target in targets_of(context, application, tuple(outcome.days)).items():
            key, days = asset_key(Layer.published, name), outcome.days[name]
            own = set(target.days) if target.published else set()
            reported |= {
                (name, day)
                for day, said in last_metadata(context.instance, key, days).items()
                if said.get(RELEASE_METADATA) == outcome.release
                and (day not in own or said.get(LAUNCH_METADATA) == target.launched_by)
            }
    return reported


def _units(
    context: dg.AssetExecutionContext, application: Application, dataset: Dataset, target: LaunchTarget
) -> tuple[Unit, ...]:
    """The units that this launch releases: its own, or the open ones that hold evidence for its days."""
    if target.shadow:
        return (unit_of(context, application, dataset),)
    claims = application.ledger.claims(dataset.name, target.days)
    unclaimed = [day for day in target.days if day not in claims]
    # A sibling run of the same backfill may have released the unit already, and reported it with the launch's id.
    said = last_metadata_value(context.instance, asset_key(Layer.published, dataset.name), unclaimed, LAUNCH_METADATA)
    unclaimed = [day for day in unclaimed if said.get(day) != target.launched_by]
    if unclaimed:
        raise EvidenceError(
            f"{dataset.name} {format_days(unclaimed)}: no open unit holds evidence for these days, so nothing is "
            f"published. Materialize {in_words(dataset.launched_layers)} of {dataset.name} for them together."
        )
    units = tuple(application.ledger.unit(u) for u in sorted(set(claims.values())))
    for unit in units:
        _require_complete(unit, targets_of(context, application, tuple(unit.targets)))
    return units


def _require_complete(unit: Unit, targets: Mapping[str, LaunchTarget]) -> None:
    """Refuse a launch of published alone that leaves out days or datasets of the unit that it would release."""
    launched = {(name, day) for name, found in targets.items() if found.published for day in found.days}
    left_out = set(unit.days) - launched
    if left_out:
        raise EvidenceError(
            f"unit {unit.id} also holds {shown_days(left_out)}, and units are released completely. Launch published "
            f"for all of {shown_days(unit.days)}, or run: backfill publish {unit.id}"
        )


def _release(
    context: dg.AssetExecutionContext, application: Application, dataset: Dataset, unit: Unit, days: Sequence[dt.date]
) -> Released | AlreadyReleased | None:
    """Release the unit; wait if everything that is missing is still being built, or has failed, in this same launch.

    Raises:
        EvidenceError: evidence is missing, failed or stale, or the unit was rolled back.
    """
    if unit.state is UnitState.rolled_back:
        # Its evidence may be current again. A retry of an old run must not undo a later decision.
        raise EvidenceError(f"unit {unit.id} was rolled back; to release it again: backfill publish {unit.id}")
    if unit.state is UnitState.open:
        blockers = application.publisher.blockers(unit.id)
        unfinished = {(f.dataset, f.day) for f in blockers if f.reason in UNFINISHED}
        here = {(dataset.name, day) for day in days}
        together = built_together(context, application, dataset.name)
        elsewhere = {(name, day) for name, found in together.items() for day in found.days} - here
        if blockers and {(f.dataset, f.day) for f in blockers} <= unfinished & elsewhere:
            context.log.info(
                f"unit {unit.id}: the release waits for {len(unfinished)} other days\n{explain_blockers(blockers)}"
            )
            return None
    reason = context.run.tags.get(REASON_TAG) or first_reason(context.instance, unit)
    return application.publisher.release(unit.id, reason=reason)


def first_reason(instance: dg.DagsterInstance, unit: Unit) -> str:
    """Why the launch that opened a unit was made; a launch that goes on with it may give no reason of its own."""
    opener = unit.opened_by.partition("/")[0]
    launch = instance.get_backfill(opener) or instance.get_run_by_id(opener)
    return launch.tags.get(REASON_TAG, "") if launch else ""
