"""A ledger that was restored from a backup, or begun anew, learns from the logs what it does not know."""

from __future__ import annotations

import datetime as dt
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from backfill_assets.core.errors import ArgumentError, PreconditionError, TableMovedError
from backfill_assets.core.release import Manifest
from backfill_assets.core.unit import UnitState
from backfill_assets.delta.table import PublishedTable
from backfill_assets.release.finish import SettlementKind
from backfill_assets_tests.harness.world import World, lost_ledger, repaired
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.faults.kit import DAYS, NEW, OLD
from backfill_assets_tests.unit.faults.two_tables import (
    BOTH,
    LATER,
    assert_it_can_be_published_again,
    contents,
    half_of_it,
    ready_unit,
    refused_commit,
)

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def back_up(two: World) -> None:
    with (
        closing(sqlite3.connect(two.folder / "ledger.db")) as now,
        closing(sqlite3.connect(two.folder / "kept.db")) as kept,
    ):
        now.backup(kept)


def restored(two: World) -> World:
    """The same tables with the ledger of the backup."""
    two.ledger.close()
    for path in two.folder.glob("ledger.db*"):
        path.unlink()
    (two.folder / "kept.db").rename(two.folder / "ledger.db")
    return World(two.folder, two.described, first_id=500, clock=two.clock)


def test_a_restored_ledger_learns_what_was_taken_back(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    observed.injected(
        "the ledger is lost after half a publication was taken back, and restored from a backup before it"
    )
    back_up(two)
    refused_commit(two, unit)
    with closing(restored(two)) as again:
        again.reconcile().run()
        assert_it_can_be_published_again(again, unit)
        assert again.ledger.holds("orders") == ()
    observed.found("its unit is open, and can be published")


def test_a_restored_ledger_does_not_take_half_a_publication_for_all_of_it(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    observed.injected("a publication dies between its commits; the ledger is restored from a backup before it")
    back_up(two)
    half_of_it(two, unit)
    with closing(restored(two)) as again:
        settled = again.reconcile().run()
        assert {one.kind for one in settled} == {SettlementKind.undone, SettlementKind.abandoned}
        assert_it_can_be_published_again(again, unit)
    observed.found("the half is taken back; the same unit is released in the end")


def test_a_restored_ledger_takes_half_a_publication_back_before_it_publishes_others(
    two: World, observed: Observed
) -> None:
    unit = ready_unit(two)
    observed.injected("as before, and nobody reconciles: the next release of the table does")
    back_up(two)
    half_of_it(two, unit)
    with closing(restored(two)) as again:
        again.released({LATER: [7]}, "orders")
        assert contents(again) == ({**OLD, LATER: [7]}, OLD)
        assert again.ledger.unit(unit).state is UnitState.open
        assert again.reconcile().run() == ()
        assert again.doctor().examine() == ()
    observed.found("the half is taken back, and the release is made")


def test_half_a_publication_of_a_unit_that_a_restored_ledger_does_not_know_is_taken_back(
    two: World, observed: Observed
) -> None:
    for name in BOTH:
        two.released(OLD, name)
    observed.injected("a publication dies between its commits; the ledger is restored from a backup before its unit")
    back_up(two)
    unit = two.open_unit(dict.fromkeys(BOTH, DAYS))
    for name in BOTH:
        two.build(unit, name, NEW)
    half_of_it(two, unit.id)
    with closing(restored(two)) as again:
        again.reconcile().run()
        assert contents(again) == (OLD, OLD)
        assert again.reconcile().run() == ()
        assert [f for f in again.doctor().examine() if f.severity != "info"] == []
        again.released(NEW, "orders")
    observed.found("the half is taken back")


def test_a_late_commit_that_a_restored_ledger_does_not_know_is_taken_back(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    observed.injected("half a publication was taken back, and its other half came late; then the ledger is restored")
    back_up(two)
    late = refused_commit(two, unit)
    two.tables["sales"].commit(late, two.tables["sales"].version())
    with closing(restored(two)) as again:
        again.reconcile().run()
        assert_it_can_be_published_again(again, unit)
    observed.found("the late half is taken back, too")


def test_a_restored_ledger_learns_of_rollbacks_before_it_judges_half_a_publication(
    two: World, observed: Observed
) -> None:
    unit = ready_unit(two)
    releases = two.publisher().release(unit).releases
    observed.injected(
        "the ledger is restored from a backup before both tables were rolled back and half of them published again; then a table "
        "gets another release"
    )
    back_up(two)
    two.clock.advance(dt.timedelta(minutes=1))
    for release in releases.values():
        two.rollback().execute(release, "no")
    half_of_it(two, unit)
    with closing(restored(two)) as again:
        again.released({LATER: [7]}, "orders")
        assert contents(again) == ({**OLD, LATER: [7]}, OLD)
        assert again.ledger.unit(unit).state is UnitState.rolled_back
        assert again.reconcile().run() == ()
        assert again.doctor().examine() == ()
    observed.found("the half is taken back, and the unit is rolled back")


def test_a_new_ledger_keeps_a_publication_whose_first_round_failed(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    observed.injected(
        "another writer makes the first round of a publication fail, at the same time; the ledger is lost"
    )
    real, commits = two.tables["orders"], list[Manifest]()

    class Moved:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def commit(self, manifest: Manifest, base: int) -> int:
            commits.append(manifest)
            if len(commits) == 1:
                raise TableMovedError("moved")
            return real.commit(manifest, base)

    tables: dict[str, PublishedTable] = {**two.tables, "orders": Moved()}  # type: ignore[dict-item]
    replace(two.publisher(), warehouse=replace(two.warehouse(), tables=tables)).release(unit)
    assert commits[0].created_at == commits[1].created_at
    with closing(lost_ledger(two)) as again:
        settled = again.reconcile().run()
        assert {one.kind for one in settled} == {SettlementKind.rebuilt}
        assert contents(again) == (NEW, NEW)
    observed.found("both tables stay as they are")


def test_a_new_ledger_keeps_what_was_published_over_half_a_publication(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    half_of_it(two, unit)
    observed.injected("half a publication is undone by hand, and the unit published, whole; then the ledger is lost")
    orders = DeltaTable(two.homes["orders"])
    orders.restore(orders.version() - 1)
    two.reconcile().run()
    two.clock.advance(dt.timedelta(minutes=1))
    two.publisher().release(unit)
    with closing(lost_ledger(two)) as again:
        again.reconcile().run()
        assert contents(again) == (NEW, NEW)
        assert again.reconcile().run() == ()
    observed.found("both tables stay as they are")


def test_a_damaged_manifest_of_another_table_blocks_nobody(two: World, observed: Observed) -> None:
    ready_unit(two)
    observed.injected("the ledger is restored, and a manifest of another table cannot be read")
    back_up(two)
    two.released({LATER: [7]}, "orders")
    first = min((two.homes["sales"] / "_releases").glob("*.json"))
    first.write_text("{", encoding="utf-8")
    with closing(restored(two)) as again:
        later = LATER + dt.timedelta(days=1)
        again.released({later: [8]}, "orders")
        assert again.content("orders") == {**OLD, LATER: [7], later: [8]}
        (problem,) = again.reconcile().run()
        assert problem.kind is SettlementKind.unreadable
    observed.found(problem.problem)


@pytest.mark.parametrize("act", ["publish", "roll back"])
def test_nothing_is_released_to_a_table_that_is_older_than_its_ledger(
    world: World, observed: Observed, act: str
) -> None:
    """Its storage went back to a snapshot, or this is a copy of the warehouse, and the ledger went on."""
    observed.injected(f"the published table goes back to what it was before a release; then a {act}")
    first = world.released(OLD)
    home = world.homes["sales"]
    snapshot = shutil.copytree(home, home.with_name("snapshot"))
    lost = world.released({DAYS[0]: [2]})
    shutil.rmtree(home)
    snapshot.rename(home)
    before = world.content()
    unit = world.open_unit({"sales": DAYS[1:2]})
    world.build(unit, "sales", {DAYS[1]: [3]})
    acts: dict[str, Callable[[], object]] = {
        "publish": lambda: world.publisher().release(unit.id),
        "roll back": lambda: world.rollback().execute(first, "no"),
    }
    with pytest.raises(PreconditionError, match=rf"{lost} is in the ledger, but not in the log of .*older state") as no:
        acts[act]()
    assert world.content() == before
    observed.found(no.value, *(str(one) for one in world.doctor().examine() if lost in str(one)))
    assert any(lost in str(one) for one in world.doctor().examine())
    if act == "publish":
        assert world.reconcile().accept_older("sales") == (lost,)
        world.publisher().release(unit.id)
        assert world.content() == before | {DAYS[1]: [3]}
        repaired(world)
    with pytest.raises(ArgumentError, match="there is no such dataset; name one of sales"):
        world.reconcile().accept_older("sale")


def test_nothing_is_released_that_was_built_from_a_table_that_is_older_than_its_ledger(
    tmp_path: Path, observed: Observed
) -> None:
    observed.injected("an upstream goes back to what it was before a release; then its downstream is published")
    with closing(World(tmp_path, ("orders", "sales<orders"))) as world:
        world.released(OLD, "orders")
        home = world.homes["orders"]
        snapshot = shutil.copytree(home, home.with_name("snapshot"))
        lost = world.released({DAYS[0]: [2]}, "orders")
        shutil.rmtree(home)
        snapshot.rename(home)
        unit = world.open_unit({"sales": DAYS})
        world.build(unit, "sales", NEW)
        with pytest.raises(
            PreconditionError, match=f"orders: release {lost} is in the ledger, but not in the log"
        ) as no:
            world.publisher().release(unit.id)
        assert world.reconcile().accept_older("orders") == (lost,)
        with pytest.raises(ArgumentError, match="its log has all releases that the ledger has"):
            world.reconcile().accept_older("orders")
        world.publisher().release(unit.id)
        observed.found(no.value)
