"""The rows that Dagster looks check results up by, one per check and partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus as Status
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
from sqlalchemy import Connection, bindparam
from sqlalchemy.dialects import postgresql, sqlite

_INSERT = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_UNIQUE = ("asset_key", "check_name", "run_id", "partition")
Row = dict[str, Any]


def planned_rows(event: dg.EventLogEntry, row: Row, number: int) -> Iterator[Row]:
    """The rows of a planned check; `row` and `number` are the event's own in the event log."""
    data = event.get_dagster_event().asset_check_planned_data
    keys = data.partitions_subset.get_partition_keys() if data.partitions_subset else [None]
    for key in keys:
        yield _execution(row, number, key, Status.PLANNED) | {
            "asset_key": data.asset_key.to_string(),
            "check_name": data.check_name,
        }


def evaluated_row(event: dg.EventLogEntry, row: Row, number: int) -> Row:
    """The row of a result; `row` and `number` are the event's own in the event log."""
    data = event.get_dagster_event().asset_check_evaluation_data
    target = data.target_materialization_data
    return _execution(row, number, data.partition, Status.SUCCEEDED if data.passed else Status.FAILED) | {
        "asset_key": data.asset_key.to_string(),
        "check_name": data.check_name,
        "materialization_event_storage_id": target.storage_id if target else None,
    }


def upsert(connection: Connection, rows: Sequence[Row]) -> None:
    """Store results, over what was planned or found before by the same run."""
    # One statement must not touch a row twice; the last result of a check is the one that counts.
    last = {tuple(row[name] for name in _UNIQUE): row for row in rows}
    runless = [{name: row[name] for name in _UNIQUE} for row in last.values() if not row["run_id"]]
    if runless:
        # Dagster takes the row with the highest id for the newest, so that a changed one would stay behind those of runs.
        same = [AssetCheckExecutionsTable.c[name] == bindparam(name) for name in _UNIQUE]
        connection.execute(AssetCheckExecutionsTable.delete().where(*same), runless)
    insert: Any = _INSERT[connection.dialect.name](AssetCheckExecutionsTable)
    changed = {name: insert.excluded[name] for name in rows[0] if name not in _UNIQUE}
    connection.execute(insert.on_conflict_do_update(index_elements=list(_UNIQUE), set_=changed), list(last.values()))


def _execution(row: Row, number: int, partition: str | None, status: Status) -> Row:
    return {
        "run_id": row["run_id"],
        "partition": partition,
        "execution_status": status.value,
        "evaluation_event": row["event"],
        "evaluation_event_timestamp": row["timestamp"],
        "evaluation_event_storage_id": number,
    }
