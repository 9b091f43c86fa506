"""Shared by the cases of faults: a world ready to be published or rolled back, one command, and its required end."""

from __future__ import annotations

from dataclasses import replace

from backfill_assets.core.errors import BackfillError, RollbackError
from backfill_assets.core.release import ReleaseKind, ReleaseState
from backfill_assets_tests.harness.between import Happens, between
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.harness.world import World

DAYS = (day(0), day(1), day(2))
OLD, NEW = {d: [1] for d in DAYS}, {d: [2] for d in DAYS}
COMMANDS = ("publish", "rollback")
# Every call by which a release changes something, in the order of the calls.
STEPS = {
    "publish": ("store_manifest", "intend", "commit", "finalize_publication", "seal"),
    "rollback": ("store_manifest", "intend", "commit", "hold", "finalize"),
}
POINTS = [(command, step) for command in COMMANDS for step in STEPS[command]]


def ready(world: World, command: str = "publish") -> str:
    """Readers see OLD, and a unit is ready to replace it by NEW; or NEW was just published, if that is to be undone."""
    world.released(OLD)
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", NEW)
    if command == "rollback":
        world.publisher().release(unit.id)
    return unit.id


def say(world: World, command: str, unit: str, before: Happens | None = None) -> object:
    """Publish a unit or roll it back; `before` is called before each call that changes something."""
    calls = {call for steps in STEPS.values() for call in steps}
    watch = before or (lambda _call: None)
    ledger = between(world.ledger, calls, before=watch)
    tables = {name: between(table, calls, before=watch) for name, table in world.tables.items()}
    warehouse = replace(world.warehouse(), ledger=ledger, tables=tables)
    if command == "publish":
        return replace(world.publisher(), warehouse=warehouse).release(unit)
    rollback = replace(world.rollback(), warehouse=warehouse)
    return rollback.execute(published(world, unit), "no")


def published(world: World, unit: str) -> str:
    """The newest publication of a unit."""
    releases = world.ledger.releases(unit=unit, states={ReleaseState.finalized})
    return next(r.manifest.release for r in releases if r.manifest.kind is ReleaseKind.publish)


def refusal(world: World, command: str, unit: str, before: Happens) -> BackfillError | None:
    """The refusal of the command, if any; an error of another class fails the test."""
    try:
        say(world, command, unit, before)
    except BackfillError as error:
        return error
    return None


def assert_one_command_finishes_it(world: World, command: str, unit: str) -> tuple[object, ...]:
    """The same command again finishes it, once; returns its answer, and the findings before and after."""
    seen = world.content()
    assert seen in (OLD, NEW)
    try:
        answer: object = type(say(world, command, unit)).__name__
    except RollbackError as error:
        assert "are already as they were before it" in str(error)  # noqa: PT017  # only where the fault came late
        answer = "done already"
    assert world.content() == (NEW if command == "publish" else OLD)
    assert world.doctor().examine() == ()
    assert world.reconcile().run() == ()
    kinds = [r.manifest.kind for r in world.ledger.releases(unit=unit, states={ReleaseState.finalized})]
    assert kinds.count(ReleaseKind.publish) == 1
    assert kinds.count(ReleaseKind.rollback) == (command == "rollback")
    assert [a.number for a in world.ledger.attempts(unit)] == [2], "work that had passed was done again"
    assert not list(world.homes["sales"].glob(f"_shadow/{unit}/*/_delta_log"))
    return f"readers saw {'OLD' if seen == OLD else 'NEW'} whole", f"then {command}: {answer}", "the doctor: nothing"
