"""One answer to what a unit is missing: a relaunch builds exactly the days that a release would refuse, whatever happened."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.core.errors import EvidenceError
from backfill_assets.core.expected_change import Change, Clause, Contract
from backfill_assets.core.unit import Unit
from backfill_assets.evidence.readiness import Fault
from backfill_assets_tests.harness.tables import rows_of
from backfill_assets_tests.harness.world import World

DAYS = [dt.date(2026, 1, 1) + dt.timedelta(n) for n in range(3)]
_Event = Callable[[World, Unit, dt.date], None]


def delivered(world: World, _: Unit, day: dt.date) -> None:
    world.basis.changed["sales", day] = "as delivered since"  # type: ignore[union-attr]


def deployed(world: World, _: Unit, __: dt.date) -> None:
    world.basis.codes["sales"] = "other c0de"  # type: ignore[union-attr]


def expected(world: World, unit: Unit, _: dt.date) -> None:
    world.ledger.set_contract(unit.id, Contract((Clause((), {"row_count": Change(0, 0)}),)))  # type: ignore[arg-type]


def compacted(world: World, _: Unit, __: dt.date) -> None:
    DeltaTable(world.homes["sales"]).optimize.compact()


def written(world: World, _: Unit, day: dt.date) -> None:
    write_deltalake(world.homes["sales"], rows_of({day: [99]}), mode="append")


def built(world: World, unit: Unit, day: dt.date) -> None:
    world.build(unit, "sales", {day: [5]})


def failed(world: World, unit: Unit, day: dt.date) -> None:
    world.build(unit, "sales", {day: [6]}, passed=False)


def lost(world: World, unit: Unit, day: dt.date) -> None:
    for (_, found), evidence in world.ledger.evidence(unit.id).items():
        for file in evidence.shadow_files if found == day else ():
            (world.homes["sales"] / file.path).unlink(missing_ok=True)


EVENTS: tuple[_Event, ...] = (delivered, deployed, expected, compacted, written, built, failed, lost)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from(DAYS)), max_size=5))
def test_a_relaunch_builds_exactly_the_days_that_a_release_would_refuse(events: list[tuple[_Event, dt.date]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.released({day: [1, 2] for day in DAYS})
        write_deltalake(world.homes["sales"], rows_of({day: [3] for day in DAYS}), mode="append")
        unit = world.open_unit({"sales": DAYS})
        world.build(unit, "sales", {day: [4] for day in DAYS})
        for happens, day in events:
            happens(world, unit, day)
        unit = world.ledger.unit(unit.id)
        todo, faults = world.days_to_build(unit.id, "sales"), world.publisher().missing(unit.id)
        assert todo == tuple(sorted({fault.day for fault in faults}))
        # What is built again is all that was missing.
        world.build(unit, "sales", {day: [7] for day in todo}) if todo else None
        assert world.days_to_build(unit.id, "sales") == ()
        world.publisher().release(unit.id)
        world.close()


def test_after_a_compaction_a_relaunch_builds_nothing_and_after_other_rows_their_day(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.released({day: [1, 2] for day in DAYS})
    write_deltalake(world.homes["sales"], rows_of({day: [3] for day in DAYS}), mode="append")
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {day: [4] for day in DAYS})
    compacted(world, unit, DAYS[0])
    assert world.days_to_build(unit.id, "sales") == ()
    written(world, unit, DAYS[1])
    assert world.days_to_build(unit.id, "sales") == (DAYS[1],)
    assert [fault.fault for fault in world.publisher().missing(unit.id)] == [Fault.published_moved]
    with pytest.raises(EvidenceError, match="the published day was rewritten"):
        world.publisher().release(unit.id)
    world.close()
