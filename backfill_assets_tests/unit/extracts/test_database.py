"""Extracts of a real Postgres: exact rows of one moment, limits over all processes, and nothing half-written or secret."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from backfill_assets.application import Application
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import BackfillError, SourceError
from backfill_assets.dataset.reading import reading_of
from backfill_assets.extracts.take import Extracts
from backfill_assets.pipeline.formats import require_columns
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.sources import discover
from backfill_assets_tests.harness import postgres
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.extracts.kit import (
    D1,
    D2,
    D3,
    QUERY,
    URL,
    database,
    file_of,
    names_in,
    orders,
    rows_in,
    run,
    take,
    url_of,
)
from backfill_assets_tests.unit.hostile.strategies import often
from backfill_assets_tests.unit.hostile.watch import observed as observed_text
from backfill_assets_tests.unit.hostile.watch import showable

pytestmark = pytest.mark.slow

TAKES = """
import datetime as dt, sys
from backfill_assets_tests.unit.extracts.kit import Extracts, Application, Settings
environ = {"BACKFILL_ASSETS_STATE": sys.argv[1], "BACKFILL_ASSETS_DATASETS": sys.argv[1] + "/datasets"}
application = Application(Settings.from_env(environ))
Extracts(application.warehouse).take("orders", [dt.date.fromisoformat(day) for day in sys.argv[2:]])
"""


def taking(root: Path, *days: dt.date) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TAKES, str(root), *map(str, days)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_hundreds_of_thousands_of_rows_arrive_exactly_on_their_days(shop: Engine, tmp_path: Path) -> None:
    run(
        shop,
        "INSERT INTO orders SELECT n, '2024-03-01 00:00 Europe/Berlin'::timestamptz + n * interval '1 second', n / 7.0 "
        "FROM generate_series(0, 3 * 86400 - 1) AS n ORDER BY random()",
    )
    application = orders(tmp_path, database())
    take(application, D1, D2, D3)
    for number, day in enumerate((D1, D2, D3)):
        table = pq.read_table(file_of(application, day))
        ids = list(range(number * 86400, (number + 1) * 86400))
        assert table.column("id").to_pylist() == ids
        total = run(shop, f"SELECT sum(amount) FROM orders WHERE id BETWEEN {ids[0]} AND {ids[-1]}")
        assert sum(table.column("amount").to_pylist(), Decimal(0)) == total[0][0]
        first = table.column("at")[0].as_py()
        assert first == dt.datetime.combine(day, dt.time(), application.dataset("orders").zone)
    assert names_in(application) == [f"{day}.parquet" for day in (D1, D2, D3)]


def test_a_file_stays_while_its_rows_do_and_is_replaced_when_one_changes(shop: Engine, tmp_path: Path) -> None:
    run(shop, "INSERT INTO orders VALUES (1, '2024-03-01 12:00Z', 5.00), (2, NULL, NULL)")
    application = orders(tmp_path, database())
    take(application, D1, D2)
    before = [OnDisk(file_of(application, day)).stamp() for day in (D1, D2)]
    assert (rows_in(application, D1)[0]["amount"], rows_in(application, D2)) == (Decimal("5.00"), [])
    take(application, D1, D2)
    assert [OnDisk(file_of(application, day)).stamp() for day in (D1, D2)] == before
    run(shop, "UPDATE orders SET amount = 6 WHERE id = 1")
    take(application, D1, D2)
    assert rows_in(application, D1)[0]["amount"] == Decimal("6.00")
    assert OnDisk(file_of(application, D2)).stamp() == before[1]


def test_a_query_can_change_nothing(shop: Engine, tmp_path: Path) -> None:
    run(shop, "CREATE FUNCTION sneak() RETURNS bigint LANGUAGE sql AS 'INSERT INTO orders VALUES (9) RETURNING id'")
    application = orders(tmp_path, database("SELECT sneak() AS id, (:day)::timestamptz AS at, 1.0 AS amount"))
    with pytest.raises(SourceError, match="read-only transaction"):
        take(application, D1)
    assert run(shop, "SELECT * FROM orders") == []
    assert names_in(application) == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT id, at FROM orders WHERE at > :day", "it is missing amount"),
        (QUERY.replace("amount", "amount, 1 AS more", 1), "it has undeclared columns, more"),
        (QUERY.replace("amount", "amount, id", 1), "it names twice id"),
        (QUERY.replace("id,", "id::text,", 1), "row 1, column id: '1' is no long .*cast it in the extract"),
        (QUERY.replace("at,", "at::timestamp AS at,", 1), "it has no time zone: say which"),
        (QUERY.replace("at,", "'-infinity'::timestamptz AS at,", 1), "-infinity is no day or time"),
        (QUERY.replace("amount", "amount + 0.001 AS amount", 1), "it has more digits"),
        (QUERY.replace("amount", "'NaN'::numeric AS amount", 1), "it is not finite"),
        (QUERY.replace("amount", "amount / 0 AS amount", 1), "division by zero"),
        (QUERY.replace("orders", "no_such_table"), 'relation "no_such_table" does not exist'),
        ("SELECT pg_sleep(60), :day", "canceling statement due to statement timeout"),
    ],
)
def test_a_query_whose_rows_do_not_fit_fails_with_dataset_day_key_and_reason(
    shop: Engine, tmp_path: Path, query: str, message: str
) -> None:
    run(shop, "INSERT INTO orders VALUES (1, '2024-03-01 12:00Z', 5.00)")
    application = orders(tmp_path, database(query, timeout="1s"))
    with pytest.raises(SourceError, match=f"(?s)orders 2024-03-01: source.extract: .*{message}"):
        take(application, D1)
    assert names_in(application) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "the environment variable ORDERS_URL is not set where this runs"),
        ("postgresql://bob:s3cr@t@db/shop", r"the value of ORDERS_URL \(not shown: it may hold a password\) is no URL"),
        ("sqlite:////tmp/shop.db", "is no URL of a Postgres"),
        ("mysql://bob:s3cret@db/shop", "is no URL of a Postgres"),
        ("postgresql://bob:s3cret@127.0.0.1:1/shop", "Connection refused"),
        ("postgresql://bob:s3cret@/nowhere?host={socket}", 'role "bob" does not exist'),
        ("postgresql://ledger:s3cret@/s3cret?host={socket}", "does not exist"),
        ("postgresql://ledger:s3cret@/shop?host={socket}&no_such_option=s3cret", "no_such_option"),
    ],
)
def test_a_database_that_cannot_be_reached_is_reported_without_a_password(
    shop: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, message: str
) -> None:
    monkeypatch.setenv(URL, url.format(socket=shop.url.query["host"]))
    application = orders(tmp_path, database())
    with pytest.raises(SourceError, match=message) as caught:
        take(application, D1)
    assert "s3cr" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert names_in(application) == []


def test_limits_hold_over_processes_and_datasets(shop: Engine, tmp_path: Path) -> None:
    """Four processes at one database that allows two; a second dataset with the same variable says so, the first does not."""
    slow = "SELECT 1::bigint AS id, (:day)::timestamptz AS at, 1.0 AS amount FROM pg_sleep(1.5)"
    application = orders(tmp_path, database(slow, max_parallel=9))
    orders(tmp_path, database(slow, max_parallel=2, rate_limit="2/s"), name="others")
    application.ledger.close()
    working = [taking(tmp_path, day) for day in (D1, D2, D3, D3 + dt.timedelta(1))]
    connected = "SELECT pid FROM pg_stat_activity WHERE datname = 'shop' AND pid <> pg_backend_pid()"
    most = 0
    while any(process.poll() is None for process in working):
        most = max(most, len(run(shop, connected)))
    assert [process.wait() for process in working] == [0] * 4, [process.communicate()[0] for process in working]
    assert most == 2
    assert len(names_in(application)) == 4


@pytest.mark.faults
def test_an_extract_that_is_killed_leaves_nothing_that_counts_and_the_next_one_is_exact(
    shop: Engine, tmp_path: Path, observed: Observed
) -> None:
    observed.injected("kill -9 of a worker that has written half of the file of an extract")
    run(shop, "INSERT INTO orders SELECT n, '2024-03-01 12:00Z', n FROM generate_series(1, 50000) AS n")
    # The place of the dead process is free only after its lease.
    application = orders(tmp_path, database(max_parallel=2))
    waits = QUERY.replace("ORDER BY id", "AND (id < 45000 OR pg_sleep(60) IS NOT NULL)")
    orders(tmp_path, database(waits, max_parallel=2))
    process = taking(tmp_path, D1)
    wait_for(lambda: half_written(application), "half a file to be written", 60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = names_in(application)
    assert left.startswith(".2024-03-01.parquet~")
    assert discover(application.datasets["orders"], application.layout, [D1]) == ()
    orders(tmp_path, database(max_parallel=2))
    take(application, D2)
    assert names_in(application) == ["2024-03-02.parquet"]
    take(application, D1)
    assert [row["id"] for row in rows_in(application, D1)] == list(range(1, 50001))
    observed.found("no landing finds what is left of it", "the next extract removes that and writes all rows")


def half_written(application: Application, files: int = 1) -> bool:
    """Whether so many files have the rows of a first batch, and are not finished."""
    parts = path_of(application.layout.sources).rglob(".*.part")
    return sum(path.stat().st_size > 1000 for path in parts) == files


FILL = "INSERT INTO orders SELECT n, '2024-03-01 12:00Z', 1 FROM generate_series(1, 50000) AS n"
# In the middle of its rows, the query waits for those who hold this lock.
WAITS = QUERY.replace("ORDER BY id", "AND (id <> 45000 OR pg_advisory_lock_shared(7) IS NOT NULL)")


@contextmanager
def held(shop: Engine) -> Iterator[None]:
    """Within this block, WAITS ends only when its session does."""
    with shop.connect() as other:
        other.execute(text("SELECT pg_advisory_lock(7)"))
        yield
        other.execute(text("SELECT pg_advisory_unlock(7)"))


@pytest.mark.faults
def test_rows_that_change_while_they_are_read_are_those_of_one_moment(
    shop: Engine, tmp_path: Path, observed: Observed
) -> None:
    observed.injected("an UPDATE, a DELETE and an INSERT by others in the middle of the query of an extract")
    run(shop, FILL)
    application = orders(tmp_path, database(WAITS))
    with ThreadPoolExecutor() as pool:
        with held(shop):
            working = pool.submit(take, application, D1)
            wait_for(lambda: half_written(application), "half a file to be written", 60)
            run(shop, "UPDATE orders SET amount = 2")
            run(shop, "DELETE FROM orders WHERE id > 100")
            run(shop, "INSERT INTO orders VALUES (50001, '2024-03-01 12:00Z', 3)")
        working.result()
    found = pq.read_table(file_of(application, D1))
    assert sorted(found.column("id").to_pylist()) == list(range(1, 50001))
    assert set(found.column("amount").to_pylist()) == {Decimal(1)}
    observed.found("the file has all rows as they were at the beginning, and none of the changes")


@pytest.mark.faults
def test_a_database_that_dies_in_the_middle_of_a_query_is_named_and_the_next_extract_is_exact(
    cluster: str, shop: Engine, tmp_path: Path, observed: Observed
) -> None:
    observed.injected("kill -9 of the Postgres that an extract is reading; then an extract while it is away")
    run(shop, FILL)
    application, server = orders(tmp_path, database(WAITS)), postgres.Killable(cluster)
    with ThreadPoolExecutor() as pool, shop.connect() as other:
        other.execute(text("SELECT pg_advisory_lock(7)"))
        working = pool.submit(take, application, D1)
        wait_for(lambda: half_written(application), "half a file to be written", 60)
        server.kill()
        try:
            refused = working.exception(60)
            with pytest.raises(
                SourceError, match=r"source\.extract: .*check that the database of env:ORDERS_URL is up"
            ):
                take(application, D1)
            left = names_in(application)
        finally:
            other.invalidate()
            server.start()
    assert isinstance(refused, SourceError)
    assert re.match(
        r"orders 2024-03-01: source\.extract: .*check that the database of env:ORDERS_URL is up", str(refused)
    )
    assert left == []
    shop.dispose()
    take(application, D1)
    assert sorted(row["id"] for row in rows_in(application, D1)) == list(range(1, 50001))
    observed.found(refused, "no file", "once the database is back, the same call writes all rows")


@pytest.mark.faults
def test_two_launches_that_extract_the_same_day_leave_one_whole_file(
    shop: Engine, tmp_path: Path, observed: Observed
) -> None:
    observed.injected("two processes that extract the same day, both in the middle of its rows")
    run(shop, FILL)
    application = orders(tmp_path, database(WAITS, max_parallel=2))
    application.ledger.close()
    with held(shop):
        working = [taking(tmp_path, D1) for _ in range(2)]
        wait_for(lambda: half_written(application, 2), "two halves to be written", 60)
    assert [process.wait() for process in working] == [0, 0], [process.communicate()[0] for process in working]
    assert names_in(application) == ["2024-03-01.parquet"]
    assert sorted(row["id"] for row in rows_in(application, D1)) == list(range(1, 50001))
    observed.found("both end well, and one whole file is there")


def test_a_timeout_that_postgres_cannot_have_is_no_reason_to_refuse(shop: Engine, tmp_path: Path) -> None:
    take(orders(tmp_path, database(timeout="999999d")), D1)


KINDS = (
    "string",
    "long",
    "integer",
    "boolean",
    "double",
    "float",
    "date",
    "timestamp",
    "decimal(12,2)",
    "decimal(38,10)",
)
EXPRESSIONS = (
    "1", "NULL", "true", "2147483648", "1e40::float8", "'NaN'::float8", "'-Infinity'::float4", "'NaN'::numeric",
    "'Infinity'::numeric",
    "10::numeric ^ 9999", "0.000000000000000000000000000001", "'infinity'::date", "'-infinity'::timestamptz",
    "'infinity'::timestamp",
    "'0044-03-15 BC'::date", "'4713-01-01 BC'::timestamptz", "'294276-12-31'::timestamptz", "'5874897-12-31'::date",
    "now()::timestamp",
    "'24:00'::time", "'1 year'::interval", "''::text", "'a'::char(5)", "chr(27) || ']0;x' || chr(7)", "chr(8238)",
    "repeat('x', 1000000)",
    "(chr(27) || repeat('9', 100000))::int", "'https://me:T0SECRET@h/x'::text", "'abc'::bytea", "'{1,2}'::int[]", "'{}'::jsonb",
    "'{\"a\": NaN}'::text::json", "'(1,2)'::point", "'[1,2)'::int4range", "row(1, 2)", "gen_random_uuid()", "'101'::bit(3)",
    "'1.2.3.4'::inet", "12.34::money", "'\\x00'::bytea::text", "chr(55296)", "1 / 0", "'x'::xml", "pg_sleep(0)", "0::oid",
)  # fmt: skip
NAMES = (
    "id",
    "ID",
    "i d",
    "\u0131d",
    "id\u200b",
    "\x1b[2J",
    "\u202eid",
    "?column?",
    "%s",
    ":day",
    "{day}",
    'i"d',
    "_lineage",
    "a.b",
)


@often
@given(
    st.sampled_from(KINDS), st.sampled_from(EXPRESSIONS), st.just("id") | st.sampled_from(NAMES),
    st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=15),
)  # fmt: skip
def test_any_column_of_a_postgres_is_written_or_refused_without_a_trace(
    shop: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, value: str, name: str, more: str | None
) -> None:
    monkeypatch.setenv(URL, url_of(shop).replace(":secret@", ":T0SECRET@"))
    names = [name, *([more] if more is not None else [])]
    columns = ", ".join(f"""{value} AS "{one.replace('"', '""')}" """ for one in names)
    with shop.connect() as connection:
        # As a view: names and values in the query itself are checked in dataset.yaml.
        connection.exec_driver_sql("DROP VIEW IF EXISTS odd")
        try:
            # The driver takes a percent sign for the place of a value.
            connection.exec_driver_sql(f"CREATE VIEW odd AS SELECT {columns}".replace("%", "%%"))
        except DBAPIError:
            return  # no Postgres has such a column
    everything = "SELECT * FROM odd WHERE (:day)::date IS NOT NULL"
    application = orders(tmp_path, database(everything), columns={"id": kind})
    shutil.rmtree(path_of(application.layout.sources), ignore_errors=True)
    try:
        take(application, D1)
    except SourceError as refusal:
        said = observed_text(refusal)
        showable(said)
        assert "T0SECRET" not in said
        assert said.startswith("orders 2024-03-01: source.extract: ")
        assert names_in(application) == []
    else:
        require_columns(OnDisk(file_of(application, D1)), "odd", application.datasets["orders"].dataset.landing)
    finally:
        application.ledger.close()


def test_memory_does_not_grow_with_the_rows_of_a_day(shop: Engine, tmp_path: Path) -> None:
    many = "generate_series(1, CASE :day WHEN DATE '2024-03-01' THEN 400000 ELSE 10 END)"
    application = orders(
        tmp_path, database(f"SELECT n AS id, (:day)::timestamptz AS at, 1.0 AS amount FROM {many} AS n")
    )
    take(application, D2)
    before = psutil.Process(os.getpid()).memory_info().rss
    take(application, D1)
    assert pq.read_metadata(file_of(application, D1)).num_rows == 400_000
    assert psutil.Process(os.getpid()).memory_info().rss - before < 60_000_000


def test_a_sources_folder_that_may_not_be_written_to_is_named(tmp_path: Path, shop: Engine) -> None:
    application = orders(tmp_path, database())
    path_of(application.layout.sources).write_text("not a folder", encoding="utf-8")
    with pytest.raises(BackfillError, match="cannot be written"):
        take(application, D1)


def test_a_day_is_due_again_when_its_rows_have_changed_as_their_column_shows(shop: Engine, tmp_path: Path) -> None:
    run(
        shop,
        "INSERT INTO orders VALUES (1, '2024-03-01 09:00Z', 5), (2, '2024-03-01 12:00Z', 5), (3, '2024-03-02 12:00Z', 5)",
    )
    application = orders(tmp_path, database(f"{QUERY};  ", modified_column="at", max_parallel=1))
    take(application, D1, D2)
    dataset, at = application.dataset("orders"), application.clock.now()
    landed = [
        Delivery("orders", day, f"extracts/orders/{day}.parquet", "f", 9, at, at, 1, order=n)
        for n, day in enumerate((D1, D2), 1)
    ]
    known = [replace(one, reading=reading_of(dataset.landing)) for one in landed]

    def due(*, again: bool = True) -> list[dt.date]:
        return list(Extracts(application.warehouse).due(dataset, (D1, D2), known, again=again))

    assert due() == []
    run(shop, "UPDATE orders SET at = '2024-03-01 13:00Z' WHERE id = 1")
    assert (due(), due(again=False)) == ([D1], [])
    take(application, D1)
    assert due() == []
    # Neither the last change nor the number of rows shows it.
    run(shop, "UPDATE orders SET amount = 6 WHERE id = 2")
    assert due() == []
    run(shop, "DELETE FROM orders WHERE id = 2")
    assert due() == [D1]
    run(shop, "DELETE FROM orders WHERE id = 3")
    assert due() == [D1, D2]
    take(application, D1, D2)
    assert due() == []
    file_of(application, D2).unlink()
    assert due() == [D2]
    assert application.ledger.locks() == ()


def test_a_modified_column_is_a_declared_one_that_grows(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"modified_column 'amount' is no column in source\.columns of type timestamp, date"
    ):
        orders(tmp_path, database(modified_column="amount"))
    with pytest.raises(AssertionError, match=r"modified_column asks the database, and extract\.py has none; drop it"):
        orders(
            tmp_path / "script", {"file": "extract.py", "modified_column": "at"}, "def extract(day):\n    return []\n"
        )
