"""Dagster's instance, the names of datasets in it, and what it knows about their newest materializations."""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData

from backfill_assets.campaign.state import CAMPAIGN_TAG
from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.errors import SettingsError
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import Attempt
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.settings import Settings
from dagster_batched_events import UnreadableUrlError

FAILED_DAYS = "failed_days"
"""Metadata key of a step that failed because days failed blocking checks."""


def asset_key(layer: Layer, dataset: str) -> dg.AssetKey:
    """The asset of one layer of a dataset: `flights/raw` … `flights/published`."""
    return dg.AssetKey([dataset, str(layer)])


def op_name(layer: Layer, dataset: str) -> str:
    """The op behind an asset, as run config names it: `shadow__flights`."""
    return f"{layer}__{dataset}"


def partitions_of(dataset: Dataset, catalog: Catalog) -> dg.DailyPartitionsDefinition:
    """One partition per business day, in the dataset's own time zone, from the first day of its release group on.

    Dagster builds only assets with equal partitions in one run. Steps pass the days before a dataset's own `start` by.
    """
    return dg.DailyPartitionsDefinition(
        start_date=catalog.first_partitions[dataset.name].isoformat(),
        end_date=(dataset.end + ONE_DAY).isoformat() if dataset.end else None,
        timezone=dataset.time_zone,
        end_offset=dataset.end_offset,
    )


def policy_of(dataset: Dataset, settings: Settings) -> dg.BackfillPolicy:
    """How many days one run takes; all four layers share it, so that a chunk is one run."""
    if settings.chunk == "all":
        return dg.BackfillPolicy.single_run()
    return dg.BackfillPolicy.multi_run(max_partitions_per_run=settings.chunk or dataset.chunk_days)


def work_tag(run: dg.DagsterRun, step: str, dataset: str, batch: Attempt | None = None) -> str:
    """The name of a step's Spark work; a retry of a crashed run has the same name, so it ends what the crash left.

    A campaign's batch is named by its first day, which no two batches at work share, whichever run builds it again.
    """
    if batch is not None and CAMPAIGN_TAG in run.tags:
        return f"{batch.unit}:{step}:{dataset}:{batch.days[0]}"
    return f"{run.root_run_id or run.run_id}:{step}:{dataset}"


def days_of(keys: Iterable[str]) -> tuple[dt.date, ...]:
    """Partition keys as days, in order."""
    return tuple(sorted(dt.date.fromisoformat(key) for key in keys))


def created_at(record: dg.RunRecord) -> dt.datetime:
    """When a run was created; some of Dagster's storages return it in UTC without a time zone."""
    created = record.create_timestamp
    return created if created.tzinfo is not None else created.replace(tzinfo=dt.UTC)


_PAGE = 1000
"""Partitions per query; databases limit the values of a query."""


def last_materializations(
    instance: dg.DagsterInstance, key: dg.AssetKey, days: Sequence[dt.date]
) -> Mapping[dt.date, AssetCheckEvaluationTargetMaterializationData]:
    """The materialization that a check result must name: without it, the UI calls the result stale and hides it."""
    return {
        day: AssetCheckEvaluationTargetMaterializationData(
            storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
        )
        for day, record in _newest(instance, key, days)
    }


def last_metadata_value(
    instance: dg.DagsterInstance, key: dg.AssetKey, days: Sequence[dt.date], metadata: str
) -> Mapping[dt.date, object]:
    """The value of a metadata key in the newest materialization of each partition; days without it are left out."""
    said = last_metadata(instance, key, days)
    return {day: found[metadata] for day, found in said.items() if metadata in found}


def last_metadata(
    instance: dg.DagsterInstance, key: dg.AssetKey, days: Sequence[dt.date]
) -> Mapping[dt.date, Mapping[str, object]]:
    """All metadata of the newest materialization of each partition; days without one are left out."""
    events = ((day, record.asset_materialization) for day, record in _newest(instance, key, days))
    return {day: {name: m.value for name, m in e.metadata.items()} for day, e in events if e is not None}


def _newest(
    instance: dg.DagsterInstance, key: dg.AssetKey, days: Sequence[dt.date]
) -> Iterator[tuple[dt.date, dg.EventLogRecord]]:
    for start in range(0, len(days), _PAGE):
        keys = {day.isoformat() for day in days[start : start + _PAGE]}
        newest = instance.get_latest_storage_id_by_partition(key, dg.DagsterEventType.ASSET_MATERIALIZATION, keys)
        if not newest:
            continue
        wanted = dg.AssetRecordsFilter(asset_key=key, storage_ids=list(newest.values()))
        for record in instance.fetch_materializations(wanted, limit=_PAGE).records:
            yield dt.date.fromisoformat(str(record.partition_key)), record


def opened_instance() -> dg.DagsterInstance:
    """The instance of DAGSTER_HOME; the caller closes it.

    Raises:
        SettingsError: the URL of its database cannot be read; the message never shows it.
    """
    try:
        return dg.DagsterInstance.get()
    except UnreadableUrlError as error:
        raise SettingsError(
            f"{error}; deploy/postgres/dagster.yaml takes it from BACKFILL_ASSETS_DAGSTER_URL"
        ) from None
