"""What Dagster knows of the newest materialization of each partition."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)

_PAGE = 1000
"""Partitions asked for at once; databases limit the values of a query."""


def last_materializations(
    instance: dg.DagsterInstance, key: dg.AssetKey, days: Sequence[dt.date]
) -> Mapping[dt.date, AssetCheckEvaluationTargetMaterializationData]:
    """What a check result has to name: without the materialization that it judged, the UI calls it stale and hides it."""
    return {
        day: AssetCheckEvaluationTargetMaterializationData(
            storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
        )
        for day, record in _newest(instance, key, days)
    }


def last_said(
    instance: dg.DagsterInstance, key: dg.AssetKey, days: Sequence[dt.date], metadata: str
) -> Mapping[dt.date, object]:
    """What the newest materialization of each partition says under a key of its metadata; days of which none says it lack."""
    said = last_metadata(instance, key, days)
    return {day: found[metadata] for day, found in said.items() if metadata in found}


def last_metadata(
    instance: dg.DagsterInstance, key: dg.AssetKey, days: Sequence[dt.date]
) -> Mapping[dt.date, Mapping[str, object]]:
    """All that the newest materialization of each partition says; days without any lack."""
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
