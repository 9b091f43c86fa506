"""The owner of a source table changes, replaces or loses it around a release: what was not checked is never released."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.errors import BackfillError, EvidenceError, LayoutError, SourceError
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.evidence.test_source_tables import D1, DAYS, NEXT, Bronze, bronze, rows
from backfill_assets_tests.unit.faults.kit import say

__all__ = ["bronze"]

pytestmark = [pytest.mark.faults, pytest.mark.slow]

Change = Callable[[Bronze], object]
OLD, NEW = {d: [1] for d in DAYS}, {d: [2] for d in DAYS}
AS_DELIVERED = {d: [10 + d.day, d.day, *([55] if d == D1 else [])] for d in DAYS}


def overwrite(bronze: Bronze, table: pa.Table) -> None:
    write_deltalake(bronze.home, table, partition_by=["day"], mode="overwrite", schema_mode="overwrite")


def vacuum(bronze: Bronze) -> None:
    bronze.compact()
    removed = DeltaTable(bronze.home).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert removed


def add_column(bronze: Bronze) -> None:
    more = rows({NEXT: [1]}).append_column("note", pa.array(["x"]))
    write_deltalake(bronze.home, more, mode="append", schema_mode="merge")


SAME: dict[str, Change] = {
    "OPTIMIZE": Bronze.compact,
    "OPTIMIZE and VACUUM": vacuum,
    "an overwrite by equal rows": lambda bronze: overwrite(bronze, rows(AS_DELIVERED)),
    "a table of equal rows in its place": lambda bronze: (shutil.rmtree(bronze.home), bronze.add(AS_DELIVERED)),
    "a row of another day": lambda bronze: bronze.add({NEXT: [1]}),
    "a column that is not declared": add_column,
}
OTHER: dict[str, Change] = {
    "a row": lambda bronze: bronze.add({D1: [99]}),
    "a DELETE of a row": lambda bronze: bronze.delete(D1, D1.day),
    "a DELETE of the day": lambda bronze: DeltaTable(bronze.home).delete(f"day = '{D1}'"),
    "an overwrite by other rows": lambda bronze: overwrite(bronze, rows({d: [77, 78] for d in DAYS})),
    "a RESTORE of an older version": lambda bronze: DeltaTable(bronze.home).restore(0),
}


def log(bronze: Bronze, version: int) -> Path:
    return bronze.home / "_delta_log" / f"{version:020}.json"


def cut(bronze: Bronze) -> None:
    last = log(bronze, DeltaTable(bronze.home).version())
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])


def elsewhere(bronze: Bronze) -> None:
    there = bronze.world.folder / "elsewhere"
    bronze.home.rename(there)
    bronze.home.symlink_to(there)


LOST: dict[str, tuple[Change, type[BackfillError], str]] = {
    "its folder is gone": (lambda bronze: shutil.rmtree(bronze.home), SourceError, "the Delta table bronze/sales is not in"),
    "its log is gone": (lambda bronze: shutil.rmtree(bronze.home / "_delta_log"), SourceError, "bronze/sales is not in"),
    "its first commit is gone": (lambda bronze: log(bronze, 0).unlink(), SourceError, "cannot be read by delta-rs: "),
    "its last commit is cut": (cut, SourceError, "cannot be read by delta-rs: "),
    "its first commit is zeros": (
        lambda bronze: log(bronze, 0).write_bytes(b"\0" * 999), SourceError, "cannot be read by delta-rs: ",
    ),
    "it is not partitioned by the day any more": (
        lambda bronze: (shutil.rmtree(bronze.home), write_deltalake(bronze.home, rows(AS_DELIVERED))),
        SourceError, "bronze/sales is not partitioned by 'day' but by nothing",
    ),
    "its days are no days any more": (
        lambda bronze: overwrite(bronze, pa.table({"day": ["1 May"], "id": [1]})), SourceError, "has rows with day = '1 May'",
    ),
    "a link leads out of the sources": (elsewhere, LayoutError, "'bronze/sales' leads out of"),
}  # fmt: skip


def checked(bronze: Bronze) -> str:
    """A unit that is ready to replace OLD by NEW, of a table with two commits."""
    bronze.add({D1: [55], NEXT: [7]})
    bronze.world.released(OLD)
    unit = bronze.world.open_unit({"sales": DAYS})
    bronze.world.build(unit, "sales", NEW)
    return unit.id


@contextmanager
def restored(bronze: Bronze) -> Iterator[None]:
    """After this block, the table is what it was before."""
    backup = bronze.world.folder / "backup"
    shutil.copytree(bronze.home, backup)
    yield
    if bronze.home.is_symlink():
        bronze.home.unlink()
    shutil.rmtree(bronze.home, ignore_errors=True)
    backup.rename(bronze.home)


def assert_released(bronze: Bronze) -> str:
    assert bronze.world.content() == NEW
    assert (bronze.late.moved("sales"), bronze.late.gone("sales"), bronze.world.doctor().examine()) == ((), (), ())
    return "released, and nothing is late"


@pytest.mark.parametrize("change", SAME)
def test_rows_of_a_source_table_that_stay_the_same_keep_no_unit_from_being_released(
    bronze: Bronze, observed: Observed, change: str
) -> None:
    unit = checked(bronze)
    observed.injected(f"a commit to the source table between the checks and the release: {change}")
    SAME[change](bronze)
    bronze.world.publisher().release(unit)
    observed.found(assert_released(bronze))


@pytest.mark.parametrize("change", OTHER)
def test_other_rows_in_a_source_table_make_their_days_stale_and_nothing_is_released(
    bronze: Bronze, observed: Observed, change: str
) -> None:
    unit = checked(bronze)
    if "RESTORE" in change:
        # Version 0 has other rows than those that were checked.
        bronze.add({D1: [99]})
        bronze.world.build(bronze.world.ledger.unit(unit), "sales", NEW)
    observed.injected(f"a commit to the source table between the checks and the release: {change}")
    OTHER[change](bronze)
    with pytest.raises(EvidenceError, match=rf"sales {D1}(\.\.{DAYS[-1]})? is stale: its deliveries") as refused:
        bronze.world.publisher().release(unit)
    assert bronze.world.content() == OLD
    days = bronze.world.days_to_build(unit, "sales")
    assert days == (DAYS if "overwrite" in change else (D1,))
    bronze.world.build(bronze.world.ledger.unit(unit), "sales", {d: [2] for d in days})
    bronze.world.publisher().release(unit)
    observed.found(refused.value, f"{len(days)} built again", assert_released(bronze))


@pytest.mark.parametrize("loss", LOST)
def test_without_a_readable_source_table_nothing_is_released_and_once_it_is_back_nothing_is_built_again(
    bronze: Bronze, observed: Observed, loss: str
) -> None:
    unit = checked(bronze)
    lose, kind, message = LOST[loss]
    observed.injected(f"between the checks and the release, the source table is damaged: {loss}")
    with restored(bronze):
        lose(bronze)
        with pytest.raises(kind, match=message) as refused:
            bronze.world.publisher().release(unit)
        assert bronze.world.content() == OLD
        assert (bronze.late.moved("sales"), bronze.late.gone("sales"), bronze.world.doctor().examine()) == ((), (), ())
    bronze.world.publisher().release(unit)
    observed.found(refused.value, "once it is back", assert_released(bronze))


@pytest.mark.parametrize("change", ["a row", "its folder is gone"])
def test_what_happens_to_a_source_table_after_the_last_look_at_it_is_seen_as_late(
    bronze: Bronze, observed: Observed, change: str
) -> None:
    unit = checked(bronze)
    observed.injected(f"the source table between the last check of a release and its commit: {change}")
    does = OTHER[change] if change in OTHER else LOST[change][0]
    with restored(bronze):
        say(bronze.world, "publish", unit, lambda call: does(bronze) if call == "commit" else None)
        assert bronze.world.content() == NEW
        assert bronze.late.moved("sales") == ((D1,) if change in OTHER else ())
    observed.found("released as checked", "the changed day is late" if change in OTHER else "nothing is called late")
