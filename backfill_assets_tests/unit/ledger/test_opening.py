"""Opening: what is created, what is migrated, and what is refused with a remedy."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from backfill_assets.core.errors import LedgerError
from backfill_assets.ledger.database import Host, this_host
from backfill_assets.ledger.open import Ledger, adopt_host, open_ledger
from backfill_assets.ledger.schema import metadata
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.ledger.samples import a_hold, a_launch, a_unit, march

HERE, THERE = Host("here", "1"), Host("there", "2")


@pytest.fixture
def migrated() -> bool:
    """No ledger exists yet: these tests are about the way to one."""
    return False


def test_migrations_lead_to_exactly_the_declared_tables(url: str, ledger: Ledger) -> None:
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, metadata) == []
        assert {*inspect(connection).get_table_names()} == {*metadata.tables, "alembic_version"}
    engine.dispose()


def test_the_numbers_of_attempts_are_never_given_twice_by_sqlite(sqlite_url: str, clock: FixedClock) -> None:
    open_ledger(sqlite_url, clock).close()
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        tables = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    assert {name for name, sql in tables.items() if "AUTOINCREMENT" in str(sql)} >= {"attempts", "evidence"}


def test_a_ledger_opened_again_keeps_what_it_held(url: str, ledger: Ledger, clock: FixedClock) -> None:
    ledger.assign(a_launch(march(1)), a_unit(march(1)))
    again = open_ledger(url, clock)
    assert again.units() == ledger.units() != ()
    again.close()
    assert again.units() == ledger.units()


def test_sqlite_runs_with_its_write_ahead_log_and_foreign_keys(sqlite_url: str, clock: FixedClock) -> None:
    ledger = open_ledger(sqlite_url, clock)
    with ledger._database.read() as connection:  # noqa: SLF001 - what only its own connections show
        pragmas = {p: connection.execute(text(f"PRAGMA {p}")).scalar() for p in ("journal_mode", "foreign_keys")}
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 60_000
    ledger.close()
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1}


def test_a_ledger_migrated_by_newer_code_is_refused(url: str, ledger: Ledger, clock: FixedClock) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(LedgerError, match=r"at revision 9999.*Upgrade backfill_assets"):
        open_ledger(url, clock)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"
    engine.dispose()


@pytest.mark.faults
def test_a_second_host_is_refused_a_sqlite_ledger_until_it_adopts_it(
    observed: Observed, sqlite_url: str, clock: FixedClock
) -> None:
    observed.injected("a second host opens a ledger that is a file")
    open_ledger(sqlite_url, clock, HERE).close()
    open_ledger(sqlite_url, clock, Host("renamed", HERE.id)).close()
    with pytest.raises(LedgerError, match=r"'renamed'.*'there'.*LEDGER_URL.*adopt_host") as refused:
        open_ledger(sqlite_url, clock, THERE)
    adopt_host(sqlite_url, THERE)
    open_ledger(sqlite_url, clock, THERE).close()
    with pytest.raises(LedgerError, match=r"'there'.*'here'"):
        open_ledger(sqlite_url, clock, HERE)
    observed.found(refused.value)


def test_postgres_serves_many_hosts(postgres_url: str, clock: FixedClock) -> None:
    for host in (HERE, THERE):
        open_ledger(postgres_url, clock, host).close()


def test_a_postgres_url_needs_no_driver(postgres_url: str, clock: FixedClock) -> None:
    open_ledger(postgres_url.replace("+psycopg2", ""), clock).close()


def test_a_machine_is_itself() -> None:
    assert this_host() == this_host()
    assert this_host().name
    assert len(this_host().id) == 16


@pytest.mark.parametrize(
    "url",
    [
        "no url",
        "postgresql+psycopg2://ada:se@cret@host/db",
        "postgresql+psycopg2://ada:secret@host:port/db",
        "nosuchdatabase://ada:secret@host/db",
        "mysql://ada:secret@host/db",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:ledger.db?uri=true&password=secret",
        "postgresql+psycopg2://ada:secret@127.0.0.1:1/db?application_name=secret",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str, clock: FixedClock) -> None:
    with pytest.raises(LedgerError) as refused:
        open_ledger(url, clock)
    assert "cret" not in str(refused.value)
    assert "ada" not in str(refused.value)


def test_a_wrong_password_is_not_repeated(postgres_cluster: str, clock: FixedClock) -> None:
    with pytest.raises(LedgerError, match=r"nowhere.*BACKFILL_ASSETS_LEDGER_URL") as refused:
        open_ledger(postgres_cluster.replace("/postgres?", "/nowhere?"), clock)
    assert "secret" not in str(refused.value)


def test_a_file_that_is_no_ledger_is_refused_and_left_alone(tmp_path: Path, clock: FixedClock) -> None:
    (tmp_path / "ledger.db").write_text("something else " * 100)
    with pytest.raises(LedgerError, match=r"not a database; the file is damaged or not a ledger"):
        open_ledger(f"sqlite:///{tmp_path}/ledger.db", clock)
    assert (tmp_path / "ledger.db").read_text().startswith("something else")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, clock: FixedClock) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(LedgerError, match="choose a writable folder"):
        open_ledger(f"sqlite:///{tmp_path}/taken/ledger.db", clock)


def test_a_percent_sign_in_the_folder_does_no_harm(tmp_path: Path, clock: FixedClock) -> None:
    open_ledger(f"sqlite:///{tmp_path}/100%/ledger.db", clock).close()
    assert (tmp_path / "100%" / "ledger.db").exists()


def test_a_failure_in_the_middle_of_a_write_leaves_nothing(ledger: Ledger) -> None:
    broken = a_hold(march(2)[0])
    object.__setattr__(broken, "reason", None)
    with pytest.raises(LedgerError, match="holds"):
        ledger.hold([a_hold(march(1)[0]), broken])
    assert ledger.holds("flights") == ()
