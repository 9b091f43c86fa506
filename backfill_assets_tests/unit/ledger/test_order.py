"""Numbers of the ledger give the order of events, whatever the clocks of the writers said."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from backfill_assets.core.unit import UnitState
from backfill_assets.ledger.open import Ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.unit.ledger.proof_samples import a_certificate
from backfill_assets_tests.unit.ledger.samples import NOON, a_launch, a_manifest, a_unit, march

YEARS, HOUR = dt.timedelta(days=3653), dt.timedelta(hours=1)


def test_the_certificate_that_was_stored_last_comes_first(ledger: Ledger) -> None:
    ahead = replace(a_certificate(march(1), name="c_ahead"), disagreements=(), touched=(), at=NOON + YEARS)
    failed, behind = a_certificate(march(1), name="c_failed"), replace(a_certificate(march(1)), at=NOON - YEARS)
    for one in (ahead, failed, behind, failed):
        ledger.add_certificate(one)
    assert [one.id for one in ledger.certificates()] == ["c_1", "c_failed", "c_ahead"]


def test_the_release_that_was_stored_last_comes_first_and_no_window_ends_too_early_or_never(
    ledger: Ledger, clock: FixedClock
) -> None:
    ledger.assign(a_launch(march(1)), a_unit(march(1)))
    times = {
        "r_1": NOON,
        "r_ahead": NOON + YEARS,
        "r_behind": NOON - YEARS,
        "r_4": NOON + HOUR,
        "r_newest": NOON + YEARS,
    }
    for version, (name, at) in enumerate(times.items()):
        ledger.intend(a_manifest(name, march(1), created_at=at))
        ledger.finalize(name, version, at, UnitState.published)
    clock.advance(2 * HOUR)
    found = ledger.releases()
    assert [r.manifest.release for r in found] == [*times][::-1]
    assert {r.manifest.release: r.committed_at for r in found} == times
    since = {"r_1": NOON, "r_ahead": NOON, "r_behind": NOON, "r_4": NOON + HOUR, "r_newest": NOON + YEARS}
    assert {r.manifest.release: r.since for r in found} == since
    assert {name: ledger.release(name).since for name in times} == since
