from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.errors import PreconditionError
from backfill_assets.core.release import CommitKind, DaySwap, ReleaseKind
from backfill_assets.delta.table import PublishedTable
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.tables import content, dataset, day, layout, publish, rows_of, write_shadow

SHADOW = "_shadow/u/1"


def columns(home: Path) -> dict[str, str]:
    fields = json.loads(DeltaTable(home).schema().to_json())["fields"]
    return {f["name"]: f["type"] for f in fields}


def other(tmp_path: Path, types: dict[str, str], *dropped: str) -> PublishedTable:
    declared = dataset(columns=types).model_copy(update={"dropped_columns": dropped})
    return PublishedTable(layout(tmp_path), declared, FixedClock())


def test_the_table_has_the_declared_order_whatever_the_order_of_the_shadows(table: PublishedTable, home: Path) -> None:
    shuffled = ["unit", "amount", "day", "code_version", "id", "recalculated_at"]
    write_shadow(home, SHADOW, rows_of({day(0): [1]}).select(shuffled))
    table.prepare(SHADOW)
    assert list(columns(home)) == ["id", "day", "amount", "recalculated_at", "unit", "code_version"]
    publish(table, SHADOW, [day(0)], "r")
    assert content(home) == {day(0): [1]}


def test_the_log_outlives_every_rollback_window(table: PublishedTable, home: Path) -> None:
    table.prepare(SHADOW)
    seconds = 37 * 24 * 3600
    configuration = DeltaTable(home).metadata().configuration
    assert configuration["delta.logRetentionDuration"] == f"interval {seconds} seconds"
    assert configuration["delta.deletedFileRetentionDuration"] == f"interval {seconds} seconds"


def test_a_longer_retention_reaches_the_log_with_the_next_release_and_a_shorter_one_does_not(
    table: PublishedTable, home: Path, tmp_path: Path
) -> None:
    write_shadow(home, SHADOW, rows_of({day(0): [1]}))
    publish(table, SHADOW, [day(0)], "r_1")
    longer = PublishedTable(layout(tmp_path), dataset(keep_for="90d"), FixedClock())
    longer.prepare(SHADOW)
    kept = dict.fromkeys(
        ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration"), f"interval {97 * 24 * 3600} seconds"
    )
    assert DeltaTable(home).metadata().configuration.items() >= kept.items()
    assert longer.history()[0].kind is CommitKind.schema
    assert content(home) == {day(0): [1]}
    version = longer.version()
    longer.prepare(SHADOW)
    table.prepare(SHADOW)
    assert longer.version() == version


def test_a_longer_retention_of_the_log_set_by_hand_stays(table: PublishedTable, home: Path) -> None:
    table.prepare(SHADOW)
    by_hand = {
        "delta.logRetentionDuration": "interval 60 weeks",
        "delta.deletedFileRetentionDuration": "interval 3 days",
    }
    DeltaTable(home).alter.set_table_properties(by_hand)
    table.prepare(SHADOW)
    configuration = DeltaTable(home).metadata().configuration
    assert configuration["delta.logRetentionDuration"] == "interval 60 weeks"
    assert configuration["delta.deletedFileRetentionDuration"] == f"interval {37 * 24 * 3600} seconds"


def test_preparing_again_changes_nothing(table: PublishedTable, home: Path) -> None:
    write_shadow(home, SHADOW, rows_of({day(0): [1]}))
    table.prepare(SHADOW)
    table.prepare(SHADOW)
    assert table.version() == 0
    assert table.history()[0].kind is CommitKind.schema


def test_a_new_column_is_added_and_reads_null_before(table: PublishedTable, home: Path, tmp_path: Path) -> None:
    write_shadow(home, SHADOW, rows_of({day(0): [1], day(1): [2]}))
    publish(table, SHADOW, [day(0), day(1)], "r_1")
    wider = other(tmp_path, {"id": "long", "day": "date", "amount": "long", "delay": "string"})
    rows = rows_of({day(1): [3]}).append_column("delay", pa.array(["late"]))
    write_shadow(home, "_shadow/u/2", rows)
    publish(wider, "_shadow/u/2", [day(1)], "r_2")
    read = DeltaTable(home).to_pyarrow_table(columns=["day", "delay"]).to_pylist()
    assert sorted((r["day"], r["delay"]) for r in read) == [(day(0), None), (day(1), "late")]
    assert [c.kind for c in wider.history()[:2]] == [CommitKind.release, CommitKind.schema]


@pytest.mark.parametrize(
    ("types", "match"),
    [
        ({"id": "long", "day": "date"}, "column amount: expected no such column, found long"),
        ({"id": "long", "day": "date", "amount": "double"}, "column amount: expected double, found long"),
    ],
)
def test_removed_and_retyped_columns_are_refused(
    table: PublishedTable, tmp_path: Path, types: dict[str, str], match: str
) -> None:
    table.prepare(SHADOW)
    with pytest.raises(PreconditionError, match=match):
        other(tmp_path, types).prepare("_shadow/u/9")
    assert table.version() == 0


def test_a_column_that_is_no_longer_filled_reads_null_on_new_days_and_returns_with_a_rollback(
    table: PublishedTable, home: Path, tmp_path: Path
) -> None:
    write_shadow(home, SHADOW, rows_of({day(0): [1], day(1): [2]}))
    publish(table, SHADOW, [day(0), day(1)], "r_1")
    narrow = other(tmp_path, {"id": "long", "day": "date"}, "amount")
    write_shadow(home, "_shadow/u/2", rows_of({day(1): [3]}).drop_columns(["amount"]))
    release = publish(narrow, "_shadow/u/2", [day(1)], "r_2")

    def amounts() -> list[tuple[object, bool]]:
        read = DeltaTable(home).to_pyarrow_table(columns=["day", "amount"]).to_pylist()
        return sorted((r["day"], r["amount"] is None) for r in read)

    assert amounts() == [(day(0), False), (day(1), True)]
    back = tuple(DaySwap(s.day, s.add, s.remove) for s in release.days)
    undo = replace(release, release="r_3", kind=ReleaseKind.rollback, days=back, undoes="r_2")
    narrow.commit(undo, narrow.version())
    assert amounts() == [(day(0), False), (day(1), False)]


def test_a_shadow_that_is_not_as_declared_is_refused(table: PublishedTable, home: Path) -> None:
    write_shadow(home, SHADOW, rows_of({day(0): [1]}).drop_columns(["amount"]))
    with pytest.raises(PreconditionError, match="column amount: expected long, found no such column"):
        table.prepare(SHADOW)
    assert not table.exists()


def test_another_partitioning_is_refused(table: PublishedTable, home: Path) -> None:
    write_deltalake(home, rows_of({day(0): [1]}), partition_by=["unit"])
    with pytest.raises(PreconditionError, match="partitioned by column day, found unit"):
        table.prepare(SHADOW)


def test_a_folder_that_is_no_shadow_is_refused(table: PublishedTable) -> None:
    with pytest.raises(PreconditionError, match="is not a shadow"):
        table.prepare("_shadow/../../raw/sales")
