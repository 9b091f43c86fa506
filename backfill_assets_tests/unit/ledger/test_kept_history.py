"""What was released, proven and approved stays as it was written: the database refuses to change it, whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from backfill_assets.domain.errors import LedgerError
from backfill_assets.domain.release import ReleaseState
from backfill_assets.domain.units import UnitState
from backfill_assets.ledger import LedgerLogin, SqlLedger, open_ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.unit.ledger.campaign_samples import an_approval
from backfill_assets_tests.unit.ledger.samples import LEASE, a_launch, a_manifest, a_unit, march, some_evidence

pytestmark = pytest.mark.slow

Statement = Callable[[str], None]
KEPT = {
    "manifest": "'{}'", "dataset": "'orders'", "unit": "'u_x'", "release": "'rel_9'", "number": "99",
    "created_at": "'1999-01-01 00:00:00'",
}  # fmt: skip


@pytest.fixture
def engine(url: str, ledger: SqlLedger, clock: FixedClock) -> Iterator[Engine]:
    """Somebody's own way into a ledger with a committed release, an intent and one that was given up."""
    unit = ledger.assign(a_launch(march(1, 9)), a_unit(march(1, 9)))
    attempt = ledger.start_attempt(unit.id, "flights", march(1), "r_1", LEASE)
    ledger.add_evidence(attempt.number, [some_evidence(unit.id, attempt.number, march(1)[0])])
    for name in ("rel_1", "rel_2", "rel_3"):
        ledger.intend(a_manifest(name, march(1), unit.id))
    ledger.finalize("rel_1", 3, clock.now(), UnitState.published)
    ledger.abandon("rel_3")
    made = create_engine(url)
    yield made
    made.dispose()


def run(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


@pytest.mark.parametrize("release", ["rel_1", "rel_2", "rel_3"])
@pytest.mark.parametrize("column", sorted(KEPT))
def test_nothing_that_was_stored_of_a_release_can_be_changed(
    engine: Engine, ledger: SqlLedger, release: str, column: str
) -> None:
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
    ],
    ids=range(8),
)
def test_no_release_is_taken_back_and_no_evidence_rewritten(engine: Engine, ledger: SqlLedger, change: str) -> None:
    before, evidence = ledger.releases(), ledger.evidence("u_b_1")
    with pytest.raises(DBAPIError, match="is append-only"):
        run(engine, change)
    assert (ledger.releases(), ledger.evidence("u_b_1")) == (before, evidence)


def test_an_intent_still_becomes_true_or_is_given_up_and_what_was_given_up_becomes_true(
    engine: Engine, ledger: SqlLedger, clock: FixedClock
) -> None:
    ledger.finalize("rel_3", 4, clock.now(), UnitState.published)
    ledger.abandon("rel_2")
    assert {r.manifest.release: r.state for r in ledger.releases()} == {
        "rel_1": ReleaseState.finalized, "rel_2": ReleaseState.abandoned, "rel_3": ReleaseState.finalized,
    }  # fmt: skip


@pytest.fixture
def ben(postgres_url: str, clock: FixedClock) -> Iterator[str]:
    """The URL of ben's own login at a ledger that somebody else owns."""
    open_ledger(postgres_url, clock).close()
    owner = create_engine(postgres_url)
    with owner.begin() as connection:
        _login(connection, "ben")
    yield make_url(postgres_url).set(username="ben").render_as_string(hide_password=False)
    with owner.begin() as connection:
        connection.execute(text("DROP OWNED BY ben; DROP ROLE ben"))
    owner.dispose()


def _login(connection: Connection, name: str) -> None:
    """Make a login as the documents tell to."""
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
def test_whoever_does_not_own_the_ledger_approves_in_their_own_name_only(
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
    assert ledger.approvals(unit) == (own,)
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
def test_whoever_does_not_own_the_ledger_cannot_make_as_if_somebody_had_approved(
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
def test_whoever_does_not_own_the_ledger_cannot_put_the_guards_out_of_force(ben: str, change: str) -> None:
    engine = create_engine(ben)
    with pytest.raises(DBAPIError, match=r"permission denied|must be owner"):
        run(engine, change)
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("table", ["releases", "evidence", "certificates", "approval_days", "campaign_journal"])
def test_not_even_its_owner_empties_the_history_by_accident(postgres_url: str, clock: FixedClock, table: str) -> None:
    open_ledger(postgres_url, clock).close()
    engine = create_engine(postgres_url)
    with pytest.raises(DBAPIError, match=f"{table} is append-only"):
        run(engine, f"TRUNCATE {table}")
    engine.dispose()


def test_a_ledger_in_a_file_has_no_logins(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"has no logins; unset BACKFILL_ASSETS_IDENTITY"):
        LedgerLogin(f"sqlite:///{tmp_path}/ledger.db")
