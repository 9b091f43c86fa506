"""Releases: the contract of `Ledger` (locks have a file of their own)."""

from __future__ import annotations

import datetime as dt

import pytest

from backfill_assets.core.errors import UnitError
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import ReleaseHead, ReleaseRecord, UnitState
from backfill_assets.ledger.open import Ledger
from backfill_assets_tests.unit.ledger.samples import NOON, a_launch, a_manifest, a_unit, march

LATER = NOON + dt.timedelta(minutes=5)


@pytest.fixture
def unit(ledger: Ledger) -> str:
    return ledger.assign(a_launch(march(1, 4)), a_unit(march(1, 4))).id


def test_a_release_is_intended_and_then_true_and_its_unit_moves_with_it(ledger: Ledger, unit: str) -> None:
    manifest = a_manifest("r_1", march(1, 4))
    ledger.intend(manifest)
    assert ledger.release("r_1") == ReleaseRecord(manifest, ReleaseState.intent)
    assert ledger.unit(unit).state is UnitState.open
    ledger.finalize("r_1", 7, LATER, UnitState.published)
    assert ledger.release("r_1") == ReleaseRecord(manifest, ReleaseState.finalized, 7, LATER)
    assert ledger.unit(unit).state is UnitState.published
    assert ledger.claims("flights", march(1, 4)) == {}


def test_finalizing_again_changes_nothing_even_when_the_unit_has_moved_on(ledger: Ledger, unit: str) -> None:
    ledger.intend(a_manifest("r_1", march(1, 4)))
    ledger.finalize("r_1", 7, LATER, UnitState.published)
    ledger.move(unit, {UnitState.published}, UnitState.rolled_back)
    ledger.finalize("r_1", 8, NOON, UnitState.published)
    assert (ledger.release("r_1").version, ledger.release("r_1").committed_at) == (7, LATER)
    assert ledger.unit(unit).state is UnitState.rolled_back


def test_the_same_intent_again_changes_nothing_and_another_is_refused(ledger: Ledger) -> None:
    ledger.intend(a_manifest("r_1", march(1)))
    ledger.intend(a_manifest("r_1", march(1)))
    with pytest.raises(UnitError, match="another manifest"):
        ledger.intend(a_manifest("r_1", march(2)))
    assert len(ledger.releases()) == 1


def test_an_abandoned_intent_is_not_taken_up_again_but_a_commit_makes_it_true(ledger: Ledger, unit: str) -> None:
    ledger.intend(a_manifest("r_1", march(1)))
    ledger.abandon("r_1")
    ledger.abandon("r_1")
    assert ledger.release("r_1").state is ReleaseState.abandoned
    with pytest.raises(UnitError, match="abandoned"):
        ledger.intend(a_manifest("r_1", march(1)))
    ledger.finalize("r_1", 3, LATER, UnitState.published)
    assert ledger.release("r_1").state is ReleaseState.finalized
    assert ledger.unit(unit).state is UnitState.published


def test_a_committed_release_is_not_abandoned(ledger: Ledger) -> None:
    ledger.intend(a_manifest("r_1", march(1)))
    ledger.finalize("r_1", 3, LATER, UnitState.published)
    with pytest.raises(UnitError, match="backfill rollback r_1"):
        ledger.abandon("r_1")


def test_a_release_of_a_unit_that_the_ledger_lost_can_be_recorded(ledger: Ledger) -> None:
    ledger.intend(a_manifest("r_1", march(1), unit="u_lost"))
    ledger.finalize("r_1", 3, LATER, UnitState.published)
    assert ledger.releases(unit="u_lost")[0].version == 3


def test_an_unknown_release_is_refused_with_the_newest_ones(ledger: Ledger) -> None:
    with pytest.raises(UnitError, match="none exists yet"):
        ledger.release("r_x")
    for i in range(7):
        ledger.intend(a_manifest(f"r_{i}", march(1)))
    for refused in (
        lambda: ledger.release("r_x"),
        lambda: ledger.abandon("r_x"),
        lambda: ledger.finalize("r_x", 1, NOON, UnitState.published),
    ):
        with pytest.raises(UnitError, match="no release 'r_x'; the newest are r_6, r_5, r_4, r_3, r_2; see"):
            refused()


def test_releases_are_listed_newest_first_by_dataset_and_unit(ledger: Ledger) -> None:
    ledger.intend(a_manifest("r_ahead", march(1), created_at=LATER))
    ledger.intend(a_manifest("r_a", march(1)))
    ledger.intend(a_manifest("r_b", march(1), unit="u_2"))
    ledger.intend(a_manifest("r_c", march(1), dataset="orders"))
    assert [r.manifest.release for r in ledger.releases()] == ["r_c", "r_b", "r_a", "r_ahead"]
    assert [r.manifest.release for r in ledger.releases("flights")] == ["r_b", "r_a", "r_ahead"]
    assert [r.manifest.release for r in ledger.releases(unit="u_2")] == ["r_b"]
    assert ledger.releases("orders", "u_2") == ()


def test_releases_are_listed_by_state_and_their_standing_is_known_without_manifests(ledger: Ledger, unit: str) -> None:
    ledger.intend(a_manifest("r_done", march(1, 4)))
    ledger.finalize("r_done", 7, LATER, UnitState.published)
    ledger.intend(a_manifest("r_given_up", march(1)))
    ledger.abandon("r_given_up")
    ledger.intend(a_manifest("r_intent", march(1)))
    assert [r.manifest.release for r in ledger.releases(states={ReleaseState.intent})] == ["r_intent"]
    others = {ReleaseState.finalized, ReleaseState.abandoned}
    assert {r.manifest.release for r in ledger.releases("flights", states=others)} == {"r_done", "r_given_up"}
    assert ledger.heads() == {
        "r_done": ReleaseHead(ReleaseState.finalized, 7, LATER),
        "r_given_up": ReleaseHead(ReleaseState.abandoned),
        "r_intent": ReleaseHead(ReleaseState.intent),
    }
