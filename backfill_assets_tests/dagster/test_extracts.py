"""Days of a database through a launch of Dagster: extracted, landed, checked and released; and a launch that could not extract."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from sqlalchemy import Engine, text

from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.dagster.shop import D1, D2, Shop, refuses
from backfill_assets_tests.harness import postgres
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.unit.extracts.kit import run, shop_database, url_of

SOURCE = {
    "format": "parquet",
    "path": "extracts/{day}.parquet",
    "columns": {"id": "integer"},
    "extract": {
        "database": "env:ORDERS_URL",
        "query": "SELECT id::int AS id FROM orders WHERE at >= :day AND at < :day + 1 ORDER BY id",
    },
}


@pytest.fixture
def database() -> Iterator[Engine]:
    with postgres.cluster() as url, shop_database(url) as engine:
        yield engine


def test_two_days_of_a_database_are_released_by_one_launch(
    database: Engine, tmp_path: Path, spark_server: SparkServer
) -> None:
    shop = Shop(tmp_path, spark_server.folder.root.parent)
    shop.describe("web_orders", SOURCE)
    run(database, f"INSERT INTO orders VALUES (1, '{D1} 00:00Z', 5), (2, '{D1} 23:59:59Z', 5), (3, '{D2} 00:00Z', 5)")
    refuses(
        shop.launch("web_orders", D1, D2),
        f"web_orders {D1}: source.extract: database: the environment variable ORDERS_URL",
    )
    with shop.observed(ORDERS_URL=url_of(database)):
        launched = shop.launch("web_orders", D1, D2)
    assert launched.returncode == 0, launched.stderr[-3000:]
    assert shop.sees("web_orders") == [[D1, "1"], [D1, "2"], [D2, "3"]]
    assert "secret" not in launched.stdout + launched.stderr


NAME = "web_sales"
ROWS = 50_000
LAST = dt.datetime.fromtimestamp(time.time(), dt.UTC).date() - dt.timedelta(days=1)
FIRST, HALF, NEWEST = (LAST - dt.timedelta(days=days) for days in (40, 20, 1))
SALES = {
    **SOURCE,
    "columns": {"id": "integer", "amount": "decimal(12,2)"},
    "extract": {
        "database": "env:ORDERS_URL",
        # The test can stop the extract of a day behind its first rows; OFFSET keeps them sorted before that.
        "query": f"""
            SELECT id, amount FROM (
                SELECT id::int AS id, amount FROM orders WHERE at >= :day AND at < :day + 1 ORDER BY id OFFSET 0
            ) AS rows WHERE id % {ROWS} <> 30000 OR pg_advisory_xact_lock_shared(:day - DATE '{FIRST}') IS NOT NULL
        """,
        "max_parallel": 2,
        "rate_limit": "5/s",
        "again": "3d",
    },
}
FILL = f"""
    INSERT INTO orders SELECT n, '{FIRST} 00:00Z'::timestamptz + n * interval '{86400 / ROWS} s', (n % 977) / 4.0
    FROM generate_series(0, 41 * {ROWS} - 1) AS n
"""
AT_WORK = """
    SELECT pid FROM pg_stat_activity
    WHERE application_name = 'extract' AND state IN ('active', 'idle in transaction')
"""


@contextmanager
def stopped(database: Engine, day: dt.date) -> Iterator[None]:
    """The time in which no extract of a day comes to its end."""
    key = {"key": (day - FIRST).days}
    with database.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), key)
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)


@contextmanager
def counted(database: Engine) -> Iterator[list[int]]:
    """How many extracts are at work in the database, looked up all the time."""
    found, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            found.append(len(run(database, AT_WORK)))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()


@contextmanager
def killed_at_the_end(shop: Shop, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """The time until a command that was begun is ended by SIGKILL."""
    with (shop.root / "killed.log").open("wb") as out:
        begun = subprocess.Popen(
            command, cwd=shop.root, env=shop.environ, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield begun
    finally:
        os.killpg(begun.pid, signal.SIGKILL)
        begun.wait()


def published(shop: Shop) -> Mapping[object, tuple[object, ...]]:
    """Number of rows and sum of the amounts of each day that readers see; empty before the first release."""
    path = f"{shop.environ['BACKFILL_ASSETS_WAREHOUSE']}/published/{NAME}"
    if not DeltaTable.is_deltatable(path):
        return {}
    table = DeltaTable(path).to_pyarrow_table(columns=["day", "amount"]).group_by("day")
    sums = table.aggregate([("amount", "count"), ("amount", "sum")]).to_pylist()
    return {row["day"]: (row["amount_count"], row["amount_sum"]) for row in sums}


def in_database(database: Engine) -> Mapping[object, tuple[object, ...]]:
    rows = run(database, "SELECT (at AT TIME ZONE 'UTC')::date, count(*), sum(amount) FROM orders GROUP BY 1")
    return {day: (count, total) for day, count, total in rows}


def unfinished(shop: Shop) -> list[Path]:
    return [*(shop.root / "sources").rglob(".*.part")]


def live_locks(shop: Shop) -> list[tuple[int]]:
    """How often live runs have made others wait."""
    with closing(sqlite3.connect(shop.root / ".state" / "ledger.db")) as connection:
        return connection.execute("SELECT token FROM locks WHERE name = 'extract:ORDERS_URL:live:0'").fetchall()


def test_two_million_rows_are_backfilled_beside_a_live_day_and_a_killed_worker_costs_nothing(
    database: Engine, tmp_path: Path, spark_server: SparkServer
) -> None:
    run(database, FILL)
    run(database, "CREATE INDEX orders_at ON orders (at)")
    shop = Shop(tmp_path, spark_server.folder.root.parent)
    amount = {"amount": {"type": "decimal(12,2)"}}
    shop.describe(NAME, SALES, start=str(FIRST), end=None, columns=amount)
    backfill = (
        "dagster", "asset", "materialize", "-f", "definitions.py", "--select", f"group:{NAME}",
        "--partition-range", f"{FIRST}...{NEWEST}",
    )  # fmt: skip
    with shop.observed(ORDERS_URL=f"{url_of(database)}&application_name=extract"), counted(database) as at_work:
        with stopped(database, HALF), killed_at_the_end(shop, *backfill) as killed:
            wait_for(
                lambda: any(path.name.startswith(f".{HALF}") for path in unfinished(shop)), "half of the days", 180
            )
            assert live_locks(shop) == []
            tags = json.dumps({"dagster/partition": str(LAST), "backfill_assets/live": "true"})
            live = shop.run("dagster", "job", "execute", "-f", "definitions.py", "-j", f"live_{NAME}", "--tags", tags)
            assert live.returncode == 0, live.stderr[-3000:]
            assert published(shop).keys() == {LAST}
            assert (killed.poll(), live_locks(shop)) == (None, [(1,)])
        assert (len(unfinished(shop)), published(shop).keys()) == (1, {LAST})
        repeated = shop.run(*backfill)
        assert repeated.returncode == 0, repeated.stderr[-3000:]
        assert published(shop) == in_database(database)

        run(database, f"UPDATE orders SET amount = amount + 1 WHERE at >= '{NEWEST} 00:00Z' AND at < '{LAST} 00:00Z'")
        again = shop.launch(NAME, str(NEWEST))
        assert again.returncode == 0, again.stderr[-3000:]
    found = published(shop)
    assert found == in_database(database)
    assert (len(found), {count for count, _ in found.values()}) == (41, {ROWS})
    assert (max(at_work), unfinished(shop)) == (2, [])
