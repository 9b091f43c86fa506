"""A backup is of one moment: restored, readers see what they saw then, and all that was possible then is possible again."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill_assets.backup.folder import Backup, BackupFolder, sizes_in
from backfill_assets.backup.restore import RestoreBackup, Restored
from backfill_assets.backup.take import TakeBackup
from backfill_assets.campaign.state import WORKING, Action, Phase
from backfill_assets.core.errors import (
    BackfillError,
    BackupError,
    LayoutError,
    LedgerError,
    PreconditionError,
    StorageError,
)
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import AttemptState, Unit, UnitState
from backfill_assets.delta import opening
from backfill_assets.doctor.findings import FindingSeverity
from backfill_assets.release.adopt import Adoption
from backfill_assets.release.finish import no_checkpoint
from backfill_assets.storage.bucket import bucket_of
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.location import Copied, Location
from backfill_assets.storage.owner import owner_mark, require_owner, take_warehouse
from backfill_assets_tests.harness import postgres
from backfill_assets_tests.harness.actors import User
from backfill_assets_tests.harness.examples import examples
from backfill_assets_tests.harness.ledgers import Known
from backfill_assets_tests.harness.objects import BUCKET, ROOT_VARIABLE, object_store
from backfill_assets_tests.harness.tables import day, layout, rows_of
from backfill_assets_tests.harness.world import LEASE, World, repaired

pytestmark = pytest.mark.slow

DAYS = (day(0), day(1), day(2))
NO_WAIT = dt.timedelta(0)
_COPIES = itertools.count()


def land(world: World, *amounts: int, on: dt.date = DAYS[0], name: str = "sales") -> None:
    """Stand in for Spark: a commit of raw rows."""
    rows = pa.table({"_delivery_day": [on] * len(amounts), "_line": [str(amount) for amount in amounts]})
    write_deltalake(str(layout(world.folder).raw_path(name)), rows, partition_by=["_delivery_day"], mode="append")


def raw(world: World, name: str = "sales") -> list[str]:
    return sorted(row["_line"] for row in opening.rows_of(layout(world.folder).raw_path(name)).to_pylist())


def place(world: World) -> OnDisk:
    return OnDisk(world.folder.parent / f"{world.folder.name} backups")


def backup(world: World, keep: int = 0, during: Callable[[], object] | None = None) -> Backup:
    """Make a backup; something else may happen between its moment and the copying of the files."""

    def checkpoint(_: str) -> None:
        if during is not None:
            during()

    return TakeBackup(world.warehouse(), NO_WAIT, checkpoint).take(place(world), keep).backup


def saved(world: World, made: Backup) -> Mapping[str, Copied]:
    found = BackupFolder(place(world)).files_of(made.id)
    assert found is not None
    return found.files


def restored(
    world: World,
    name: str = "",
    into: Path | None = None,
    checkpoint: Callable[[str], None] = no_checkpoint,
    *,
    instead: bool = False,
) -> tuple[World, Restored]:
    """The world of a backup, elsewhere unless a folder is given; in its own folder, instead of its ledger."""
    folder = into or world.folder.parent / f"{world.folder.name} copy{next(_COPIES)}"
    url = f"sqlite:///{folder / 'ledger.db'}"
    instead = instead or folder == world.folder
    restoring = RestoreBackup(layout(folder), url, world.clock, User("ada"), checkpoint, instead_of_its_ledger=instead)
    done = restoring.run(place(world), name)
    return World(folder, world.described, 7000 + 100 * next(_COPIES), clock=world.clock), done


def problems(world: World) -> list[str]:
    """What the doctor finds but open units, which are none."""
    return [str(one) for one in world.doctor().examine() if one.severity is not FindingSeverity.info]


def without_ledger(world: World) -> World:
    """The same folder, whose ledger is lost."""
    world.close()
    for file in world.folder.glob("ledger.db*"):
        file.unlink()
    return world


def test_a_restored_warehouse_is_what_it_was_and_goes_on(world: World) -> None:
    land(world, 1, 2)
    world.released({d: [1] for d in DAYS})
    second = world.released({DAYS[0]: [2], DAYS[1]: [2]})
    made = backup(world)
    seen = world.content()
    land(world, 3)
    world.released({DAYS[0]: [3]})
    other, done = restored(world)
    assert (done.backup, len(done.warnings), done.files) == (made, 1, made.files)
    assert (other.content(), raw(other)) == (seen, ["1", "2"])
    assert (problems(other), other.reconcile().run()) == ([], ())
    assert [r.manifest.release for r in other.ledger.releases()] == [
        r.manifest.release for r in world.ledger.releases()
    ][1:]
    # All that was possible is: undo what was released before, publish on top of it, clean up.
    other.rollback().execute(second, "wrong")
    assert other.content() == {d: [1] for d in DAYS}
    other.released({DAYS[2]: [9]})
    assert other.content() == {DAYS[0]: [1], DAYS[1]: [1], DAYS[2]: [9]}
    other.sweep().execute()
    assert problems(other) == []
    other.close()
    assert world.content()[DAYS[0]] == [3], "the original is not touched"


def test_later_backups_share_files_and_old_ones_go(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    first = backup(world)
    again = TakeBackup(world.warehouse()).take(place(world))
    assert (again.new, again.size) == (0, 0)
    world.released({DAYS[0]: [2]})
    third = TakeBackup(world.warehouse()).take(place(world), keep=2)
    assert third.removed == (first.id,)
    assert 0 < third.new < third.backup.files
    folder = BackupFolder(place(world))
    assert [one.id for one in folder.all()] == [third.backup.id, again.backup.id]
    other, _ = restored(world, again.backup.id)
    assert other.content() == {d: [1] for d in DAYS}
    other.close()
    last = backup(world, keep=1)
    assert set(sizes_in(place(world) / "files")) == {
        f"{one.sha256[:2]}/{one.sha256}" for one in saved(world, last).values()
    }
    with pytest.raises(BackupError, match=f"no backup {first.id}; it has: {last.id}"):
        folder.chosen(first.id)
    other, _ = restored(world)
    assert other.content() == world.content()
    other.close()


def test_the_backup_just_made_stays_also_if_the_clock_was_set_back(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    backup(world)
    world.clock.advance(dt.timedelta(days=-2))
    made = backup(world, keep=1)
    assert BackupFolder(place(world)).all() == (made,)


def test_what_a_sweep_has_deleted_since_is_still_in_the_older_backup(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    first = backup(world)
    world.released({d: [2] for d in DAYS})
    world.clock.advance(dt.timedelta(days=400))
    assert [swept.paths for swept in world.sweep().execute()] != [()]
    backup(world)
    other, _ = restored(world, first.id)
    assert other.content() == {d: [1] for d in DAYS}
    other.close()


def test_only_what_belongs_to_the_moment_is_saved(world: World) -> None:
    world.released({DAYS[0]: [1]})
    land(world, 1)
    home = layout(world.folder).raw_path("sales")
    for name in ("_last_checkpoint", ".00000000000000000001.json.tmp", f"{0:020}.json#1"):
        (home / "_delta_log" / name).write("{}")
    (home / "_delivery_day=2026-01-01" / "part-9-of-somebody.parquet").write("half")
    (layout(world.folder).published_path("sales") / "_shadow" / "t_of_a_proof" / "1" / "part-0.parquet").write(
        "scratch"
    )
    kept = saved(world, backup(world))
    assert [path for path in kept if "of-somebody" in path or "t_of_a_proof" in path] == []
    assert [path for path in kept if path.startswith("raw/sales/_delta_log")] == [f"raw/sales/_delta_log/{0:020}.json"]


# Others work between the moment and the copying.


def opened(world: World, amount: int) -> Unit:
    """A unit that is built, and can be released."""
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [amount] for d in DAYS})
    return unit


def test_an_open_unit_can_still_be_released_also_if_it_was_meanwhile(world: World) -> None:
    world.released({DAYS[0]: [1]})
    unit = opened(world, 5)
    backup(world, during=lambda: world.publisher().release(unit.id))
    assert world.content() == {d: [5] for d in DAYS}
    other, _ = restored(world)
    assert (other.content(), other.ledger.unit(unit.id).state) == ({DAYS[0]: [1]}, UnitState.open)
    other.publisher().release(unit.id)
    assert other.content() == {d: [5] for d in DAYS}
    repaired(other)
    other.close()


def test_attempts_that_begin_meanwhile_or_are_running_leave_nothing_in_the_backup(world: World) -> None:
    world.released({DAYS[0]: [1]})
    unit = opened(world, 5)
    running = world.ledger.start_attempt(unit.id, "sales", DAYS[:1], "run_of_a_worker", LEASE)
    half = layout(world.folder).published_path("sales") / running.folder / "day=2026-01-01" / "part-0.parquet"
    half.write("half")

    def during() -> None:
        half.write("and the other half")
        world.build(unit, "sales", {DAYS[1]: [8]})

    first = backup(world, during=during)
    folders = [f"/{unit.id}/{running.number + later}/" for later in (0, 1)]
    assert (world.homes["sales"] / f"_shadow{folders[1]}").is_dir()
    assert [path for path in saved(world, first) if any(folder in path for folder in folders)] == []
    backup(world)
    other, _ = restored(world, first.id)
    assert {one.number: one.state for one in other.ledger.attempts(unit.id)}[running.number] is AttemptState.lost
    assert other.ledger.attempts(unit.id)[-1].number == running.number
    other.build(unit, "sales", {DAYS[0]: [6]})
    other.publisher().release(unit.id)
    assert other.content() == {DAYS[0]: [6], DAYS[1]: [5], DAYS[2]: [5]}
    other.close()


def test_a_file_that_goes_while_it_is_copied_ends_the_backup_only_if_it_is_needed(world: World) -> None:
    world.released({DAYS[0]: [1]})
    unit = opened(world, 5)
    world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    shadow = world.homes["sales"] / world.ledger.attempts(unit.id)[0].folder
    made = backup(world, during=lambda: next(shadow.rglob("part-*.parquet")).unlink())
    restored(world, made.id)[0].close()
    (file,) = next(iter(world.tables["sales"].active().values()))
    with pytest.raises(
        BackupError, match=r"1 file that readers or a rollback need changed or went .+ repeat the backup"
    ):
        backup(without_known(world), during=(world.homes["sales"] / file.path).unlink)
    assert BackupFolder(place(world)).all() == ()


@pytest.mark.parametrize("cut", [True, False])
def test_a_table_that_has_lost_what_readers_see_is_not_backed_up(world: World, *, cut: bool) -> None:
    """Soon no backup would have it any more."""
    world.released({DAYS[0]: [1]})
    made = backup(world)
    (active,) = world.tables["sales"].active()[DAYS[0]]
    file = world.homes["sales"] / active.path
    left = file.read_bytes()[:100]
    file.unlink()
    if cut:
        file.write_bytes(left)
    expected = f"version 1: {active.path} should have {active.size:,} bytes and has {100 if cut else 0}; 1 file"
    with pytest.raises(BackupError, match=expected):
        backup(world, keep=1)
    assert BackupFolder(place(world)).all() == (made,)


def without_known(world: World) -> World:
    """Forget all backups."""
    folder = place(world).path
    folder.rename(folder.with_name(f"{folder.name} of before"))
    return world


@contextmanager
def landing(world: World) -> Iterator[None]:
    with world.ledger.driver("raw/sales", "spark of somebody", NO_WAIT):
        yield


@contextmanager
def releasing(world: World) -> Iterator[None]:
    with world.ledger.lock("publish:sales", NO_WAIT):
        yield


@pytest.mark.parametrize("work", [landing, releasing])
def test_it_waits_for_work_whose_commit_is_not_in_the_ledger_yet(world: World, work: object) -> None:
    world.released({DAYS[0]: [1]})
    assert callable(work)
    with work(world), pytest.raises(BackupError, match=r"were at work all the time \(lock .+: held by .+\)"):
        backup(world)
    assert BackupFolder(place(world)).all() == ()
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        stack.enter_context(work(world))
        waiting = pool.submit(TakeBackup(world.warehouse(), dt.timedelta(seconds=60)).take, place(world))
        time.sleep(1)
        assert not waiting.done()
        stack.close()
        assert waiting.result().backup.files > 0


def test_one_backup_is_made_at_a_time(world: World) -> None:
    world.released({DAYS[0]: [1]})

    def during() -> None:
        with pytest.raises(LedgerError, match="lock 'backup': held by"):
            backup(world)
        # Landings and releases do not wait for the copying.
        with landing(world), releasing(world):
            pass

    assert backup(world, during=during).files > 0


@pytest.mark.parametrize("last", ["manifest", "intend", "commit", "finalize"])
def test_a_release_that_crashed_before_the_backup_is_completed_after_the_restore(world: World, last: str) -> None:
    unit = opened(world, 5)

    def crash(step: str) -> None:
        if step == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.publisher(crash).release(unit.id)
    backup(world)
    other, _ = restored(world)
    other.reconcile().run()
    other.publisher().release(unit.id)
    repaired(other)
    assert other.content() == {d: [5] for d in DAYS}
    assert [r.state for r in other.ledger.releases()].count(ReleaseState.finalized) == 1
    assert other.ledger.unit(unit.id).state is UnitState.published
    other.close()


# Damage, and what is refused.


def file_of(world: World, made: Backup, path: str) -> Path:
    """Where the backup has a file of the published table."""
    one = saved(world, made)[f"published/sales/{path}"]
    return place(world).path / "files" / one.sha256[:2] / one.sha256


def flipped(file: Path) -> bytes:
    """Change one byte of a file; returns what it was."""
    before = file.read_bytes()
    content = bytearray(before)
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    return before


def test_a_changed_byte_is_noticed_before_anything_counts_and_the_restore_can_be_repeated(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    made = backup(world)
    (active,) = world.tables["sales"].active()[DAYS[0]]
    file = file_of(world, made, active.path)
    before = flipped(file)
    into = world.folder.parent / f"{world.folder.name} elsewhere"
    with pytest.raises(StorageError, match=r"is damaged: its bytes are not those that were saved there"):
        restored(world, into=into)
    assert not (into / "warehouse" / "published" / "sales" / active.path).exists()
    file.write_bytes(before)
    other, _ = restored(world, into=into)
    assert (other.content(), problems(other)) == (world.content(), [])
    other.close()


def test_a_changed_byte_of_the_ledger_is_noticed(world: World) -> None:
    world.released({DAYS[0]: [1]})
    made = backup(world)
    flipped(place(world).path / "backups" / made.id / "ledger.db")
    with pytest.raises(StorageError, match=r"ledger.db is damaged"):
        restored(world)


def test_a_backup_is_verified_byte_by_byte_and_what_is_damaged_is_stored_again(world: World) -> None:
    world.released({DAYS[0]: [1]})
    first = backup(world)
    world.released({DAYS[1]: [2]})
    second = backup(world)
    folder = BackupFolder(place(world))
    assert folder.damaged([first, second]) == {first.id: (), second.id: ()}
    both, own = (file_of(world, second, world.tables["sales"].active()[d][0].path) for d in DAYS[:2])
    flipped(both)
    own.unlink()
    assert folder.damaged([first, second]) == {
        first.id: (OnDisk(both),),
        second.id: tuple(sorted([OnDisk(both), OnDisk(own)])),
    }
    both.unlink()
    backup(world)
    assert folder.damaged(folder.all()) == {one.id: () for one in folder.all()}
    ledger, listed = (place(world).path / "backups" / first.id / name for name in ("ledger.db", "files.json"))
    flipped(ledger)
    assert folder.damaged([first]) == {first.id: (OnDisk(ledger),)}
    listed.write_text("{")
    assert folder.damaged([first]) == {first.id: (OnDisk(listed),)}


@pytest.mark.parametrize("cut", [True, False])
def test_a_lost_or_cut_file_is_named_before_anything_is_written(world: World, *, cut: bool) -> None:
    world.released({DAYS[0]: [1]})
    made = backup(world)
    (active,) = world.tables["sales"].active()[DAYS[0]]
    file = file_of(world, made, active.path)
    left = file.read_bytes()[:100]
    file.unlink()
    if cut:
        file.write_bytes(left)
    into = world.folder.parent / f"{world.folder.name} elsewhere"
    expected = (
        f"which is published/sales/{active.path}, should have {active.size:,} bytes and has {100 if cut else 0}; 1 file"
    )
    with pytest.raises(BackupError, match=expected):
        restored(world, into=into)
    assert not into.exists()
    # The next backup does not rely on it.
    assert backup(world).files == made.files
    other, _ = restored(world)
    assert other.content() == world.content()
    other.close()


def test_a_damaged_list_hides_no_other_backup(world: World) -> None:
    world.released({DAYS[0]: [1]})
    first, second = backup(world), backup(world)
    (place(world).path / "backups" / second.id / "files.json").write_text("{")
    with pytest.raises(BackupError, match=f"the list of files of backup {second.id} is damaged"):
        restored(world)
    (place(world).path / "backups" / second.id / "backup.json").write_text("{")
    other, done = restored(world)
    assert done.backup == first
    other.close()
    third = backup(world, keep=2)
    assert [one.id for one in BackupFolder(place(world)).all()] == [third.id, first.id]


def test_nothing_is_overwritten(two: World) -> None:
    two.released({DAYS[0]: [1]})
    backup(two)
    other = World(two.folder / "other", two.described)
    other.released({DAYS[0]: [7]})
    with pytest.raises(BackupError, match=rf"published/sales/_delta_log/{0:020}\.json is another file than in backup"):
        restored(two, into=other.folder)
    without_ledger(other)
    with pytest.raises(BackupError, match="is another file than in backup"):
        restored(two, into=other.folder)
    assert other.content() == {DAYS[0]: [7]}
    assert not (other.folder / "ledger.db").exists()
    take_warehouse(layout(two.folder / "third"), Known("f00d", "ledger of others"))
    with pytest.raises(LayoutError, match="belongs to another ledger"):
        restored(two, into=two.folder / "third")
    fourth = World(two.folder / "fourth", two.described)
    fourth.open_unit({"sales": DAYS})
    fourth.close()
    with pytest.raises(LedgerError, match="is not empty: its table units has 1 row,"):
        restored(two, into=fourth.folder)


def test_a_folder_of_others_and_the_warehouse_are_no_place_for_backups(world: World) -> None:
    world.released({DAYS[0]: [1]})
    used = world.folder.parent / f"{world.folder.name} used"
    (used / "files").mkdir(parents=True)
    (used / "files" / "of somebody").write_text("precious")
    with pytest.raises(BackupError, match="has files, and is no folder of backups"):
        TakeBackup(world.warehouse()).take(OnDisk(used), keep=1)
    assert (used / "files" / "of somebody").read_text() == "precious"
    home = layout(world.folder)
    for taken in (home.warehouse, home.warehouse / "below", OnDisk(world.folder), home.sources):
        with pytest.raises(BackupError, match="are in one another"):
            TakeBackup(world.warehouse()).take(taken)


@pytest.mark.parametrize("last", ["begin", "files", "ledger"])
def test_until_a_restore_is_complete_nobody_can_work_and_it_can_be_repeated(world: World, last: str) -> None:
    world.released({d: [1] for d in DAYS})
    land(world, 1)
    made = backup(world)
    into = world.folder.parent / f"{world.folder.name} elsewhere"

    with pytest.raises(KeyboardInterrupt):
        restored(world, into=into, checkpoint=cut_off(last))
    half = World(into, world.described, clock=world.clock)
    for ledger in (half.ledger.id, world.ledger.id):
        with pytest.raises(LayoutError, match="is being restored, or its restore was cut off"):
            require_owner(layout(into), Known(ledger, "this one"))
        with pytest.raises(LayoutError, match="is being restored, or its restore was cut off"):
            take_warehouse(layout(into), Known(ledger, "this one"))
    half.close()
    later = backup(world)
    with pytest.raises(
        (LayoutError, LedgerError),
        match=f"from backup {made.id}|is not empty",
    ):
        restored(world, later.id, into=into)
    other, _ = restored(world, made.id, into=into)
    assert (other.content(), raw(other), problems(other)) == (world.content(), ["1"], [])
    require_owner(layout(into), other.ledger)
    other.close()
    with pytest.raises(BackupError, match=f"backup {made.id} has been restored into .+ already"):
        restored(world, made.id, into=into)
    with pytest.raises(LedgerError, match="is not empty"):
        restored(world, later.id, into=into)


def cut_off(at: str) -> Callable[[str], None]:
    def crash(step: str) -> None:
        if step == at:
            raise KeyboardInterrupt

    return crash


def test_after_a_restore_that_was_given_up_only_the_ledger_of_before_writes(world: World, tmp_path: Path) -> None:
    take_warehouse(layout(world.folder), world.ledger)
    world.released({d: [1] for d in DAYS})
    backup(world)
    url = f"sqlite:///{tmp_path / 'new.db'}"
    restoring = RestoreBackup(layout(world.folder), url, world.clock, User("ada"), cut_off("ledger"))
    with pytest.raises(KeyboardInterrupt):
        replace(restoring, instead_of_its_ledger=True).run(place(world))
    half = World(world.folder, world.described, 7000, clock=world.clock, ledger=url)
    (layout(world.folder).warehouse / "_owner").remove()
    for is_taken in (False, True):
        if is_taken:
            take_warehouse(layout(world.folder), world.ledger)
        for act in (lambda: take_warehouse(layout(world.folder), half.ledger), lambda: half.reconcile().run()):
            with pytest.raises(LayoutError, match="belongs to another ledger" if is_taken else "give that database up"):
                act()
        with pytest.raises(BackupError, match="give that database up"):
            restoring.run(place(world))
        require_owner(layout(world.folder), world.ledger, writes=True)
    half.close()
    world.released({DAYS[0]: [2]})
    assert problems(world) == []


@pytest.mark.parametrize("last", ["ledger", "owner", "noted"])
def test_the_folder_of_backups_follows_the_warehouse_and_never_comes_first(world: World, last: str) -> None:
    take_warehouse(layout(world.folder), world.ledger)
    world.released({d: [1] for d in DAYS})
    made, before = backup(world), world.ledger.id
    without_ledger(world)
    with pytest.raises(KeyboardInterrupt):
        restored(world, into=world.folder, checkpoint=cut_off(last))
    assert BackupFolder(place(world)).owner() == before
    again = World(world.folder, world.described, 7000, clock=world.clock)
    if last == "ledger":
        restored(world, into=world.folder)[0].close()
    else:
        require_owner(layout(world.folder), again.ledger, writes=True)
        with pytest.raises(BackupError, match=f"backup {made.id} has been restored into .+ already"):
            restored(world, into=world.folder)
    assert (BackupFolder(place(world)).owner(), again.ledger.restoring) == (again.ledger.id, "")
    take_warehouse(layout(world.folder), again.ledger)
    assert backup(again).files == made.files
    again.close()


def test_a_restore_that_somebody_ended_leaves_the_folder_of_backups_where_it_was(world: World, tmp_path: Path) -> None:
    take_warehouse(layout(world.folder), world.ledger)
    world.released({d: [1] for d in DAYS})
    backup(world)

    def give_up(step: str) -> None:
        if step == "ledger":
            (layout(world.folder).warehouse / "_owner").remove()

    url = f"sqlite:///{tmp_path / 'new.db'}"
    restoring = RestoreBackup(layout(world.folder), url, world.clock, User("ada"), give_up, instead_of_its_ledger=True)
    with pytest.raises(LayoutError, match="somebody has ended this restore"):
        restoring.run(place(world))
    take_warehouse(layout(world.folder), world.ledger)
    assert backup(world).files > 0


def test_an_empty_ledger_that_was_filled_from_nothing_takes_another_backup(world: World) -> None:
    first = backup(world)
    into = world.folder.parent / f"{world.folder.name} elsewhere"
    other, _ = restored(world, first.id, into=into)
    other.close()
    world.released({d: [1] for d in DAYS})
    backup(world)
    other, done = restored(world, into=into)
    assert (other.content(), len(other.ledger.releases()), done.backup.id != first.id) == (world.content(), 1, True)
    other.close()


def test_what_cannot_be_read_is_named(world: World) -> None:
    world.released({DAYS[0]: [1]})
    backup(world)
    into = world.folder.parent / f"{world.folder.name} elsewhere"
    (OnDisk(into) / "warehouse" / "_owner").write("[]")
    with pytest.raises(LayoutError, match=r"_owner cannot be read \('\[\]'\)"):
        restored(world, into=into)
    (place(world) / "_backups.json").write("{}")
    with pytest.raises(BackupError, match=r"_backups.json cannot be read"):
        backup(world)
    a_file = world.folder.parent / f"{world.folder.name}.txt"
    a_file.write_text("a file")
    with pytest.raises(BackupError, match=r"has files, and is no folder of backups|cannot hold backups"):
        TakeBackup(world.warehouse()).take(OnDisk(a_file))


# Which ledger has which warehouse and which backups.


def test_a_lost_ledger_comes_back_beside_its_warehouse_and_learns_what_was_released_since(world: World) -> None:
    take_warehouse(layout(world.folder), world.ledger)
    world.released({d: [1] for d in DAYS})
    unit = opened(world, 5)
    backup(world)
    before = world.ledger.id
    world.build(unit, "sales", {DAYS[1]: [4]})
    last = world.ledger.attempts()[-1].number
    newer = world.released({DAYS[0]: [2]}) if world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded) else ""
    again, done = restored(without_ledger(world), into=world.folder)
    assert done.files == 0
    assert [text[:15] for text in done.warnings] == ["decisions after", "published/sales"]
    assert again.ledger.id != before
    assert [one.kind.name for one in again.reconcile().run()] == ["rebuilt"]
    assert next(r.manifest.release for r in again.ledger.releases()) == newer
    assert again.content() == {DAYS[0]: [2], DAYS[1]: [1], DAYS[2]: [1]}
    # No new attempt writes into the shadow of one that the ledger does not know.
    attempt = again.ledger.start_attempt(unit.id, "sales", DAYS[1:], "run_again", LEASE)
    assert attempt.number > last
    # The old ledger, if it turns up again, is not the owner any more; the new one goes on with the backups.
    with pytest.raises(LayoutError, match="belongs to another ledger"):
        require_owner(layout(world.folder), Known(before, "the old one"))
    assert len(BackupFolder(place(world)).all()) == 1
    second = backup(again)
    once_more, _ = restored(without_ledger(again), second.id, into=world.folder)
    assert once_more.content() == again.content()
    once_more.close()


def test_a_unit_that_was_built_before_what_only_raw_knows_is_not_published(world: World) -> None:
    take_warehouse(layout(world.folder), world.ledger)
    land(world, 1)
    unit = opened(world, 1)
    backup(world)
    land(world, 2)
    again, done = restored(without_ledger(world), into=world.folder)
    assert [text.split()[0] for text in done.warnings] == ["decisions", "raw/sales", "unit"]
    assert again.ledger.unit(unit.id).state is UnitState.discarded
    with pytest.raises(BackfillError):
        again.publisher().release(unit.id)
    again.close()


def test_lost_files_come_back_and_the_others_stay(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    backup(world)
    files = [file for day_files in world.tables["sales"].active().values() for file in day_files]
    (world.homes["sales"] / files[0].path).unlink()
    again, done = restored(without_ledger(world), into=world.folder)
    assert done.files == 1
    assert again.content() == {d: [1] for d in DAYS}
    again.close()


def test_a_ledger_that_had_taken_a_place_before_gets_the_warehouse_that_is_restored_with_it(world: World) -> None:
    """Whoever opened a session on the new host before the restore has taken an empty place, here or elsewhere."""
    world.released({DAYS[0]: [1]})
    backup(world)
    for into, before in (("same", "same"), ("new", "other")):
        home = world.folder.parent / f"{world.folder.name} {into}"
        home.mkdir()
        early = World(home, world.described, clock=world.clock)
        take_warehouse(layout(world.folder.parent / f"{world.folder.name} {before}"), early.ledger)
        early.close()
        again, _ = restored(world, into=home)
        take_warehouse(layout(home), again.ledger)
        assert again.content() == {DAYS[0]: [1]}
        again.close()


def test_a_copy_beside_the_original_is_another_ledger(world: World) -> None:
    take_warehouse(layout(world.folder), world.ledger)
    world.released({DAYS[0]: [1]})
    backup(world)
    other, _ = restored(world)
    assert other.ledger.id != world.ledger.id
    with pytest.raises(LayoutError, match="belongs to another ledger"):
        take_warehouse(layout(world.folder), other.ledger)
    with pytest.raises(BackupError, match="has backups of another ledger"):
        TakeBackup(other.warehouse()).take(place(world))
    other.close()
    assert backup(world).files > 0


def test_a_ledger_is_replaced_only_if_somebody_says_so(world: World, tmp_path: Path) -> None:
    """A new ledger, and the variable of the warehouse forgotten: the restore would take the original from its ledger."""
    take_warehouse(layout(world.folder), world.ledger)
    world.released({DAYS[0]: [1]})
    made, owner = backup(world), layout(world.folder).warehouse / "_owner"
    before = owner.text()
    restoring = RestoreBackup(
        layout(world.folder), f"sqlite:///{tmp_path / 'new.db'}", world.clock, User("ada"), cut_off("begin")
    )
    with pytest.raises(LayoutError) as refused:
        restoring.run(place(world))
    told = str(refused.value)
    assert all(text in told for text in (world.ledger.name, "--instead-of-its-ledger", "BACKFILL_ASSETS_WAREHOUSE"))
    assert (owner.text(), BackupFolder(place(world)).owner()) == (before, world.ledger.id)
    with pytest.raises(KeyboardInterrupt):
        replace(restoring, instead_of_its_ledger=True).run(place(world))
    # The repeat needs no word: the ledger of before is out already.
    assert replace(restoring, checkpoint=no_checkpoint).run(place(world)).backup == made
    with pytest.raises(LayoutError, match="belongs to another ledger"):
        require_owner(layout(world.folder), world.ledger)


def test_a_rehearsal_on_a_copied_warehouse_leaves_the_original_its_backups(world: World) -> None:
    """`cp -a` also copies the file that says whose the warehouse is."""
    take_warehouse(layout(world.folder), world.ledger)
    world.released({DAYS[0]: [1]})
    backup(world)
    copies = [world.folder.parent / f"{world.folder.name} rehearsal {number}" for number in range(2)]
    for copy in copies:
        shutil.copytree(world.folder / "warehouse", copy / "warehouse")
    other, done = restored(world, into=copies[0], instead=True)
    (told,) = done.warnings[1:]
    assert told.startswith("the next backups need a new folder: ")
    assert told.endswith(f"has those of the warehouse {layout(world.folder).warehouse}")
    with pytest.raises(BackupError, match="has backups of another ledger"):
        TakeBackup(other.warehouse()).take(place(world))
    other.close()
    # A folder that an older version made does not say of which warehouse, until the next backup.
    noted = place(world) / "_backups.json"
    before = noted.text()
    noted.write(owner_mark(world.ledger.id, world.ledger.name))
    backup(world)
    assert noted.text() == before
    noted.write(owner_mark(world.ledger.id, world.ledger.name))
    other, done = restored(world, into=copies[1], instead=True)
    assert (len(done.warnings), BackupFolder(place(world)).owner()) == (1, other.ledger.id)
    other.close()


def test_campaigns_that_worked_are_paused(campaigns: World) -> None:
    campaigns.plan()
    campaigns.control.launch(campaigns.specification.backfill_id)
    assert campaigns.phase() in WORKING
    backup(campaigns)
    folder = campaigns.folder.parent / f"{campaigns.folder.name} copy{next(_COPIES)}"
    url = f"sqlite:///{folder / 'ledger.db'}"
    done = RestoreBackup(layout(folder), url, campaigns.clock, User("ben")).run(place(campaigns))
    other = World(folder, campaigns.described, 8000, clock=campaigns.clock, asked=campaigns.asked)
    last = other.ledger.journal(other.campaign().id)[-1]
    assert (other.phase(), last.action, last.by, last.reason) == (
        Phase.paused, Action.paused, "ben", f"restored from backup {done.backup.id}",
    )  # fmt: skip
    assert campaigns.phase() in WORKING
    other.close()


def test_an_adopted_table_comes_back_in_the_warehouse(world: World) -> None:
    home = world.folder / "old place"
    plain = ["id", "day", "amount"]
    write_deltalake(home, rows_of({DAYS[0]: [4]}).select(plain), partition_by=["day"])
    (home / "notes of its owner.txt").write_text("not ours")
    Adoption(world.warehouse()).adopt("sales", OnDisk(home), "it was there before")
    kept = saved(world, backup(world))
    assert [path for path in kept if path.endswith((".txt", "_backfill_assets.json"))] == []
    other, _ = restored(world)
    assert (other.content(), other.tables["sales"].adopted, problems(other)) == ({DAYS[0]: [4]}, False, [])
    other.released({DAYS[1]: [5]})
    assert other.content() == {DAYS[0]: [4], DAYS[1]: [5]}
    other.close()
    link = layout(world.folder).link("sales")
    link.remove()
    with pytest.raises(LayoutError, match="no longer leads to"):
        backup(world)
    link.link_to(OnDisk(home))
    with pytest.raises(BackupError, match="are in one another"):
        TakeBackup(world.warehouse()).take(OnDisk(home / "backups"))
    # What another writer has added, nobody has accepted: in a restored warehouse nobody would ask.
    write_deltalake(home, rows_of({DAYS[2]: [6]}).select(plain), mode="append")
    with pytest.raises(PreconditionError, match="1 commit of another writer"):
        backup(world)


def test_a_dataset_that_does_not_load_is_saved_too(two: World) -> None:
    two.released({DAYS[0]: [1]}, "orders")
    seen = two.content("orders")
    del two.datasets["orders"]
    backup(two)
    other, _ = restored(two)
    assert other.content("orders") == seen
    other.close()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with object_store(tmp_path_factory.mktemp("objects")) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environ.items():
            patch.setenv(name, value)
        yield running.url


def test_backups_may_lie_in_a_bucket(world: World, bucket: str) -> None:
    there: Location = bucket_of(f"{bucket}/backups")
    land(world, *range(3))
    world.released({d: [1] for d in DAYS})
    first = TakeBackup(world.warehouse()).take(there)
    assert TakeBackup(world.warehouse()).take(there, keep=1).removed == (first.backup.id,)
    (kept,) = BackupFolder(there).all()
    assert BackupFolder(there).damaged([kept]) == {kept.id: ()}
    lost = BackupFolder(there).ledger(kept.id)
    before = lost.content()[1]
    OnDisk(world.folder / "ledger.copy").copy_from(lost)
    lost.write("x")
    assert BackupFolder(there).damaged([kept]) == {kept.id: (lost,)}
    lost.copy_from(OnDisk(world.folder / "ledger.copy"))
    assert lost.content()[1] == before
    folder = world.folder / "from the bucket"
    url = f"sqlite:///{folder / 'ledger.db'}"
    RestoreBackup(layout(folder), url, world.clock, User("ada")).run(there)
    other = World(folder, world.described, 9000, clock=world.clock)
    assert (other.content(), raw(other), problems(other)) == (world.content(), ["0", "1", "2"], [])
    other.close()


def test_a_warehouse_moves_from_a_folder_and_a_file_into_a_bucket_and_postgres_and_back(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(world, 1, 2)
    world.released({d: [1] for d in DAYS})
    second = world.released({DAYS[0]: [2], DAYS[1]: [2]})
    unit = opened(world, 5)
    backup(world)
    with object_store(tmp_path / "objects") as store, postgres.cluster() as url:
        for name, value in {**store.environ, ROOT_VARIABLE: str(store.folder)}.items():
            monkeypatch.setenv(name, value)
        folder = store.folder / BUCKET / "restored"
        folder.mkdir()
        RestoreBackup(layout(folder), url, world.clock, User("ada")).run(place(world))
        there = World(folder, world.described, 7000, clock=world.clock, ledger=url)
        assert (there.content(), raw(there), problems(there)) == (world.content(), ["1", "2"], [])
        assert there.ledger.evidence(unit.id) == world.ledger.evidence(unit.id)
        there.rollback().execute(second, "wrong")
        assert there.content() == {d: [1] for d in DAYS}
        places = OnDisk(tmp_path / "backups of the bucket")
        TakeBackup(there.warehouse(), NO_WAIT).take(places)
        seen, evidence = there.content(), there.ledger.evidence(unit.id)
        there.close()
        monkeypatch.delenv(ROOT_VARIABLE)
        back = tmp_path / "back"
        RestoreBackup(layout(back), f"sqlite:///{back / 'ledger.db'}", world.clock, User("ada")).run(places)
    again = World(back, world.described, 8000, clock=world.clock)
    assert (again.content(), raw(again), again.ledger.evidence(unit.id)) == (seen, ["1", "2"], evidence)
    again.reconcile().run()
    assert problems(again) == []
    again.reconcile().discard(unit.id)
    again.released({DAYS[2]: [9]})
    assert again.content() == seen | {DAYS[2]: [9]}
    again.close()


@dataclass
class Acts:
    """What people and runs do with one table; at most one unit is open."""

    world: World
    amounts: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    unit: Unit | None = None
    built: dict[dt.date, list[int]] = field(default_factory=dict)
    undoable: list[str] = field(default_factory=list)

    def build(self, days: list[dt.date]) -> None:
        """Build some days of the open unit, or of a new one."""
        if self.unit is None:
            self.unit, self.built = self.world.open_unit({"sales": DAYS}), {}
        new = {d: [next(self.amounts)] for d in days}
        self.world.build(self.unit, "sales", new)
        self.built |= new

    def release(self, days: list[dt.date]) -> None:
        """Release the open unit, after its other days were built."""
        built = self.built if self.unit is not None else {}
        self.build([d for d in DAYS if d not in built] or days)
        assert self.unit is not None
        self.undoable.append(self.world.publisher().release(self.unit.id).releases["sales"])
        self.unit = None

    def rollback(self, _: list[dt.date]) -> None:
        if self.undoable and self.unit is None:
            self.world.rollback().execute(self.undoable.pop(), "wrong")

    def sweep(self, _: list[dt.date]) -> None:
        now = self.world.clock.now().timestamp()
        for path in self.world.homes["sales"].rglob("*"):
            if path.is_file():
                os.utime(path, (now, now))
        self.world.clock.advance(dt.timedelta(days=50))
        self.undoable.clear()
        self.world.sweep().execute()


@dataclass
class Then:
    """What was true at the moment of a backup: what readers saw, and what they would see after the open unit's release."""

    content: dict[dt.date, list[int]]
    unit: Unit | None
    after: dict[dt.date, list[int]]


NAMES = st.sampled_from(["build", "release", "rollback", "sweep"])
SOME_DAYS = st.lists(st.sampled_from(DAYS), min_size=1, unique=True)
STEPS = st.lists(st.tuples(st.booleans(), NAMES, SOME_DAYS, st.integers(0, 2)), min_size=3, max_size=8)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_each_backup_gives_what_was_at_its_moment_whatever_happens_while_it_is_made(
    steps: list[tuple[bool, str, list[dt.date], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with ExitStack() as stack:
        world = World(tmp_path_factory.mktemp("any"))
        stack.callback(world.close)
        acts, known, kept = Acts(world), dict[str, Then](), list[str]()
        for is_backup, name, days, keep in steps:
            act = getattr(acts, name)
            if not is_backup:
                act(days)
                continue
            content, unit = world.content(), acts.unit
            then = Then(content, unit, {**content, **acts.built} if unit and len(acts.built) == len(DAYS) else {})
            try:
                made = backup(world, keep, lambda act=act, days=days: act(days)).id
            except BackupError:
                assert name == "sweep", "only a sweep deletes what the backup needs"
                continue
            known[made] = then
            kept = [*kept, made][-keep:] if keep else [*kept, made]
        assert [one.id for one in BackupFolder(place(world)).all()] == kept[::-1]
        for name in kept:
            then = known[name]
            other, _ = restored(world, name)
            stack.callback(other.close)
            assert (other.content(), problems(other)) == (then.content, [])
            if then.after and then.unit:
                other.publisher().release(then.unit.id)
                assert (other.content(), problems(other)) == (then.after, [])
