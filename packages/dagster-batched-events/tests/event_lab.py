"""A run with the events of a backfill chunk, without data: what it reports to Dagster, and what Dagster then shows."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.events import DagsterEvent, StepMaterializationData

from dagster_batched_events import batched_events

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-03-01")
LAYERS = ("raw", "shadow", "published")
CHECKS = tuple(f"check_{n}" for n in range(4))
SHADOW = dg.AssetKey(["shadow", "sales"])
KEY = dg.AssetCheckKey(SHADOW, CHECKS[0])
OTHER = dg.AssetKey(["published", "other"])
STOCK = {"sqlite": {}}
BATCHED = {"module": "dagster_batched_events", "class": "BatchedSqliteStorage"}


def results(instance: dg.DagsterInstance) -> dict[str | None, str]:
    """Status of the first check by partition, as every reader sees it."""
    records = instance.event_log_storage.get_asset_check_execution_history(KEY, limit=99_999)
    return {record.partition: record.status.value for record in reversed(records)}


def open_instance(home: Path, storage: Mapping[str, Any]) -> dg.DagsterInstance:
    """An instance with a `storage:` of its own."""
    home.mkdir(parents=True, exist_ok=True)
    config = {"storage": storage, "telemetry": {"enabled": False}}
    (home / "dagster.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return dg.DagsterInstance.from_config(str(home))


def stock_sqlite(home: Path) -> dict[str, Any]:
    """Dagster's own SQLite storage."""
    return {"sqlite": {"base_dir": str(home / "state")}}


def batched_postgres(url: str) -> dict[str, Any]:
    """Dagster's Postgres storage, written in batches."""
    module = {"module": "dagster_batched_events.postgres", "class": "BatchedPostgresStorage"}
    return {"custom": {**module, "config": {"postgres_url": url}}}


def batched_sqlite(home: Path) -> dict[str, Any]:
    """The same files, written in batches."""
    return {"custom": {**BATCHED, "config": {"base_dir": str(home / "state")}}}


def run_chunk(instance: dg.DagsterInstance, days: Sequence[str], fail_on: str = "") -> str:
    """Run a chunk of days through assets and checks; its run id. The check of the day `fail_on` does not pass."""
    layers = [_layer(layer, before) for layer, before in zip(LAYERS, ("", *LAYERS), strict=False)]
    definitions = dg.Definitions(assets=layers, asset_checks=[_checks(fail_on)], executor=dg.in_process_executor)
    result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        tags={"dagster/asset_partition_range_start": days[0], "dagster/asset_partition_range_end": days[-1]},
        raise_on_error=False,
    )
    return result.run_id


def _layer(layer: str, before: str) -> dg.AssetsDefinition:
    def compute(context: dg.AssetExecutionContext) -> None:
        for key in context.partition_keys:
            context.add_asset_metadata({"rows": int(key[-2:]), "layer": layer}, partition_key=key)
        if layer == "published":
            with batched_events(context.instance):
                context.log.info("a line between events")
                for key in context.partition_keys:
                    context.log_event(dg.AssetMaterialization(OTHER, partition=key, metadata={"unit": "u-1"}))
                    context.log_event(dg.AssetObservation(OTHER, partition=key, metadata={"unit": "u-1"}))

    decorate: Callable[..., dg.AssetsDefinition] = dg.asset(
        key=dg.AssetKey([layer, "sales"]),
        partitions_def=DAYS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        deps=[dg.AssetKey([before, "sales"])] if before else [],
    )
    return decorate(compute)


def _checks(fail_on: str) -> dg.AssetChecksDefinition:
    specs = [dg.AssetCheckSpec(name, asset=SHADOW, blocking=True, partitions_def=DAYS) for name in CHECKS]

    @dg.multi_asset_check(specs=specs, name="checks__sales")
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
        keys = context.op_execution_context.partition_keys
        with batched_events(context.instance):
            for key in keys:
                target = _target(context.instance, key)
                context.log.info(f"judging {key}")
                yield from (_evaluation(name, key, passed=key != fail_on, target=target) for name in CHECKS)
            if fail_on in keys:
                raise dg.Failure("a day did not pass", allow_retries=False)
        for spec in specs:
            yield dg.Output(None, output_name=spec.get_python_identifier())

    return checks


def _target(instance: dg.DagsterInstance, key: str) -> AssetCheckEvaluationTargetMaterializationData:
    wanted = dg.AssetRecordsFilter(SHADOW, asset_partitions=[key])
    (record,) = instance.fetch_materializations(wanted, limit=1).records
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
    )


def _evaluation(
    name: str, key: str, *, passed: bool, target: AssetCheckEvaluationTargetMaterializationData | None = None
) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=SHADOW,
        check_name=name,
        passed=passed,
        partition=key,
        blocking=True,
        metadata={"expected": "1 row", "found": key},
        target_materialization_data=target,
    )


def judged(key: str, *, passed: bool = True, check: str = CHECKS[0]) -> DagsterEvent:
    """The event of one check result."""
    evaluation = _evaluation(check, key, passed=passed)
    return DagsterEvent(dg.DagsterEventType.ASSET_CHECK_EVALUATION.value, "job", event_specific_data=evaluation)


def built(key: str) -> DagsterEvent:
    """The event of one materialization."""
    said = StepMaterializationData(dg.AssetMaterialization(SHADOW, partition=key))
    return DagsterEvent(dg.DagsterEventType.ASSET_MATERIALIZATION.value, "job", event_specific_data=said)


def picture(instance: dg.DagsterInstance, run_id: str) -> dict[str, Any]:
    """All that pages of the UI ask the storage about a run, its assets and its checks; ids and times left out."""
    storage = instance.event_log_storage
    keys = [*(dg.AssetKey([layer, "sales"]) for layer in LAYERS), OTHER]
    checks = [dg.AssetCheckKey(SHADOW, name) for name in CHECKS]
    records = storage.get_records_for_run(run_id).records
    materialization = dg.DagsterEventType.ASSET_MATERIALIZATION
    return {
        "events": [_shown(record, run_id) for record in records],
        "in order": [r.storage_id for r in records] == sorted({r.storage_id for r in records}),
        "steps": sorted((s.step_key, s.status and s.status.value) for s in instance.get_run_step_stats(run_id)),
        "stats": [
            getattr(instance.get_run_stats(run_id), n) for n in ("steps_succeeded", "steps_failed", "materializations")
        ],
        "history": {
            key.name: [
                (r.status.value, r.partition, r.run_id == run_id, _shown_check(r))
                for r in storage.get_asset_check_execution_history(key, limit=1000)
            ]
            for key in checks
        },
        "latest": {
            key.name: (record.partition, record.status.value)
            for key, record in storage.get_latest_asset_check_execution_by_key(checks).items()
        },
        "partitions of checks": sorted(
            (i.check_key.name, i.partition_key or "", i.latest_execution_status.value)
            for i in storage.get_asset_check_partition_info(checks)
        ),
        "materialized": {str(key): sorted(instance.get_materialized_partitions(key)) for key in keys},
        "newest": {
            str(key): [
                p for p, _ in sorted(instance.get_latest_storage_id_by_partition(key, materialization).items(), key=_id)
            ]
            for key in keys
        },
        "materializations": {
            str(key): [_shown(r, run_id) for r in instance.fetch_materializations(key, limit=1000).records]
            for key in keys
        },
        "observations": [_shown(r, run_id) for r in instance.fetch_observations(OTHER, limit=1000).records],
        "planned": storage.get_latest_asset_partition_materialization_attempts_without_materializations(keys[0]),
        "tags": _indexed_tags(instance),
        "assets": sorted(
            (
                str(r.asset_entry.asset_key),
                r.asset_entry.last_run_id == run_id,
                r.asset_entry.last_materialization is not None and r.asset_entry.last_materialization.run_id == run_id,
            )
            for r in instance.get_asset_records(keys)
        ),
        "runs": [len(instance.fetch_run_status_changes(kind, limit=9).records) for kind in _STATUS],
    }


def _indexed_tags(instance: dg.DagsterInstance) -> list[tuple[list[str], bool]]:
    # Data versions are random if none is given: each only has to be indexed for its own materialization.
    found = []
    for record in instance.fetch_materializations(SHADOW, limit=1000).records:
        (indexed,) = instance.event_log_storage.get_event_tags_for_asset(SHADOW, filter_event_id=record.storage_id)
        said = record.asset_materialization
        assert said is not None
        found.append((sorted(indexed), indexed.items() <= (said.tags or {}).items()))
    return found


_STATUS = (dg.DagsterEventType.RUN_START, dg.DagsterEventType.RUN_SUCCESS, dg.DagsterEventType.RUN_FAILURE)


def _id(pair: tuple[str, int]) -> int:
    return pair[1]


def _shown(record: dg.EventLogRecord, run_id: str) -> tuple[object, ...]:
    entry = record.event_log_entry
    event = entry.dagster_event
    text = entry.user_message or (event.message if event else "")
    kind = event.event_type_value if event else "LOG"
    content: object = None
    if entry.asset_materialization or entry.asset_observation:
        said = entry.asset_materialization or entry.asset_observation
        assert said is not None
        content = {name: value.value for name, value in said.metadata.items()}
    # Process ids, paths and durations differ from run to run.
    plain = (
        "" if kind.endswith("_OUTPUT") else re.sub(r"pid: \d+|[\d.]+ ?m?s\b|/\S+", "", text or "").replace(run_id, "")
    )
    return kind, entry.step_key, record.partition_key, str(record.asset_key), plain, content


def _shown_check(record: Any) -> object:
    event = record.event and record.event.dagster_event
    if event is None or event.event_type is not dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        return None
    evaluation = event.asset_check_evaluation_data
    target = evaluation.target_materialization_data
    return {n: v.value for n, v in evaluation.metadata.items()}, target is not None and target.storage_id > 0


if __name__ == "__main__":
    # A worker of its own: runs a chunk on the instance of a home.
    with dg.DagsterInstance.from_config(sys.argv[1]) as chosen:
        print(run_chunk(chosen, sys.argv[2:]))  # noqa: T201 - the test reads it
