"""A ledger of each earlier revision: it is migrated when it is opened, keeps its rows, and continues to work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, create_engine, func, insert, select, text

from backfill_assets.campaign.state import Action, Approval, Campaign, JournalEntry, Phase
from backfill_assets.core.errors import CampaignError
from backfill_assets.core.unit import AttemptState, Work
from backfill_assets.ledger.open import MIGRATIONS, Ledger, open_ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.ledger.campaign_samples import a_campaign, an_approval, an_entry
from backfill_assets_tests.unit.ledger.full_ledger import OLD, full_ledger
from backfill_assets_tests.unit.ledger.proof_samples import a_certificate, a_comparison
from backfill_assets_tests.unit.ledger.samples import (
    march,
)

pytestmark = pytest.mark.slow

EARLIER = sorted(script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions())[:-1]
CAMPAIGNS, PROOF = "0004", "0005"


@pytest.fixture
def migrated() -> bool:
    """No ledger exists yet: these tests are about the way to one."""
    return False


class Campaigns(NamedTuple):
    """Everything that a ledger returns about campaigns, by its own methods."""

    all: tuple[Campaign, ...]
    journals: tuple[tuple[JournalEntry, ...], ...]
    approvals: tuple[Approval, ...]
    of_unit: Campaign | None

    @classmethod
    def held_by(cls, ledger: Ledger) -> Campaigns:
        found = ledger.campaigns()
        journals = tuple(ledger.journal(campaign.id) for campaign in found)
        return cls(found, journals, ledger.approvals("u_b_2"), ledger.campaign_of("u_b_2"))


@pytest.fixture
def filled(tmp_path: Path, clock: FixedClock) -> Ledger:
    """A present ledger with rows in each table of the old one."""
    return full_ledger(f"sqlite:///{tmp_path}/filled/ledger.db", clock)


def laid_out_as_before(url: str, filled: Ledger, revision: str) -> None:
    """Bring a database to a revision and copy all rows into it that this revision knows."""
    engine, source = create_engine(url), filled._database.engine  # noqa: SLF001  # rows as they are
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    before, now = MetaData(), MetaData()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        before.reflect(connection)
    now.reflect(source)
    with engine.begin() as connection, source.connect() as reading:
        # An approval names earlier events, and the ledger checks that they exist.
        for table in sorted(before.sorted_tables, key=lambda table: table.name.startswith("approval")):
            if table.name != "alembic_version":
                columns = [now.tables[table.name].c[column.name] for column in table.c]
                if rows := [dict(row) for row in reading.execute(select(*columns)).mappings()]:
                    connection.execute(insert(table), rows)
                if "number" in table.c:
                    count_on(connection, table.name)
    assert ("campaigns" in before.tables) == ({"ended_at", "rows"} <= {*before.tables["attempts"].c.keys()})
    assert ("campaigns" in before.tables) == (revision >= CAMPAIGNS)
    assert ("certificates" in before.tables) == (revision >= PROOF)
    engine.dispose()


def count_on(connection: Connection, table: str) -> None:
    """Let Postgres continue counting from rows that were copied with their numbers; SQLite does so by itself."""
    if connection.dialect.name == "postgresql":
        newest = f"SELECT max(number) FROM {table}"
        connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'number'), ({newest}))"))


@pytest.fixture(params=EARLIER)
def revision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def old_url(tmp_path: Path, url: str, filled: Ledger, revision: str) -> str:
    (tmp_path / "state").mkdir(exist_ok=True)
    laid_out_as_before(url, filled, revision)
    return url


def test_the_filled_ledger_holds_something_in_every_table(filled: Ledger) -> None:
    tables, engine = MetaData(), filled._database.engine  # noqa: SLF001  # rows as they are
    tables.reflect(engine)
    with engine.connect() as connection:
        counted = {
            t.name: connection.execute(select(func.count()).select_from(t)).scalar_one() for t in tables.sorted_tables
        }
    assert counted.keys() >= {"campaigns", "campaign_journal", "approvals", "approval_days"}
    assert counted.keys() >= {"comparisons", "certificates"}
    # Nobody writes a table through Spark now.
    assert [name for name, rows in counted.items() if not rows] == ["drivers"]


@pytest.mark.faults
def test_an_old_ledger_is_migrated_and_keeps_its_rows(
    observed: Observed, old_url: str, revision: str, filled: Ledger, clock: FixedClock
) -> None:
    observed.injected(f"a ledger of revision {revision}, on {old_url.split(':', maxsplit=1)[0]}")
    ledger = open_ledger(old_url, clock)
    assert ledger.units() == filled.units() != ()
    assert ledger.claims("flights", march(1, 12)) == filled.claims("flights", march(1, 12)) != {}
    assert ledger.evidence("u_b_1") == filled.evidence("u_b_1") != {}
    assert ledger.deliveries("flights", march(1)) == filled.deliveries("flights", march(1)) != ()
    assert ledger.staged("flights", march(1)) == filled.staged("flights", march(1)) != {}
    assert ledger.holds("flights") == filled.holds("flights") != ()
    assert ledger.releases() == filled.releases() != ()
    # Earlier revisions did not store when attempts ended.
    known = filled.attempts()
    assert ledger.attempts() == (known if revision >= CAMPAIGNS else tuple(replace(a, ended_at=None) for a in known))
    assert [a.state for a in ledger.attempts()] == [AttemptState.running, AttemptState.lost]
    ledger.close()
    observed.found(
        f"{len(filled.units())} units, {len(filled.releases())} releases and {len(known)} attempts are as they were"
    )


@pytest.mark.faults
def test_an_old_ledger_keeps_its_campaigns_their_journals_and_approvals(
    observed: Observed, old_url: str, revision: str, filled: Ledger, clock: FixedClock
) -> None:
    observed.injected(f"a ledger of revision {revision}, with campaigns where it knew them")
    ledger = open_ledger(old_url, clock)
    found, known = Campaigns.held_by(ledger), Campaigns.held_by(filled)
    assert ([len(part) for part in known.journals], len(known.approvals)) == ([1, 7], 2)
    assert found == (known if revision >= CAMPAIGNS else Campaigns((), (), (), None))
    observed.found("campaigns, journals and approvals are as they were")
    ledger.close()


@pytest.mark.faults
def test_an_old_ledger_keeps_its_comparisons_and_certificates(
    observed: Observed, old_url: str, revision: str, filled: Ledger, clock: FixedClock
) -> None:
    observed.injected(f"a ledger of revision {revision}, with comparisons and certificates where it knew them")
    ledger = open_ledger(old_url, clock)
    kept = revision >= PROOF
    for unit in ("u_b_1", "u_b_2"):
        assert ledger.comparisons(unit) == (filled.comparisons(unit) if kept else {})
        assert ledger.certificates(unit=unit) == (filled.certificates(unit=unit) if kept else ())
    assert filled.comparisons("u_b_1") == {("flights", day): a_comparison(day, 1) for day in march(1, 2)}
    assert filled.certificates() == (
        a_certificate(march(11, 12), "u_b_2", "c_b_2"),
        a_certificate(march(1, 9), name="c_b_1"),
    )
    observed.found("they are as they were")
    ledger.close()


@pytest.mark.parametrize("revision", [name for name in EARLIER if name >= CAMPAIGNS], indirect=True)
@pytest.mark.faults
def test_a_campaign_of_an_old_ledger_continues_where_it_was(
    observed: Observed, old_url: str, clock: FixedClock
) -> None:
    observed.injected(f"a ledger with a campaign that is paused, on {old_url.split(':', maxsplit=1)[0]}")
    ledger = open_ledger(old_url, clock)
    paused = ledger.campaign(OLD)
    before, approved = ledger.journal(OLD), ledger.approvals("u_b_2")
    with pytest.raises(CampaignError, match=r"old-1 is paused \(paused by carl at .*: month end\)"):
        ledger.change_campaign(paused, {Phase.running}, an_entry(Action.set, campaign=OLD))
    resumed = an_entry(Action.resumed, "emil", campaign=OLD)
    running = ledger.change_campaign(replace(paused, phase=Phase.running), {Phase.paused}, resumed)
    ledger.approve(an_approval(march(12), unit="u_b_2"))
    assert (ledger.campaign(OLD), running.revision) == (running, paused.revision + 1)
    assert ledger.journal(OLD) == (*before, resumed)
    assert ledger.approvals("u_b_2") == (*approved, an_approval(march(12), unit="u_b_2"))
    observed.found("it is resumed and approved, and its journal goes on")
    ledger.close()


@pytest.mark.faults
def test_an_old_ledger_takes_campaigns_once_it_is_migrated(
    observed: Observed, old_url: str, revision: str, clock: FixedClock
) -> None:
    observed.injected(f"a ledger of revision {revision}, on {old_url.split(':', maxsplit=1)[0]}")
    ledger = open_ledger(old_url, clock)
    [running] = ledger.attempts(state=AttemptState.running)
    ledger.end_attempt(running.number, AttemptState.done, Work(3, 4))
    assert [(a.ended_at, a.rows) for a in ledger.attempts("u_b_1")] == [(clock.now(), 3)]
    planned = ledger.add_campaign(a_campaign(), an_entry(Action.planned))
    launched = replace(planned, phase=Phase.running, unit="u_b_1")
    ledger.change_campaign(launched, {Phase.planned}, an_entry(Action.launched))
    ledger.approve(an_approval(march(1)))
    assert ledger.campaign_of("u_b_1") == replace(launched, revision=1)
    assert ledger.approvals("u_b_1") == (an_approval(march(1)),)
    ledger.close()
    observed.found(f"the end of an attempt, a {launched.phase} campaign and its approval are in it")
