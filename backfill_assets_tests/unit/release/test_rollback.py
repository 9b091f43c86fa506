from __future__ import annotations

import datetime as dt
import sqlite3
import threading
import time
from contextlib import closing

import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.errors import HeldDaysError, PreconditionError, RollbackError, UnitError
from backfill_assets.core.release import ReleaseKind, ReleaseState
from backfill_assets.core.unit import Hold, UnitState
from backfill_assets.release.readers import History
from backfill_assets_tests.harness.tables import day, rows_of
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

DAYS = [day(0), day(1), day(2)]


@pytest.fixture
def second(world: World) -> str:
    """The name of a release that replaced 1 by 2 on three days."""
    world.released({d: [1] for d in DAYS})
    return world.released({d: [2] for d in DAYS})


def overwrite(world: World, date: dt.date) -> None:
    """Another writer changes the day outside of any release."""
    write_deltalake(world.homes["sales"], rows_of({date: [99]}), mode="overwrite", predicate=f"day = '{date}'")


def test_a_release_is_rolled_back_completely(world: World, second: str) -> None:
    done = world.rollback().execute(second, "finance says no")
    assert world.content() == {d: [1] for d in DAYS}
    assert (done.undoes, done.days, done.left) == (second, tuple(DAYS), ())
    record = world.ledger.release(done.release)
    assert (record.manifest.kind, record.state) == (ReleaseKind.rollback, ReleaseState.finalized)
    assert world.ledger.unit(done.unit).state is UnitState.rolled_back
    assert world.tables["sales"].history()[0].release == done.release


def test_rolled_back_days_are_on_hold(world: World, second: str) -> None:
    world.rollback().execute(second, "finance says no", days=frozenset({day(1)}))
    (hold,) = world.ledger.holds("sales")
    assert (hold.target, hold.reason, hold.by) == (("sales", day(1)), "finance says no", "ada")


def test_a_later_publication_ends_the_holds_of_a_rollback_and_keeps_those_of_users(world: World, second: str) -> None:
    back = world.rollback().execute(second, "finance says no").release
    audit = Hold(("sales", day(2)), "an audit", "grace", world.clock.now())
    world.ledger.hold([audit])
    with pytest.raises(HeldDaysError):
        world.open_unit({"sales": [day(0)]}, live=True)
    third = world.released({d: [3] for d in DAYS})
    assert world.ledger.holds("sales") == (audit,)
    assert world.open_unit({"sales": [day(0)]}, live=True)
    found = {(c.release, c.day): c.ended_hold for c in History(world.ledger).of("sales") if c.ended_hold}
    assert found == {(third, d): back for d in DAYS}


def test_a_publication_that_is_half_taken_back_ends_no_hold(two: World) -> None:
    for name in ("orders", "sales"):
        release = two.released({day(0): [1]}, name)
        two.rollback().execute(release, "no")
    held = {name: two.ledger.holds(name) for name in ("orders", "sales")}
    unit = two.open_unit({"orders": [day(0)], "sales": [day(0)]})
    for name in ("orders", "sales"):
        two.build(unit, name, {day(0): [2]})
    file = two.homes["sales"] / two.ledger.evidence(unit.id)["sales", day(0)].shadow_files[0].path

    def damage(step: str) -> None:
        if step == "commit" and file.exists():
            file.rename(file.with_suffix(".away"))

    with pytest.raises(PreconditionError, match="missing or altered"):
        two.publisher(damage).release(unit.id)
    assert {name: two.ledger.holds(name) for name in ("orders", "sales")} == held
    file.with_suffix(".away").rename(file)
    two.publisher().release(unit.id)
    assert {name: two.ledger.holds(name) for name in ("orders", "sales")} == {"orders": (), "sales": ()}


def test_a_release_can_be_rolled_back_in_parts(world: World, second: str) -> None:
    first = world.rollback().execute(second, "one day", days=frozenset({day(1)}))
    assert world.content() == {day(0): [2], day(1): [1], day(2): [2]}
    assert world.ledger.unit(first.unit).state is UnitState.published
    rest = world.rollback().execute(second, "all of it")
    assert rest.days == (day(0), day(2))
    assert world.content() == {d: [1] for d in DAYS}
    assert world.ledger.unit(first.unit).state is UnitState.rolled_back


def test_days_written_since_stay_and_are_listed(world: World, second: str) -> None:
    third = world.released({day(1): [3]})
    plan = world.rollback().plan(second)
    assert (plan.rewritten, plan.left(frozenset())) == ((), (day(1),))
    assert [(c.release.release, c.days) for c in plan.covered] == [(third, (day(1),))]
    done = world.rollback().execute(second, "no")
    assert done.left == (day(1),)
    assert world.content() == {day(0): [1], day(1): [3], day(2): [1]}
    assert world.ledger.unit(done.unit).state is UnitState.published
    world.rollback().execute(third, "neither")
    assert world.content()[day(1)] == [2]
    world.rollback().execute(second, "now the last day")
    assert world.content() == {d: [1] for d in DAYS}
    assert world.ledger.unit(done.unit).state is UnitState.rolled_back


def test_a_rewritten_day_goes_back_with_consent(world: World, second: str) -> None:
    overwrite(world, day(1))
    assert world.rollback().plan(second).rewritten == (day(1),)
    done = world.rollback().execute(second, "no", consent_rewritten=frozenset({day(1)}))
    assert done.left == ()
    assert world.content() == {d: [1] for d in DAYS}


def test_a_release_below_later_ones_goes_back_after_them_even_with_consent(world: World, second: str) -> None:
    third, fourth = world.released({d: [3] for d in DAYS}), world.released({day(1): [4]})
    overwrite(world, day(1))
    for consent in (frozenset[dt.date](), frozenset(DAYS)):
        with pytest.raises(RollbackError) as refusal:
            world.rollback().execute(second, "no", consent_rewritten=consent)
        found = [str(refused) for refused in world.rollback().refusals(world.rollback().plan(second), consent)]
        assert str(refusal.value) == found[0]
        said = "; ".join(found)
        assert f"2026-01-02 show the later release {fourth} (ada, 2026-03-01 12:00:00 UTC)" in said
        assert f"roll that one back first: backfill rollback {third}" in said
    world.rollback().execute(fourth, "first this", consent_rewritten=frozenset({day(1)}))
    world.rollback().execute(third, "then this")
    world.rollback().execute(second, "no")
    assert world.content() == {d: [1] for d in DAYS}


def test_a_day_with_a_foreign_row_is_left_alone(world: World, second: str) -> None:
    write_deltalake(world.homes["sales"], rows_of({day(1): [99]}), mode="append")
    done = world.rollback().execute(second, "no")
    assert done.left == (day(1),)
    assert world.content() == {day(0): [1], day(1): [2, 99], day(2): [1]}
    with pytest.raises(RollbackError, match="2026-01-02 were rewritten since"):
        world.rollback().execute(second, "again")


def test_files_that_are_there_already_are_not_mixed(world: World, second: str) -> None:
    world.rollback().execute(second, "no")
    write_deltalake(world.homes["sales"], rows_of({day(1): [99]}), mode="append")
    with pytest.raises(RollbackError, match="2026-01-02 hold some of the files"):
        world.rollback().execute(second, "no", consent_rewritten=frozenset({day(1)}))


def test_a_rollback_twice_is_refused(world: World, second: str) -> None:
    world.rollback().execute(second, "no")
    version = world.tables["sales"].version()
    with pytest.raises(RollbackError, match=r"2026-01-01\.\.2026-01-03 are already as they were before it"):
        world.rollback().execute(second, "no")
    assert world.tables["sales"].version() == version


def test_files_that_are_gone_are_named_before_anything_happens(world: World, second: str) -> None:
    plan = world.rollback().plan(second)
    (lost,) = plan.swaps[1].add
    (world.homes["sales"] / lost.path).unlink()
    version = world.tables["sales"].version()
    assert world.rollback().plan(second).missing == (lost,)
    with pytest.raises(RollbackError, match=lost.path):
        world.rollback().execute(second, "no")
    assert world.tables["sales"].version() == version
    assert world.content() == {d: [2] for d in DAYS}
    world.rollback().execute(second, "the others", days=frozenset({day(0), day(2)}))
    assert world.content() == {day(0): [1], day(1): [2], day(2): [1]}


def test_a_vacuumed_file_is_noticed_up_front(world: World) -> None:
    home = world.homes["sales"]
    world.released({d: [1] for d in DAYS})
    write_deltalake(home, rows_of({day(1): [5]}), mode="append")
    DeltaTable(home).optimize.compact()
    third = world.released({d: [2] for d in DAYS})
    DeltaTable(home).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(RollbackError, match="gone or altered"):
        world.rollback().execute(third, "no")
    assert world.content() == {d: [2] for d in DAYS}


def test_a_release_cannot_be_rolled_back_after_its_window(world: World, second: str) -> None:
    world.clock.advance(dt.timedelta(days=30) - dt.timedelta(seconds=1))
    world.rollback().plan(second)
    world.clock.advance(dt.timedelta(seconds=1))
    with pytest.raises(RollbackError, match="was restorable until 2026-03-31"):
        world.rollback().execute(second, "no")


def test_a_rollback_is_not_rolled_back(world: World, second: str) -> None:
    done = world.rollback().execute(second, "no")
    with pytest.raises(RollbackError, match=f"backfill publish {done.unit}"):
        world.rollback().execute(done.release, "yes after all")


def test_a_republished_release_goes_back_by_its_new_name_only(world: World, second: str) -> None:
    done = world.rollback().execute(second, "no")
    world.clock.advance(dt.timedelta(minutes=1))
    again = world.publisher().release(done.unit).release
    with pytest.raises(RollbackError, match=f"show the later release {again} "):
        world.rollback().execute(second, "by the old name")
    world.rollback().execute(again, "by the new name")
    assert world.content() == {d: [1] for d in DAYS}
    assert world.ledger.unit(done.unit).state is UnitState.rolled_back


def test_days_outside_the_release_are_refused(world: World, second: str) -> None:
    with pytest.raises(RollbackError, match="does not have sales 2026-01-08"):
        world.rollback().plan(second, frozenset({day(7)}))


def test_a_release_that_does_not_exist_is_named(world: World, second: str) -> None:
    with pytest.raises(UnitError, match="r_none"):
        world.rollback().execute("r_none", "no")


def test_a_first_publication_goes_back_to_nothing(world: World) -> None:
    first = world.released({d: [1] for d in DAYS})
    world.rollback().execute(first, "no")
    assert world.content() == {}


def test_a_live_day_written_during_the_rollback_is_kept(world: World, second: str) -> None:
    seen = []

    def interfere(step: str) -> None:
        if step == "intend" and not seen:
            seen.append(step)
            write_deltalake(world.homes["sales"], rows_of({day(5): [8]}), mode="append")

    world.rollback(interfere).execute(second, "no")
    assert world.content() == {d: [1] for d in DAYS} | {day(5): [8]}


def test_both_datasets_of_a_unit_must_go_back_before_it_is_rolled_back(two: World) -> None:
    unit = two.open_unit({"orders": DAYS, "sales": DAYS})
    two.build(unit, "orders", {d: [1] for d in DAYS})
    two.build(unit, "sales", {d: [1] for d in DAYS})
    releases = two.publisher().release(unit.id).releases
    two.rollback().execute(releases["orders"], "no")
    assert two.ledger.unit(unit.id).state is UnitState.published
    two.rollback().execute(releases["sales"], "no")
    assert two.ledger.unit(unit.id).state is UnitState.rolled_back


def test_a_refused_commit_leaves_no_intent(world: World, second: str) -> None:
    def damage(step: str) -> None:
        if step == "intend":
            for swap in world.rollback().plan(second).swaps:
                (world.homes["sales"] / swap.add[0].path).unlink()

    with pytest.raises(PreconditionError):
        world.rollback(damage).execute(second, "no")
    assert world.ledger.releases("sales")[0].state is ReleaseState.abandoned


def with_a_ledger_from_a_backup(world: World) -> tuple[World, str, str]:
    """The same tables with a ledger that has lost the newer one of two releases; their names."""
    first = world.released({d: [1] for d in DAYS})
    file, backup = world.folder / "ledger.db", world.folder / "backup.db"
    with closing(sqlite3.connect(file)) as now, closing(sqlite3.connect(backup)) as then:
        now.backup(then)
    second = world.released({d: [2] for d in DAYS})
    world.close()
    for path in world.folder.glob("ledger.db*"):
        path.unlink()
    backup.rename(file)
    return World(world.folder, world.described, 5000), first, second


def test_releases_that_a_restored_ledger_has_lost_come_before_the_next_release(world: World) -> None:
    restored, first, second = with_a_ledger_from_a_backup(world)
    third = restored.released({d: [3] for d in DAYS})
    assert [r.manifest.release for r in restored.ledger.releases()] == [third, second, first]
    for release, left in ((third, 2), (second, 1)):
        restored.rollback().execute(release, "no")
        assert restored.content() == {d: [left] for d in DAYS}
    restored.close()


def test_a_release_waits_for_those_that_a_restored_ledger_has_lost(world: World) -> None:
    """Another process held the table's lock: the release continued without the lost ones, and no later step looked for them."""
    restored, first, second = with_a_ledger_from_a_backup(world)
    held = threading.Event()

    def hold() -> None:
        with restored.ledger.lock("publish:sales", restored.wait):
            held.set()
            time.sleep(2)

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    third = restored.released({d: [3] for d in DAYS})
    other.join()
    assert [r.manifest.release for r in restored.ledger.releases()] == [third, second, first]
    restored.close()
