"""Models see only the tables that they are given, and call nothing that gives other rows from equal tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.core.errors import DatasetError, ModelError
from backfill_assets.dataset.functions import Call, refusal
from backfill_assets.dataset.loaded import Language, Model, ModelLayer
from backfill_assets.pipeline.golden import golden_counts
from backfill_assets.pipeline.run_models import run_model
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.spark.pipeline.kit import D1, Kit

LOOKED_AT = Path(__file__).with_name("spark_functions.txt")


@pytest.fixture(scope="module")
def tables(module_kit: Kit) -> Iterator[dict[str, DataFrame]]:
    """Two tables for models, and also a table, a view and a function of the catalog that models are not given."""
    spark, path = module_kit.spark, module_kit.root / "elsewhere"
    loaded = module_kit.dataset()
    module_kit.put_shadow(loaded, module_kit.rows((D1, 1, "a", 10.0, None), (D1, 2, "b", 20.0, None)))
    write_deltalake(path, module_kit.rows((D1, 1, "a", 1.0, None)).toArrow())
    spark.sql("CREATE DATABASE IF NOT EXISTS elsewhere")
    spark.sql(f"CREATE OR REPLACE VIEW elsewhere.rows AS SELECT * FROM delta.`{path}`")
    spark.sql("CREATE OR REPLACE FUNCTION default.two_times(x INT) RETURNS INT RETURN 2 * x")
    yield {
        "staging": module_kit.shadow(loaded).where("id < 9"),
        "kinds": spark.read.csv(str(path_of(module_kit.layout.sources))),
    }
    spark.sql("DROP DATABASE elsewhere CASCADE")
    spark.sql("DROP FUNCTION default.two_times")


def run(kit: Kit, tables: dict[str, DataFrame], text: str) -> DataFrame:
    language = Language.python if text.startswith("def ") or "\ndef " in text else Language.sql
    text = text.replace("{path}", str(kit.root / "elsewhere")).replace(
        "{csv}", str(path_of(kit.layout.sources) / "kinds.csv")
    )
    return run_model(kit.spark, Model(ModelLayer.fact, Path("fact"), language, text), tables)


def python(body: str) -> str:
    lines = body.replace("\n", "\n    ")
    head = "from pyspark.sql import functions as F, Window\ndef fact(staging, kinds):\n    spark = staging.sparkSession"
    return f"{head}\n    {lines}\n"


ANOTHER_TABLE = {
    "SELECT * FROM delta.`{path}`": r"reads delta\.`/.*/elsewhere`, which it is not given; declare it in dataset\.yaml",
    "SELECT * FROM csv.`{csv}`": "reads files of the format csv",
    "SELECT * FROM elsewhere.rows": r"reads elsewhere\.rows",
    "SELECT id FROM staging WHERE id IN (SELECT id FROM elsewhere.rows)": r"reads elsewhere\.rows",
    "SELECT id, (SELECT max(id) FROM elsewhere.rows) AS most FROM staging": r"reads elsewhere\.rows",
    "WITH a AS (SELECT * FROM staging JOIN elsewhere.rows USING (id)) SELECT id FROM a": r"reads elsewhere\.rows",
    "SELECT * FROM identifier('elsewhere.' || 'rows')": "calls identifier, which gets a name only when the model runs",
    "SELECT two_times(id) AS id FROM staging": r"calls two_times, which is a function of the catalog",
    "SELECT spark_catalog.default.two_times(id) AS id FROM staging": r"calls spark_catalog\.default\.two_times",
    "SELECT * FROM table_changes('elsewhere.rows', 0)": "only supported for Delta tables",
    python("return spark.read.csv('{csv}')"): "reads /.*kinds.csv",
    python("return spark.read.format('delta').load('{path}')"): "reads /.*elsewhere",
    python("return staging.join(spark.table('elsewhere.rows').select('id'), 'id')"): r"reads elsewhere\.rows",
    python("return spark.sql('SELECT * FROM elsewhere.rows')"): r"reads elsewhere\.rows",
    python("return staging.where(F.expr('id IN (SELECT id FROM elsewhere.rows)'))"): r"reads elsewhere\.rows",
    python(
        "ids = [r.id for r in spark.table('elsewhere.rows').collect()]\nreturn staging.where(F.col('id').isin(ids))"
    ): (r"reads elsewhere\.rows"),
    python("ids = spark.sql('SELECT id FROM elsewhere.rows').toPandas()\nreturn staging"): r"reads elsewhere\.rows",
    python("names = spark.catalog.listTables('elsewhere')\nreturn staging"): r"uses spark\.catalog",
    python("return spark.sql('SHOW DATABASES')"): "begins with 'SHOW'",
    python("spark.sql('SET VARIABLE x = 1')\nreturn staging"): "begins with 'SET'",
    python("spark.table('elsewhere.rows').createOrReplaceTempView('t')\nreturn spark.sql('SELECT * FROM t')"): (
        "makes a temporary view; give a table to spark.sql by name"
    ),
    python("staging.write.format('noop').mode('append').save()\nreturn staging"): "executes write_operation",
    python("return staging.localCheckpoint()"): "makes a checkpoint",
    python("return spark.read.json(staging.select('kind'))"): "use from_json",
}
OTHER_ROWS = {
    "SELECT current_date AS d FROM staging": "calls current_date, which gives the time of the run",
    "SELECT Current_Date() AS d FROM staging": "calls current_date",
    "SELECT system.builtin.now() AS d FROM staging": "calls system.builtin.now",
    "SELECT `now` /* at once */ () AS d FROM staging": "calls now",
    "SELECT unix_timestamp() AS d FROM staging": "calls unix_timestamp",
    "SELECT id FROM staging WHERE day < 'today'": r"reads the clock by cast\(today as date\)",
    "SELECT DATE 'today' AS d FROM staging": "reads the clock by DATE 'today'",
    "SELECT to_timestamp('now') AS d FROM staging": "reads the clock by to_timestamp",
    "SELECT user FROM staging": "calls user, which depends on who runs the model and where",
    "SELECT rand(7) AS r FROM staging": "calls rand, which gives a different result each time",
    "SELECT id FROM staging -- a\r WHERE rand() > 0": "calls rand",
    "SELECT id FROM staging -- a \\\n'\nWHERE rand() > 0 -- '": "calls rand",
    "SELECT rand() AS r, /* /* */ ' */ id -- '\nFROM staging": "calls rand|comment inside a comment",
    "SELECT uuid() AS u FROM staging": "calls uuid",
    "SELECT input_file_name() AS f FROM staging": "calls input_file_name, which depends on how the rows lie",
    "SELECT monotonically_increasing_id() AS i FROM staging": "calls monotonically_increasing_id",
    "SELECT first(kind) AS k FROM staging": "calls first, which takes an arbitrary row; give it an order",
    "SELECT first(kind) OVER (PARTITION BY day) AS k FROM staging": "calls first",
    "SELECT first(kind) OVER w AS k FROM staging WINDOW w AS (PARTITION BY day)": "calls first",
    "SELECT collect_list(kind) AS k FROM staging": r"calls collect_list, which gives its values in any order; sort them",
    "SELECT sort_array(slice(collect_set(kind), 1, 1)) AS k FROM staging": "calls collect_set",
    "SELECT string_agg(kind, ',') AS k FROM staging": "calls string_agg, which joins its values in any order",
    "SELECT percentile_approx(id, 0.5) AS p FROM staging": "calls percentile_approx, which gives an estimate",
    "SELECT id FROM staging LIMIT 1": "takes some rows by a limit",
    "SELECT id FROM staging TABLESAMPLE (10 PERCENT)": "takes a sample",
    python("return staging.select(F.rand())"): "calls rand",
    python("return staging.where('id > rand()')"): "calls rand",
    python("return staging.select(F.call_function('uuid'))"): "calls uuid",
    python("return staging.select(F.col('current_date'))"): "calls current_date",
    python("return staging.select(F.lit('now').cast('timestamp').alias('t'))"): "reads the clock",
    python("return staging.groupBy('day').agg({'kind': 'first'})"): "calls first",
    python("return staging.select(F.first('kind').over(Window.partitionBy('day')))"): "calls first",
    python("return staging.select('_metadata.file_path')"): "reads _metadata",
    python("return staging.dropDuplicates(['day'])"): "keeps whichever row comes first",
    python("return staging.sample(0.5, seed=1)"): "uses sample",
    python("return staging.limit(1)"): "takes some rows by a limit",
    python("return staging.describe('id')"): "uses describe",
}
FINE = (
    "SELECT order_metadata FROM (SELECT id AS order_metadata FROM staging)",
    "SELECT id, 'rand()' AS a, \"now()\" AS b, r'uuid()' AS c, 'it''s first(x)' AS d FROM staging -- current_date()",
    "/* rand() */ SELECT id AS user, id AS now, id AS rand, id AS first FROM staging WHERE kind <> 'today'",
    "WITH s AS (SELECT id AS user, kind AS current_date, kind AS today FROM staging) SELECT user, current_date FROM s",
    "SELECT cast(today AS date), to_date(today), to_date(today, 'y') FROM (SELECT kind AS today FROM staging)",
    "WITH first(rand) AS (SELECT id FROM staging) SELECT rand FROM first",
    "SELECT uuid.now FROM (SELECT id FROM staging) AS uuid(now)",
    "SELECT unix_timestamp(day) AS d, date '2024-01-01' AS e, cast('2024-01-01' AS date) AS f FROM staging",
    "SELECT first(kind) IGNORE NULLS OVER (PARTITION BY day ORDER BY id) AS k FROM staging",
    "SELECT first(kind) OVER w AS k FROM staging WINDOW w AS (PARTITION BY day ORDER BY id)",
    "SELECT last_value(kind) OVER (w) AS k FROM staging WINDOW v AS (ORDER BY id), w AS (ORDER BY day)",
    "SELECT sort_array(collect_set(kind) FILTER (WHERE id > 1)) AS k, size(collect_list(id)) AS n FROM staging",
    "SELECT listagg(kind, ',') WITHIN GROUP (ORDER BY id) AS k FROM staging",
    "SELECT id FROM staging ORDER BY fee, id LIMIT 1",
    "SELECT id FROM staging |> WHERE id > 1 |> ORDER BY id |> LIMIT 2",
    "SELECT s.id FROM range(3) AS r JOIN staging AS s USING (id) LATERAL VIEW explode(array(1)) e AS now",
    "SELECT * FROM VALUES (1), (2) AS t(id)",
    "SELECT mode(kind) AS m, max_by(kind, id) AS b, row_number() OVER (ORDER BY max(id)) AS n FROM staging",
    python("return staging"),
    python("return spark.sql('SELECT * FROM {s} WHERE id IN (SELECT id FROM {s})', s=staging)"),
    python("return staging.join(spark.createDataFrame([(1, 'rand()')], 'id int, now string'), 'id')"),
    python(
        "a, b = staging.alias('a'), staging.alias('b')\nreturn a.join(b, F.col('a.id') == F.col('b.id')).select('a.id')"
    ),
    python("return staging.select(staging.id, staging.select(F.max('id')).scalar().alias('most'))"),
    python("return staging.where(F.col('kind').isin([r[0] for r in staging.select('kind').collect()]))"),
    python("return staging.groupBy('day').pivot('kind').agg(F.sum('fee')).select('day', 'a', 'b')"),
    python("return staging.distinct().dropDuplicates().orderBy('id').limit(1)"),
    python("return staging.select(F.first('kind').over(Window.partitionBy('day').orderBy('id')).alias('k'))"),
    python("return staging.groupBy('day').agg(F.sort_array(F.collect_set('kind')).alias('now'))"),
)


@pytest.mark.parametrize("text", ANOTHER_TABLE)
def test_a_model_reads_only_the_tables_that_it_is_given(
    module_kit: Kit, tables: dict[str, DataFrame], text: str
) -> None:
    with pytest.raises(ModelError, match=ANOTHER_TABLE[text]):
        run(module_kit, tables, text)


@pytest.mark.parametrize("text", OTHER_ROWS)
def test_a_model_calls_nothing_that_gives_other_rows_each_time(
    module_kit: Kit, tables: dict[str, DataFrame], text: str
) -> None:
    with pytest.raises(ModelError, match=f"^fact: .*({OTHER_ROWS[text]})"):
        run(module_kit, tables, text)


@pytest.mark.parametrize("text", FINE)
def test_text_that_only_looks_like_a_read_or_a_call_is_accepted(
    module_kit: Kit, tables: dict[str, DataFrame], text: str
) -> None:
    assert run(module_kit, tables, text).columns


def test_plans_with_many_columns_are_checked_completely(module_kit: Kit, tables: dict[str, DataFrame]) -> None:
    many = ", ".join(f"id AS c{i}" for i in range(200))
    with pytest.raises(ModelError, match="reads the clock"):
        run(module_kit, tables, f"SELECT {many}, cast('now' AS timestamp) AS t FROM staging")


def test_a_model_in_python_leaves_the_settings_of_a_session_as_they_are(
    module_kit: Kit, tables: dict[str, DataFrame]
) -> None:
    run(module_kit, tables, python("spark.conf.set('spark.sql.session.timeZone', 'Asia/Tokyo')\nreturn staging"))
    assert module_kit.spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert module_kit.spark.sql("SELECT * FROM elsewhere.rows").count() == 1


def test_a_query_of_a_golden_source_reads_what_is_declared(module_kit: Kit, tables: dict[str, DataFrame]) -> None:
    golden = {"sql": "SELECT day, id, fee FROM elsewhere.rows", "key": ["day", "id"], "columns": {"fee": {}}}
    loaded = module_kit.dataset(golden={"book": golden})
    with pytest.raises(DatasetError, match=r"golden\.book\.sql: reads elsewhere\.rows, which it is not given"):
        golden_counts(module_kit.frames(loaded, D1))


def test_every_function_of_spark_was_reviewed(spark: SparkSession) -> None:
    known = {row[0] for row in spark.sql("SHOW FUNCTIONS").collect()} - {"two_times", "spark_catalog.default.two_times"}
    looked_at = LOOKED_AT.read_text().split()
    # A function that is new in Spark: say in dataset/functions.py what it depends on, then add it to the list.
    assert sorted(known) == sorted(looked_at)
    plain = [name for name in looked_at if refusal(Call(name)) is None]
    assert (len(looked_at), len(looked_at) - len(plain)) == (576, 69)
