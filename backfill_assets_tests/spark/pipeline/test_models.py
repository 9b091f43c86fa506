from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.core.errors import ModelError
from backfill_assets.dataset.loaded import Language, Model, ModelLayer
from backfill_assets.pipeline.run_models import run_model

FILE = Path("datasets/trips/fact.sql")


def sql(text: str) -> Model:
    return Model(ModelLayer.fact, FILE, Language.sql, text)


def python(text: str) -> Model:
    return Model(ModelLayer.fact, FILE.with_suffix(".py"), Language.python, text)


@pytest.fixture
def tables(spark: SparkSession) -> dict[str, DataFrame]:
    return {
        "staging": spark.createDataFrame([(1, "a"), (2, "b")], "id int, kind string"),
        "kinds": spark.createDataFrame([("a", "Alpha")], "kind string, label string"),
    }


def test_a_sql_model_sees_every_table_by_its_name(spark: SparkSession, tables: dict[str, DataFrame]) -> None:
    text = "-- a comment\nWITH k AS (SELECT * FROM kinds)\nSELECT id, label, '{x}' AS b FROM staging LEFT JOIN k USING (kind);\n"
    rows = run_model(spark, sql(text), tables).orderBy("id").collect()
    assert [tuple(r) for r in rows] == [(1, "Alpha", "{x}"), (2, None, "{x}")]


def test_a_python_model_gets_the_tables_that_its_parameters_name(
    spark: SparkSession, tables: dict[str, DataFrame]
) -> None:
    text = "def fact(kinds, *, staging):\n    return staging.join(kinds, 'kind').select('id', 'label')\n"
    assert [tuple(r) for r in run_model(spark, python(text), tables).collect()] == [(1, "Alpha")]


def test_a_result_keeps_its_meaning_when_another_model_runs_in_the_same_session(
    spark: SparkSession, tables: dict[str, DataFrame]
) -> None:
    first = run_model(spark, sql("SELECT id FROM staging"), tables)
    run_model(spark, sql("SELECT id FROM staging"), {"staging": tables["staging"].where("id > 99")}).collect()
    assert first.count() == 2


def test_an_unknown_parameter_is_refused_with_the_known_tables(
    spark: SparkSession, tables: dict[str, DataFrame]
) -> None:
    with pytest.raises(
        ModelError, match=r"fact\.py: fact\(\) has the parameter 'stagin'.*known tables: kinds, staging"
    ):
        run_model(spark, python("def fact(stagin):\n    return stagin\n"), tables)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT id,\n  nope\nFROM staging", r"fact\.sql: .*`nope` cannot be resolved.*line 2"),
        ("\n\nSELECT id,\n  nope\nFROM staging", r"fact\.sql: .*`nope` cannot be resolved.*line 4"),
        ("SELECT id\nFORM\nstaging", r"fact\.sql: Syntax error.*line 3"),
        ("SELECT * FROM elsewhere", r"fact\.sql: .*`elsewhere` cannot be found"),
        ("DROP TABLE staging", r"fact\.sql: Syntax error"),
        ("SELECT id, id FROM staging", r"returns the column 'id' twice"),
        ("SELECT id, NULL AS nothing FROM staging", r"the column 'nothing' has no type"),
    ],
)
def test_a_faulty_sql_model_is_refused_in_one_line_with_file_and_line(
    spark: SparkSession, tables: dict[str, DataFrame], text: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        run_model(spark, sql(text), tables)
    assert "\n" not in str(caught.value)
    assert "SQLSTATE" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def fact(staging):\n    return staging.select('nope')\n", r"fact\.py: .*`nope` cannot be resolved"),
        ("def fact(staging):\n    x = 1\n    return staging + x\n", r"fact\.py, line 3: TypeError"),
        ("def fact(staging)\n    return staging\n", r"fact\.py, line 1: SyntaxError"),
        ("def fact(staging):\n    return 7\n", r"fact\(\) returned int"),
        ("def other(staging):\n    return staging\n", r"has no function fact\(\)"),
    ],
)
def test_a_faulty_python_model_is_refused_with_file_and_line(
    spark: SparkSession, tables: dict[str, DataFrame], text: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        run_model(spark, python(text), tables)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("staging.select(F.udf(lambda x: x, 'int')('id').alias('id'))", "a Python UDF"),
        ("staging.where(F.pandas_udf(lambda s: s > 1, 'boolean')('id')).limit(1)", "a Python UDF"),
        ("staging.withColumn('x', F.struct(F.array(F.udf(lambda x: x, 'int')('id'))))", "a Python UDF"),
        ("staging.mapInPandas(lambda it: it, 'id int, kind string').select('id')", "mapInPandas"),
        ("staging.groupBy('id').applyInPandas(lambda d: d, 'id int, kind string')", "applyInPandas"),
    ],
)
def test_python_code_for_the_server_is_refused_with_an_explanation(
    spark: SparkSession, tables: dict[str, DataFrame], body: str, named: str
) -> None:
    text = f"from pyspark.sql import functions as F\ndef fact(staging):\n    return {body}\n"
    with pytest.raises(ModelError, match=rf"fact\.py: uses .*{named}.*pyspark\.sql\.functions"):
        run_model(spark, python(text), tables)
