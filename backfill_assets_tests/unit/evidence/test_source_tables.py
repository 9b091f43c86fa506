"""Days of a source that is a table are known by their rows: a rewrite of files changes nothing, a row changes its day."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import EvidenceError, LayoutError, SourceError
from backfill_assets.dataset.deliveries import in_force
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.dataset.table_source import TableSource
from backfill_assets.evidence.basis import CurrentBasis
from backfill_assets.evidence.known_deliveries import KnownDeliveries
from backfill_assets.evidence.late_deliveries import LateDeliveries
from backfill_assets.storage.disk import path_of
from backfill_assets.warehouse import Warehouse
from backfill_assets_tests.harness.actors import TwoChecks
from backfill_assets_tests.harness.tables import day, layout, loaded
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

D1, D2, D3 = DAYS = (day(1), day(2), day(3))
NEXT = day(4)


def rows(data: Mapping[dt.date, Sequence[int]], kind: pa.DataType | None = None) -> pa.Table:
    flat = [(d, i) for d, ids in data.items() for i in ids]
    days = pa.array([d for d, _ in flat], pa.date32())
    return pa.table({"day": days.cast(kind) if kind else days, "id": pa.array([i for _, i in flat], pa.int64())})


def fingerprint_of(known: Mapping[dt.date, Delivery], d: dt.date) -> str:
    """What is delivered for a day; empty for nothing."""
    return known[d].fingerprint if d in known else ""


class Bronze:
    """The table `bronze/sales`, from which the dataset `sales` is built."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.home = path_of(layout(folder).sources) / "bronze" / "sales"
        self.world.fingerprints.sources["sales"] = self.home
        self.says()
        self.add({d: [d.day, 10 + d.day] for d in DAYS})

    def says(self, **source: object) -> None:
        """Change what `dataset.yaml` says about the source."""
        said = {"table": "bronze/sales", "day": "day", "columns": {"id": "long"}, **source}
        dataset = self.world.datasets["sales"].model_copy(update={"source": TableSource.model_validate(said)})
        self.world.datasets["sales"] = dataset
        self.loaded = loaded(dataset, self.world.folder)
        self.warehouse: Warehouse = replace(self.world.warehouse(), catalog=Catalog({"sales": self.loaded}))
        self.world.basis = TwoChecks(self.warehouse, self.world.fingerprints)

    def add(self, data: Mapping[dt.date, Sequence[int]], **how: object) -> None:
        write_deltalake(self.home, rows(data), partition_by=["day"], mode="append", **how)  # type: ignore[call-overload]

    def delete(self, d: dt.date, number: int) -> None:
        DeltaTable(self.home).delete(f"day = '{d}' AND id = {number}")

    def compact(self) -> None:
        DeltaTable(self.home).optimize.compact()

    def known(self, days: Sequence[dt.date] = DAYS, *, measured: bool = True) -> dict[dt.date, Delivery]:
        found = KnownDeliveries(self.warehouse, self.world.fingerprints if measured else None).of("sales", days)
        return {one.day: one for one in found}

    def changed(self, before: Mapping[dt.date, Delivery]) -> set[dt.date]:
        now = self.known()
        return {d for d in DAYS if fingerprint_of(now, d) != fingerprint_of(before, d)}

    @property
    def basis(self) -> CurrentBasis:
        return CurrentBasis(self.warehouse, self.world.fingerprints)

    @property
    def late(self) -> LateDeliveries:
        return LateDeliveries(self.warehouse, self.world.fingerprints)

    @property
    def read(self) -> list[tuple[dt.date, ...]]:
        """The days whose rows were read, once for each reading."""
        return [days for _, days in self.world.fingerprints.asked]


@pytest.fixture
def bronze(tmp_path: Path) -> Iterator[Bronze]:
    made = Bronze(tmp_path)
    yield made
    made.world.close()


def test_a_late_row_changes_only_its_day(bronze: Bronze) -> None:
    before = bronze.known()
    bronze.add({D2: [99]})
    assert bronze.changed(before) == {D2}
    assert bronze.known()[D2].rows == 3


def test_a_compaction_changes_nothing_and_its_days_are_read_once(bronze: Bronze) -> None:
    bronze.add({D2: [99]})
    before = bronze.known()
    bronze.compact()
    assert bronze.changed(before) == set()
    assert bronze.changed(before) == set()
    assert bronze.read == [DAYS, (D2,)]


def test_a_deleted_row_changes_its_day_and_a_deleted_day_is_no_delivery(bronze: Bronze) -> None:
    before = bronze.known()
    bronze.delete(D1, D1.day)
    assert bronze.changed(before) == {D1}
    bronze.delete(D1, 10 + D1.day)
    assert D1 not in bronze.known()


def test_rows_that_come_back_are_the_delivery_that_they_were(bronze: Bronze) -> None:
    before = bronze.known()
    bronze.delete(D3, 10 + D3.day)
    bronze.add({D3: [10 + D3.day]})
    assert bronze.changed(before) == set()


def test_a_table_written_anew_with_equal_rows_is_read_again_and_changes_nothing(bronze: Bronze) -> None:
    before = bronze.known()
    shutil.rmtree(bronze.home)
    bronze.add({d: [10 + d.day, d.day] for d in DAYS})
    assert bronze.changed(before) == set()
    assert bronze.read == [DAYS, DAYS]


def test_without_a_reader_days_with_new_files_are_others_until_they_are_measured(bronze: Bronze) -> None:
    unmeasured = bronze.known(measured=False)
    assert {one.rows for one in unmeasured.values()} == {2}
    measured = bronze.known()
    assert all(unmeasured[d].fingerprint != measured[d].fingerprint for d in DAYS)
    assert bronze.known(measured=False) == measured


def test_what_another_table_has_is_not_taken_for_what_was_read(bronze: Bronze) -> None:
    plain = bronze.world.fingerprints.of_source

    def swapped(name: str, days: Sequence[dt.date], version: int) -> Mapping[dt.date, str]:
        found = plain(name, days, version)
        shutil.rmtree(bronze.home)
        bronze.add({d: [77] for d in DAYS})
        return found

    bronze.world.fingerprints.of_source = swapped  # type: ignore[method-assign,assignment]
    bronze.known()
    bronze.world.fingerprints.of_source = plain  # type: ignore[method-assign]
    assert {one.rows for one in bronze.known().values()} == {1}
    assert bronze.read == [DAYS, DAYS]


def test_a_pinned_version_never_changes(bronze: Bronze) -> None:
    bronze.says(version=0)
    before = bronze.known()
    bronze.add({D1: [99], NEXT: [1]})
    assert bronze.changed(before) == set()
    assert bronze.known([NEXT]) == {}


def test_a_version_that_is_not_there_is_refused_by_key(bronze: Bronze) -> None:
    bronze.says(version=9)
    with pytest.raises(
        SourceError, match=r"source\.table: bronze/sales cannot be read by delta-rs: .*or correct source"
    ):
        bronze.known()


def test_a_table_that_is_not_there_is_refused_by_key(bronze: Bronze) -> None:
    bronze.says(table="bronze/sale")
    with pytest.raises(SourceError, match=r"source\.table: the Delta table bronze/sale is not in .*; put it there"):
        bronze.known()


def test_a_table_that_is_not_partitioned_by_the_day_is_refused_with_what_it_would_cost(bronze: Bronze) -> None:
    bronze.says(day="id")
    with pytest.raises(SourceError, match=r"source\.day: bronze/sales is not partitioned by 'id' but by day, so that"):
        bronze.known()


def test_the_day_is_found_in_any_case(bronze: Bronze) -> None:
    before = bronze.known()
    bronze.says(day="DAY")
    assert bronze.changed(before) == set()


@pytest.mark.parametrize("value", ["2026-1-2", "20260102", "yesterday", None])
def test_rows_that_no_day_would_read_are_refused(bronze: Bronze, value: str | None) -> None:
    shutil.rmtree(bronze.home)
    days = pa.array([D1.isoformat(), value], pa.string())
    write_deltalake(bronze.home, pa.table({"day": days, "id": [1, 2]}), partition_by=["day"])
    with pytest.raises(SourceError, match=r"source\.day: bronze/sales has rows with day = .*, which no day would read"):
        bronze.known()


def test_days_may_be_text(bronze: Bronze) -> None:
    before = bronze.known()
    shutil.rmtree(bronze.home)
    write_deltalake(bronze.home, rows({d: [d.day, 10 + d.day] for d in DAYS}, pa.string()), partition_by=["day"])
    assert bronze.changed(before) == set()


def test_each_commit_to_a_table_with_deletion_vectors_is_read_and_equal_rows_change_nothing(bronze: Bronze) -> None:
    shutil.rmtree(bronze.home)
    bronze.add({d: [d.day] for d in DAYS}, configuration={"delta.enableDeletionVectors": "true"})
    before = bronze.known()
    bronze.add({NEXT: [1]})
    assert bronze.changed(before) == set()
    assert bronze.read == [DAYS, DAYS]


def test_a_table_with_column_mapping_is_read_once_whatever_the_order_of_its_metadata(bronze: Bronze) -> None:
    log = bronze.home / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if "metaData" in line:
            schema = json.loads(line["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"]):
                field["metadata"] = {f"delta.columnMapping.{key}": number for key in ("id", "a", "b", "c", "d")}
            line["metaData"]["schemaString"] = json.dumps(schema)
    log.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    before = bronze.known()
    assert all(bronze.changed(before) == set() for _ in range(9))
    assert bronze.read == [DAYS]


def test_only_the_days_that_a_row_may_count_for_have_other_inputs(bronze: Bronze) -> None:
    bronze.says(late_days=1)
    before = bronze.basis.inputs("sales", DAYS)
    bronze.add({D3: [99]})
    now = bronze.basis.inputs("sales", DAYS)
    assert [now[d] == before[d] for d in DAYS] == [True, False, False]


def test_rows_of_a_later_delivery_day_are_newer_whatever_was_written_last(bronze: Bronze) -> None:
    bronze.add({D1: [99]})
    force = in_force(bronze.loaded.dataset, bronze.known().values())
    assert [one.day for one in force] == list(DAYS)


def test_a_published_day_with_a_late_row_is_late_and_a_compaction_makes_no_day_late(bronze: Bronze) -> None:
    bronze.world.released({d: [1] for d in DAYS})
    assert (bronze.late.of("sales"), bronze.late.moved("sales")) == ((), ())
    bronze.add({D2: [99]})
    (late,) = bronze.late.of("sales")
    assert (late.day, late.gap, bronze.late.moved("sales")) == (D2, False, (D2,))
    bronze.world.released({D2: [2]})
    bronze.compact()
    assert (bronze.late.of("sales"), bronze.late.moved("sales")) == ((), ())


def test_published_days_whose_rows_are_gone_from_the_table_stay_and_are_named(bronze: Bronze) -> None:
    bronze.world.released({d: [1] for d in DAYS})
    unit = bronze.world.open_unit({"sales": [D1]})
    bronze.world.build(unit, "sales", {D1: [1]})
    DeltaTable(bronze.home).delete(f"day = '{D1}'")
    assert (bronze.late.of("sales"), bronze.late.moved("sales"), bronze.late.gone("sales")) == ((), (), (D1,))
    # A unit that was checked before is not released all the same.
    with pytest.raises(EvidenceError, match=f"sales {D1} is stale: its deliveries"):
        bronze.world.publisher().release(unit.id)


def test_nothing_counts_as_moved_while_the_table_is_gone(bronze: Bronze) -> None:
    bronze.world.released({d: [1] for d in DAYS})
    shutil.rmtree(bronze.home)
    assert (bronze.late.moved("sales"), bronze.late.gone("sales")) == ((), ())
    with pytest.raises(SourceError, match="is not in"):
        bronze.late.of("sales")
    bronze.home.symlink_to("/")
    assert (bronze.late.moved("sales"), bronze.late.gone("sales")) == ((), ())
    with pytest.raises(LayoutError, match="leads out of"):
        bronze.late.of("sales")


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(DAYS), st.integers(0, 2)),
        st.tuples(st.just("delete"), st.sampled_from(DAYS), st.integers(0, 2)),
        st.tuples(st.just("compact"), st.just(D1), st.just(0)),
    ),
    max_size=6,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS)
def test_after_any_commits_a_day_is_another_delivery_exactly_if_its_rows_are_others(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, dt.date, int]]
) -> None:
    bronze = Bronze(tmp_path_factory.mktemp("bronze"))
    model = {d: [d.day, 10 + d.day] for d in DAYS}
    before, first = bronze.known(), {d: sorted(ids) for d, ids in model.items()}
    for what, d, number in steps:
        if what == "add":
            bronze.add({d: [number]})
            model[d].append(number)
        elif what == "delete":
            bronze.delete(d, number)
            model[d] = [one for one in model[d] if one != number]
        else:
            bronze.compact()
    assert bronze.changed(before) == {d for d in DAYS if sorted(model[d]) != first[d]}
    bronze.world.close()
