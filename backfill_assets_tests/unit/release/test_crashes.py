"""A process dies by SIGKILL at every step of a release; reconciling makes the ledger true, once."""

from __future__ import annotations

import datetime as dt
import signal
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from deltalake import write_deltalake

from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import UnitState
from backfill_assets.doctor.findings import RECONCILE
from backfill_assets.release.finish import SettlementKind
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets_tests.harness.between import Died, between
from backfill_assets_tests.harness.tables import day, rows_of
from backfill_assets_tests.harness.world import World, explained, lost_ledger, repaired
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.release.crash import EXIT_CODES, start

pytestmark = [pytest.mark.faults, pytest.mark.slow]

DAYS = [day(0), day(1), day(2)]
OLD, NEW = {d: [1] for d in DAYS}, {d: [2] for d in DAYS}


def die(observed: Observed, world: World, what: str, target: str, where: str) -> None:
    step, _, count = where.partition(":")
    observed.injected(f"kill -9 of a {what} of {', '.join(world.homes)}, after {step} number {count}")
    process = start(world, what, target, where)
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    # The dead holder's lock expires.
    world.clock.advance(dt.timedelta(minutes=5))
    observed.found(*explained(world))


def exit_codes(processes: Sequence[BaseProcess]) -> list[int | None]:
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]


def waiting(world: World) -> str:
    """A unit that is ready to replace OLD by NEW."""
    world.released(OLD)
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", NEW)
    return unit.id


@pytest.mark.parametrize(
    ("where", "repair"),
    [
        ("manifest:1", None),
        ("intend:1", SettlementKind.abandoned),
        ("commit:1", SettlementKind.finalized),
        ("finalize:1", None),
        ("seal:1", None),
    ],
)
def test_a_publication_is_true_exactly_when_it_is_in_the_delta_log(
    observed: Observed, world: World, where: str, repair: SettlementKind | None
) -> None:
    unit = waiting(world)
    die(observed, world, "publish", unit, where)
    committed = where in {"commit:1", "finalize:1", "seal:1"}
    assert world.content() == (NEW if committed else OLD)
    assert [r.kind for r in world.reconcile().run()] == ([repair] if repair else [])
    assert world.reconcile().run() == ()
    assert world.ledger.unit(unit).state is (UnitState.published if committed else UnitState.open)
    outcome = world.publisher().release(unit)
    assert isinstance(outcome, AlreadyReleased if committed else Released)
    assert world.content() == NEW
    finalized = [r for r in world.ledger.releases(unit=unit) if r.state is ReleaseState.finalized]
    assert [r.manifest.release for r in finalized] == [outcome.release]
    repaired(world)


@pytest.mark.parametrize("where", ["manifest:1", "intend:1", "commit:1", "finalize:1", "seal:1"])
def test_publishing_again_after_a_crash_needs_no_other_command(observed: Observed, world: World, where: str) -> None:
    unit = waiting(world)
    die(observed, world, "publish", unit, where)
    outcome = world.publisher().release(unit)
    assert world.content() == NEW
    assert world.ledger.unit(unit).state is UnitState.published
    releases = [c.release for c in world.tables["sales"].history() if c.release]
    assert releases.count(outcome.release) == 1
    assert len(releases) == 2
    repaired(world)


@pytest.mark.parametrize("where", ["manifest:1", "intend:1", "commit:1", "finalize:1", "seal:1"])
def test_a_repair_is_enough_after_a_crash_whatever_the_step(observed: Observed, world: World, where: str) -> None:
    unit = waiting(world)
    die(observed, world, "publish", unit, where)
    repaired(world)
    committed = where in {"commit:1", "finalize:1", "seal:1"}
    assert world.content() == (NEW if committed else OLD)
    assert world.ledger.unit(unit).state is (UnitState.published if committed else UnitState.open)
    world.publisher().release(unit)
    assert world.content() == NEW
    repaired(world)


@pytest.mark.parametrize("where", ["intend:1", "commit:1", "finalize:1"])
def test_a_rollback_is_true_exactly_when_it_is_in_the_delta_log(observed: Observed, world: World, where: str) -> None:
    unit = waiting(world)
    release = world.publisher().release(unit).release
    die(observed, world, "rollback", release, where)
    committed = where != "intend:1"
    assert world.content() == (OLD if committed else NEW)
    world.reconcile().run()
    assert world.reconcile().run() == ()
    assert world.ledger.unit(unit).state is (UnitState.rolled_back if committed else UnitState.published)
    assert [h.target[1] for h in world.ledger.holds("sales")] == (DAYS if committed else [])
    repaired(world)


def test_half_a_unit_is_taken_back(observed: Observed, two: World) -> None:
    two.released(OLD, "orders")
    two.released(OLD, "sales")
    unit = two.open_unit({"orders": DAYS, "sales": DAYS})
    two.build(unit, "orders", NEW)
    two.build(unit, "sales", NEW)
    die(observed, two, "publish", unit.id, "commit:1")
    assert (two.content("orders"), two.content("sales")) == (NEW, OLD)
    assert {r.kind for r in two.reconcile().run()} == {SettlementKind.undone, SettlementKind.abandoned}
    assert (two.content("orders"), two.content("sales")) == (OLD, OLD)
    assert two.reconcile().run() == ()
    assert two.ledger.unit(unit.id).state is UnitState.open
    two.publisher().release(unit.id)
    assert (two.content("orders"), two.content("sales")) == (NEW, NEW)
    repaired(two)


@pytest.mark.parametrize("at", range(1, 6))
def test_a_crash_while_half_a_unit_is_taken_back_changes_nothing_about_the_end(
    observed: Observed, two: World, at: int
) -> None:
    observed.injected(
        f"a unit loses a shadow after the first of two commits, and a crash before call {at} of taking that back"
    )
    two.released(OLD, "orders")
    two.released(OLD, "sales")
    unit = two.open_unit({"orders": DAYS, "sales": DAYS})
    two.build(unit, "orders", NEW)
    two.build(unit, "sales", NEW)
    (file,) = two.ledger.evidence(unit.id)["sales", day(1)].shadow_files
    path, calls = two.homes["sales"] / file.path, list[str]()

    def damage(step: str) -> None:
        if step == "commit" and path.exists():
            path.rename(path.with_suffix(".away"))

    def die_at(call: str) -> None:
        if not path.exists():
            calls.append(call)
            # The first is the commit of sales, which is refused.
            if len(calls) > at:
                raise Died

    tables = {
        name: between(t, ("commit", "store_manifest", "restore_manifest"), before=die_at)
        for name, t in two.tables.items()
    }
    ledger = between(two.ledger, ("intend", "intend_undo", "finalize", "abandon"), before=die_at)
    with pytest.raises(Died):
        replace(two.publisher(damage), warehouse=replace(two.warehouse(), ledger=ledger, tables=tables)).release(
            unit.id
        )
    two.clock.advance(dt.timedelta(minutes=5))
    seen = explained(two)
    two.reconcile().run()
    assert (two.content("orders"), two.content("sales")) == (OLD, OLD)
    assert two.reconcile().run() == ()
    assert two.ledger.unit(unit.id).state is UnitState.open
    path.with_suffix(".away").rename(path)
    two.publisher().release(unit.id)
    assert (two.content("orders"), two.content("sales")) == (NEW, NEW)
    repaired(two)
    observed.found(*seen, "both tables stand as before, and the same unit is released in the end")


def test_what_was_committed_of_a_chain_is_taken_back_downstream_first(observed: Observed, tmp_path: Path) -> None:
    names = ("zones", "sales", "areas")
    world = World(tmp_path, ("zones", "sales<zones", "areas<sales"))
    unit = world.open_unit(dict.fromkeys(names, DAYS))
    for name in names:
        world.build(unit, name, NEW)
    die(observed, world, "publish", unit.id, "commit:2")
    assert (world.content("zones"), world.content("sales"), world.content("areas")) == (NEW, NEW, {})
    world.reconcile().run()
    assert [world.content(name) for name in names] == [{}, {}, {}]
    undone = [r.manifest.dataset for r in world.ledger.releases(unit=unit.id) if r.manifest.undoes]
    assert list(reversed(undone)) == ["sales", "zones"]
    repaired(world)
    world.close()


def test_a_complete_unit_of_two_datasets_is_finished(observed: Observed, two: World) -> None:
    unit = two.open_unit({"orders": DAYS, "sales": DAYS})
    two.build(unit, "orders", NEW)
    two.build(unit, "sales", NEW)
    die(observed, two, "publish", unit.id, "commit:2")
    assert [r.kind for r in two.reconcile().run()] == [SettlementKind.finalized] * 2
    assert two.ledger.unit(unit.id).state is UnitState.published
    assert (two.content("orders"), two.content("sales")) == (NEW, NEW)
    repaired(two)


def test_half_a_unit_that_another_writer_changed_is_left_alone(observed: Observed, two: World) -> None:
    unit = two.open_unit({"orders": DAYS, "sales": DAYS})
    two.build(unit, "orders", NEW)
    two.build(unit, "sales", NEW)
    die(observed, two, "publish", unit.id, "commit:1")
    write_deltalake(two.homes["orders"], rows_of({day(1): [99]}), mode="append")
    assert {r.kind for r in two.reconcile().run()} == {SettlementKind.stuck}
    assert two.content("orders") == NEW | {day(1): [2, 99]}


def test_an_intent_of_a_running_release_is_left_alone(world: World) -> None:
    unit = waiting(world)
    seen = []

    def look(step: str) -> None:
        if step == "intend":
            seen.extend(r.kind for r in world.reconcile().run())

    world.publisher(look).release(unit)
    assert seen == [SettlementKind.busy]
    assert world.content() == NEW


def test_two_processes_release_a_unit_once(observed: Observed, world: World) -> None:
    observed.injected("two processes publish the same unit at once")
    unit = waiting(world)
    before = world.tables["sales"].version()
    both = [start(world, "publish", unit, first_id=n) for n in (1000, 2000)]
    assert sorted(exit_codes(both), key=str) == [EXIT_CODES["Released"], EXIT_CODES["AlreadyReleased"]]
    assert world.tables["sales"].version() == before + 1
    assert world.content() == NEW
    assert world.doctor().examine() == ()
    observed.found("one has released it, the other finds it released; one commit")


def test_a_release_that_died_after_its_commit_is_not_taken_for_other_files(observed: Observed, world: World) -> None:
    die(observed, world, "publish", waiting(world), "commit:1")
    found = world.doctor().examine()
    assert any(finding.remedy == RECONCILE for finding in found)
    assert not [finding.what for finding in found if "readers see other files" in finding.what]


def test_two_processes_release_disjoint_units_at_once(observed: Observed, world: World) -> None:
    observed.injected("two processes publish units of different days of a table at once")
    world.released(OLD)
    units = []
    for d in (day(0), day(2)):
        unit = world.open_unit({"sales": [d]})
        world.build(unit, "sales", {d: [2]})
        units.append(unit.id)
    both = [start(world, "publish", unit, first_id=1000 * (i + 1)) for i, unit in enumerate(units)]
    assert exit_codes(both) == [0, 0]
    assert world.content() == {day(0): [2], day(1): [1], day(2): [2]}
    assert world.doctor().examine() == ()
    observed.found("both are released, and the day between them is as before")


def test_a_lost_ledger_is_rebuilt_from_the_manifests(observed: Observed, world: World) -> None:
    observed.injected("the ledger is lost")
    unit = waiting(world)
    release = world.publisher().release(unit).release
    world.clock.advance(dt.timedelta(minutes=1))
    part = world.rollback().execute(release, "one day", days=frozenset({day(1)})).release
    before = {r.manifest.release: (r.state, r.version, r.committed_at) for r in world.ledger.releases("sales")}
    found = lost_ledger(world)
    assert {r.kind for r in found.reconcile().run()} == {SettlementKind.rebuilt}
    assert found.reconcile().run() == ()
    after = {r.manifest.release: (r.state, r.version, r.committed_at) for r in found.ledger.releases("sales")}
    assert after == before
    assert part in after
    found.rollback().execute(release, "the rest too")
    assert found.content() == OLD
    assert found.doctor().examine() == ()
    found.close()
    observed.found(f"{len(after)} releases are back as they were: {', '.join(after)}")


def test_a_forged_manifest_is_not_used(observed: Observed, world: World) -> None:
    observed.injected("the ledger is lost, and a manifest beside the table names somebody else")
    release = world.released(OLD)
    path = world.homes["sales"] / "_releases" / f"{release}.json"
    path.write_text(path.read_text().replace('"by":"ada"', '"by":"eve"'))
    found = lost_ledger(world)
    assert [r.kind for r in found.reconcile().run()] == [SettlementKind.forged]
    assert found.ledger.releases("sales") == ()
    # No repair may decide this: only a backup has the committed manifest.
    assert [(f.what, f.repair) for f in found.doctor().examine()] == [
        (f"release {release} is in the Delta log of sales, but not in the ledger", None),
        (f"the manifest of release {release} on disk is not the one that was committed", None),
    ]
    assert found.content() == OLD
    found.close()
    observed.found("reconcile calls it forged and takes no release from it")
