from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.unit import UnitState
from backfill_assets.doctor.findings import Finding, FindingSeverity
from backfill_assets_tests.harness.tables import content, day, rows_of, write_shadow
from backfill_assets_tests.harness.world import LEASE, World

pytestmark = pytest.mark.slow

DAYS = [day(0), day(1), day(2)]
HOUR = dt.timedelta(hours=1)
WINDOW = dt.timedelta(days=37)


def date_all(world: World, name: str = "sales") -> None:
    """Give every file the world's own time, which differs from the machine's."""
    now = world.clock.now().timestamp()
    for path in world.homes[name].rglob("*"):
        if path.is_file():
            os.utime(path, (now, now))


def stored(world: World, name: str = "sales") -> set[str]:
    return {f.path for f in world.tables[name].stored_files()}


def test_nothing_is_swept_inside_the_window(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    world.released({d: [2] for d in DAYS})
    date_all(world)
    world.clock.advance(WINDOW - HOUR)
    assert [s.paths for s in world.sweep().execute()] == [()]


def test_superseded_files_are_swept_after_the_window_and_readers_notice_nothing(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    world.clock.advance(HOUR)
    world.released({d: [2] for d in DAYS})
    date_all(world)
    world.clock.advance(WINDOW + dt.timedelta(seconds=1))
    (planned,) = world.sweep().plan()
    before = stored(world)
    assert world.sweep().plan() == (planned,)
    assert planned.size == sum((world.homes["sales"] / p).stat().st_size for p in planned.paths)
    assert world.sweep().execute() == (planned,)
    assert stored(world) == before - set(planned.paths)
    assert len([p for p in planned.paths if p.endswith(".parquet")]) == len(DAYS)
    assert world.content() == {d: [2] for d in DAYS}
    assert not (world.homes["sales"] / Path(planned.paths[0]).parts[0] / Path(planned.paths[0]).parts[1]).exists()
    assert world.sweep().execute()[0].paths == ()


def test_an_open_unit_keeps_its_shadows_however_old(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    date_all(world)
    world.clock.advance(WINDOW * 3)
    assert world.sweep().execute()[0].paths == ()
    world.publisher().release(unit.id)
    assert world.content() == {d: [1] for d in DAYS}


def test_a_discarded_unit_is_swept_after_the_grace(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    date_all(world)
    world.clock.advance(HOUR - dt.timedelta(seconds=1))
    assert world.sweep().execute()[0].paths == ()
    world.clock.advance(dt.timedelta(seconds=1))
    assert len(world.sweep().execute()[0].paths) > len(DAYS)
    assert stored(world) == set()


def test_nothing_is_swept_from_a_table_that_has_lost_its_log(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    date_all(world)
    world.clock.advance(WINDOW * 3)
    log = world.homes["sales"] / "_delta_log"
    log.rename(log.with_name("elsewhere"))
    (swept,) = world.sweep().execute()
    assert (swept.paths, swept.problem) == (
        (),
        "sales has releases, and its published table has no log: nothing is deleted; restore its log from a backup",
    )
    log.with_name("elsewhere").rename(log)
    assert world.content() == {d: [1] for d in DAYS}


def test_a_running_attempt_keeps_its_own_folder_only(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    attempt = world.ledger.start_attempt(unit.id, "sales", DAYS, "run", LEASE)
    write_shadow(world.homes["sales"], attempt.folder, rows_of({day(0): [1]}))
    write_shadow(world.homes["sales"], f"_shadow/{unit.id}0/1", rows_of({day(0): [1]}))
    date_all(world)
    world.clock.advance(HOUR)
    world.sweep().execute()
    assert {p.split("/")[1] for p in stored(world)} == {unit.id}


def test_files_that_a_compaction_removed_are_kept_for_its_readers(world: World) -> None:
    # The machine dates a compaction, so the world's time has to reach the machine's.
    machine = dt.datetime.fromtimestamp(time.time(), dt.UTC)
    world.clock.advance(machine - WINDOW * 10 - world.clock.now())
    world.released({d: [1] for d in DAYS})
    home = world.homes["sales"]
    date_all(world)
    world.clock.advance(WINDOW * 10)
    old = DeltaTable(home)
    write_deltalake(home, rows_of({d: [2] for d in DAYS}), mode="append")
    DeltaTable(home).optimize.compact()
    assert world.sweep().execute()[0].paths == ()
    assert old.to_pyarrow_table().num_rows == len(DAYS)


def test_a_release_in_its_window_can_still_be_rolled_back_after_the_sweep(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    world.clock.advance(WINDOW)
    release = world.released({d: [2] for d in DAYS})
    date_all(world)
    world.clock.advance(dt.timedelta(days=29))
    world.sweep().execute()
    done = world.rollback().execute(release, "no")
    assert world.content() == {d: [1] for d in DAYS}
    world.clock.advance(dt.timedelta(days=29))
    world.sweep().execute()
    world.publisher().release(done.unit)
    assert world.content() == {d: [2] for d in DAYS}


def test_the_previous_version_reads_on_after_a_sweep(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    version = world.tables["sales"].version()
    world.released({d: [2] for d in DAYS})
    date_all(world)
    world.clock.advance(dt.timedelta(days=20))
    world.sweep().execute()
    assert DeltaTable(world.homes["sales"], version=version).to_pyarrow_table().num_rows == len(DAYS)


def test_a_healthy_world_has_no_findings(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    world.rollback().execute(world.released({d: [2] for d in DAYS}), "no")
    assert world.doctor().examine() == ()


def findings(world: World, gravity: FindingSeverity, text: str) -> list[Finding]:
    return [f for f in world.doctor().examine() if f.severity is gravity and text in f.what]


def test_a_missing_file_is_found(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    (file,) = world.tables["sales"].active()[day(1)]
    (world.homes["sales"] / file.path).unlink()
    (finding,) = findings(world, FindingSeverity.error, "files that readers see are gone")
    assert file.path in finding.what
    assert world.doctor().examine()[0] == finding


def test_a_release_that_cannot_be_restored_is_found(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    (file,) = world.tables["sales"].active()[day(1)]
    release = world.released({d: [2] for d in DAYS})
    (world.homes["sales"] / file.path).unlink()
    assert findings(world, FindingSeverity.warning, f"release {release} cannot be rolled back for 2026-01-02")


def test_a_foreign_writer_is_found(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    write_deltalake(world.homes["sales"], rows_of({day(1): [9]}), mode="append")
    (finding,) = findings(world, FindingSeverity.warning, "is no release")
    assert "version 2" in finding.what


def test_a_release_missing_in_the_ledger_is_found(world: World, tmp_path: Path) -> None:
    world.released({d: [1] for d in DAYS})
    world.close()
    (tmp_path / "ledger.db").unlink()
    fresh = World(tmp_path)
    assert findings(fresh, FindingSeverity.error, "but not in the ledger")
    fresh.reconcile().run()
    assert fresh.doctor().examine() == ()
    fresh.close()


def test_a_release_missing_in_the_delta_log_is_found(world: World, tmp_path: Path) -> None:
    world.released({d: [1] for d in DAYS})
    log = world.homes["sales"] / "_delta_log"
    (log / f"{1:020}.json").unlink()
    assert findings(world, FindingSeverity.error, "but not in the Delta log")


def test_a_forged_manifest_is_found(world: World) -> None:
    release = world.released({d: [1] for d in DAYS})
    path = world.homes["sales"] / "_releases" / f"{release}.json"
    path.write_text(path.read_text().replace('"by":"ada"', '"by":"eve"'))
    assert findings(world, FindingSeverity.error, "is not the one that was committed")
    path.unlink()
    assert findings(world, FindingSeverity.warning, "has no manifest beside its table")


def test_an_attempt_whose_lease_is_over_is_found(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.ledger.start_attempt(unit.id, "sales", DAYS, "run_7", LEASE)
    assert world.doctor().examine() == ()
    world.clock.advance(LEASE + HOUR)
    (finding,) = findings(world, FindingSeverity.warning, "its lease is over")
    assert "run_7" in finding.what


def test_an_old_open_unit_is_mentioned(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.clock.advance(dt.timedelta(days=7))
    (finding,) = world.doctor().examine()
    assert finding.severity is FindingSeverity.info
    assert f"backfill discard {unit.id}" in finding.remedy


@pytest.mark.parametrize("name", ["orders", "sales"])
def test_every_dataset_is_swept(two: World, name: str) -> None:
    unit = two.open_unit({name: DAYS})
    two.build(unit, name, {d: [1] for d in DAYS})
    two.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    date_all(two, name)
    two.clock.advance(HOUR)
    two.sweep().execute()
    assert stored(two, name) == set()
    assert content(two.homes[name]) == {}
