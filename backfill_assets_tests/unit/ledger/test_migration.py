"""A ledger of each earlier revision: it goes up when it is opened, keeps what it held, and works on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine, insert, select

from backfill_assets.domain.campaign import Action, Phase
from backfill_assets.domain.units import UnitState
from backfill_assets.domain.work import AttemptState, Work
from backfill_assets.ledger import SqlLedger, open_ledger
from backfill_assets.ledger.opening import MIGRATIONS
from backfill_assets_tests.unit.ledger.campaign_samples import a_campaign, an_approval, an_entry
from backfill_assets_tests.unit.ledger.samples import (
    LEASE,
    HandClock,
    a_delivery,
    a_hold,
    a_launch,
    a_manifest,
    a_unit,
    march,
    some_evidence,
)

pytestmark = pytest.mark.slow

EARLIER = sorted(script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions())[:-1]
CAMPAIGNS = "0004"


@pytest.fixture
def filled(tmp_path: Path, clock: HandClock) -> SqlLedger:
    """A ledger of now that holds something in each table of before."""
    ledger = open_ledger(f"sqlite:///{tmp_path}/filled/ledger.db", clock)
    for by, days in (("b_1", march(1, 9)), ("b_2", march(11, 12))):
        unit = ledger.assign(a_launch(days, by), a_unit(days, by))
        attempt = ledger.start_attempt(unit.id, "flights", days, f"r_{by}", LEASE)
        ledger.add_evidence(attempt.number, [some_evidence(unit.id, attempt.number, days[0])])
    ledger.add_deliveries([a_delivery(march(1)[0])])
    ledger.hold([a_hold(march(20)[0])])
    ledger.intend(a_manifest("rel_1", march(11), "u_b_2"))
    ledger.finalize("rel_1", 3, clock.now(), UnitState.published)
    with ledger.lock("flights", LEASE):
        pass
    return ledger


def laid_out_as_before(url: str, filled: SqlLedger, revision: str) -> None:
    """Bring a database to a revision and copy into it what that one knows of."""
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
        for table in before.sorted_tables:
            if table.name != "alembic_version":
                columns = [now.tables[table.name].c[column.name] for column in table.c]
                if rows := [dict(row) for row in reading.execute(select(*columns)).mappings()]:
                    connection.execute(insert(table), rows)
    assert ("campaigns" in before.tables) == ({"ended_at", "rows"} <= {*before.tables["attempts"].c.keys()})
    assert ("campaigns" in before.tables) == (revision >= CAMPAIGNS)
    engine.dispose()


@pytest.fixture(params=EARLIER)
def revision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def old_url(tmp_path: Path, url: str, filled: SqlLedger, revision: str) -> str:
    (tmp_path / "state").mkdir(exist_ok=True)
    laid_out_as_before(url, filled, revision)
    return url


def test_an_old_ledger_goes_up_and_keeps_what_it_held(
    old_url: str, revision: str, filled: SqlLedger, clock: HandClock
) -> None:
    ledger = open_ledger(old_url, clock)
    assert ledger.units() == filled.units() != ()
    assert ledger.claims("flights", march(1, 12)) == filled.claims("flights", march(1, 12)) != {}
    assert ledger.evidence("u_b_1") == filled.evidence("u_b_1") != {}
    assert ledger.deliveries("flights", march(1)) == filled.deliveries("flights", march(1)) != ()
    assert ledger.holds("flights") == filled.holds("flights") != ()
    assert ledger.releases() == filled.releases() != ()
    # Nobody wrote down before when attempts ended.
    known = filled.attempts()
    assert ledger.attempts() == (known if revision >= CAMPAIGNS else tuple(replace(a, ended_at=None) for a in known))
    assert [a.state for a in ledger.attempts()] == [AttemptState.running, AttemptState.lost]
    assert ledger.campaigns() == ()
    ledger.close()


def test_an_old_ledger_takes_campaigns_once_it_is_up(old_url: str, clock: HandClock) -> None:
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
