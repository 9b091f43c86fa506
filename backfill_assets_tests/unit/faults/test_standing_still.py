"""A process that stands still for longer than its leases (a stopped machine, a ledger that is away), and then goes on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace

import pytest

from backfill_assets.core.errors import BackfillError, LedgerError, TakenBackError, UnitError
from backfill_assets.core.release import Manifest
from backfill_assets.core.unit import UnitState
from backfill_assets.delta.table import PublishedTable
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets.release.reconcile import SettlementKind
from backfill_assets_tests.harness.between import Died, between
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.faults.kit import DAYS, NEW, OLD, ready

pytestmark = [pytest.mark.faults, pytest.mark.slow]
BOTH = ("orders", "sales")


def ready_unit(two: World) -> str:
    """Readers see OLD in both tables, and a unit is ready to replace both by NEW."""
    for name in BOTH:
        two.released(OLD, name)
    unit = two.open_unit(dict.fromkeys(BOTH, DAYS))
    for name in BOTH:
        two.build(unit, name, NEW)
    return unit.id


def meanwhile(world: World, act: Callable[[World], object]) -> object:
    """Another process acts when all leases of this one are over."""
    world.clock.advance(dt.timedelta(minutes=5))
    other = World(world.folder, world.described, first_id=500, clock=world.clock)
    try:
        return act(other)
    finally:
        other.close()


def after(step: str, happens: Callable[[], object]) -> Callable[[str], None]:
    """A checkpoint at which something happens once."""
    left = [happens]

    def checkpoint(reached: str) -> None:
        if reached == step and left:
            left.pop()()

    return checkpoint


def contents(two: World) -> tuple[object, ...]:
    return tuple(two.content(name) for name in BOTH)


def assert_it_can_be_published_again(two: World, unit: str) -> None:
    assert contents(two) == (OLD, OLD)
    assert two.ledger.unit(unit).state is UnitState.open
    assert two.reconcile().run() == ()
    assert two.doctor().examine() == ()
    assert isinstance(two.publisher().release(unit), Released)
    assert contents(two) == (NEW, NEW)
    assert two.doctor().examine() == ()


def test_half_a_unit_is_never_published_by_a_process_that_stood_still_between_its_commits(
    two: World, observed: Observed
) -> None:
    unit = ready_unit(two)
    observed.injected(
        "a publication of two datasets stands still between its commits, while another process reconciles"
    )

    def reconciled() -> None:
        settled = meanwhile(two, lambda other: other.reconcile().run())
        assert {one.kind for one in settled} == {SettlementKind.undone, SettlementKind.abandoned}  # type: ignore[attr-defined]

    with pytest.raises(TakenBackError, match=f"took that back.*backfill publish {unit}") as refused:
        two.publisher(after("commit", reconciled)).release(unit)
    assert_it_can_be_published_again(two, unit)
    observed.found(refused.value, "both tables stand as before, and the same unit is released in the end")


def test_a_process_that_stood_still_takes_nothing_back_that_was_published_meanwhile(
    two: World, observed: Observed
) -> None:
    unit = ready_unit(two)
    observed.injected("a process that takes half a publication back stands still, while its publisher goes on")

    def dies(_: object = None) -> None:
        raise Died

    with pytest.raises(Died):
        two.publisher(after("commit", dies)).release(unit)
    two.clock.advance(dt.timedelta(minutes=5))
    records = {r.manifest.dataset: r.manifest for r in two.ledger.releases(unit=unit)}

    def goes_on() -> None:
        table = two.tables["sales"]
        versions = {records[name].release: two.tables[name].committed(records[name].release) for name in BOTH}
        versions[records["sales"].release] = table.commit(records["sales"], table.version())
        two.ledger.finalize_publication({release: version or 0 for release, version in versions.items()})

    ledger = between(two.ledger, {"intend"}, before=after("intend", goes_on))
    settled = replace(two.reconcile(), warehouse=replace(two.warehouse(), ledger=ledger)).run()
    assert "is published: no part of it is taken back alone" in settled[0].problem
    assert contents(two) == (NEW, NEW)
    assert two.ledger.unit(unit).state is UnitState.published
    assert two.reconcile().run() == ()
    assert isinstance(two.publisher().release(unit), AlreadyReleased)
    assert two.doctor().examine() == ()
    observed.found(settled[0].problem, "readers see the publication, whole")


def refused_commit(two: World, unit: str) -> Manifest:
    """Publish the unit: the commit of sales fails, and what was committed of orders is taken back."""

    class Refusing:
        def __getattr__(self, name: str) -> object:
            return getattr(two.tables["sales"], name)

        def commit(self, *_: object) -> int:
            raise BackfillError("timed out")

    tables: dict[str, PublishedTable] = {**two.tables, "sales": Refusing()}  # type: ignore[dict-item]
    with pytest.raises(BackfillError, match="timed out"):
        replace(two.publisher(), warehouse=replace(two.warehouse(), tables=tables)).release(unit)
    assert contents(two) == (OLD, OLD)
    return next(r.manifest for r in two.ledger.releases("sales", unit))


def test_a_commit_that_lands_after_its_unit_was_taken_back_is_taken_back_too(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    observed.injected("the store executes the second commit of a publication after its process gave it up")
    late = refused_commit(two, unit)
    two.tables["sales"].commit(late, two.tables["sales"].version())
    assert contents(two) == (OLD, NEW)
    (found,) = two.doctor().examine()
    assert {one.kind for one in two.reconcile().run()} == {SettlementKind.undone}
    assert_it_can_be_published_again(two, unit)
    observed.found(found.what, "taken back; the same unit is released in the end")


def test_a_unit_that_is_being_released_is_not_discarded(world: World, observed: Observed) -> None:
    unit = ready(world)
    world.wait = dt.timedelta(0)
    observed.injected("a unit is discarded while it is released")
    said = list[str]()

    def discarded() -> None:
        other = World(world.folder, world.described, first_id=500, clock=world.clock)
        with pytest.raises(LedgerError, match="publish:sales") as refused:
            other.reconcile().discard(unit, world.wait)
        said.append(str(refused.value))
        other.close()

    world.publisher(after("intend", discarded)).release(unit)
    assert world.content() == NEW
    with pytest.raises(UnitError, match="published, not open"):
        world.reconcile().discard(unit)
    assert world.doctor().examine() == ()
    observed.found(*said)


@pytest.mark.parametrize("step", ["intend", "commit"])
def test_nothing_of_a_discarded_unit_stays_published_by_a_process_that_stood_still(
    two: World, observed: Observed, step: str
) -> None:
    unit = ready_unit(two)
    observed.injected(f"a publication stands still after its {step}, while another process discards the unit")
    with pytest.raises(TakenBackError, match="was discarded while it was released") as refused:
        two.publisher(after(step, lambda: meanwhile(two, lambda other: other.reconcile().discard(unit)))).release(unit)
    assert contents(two) == (OLD, OLD)
    assert two.ledger.unit(unit).state is UnitState.discarded
    assert [two.ledger.holds(name) for name in BOTH] == [(), ()]
    assert two.reconcile().run() == ()
    assert two.doctor().examine() == ()
    observed.found(refused.value)


def test_a_late_commit_of_a_discarded_unit_is_taken_back(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    observed.injected("the store executes a commit after its process gave it up and the unit was discarded")
    late = refused_commit(two, unit)
    two.reconcile().discard(unit)
    two.tables["sales"].commit(late, two.tables["sales"].version())
    two.reconcile().run()
    assert contents(two) == (OLD, OLD)
    assert two.ledger.unit(unit).state is UnitState.discarded
    assert two.reconcile().run() == ()
    assert two.doctor().examine() == ()
    observed.found("taken back; the unit stays discarded")


def test_a_sweep_that_stood_still_deletes_nothing_that_is_published_again(world: World, observed: Observed) -> None:
    unit = ready(world, "rollback")
    release = next(r.manifest.release for r in world.ledger.releases(unit=unit))
    world.rollback().execute(release, "no")
    world.clock.advance(world.tables["sales"].keep_for - dt.timedelta(hours=1))
    assert isinstance(world.publisher().release(unit), Released)
    world.rollback().execute(world.ledger.releases(unit=unit)[0].manifest.release, "no")
    observed.injected("a sweep stands still before it deletes, while another process publishes the files again")
    world.clock.advance(dt.timedelta(days=400))
    delete, said = PublishedTable.delete, list[str]()

    def publishes_again(other: World) -> None:
        with pytest.raises(UnitError, match="its files are kept for") as refused:
            other.publisher().release(unit)
        said.append(str(refused.value))

    class Late:
        def __getattr__(self, name: str) -> object:
            return getattr(world.tables["sales"], name)

        def delete(self, paths: tuple[str, ...]) -> None:
            meanwhile(world, publishes_again)
            delete(world.tables["sales"], paths)

    tables: dict[str, PublishedTable] = {"sales": Late()}  # type: ignore[dict-item]
    (swept,) = replace(world.sweep(), warehouse=replace(world.warehouse(), tables=tables)).execute()
    assert swept.paths
    assert world.content() == OLD
    assert world.doctor().examine() == ()
    observed.found(*said)
