"""What was released, proven and approved stays as it was written: the database refuses changes by any user."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, inspect, make_url, text
from sqlalchemy.exc import DBAPIError

from backfill_assets.campaign.state import Action
from backfill_assets.core.content import Content, KeptDay
from backfill_assets.core.delivery import Deed
from backfill_assets.core.errors import LedgerError
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import UnitState
from backfill_assets.evidence.readiness import Blocker, DayBlocker, blockers_of
from backfill_assets.ledger.open import Ledger, LedgerLogin, open_ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.unit.ledger.campaign_samples import a_campaign, an_approval, an_entry
from backfill_assets_tests.unit.ledger.proof_samples import a_certificate
from backfill_assets_tests.unit.ledger.samples import (
    LEASE,
    a_delivery,
    a_launch,
    a_manifest,
    a_unit,
    march,
    some_evidence,
)

pytestmark = pytest.mark.slow

Statement = Callable[[str], None]
KEPT = {
    "manifest": "'{}'", "dataset": "'orders'", "unit": "'u_x'", "release": "'rel_9'", "number": "99",
    "created_at": "'1999-01-01 00:00:00'",
}  # fmt: skip


@pytest.fixture
def engine(url: str, ledger: Ledger, clock: FixedClock) -> Iterator[Engine]:
    """A direct connection to a ledger with a committed release, an intent and one that was given up."""
    unit = ledger.assign(a_launch(march(1, 9)), a_unit(march(1, 9)))
    attempt = ledger.start_attempt(unit.id, "flights", march(1), "r_1", LEASE)
    ledger.add_evidence(attempt.number, [some_evidence(unit.id, attempt.number, march(1)[0])])
    for name in ("rel_1", "rel_2", "rel_3"):
        ledger.intend(a_manifest(name, march(1), unit.id))
    ledger.finalize("rel_1", 3, clock.now(), UnitState.published)
    ledger.abandon("rel_3")
    ledger.keep(
        [KeptDay("flights", march(1)[0], "a", Content("f", ""), ("code",), "ada", clock.now(), "the same rows")]
    )
    made = create_engine(url)
    yield made
    made.dispose()


def run(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


@pytest.mark.parametrize("release", ["rel_1", "rel_2", "rel_3"])
@pytest.mark.parametrize("column", sorted(KEPT))
def test_no_stored_row_of_a_release_can_be_changed(engine: Engine, ledger: Ledger, release: str, column: str) -> None:
    before = ledger.releases()
    with pytest.raises(DBAPIError, match="releases is append-only"):
        run(engine, f"UPDATE releases SET {column} = {KEPT[column]} WHERE release = '{release}'")
    assert ledger.releases() == before


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE releases SET state = 'abandoned' WHERE release = 'rel_1'",
        "UPDATE releases SET version = 9 WHERE release = 'rel_1'",
        "UPDATE releases SET committed_at = created_at WHERE release = 'rel_1'",
        "UPDATE releases SET state = 'intent' WHERE release = 'rel_3'",
        "DELETE FROM releases WHERE release = 'rel_2'",
        "DELETE FROM releases",
        "UPDATE evidence SET body = '{}'",
        "DELETE FROM evidence",
        "UPDATE kept_days SET reason = 'another'",
        "DELETE FROM kept_days",
    ],
    ids=range(10),
)
def test_no_release_is_taken_back_and_no_evidence_rewritten(engine: Engine, ledger: Ledger, change: str) -> None:
    before, evidence, kept = ledger.releases(), ledger.evidence("u_b_1"), ledger.kept_days("flights")
    with pytest.raises(DBAPIError, match="is append-only"):
        run(engine, change)
    assert (ledger.releases(), ledger.evidence("u_b_1"), ledger.kept_days("flights")) == (before, evidence, kept)


def test_an_intent_can_still_be_finalized_or_given_up_and_one_that_was_given_up_can_be_finalized(
    engine: Engine, ledger: Ledger, clock: FixedClock
) -> None:
    ledger.finalize("rel_3", 4, clock.now(), UnitState.published)
    ledger.abandon("rel_2")
    assert {r.manifest.release: r.state for r in ledger.releases()} == {
        "rel_1": ReleaseState.finalized, "rel_2": ReleaseState.abandoned, "rel_3": ReleaseState.finalized,
    }  # fmt: skip


@pytest.fixture
def ben(postgres_url: str, clock: FixedClock) -> Iterator[str]:
    """The URL of ben's own login at a ledger that another login owns."""
    open_ledger(postgres_url, clock).close()
    owner = create_engine(postgres_url)
    with owner.begin() as connection:
        _login(connection, "ben")
    yield make_url(postgres_url).set(username="ben").render_as_string(hide_password=False)
    with owner.begin() as connection:
        connection.execute(text("DROP OWNED BY ben; DROP ROLE ben"))
    owner.dispose()


def _login(connection: Connection, name: str) -> None:
    """Make a login as the documents say."""
    document = (Path(__file__).resolve().parents[3] / "docs" / "production.md").read_text(encoding="utf-8")
    grants = [line for line in document.splitlines() if line.startswith("GRANT ") and line.endswith(" TO ben;")]
    assert grants
    for statement in (f"CREATE ROLE {name} LOGIN", *(line.replace(" TO ben;", f" TO {name}") for line in grants)):
        connection.execute(text(statement))


@pytest.mark.slow
def test_a_login_of_postgres_is_the_identity_whatever_the_environment_says(
    ben: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("USER", "LOGNAME", "PGUSER", "USERNAME"):
        monkeypatch.setenv(variable, "anna")
    assert LedgerLogin(ben).name() == "ben"


@pytest.mark.slow
def test_a_login_that_does_not_own_the_ledger_approves_in_its_own_name_only(
    ben: str, postgres_url: str, clock: FixedClock
) -> None:
    owners, ledger = open_ledger(postgres_url, clock), open_ledger(ben, clock)
    unit = owners.assign(a_launch(march(1)), a_unit(march(1))).id
    owners.close()
    own = an_approval(march(1), unit=unit)
    with pytest.raises(LedgerError, match="login ben cannot approve as anna"):
        ledger.approve(replace(own, identity="anna"))
    assert ledger.approvals(unit) == ()
    with ledger.lock(f"approve:{unit}", LEASE):
        ledger.approve(own)
    (given,) = ledger.approvals(unit)
    assert given == replace(own, at=given.at)
    ledger.close()


_STANDS_FOR_THE_CATALOG = (
    "CREATE TEMP TABLE pg_class AS SELECT 'public.approvals'::regclass::oid AS oid, "
    "(SELECT oid FROM pg_catalog.pg_roles WHERE rolname = 'ben') AS relowner; "
)
_APPROVE_AS_ANNA = (
    "INSERT INTO approvals (unit, evidence, \"by\", identity, at) VALUES ('u_b_1', 'e', 'anna', 'anna', now())"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "forgery",
    [
        _APPROVE_AS_ANNA,
        _STANDS_FOR_THE_CATALOG + _APPROVE_AS_ANNA,
        "INSERT INTO approval_days (approval, dataset, day, evidence) VALUES (1, 'flights', '2013-03-02', 'h')",
        "INSERT INTO campaign_journal SELECT 1, 'c', now(), 'anna', 'approved', '', '{}'",
        "UPDATE campaigns SET specification = '{}'",
        "INSERT INTO evidence SELECT * FROM evidence",
        "UPDATE units SET state = 'published'",
        "INSERT INTO releases SELECT * FROM releases",
    ],
    ids=range(8),
)
def test_a_login_that_does_not_own_the_ledger_cannot_forge_an_approval(
    ben: str, postgres_url: str, clock: FixedClock, forgery: str
) -> None:
    ledger = open_ledger(postgres_url, clock)
    unit = ledger.assign(a_launch(march(1)), a_unit(march(1))).id
    ledger.approve(replace(an_approval(march(1), unit=unit), identity="anna"))
    before = ledger.approvals(unit)
    engine = create_engine(ben)
    with pytest.raises(DBAPIError, match=r"login ben cannot approve as anna|permission denied for table"):
        run(engine, forgery)
    engine.dispose()
    assert ledger.approvals(unit) == before
    ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "TRUNCATE releases",
        "DROP TABLE releases CASCADE",
        "ALTER TABLE releases DISABLE TRIGGER ALL",
        "DROP TRIGGER releases_refuses_delete ON releases",
        "DROP FUNCTION refuse_change() CASCADE",
        "SET SESSION AUTHORIZATION ledger",
    ],
    ids=range(6),
)
def test_a_login_that_does_not_own_the_ledger_cannot_disable_its_guards(ben: str, change: str) -> None:
    engine = create_engine(ben)
    with pytest.raises(DBAPIError, match=r"permission denied|must be owner"):
        run(engine, change)
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("table", ["releases", "evidence", "certificates", "approval_days", "kept_days"])
def test_the_owner_cannot_empty_the_history_by_accident(postgres_url: str, clock: FixedClock, table: str) -> None:
    open_ledger(postgres_url, clock).close()
    engine = create_engine(postgres_url)
    with pytest.raises(DBAPIError, match=f"{table} is append-only"):
        run(engine, f"TRUNCATE {table}")
    engine.dispose()


def test_a_ledger_in_a_file_has_no_logins(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"has no logins; unset BACKFILL_ASSETS_IDENTITY"):
        LedgerLogin(f"sqlite:///{tmp_path}/ledger.db")


APPEND_ONLY = (
    "approval_days", "approvals", "campaign_journal", "certificates", "delivery_journal", "evidence", "kept_days",
    "releases",
)  # fmt: skip


@pytest.fixture
def full(engine: Engine, ledger: Ledger) -> Engine:
    """The same connection to a ledger with rows in each append-only table."""
    ledger.add_campaign(a_campaign(), an_entry(Action.planned))
    ledger.approve(an_approval(march(1)))
    ledger.add_certificate(a_certificate(march(1), "u_b_1"))
    ledger.add_deliveries([a_delivery(march(1)[0])])
    ledger.change_deliveries(ledger.deliveries("flights", march(1)), Deed.withdrawn, "ada", "not ours")
    return engine


def rows_of(engine: Engine) -> dict[str, list[object]]:
    with engine.connect() as connection:
        return {t: [*connection.execute(text(f"SELECT * FROM {t} ORDER BY 1")).all()] for t in APPEND_ONLY}


def changed(value: object) -> object:
    return value - 1 if isinstance(value, int) else f"{value}x" if value else "1"


def _replacements(engine: Engine, table: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Each way to rewrite a row with one of its unique keys and another value in one column."""
    found = inspect(engine)
    primary = found.get_pk_constraint(table)["constrained_columns"]
    keys = [primary, *(unique["column_names"] for unique in found.get_unique_constraints(table))]
    # A number is the row's own.
    keys += [] if primary == ["number"] else [["rowid"]]
    with engine.connect() as connection:
        row = dict(connection.execute(text(f"SELECT rowid AS rowid, * FROM {table} LIMIT 1")).mappings().one())
    for key in keys:
        for column in row.keys() - {*key, "rowid"}:
            # Another key would find another row, or none.
            others = {name: changed(row[name]) for k in keys if k != key for name in k if name not in key}
            own = {name: value for name, value in row.items() if name != "rowid" or ["rowid"] in keys}
            yield f"{key} {column}", {**own, **others, column: changed(row[column])}


@pytest.mark.parametrize("table", APPEND_ONLY)
@pytest.mark.parametrize("url", ["sqlite_url"], indirect=True)
def test_no_row_of_the_history_is_replaced_by_another_with_its_key(full: Engine, table: str) -> None:
    before, observed = rows_of(full), list[str]()
    for what, row in _replacements(full, table):
        columns = ", ".join(f'"{name}"' for name in row)
        values = ", ".join(f":{name}" for name in row)
        statement = text(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({values})").bindparams(**row)
        with full.connect() as connection:
            with pytest.raises(DBAPIError, match=f"{table} is append-only"):
                connection.execute(statement)
            observed.append(what)
    assert len(observed) >= 5
    assert rows_of(full) == before


_REST = "version, created_at, committed_at, manifest"


@pytest.mark.parametrize("url", ["sqlite_url"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        "REPLACE INTO evidence SELECT number, unit, attempt, dataset, day, recorded_at, '{}', hash FROM evidence",
        f"REPLACE INTO releases SELECT number, release, dataset, unit, 'abandoned', {_REST} FROM releases",
        f"REPLACE INTO releases SELECT 99, release, dataset, unit, state, {_REST} FROM releases",
        "UPDATE OR REPLACE releases SET number = 1 WHERE release = 'rel_3'",
        "UPDATE OR REPLACE releases SET release = 'rel_1' WHERE release = 'rel_2'",
        f"INSERT OR IGNORE INTO releases SELECT number, release, dataset, unit, 'abandoned', {_REST} FROM releases",
    ],
    ids=range(6),
)  # fmt: skip
def test_neither_evidence_nor_a_finalized_release_is_replaced(full: Engine, change: str) -> None:
    before = rows_of(full)
    with pytest.raises(DBAPIError, match="is append-only"):
        run(full, change)
    assert rows_of(full) == before


@pytest.mark.parametrize("url", ["sqlite_url"], indirect=True)
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_the_same_row_once_more_changes_nothing(full: Engine, table: str) -> None:
    before = rows_of(full)
    run(full, f"INSERT INTO {table} SELECT * FROM {table} WHERE true ON CONFLICT DO NOTHING")
    assert rows_of(full) == before


@pytest.mark.parametrize("url", ["sqlite_url"], indirect=True)
def test_every_table_that_refuses_changes_refuses_them_in_each_of_its_columns(full: Engine) -> None:
    triggers = "SELECT tbl_name, name, sql FROM sqlite_master WHERE type = 'trigger'"
    with full.connect() as connection:
        known = {(row.tbl_name, row.name): row.sql for row in connection.execute(text(triggers))}
    assert sorted({table for table, name in known if name.endswith("_refuses_update")}) == list(APPEND_ONLY)
    assert sorted({table for table, name in known if name.endswith("_refuses_delete")}) == list(APPEND_ONLY)
    for table in APPEND_ONLY:
        compared = known[table, f"{table}_refuses_replacement"]
        columns = [column["name"] for column in inspect(full).get_columns(table)]
        assert [name for name in columns if f't."{name}" IS NOT NEW."{name}"' not in compared] == []


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres_url"], indirect=True)
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_an_upsert_rewrites_no_history_on_postgres_either(full: Engine, table: str) -> None:
    before = rows_of(full)
    key = ", ".join(inspect(full).get_pk_constraint(table)["constrained_columns"])
    one = f"SELECT * FROM {table} ORDER BY 1 LIMIT 1"
    for column in (column["name"] for column in inspect(full).get_columns(table)):
        with pytest.raises(DBAPIError, match=f"{table} is append-only"):
            run(full, f'INSERT INTO {table} {one} ON CONFLICT ({key}) DO UPDATE SET "{column}" = NULL')
    assert rows_of(full) == before


@pytest.mark.parametrize("column", ["after_release", "after_entry"])
def test_an_approval_cannot_come_after_a_release_or_entry_that_does_not_exist(
    full: Engine, ledger: Ledger, column: str
) -> None:
    (known,) = ledger.approvals("u_b_1")
    assert (known.after_release, known.after_entry) == (3, 1)
    statement = (
        f'INSERT INTO approvals (unit, evidence, "by", identity, at, {column}) '
        'SELECT unit, evidence, "by", identity, at, {} FROM approvals'
    )  # fmt: skip
    with pytest.raises(DBAPIError, match="an approval cannot come after what has not happened"):
        run(full, statement.format(f"{column} + 1"))
    run(full, statement.format(column))
    assert len(ledger.approvals("u_b_1")) == 2


@pytest.mark.slow
def test_a_login_chooses_neither_the_time_nor_the_number_of_what_it_signs(
    ben: str, postgres_url: str, clock: FixedClock
) -> None:
    ledger = open_ledger(postgres_url, clock)
    unit = ledger.assign(a_launch(march(1)), a_unit(march(1))).id
    ledger.add_campaign(a_campaign(), an_entry(Action.planned))
    engine = create_engine(ben)
    run(engine, "INSERT INTO campaign_journal SELECT 10^9, 'fix-1', '2199-01-01', 'ben', 'resumed', '', '{}'")
    run(
        engine,
        'INSERT INTO approvals (number, unit, evidence, "by", identity, at) '
        f"VALUES (10^9, '{unit}', 'e', 'ben', 'ben', '2199-01-01')",
    )
    engine.dispose()
    entry, (given,) = ledger.journal("fix-1")[-1], ledger.approvals(unit)
    assert entry.number < 10
    assert max(entry.at, given.at) < dt.datetime(2190, 1, 1, tzinfo=dt.UTC)
    ledger.close()


def past_the_triggers(engine: Engine, statement: str) -> None:
    """Change evidence as the owner of the database can."""
    off = ("DROP TRIGGER evidence_refuses_update",)
    if engine.dialect.name == "postgresql":
        off = ("ALTER TABLE evidence DISABLE TRIGGER USER",)
    for one in (*off, statement):
        run(engine, one)


@pytest.mark.parametrize(
    "change",
    [
        'body = replace(body, \'"row_count":"3"\', \'"row_count":"4"\')',
        "body = replace(body, '\"unique_key\"', ' \"unique_key\"')",
        "hash = 'f'",
        "day = '2013-03-02'",
    ],
    ids=range(4),
)
def test_evidence_that_is_not_as_it_was_recorded_is_altered(engine: Engine, ledger: Ledger, change: str) -> None:
    ((target, recorded),) = ledger.evidence("u_b_1").items()
    assert not recorded.altered
    past_the_triggers(engine, f"UPDATE evidence SET {change}")
    ((found, altered),) = ledger.evidence("u_b_1").items()
    assert altered.altered
    assert blockers_of(found, altered, (), altered.basis) == (DayBlocker(*found, Blocker.altered),)
    assert (found == target) == ("day" not in change)


def test_what_is_no_evidence_is_refused_by_name(engine: Engine, ledger: Ledger) -> None:
    past_the_triggers(engine, "UPDATE evidence SET body = '{}'")
    with pytest.raises(LedgerError, match=r"evidence 1 of unit u_b_1, flights 2013-03-01, cannot be read: .* backup"):
        ledger.evidence("u_b_1")
