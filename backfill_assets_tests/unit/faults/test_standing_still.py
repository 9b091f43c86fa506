"""A process that stands still for longer than its leases (a stopped machine, a ledger that is away), and then goes on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.errors import (
    BackfillError,
    EvidenceError,
    LedgerError,
    PreconditionError,
    ReadBackError,
    TakenBackError,
    UnitError,
)
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import UnitState
from backfill_assets.delta.table import PublishedTable
from backfill_assets.release.finish import SettlementKind
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets_tests.harness.between import Died, between, dies_at
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.faults.kit import DAYS, NEW, OLD, ready
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

    half_of_it(two, unit)
    records = {r.manifest.dataset: r.manifest for r in two.ledger.releases(unit=unit)}

    def goes_on() -> None:
        table = two.tables["sales"]
        versions = {records[name].release: two.tables[name].committed(records[name].release) for name in BOTH}
        versions[records["sales"].release] = table.commit(records["sales"], table.version())
        two.ledger.finalize_publication({release: version or 0 for release, version in versions.items()})

    ledger = between(two.ledger, {"intend_undo"}, before=after("intend_undo", goes_on))
    settled = replace(two.reconcile(), warehouse=replace(two.warehouse(), ledger=ledger)).run()
    assert "is published: no part of it is taken back alone" in settled[0].problem
    assert contents(two) == (NEW, NEW)
    assert two.ledger.unit(unit).state is UnitState.published
    assert two.reconcile().run() == ()
    assert isinstance(two.publisher().release(unit), AlreadyReleased)
    assert two.doctor().examine() == ()
    observed.found(settled[0].problem, "readers see the publication, whole")


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


def test_the_next_release_of_a_table_takes_a_late_commit_back_first(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    observed.injected("as before, and nobody reconciles: the next release of the table does")
    late = refused_commit(two, unit)
    two.tables["sales"].commit(late, two.tables["sales"].version())
    two.released({LATER: [7]}, "sales")
    assert contents(two) == (OLD, {**OLD, LATER: [7]})
    assert two.reconcile().run() == ()
    assert two.doctor().examine() == ()
    observed.found("taken back, and the release is made")


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


def dies_at_its_next(two: World, unit: str, call: str, interrupted: Callable[[World], object]) -> None:
    """A publisher stands still between its commits, is taken back or discarded, goes on, and dies while it takes back the rest."""
    armed = list[str]()

    def watch(name: str) -> None:
        if armed and name == call:
            raise Died
        armed.extend([name] if name == "finalize_publication" else [])

    calls = {"finalize_publication", "intend_undo", "finalize", "commit"}
    ledger = between(two.ledger, calls, before=watch)
    tables = {name: between(table, calls, before=watch) for name, table in two.tables.items()}
    publisher = two.publisher(after("commit", lambda: meanwhile(two, interrupted)))
    with pytest.raises(Died):
        replace(publisher, warehouse=replace(two.warehouse(), ledger=ledger, tables=tables)).release(unit)
    two.clock.advance(dt.timedelta(minutes=5))


@pytest.mark.parametrize("call", ["intend_undo", "commit", "finalize"])
def test_whoever_dies_while_it_takes_back_leaves_the_rest_to_the_next(
    two: World, observed: Observed, call: str
) -> None:
    unit = ready_unit(two)
    observed.injected(f"a publication that stood still takes back what it committed, and dies before its {call}")
    dies_at_its_next(two, unit, call, lambda other: other.reconcile().run())
    two.reconcile().run()
    assert_it_can_be_published_again(two, unit)
    observed.found("reconcile takes the rest back; the same unit is released in the end")


@pytest.mark.parametrize("call", ["intend_undo", "commit", "finalize"])
def test_whoever_dies_while_it_takes_back_a_discarded_unit_leaves_the_rest_to_the_next(
    two: World, observed: Observed, call: str
) -> None:
    unit = ready_unit(two)
    observed.injected(
        f"a publication whose unit was discarded takes back what it committed, and dies before its {call}"
    )
    dies_at_its_next(two, unit, call, lambda other: other.reconcile().discard(unit))
    two.reconcile().run()
    assert contents(two) == (OLD, OLD)
    assert two.ledger.unit(unit).state is UnitState.discarded
    assert two.reconcile().run() == ()
    assert two.doctor().examine() == ()
    observed.found("reconcile takes the rest back")


def test_a_release_of_a_neighbour_gives_no_undo_up(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    neighbours = {name: two.open_unit({name: (LATER,)}) for name in BOTH}
    for name, neighbour in neighbours.items():
        two.build(neighbour, name, {LATER: [7]})

    observed.injected("a process dies after it announced that it takes half a publication back; then others publish")
    half_of_it(two, unit)
    ledger = between(two.ledger, {"intend_undo"}, after=dies_at("intend_undo"))
    with pytest.raises(Died):
        replace(two.reconcile(), warehouse=replace(two.warehouse(), ledger=ledger)).run()
    two.clock.advance(dt.timedelta(minutes=5))
    for neighbour in neighbours.values():
        assert isinstance(two.publisher().release(neighbour.id), Released)
    assert contents(two) == ({**OLD, LATER: [7]},) * 2
    assert two.ledger.unit(unit).state is UnitState.open
    assert two.reconcile().run() == ()
    assert two.doctor().examine() == ()
    observed.found("the first of them takes the half back")


@pytest.mark.parametrize("act", ["reconciled", "discarded"])
def test_an_undo_that_an_earlier_version_abandoned_is_completed(two: World, observed: Observed, act: str) -> None:
    unit = ready_unit(two)
    observed.injected("a ledger in which the undo of half a publication was abandoned before its commit")
    acts: Mapping[str, Callable[[World], object]] = {
        "reconciled": lambda other: other.reconcile().run(),
        "discarded": lambda other: other.reconcile().discard(unit),
    }
    dies_at_its_next(two, unit, "commit", acts[act])
    (undo,) = (r.manifest.release for r in two.ledger.releases(unit=unit, states={ReleaseState.intent}))
    two.ledger.abandon(undo)
    assert contents(two) != (OLD, OLD)
    two.reconcile().run()
    assert contents(two) == (OLD, OLD)
    assert two.ledger.release(undo).state is ReleaseState.finalized
    assert two.reconcile().run() == ()
    assert two.doctor().examine() == ()
    observed.found("reconcile completes it")


def test_half_a_publication_that_was_rewritten_ends_with_the_next_publication_of_its_unit(
    two: World, observed: Observed
) -> None:
    unit = ready_unit(two)
    half_of_it(two, unit)
    observed.injected(
        "another writer rewrites the half of a publication that is committed; then the unit is built and published"
    )
    write_deltalake(two.homes["orders"], DeltaTable(two.homes["orders"]).to_pyarrow_table(), mode="overwrite")
    assert {one.kind for one in two.reconcile().run()} == {SettlementKind.stuck}
    other = {d: [3] for d in DAYS}
    for name in BOTH:
        two.build(two.ledger.unit(unit), name, other)
    released = two.publisher().release(unit).releases
    assert contents(two) == (other, other)
    two.reconcile().run()
    assert two.reconcile().run() == ()
    assert [f for f in two.doctor().examine() if f.severity != "info" and "is no release" not in f.what] == []
    # Both tables can be released and rolled back as ever.
    two.rollback().execute(released["sales"], "no")
    two.released({LATER: [7]}, "sales")
    observed.found("the half is noted, and nothing of it is taken back")


def test_an_undo_whose_release_the_log_no_longer_has_blocks_only_its_own_table(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    dies_at_its_next(two, unit, "commit", lambda other: other.reconcile().discard(unit))
    (undo,) = (r.manifest for r in two.ledger.releases(unit=unit, states={ReleaseState.intent}))
    observed.injected("the log of a table is one of a backup, from before a release that has to be taken back")
    log = two.homes[undo.dataset] / "_delta_log"
    version = two.tables[undo.dataset].committed(undo.undoes)
    for path in log.glob(f"{version:020}*"):
        path.unlink()
    (other,) = set(BOTH) - {undo.dataset}
    two.released({LATER: [7]}, other)
    assert two.content(other) == {**OLD, LATER: [7]}
    with pytest.raises(PreconditionError, match=f"{undo.undoes} is in the ledger, but not in the log") as refused:
        two.released({LATER: [7]}, undo.dataset)
    assert two.reconcile().accept_older(undo.dataset) == (undo.undoes,)
    two.released({LATER: [7]}, undo.dataset)
    assert two.content(undo.dataset) == {**OLD, LATER: [7]}
    assert two.ledger.release(undo.release).state is ReleaseState.abandoned
    observed.found(refused.value, "the undo is given up once the table goes on as it is")


def rolled_back(two: World) -> str:
    """A unit of both tables that was published and rolled back."""
    unit = ready_unit(two)
    for release in two.publisher().release(unit).releases.values():
        two.rollback().execute(release, "no")
    two.clock.advance(dt.timedelta(minutes=1))
    return unit


def test_a_late_commit_of_a_unit_that_was_rolled_back_before_is_taken_back(two: World, observed: Observed) -> None:
    unit = rolled_back(two)
    observed.injected("a rolled-back unit is published again, in vain, and the store makes its second commit late")
    late = refused_commit(two, unit)
    assert two.ledger.unit(unit).state is UnitState.rolled_back
    two.tables["sales"].commit(late, two.tables["sales"].version())
    two.reconcile().run()
    assert contents(two) == (OLD, OLD)
    assert two.reconcile().run() == ()
    assert two.doctor().examine() == ()
    assert isinstance(two.publisher().release(unit), Released)
    observed.found("taken back; the same unit is released in the end")


def test_days_that_were_built_beside_a_late_commit_are_stale(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    observed.injected("the store makes a commit late; its unit is built and published again")
    late = refused_commit(two, unit)
    two.tables["sales"].commit(late, two.tables["sales"].version())
    other = {d: [3] for d in DAYS}
    for name in BOTH:
        two.build(two.ledger.unit(unit), name, other)
    with pytest.raises(EvidenceError, match="the published day was rewritten since") as refused:
        two.publisher().release(unit)
    assert contents(two) == (OLD, OLD)
    for name in BOTH:
        two.build(two.ledger.unit(unit), name, other)
    two.publisher().release(unit)
    assert contents(two) == (other, other)
    assert two.reconcile().run() == ()
    assert [f for f in two.doctor().examine() if f.severity != "info"] == []
    observed.found(refused.value, "the late commit is taken back; built once more, the unit is released")


def test_a_commit_that_cannot_be_read_back_keeps_its_days(two: World, observed: Observed) -> None:
    unit = rolled_back(two)
    observed.injected("a rolled-back unit is published again, and its last commit cannot be read back")

    class Unread:
        def __getattr__(self, name: str) -> object:
            return getattr(two.tables["sales"], name)

        def commit(self, *given: object) -> int:
            two.tables["sales"].commit(*given)  # type: ignore[arg-type]
            raise ReadBackError("it cannot be read now")

    tables: dict[str, PublishedTable] = {**two.tables, "sales": Unread()}  # type: ignore[dict-item]
    with pytest.raises(ReadBackError):
        replace(two.publisher(), warehouse=replace(two.warehouse(), tables=tables)).release(unit)
    assert two.ledger.unit(unit).state is UnitState.open
    two.reconcile().run()
    assert contents(two) == (NEW, NEW)
    assert two.ledger.unit(unit).state is UnitState.published
    assert two.doctor().examine() == ()
    observed.found("nobody else gets its days; reconcile finishes it")


def test_a_publisher_whose_unit_others_published_again_meanwhile_finds_it_published(
    two: World, observed: Observed
) -> None:
    unit = ready_unit(two)
    observed.injected("a publication stands still between its commits; others take its half back, and publish the unit")

    def again() -> None:
        meanwhile(two, lambda other: other.reconcile().run())
        meanwhile(two, lambda other: other.publisher().release(unit))

    assert isinstance(two.publisher(after("commit", again)).release(unit), AlreadyReleased)
    assert contents(two) == (NEW, NEW)
    assert two.reconcile().run() == ()
    assert two.doctor().examine() == ()
    observed.found("already released")


def test_a_publication_that_the_ledger_cannot_finalize_keeps_its_days(two: World, observed: Observed) -> None:
    unit = rolled_back(two)

    def away(_: str) -> None:
        raise LedgerError("the ledger is away")

    observed.injected("the ledger is away when both commits of a rolled-back unit that is published again are made")
    ledger = between(two.ledger, {"finalize_publication"}, before=away)
    with pytest.raises(LedgerError, match="the ledger is away"):
        replace(two.publisher(), warehouse=replace(two.warehouse(), ledger=ledger)).release(unit)
    assert contents(two) == (NEW, NEW)
    assert two.ledger.unit(unit).state is UnitState.open
    two.reconcile().run()
    assert two.ledger.unit(unit).state is UnitState.published
    assert two.doctor().examine() == ()
    observed.found("nobody else gets its days; reconcile finishes it")


def test_a_late_commit_that_others_have_published_over_needs_no_one(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    late = refused_commit(two, unit)
    two.tables["sales"].commit(late, two.tables["sales"].version())
    two.reconcile().discard(unit)
    observed.injected("the store executes a commit late; its unit is discarded, and another one publishes its days")
    other = {d: [4] for d in DAYS}
    two.released(other, "sales")
    # The first one finds that its files are gone, the second one that it need not be taken back.
    for _ in range(2):
        two.reconcile().run()
    assert contents(two) == (OLD, other)
    assert two.reconcile().run() == ()
    assert [f for f in two.doctor().examine() if f.severity != "info"] == []
    observed.found("nothing of it is left to take back")


def test_what_is_taken_back_leaves_a_unit_discarded_that_was_discarded_meanwhile(
    two: World, observed: Observed
) -> None:
    unit = ready_unit(two)
    late = refused_commit(two, unit)
    two.tables["sales"].commit(late, two.tables["sales"].version())
    observed.injected("a unit is discarded while reconcile takes a late commit of it back")
    discarded = after("intend_undo", lambda: meanwhile(two, lambda other: other.reconcile().discard(unit)))
    ledger = between(two.ledger, {"intend_undo"}, before=discarded)
    replace(two.reconcile(), warehouse=replace(two.warehouse(), ledger=ledger)).run()
    assert contents(two) == (OLD, OLD)
    assert two.ledger.unit(unit).state is UnitState.discarded
    assert two.reconcile().run() == ()
    assert two.doctor().examine() == ()
    observed.found("it stays discarded")


def test_days_that_are_claimed_meanwhile_do_not_keep_half_a_publication(two: World, observed: Observed) -> None:
    unit = rolled_back(two)
    commits = list[str]()

    def away(name: str) -> None:
        commits.extend([name] if name == "commit" else [])
        if len(commits) > 1:
            raise BackfillError("the store is away")

    calls = {"commit", "committed", "restore_manifest"}
    tables = {name: between(table, calls, before=away) for name, table in two.tables.items()}
    observed.injected(
        "the store is away from the second commit of a rolled-back unit on, and another unit claims its days"
    )
    with pytest.raises(BackfillError, match="the store is away"):
        replace(two.publisher(), warehouse=replace(two.warehouse(), tables=tables)).release(unit)
    two.clock.advance(dt.timedelta(minutes=5))
    claimed = two.open_unit({"orders": DAYS})
    two.reconcile().run()
    assert contents(two) == (OLD, OLD)
    assert two.ledger.unit(unit).state is UnitState.rolled_back
    assert two.reconcile().discard(claimed.id).state is UnitState.discarded
    assert two.doctor().examine() == ()
    assert isinstance(two.publisher().release(unit), Released)
    observed.found("the half is taken back, whoever has the days")


def test_a_unit_that_nobody_can_release_can_be_discarded(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    other = two.open_unit({"orders": (LATER,)})

    observed.injected(
        "a publication dies between its commits; then the folder of one dataset is gone, or a log is damaged"
    )
    half_of_it(two, unit)
    without = replace(two.warehouse(), tables={"orders": two.tables["orders"]})
    assert replace(two.reconcile(), warehouse=without).discard(unit).state is UnitState.discarded
    first = min((two.homes["orders"] / "_delta_log").glob("*.json"))
    whole = first.read_bytes()
    first.write_text("{")
    assert two.reconcile().discard(other.id).state is UnitState.discarded
    first.write_bytes(whole)
    two.reconcile().run()
    assert contents(two) == (OLD, OLD)
    assert two.doctor().examine() == ()
    observed.found("discarded; what was committed is taken back once that is possible")


def test_days_that_were_rolled_back_at_different_times_are_kept_from_the_first_on(
    world: World, observed: Observed
) -> None:
    unit = ready(world)
    release = world.publisher().release(unit).releases["sales"]
    observed.injected(
        "a unit is rolled back day by day, and published again when the files of its first day are no longer kept"
    )
    world.rollback().execute(release, "no", days=frozenset(DAYS[:1]))
    world.clock.advance(world.tables["sales"].keep_for - dt.timedelta(days=1))
    world.rollback().execute(release, "no", days=frozenset(DAYS[1:]))
    world.clock.advance(dt.timedelta(days=2))
    with pytest.raises(UnitError, match=f"its files of sales {DAYS[0]} are no longer kept") as refused:
        world.publisher().release(unit)
    observed.found(refused.value)


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
        with pytest.raises(UnitError, match=r"its files of .* are no longer kept") as refused:
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


def test_days_that_were_built_again_are_released_although_the_first_commit_came_late(
    world: World, observed: Observed
) -> None:
    world.released(OLD)
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", NEW)
    observed.injected("the store makes the commit of a unit of one table late, and its days are built again")
    late = refused_commit(world, unit.id)
    world.tables["sales"].commit(late, world.tables["sales"].version())
    other = {d: [3] for d in DAYS}
    world.build(unit, "sales", other)
    publisher = world.publisher()
    assert isinstance(publisher.release(unit.id, evidence_hash=publisher.evidence_hash(unit.id)), Released)
    assert world.content() == other
    observed.found("released; the late commit was published over")


def test_a_late_commit_beside_a_table_that_cannot_be_read_waits_for_reconcile(two: World, observed: Observed) -> None:
    unit = ready_unit(two)
    observed.injected("the store makes half a publication late, and the log of the other table is damaged")
    late = refused_commit(two, unit)
    two.tables["sales"].commit(late, two.tables["sales"].version())
    first = min((two.homes["orders"] / "_delta_log").glob("*.json"))
    kept = first.read_bytes()
    first.write_text("{", encoding="utf-8")
    two.released({LATER: [7]}, "sales")
    first.write_bytes(kept)
    two.reconcile().run()
    assert contents(two) == (OLD, {**OLD, LATER: [7]})
    assert two.doctor().examine() == ()
    observed.found("the next release of the healthy table is made; then the half is taken back")
