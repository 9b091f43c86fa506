"""One answer to what a unit is missing: a relaunch always builds exactly the days that a release would refuse."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from collections.abc import Callable, Collection
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.core.errors import EvidenceError
from backfill_assets.core.expected_change import Change, Clause, Contract
from backfill_assets.core.unit import Unit
from backfill_assets.evidence.readiness import Blocker
from backfill_assets_tests.harness.actors import SetBasis
from backfill_assets_tests.harness.tables import rows_of
from backfill_assets_tests.harness.world import World

DAYS = [dt.date(2026, 1, 1) + dt.timedelta(n) for n in range(3)]
_Days = Collection[dt.date]
_Event = Callable[[World, Unit, dt.date], tuple[_Days, _Days]]
"""An event of a day: the days whose evidence no longer allows a release, and those whose evidence now does."""


def delivered(world: World, _: Unit, day: dt.date) -> tuple[_Days, _Days]:
    basis(world).changed["sales", day] = world.ids.new("delivered")
    return [day], ()


def deployed(world: World, _: Unit, __: dt.date) -> tuple[_Days, _Days]:
    basis(world).codes["sales"] = world.ids.new("code")
    return DAYS, ()


def expected(world: World, unit: Unit, _: dt.date) -> tuple[_Days, _Days]:
    rows = Decimal(int(world.ids.new("").strip("_"), 36))
    world.ledger.set_contract(unit.id, Contract((Clause((), {"row_count": Change(rows, rows)}),)))
    return DAYS, ()


def compacted(world: World, _: Unit, __: dt.date) -> tuple[_Days, _Days]:
    DeltaTable(world.homes["sales"]).optimize.compact()
    return (), ()


def written(world: World, _: Unit, day: dt.date) -> tuple[_Days, _Days]:
    write_deltalake(world.homes["sales"], rows_of({day: [99]}), mode="append")
    return [day], ()


def built(world: World, unit: Unit, day: dt.date) -> tuple[_Days, _Days]:
    world.build(world.ledger.unit(unit.id), "sales", {day: [5]})
    return (), [day]


def failed(world: World, unit: Unit, day: dt.date) -> tuple[_Days, _Days]:
    world.build(world.ledger.unit(unit.id), "sales", {day: [6]}, passed=False)
    return [day], ()


def lost(world: World, unit: Unit, day: dt.date) -> tuple[_Days, _Days]:
    files = [
        file for (_, found), one in world.ledger.evidence(unit.id).items() for file in one.shadow_files if found == day
    ]
    assert files
    for file in files:
        (world.homes["sales"] / file.path).unlink(missing_ok=True)
    return [day], ()


def without_its_log(world: World, unit: Unit, day: dt.date) -> tuple[_Days, _Days]:
    """The log of the shadow with this day is gone, and with it all days of that shadow."""
    known = {found: one for (_, found), one in world.ledger.evidence(unit.id).items()}
    folder = world.homes["sales"] / known[day].folder
    shutil.rmtree(folder / "_delta_log", ignore_errors=True)
    return [other for other, one in known.items() if one.folder == known[day].folder], ()


EVENTS: tuple[_Event, ...] = (delivered, deployed, expected, compacted, written, built, failed, lost, without_its_log)


def built_over_several_files(world: World) -> Unit:
    """An open unit whose days have passed, over published days of two files each, which a compaction would join."""
    world.released({day: [1, 2] for day in DAYS})
    write_deltalake(world.homes["sales"], rows_of({day: [3] for day in DAYS}), mode="append")
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {day: [4] for day in DAYS})
    return unit


def basis(world: World) -> SetBasis:
    assert isinstance(world.basis, SetBasis)
    return world.basis


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from(DAYS)), max_size=5))
def test_a_relaunch_builds_exactly_the_days_that_a_release_would_refuse(events: list[tuple[_Event, dt.date]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        unit = built_over_several_files(world)
        good, rows = set(DAYS), {day: [4] for day in DAYS}
        for happens, day in events:
            bad, well = happens(world, unit, day)
            good = (good - set(bad)) | set(well)
            rows |= {one: [5] for one in well}
        blockers = world.publisher().blockers(unit.id)
        assert {blocker.day for blocker in blockers} == set(DAYS) - good
        assert world.days_to_build(unit.id, "sales") == tuple(sorted(set(DAYS) - good))
        for day in set(DAYS) - good:
            world.build(world.ledger.unit(unit.id), "sales", {day: [7]})
        assert world.days_to_build(unit.id, "sales") == ()
        world.publisher().release(unit.id)
        assert world.content() == {day: rows[day] if day in good else [7] for day in DAYS}
        world.close()


def test_compacted_files_are_read_once_however_often_they_are_checked(tmp_path: Path) -> None:
    world = World(tmp_path)
    unit = built_over_several_files(world)
    compacted(world, unit, DAYS[0])
    world.fingerprints.asked.clear()
    for _ in range(3):
        assert world.days_to_build(unit.id, "sales") == ()
        assert world.publisher().blockers(unit.id) == ()
    assert world.fingerprints.asked == [("sales", tuple(DAYS))]
    world.close()


def test_after_a_compaction_a_relaunch_builds_nothing_and_after_other_rows_their_day(tmp_path: Path) -> None:
    world = World(tmp_path)
    unit = built_over_several_files(world)
    compacted(world, unit, DAYS[0])
    assert world.days_to_build(unit.id, "sales") == ()
    written(world, unit, DAYS[1])
    assert world.days_to_build(unit.id, "sales") == (DAYS[1],)
    assert [blocker.reason for blocker in world.publisher().blockers(unit.id)] == [Blocker.published_moved]
    with pytest.raises(EvidenceError, match="the published day was rewritten"):
        world.publisher().release(unit.id)
    world.close()
