"""If several hosts write to one ledger, its database gives the time."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from backfill_assets.application import Application
from backfill_assets.core.errors import LedgerError
from backfill_assets.ledger import open as module
from backfill_assets.ledger.database import LockPace
from backfill_assets.ledger.open import ledger_clock, open_ledger
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.unit.ledger.samples import LEASE, a_launch, a_unit, march

YEARS, MINUTE = dt.timedelta(days=3653), dt.timedelta(minutes=1)


def test_a_ledger_in_a_file_uses_the_clock_of_its_host(sqlite_url: str, clock: FixedClock) -> None:
    assert ledger_clock(sqlite_url, clock) is clock


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [YEARS, -YEARS], ids=["ahead", "behind"])
def test_a_host_whose_clock_is_wrong_dates_nothing_by_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, wrong: dt.timedelta
) -> None:
    right = SystemClock().now()
    monkeypatch.setattr(SystemClock, "now", lambda _: right + wrong)
    application = Application.from_env({"BACKFILL_ASSETS_LEDGER_URL": postgres_url})
    for moment in (application.clock.now(), application.clock.now()):
        assert abs(moment - right) < 5 * MINUTE
        assert moment.tzinfo is dt.UTC
    assert application.ids.new("r").startswith(f"r_{right:%Y}")
    application.ledger.assign(a_launch(march(1)), a_unit(march(1)))
    attempt = application.ledger.start_attempt("u_b_1", "flights", march(1), "r_1", LEASE)
    assert abs(attempt.lease_until - right - LEASE) < 5 * MINUTE


@pytest.mark.slow
def test_the_time_is_counted_on_and_asked_again(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ledger_clock(postgres_url, SystemClock())
    first = clock.now()
    later = clock.now()
    assert first < later < first + MINUTE
    monkeypatch.setattr(module, "ASK_AGAIN", dt.timedelta(0))
    asked = clock.now()
    assert later < asked < first + MINUTE

    asks = []

    def away(_: object) -> dt.datetime:
        asks.append(1)
        raise LedgerError("the database is away")

    monkeypatch.setattr(module.PostgresClock, "_asked", away)
    assert asked < clock.now() < first + MINUTE
    # It takes ten seconds to notice that the database does not answer: once a minute is enough.
    asks.clear()
    monkeypatch.setattr(module, "ASK_AGAIN", MINUTE)
    passed = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda counter: passed(counter) + 120)
    counted = clock.now()
    assert first + 2 * MINUTE < counted < clock.now() < first + 3 * MINUTE
    assert len(asks) == 1


@pytest.mark.slow
def test_a_database_that_is_gone_is_no_clock(postgres_url: str) -> None:
    clock = ledger_clock(postgres_url.replace("of_one_test", "gone"), SystemClock())
    with pytest.raises(LedgerError, match="gone"):
        clock.now()


@pytest.mark.slow
def test_a_living_holder_keeps_its_lock_from_a_host_that_is_a_day_ahead(postgres_url: str) -> None:
    class Ahead:
        """The clock of another host, a day ahead."""

        def now(self) -> dt.datetime:
            return SystemClock().now() + dt.timedelta(days=1)

    pace = LockPace(poll=dt.timedelta(milliseconds=5))
    here, there = (
        open_ledger(postgres_url, ledger_clock(postgres_url, own), lock_pace=pace) for own in (SystemClock(), Ahead())
    )
    with (
        here.lock("publish:sales", dt.timedelta(0)),
        pytest.raises(LedgerError, match="held by"),
        there.lock("publish:sales", dt.timedelta(0)),
    ):
        pytest.fail("two holders")
    here.close()
    there.close()
