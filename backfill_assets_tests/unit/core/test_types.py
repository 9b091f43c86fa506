"""Types of columns: read, written, and the same for Delta, Arrow and Spark."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.errors import DatasetError, SourceError
from backfill_assets.core.types import PLAIN, Array, Kind, Map, Plain, Struct, is_nested, kind_of
from backfill_assets.dataset.sources import Source
from backfill_assets.delta.schema import delta_schema, never_null, types_of
from backfill_assets.extracts.rows import write_rows
from backfill_assets.pipeline.formats import require_columns
from backfill_assets.pipeline.types import declared_type, spark_type
from backfill_assets.storage.arrow_types import arrow_type
from backfill_assets.storage.disk import OnDisk
from backfill_assets.testing.tables import as_arrow, differences, read_table

decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: Plain("decimal", p, s)))
plain = st.sampled_from([Plain(name) for name in PLAIN]) | decimals
keys = st.sampled_from([Plain(name) for name in ("string", "smallint", "integer", "long", "date")])
names = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,4}\Z")


def nested(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    fields = st.lists(st.tuples(names, kinds), min_size=1, max_size=3, unique_by=lambda field: field[0].lower())
    return kinds.map(Array) | st.builds(Map, keys, kinds) | fields.map(lambda found: Struct(tuple(found)))


kinds = st.recursive(plain, nested, max_leaves=6)


@given(kinds, st.sampled_from(["", " ", "  "]))
def test_a_type_is_read_as_it_was_written(kind: Kind, space: str) -> None:
    written = str(kind)
    assert kind_of(written.replace(",", f",{space}").replace(":", f"{space}:{space}")) == kind
    assert is_nested(written) is not isinstance(kind, Plain)
    assert str(kind_of(written)) == written


@given(kind=kinds)
def test_engines_hold_a_type_as_it_was_declared(tmp_path_factory: pytest.TempPathFactory, kind: Kind) -> None:
    declared = str(kind)
    fields = json.loads(delta_schema({"a": declared}).to_json())["fields"]
    assert types_of(fields) == {"a": declared}
    assert list(never_null(fields[0]["type"], "a")) == []
    assert declared_type(spark_type(declared)) == declared
    check_file(tmp_path_factory.getbasetemp(), arrow_type(kind), declared)


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ("", "use string"),
        ("int", "use string"),
        ("long long", "use string"),
        ("array", "use string"),
        ("array<>", "use string"),
        ("array<long", "use string"),
        ("array<long>>", "use string"),
        ("array<long,long>", "use string"),
        ("struct<>", "use string"),
        ("struct<a>", "use string"),
        ("struct<1:long>", "use string"),
        ("struct<a-b:long>", "use string"),
        ("struct<a:long,>", "use string"),
        ("decimal(0,0)", "use string"),
        ("decimal(39,0)", "use string"),
        ("decimal(2,3)", "use string"),
        ("array<decimal(2)>", "use string"),
        ("map<long>", "use string"),
        ("map<double,long>", "keys of a map are string, smallint, integer, long, date, not double"),
        ("map<array<long>,long>", r"keys of a map are .*, not array<long>"),
        ("struct<a:long,b:long,A:long>", "two fields called A"),
        ("array<" * 9 + "long" + ">" * 9, "nested more than 8 levels deep"),
        ("struct<" + ",".join(f"a{n}:long" for n in range(2000)) + ">", "longer than 10,000 characters"),
    ],
)
def test_what_is_no_type_is_refused_with_what_to_write(declared: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        kind_of(declared)


NARROWER = {
    "smallint": pa.int32(),
    "integer": pa.int64(),
    "binary": pa.string(),
    "timestamp_ntz": pa.timestamp("us", tz="UTC"),
    "array<integer>": pa.list_(pa.int64()),
    "array<long>": pa.int64(),
    "map<string,integer>": pa.map_(pa.string(), pa.int64()),
    "map<string,long>": pa.struct({"a": pa.int64()}),
    "struct<a:long,b:long>": pa.struct({"a": pa.int64()}),
    "struct<a:integer>": pa.struct({"a": pa.int64()}),
    "struct<b:long>": pa.struct([("b", pa.int64()), ("B", pa.int64())]),
    "array<struct<a:decimal(9,2)>>": pa.list_(pa.struct({"a": pa.decimal128(9, 3)})),
}


@pytest.mark.parametrize("declared", NARROWER)
def test_a_parquet_file_with_other_parts_is_refused(tmp_path: Path, declared: str) -> None:
    with pytest.raises(SourceError, match=r"a file: column A: expected .*, found .*\. Deliver it with that type"):
        check_file(tmp_path, NARROWER[declared], declared)


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ("array<long>", pa.large_list(pa.int32())),
        ("array<long>", pa.list_(pa.int64(), 3)),
        ("struct<a:long>", pa.struct({"b": pa.string(), "A": pa.int8()})),
        ("binary", pa.large_binary()),
        ("timestamp_ntz", pa.timestamp("ms")),
        ("array<string>", pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    ],
)
def test_a_parquet_file_that_loses_nothing_is_read(tmp_path: Path, declared: str, found: pa.DataType) -> None:
    check_file(tmp_path, found, declared)


def check_file(folder: Path, found: pa.DataType, declared: str) -> None:
    """Check a file without rows, whose only column `a` has a type."""
    pq.write_table(pa.schema([("A", found)]).empty_table(), folder / "a.parquet")
    require_columns(OnDisk(folder / "a.parquet"), "a file", source({"a": declared}))


def source(columns: dict[str, str]) -> Source:
    return Source.model_validate({"format": "parquet", "path": "x/{day}.parquet", "columns": columns})


EVENT = "array<struct<sku:string,price:decimal(9,2),tags:map<date,long>>>"
DAY = dt.date(2024, 2, 28)
AT = dt.datetime(2024, 2, 28, 1, 2, 3, 4)  # noqa: DTZ001
NOTHING = {"sku": None, "price": None, "tags": None}
EVENTS = [{"sku": "s", "price": Decimal("1.1"), "tags": {DAY: 1}}, None, NOTHING]


def test_an_extract_writes_values_with_parts(tmp_path: Path) -> None:
    file, columns = tmp_path / "a.parquet", {"a": EVENT, "b": "smallint", "c": "timestamp_ntz", "d": "binary"}
    write_rows(file, source(columns), list(columns), [[(EVENTS, 1, AT, b"\0"), (None, None, None, None)]])
    first, second = pq.read_table(file).to_pylist(maps_as_pydicts="strict")
    assert first == {
        "a": [
            {"sku": "s", "price": Decimal("1.10"), "tags": {DAY: 1}},
            None,
            NOTHING,
        ],
        "b": 1,
        "c": AT,
        "d": b"\0",
    }
    assert set(second.values()) == {None}


@pytest.mark.parametrize(
    ("declared", "value", "why"),
    [
        (EVENT, "[]", "it is a str"),
        (EVENT, [{**NOTHING, "sku": 1}], "it is a int"),
        (EVENT, [{**NOTHING, "price": Decimal("1.111")}], "it has more digits"),
        (EVENT, [{**NOTHING, "skuu": "s"}], "it has the undeclared field 'skuu'"),
        (EVENT, [{"sku": "s", "tags": {}}], "it has no field 'price'"),
        (EVENT, [{**NOTHING, "tags": {"x": 1}}], "it is a str"),
        ("timestamp_ntz", AT.replace(tzinfo=dt.UTC), "it has a time zone"),
        ("smallint", 40_000, "a value is no smallint"),
        ("binary", "a", "it is a str"),
    ],
)
def test_an_extract_refuses_a_value_that_would_be_another(
    tmp_path: Path, declared: str, value: object, why: str
) -> None:
    with pytest.raises(SourceError, match=why):
        write_rows(tmp_path / "a.parquet", source({"a": declared}), ["a"], [[(value,)]])


CELLS = """\
a,b,c
"[{""sku"": ""s"", ""price"": 1.10, ""tags"": {""2024-02-28"": 1}}, null, {}]",AAE=,2024-02-28T01:02:03.000004
,,
"""


def test_a_golden_case_has_values_with_parts_as_json(tmp_path: Path) -> None:
    (tmp_path / "expected.csv").write_text(CELLS)
    types = {"a": EVENT, "b": "binary", "c": "timestamp_ntz"}
    table = read_table(tmp_path / "expected.csv", types)
    events = [EVENTS[0], None, NOTHING]
    assert table.rows[0] == {"a": events, "b": b"\0\1", "c": AT}
    held = as_arrow(table, types).to_pylist(maps_as_pydicts="strict")
    assert differences(table, held, ["b"]) == ()
    other = [{**held[0], "a": [EVENTS[0], None, None]}, held[1]]
    assert len(differences(table, other, ["b"])) == 2


@pytest.mark.parametrize("cell", ["[{]", "{}", '[{""skuu"": 1}]', '[{""price"": true}]', '[{""price"": ""x""}]', "[1]"])
def test_a_cell_that_is_no_value_is_named(tmp_path: Path, cell: str) -> None:
    (tmp_path / "expected.csv").write_text(f'a\n"{cell}"\n')
    with pytest.raises(DatasetError, match=r"expected.csv:2: a = .* is no array<struct<sku"):
        read_table(tmp_path / "expected.csv", {"a": EVENT})
