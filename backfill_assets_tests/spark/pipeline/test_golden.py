"""Golden sources against a shadow: three kinds of source, each kind of mismatch, and what does not fit."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.errors import BackfillError, DatasetError, SourceError
from backfill_assets.core.measured import GoldenCounts
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.evidence.basis import PUBLISHED, UpstreamDays
from backfill_assets.evidence.inputs import golden_fingerprints
from backfill_assets.pipeline.golden import golden_counts, golden_samples
from backfill_assets.pipeline.types import struct_of
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, D4, FOLDER, Kit

BOOKED = {"format": "csv", "path": "golden/booked.csv", "columns": {"day": "date", "kind": "string", "fee": "double"}}
OURS = "SELECT day, kind, sum(fee) AS fee FROM trips GROUP BY ALL"
GRAIN = {"ours": OURS, "key": ["day", "kind"], "columns": {"fee": {"tolerance": 0.01}}}


D5 = D4 + dt.timedelta(1)


@pytest.fixture(scope="module")
def shadow(module_kit: Kit) -> Path:
    """Two trips of kind a and one of kind b on the first day, one of each on the second, none on the third.

    The fifth day has nulls.
    """
    loaded = module_kit.dataset()
    rows = (
        (D1, 1, "a", "1.00"),
        (D1, 2, "a", "2.00"),
        (D1, 3, "b", "4.00"),
        (D2, 1, "a", "7.00"),
        (D2, 2, "b", "8.00"),
        (D5, 1, "a", None),
        (D5, 2, "b", None),
        (D5, 3, None, "3.00"),
        (D5, 4, "d", "4.00"),
    )
    data = [(day, number, kind, 1.0, Decimal(fee) if fee else None) for day, number, kind, fee in rows]
    columns = {name: column.type for name, column in loaded.dataset.columns.items()}
    frame = module_kit.spark.createDataFrame(data, struct_of(columns))
    folder = module_kit.shadow_folder(loaded)
    frame.write.format("delta").partitionBy("day").save(str(folder))
    return folder


@pytest.fixture
def kit(kit: Kit, shadow: Path) -> Kit:
    """A warehouse of the test's own with a copy of the shadow."""
    shutil.copytree(shadow, path_of(kit.layout.published_path("trips")) / FOLDER)
    return kit


def declared(kit: Kit, golden: Mapping[str, object], **changes: object) -> LoadedDataset:
    """The dataset of the shadow with one golden source."""
    return kit.dataset(golden={"booked": golden}, **changes)  # type: ignore[arg-type]


def book(kit: Kit, *rows: str) -> None:
    kit.put("golden/booked.csv", "\n".join(["day,kind,fee", *rows]) + "\n")


def counts(kit: Kit, loaded: LoadedDataset, *days: dt.date) -> dict[dt.date, GoldenCounts]:
    found = golden_counts(kit.frames(loaded, *(days or (D1, D2, D3))))
    assert all(set(by_name) == {"booked"} for by_name in found.values())
    return {day: by_name["booked"] for day, by_name in found.items()}


def test_each_kind_of_mismatch_is_counted_on_its_day(kit: Kit) -> None:
    loaded = declared(kit, {"file": BOOKED} | GRAIN)
    # A day that is not asked for, and a row of no day at all, are not compared.
    book(kit, f"{D1},a,3.50", f"{D1},b,4.00", f"{D1},c,9.00", f"{D2},a,7.00", f"{D4},a,1.00", ",a,1.00")
    assert counts(kit, loaded) == {
        D1: GoldenCounts(missing_here=1, missing_there=0, different=1, equal=1),
        D2: GoldenCounts(missing_here=0, missing_there=1, different=0, equal=1),
        D3: GoldenCounts(),
    }


def test_up_to_five_rows_of_a_failed_day_say_what_both_sides_have(kit: Kit) -> None:
    loaded = declared(kit, {"file": BOOKED} | GRAIN)
    book(kit, f"{D1},a,3.50", f"{D1},c,9.00", *(f"{D2},x{i},1" for i in range(9)), f"{D2},a,7", f"{D2},b,8")
    other = {"unique_key": (D1,)}
    found = golden_samples(kit.frames(loaded, D1, D2, D3), {"golden_booked": (D1, D2), **other})
    assert set(found) == {("golden_booked", D1), ("golden_booked", D2)}
    assert found["golden_booked", D1] == (
        {"kind": "missing there", "key": f"day={D1}, kind=b", "ours": "fee=4.0", "theirs": "nothing"},
        {"kind": "different", "key": f"day={D1}, kind=a", "ours": "fee=3.0", "theirs": "fee=3.5"},
        {"kind": "missing here", "key": f"day={D1}, kind=c", "ours": "nothing", "theirs": "fee=9.0"},
    )
    assert len(found["golden_booked", D2]) == 5
    assert golden_samples(kit.frames(loaded, D1), other) == {}


def test_a_tolerance_is_absolute_and_ends_where_it_says(kit: Kit) -> None:
    decimals = BOOKED | {"columns": {"day": "date", "kind": "string", "fee": "decimal(18,3)"}}
    loaded = declared(kit, {"file": decimals} | GRAIN)
    book(kit, f"{D1},a,3.010", f"{D1},b,4.011", f"{D2},a,6.990", f"{D2},b,7.989")
    found = counts(kit, loaded, D1, D2)
    assert [(c.different, c.equal) for c in found.values()] == [(1, 1), (1, 1)]


def test_nulls_agree_with_nulls_and_with_nothing_else(kit: Kit) -> None:
    loaded = declared(kit, {"file": BOOKED, "key": ["day", "kind"], "columns": {"fee": {"tolerance": 5}}})
    book(kit, f"{D5},a,", f"{D5},b,1.00", f"{D5},,3.00", f"{D5},d,")
    assert counts(kit, loaded, D5)[D5] == GoldenCounts(different=2, equal=2)


def test_a_key_that_occurs_twice_on_one_side_is_one_row_too_many(kit: Kit) -> None:
    loaded = declared(kit, {"file": BOOKED, "key": ["day", "kind"], "columns": {"fee": {}}})
    book(kit, f"{D1},a,1.00", f"{D1},b,4.00", f"{D1},b,4.00")
    assert counts(kit, loaded, D1)[D1] == GoldenCounts(missing_here=1, missing_there=1, equal=2)


def test_without_columns_rows_only_have_to_be_there(kit: Kit) -> None:
    loaded = declared(kit, {"file": BOOKED, "ours": OURS, "key": ["day", "kind"]})
    book(kit, f"{D1},a,99", f"{D1},b,99")
    assert counts(kit, loaded, D1)[D1] == GoldenCounts(equal=2)


def test_a_query_brings_a_file_to_the_grain_and_may_read_references(kit: Kit) -> None:
    query = (
        "SELECT booked_on AS day, k.kind, sum(cents) / 100 AS fee FROM booked JOIN kinds k USING (label) GROUP BY ALL"
    )
    file = {
        "format": "csv",
        "path": "golden/booked.csv",
        "columns": {"booked_on": "date", "label": "string", "cents": "long"},
    }
    loaded = declared(kit, {"file": file, "sql": query} | GRAIN)
    kit.put("golden/booked.csv", f"booked_on,label,cents\n{D1},Alpha,100\n{D1},Alpha,200\n{D1},Beta,401\n")
    assert counts(kit, loaded, D1)[D1] == GoldenCounts(equal=2)


def test_a_delta_table_is_a_golden_source(kit: Kit) -> None:
    loaded = declared(kit, {"table": "golden/bookings"} | GRAIN)
    bookings = pa.table({"day": [D1, D1], "kind": ["a", "b"], "fee": [3.0, 4.5]})
    write_deltalake(path_of(kit.layout.sources) / "golden" / "bookings", bookings)
    assert counts(kit, loaded, D1)[D1] == GoldenCounts(different=1, equal=1)


def test_a_delta_table_is_a_golden_source_as_it_is_now(kit: Kit) -> None:
    loaded = declared(kit, {"table": "golden/bookings"} | GRAIN)
    rows = kit.spark.sql(f"SELECT DATE'{D1}' AS day, 'a' AS kind, 3.0D AS fee UNION ALL SELECT DATE'{D1}', 'b', 4.0D")
    home = path_of(kit.layout.sources) / "golden" / "bookings"
    rows.write.format("delta").save(str(home))
    assert counts(kit, loaded, D1)[D1] == GoldenCounts(equal=2)
    before = golden_fingerprints(loaded, kit.layout, [D1])
    write_deltalake(home, DeltaTable(home).to_pyarrow_table(), mode="append")
    assert counts(kit, loaded, D1)[D1] == GoldenCounts(missing_here=2, equal=2)
    after = golden_fingerprints(loaded, kit.layout, [D1])
    assert set(before[D1]) == {"golden:booked"}
    assert before != after


def test_a_query_alone_reads_upstreams_and_references_by_name(kit: Kit) -> None:
    rides = kit.dataset(name="rides")
    kit.publish(rides, kit.spark.sql(f"SELECT DATE'{D1}' AS day, 1 AS id, 'a' AS kind, 1.0D AS amount, 3.00BD AS fee"))
    query = "SELECT day, kind, sum(fee) AS fee FROM rides JOIN kinds USING (kind) GROUP BY ALL"
    loaded = declared(kit, {"sql": query} | GRAIN, upstream={"rides": {}})
    from_rides = (UpstreamDays(rides, {PUBLISHED: (D1,)}),)
    found = golden_counts(kit.frames(loaded, D1, upstreams=from_rides))
    assert found == {D1: {"booked": GoldenCounts(missing_there=1, equal=1)}}
    assert golden_fingerprints(loaded, kit.layout, [D1]) == {D1: {}}


ONE = f"SELECT DATE'{D1}' AS day, kind, 1 AS fee FROM kinds"
REFUSED: tuple[tuple[dict[str, object], type[BackfillError], str], ...] = (
    (
        {"file": BOOKED},
        SourceError,
        "golden.booked: the file golden/booked.csv is not in .*correct golden.booked.file.path",
    ),
    (
        {"table": "golden/lost"},
        SourceError,
        "golden.booked: the Delta table golden/lost is not in .*golden.booked.table",
    ),
    ({"sql": "SELECT * FROM nowhere"}, DatasetError, "golden.booked.sql: .*nowhere"),
    ({"sql": "SELECT 1 AS one FROM kinds"}, DatasetError, "golden.booked.sql has no column 'day'; it has one"),
    ({"sql": "SELECT '2024' AS day, kind, 1 AS fee FROM kinds"}, DatasetError, "day is a string; make it a date"),
    (
        {"sql": ONE.replace("1 AS", "'x' AS")},
        DatasetError,
        "golden.booked.columns: fee is a string there and a decimal",
    ),
    ({"sql": ONE, "ours": "SELECT 1 FROM trip"}, DatasetError, "golden.booked.ours: .*trip"),
    ({"sql": ONE, "ours": "SELECT day, fee FROM trips"}, DatasetError, "golden.booked.ours has no column 'kind'"),
)


def test_a_source_that_is_not_there_or_does_not_fit_is_refused_by_file_and_key(kit: Kit) -> None:
    for golden, kind, message in REFUSED:
        loaded = declared(kit, GRAIN | golden)
        with pytest.raises(kind, match=message) as refused:
            counts(kit, loaded)
        assert str(loaded.folder / "dataset.yaml") in str(refused.value)


def test_a_file_that_cannot_be_read_as_declared_is_refused(kit: Kit) -> None:
    loaded = declared(kit, {"file": BOOKED} | GRAIN)
    kit.put("golden/booked.csv", "day,fee\n2024-02-28,1\n")
    with pytest.raises(SourceError, match=r"golden\.booked\.file: golden/booked.csv.*kind"):
        counts(kit, loaded)
    book(kit, f"{D1},a,much")
    with pytest.raises(SourceError, match=r"dataset\.yaml: golden\.booked: "):
        counts(kit, loaded)


def test_a_dataset_without_golden_sources_is_compared_with_none(kit: Kit) -> None:
    loaded = kit.dataset()
    assert golden_counts(kit.frames(loaded, D1, D2)) == {D1: {}, D2: {}}
    assert golden_fingerprints(loaded, kit.layout, [D1]) == {D1: {}}
