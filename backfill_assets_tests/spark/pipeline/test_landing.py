from __future__ import annotations

import datetime as dt
import gzip
import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import LayoutError, SourceError
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.pipeline.land import land
from backfill_assets.settings import Settings
from backfill_assets.spark.session import open_session
from backfill_assets.storage.disk import path_of
from backfill_assets.storage.sources import discover
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, NOW, Kit, commits, values

COLUMNS = {"day": "date", "id": "integer", "kind": "string", "amount": "double", "fee": "decimal(12,2)"}


def source(fmt: str, **more: object) -> dict[str, object]:
    return {"format": fmt, "path": "trips/{day}*", "columns": COLUMNS, **more}


def test_files_of_the_days_are_found_in_order_and_temporary_ones_are_not(kit: Kit) -> None:
    loaded = kit.dataset()
    for part in ("-b", "-a"):
        kit.deliver(D2, part=part)
    kit.deliver(D1)
    kit.deliver(D3)
    kit.put(f"trips/.{D1}.csv", "")
    for name in (f"{D1}.csv.part", f"{D1}.csv~", f"{D2}.tmp", f"{D2}.csv.swp"):
        kit.put(f"trips/{name}", "")
    (path_of(kit.layout.sources) / f"trips/{D2}.folder").mkdir()
    found = discover(loaded, kit.layout, [D2, D1])
    assert [f.path for f in found] == [f"trips/{D1}.csv", f"trips/{D2}-a.csv", f"trips/{D2}-b.csv"]
    assert found[0].fingerprint == (kit.layout.sources / found[0].path).sha256()
    assert (found[0].day, found[0].size) == (D1, 23)
    assert found[0].delivered_at == dt.datetime(2024, 3, 1, tzinfo=dt.UTC)


def test_a_link_out_of_the_sources_folder_is_refused(kit: Kit, tmp_path: Path) -> None:
    loaded = kit.dataset()
    outside = tmp_path / "outside.csv"
    outside.write_text("secret")
    (path_of(kit.layout.sources) / "trips").mkdir()
    (path_of(kit.layout.sources) / f"trips/{D1}.csv").symlink_to(outside)
    with pytest.raises(LayoutError, match="leads out of"):
        discover(loaded, kit.layout, [D1])


def test_a_file_with_two_names_counts_once_for_each(kit: Kit) -> None:
    loaded = kit.dataset()
    file = kit.deliver(D1, f"{D1},1,a,1,1", f"{D1},2,b,1,1")
    for name in (f"trips/{D1}-b.csv", f"trips/{D2}.csv"):
        (path_of(kit.layout.sources) / name).symlink_to(file)
    assert sorted((d.day, d.path, d.rows) for d in kit.land(loaded, D1, D2)) == [
        (D1, f"trips/{D1}-b.csv", 2), (D1, f"trips/{D1}.csv", 2), (D2, f"trips/{D2}.csv", 2),
    ]  # fmt: skip


def test_a_file_that_fits_two_days_is_refused(kit: Kit) -> None:
    loaded = kit.dataset(source=source("csv", path="trips/*{day}*.csv"))
    kit.put(f"trips/{D1}_{D2}.csv", "")
    with pytest.raises(SourceError, match=f"fits the delivery days {D1} and {D2}"):
        discover(loaded, kit.layout, [D1, D2])
    # Whichever day a launch asks for: each of two launches would land it for its own day.
    with pytest.raises(SourceError, match=f"fits the delivery days {D1} and {D2}"):
        discover(loaded, kit.layout, [D2])


LAYOUTS = {
    "trips/dt={day}/*": "trips/dt=2024-02-28/a", "trips/kind=z/id=9/{day}*": "trips/kind=z/id=9/2024-02-28",
    "{yyyy}/{mm}/{dd}/*": "2024/02/28/a", "trips/year={yyyy}/month={mm}/day={dd}/x*": "trips/year=2024/month=02/day=28/x",
    "trips-{yyyymmdd}*": "trips-20240228-a", "{dd}{mm}{yyyy}*": "28022024",
}  # fmt: skip


@pytest.mark.parametrize("path", LAYOUTS)
@pytest.mark.parametrize("fmt", ["csv", "parquet"])
def test_files_lie_as_archives_keep_them_and_no_name_of_a_folder_becomes_a_column(
    path: str, fmt: str, kit: Kit
) -> None:
    loaded = kit.dataset(source=source(fmt, path=path))
    for day in (D1, D2):
        file = kit.put(LAYOUTS[path].replace("28", f"{day.day}"), f"day,id,kind,amount,fee\n{day},1,a,1,1\n")
        if fmt == "parquet":
            pq.write_table(parquet_table(day=pa.array([day])), file)
    landed = kit.land(loaded, D1, D2)
    assert [(d.day, d.path, d.rows, d.corrupt_rows) for d in landed] == [
        (day, LAYOUTS[path].replace("28", f"{day.day}"), 1, 0) for day in (D1, D2)
    ]
    assert values(kit.raw(loaded), "_delivery_day", "day", "id", "kind") == [(day, day, 1, "a") for day in (D1, D2)]


QUARANTINED, WHOLE, IN_PARTS, EMPTY, OTHER_HEADERS, ODD_NAMES, CUT = (D1 + dt.timedelta(i) for i in range(7))
ODD = ["a b", "[1]", "{x}+%20#q?", "é", "back\\slash", "it's"]


@dataclass(frozen=True)
class Landed:
    """What was landed in one batch, and where."""

    kit: Kit
    loaded: LoadedDataset
    deliveries: Sequence[Delivery]

    def of(self, day: dt.date) -> list[Delivery]:
        return [delivery for delivery in self.deliveries if delivery.day == day]

    def rows(self, day: dt.date) -> DataFrame:
        return self.kit.raw(self.loaded).where(f"_delivery_day = '{day}'")


@pytest.fixture(scope="module")
def landed(module_kit: Kit) -> Landed:
    """A case on each delivery day, landed in one batch."""
    kit, loaded = module_kit, module_kit.dataset()
    kit.deliver(
        QUARANTINED,
        f'{D1},1,"said ""hi"", then left",1.5,2.25',
        f"{D1},2,,1.5,2.25",
        f"{D1},three,c,1.5,2.25",
        f"{D1},4,d",
        f"{D1},5,e,1.5,2.25,surplus",
        f"{D1},6,f,much,2.25",
        "2024-02-30,7,g,1.5,2.25",
        f"{D1},99999999999,h,1.5,2.25",
    )
    kit.deliver(WHOLE, f"{D2},1,x,1,1", hour=3)
    for part in ("-a", "-b"):
        kit.deliver(IN_PARTS, f"{IN_PARTS},1,x,1,1", part=part)
    kit.deliver(EMPTY)
    kit.put(f"trips/{OTHER_HEADERS}-1.csv", f"\ufeffFee,other,id,kind,amount,day\n2.50,zzz,1,a,9.5,{OTHER_HEADERS}\n")
    kit.put(f"trips/{OTHER_HEADERS}-2.csv", f"day,id,kind,amount,fee\n{OTHER_HEADERS},2,b,8.5,1.25\n")
    for number, name in enumerate(ODD):
        kit.deliver(ODD_NAMES, f"{ODD_NAMES},{number},a,1,1", part=name)
    kit.put(f"trips/{CUT}.csv", f"day,id,kind,amount,fee,other\n{CUT},1,a,1.5,2.25,x\n{CUT},2,b\n{CUT},3,c,1.5,2.25\n")
    days = (QUARANTINED, WHOLE, IN_PARTS, EMPTY, OTHER_HEADERS, ODD_NAMES, CUT)
    return Landed(kit, loaded, kit.land(loaded, *days))


def test_csv_rows_land_with_their_file_and_corrupt_ones_are_quarantined_and_counted(landed: Landed) -> None:
    (first,), (second,) = landed.of(QUARANTINED), landed.of(WHOLE)
    assert (first.rows, first.corrupt_rows) == (8, 6)
    assert (second.rows, second.corrupt_rows) == (1, 0)
    assert second.delivered_at == dt.datetime(2024, 3, 1, 3, tzinfo=dt.UTC)
    good, bad = (landed.rows(D1).where(f"_corrupt_record IS {state}") for state in ("NULL", "NOT NULL"))
    assert values(good, "id", "kind", "_source_file") == [
        (1, 'said "hi", then left', f"trips/{D1}.csv"),
        (2, None, f"trips/{D1}.csv"),
    ]
    assert f"{D1},three,c,1.5,2.25" in [row[0] for row in values(bad, "_corrupt_record")]
    row = landed.rows(WHOLE).collect()[0]
    assert (row["id"], row["kind"], row["_source_file"]) == (1, "x", f"trips/{WHOLE}.csv")
    assert (row["_fingerprint"], row["_delivery_day"]) == (second.fingerprint, WHOLE)
    times = "_delivered_at = TIMESTAMP'2024-03-01 03:00:00' AND _ingested_at = TIMESTAMP'2024-03-05 06:07:08.123456'"
    assert landed.rows(WHOLE).where(times).count() == 1


def test_a_batch_is_one_commit_with_one_file_per_delivery_day(landed: Landed) -> None:
    raw = path_of(landed.kit.layout.raw_path("trips"))
    assert commits(raw) == 1
    files = Counter(path.parent.name for path in raw.glob("_delivery_day=*/*.parquet"))
    assert files[f"_delivery_day={IN_PARTS}"] == 1
    assert set(files.values()) == {1}


def test_two_files_of_the_same_content_are_two_deliveries(landed: Landed) -> None:
    assert len({delivery.fingerprint for delivery in landed.of(IN_PARTS)}) == 1
    files = [(f"trips/{IN_PARTS}{part}.csv",) for part in ("-a", "-b")]
    assert [(delivery.path,) for delivery in landed.of(IN_PARTS)] == files
    assert values(landed.rows(IN_PARTS), "_source_file") == files


def test_a_file_of_a_header_alone_is_a_delivery_without_rows(landed: Landed) -> None:
    kit, loaded = landed.kit, landed.loaded
    assert [(d.path, d.rows) for d in landed.of(EMPTY)] == [(f"trips/{EMPTY}.csv", 0)]
    assert list(kit.land(loaded, EMPTY)) == landed.of(EMPTY)
    assert {day: c.rows for day, c in kit.stage(loaded, EMPTY).items()} == {EMPTY: 0}


def test_columns_are_matched_by_header_in_any_order_and_surplus_ones_are_skipped(landed: Landed) -> None:
    assert [(d.rows, d.corrupt_rows) for d in landed.of(OTHER_HEADERS)] == [(1, 0), (1, 0)]
    expected = [(1, "a", 9.5, Decimal("2.50")), (2, "b", 8.5, Decimal("1.25"))]
    assert values(landed.rows(OTHER_HEADERS), "id", "kind", "amount", "fee") == expected


def test_a_truncated_row_is_quarantined_also_in_a_file_with_undeclared_columns(landed: Landed) -> None:
    assert [(d.rows, d.corrupt_rows) for d in landed.of(CUT)] == [(3, 2)]
    assert values(landed.rows(CUT).where("_corrupt_record IS NULL"), "id", "fee") == [(1, Decimal("2.25"))]


def test_odd_file_names_keep_their_rows(landed: Landed) -> None:
    found = dict(values(landed.rows(ODD_NAMES), "id", "_source_file"))
    assert found == {number: f"trips/{ODD_NAMES}{name}.csv" for number, name in enumerate(ODD)}
    assert {d.rows for d in landed.kit.land(landed.loaded, ODD_NAMES)} == {1}


def test_landing_again_counts_what_is_known_and_lands_once_more_what_a_crash_kept_from_the_ledger(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,1,1", f"{D1},x,a,1,1")
    first = kit.land(loaded, D1)
    before = commits(path_of(kit.layout.raw_path("trips")))
    assert kit.land(loaded, D1) == first
    assert commits(path_of(kit.layout.raw_path("trips"))) == before
    kit.book.clear()
    assert kit.land(loaded, D1) == first
    assert commits(path_of(kit.layout.raw_path("trips"))) == before + 1
    kit.deliver(D1, f"{D1},2,a,1,1", part="-more")
    again = kit.land(loaded, D1)
    assert sorted((d.rows, d.corrupt_rows) for d in again) == [(1, 0), (2, 1)]
    assert kit.raw(loaded).count() == 3
    assert commits(path_of(kit.layout.raw_path("trips"))) == before + 2


def test_the_same_content_under_another_name_is_a_delivery_of_its_own(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,1,1")
    kit.land(loaded, D1)
    kit.deliver(D1, f"{D1},1,a,1,1", part="-again", hour=1)
    deliveries = kit.land(loaded, D1)
    assert len({d.fingerprint for d in deliveries}) == 1
    assert values(kit.raw(loaded), "_source_file") == [(f"trips/{D1}-again.csv",), (f"trips/{D1}.csv",)]


def test_two_sessions_that_land_the_same_file_together_land_it_once(kit: Kit, spark_settings: Settings) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},2,a,1,1", f"{D1},3,a,1,1")
    files = discover(loaded, kit.layout, [D1])
    start, results = threading.Barrier(2), []

    def run(tag: str) -> None:
        with open_session(spark_settings, f"{kit.root} {tag}") as spark:
            start.wait()
            results.append(land(spark, loaded, kit.layout, files, NOW))

    threads = [threading.Thread(target=run, args=(tag,)) for tag in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1]
    assert values(kit.raw(loaded), "id") == [(2,), (3,)]


def test_a_header_without_a_declared_column_is_refused_before_anything_is_written(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,1,1")
    kit.put(f"trips/{D2}.csv", "day,number,kind,amount,fee\n")
    with pytest.raises(
        SourceError, match=rf"trips/{D2}\.csv: its header does not name id; expected day, id.*found day, number"
    ):
        kit.land(loaded, D1, D2)
    assert not path_of(kit.layout.raw_path("trips")).exists()


def test_a_header_that_names_a_column_twice_is_refused(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.put(f"trips/{D1}.csv", "day,id,kind,amount,fee,id\n")
    with pytest.raises(SourceError, match="names id twice"):
        kit.land(loaded, D1)


def test_other_dialects_of_csv_are_read_as_declared(kit: Kit) -> None:
    options = {"header": False, "delimiter": "||", "quote": "'", "null_value": "NA"}
    loaded = kit.dataset(source=source("csv", csv=options))
    kit.put(f"trips/{D1}.csv.gz", gzip.compress(f"{D1}||1||'a||b'||NA||2.00\n{D1}||2||NA||1.5||\n".encode()))
    assert [(d.rows, d.corrupt_rows) for d in kit.land(loaded, D1)] == [(2, 0)]
    expected = [(1, "a||b", None, Decimal("2.00")), (2, None, 1.5, None)]
    assert values(kit.raw(loaded), "id", "kind", "amount", "fee") == expected


def test_json_lines_land_and_corrupt_ones_are_quarantined(kit: Kit) -> None:
    loaded = kit.dataset(source=source("jsonl"))
    good = {"day": str(D1), "id": 1, "kind": "a", "amount": 1.5, "fee": 2.25, "more": [1]}
    lines = [json.dumps(good), json.dumps({"id": 2, "day": str(D1)}), '{"id": 3', json.dumps({**good, "id": "four"})]
    kit.put(f"trips/{D1}.jsonl", "\n".join(lines))
    kit.put(f"trips/{D2}.jsonl", "")
    assert [(d.rows, d.corrupt_rows) for d in kit.land(loaded, D1, D2)] == [(4, 2), (0, 0)]
    good_rows = kit.raw(loaded).where("_corrupt_record IS NULL")
    assert values(good_rows, "id", "fee") == [(1, Decimal("2.25")), (2, None)]


def parquet_table(**changes: pa.Array) -> pa.Table:
    columns = {
        "day": pa.array([D1]),
        "id": pa.array([1], pa.int32()),
        "kind": pa.array(["a"]).dictionary_encode(),
        "amount": pa.array([1.5], pa.float32()),
        "fee": pa.array([Decimal("1.5")], pa.decimal128(10, 1)),
        "surplus": pa.array([1]),
    }
    return pa.table({**columns, **changes})


def test_parquet_files_land_and_narrower_types_are_widened(kit: Kit) -> None:
    loaded = kit.dataset(source=source("parquet"))
    pq.write_table(parquet_table(), kit.put(f"trips/{D1}.parquet", ""))
    pq.write_table(parquet_table().slice(0, 0), kit.put(f"trips/{D2}.parquet", ""))
    assert [(d.rows, d.corrupt_rows) for d in kit.land(loaded, D1, D2)] == [(1, 0), (0, 0)]
    assert values(kit.raw(loaded), "day", "id", "kind", "amount", "fee") == [(D1, 1, "a", 1.5, Decimal("1.50"))]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": pa.array(["1"])}, "column id: expected integer, found string"),
        ({"fee": pa.array([Decimal("1.123")])}, "column fee: expected decimal"),
        (
            {"day": pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], pa.timestamp("ns"))},
            "column day: expected date, found timestamp",
        ),
    ],
)
def test_a_parquet_file_with_another_type_is_refused(kit: Kit, changes: dict[str, pa.Array], message: str) -> None:
    loaded = kit.dataset(source=source("parquet"))
    pq.write_table(parquet_table(**changes), kit.put(f"trips/{D1}.parquet", ""))
    with pytest.raises(SourceError, match=rf"trips/{D1}\.parquet: {message}"):
        kit.land(loaded, D1)


def test_a_truncated_parquet_file_is_refused_by_name(kit: Kit) -> None:
    loaded = kit.dataset(source=source("parquet"))
    whole = kit.put(f"trips/{D1}.parquet", "")
    pq.write_table(parquet_table(), whole)
    whole.write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(SourceError, match=rf"trips/{D1}\.parquet: is no complete Parquet file"):
        kit.land(loaded, D1)
    kit.put(f"trips/{D1}.parquet", "")
    with pytest.raises(SourceError, match=rf"trips/{D1}\.parquet: is no complete Parquet file"):
        kit.land(loaded, D1)


def test_a_parquet_file_damaged_inside_is_refused_by_name_and_nothing_is_written(kit: Kit) -> None:
    loaded = kit.dataset(source=source("parquet"))
    file = kit.put(f"trips/{D1}.parquet", "")
    pq.write_table(parquet_table(), file, compression="none")
    content = bytearray(file.read_bytes())
    content[4:40] = b"\xff" * 36
    file.write_bytes(content)
    with pytest.raises(SourceError, match=rf"trips.*{D1}\.parquet"):
        kit.land(loaded, D1)
    assert not list(path_of(kit.layout.raw_path("trips")).glob("_delta_log/*.json"))


def test_a_changed_type_of_a_parquet_column_is_refused_with_the_way_out(kit: Kit) -> None:
    pq.write_table(parquet_table(), kit.put(f"trips/{D1}.parquet", ""))
    kit.land(kit.dataset(source=source("parquet")), D1)
    changed = kit.dataset(source=source("parquet", columns={**COLUMNS, "id": "long"}))
    with pytest.raises(SourceError, match=r"column id: expected long, found integer.*cast in the staging model"):
        kit.land(changed, D1)
