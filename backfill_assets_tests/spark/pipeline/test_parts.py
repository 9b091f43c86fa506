"""Values with parts: read from JSON, hashed, ordered and compared; and further plain types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from backfill_assets.core.expected_change import parse_contract
from backfill_assets.core.types import kind_of
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.sources import ReferenceFile
from backfill_assets.pipeline.build import Audit, build_shadow
from backfill_assets.pipeline.compare import COLUMNS, PARTS, STATUS, Shape, differing
from backfill_assets.pipeline.differences import Question, row_differences
from backfill_assets.pipeline.fingerprints import fingerprint_columns, fingerprint_of
from backfill_assets.pipeline.measure import measure
from backfill_assets.pipeline.run_models import read_file
from backfill_assets.pipeline.stage import stage
from backfill_assets.pipeline.tables import source_rows
from backfill_assets.pipeline.types import declared_type, key_twice, parts_of, spark_type
from backfill_assets.pipeline.values import typed
from backfill_assets.storage.arrow_types import arrow_type
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets_tests.spark.pipeline.kit import D1, NOW, Kit

ITEMS = "array<struct<sku:string,price:decimal(9,2),qty:integer,coupon:string>>"
EVENTS = "array<struct<sku:string,price:decimal(9,2),tags:map<string,array<long>>>>"
READ: Mapping[str, Mapping[str | None, object]] = {
    "smallint": {"32767": 32767, "32768": None, "1.0": 1, "a": None},
    "binary": {"aGk=": b"hi", "": b"", "aGk": None, "a Gk=": None, "*": None},
    "timestamp_ntz": {
        "2024-02-28T01:02:03.000004": dt.datetime(2024, 2, 28, 1, 2, 3, 4),  # noqa: DTZ001
        "2024-02-28": dt.datetime(2024, 2, 28),  # noqa: DTZ001
        "2024-02-28T01:02:03Z": None,
        "2024-02-30T01:02:03": None,
    },
    "array<long>": {
        "[]": [],
        "[1, null, 9007199254740993]": [1, None, 9007199254740993],
        '["1"]': [1],
        "[1.5]": None,
        "[1] x": None,
        "[1],[2]": None,
        "[1]]": None,
        "[1": None,
        "5": None,
        '{"a": 1}': None,
        "[[1]]": None,
        "null": None,
        "": None,
        None: None,
    },
    "array<string>": {
        '["a", "", null, "null"]': ["a", "", None, "null"],
        '[1.10, true, {"b": 1.10}]': ["1.10", "true", '{"b":1.10}'],
    },
    "array<decimal(38,10)>": {
        "[1234567890123456789012345678.0123456789]": [Decimal("1234567890123456789012345678.0123456789")],
        "[0.00000000001]": None,
    },
    "struct<a:long,B:string>": {
        '{"a": 1, "B": "x"}': {"a": 1, "B": "x"},
        '{"A": 1, "b": "x", "c": [1, 2]}': {"a": 1, "B": "x"},
        '{"a": null, "b": null}': {"a": None, "B": None},
        '{"a": 1}': None,
        "{}": None,
        '{"a": 1, "A": 2, "b": "x"}': None,
        '{"a": "x", "b": "x"}': None,
        '{"a": 1, "b": ""}, {"a": 2, "b": ""}': None,
        "[1]": None,
        "1": None,
    },
    "map<string,long>": {
        '{"b": 1, "a": 2}': {"a": 2, "b": 1},
        "{}": {},
        '{"a": null}': {"a": None},
        '{"a": 1, "a": 1}': None,
        '{"a": "x"}': None,
        "[]": None,
    },
    "map<date,boolean>": {
        '{"2024-02-28": true}': {dt.date(2024, 2, 28): True},
        '{"x": true}': None,
        '{"2024-02-28": true, "2024-2-28": true}': None,
    },
    EVENTS: {
        '[{"sku": "s", "price": 1.10, "tags": {"t": [1]}}, null]': [
            {"sku": "s", "price": Decimal("1.10"), "tags": {"t": [1]}},
            None,
        ],
        '[{"sku": "s", "price": 1.101, "tags": {}}]': None,
        '[{"sku": "s", "price": 1.1, "tags": {"t": [1, "x"]}}]': None,
        '[{"sku": "s", "price": 1.1, "tags": {"t": {}}}]': None,
        '[{"sku": "s", "price": 1.1}]': None,
        '"[]"': None,
    },
}  # fmt: skip


@pytest.mark.parametrize("declared", READ)
def test_text_is_read_as_what_it_says_or_not_at_all(spark: SparkSession, declared: str) -> None:
    cases = READ[declared]
    rows = spark.createDataFrame([(n, text) for n, text in enumerate(cases)], "n int, text string")
    read = rows.select("n", F.expr(typed("text", spark_type(declared))).alias("value"))
    assert declared_type(read.schema["value"].dataType) == declared
    found = {row["n"]: parts_of(row["value"]) for row in read.collect()}
    assert {text: found[n] for n, text in enumerate(cases)} == cases


LEVELS = [("array<", "[", "]"), ("struct<a:", '{"a":', "}"), ("map<string,", '{"a":', "}")]
DEEPEST = [LEVELS[n % 3] for n in range(8)]


def test_the_deepest_type_is_read_hashed_and_compared(spark: SparkSession) -> None:
    declared = "".join(level[0] for level in DEEPEST) + "long" + ">" * len(DEEPEST)
    before, after = "".join(level[1] for level in DEEPEST), "".join(level[2] for level in reversed(DEEPEST))
    with pytest.raises(ValueError, match="nested more than 8 levels deep"):
        kind_of(f"array<{declared}>")
    day = dt.date(2024, 1, 1)
    texts = [(day, n, f"{before}{value}{after}") for n, value in enumerate(("1", "2", '"x"'))]
    rows = spark.createDataFrame(texts, "day date, id int, text string")
    read = rows.select("day", "id", F.expr(typed("text", spark_type(declared))).alias("value"))
    found = read.groupBy("id").agg(*fingerprint_columns({"value": declared}), F.first("value").alias("value")).collect()
    assert [row["id"] for row in found if row["value"] is None] == [2]
    assert len({fingerprint_of(row) for row in found}) == 3
    same, other = read.where("id < 2"), read.where("id < 2").withColumn("id", 1 - F.col("id"))
    shape = Shape("day", ("day", "id"), {"value": Decimal(0)})
    assert differing(same, same, shape, numbered=True).collect() == []
    assert len({path for row in differing(same, other, shape).collect() for path in row[PARTS]}) == 1


def test_optional_parts_may_be_missing(spark: SparkSession) -> None:
    kind = spark_type("array<struct<a:long,b:struct<c:long,d:long>>>")
    texts = ['[{"a": 1}]', '[{"a": 1, "b": {"c": 2}}]', '[{"a": 1, "b": {"d": 2}}]', '[{"b": null}]']
    rows = spark.createDataFrame(list(enumerate(texts)), "n int, text string")

    def read(*optional: str) -> list[object]:
        value = F.expr(typed("text", kind, "e", optional)).alias("value")
        return [parts_of(row["value"]) for row in rows.select("n", value).orderBy("n").collect()]

    without, found = [{"a": 1, "b": None}], [{"a": 1, "b": {"c": 2, "d": None}}]
    assert read("e.element.b.d") == [None, found, None, None]
    assert read("e.element.b") == [without, None, None, None]
    assert read("e.element.b", "e.element.b.d", "e.element.a") == [without, found, None, [{"a": None, "b": None}]]
    # A column that may be missing has all fields where it is there.
    assert read("e", "e.element", "e.element.bb", "d") == [None] * 4


APART: Mapping[str, Sequence[object]] = {
    "array<string>": [None, [], [None], [None, None], ["a"], [None, "a"], ["a", None], ["a", "b"], ["b", "a"], [""]],
    "array<array<string>>": [[["a"], ["b"]], [["a", "b"]], [[], ["a", "b"]], [["a", "b"], []], [None, ["a", "b"]]],
    "struct<a:long,b:long>": [None, (None, None), (1, None), (None, 1), (1, 1)],
    "map<string,long>": [None, {}, {"a": None}, {"a": 1}, {"b": 1}, {"a": 1, "b": None}, {"a": None, "b": 1}],
    "map<string,array<double>>": [{"a": [0.0]}, {"a": []}, {"a": [0.0, 0.0]}, {"a": [float("nan")]}, {"a": None}],
    "binary": [None, b"", b"a", b"\x00a"],
}


@pytest.mark.parametrize("declared", APART)
def test_other_values_have_other_fingerprints(spark: SparkSession, declared: str) -> None:
    values = APART[declared]
    prints = fingerprints(spark, declared, [[value] for value in values])
    assert len({*prints}) == len(values)
    # Also where only the place in a row tells them apart.
    assert all(one != other for one, other in combinations(prints, 2))


def test_equal_values_have_equal_fingerprints(spark: SparkSession) -> None:
    declared = "map<string,array<double>>"
    one, other = fingerprints(
        spark, declared, [[{"a": [0.0, float("nan")], "b": None}], [{"b": None, "a": [-0.0, float("nan")]}]]
    )
    assert one == other


def fingerprints(spark: SparkSession, declared: str, groups: Sequence[Sequence[object]]) -> list[str]:
    schema = T.StructType([T.StructField("n", T.IntegerType()), T.StructField("value", spark_type(declared))])
    rows = spark.createDataFrame([(n, value) for n, values in enumerate(groups) for value in values], schema)
    grouped = rows.groupBy("n").agg(*fingerprint_columns({"value": declared})).collect()
    found = {row["n"]: fingerprint_of(row) for row in grouped}
    return [found[n] for n in range(len(groups))]


ROW = "struct<sku:string,price:double,tags:map<string,long>>"
OLD = {"sku": "s", "price": 1.0, "tags": {"a": 1, "b": 2}}
CHANGES: Sequence[tuple[object, object, set[str]]] = [
    ([OLD], [OLD], set()),
    ([OLD], [{**OLD, "tags": {"b": 2, "a": 1}}], set()),
    ([OLD], [{**OLD, "price": 1.0 + 1e-12}], set()),
    ([OLD], [{**OLD, "price": 1.5}], {"price"}),
    ([OLD], [{**OLD, "sku": None, "price": None}], {"sku", "price"}),
    ([OLD], [{**OLD, "tags": {"a": 1, "c": 2}}], {"tags.key"}),
    ([OLD], [{**OLD, "tags": {"a": 1, "b": 3}}], {"tags.value"}),
    ([OLD], [{**OLD, "tags": {"a": 1}}], {"tags.key", "tags.value"}),
    ([OLD], [{**OLD, "tags": None}], {"tags.key", "tags.value"}),
    ([{**OLD, "tags": {}}], [{**OLD, "tags": None}], {"tags.key", "tags.value"}),
    ([OLD], [OLD, OLD], {"sku", "price", "tags.key", "tags.value"}),
    ([OLD], [None], {"sku", "price", "tags.key", "tags.value"}),
    ([{**OLD, "price": float("nan")}], [{**OLD, "price": float("nan")}], set()),
    ([], None, {"sku", "price", "tags.key", "tags.value"}),
    (None, None, set()),
]


@pytest.mark.parametrize("numbered", [False, True])
def test_rows_differ_in_the_leaves_that_differ(spark: SparkSession, *, numbered: bool) -> None:
    schema = T.StructType(
        [
            T.StructField("day", T.DateType()),
            T.StructField("id", T.IntegerType()),
            T.StructField("items", spark_type(f"array<{ROW}>")),
            T.StructField("raw", T.BinaryType()),
        ]
    )
    day = dt.date(2024, 1, 1)
    old, new = (
        spark.createDataFrame([(day, n, pair[side], b"x") for n, pair in enumerate(CHANGES)], schema) for side in (0, 1)
    )
    shape = Shape("day", ("day", "id"), {"items": Decimal(0), "raw": Decimal(0)})
    found = {row["id"]: row for row in differing(old, new, shape, numbered=numbered).collect()}
    for n, (_, _, paths) in enumerate(CHANGES):
        if not paths:
            assert n not in found, CHANGES[n]
            continue
        assert (found[n][STATUS], found[n][COLUMNS]) == ("changed", ["items"])
        assert set(found[n][PARTS]) == {f"items.element.{path}" for path in paths}, CHANGES[n]


ORDERED = {"day": "date", "id": "long", "items": ITEMS, "props": "map<string,string>", "at": "timestamp_ntz"}
ORDER_FACT = """
SELECT day, id, items, props, at, CAST(
  aggregate(items, CAST(0 AS decimal(38,2)), (total, one) -> CAST(total + one.price * one.qty AS decimal(38,2)))
  AS decimal(38,2)) AS total
FROM staging
"""


def orders(kit: Kit, fact: str = ORDER_FACT, **source: object) -> LoadedDataset:
    """A dataset of orders with their items, and the sum of each."""
    columns = {name: {"type": kind} for name, kind in {**ORDERED, "total": "decimal(38,2)"}.items()}
    return kit.dataset(
        "SELECT day, id, items, props, at, _lineage FROM raw",
        fact,
        name="orders",
        columns=columns,
        source={"columns": ORDERED, **source},
        references={},
        measures={"total": {}},
        checks={},
    )


def order(number: int, *items: tuple[str, str, int], **props: str) -> str:
    found = ", ".join(f'{{"sku": "{sku}", "price": {price}, "qty": {qty}}}' for sku, price, qty in items)
    said = ", ".join(f'"{name}": "{value}"' for name, value in props.items())
    return f'{{"day": "{D1}", "id": {number}, "items": [{found}], "props": {{{said}}}, "at": "2024-02-28 23:59:59.000001"}}\n'


def test_orders_with_items_are_built_compared_and_shown_part_by_part(kit: Kit) -> None:
    loaded = orders(kit, format="jsonl", path="orders/{day}.jsonl", optional=["items.element.coupon"])
    kit.put(
        f"orders/{D1}.jsonl",
        order(1, ("s", "1.10", 2), ("t", "0.05", 1), source="web", campaign="a")
        + order(2, ("s", "1.10", 1))
        + order(3)
        + order(4, ("s", "1.1", 1), source="app")
        + order(5, ("s", "1.111", 1)).replace('"day"', '"Day"'),
    )
    kit.build(loaded, D1)
    assert [d.corrupt_rows for d in kit.in_force(loaded)] == [1]
    built = kit.shadow(loaded)
    # Delta says of no part that it is never null, whatever a model says.
    assert built.schema["items"].dataType == spark_type(ITEMS)
    assert {row["id"]: row["total"] for row in built.collect()} == {
        1: Decimal("2.25"), 2: Decimal("1.10"), 3: Decimal("0.00"), 4: Decimal("1.10"),
    }  # fmt: skip
    # What is published: other prices in the first order, entries of a map in another order, another item in the fourth.
    other = built.withColumns(
        {
            "items": F.expr(
                "CASE id WHEN 1 THEN transform(items, one -> named_struct('sku', one.sku, 'price', CAST(2 AS decimal(9,2)), "
                "'qty', one.qty, 'coupon', one.coupon)) WHEN 4 THEN array(items[0], items[0]) ELSE items END"
            ),
            "props": F.expr("map_from_entries(reverse(map_entries(props)))"),
        }
    )
    kit.publish(loaded, other)
    measured = kit.measure(loaded, D1)
    assert measured[D1].published.rows == measured[D1].shadow.rows == 4
    contract = parse_contract([], [], columns=loaded.dataset.promisable)
    with row_differences(Question(kit.frames(loaded, D1), 1, measured, contract)) as found:
        rows = found.counts[D1]
        assert (rows.changed, rows.unchanged, dict(rows.columns)) == (2, 2, {"items": 2})
        assert dict(rows.parts) == {
            "items.element.sku": 1, "items.element.price": 2, "items.element.qty": 1, "items.element.coupon": 1,
        }  # fmt: skip
        samples = found.sample({("change_columns", "items"): [D1]})
    assert [(s["id"], s["column"], s["old"], s["new"]) for s in samples["change_columns", D1]] == [
        (1, "items.element.price", "[2.00, 2.00]", "[1.10, 0.05]"),
        (4, "items.element.coupon", "[null, null]", "[null]"),
        (4, "items.element.price", "[1.10, 1.10]", "[1.10]"),
        (4, "items.element.qty", "[1, 1]", "[1]"),
        (4, "items.element.sku", "[s, s]", "[s]"),
    ]
    # Built again from the same rows, it is the same.
    kit.publish(loaded, built.withColumn("props", F.expr("map_from_entries(reverse(map_entries(props)))")))
    same = kit.measure(loaded, D1)[D1]
    assert same.published.fingerprint == same.shadow.fingerprint


def test_parquet_with_parts_lands_as_it_is(kit: Kit) -> None:
    loaded = orders(kit, format="parquet", path="orders/{day}.parquet")
    rows = [
        {
            "day": D1, "id": 1, "items": [{"sku": "s", "price": Decimal("1.10"), "qty": 2, "coupon": None}, None],
            "props": [("b", None), ("a", "x")], "at": dt.datetime(2024, 2, 28, 1, 2, 3, 4),  # noqa: DTZ001
        },
        {"day": D1, "id": 2, "items": None, "props": None, "at": None},
        # Readers would not agree on what the entry is.
        {"day": D1, "id": 3, "items": [], "props": [("a", "1"), ("a", "2")], "at": None},
    ]  # fmt: skip
    file = path_of(kit.layout.sources) / f"orders/{D1}.parquet"
    file.parent.mkdir()
    schema = pa.schema([(name, arrow_type(kind_of(kind))) for name, kind in ORDERED.items()])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)
    kit.build(loaded, D1)
    assert [(d.rows, d.corrupt_rows) for d in kit.in_force(loaded)] == [(3, 1)]
    found = {row["id"]: {name: parts_of(row[name]) for name in ORDERED} for row in kit.shadow(loaded).collect()}
    assert found == {
        1: {**rows[0], "props": {"a": "x", "b": None}},
        2: rows[1],
    }
    prints = kit.measure(loaded, D1)[D1].shadow.fingerprint
    fact = ORDER_FACT.replace("items, props", "array_compact(items) AS items, props")
    other = orders(kit, fact, format="parquet", path="orders/{day}.parquet")
    kit.build(other, D1, folder="_shadow/u_1/2")
    assert kit.measure(other, D1, folder="_shadow/u_1/2")[D1].shadow.fingerprint != prints


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        ("map<string,long>", [[("a", 1), ("b", 1)], [], None], [[("a", 1), ("b", 1), ("a", 1)]]),
        (
            "array<struct<a:map<string,map<date,long>>>>",
            [[{"a": [("x", [(D1, 1)]), ("y", [(D1, 1)])]}, None, {"a": None}]],
            [[{"a": []}, {"a": [("x", None), ("y", [(D1, 1), (D1, 2)])]}], [{"a": [("x", []), ("x", [])]}]],
        ),
        (
            "struct<a:array<long>,b:array<map<string,long>>>",
            [{"a": None, "b": [[]]}],
            [{"a": [], "b": [[("", 1)] * 2]}],
        ),
    ],
)
def test_a_key_twice_is_found_wherever_the_map_is(
    spark: SparkSession, tmp_path: Path, declared: str, good: list[object], bad: list[object]
) -> None:
    values = pa.array([*good, *bad], arrow_type(kind_of(declared)))
    pq.write_table(pa.table({"n": range(len(values)), "value": values}), tmp_path / "a.parquet")
    rows = spark.read.parquet(str(tmp_path / "a.parquet"))
    found = rows.where(key_twice("value", spark_type(declared))).select("n").collect()
    assert sorted(row["n"] for row in found) == list(range(len(good), len(values)))
    assert key_twice("value", spark_type("array<struct<a:long>>")) == ""


def test_a_reference_in_which_a_map_has_a_key_twice_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    kind = kind_of("map<string,long>")
    pq.write_table(pa.table({"a": pa.array([[("x", 1), ("x", 2)]], arrow_type(kind))}), tmp_path / "a.parquet")
    said = {"format": "parquet", "path": "a.parquet", "columns": {"a": str(kind)}}
    rows = read_file(spark, ReferenceFile.model_validate(said), OnDisk(tmp_path / "a.parquet"), "references.a")
    with pytest.raises(
        PySparkException, match=r"references.a: a row cannot be read .*\{\"a\":\[\{\"key\":\"x\",\"value\":1\}"
    ):
        rows.count()


def test_a_withdrawn_delivery_without_optional_fields_explains_the_rows_that_go(kit: Kit) -> None:
    loaded = orders(kit, format="jsonl", path="orders/{day}*.jsonl", optional=["items.element.coupon"])
    kit.put(f"orders/{D1}.jsonl", order(1, ("s", "1.10", 2)))
    kit.put(f"orders/{D1}-more.jsonl", order(2, ("s", "1.10", 2)))
    kit.build(loaded, D1)
    kit.publish(loaded, kit.shadow(loaded))
    gone, kept = sorted(kit.in_force(loaded), key=lambda d: d.path)
    audit = Audit(NOW, "u_1", loaded.code_version)
    stage(kit.spark, loaded, kit.layout, [D1], [kept])
    frames = kit.frames(loaded, D1, folder="_shadow/u_1/2")
    build_shadow(frames, audit)
    question = Question(frames, 2, measure(frames), parse_contract([], []), older={D1: [gone]})
    with row_differences(question) as found:
        assert (found.counts[D1].removed, found.counts[D1].explained_removed) == (1, 1)


def test_a_table_that_says_more_of_its_parts_is_read_as_declared(kit: Kit) -> None:
    place = path_of(kit.layout.sources) / "shop"
    kit.spark.sql(
        f"CREATE TABLE delta.`{place}` (day DATE, id BIGINT, items ARRAY<STRUCT<sku: STRING COMMENT 'article', "
        "price: DECIMAL(9,2), qty: INT, coupon: STRING>>, props MAP<STRING,STRING>, at TIMESTAMP_NTZ) USING delta "
        "PARTITIONED BY (day)"
    )
    kit.spark.sql(
        f"INSERT INTO delta.`{place}` VALUES (DATE'{D1}', 1, array(named_struct('sku', 's', 'price', 1.10BD, 'qty', 2, 'coupon', "
        "CAST(NULL AS string))), map('a', 'x'), TIMESTAMP_NTZ'2024-02-28 01:02:03')"
    )
    loaded = orders(kit, table="shop", day="day")
    rows = source_rows(kit.spark, loaded, kit.layout, [D1], 1, "_day")
    # Staging has a folder for each schema, comments included: it looks for the one that is declared.
    assert rows.schema["items"].dataType == spark_type(ITEMS)
    (row,) = rows.collect()
    assert parts_of(row["items"]) == [{"sku": "s", "price": Decimal("1.10"), "qty": 2, "coupon": None}]
    assert row["props"] == {"a": "x"}


def test_a_retyped_column_is_measured_and_left_to_the_check_of_the_schema(kit: Kit) -> None:
    loaded = orders(kit, format="jsonl", path="orders/{day}.jsonl", optional=["items.element.coupon"])
    kit.put(f"orders/{D1}.jsonl", order(1, ("s", "1.10", 2)))
    kit.build(loaded, D1)
    items = F.expr("transform(items, one -> IF(one.sku = '', NULL, named_struct('sku', one.sku)))")
    old = kit.shadow(loaded).withColumn("items", items)
    kit.publish(loaded, old.withColumn("props", F.expr("IF(id = 0, NULL, 'text')")))
    sides = kit.measure(loaded, D1)[D1]
    assert sides.published.rows == 1
    assert sides.published.fingerprint != sides.shadow.fingerprint


def test_a_column_of_local_times_comes_later(kit: Kit) -> None:
    columns = {"day": "date", "id": "long"}
    source = {"format": "parquet", "path": "trips/{day}.parquet"}
    file = path_of(kit.layout.sources) / f"trips/{D1}.parquet"
    file.parent.mkdir(parents=True)
    table = pa.table({"day": [D1], "id": pa.array([1], pa.int64())})
    pq.write_table(table, file)
    first = kit.dataset("SELECT day, id, _lineage FROM raw", source={**source, "columns": columns})
    kit.land(first, D1)
    moments = pa.array([dt.datetime(2024, 2, 28, 1, 2)], pa.timestamp("us"))  # noqa: DTZ001
    pq.write_table(table.append_column("at", moments), file)
    later = {**source, "columns": {**columns, "at": "timestamp_ntz"}, "optional": ["at"]}
    second = kit.dataset("SELECT day, id, at, _lineage FROM raw", source=later)
    kit.land(second, D1)
    raw = kit.table(path_of(kit.layout.raw_path("trips")))
    assert {row["at"] for row in raw.collect()} == {None, dt.datetime(2024, 2, 28, 1, 2)}  # noqa: DTZ001
