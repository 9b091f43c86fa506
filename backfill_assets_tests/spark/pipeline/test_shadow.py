from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812

from backfill_assets.core.errors import ModelError, SourceError
from backfill_assets.pipeline.build import Audit, build_shadow
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, FACT, NOW, Kit, Prepared, commits, values


@pytest.fixture(scope="module")
def built(module_kit: Kit) -> Prepared:
    """A shadow of the first and the third of three days that are staged, 50 rows each."""
    kit, loaded = module_kit, module_kit.dataset(fact="SELECT fee, amount, kind, id, day FROM staging")
    for day in (D1, D2, D3):
        kit.deliver(day, *(f"{day},{i},a,1,1" for i in range(50)))
    kit.stage(loaded, D1, D2, D3)
    kit.build(loaded, D1, D3)
    return Prepared(kit, loaded)


def test_a_shadow_has_the_declared_columns_then_the_audit_columns_and_only_its_days(built: Prepared) -> None:
    shadow = built.kit.shadow(built.loaded)
    assert shadow.columns == ["day", "id", "kind", "amount", "fee", "recalculated_at", "unit", "code_version"]
    assert values(shadow, "day", "id") == sorted(((day, i) for day in (D1, D3) for i in range(50)), key=str)
    version = built.loaded.code_version
    audit = f"recalculated_at = TIMESTAMP'2024-03-05 06:07:08.123456' AND unit = 'u_1' AND code_version = '{version}'"
    assert shadow.where(audit).count() == 100


def test_a_shadow_is_a_plain_delta_table_with_one_file_per_day_and_nullable_columns(built: Prepared) -> None:
    folder = built.kit.shadow_folder(built.loaded)
    table = DeltaTable(str(folder))
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
    assert table.metadata().partition_columns == ["day"]
    assert table.metadata().configuration["delta.enableDeletionVectors"] == "false"
    assert all(field.nullable for field in table.schema().fields)
    assert sorted(path.parent.name for path in folder.glob("day=*/*.parquet")) == [f"day={D1}", f"day={D3}"]
    log = "".join(path.read_text() for path in sorted((folder / "_delta_log").glob("*.json")))
    stats = [json.loads(json.loads(line)["add"]["stats"]) for line in log.splitlines() if line.startswith('{"add"')]
    assert {s["numRecords"] for s in stats} == {50}
    assert "recalculated_at" in stats[0]["minValues"]  # INT96 timestamps have no bounds


def test_building_again_replaces_the_days_and_another_batch_of_the_attempt_keeps_them(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,1,1")
    kit.deliver(D2, f"{D2},1,a,1,1")
    kit.build(loaded, D1)
    kit.deliver(D1, f"{D1},1,new,1,1", part="-again", hour=1)
    kit.build(loaded, D1)
    kit.build(loaded, D2)
    assert values(kit.shadow(loaded), "day", "kind") == [(D1, "new"), (D2, "a")]
    assert len(DeltaTable(str(kit.shadow_folder(loaded))).file_uris()) == 2
    assert commits(kit.shadow_folder(loaded)) == 3


def test_a_fact_sees_the_days_before_and_their_rows_stay_out_of_the_shadow(kit: Kit) -> None:
    fact = "SELECT day, id, kind, amount + LAG(amount) OVER (PARTITION BY id ORDER BY day) AS amount, fee FROM staging"
    loaded = kit.dataset(fact=fact, lookback_days=1)
    for i, day in enumerate((D1, D2, D3)):
        kit.deliver(day, f"{day},1,a,{10**i},1")
    kit.build(loaded, D3)
    assert values(kit.shadow(loaded), "day", "amount") == [(D3, 110.0)]


def test_a_python_model_builds_the_same_shadow(kit: Kit) -> None:
    staging = "def staging(raw):\n    return raw\n"
    fact = """def fact(staging, kinds):
    known = staging.join(kinds, "kind", "left_semi")
    return known.select("day", "id", "kind", "amount", "fee")
"""
    loaded = kit.dataset(staging=staging, fact=fact, suffix="py")
    kit.deliver(D1, f"{D1},1,a,1,1", f"{D1},2,z,1,1")
    kit.build(loaded, D1)
    assert values(kit.shadow(loaded), "id", "kind") == [(1, "a")]


FAULTY = [
    ("SELECT day, id, kind, amount FROM staging", r"fact\.sql: does not return fee \(decimal\(12,2\)\)"),
    ("SELECT *, 1 AS more FROM ({fact})", r"fact\.sql: returns more \(integer\), which is not declared"),
    (
        "SELECT day, CAST(id AS bigint) AS id, kind, amount, fee FROM staging",
        "column id: expected integer, found long",
    ),
    (
        "SELECT day, id, kind, CAST(amount AS float) AS amount, fee FROM staging",
        "amount: expected double, found float",
    ),
    (
        "SELECT day, id, kind, amount, fee + fee AS fee FROM staging",
        r"expected decimal\(12,2\), found decimal\(13,2\)",
    ),
    ("SELECT day, id, kind, 1 / (id - id) AS amount, fee FROM staging", r"fact\.sql: Division by zero"),
    (
        "SELECT day + 1 AS day, id, kind, amount, fee FROM staging",
        rf"fact\.sql: returned a row of the day {D2}, but was asked for {D1}",
    ),
    ("SELECT IF(id = 1, day, NULL) AS day, id, kind, amount, fee FROM staging", r"a row of the day null"),
]


def test_fact_models_with_wrong_columns_or_days_are_refused(kit: Kit) -> None:
    audit = Audit(NOW, "u_1", "c")
    kit.deliver(D1, f"{D1},1,a,1,1", f"{D1},2,a,1,1")
    kit.stage(kit.dataset(), D1)
    for fact, message in FAULTY:
        loaded = kit.dataset(fact=fact.replace("{fact}", FACT))
        with pytest.raises(ModelError, match=message):
            build_shadow(kit.frames(loaded, D1), audit)
    assert not list(kit.shadow_folder(loaded).glob("_delta_log/*.json"))


def test_a_shadow_without_staging_is_refused(kit: Kit) -> None:
    with pytest.raises(SourceError, match=r"nothing is staged.*materialize staging"):
        build_shadow(kit.frames(kit.dataset(), D1), Audit(NOW, "u_1", "c"))


EVERY_TYPE = {
    "day": "date", "id": "integer", "s": "string", "b": "boolean", "l": "long", "f": "float", "d": "double",
    "t": "timestamp", "n": "decimal(38,10)", "m": "decimal(5,2)",
}  # fmt: skip


def test_every_column_type_survives_and_has_the_same_fingerprint_in_a_copy(kit: Kit) -> None:
    columns = ", ".join(EVERY_TYPE)
    loaded = kit.dataset(
        staging=f"SELECT {columns}, _lineage FROM raw",
        fact=f"SELECT {columns} FROM staging",
        columns={name: {"type": kind} for name, kind in EVERY_TYPE.items()},
        source={"format": "jsonl", "path": "trips/{day}*", "columns": EVERY_TYPE},
        measures={name: {} for name in ("id", "l", "f", "d", "n", "m")},
        checks={},
    )
    moment = "1969-12-31T23:59:59.999999Z"
    rows: list[dict[str, object]] = [
        {
            "s": "ünïcode\n\u2028",
            "b": True,
            "l": 2**63 - 1,
            "f": 1.1,
            "d": 0.1,
            "t": moment,
            "n": "1" * 28 + ".5",
            "m": -9.99,
        },
        {"s": "", "b": False, "l": -(2**63), "f": "NaN", "d": "-INF", "t": "0001-01-01T00:00:00Z", "n": 0, "m": 999.99},
        {"d": -0.0, "f": -0.0},
    ]
    text = [json.dumps({"day": str(D1), "id": i, **row}, ensure_ascii=False) for i, row in enumerate(rows)]
    kit.put(f"trips/{D1}.jsonl", "\n".join(text))
    kit.build(loaded, D1)
    copy = kit.shadow(loaded).repartition(3, F.rand())
    copy.write.format("delta").mode("append").partitionBy("day").save(
        str(path_of(kit.layout.published_path(loaded.name)))
    )
    sides = kit.measure(loaded, D1)[D1]
    assert sides.shadow.rows == 3
    assert sides.shadow.fingerprint == sides.published.fingerprint
    assert str(sides.shadow.metrics) == str(sides.published.metrics) == str(sides.staging.metrics)
    assert sides.shadow.metrics["l"] == -1
    folder = str(kit.shadow_folder(loaded))
    frame = pl.read_delta(folder).sort("id")
    assert frame["t"].to_list()[0] == dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
    assert frame["n"].to_list()[0] == Decimal("1" * 28 + ".5")
    arrow = DeltaTable(folder).to_pyarrow_table().sort_by("id").to_pylist()
    spark_rows = [r.asDict() for r in kit.shadow(loaded).orderBy("id").collect()]
    for name in ("day", "s", "b", "l", "n", "m"):
        assert [r[name] for r in arrow] == [r[name] for r in spark_rows] == frame[name].to_list()
    assert arrow[1]["d"] == float("-inf")
    assert arrow[0]["recalculated_at"] == NOW
