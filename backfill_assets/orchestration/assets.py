"""The executable assets of one dataset: raw, staging, shadow."""

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.control.gatekeeper import Batch
from backfill_assets.core.days import format_days
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.unit import Unit, UnitState
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.evidence.inputs import deliveries_of, force_by_day
from backfill_assets.orchestration.batches import build, build_in_batches, campaign_of, in_batches
from backfill_assets.orchestration.launches import target_of, unit_of
from backfill_assets.orchestration.names import asset_key, days_of, partitions_of, policy_of

AssetDecorator = Callable[[Callable[..., Any]], dg.AssetsDefinition]

SHADOW_CONFIG = {
    "expected_change": dg.Field(
        dg.Any,
        is_required=False,
        description="What must change by how much: {row_count: -50%}, {metrics: …, rows: …}, or a list of these with days.",
    )
}


def road_assets(loaded: LoadedDataset, application: Application) -> list[dg.AssetsDefinition]:
    """The assets raw, staging and shadow of a dataset; one that is built from upstream alone has only a shadow."""
    shadow = _shadow(loaded, application)
    if loaded.dataset.source is None:
        return [shadow]
    return [_raw(loaded, application), _staging(loaded, application), shadow]


def common(layer: str, loaded: LoadedDataset) -> dict[str, Any]:
    """What the assets of a dataset share: key, partitions, group, code version, owner."""
    dataset = loaded.dataset
    return {
        "key": asset_key(layer, dataset.name),
        "partitions_def": partitions_of(dataset),
        "group_name": dataset.name,
        "code_version": loaded.code_version,
        # The lineage shows only the last part of a key, the dataset; the kind tells the layers apart.
        "kinds": {layer, "delta"} if layer == "published" else {layer, "delta", "spark"},
        "metadata": {
            "dataset": dataset.name,
            "time_zone": dataset.time_zone,
            **({"owner": dataset.owner} if dataset.owner else {}),
        },
    }


def executable(layer: str, loaded: LoadedDataset, application: Application) -> dict[str, Any]:
    """What the executable assets of a dataset share besides."""
    return {
        **common(layer, loaded),
        "backfill_policy": policy_of(loaded.dataset, application.settings),
        "pool": f"dataset_{loaded.dataset.name}",
    }


def _raw(loaded: LoadedDataset, application: Application) -> dg.AssetsDefinition:
    name = loaded.dataset.name

    def raw(context: dg.AssetExecutionContext) -> None:
        days = _admitted_days(context, application, loaded)
        # Of a campaign, days of which no file is found pass no gate, and land nothing.
        application.road.require_sources(name)
        new: list[Delivery] = []
        for spark, batch in in_batches(context, application, Batch(name, days, "raw")):
            new += application.road.land(spark, name, batch).new
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

    decorate: AssetDecorator = dg.asset(
        **executable("raw", loaded, application),
        description=f"Every delivery of {name}, as landed, with its file, fingerprint and load time.",
    )
    return decorate(raw)


def _staging(loaded: LoadedDataset, application: Application) -> dg.AssetsDefinition:
    name = loaded.dataset.name

    def staging(context: dg.AssetExecutionContext) -> None:
        days = _admitted_days(context, application, loaded)
        rows: dict[dt.date, int] = {}
        for spark, batch in in_batches(context, application, Batch(name, days, "staging")):
            rows |= application.road.stage(spark, name, batch)
        for day in days:
            metadata: Mapping[str, object] = (
                {"dagster/row_count": rows[day], "staged": "anew"} if day in rows else {"staged": "already up to date"}
            )
            context.add_asset_metadata(metadata, partition_key=day.isoformat())

    decorate: AssetDecorator = dg.asset(
        **executable("staging", loaded, application),
        deps=[asset_key("raw", name)],
        description=f"{name} cleaned, typed, and of each key only the newest delivery.",
    )
    return decorate(staging)


def _shadow(loaded: LoadedDataset, application: Application) -> dg.AssetsDefinition:
    name = loaded.dataset.name

    def shadow(context: dg.AssetExecutionContext) -> None:
        days = days_of(context.partition_keys)
        loaded.dataset.check_days(days)
        unit = unit_of(context, application, loaded.dataset)
        built = _build(context, application, name, unit, days)
        for day in days:
            metadata = {"unit": unit.id, "built": "anew" if day in built else "kept: its evidence still holds"}
            context.add_asset_metadata(metadata, partition_key=day.isoformat())

    decorate: AssetDecorator = dg.asset(
        **executable("shadow", loaded, application),
        deps=_origins(loaded),
        config_schema=SHADOW_CONFIG,
        description=f"The new version of {name}, invisible to readers until it is released.",
    )
    return decorate(shadow)


def _origins(loaded: LoadedDataset) -> list[dg.AssetKey]:
    """What a shadow is built from: its staging, and the shadows of its upstreams, which a unit may hold as well.

    Day by day also where a day looks back: with an offset Dagster would add days to every backfill and part its runs.
    Evidence names the upstream days behind a day in any case.
    """
    dataset = loaded.dataset
    own = [asset_key("staging", dataset.name)] if dataset.source is not None else []
    return own + [asset_key("shadow", name) for name in dataset.upstream]


def _build(
    context: dg.AssetExecutionContext, application: Application, name: str, unit: Unit, days: tuple[dt.date, ...]
) -> tuple[dt.date, ...]:
    if unit.state is not UnitState.open:
        context.log.info(f"unit {unit.id} is {unit.state.value}: nothing is left to build")
        return ()
    if campaign_of(context) is not None:
        return build_in_batches(context, application, name, unit, days)
    return build(context, application, name, unit, days)


def _admitted_days(
    context: dg.AssetExecutionContext, application: Application, loaded: LoadedDataset
) -> tuple[dt.date, ...]:
    """The step's days; a launch that will build a shadow is refused here already, before anything is written."""
    days = days_of(context.partition_keys)
    loaded.dataset.check_days(days)
    if target_of(context, loaded.dataset.name).shadow:
        unit_of(context, application, loaded.dataset)
    return days
