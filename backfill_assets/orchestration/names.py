"""How datasets are called in Dagster: asset keys, op names, groups, partitions, policies."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

import dagster as dg

from backfill_assets.core.days import ONE_DAY
from backfill_assets.dataset.definition import Dataset, Publication
from backfill_assets.settings import Settings

LAYERS = ("raw", "staging", "shadow", "published")
"""The road of a dataset; each layer is one asset."""


def asset_key(layer: str, dataset: str) -> dg.AssetKey:
    """The asset of one layer of a dataset: `raw/flights` … `published/flights`."""
    return dg.AssetKey([layer, dataset])


def layers_of(dataset: Dataset) -> tuple[str, ...]:
    """The layers of a dataset that can be launched: no raw and staging without a source, no published with approval."""
    built = dataset.built_layers
    return (*built, "published") if dataset.publication is Publication.auto else built


def op_name(layer: str, dataset: str) -> str:
    """The op behind an asset, as run config names it: `shadow__flights`."""
    return f"{layer}__{dataset}"


def partitions_of(dataset: Dataset) -> dg.DailyPartitionsDefinition:
    """One partition per business day, in the dataset's own time zone."""
    return dg.DailyPartitionsDefinition(
        start_date=dataset.start.isoformat(),
        end_date=(dataset.end + ONE_DAY).isoformat() if dataset.end else None,
        timezone=dataset.time_zone,
        end_offset=dataset.end_offset,
    )


def policy_of(dataset: Dataset, settings: Settings) -> dg.BackfillPolicy:
    """How many days one run takes; all four layers share it, so that a chunk is one run."""
    if settings.chunk == "all":
        return dg.BackfillPolicy.single_run()
    return dg.BackfillPolicy.multi_run(max_partitions_per_run=settings.chunk or dataset.chunk_days)


def days_of(keys: Iterable[str]) -> tuple[dt.date, ...]:
    """Partition keys as days, in order."""
    return tuple(sorted(dt.date.fromisoformat(key) for key in keys))


def keys_of(days: Sequence[dt.date]) -> list[str]:
    """Days as partition keys."""
    return [day.isoformat() for day in days]
