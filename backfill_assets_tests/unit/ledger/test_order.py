"""Numbers of the ledger give the order of events, whatever the clocks of the writers said."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace

import pytest

from backfill_assets.core.release import corrected
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


@pytest.mark.parametrize("seed", range(3))
def test_times_are_corrected_alike_however_many_releases_are_asked_for(
    ledger: Ledger, clock: FixedClock, seed: int
) -> None:
    chance, ever = random.Random(seed), set[str]()  # noqa: S311  # no secret
    intended, times = list[str](), dict[str, dt.datetime]()
    for step in range(40):
        clock.advance(chance.randint(-2, 3) * HOUR)
        if chance.random() < 0.6:
            intended.append(f"r_{step:02}")
            ledger.intend(a_manifest(intended[-1], march(1)))
        else:
            # Releases of several datasets end in another order than they begin, and some clocks are wrong.
            name = chance.choice(intended or [""])
            if name and name not in times:
                times[name] = clock.now() + chance.choice([0, 0, 0, -5, 5]) * HOUR
                ledger.finalize(name, 1, times[name], UnitState.published)
        wrong = corrected([(name, times[name]) for name in sorted(times)], clock.now())
        wanted = {name: wrong.get(name, times.get(name)) for name in intended}
        assert {r.manifest.release: r.since for r in ledger.releases()} == wanted
        assert {r.manifest.release: r.since for r in ledger.releases(most=2)} == {n: wanted[n] for n in intended[-2:]}
        assert {name: ledger.release(name).since for name in intended} == wanted
        ever |= wrong.keys()
    assert len(times) > 5
    assert ever


def test_releases_are_known_by_name_and_state(ledger: Ledger) -> None:
    for number in range(3):
        ledger.intend(a_manifest(f"r_{number}", march(1)))
    ledger.finalize("r_0", 1, NOON, UnitState.published)
    ledger.abandon("r_1")
    assert ledger.states() == {"r_0": "finalized", "r_1": "abandoned", "r_2": "intent"}
    assert ledger.known_releases(["r_2", "r_9"]) == {"r_2"}
    assert ledger.known_releases([]) == frozenset()
