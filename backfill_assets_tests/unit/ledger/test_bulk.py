"""Ten thousand days in one call: the number of statements does not grow with the days."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, event

from backfill_assets.core.days import day_range
from backfill_assets.core.unit import StagedDay, UnitState
from backfill_assets.ledger.open import Ledger
from backfill_assets_tests.unit.ledger.samples import (
    LEASE,
    NOON,
    a_delivery,
    a_hold,
    a_launch,
    a_manifest,
    a_unit,
    some_evidence,
)

pytestmark = pytest.mark.slow

START = dt.date(1992, 1, 1)
MANY = day_range(START, START + dt.timedelta(9_999))
EVERY_OTHER = MANY[::2]
SOME = MANY[:2_000]


@pytest.fixture
def statements() -> Iterator[Callable[[], int]]:
    """How many statements went to the database since the last call; bulk ones count once."""
    seen: list[str] = []

    def note(*happened: object) -> None:
        seen.append(str(happened[2]))

    event.listen(Engine, "before_cursor_execute", note)

    def since_last() -> int:
        number = len([s for s in seen if not s.startswith("BEGIN")])
        seen.clear()
        return number

    yield since_last
    event.remove(Engine, "before_cursor_execute", note)


def test_ten_thousand_days_are_assigned_attempted_proven_and_released_in_few_statements(
    ledger: Ledger, statements: Callable[[], int]
) -> None:
    unit = ledger.assign(a_launch(MANY), a_unit(MANY))
    assert unit.targets["flights"] == MANY
    attempt = ledger.start_attempt(unit.id, "flights", MANY, "r_1", LEASE)
    ledger.add_evidence(attempt.number, [some_evidence(unit.id, attempt.number, day) for day in SOME])
    assert [day for _, day in ledger.evidence(unit.id)] == list(SOME)
    manifest = a_manifest("r_1", MANY)
    ledger.intend(manifest)
    ledger.finalize("r_1", 1, NOON, UnitState.published)
    assert ledger.release("r_1").manifest == manifest
    assert ledger.claims("flights", MANY) == {}
    # Postgres takes its bulk inserts in pages of 1,000 rows.
    assert statements() < 100


def test_questions_about_ten_thousand_days_are_one_statement(ledger: Ledger, statements: Callable[[], int]) -> None:
    ledger.add_deliveries([a_delivery(day, f"{day}.csv") for day in MANY])
    ledger.add_staged([StagedDay("flights", day, "i", "c") for day in MANY])
    ledger.hold([a_hold(day) for day in MANY])
    statements()
    assert len(ledger.deliveries("flights", EVERY_OTHER)) == 5_000
    assert list(ledger.staged("flights", EVERY_OTHER)) == list(EVERY_OTHER)
    assert len(ledger.holds("flights", EVERY_OTHER)) == 5_000
    assert statements() == 3
    assert ledger.lift("flights", EVERY_OTHER) == 5_000
    assert statements() < 10
    assert len(ledger.holds("flights")) == 5_000
