"""The examples of the README work unchanged."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.storage.base_storage import DagsterStorage

from dagster_batched_events import BatchedEvents
from event_lab import DAYS, run_chunk

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", blocks("yaml"))
def test_each_configuration_names_a_storage_and_its_keys(block: str) -> None:
    custom = yaml.safe_load(block)["storage"]["custom"]
    storage = getattr(importlib.import_module(custom["module"]), custom["class"])
    assert issubclass(storage, DagsterStorage)
    assert custom["config"].keys() <= storage.config_type().keys()


@pytest.mark.slow  # runs a job
def test_the_example_reports_its_results_in_one_batch(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, _ = blocks("python")
    days = DAYS.get_partition_keys()[:5]
    names: dict[str, Any] = {"DAYS": DAYS, "row_count": lambda day: int(day != days[1])}
    # Dagster reads annotations, which this module's own `from __future__` would leave as text.
    exec(compile(example, "README.md", "exec", dont_inherit=True), names)  # noqa: S102 - a block of our own README
    sales = dg.AssetSpec("sales", partitions_def=DAYS)
    definitions = dg.Definitions(assets=[sales], asset_checks=[names["checks"]], executor=dg.in_process_executor)
    sizes = []
    write = BatchedEvents._write  # noqa: SLF001 - to count

    def counted(self: BatchedEvents, entries: Any) -> None:
        sizes.append(len(entries))
        write(self, entries)

    monkeypatch.setattr(BatchedEvents, "_write", counted)
    tags = {"dagster/asset_partition_range_start": days[0], "dagster/asset_partition_range_end": days[-1]}
    job = definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, tags=tags).success
    key = dg.AssetCheckKey(dg.AssetKey("sales"), "not_empty")
    found = instance.event_log_storage.get_asset_check_execution_history(key, limit=99)
    assert {record.partition: record.status.value for record in found} == {
        day: "FAILED" if day == days[1] else "SUCCEEDED" for day in days
    }
    assert len(days) in sizes


def test_the_example_deletes_no_log_of_a_run_that_ended_today(instance: dg.DagsterInstance) -> None:
    _, example = blocks("python")
    run = run_chunk(instance, DAYS.get_partition_keys()[:1])
    exec(compile(example, "README.md", "exec", dont_inherit=True), {"instance": instance})  # noqa: S102
    assert instance.event_log_storage.get_records_for_run(run).records
