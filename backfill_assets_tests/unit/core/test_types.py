"""Types of columns: read, written, and the same for Delta, Arrow and Spark."""

from __future__ import annotations

import datetime as dt
import json
import time
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
from backfill_assets.delta.schema import delta_schema, parts_with_rules, types_of
from backfill_assets.extracts.rows import write_rows
from backfill_assets.pipeline.formats import require_columns
from backfill_assets.pipeline.samples import around_the_difference
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
    assert list(parts_with_rules(fields[0]["type"], "a")) == []
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
    "smallint": (pa.int32(), "A: expected smallint, found int32"),
    "integer": (pa.int64(), "A: expected integer, found int64"),
    "binary": (pa.string(), "A: expected binary, found string"),
    "timestamp_ntz": (pa.timestamp("us", tz="UTC"), r"A: expected timestamp_ntz, found timestamp\[us, tz=UTC\]"),
    "array<integer>": (pa.list_(pa.int64()), "A.element: expected integer, found int64"),
    "array<long>": (pa.int64(), "A: expected array<long>, found int64"),
    "map<string,integer>": (pa.map_(pa.string(), pa.int64()), "A.value: expected integer, found int64"),
    "map<string,long>": (pa.struct({"a": pa.int64()}), "A: expected map<string,long>, found struct"),
    "struct<a:long,b:long>": (pa.struct({"a": pa.int64()}), "A.b: expected long, found no such field"),
    "struct<a:integer>": (pa.struct({"a": pa.int64()}), "A.a: expected integer, found int64"),
    "struct<b:long>": (pa.struct([("b", pa.int64()), ("B", pa.int64())]), "A: expected struct<b:long>, found struct"),
    "array<struct<a:decimal(9,2)>>": (
        pa.list_(pa.struct({"a": pa.decimal128(9, 3)})),
        r"A.element.a: expected decimal\(9,2\), found decimal128\(9, 3\)",
    ),
}


@pytest.mark.parametrize("declared", NARROWER)
def test_a_parquet_file_with_other_parts_is_refused(tmp_path: Path, declared: str) -> None:
    found, why = NARROWER[declared]
    with pytest.raises(SourceError, match=rf"a file: column {why}.*\. Deliver it with that (type|field)"):
        check_file(tmp_path, found, declared)


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


def test_a_field_that_a_file_may_lack_is_named(tmp_path: Path) -> None:
    found, declared = pa.list_(pa.struct({"a": pa.int64()})), "array<struct<a:long,b:long>>"
    check_file(tmp_path, found, declared, "a.element.b")
    with pytest.raises(SourceError, match=r"where source\.optional"):
        check_file(tmp_path, found, declared, "a")
    for path in ("a.element", "a.element.c", "b", "a.element.b.c"):
        with pytest.raises(
            ValueError, match=f"optional: {path} is not one of the columns, or a field of a struct in one"
        ):
            check_file(tmp_path, found, declared, path)


def check_file(folder: Path, found: pa.DataType, declared: str, *optional: str) -> None:
    """Check a file without rows, whose only column `a` has a type."""
    pq.write_table(pa.schema([("A", found)]).empty_table(), folder / "a.parquet")
    require_columns(OnDisk(folder / "a.parquet"), "a file", source({"a": declared}, *optional))


def source(columns: dict[str, str], *optional: str) -> Source:
    said = {"format": "parquet", "path": "x/{day}.parquet", "columns": columns, "optional": optional}
    return Source.model_validate(said)


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
        (EVENT, [{**NOTHING, "sku": 1}], "a.element.sku: it is a int"),
        (EVENT, [{**NOTHING, "price": Decimal("1.111")}], "a.element.price: it has more digits"),
        (EVENT, [{**NOTHING, "skuu": "s"}], "a.element has the undeclared field 'skuu'"),
        (EVENT, [{"sku": "s", "tags": {}}], "a.element has no field 'price'"),
        (EVENT, [{**NOTHING, "tags": {"x": 1}}], "a.element.tags.key: it is a str"),
        (EVENT, [[]], "a.element: it is a list"),
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


JSON = '[{"sku": "s", "price": 1.10, "tags": {"2024-02-28": 1}}, null, {"sku": null, "price": null, "tags": null}]'
CELLS = 'a,b,c\n"{}",AAE=,2024-02-28T01:02:03.000004\n,,\n'.format(JSON.replace('"', '""'))


def test_a_golden_case_has_values_with_parts_as_json(tmp_path: Path) -> None:
    (tmp_path / "expected.csv").write_text(CELLS)
    types = {"a": EVENT, "b": "binary", "c": "timestamp_ntz"}
    table = read_table(tmp_path / "expected.csv", types)
    events = [EVENTS[0], None, NOTHING]
    assert table.rows[0] == {"a": events, "b": b"\0\1", "c": AT}
    held = as_arrow(table, types).to_pylist(maps_as_pydicts="strict")
    assert differences(table, held, ["b"]) == ()
    other = [{**held[0], "a": [EVENTS[0], None, None]}, held[1]]
    missing, found = differences(table, other, ["b"])
    assert missing.startswith(
        "expected, but not found: b=b'\\x00\\x01': a=[{price: 1.1, sku: s, tags: {2024-02-28: 1}}, None, {"
    )
    assert found.startswith("found, but not expected:")


def test_a_local_time_is_not_taken_for_another_where_the_clock_was_put_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        (tmp_path / "expected.csv").write_text("a,b\n2024-03-31T02:30:00,0001-01-01\n")
        table = read_table(tmp_path / "expected.csv", {"a": "timestamp_ntz", "b": "timestamp_ntz"})
        early = dt.datetime(1, 1, 1)  # noqa: DTZ001
        assert differences(table, [{"a": dt.datetime(2024, 3, 31, 2, 30), "b": early}], ["a"]) == ()  # noqa: DTZ001
        assert len(differences(table, [{"a": dt.datetime(2024, 3, 31, 1, 30), "b": early}], ["a"])) == 2  # noqa: DTZ001
    finally:
        monkeypatch.undo()
        time.tzset()


REST = '""tags"": null, ""sku"": null'
CELLS_OF_OTHERS = [
    "[{]",
    "{}",
    "[1]",
    f"[{{{REST}}}]",
    f'[{{{REST}, ""price"": 1, ""skuu"": 1}}]',
    f'[{{{REST}, ""price"": true}}]',
    f'[{{{REST}, ""price"": ""x""}}]',
    f'[{{{REST}, ""price"": 1, ""price"": 2}}]',
    '[{""sku"": null, ""price"": 1, ""tags"": {""2024-02-28"": 1, ""20240228"": 1}}]',
]


@pytest.mark.parametrize("cell", CELLS_OF_OTHERS)
def test_a_cell_that_is_no_value_is_named(tmp_path: Path, cell: str) -> None:
    (tmp_path / "expected.csv").write_text(f'a\n"{cell}"\n')
    with pytest.raises(DatasetError, match=r"expected.csv:2: a = .* is no array<struct<sku"):
        read_table(tmp_path / "expected.csv", {"a": EVENT})


def test_parts_of_another_writers_table_may_have_rules() -> None:
    parts = [
        {"name": "a", "type": "long", "nullable": False, "metadata": {}},
        {"name": "b", "type": "long", "nullable": True, "metadata": {"delta.invariants": "{}"}},
        {"name": "c", "type": {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False},
         "nullable": True, "metadata": {"comment": "x"}},
    ]  # fmt: skip
    kind = {"type": "array", "containsNull": False, "elementType": {"type": "struct", "fields": parts}}
    assert list(parts_with_rules(kind, "e")) == ["e.element", "e.element.a", "e.element.b", "e.element.c.value"]
    strange = {"type": "struct", "fields": [{**parts[0], "name": "a:long,b"}]}
    (written,) = types_of([{"name": "e", "type": strange}]).values()
    with pytest.raises(ValueError, match="use string"):
        kind_of(written)


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("a", "b", ("a", "b")),
        (None, "x" * 300, (None, "x" * 200 + "…")),
        ("x" * 250 + "a", "x" * 250 + "b", ("…" + "x" * 40 + "a", "…" + "x" * 40 + "b")),
        ("x" * 250, "x" * 250 + "b", ("…" + "x" * 40, "…" + "x" * 40 + "b")),
        ("a" + "x" * 250, "b", ("a" + "x" * 199 + "…", "b")),
    ],
)
def test_long_texts_are_shown_where_they_differ(old: str | None, new: str, shown: tuple[str | None, str]) -> None:
    assert around_the_difference(old, new) == shown
