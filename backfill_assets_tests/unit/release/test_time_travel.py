"""Time travel: a release is read as the version that it made, and refused if that cannot be complete."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest
from deltalake import DeltaTable

from backfill_assets.core.errors import TimeTravelError, UnitError
from backfill_assets.core.release import ReleaseKind
from backfill_assets.release.readers import TimeTravel
from backfill_assets_tests.harness.between import Died, dies_at
from backfill_assets_tests.harness.clocks import START
from backfill_assets_tests.harness.tables import content, day
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

KEPT = dt.timedelta(days=37)
"""`retention.keep_for` of the test's datasets, and a week."""
LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def travel(world: World) -> TimeTravel:
    return TimeTravel(world.warehouse())


def test_a_release_is_the_complete_table_right_after_it(world: World) -> None:
    first = world.released({day(0): [1], day(1): [2]})
    second = world.released({day(0): [10]})
    world.released({day(2): [30]})
    versions = {r: travel(world).to_release("sales", r).version for r in (first, second)}
    assert content(world.homes["sales"], versions[first]) == {day(0): [1], day(1): [2]}
    assert content(world.homes["sales"], versions[second]) == {day(0): [10], day(1): [2]}


def test_a_rollback_is_a_release_with_a_version_of_its_own(world: World) -> None:
    first = world.released({day(0): [1]})
    second = world.released({day(0): [10]})
    back = world.rollback().execute(second, "wrong").release
    found = travel(world).to_release("sales", back)
    assert found.kind is ReleaseKind.rollback
    assert found.version == travel(world).to_release("sales", second).version + 1
    assert content(world.homes["sales"], found.version) == {day(0): [1]}
    assert travel(world).to_release("sales", first).version < found.version


def test_it_says_until_when_a_version_is_kept(world: World) -> None:
    release = world.released({day(0): [1]})
    found = travel(world).to_release("sales", release)
    assert (found.released_at, found.kept_until) == (START, START + KEPT)


def test_an_unknown_release_is_refused_with_the_known_ones(world: World) -> None:
    release = world.released({day(0): [1]})
    with pytest.raises(UnitError, match=rf"no release 'r_9999'.*{release}"):
        travel(world).to_release("sales", "r_9999")


def test_a_release_of_another_dataset_is_refused_by_its_name(tmp_path: Path) -> None:
    world = World(tmp_path, ("sales", "stock"))
    release = world.released({day(0): [1]}, "stock")
    world.released({day(0): [1]}, "sales")
    with pytest.raises(TimeTravelError, match=f"release {release} is of stock, not of sales"):
        travel(world).to_release("sales", release)
    world.close()


def test_a_release_that_never_was_committed_is_refused(world: World) -> None:
    world.released({day(0): [1]})
    unit = world.open_unit({"sales": [day(1)]})
    world.build(unit, "sales", {day(1): [2]})
    with pytest.raises(Died):
        world.publisher(dies_at("intend")).release(unit.id)
    (intent,) = [r.manifest.release for r in world.ledger.releases(unit=unit.id)]
    with pytest.raises(TimeTravelError, match=rf"release {intent} of sales was never committed \(intent\)"):
        travel(world).to_release("sales", intent)


def test_a_commit_that_the_ledger_does_not_know_is_found_in_the_log(world: World) -> None:
    unit = world.open_unit({"sales": [day(1)]})
    world.build(unit, "sales", {day(1): [2]})
    with pytest.raises(Died):
        world.publisher(dies_at("commit")).release(unit.id)
    (record,) = world.ledger.releases(unit=unit.id)
    assert record.version is None
    assert travel(world).to_release("sales", record.manifest.release).version == world.tables["sales"].version()


def test_a_version_can_be_read_until_its_time_is_over_however_often_the_sweep_runs(world: World) -> None:
    first = world.released({day(0): [1], day(1): [2]})
    world.released({day(0): [10]})
    before = travel(world).to_release("sales", first).version
    age(world.homes["sales"])
    world.clock.advance(KEPT - dt.timedelta(hours=1))
    world.sweep().execute()
    assert travel(world).to_release("sales", first).version == before
    assert content(world.homes["sales"], before) == {day(0): [1], day(1): [2]}


def test_after_a_sweep_beyond_its_time_a_release_is_refused_with_the_days_that_are_gone(world: World) -> None:
    first = world.released({day(0): [1], day(1): [2]})
    second = world.released({day(0): [10]})
    age(world.homes["sales"])
    world.clock.advance(KEPT + dt.timedelta(hours=1))
    world.sweep().execute()
    with pytest.raises(
        TimeTravelError, match=rf"release {first}: .* 1 of its 2 files have been cleaned up \({day(0)}\)"
    ):
        travel(world).to_release("sales", first)
    assert content(world.homes["sales"], travel(world).to_release("sales", second).version) == world.content()


def test_a_version_that_the_log_has_forgotten_is_refused(world: World) -> None:
    first = world.released({day(0): [1]})
    second = world.released({day(0): [10]})
    home = world.homes["sales"]
    DeltaTable(home).create_checkpoint()
    age(home)
    DeltaTable(home).cleanup_metadata()
    with pytest.raises(TimeTravelError, match="its log no longer has version 1"):
        travel(world).to_release("sales", first)
    assert travel(world).to_release("sales", second).version == world.tables["sales"].version()


def age(home: Path) -> None:
    """Make every file below a table look old: Delta's clean-up and the sweep use the time of modification."""
    for path in home.rglob("*"):
        if path.is_file():
            os.utime(path, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))
