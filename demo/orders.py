"""The benchmark's input: order lines of TPC-H as daily source files."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.errors import InvalidDayError, SourceError
from demo.sources import REMEDY, LandingReport, put_file

GENERATOR: Final = "tpchgen-cli"
FIRST, LAST = dt.date(1992, 1, 1), dt.date(1998, 8, 2)
_TABLES: Final = ("orders", "lineitem", "partsupp")
_ORDERS: Final = ("o_orderkey", "o_custkey", "o_orderdate", "o_orderpriority")
_LINES: Final = (
    "l_orderkey", "l_linenumber", "l_partkey", "l_suppkey", "l_quantity", "l_extendedprice", "l_discount", "l_tax",
    "l_returnflag", "l_shipmode",
)  # fmt: skip
_TOTALS: Final = ("o_orderdate", "o_totalprice")
_COSTS: Final = ("ps_partkey", "ps_suppkey", "ps_supplycost")
_ORDER: Final = ("o_orderdate", "o_orderkey", "l_linenumber")
_DELIVERED_AT: Final = dt.time(6, tzinfo=dt.UTC)
_BATCH_DAYS: Final = 400
"""Days that are joined together: at scale factor 1 a million lines."""
_MOST_SCALE: Final = 100


def generate_orders(folder: Path, scale: float) -> Path:
    """Generate orders, lineitem and partsupp of TPC-H as Parquet in a folder of their own below `folder`; that folder.

    Existing files are not generated again. Scale factor 1 has 6 million order lines and takes some seconds.

    Raises:
        SourceError: the generator is not installed or fails, or the scale factor makes no sense.
    """
    if not 0 < scale <= _MOST_SCALE:
        raise SourceError(f"scale factor {scale:g} cannot be generated; use one above 0 and at most {_MOST_SCALE}")
    target = folder / f"tpch_{scale:g}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tpch_", dir=folder) as unfinished:
        out = Path(unfinished, "tables")
        command = [_generator(), "parquet", "-s", f"{scale:g}", "-T", ",".join(_TABLES), "-o", str(out), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # our own arguments
        if done.returncode:
            raise SourceError(f"{GENERATOR} failed: {(done.stderr or done.stdout).strip()[-500:] or done.returncode}")
        out.rename(target)
    return target


def land_orders(sources: Path, tables: Path, first: dt.date = FIRST, last: dt.date = LAST) -> LandingReport:
    """Write the order lines of each day to `orders/<day>/orders_<day>.parquet`, the costs to `reference/`.

    The totals of all order heads, by day, go to `golden/`: they are not added up from lines.

    `tables` is what `generate_orders` gave; a sources folder holds one scale factor. Each file is delivered at 06:00 UTC
    of the next day, a day without orders has none. Files that are already correct are left alone.

    Raises:
        InvalidDayError: the range is not within 1992-01-01..1998-08-02.
    """
    if not FIRST <= first <= last <= LAST:
        raise InvalidDayError(f"{first}..{last} is no range within the data; choose days from {FIRST} to {LAST}")
    files = rows = written = 0
    for day, lines in _lines_by_day(tables, first, last):
        path = sources / "orders" / day.isoformat() / f"orders_{day}.parquet"
        files, rows = files + 1, rows + lines.num_rows
        written += put_file(path, _parquet(lines), dt.datetime.combine(day + ONE_DAY, _DELIVERED_AT))
    costs = _parquet(_read(tables, "partsupp", _COSTS))
    put_file(sources / "reference" / "partsupp.parquet", costs, dt.datetime.combine(FIRST, _DELIVERED_AT))
    heads = _read(tables, "orders", _TOTALS).group_by("o_orderdate", use_threads=False)
    totals = heads.aggregate([("o_totalprice", "count"), ("o_totalprice", "sum")]).sort_by("o_orderdate")
    put_file(sources / "golden" / "order_heads.parquet", _parquet(totals), dt.datetime.combine(FIRST, _DELIVERED_AT))
    return LandingReport(files, rows, written)


def _generator() -> str:
    beside = Path(sys.executable).with_name(GENERATOR)
    found = str(beside) if beside.is_file() else shutil.which(GENERATOR)
    if found is None:
        raise SourceError(f"{GENERATOR}, which makes the orders, is missing; {REMEDY}")
    return found


def _lines_by_day(tables: Path, first: dt.date, last: dt.date) -> Iterator[tuple[dt.date, pa.Table]]:
    """Each day that has orders, with its lines in order."""
    orders, lines = _read(tables, "orders", _ORDERS), _read(tables, "lineitem", _LINES)
    begin = first
    while begin <= last:
        end = min(begin + (_BATCH_DAYS - 1) * ONE_DAY, last)
        within = (pc.field("o_orderdate") >= pa.scalar(begin)) & (pc.field("o_orderdate") <= pa.scalar(end))
        yield from _split(_joined(orders.filter(within), lines))
        begin = end + ONE_DAY


def _joined(orders: pa.Table, lines: pa.Table) -> pa.Table:
    place = pc.index_in(lines["l_orderkey"], value_set=orders["o_orderkey"].combine_chunks())
    own = lines.filter(place.is_valid())
    both = orders.take(place.drop_null())
    for name in own.column_names:
        both = both.append_column(name, own[name])
    in_order = pc.sort_indices(both, sort_keys=[(name, "ascending") for name in _ORDER])
    return both.drop_columns(["l_orderkey"]).take(in_order).combine_chunks()


def _split(table: pa.Table) -> Iterator[tuple[dt.date, pa.Table]]:
    counts = pc.value_counts(table["o_orderdate"]).to_pylist()
    begin = 0
    for count in counts:
        yield count["values"], table.slice(begin, count["counts"])
        begin += count["counts"]


def _read(tables: Path, name: str, columns: tuple[str, ...]) -> pa.Table:
    table = pq.read_table(tables / f"{name}.parquet", columns=list(columns))
    # Arrow can neither filter nor join the string views that the generator says are in its files.
    fields = [
        pa.field(f.name, pa.string() if pa.types.is_string_view(f.type) else f.type, f.nullable) for f in table.schema
    ]
    return table.replace_schema_metadata(None).cast(pa.schema(fields))


def _parquet(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, store_schema=False)
    content: bytes = out.getvalue().to_pybytes()
    return content
