"""The benchmark's input files: order lines by day, as the generator made them."""

from __future__ import annotations

import datetime as dt
import hashlib
from decimal import Decimal
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import backfill_assets
from backfill_assets.core.days import day_range
from backfill_assets.core.errors import InvalidDayError, SourceError
from backfill_assets.dataset.load import load_folder
from backfill_assets.pipeline.formats import require_columns
from backfill_assets.storage.disk import OnDisk
from demo import orders
from demo.orders import FIRST, LAST, generate_orders, land_orders
from demo.sources import LandingReport

pytestmark = pytest.mark.slow

SCALE = 0.001
ONE, TWO = dt.date(1995, 1, 5), dt.date(1995, 1, 9)
DATASETS = Path(backfill_assets.__file__).parent / "datasets"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate_orders(tmp_path_factory.mktemp("tpch"), SCALE)


def state_of(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        path.relative_to(folder).as_posix(): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_every_order_line_lands_in_the_file_of_its_day_and_nowhere_else(tables: Path, tmp_path: Path) -> None:
    report = land_orders(tmp_path, tables)
    made = pq.read_table(tables / "lineitem.parquet", columns=["l_orderkey", "l_linenumber", "l_extendedprice"])
    landed: set[tuple[int, int]] = set()
    price = Decimal(0)
    for day in day_range(FIRST, LAST):
        for file in (tmp_path / "orders" / str(day)).glob("*.parquet"):
            rows = pq.read_table(file)
            assert set(rows["o_orderdate"].to_pylist()) == {day}
            keys = set(zip(rows["o_orderkey"].to_pylist(), rows["l_linenumber"].to_pylist(), strict=True))
            assert len(keys) == rows.num_rows
            assert not keys & landed
            landed |= keys
            price += pc.sum(rows["l_extendedprice"]).as_py()
    assert landed == set(zip(made["l_orderkey"].to_pylist(), made["l_linenumber"].to_pylist(), strict=True))
    assert price == pc.sum(made["l_extendedprice"]).as_py()
    assert report.rows == made.num_rows
    assert report.files == report.written == len(list((tmp_path / "orders").iterdir()))


def test_a_line_keeps_its_own_order_and_customer(tables: Path, tmp_path: Path) -> None:
    land_orders(tmp_path, tables, ONE, TWO)
    made = pq.read_table(tables / "orders.parquet", columns=["o_orderkey", "o_custkey", "o_orderdate"]).to_pylist()
    orders_made = {row["o_orderkey"]: (row["o_custkey"], row["o_orderdate"]) for row in made}
    rows = [row for file in (tmp_path / "orders").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert rows
    for row in rows:
        assert (row["o_custkey"], row["o_orderdate"]) == orders_made[row["o_orderkey"]]


def test_each_day_was_delivered_the_next_morning(tables: Path, tmp_path: Path) -> None:
    land_orders(tmp_path, tables, ONE, ONE)
    (file,) = (tmp_path / "orders").rglob("*.parquet")
    assert file.relative_to(tmp_path).as_posix() == "orders/1995-01-05/orders_1995-01-05.parquet"
    assert dt.datetime.fromtimestamp(file.stat().st_mtime, dt.UTC) == dt.datetime(1995, 1, 6, 6, tzinfo=dt.UTC)


def test_landing_again_changes_only_damaged_files(tables: Path, tmp_path: Path) -> None:
    first = land_orders(tmp_path, tables, ONE, TWO)
    before = state_of(tmp_path)
    assert land_orders(tmp_path, tables, ONE, TWO) == LandingReport(first.files, first.rows, 0)
    assert state_of(tmp_path) == before
    (tmp_path / "orders" / str(ONE) / f"orders_{ONE}.parquet").write_text("torn")
    assert land_orders(tmp_path, tables, ONE, TWO).written == 1
    assert state_of(tmp_path) == before


def test_a_day_has_the_same_file_whatever_range_it_was_landed_with(tables: Path, tmp_path: Path) -> None:
    land_orders(tmp_path / "all", tables)
    land_orders(tmp_path / "some", tables, ONE, TWO)
    whole, some = state_of(tmp_path / "all"), state_of(tmp_path / "some")
    assert len(some) > 1
    assert some.items() <= whole.items()


def test_the_files_have_the_columns_that_the_dataset_declares(tables: Path, tmp_path: Path) -> None:
    land_orders(tmp_path, tables, ONE, TWO)
    catalog = load_folder(DATASETS)
    assert [problem for problem in catalog.problems if "order_items" in str(problem)] == []
    dataset = catalog.datasets["order_items"].dataset
    assert (dataset.start, dataset.end) == (FIRST, LAST)
    assert dataset.source is not None
    for file in (tmp_path / "orders").rglob("*.parquet"):
        require_columns(OnDisk(file), file.name, dataset.source)
    heads = dataset.golden["order_heads"].file
    assert heads is not None
    for file in (dataset.references["partsupp"], heads):
        require_columns(OnDisk(tmp_path / file.path), file.path, file)


def test_the_heads_of_all_orders_are_added_up_by_day(tables: Path, tmp_path: Path) -> None:
    land_orders(tmp_path, tables, ONE, TWO)
    heads = pq.read_table(tmp_path / "golden" / "order_heads.parquet").to_pylist()
    made = pq.read_table(tables / "orders.parquet", columns=["o_orderdate", "o_totalprice"]).to_pylist()
    assert sum(head["o_totalprice_count"] for head in heads) == len(made)
    one = [row["o_totalprice"] for row in made if row["o_orderdate"] == ONE]
    (head,) = [head for head in heads if head["o_orderdate"] == ONE]
    assert (head["o_totalprice_count"], head["o_totalprice_sum"]) == (len(one), sum(one))


@pytest.mark.parametrize(
    ("first", "last"), [(FIRST - dt.timedelta(days=1), LAST), (TWO, ONE), (FIRST, LAST + dt.timedelta(days=1))]
)
def test_days_without_data_are_refused(tables: Path, tmp_path: Path, first: dt.date, last: dt.date) -> None:
    with pytest.raises(InvalidDayError, match="choose days"):
        land_orders(tmp_path, tables, first, last)
    assert list(tmp_path.iterdir()) == []


def test_what_was_generated_is_not_generated_again(tables: Path) -> None:
    before = state_of(tables)
    assert generate_orders(tables.parent, SCALE) == tables
    assert state_of(tables) == before


@pytest.mark.parametrize("scale", [0, -1, 1000])
def test_a_scale_factor_that_makes_no_sense_is_refused(tmp_path: Path, scale: float) -> None:
    with pytest.raises(SourceError, match="scale factor"):
        generate_orders(tmp_path, scale)
    assert list(tmp_path.iterdir()) == []


def test_without_the_generator_the_refusal_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "GENERATOR", "a-generator-that-nobody-installed")
    with pytest.raises(SourceError, match=r"pip install --editable '\.\[dev\]'"):
        generate_orders(tmp_path, SCALE)
    assert list(tmp_path.iterdir()) == []
