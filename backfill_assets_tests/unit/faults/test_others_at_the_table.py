"""Another writer changes the published table between the checks of a release and its commit: equal content is released."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.errors import BackfillError, EvidenceError, RollbackError
from backfill_assets_tests.harness.tables import day, rows_of
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.faults.kit import DAYS, NEW, OLD, published, say

pytestmark = [pytest.mark.faults, pytest.mark.slow]

INSIDE, OUTSIDE = day(1), day(9)
Content = Mapping[dt.date, list[int]]


def optimize(home: Path, target: dt.date) -> None:
    DeltaTable(home).optimize.z_order(["id"], partition_filters=[("day", "=", target.isoformat())])


def vacuum(home: Path, _target: dt.date) -> None:
    DeltaTable(home).vacuum(0, dry_run=False, enforce_retention_duration=False)


def delete(home: Path, target: dt.date) -> None:
    DeltaTable(home).delete(f"day = '{target.isoformat()}'")


def append(home: Path, target: dt.date) -> None:
    write_deltalake(home, rows_of({target: [7]}), mode="append")


def restore(home: Path, target: dt.date) -> None:
    """Back to a version in which the day had another content."""
    table = DeltaTable(home)
    table.restore({INSIDE: 1, OUTSIDE: table.version() - 1}[target])


STRANGERS: dict[str, Callable[[Path, dt.date], None]] = {
    "OPTIMIZE": optimize,
    "VACUUM": vacuum,
    "DELETE": delete,
    "RESTORE": restore,
    "an INSERT": append,
}


def once(world: World, step: str, stranger: Callable[[Path, dt.date], None], target: dt.date) -> Callable[[str], None]:
    """Lets the stranger write right before a step, the first time it is reached."""
    left = [stranger]

    def happens(call: str) -> None:
        if call == step and left:
            left.pop()(world.homes["sales"], target)

    return happens


def prepared(world: World, command: str) -> str:
    """OLD in the range, two rows in two commits outside of it, and NEW is ready, or published in order to be undone."""
    world.released({d: [0] for d in DAYS})
    world.released(OLD)
    unit = world.open_unit({"sales": DAYS})
    if command == "rollback":
        world.build(unit, "sales", NEW)
        world.publisher().release(unit.id)
    append(world.homes["sales"], OUTSIDE)
    append(world.homes["sales"], OUTSIDE)
    if command == "publish":
        world.build(unit, "sales", NEW)
    return unit.id


def assert_only_strangers_are_found(world: World, who: str) -> None:
    """The doctor names exactly the commits that were no release; a VACUUM changes nothing that is read."""
    own = {"VACUUM": [], "an INSERT": ["WRITE"]}.get(who, [who])
    found = [re.fullmatch(r"sales: version \d+ \((\w+), .*\) is no release", f.what) for f in world.doctor().examine()]
    assert [match and match[1] for match in found] == ["WRITE", "WRITE", *own]


def others(content: Content) -> Content:
    return {d: amounts for d, amounts in content.items() if d not in DAYS}


@pytest.mark.parametrize("target", [INSIDE, OUTSIDE], ids=["in the range", "outside of it"])
@pytest.mark.parametrize("who", STRANGERS)
def test_another_writer_changes_the_table_while_a_unit_is_published(
    world: World, observed: Observed, who: str, target: dt.date
) -> None:
    unit = prepared(world, "publish")
    before, seen = world.content(), []

    def look(home: Path, day_: dt.date) -> None:
        STRANGERS[who](home, day_)
        seen.append(world.content())

    harmless = target == OUTSIDE or who in {"OPTIMIZE", "VACUUM"}
    observed.injected(
        f"{who} of {target} between the checks of a publication of {DAYS[0]} to {DAYS[-1]} and its commit"
    )
    if harmless:
        say(world, "publish", unit, once(world, "commit", look, target))
        assert world.content() == {**seen[0], **NEW}
        assert {d: seen[0].get(d) for d in DAYS} == OLD
        observed.found("it went through; nothing of theirs is lost")
    else:
        with pytest.raises(EvidenceError, match="is stale: the published day was rewritten") as refused:
            say(world, "publish", unit, once(world, "commit", look, target))
        assert str(target) in str(refused.value) or who == "RESTORE"
        assert world.content() == seen[0] != before
        world.build(world.ledger.unit(unit), "sales", NEW)
        say(world, "publish", unit)
        assert world.content() == {**others(seen[0]), **NEW}
        observed.found(refused.value, "the days checked again are published")
    assert_only_strangers_are_found(world, who)
    assert world.reconcile().run() == ()


@pytest.mark.parametrize("target", [INSIDE, OUTSIDE], ids=["in the range", "outside of it"])
@pytest.mark.parametrize("who", STRANGERS)
def test_another_writer_changes_the_table_while_a_release_is_rolled_back(
    world: World, observed: Observed, who: str, target: dt.date
) -> None:
    unit = prepared(world, "rollback")
    seen = []

    def look(home: Path, day_: dt.date) -> None:
        STRANGERS[who](home, day_)
        seen.append(world.content())

    observed.injected(f"{who} of {target} between the plan of a rollback of {DAYS[0]} to {DAYS[-1]} and its commit")
    left: tuple[dt.date, ...] = ()
    try:
        left = tuple(getattr(say(world, "rollback", unit, once(world, "commit", look, target)), "left", ()))
        answer: object = f"it went through, and left {', '.join(map(str, left)) or 'no day'} for consent"
    except RollbackError as error:
        answer, left = error, DAYS
    expected_left = {("RESTORE", INSIDE): DAYS, ("VACUUM", INSIDE): ()}.get((who, target))
    expected_left = expected_left if expected_left is not None else (() if target == OUTSIDE else (INSIDE,))
    assert left == expected_left
    assert world.content() == {**seen[0], **{d: OLD[d] for d in DAYS if d not in left}}
    if left:
        with pytest.raises(RollbackError, match=r"rewritten|as they were") as why:
            say(world, "rollback", unit)
        observed.found(answer, why.value)
    else:
        observed.found(answer)
    assert_only_strangers_are_found(world, who)
    assert world.reconcile().run() == ()


def test_two_publishers_of_overlapping_history_leave_one_content_of_each_day(world: World, observed: Observed) -> None:
    world.released(OLD)
    first, live = world.open_unit({"sales": DAYS[:2]}), world.open_unit({"sales": DAYS[2:]})
    world.build(first, "sales", {d: [2] for d in DAYS[:2]})
    world.build(live, "sales", {DAYS[2]: [5]})
    observed.injected(
        "a live release of 2026-01-03 between the checks of a release of the two days before it and its commit"
    )
    world.clock.advance(dt.timedelta(minutes=1))
    publisher = world.publisher()

    def go_live(home: Path, _day: dt.date) -> None:
        # Like a process that did not wait for the lock, because its own had been taken over.
        table = world.tables["sales"]
        survey = publisher.survey(live.id)
        (manifest,) = publisher._manifests(survey, publisher.guard(survey), "")  # noqa: SLF001
        table.store_manifest(manifest)
        world.ledger.intend(manifest)
        table.commit(manifest, table.version())

    say(world, "publish", first.id, once(world, "commit", go_live, DAYS[2]))
    world.reconcile().run()
    assert world.content() == {DAYS[0]: [2], DAYS[1]: [2], DAYS[2]: [5]}
    assert world.doctor().examine() == ()
    observed.found("both are released, each day has the content of its own")


def test_a_rollback_during_a_publication_of_the_same_days_waits_or_is_refused(world: World, observed: Observed) -> None:
    world.released({d: [0] for d in DAYS})
    first = world.open_unit({"sales": DAYS})
    world.build(first, "sales", OLD)
    world.publisher().release(first.id)
    second = world.open_unit({"sales": DAYS})
    world.build(second, "sales", NEW)
    world.wait = dt.timedelta(0)
    answers: list[BackfillError] = []

    def undo(call: str) -> None:
        if call in {"intend", "commit", "finalize", "finalize_publication"} and len(answers) < 3:
            with pytest.raises(BackfillError) as refused:
                world.rollback().execute(published(world, first.id), "no")
            answers.append(refused.value)

    observed.injected("a rollback of the release below, before each step of a publication of the same days")
    say(world, "publish", second.id, undo)
    assert world.content() == NEW
    assert all("held by" in str(answer) for answer in answers)
    assert world.reconcile().run() == ()
    assert world.doctor().examine() == ()
    observed.found(*answers)
