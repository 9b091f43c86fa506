"""Events between a check and the action that follows: another release, another death, an error after the commit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from backfill_assets.core.errors import BackfillError, LedgerError, ReadBackError, StorageError
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import UnitState
from backfill_assets.delta import shadows
from backfill_assets.delta.table import PublishedTable
from backfill_assets.doctor.findings import RepairKind
from backfill_assets.release import reconcile
from backfill_assets.release.finish import SettlementKind
from backfill_assets.release.publish import AlreadyReleased
from backfill_assets.release.rebuild import Rebuild
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.location import sync
from backfill_assets_tests.harness.between import Died, dies_at
from backfill_assets_tests.harness.tables import day, layout, on_paths, rows_of, write_shadow
from backfill_assets_tests.harness.world import World, lost_ledger, repaired
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.faults.kit import COMMANDS, DAYS, NEW, OLD, published, ready, say

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def dies_after_its_commit(world: World, command: str, unit: str) -> None:
    with pytest.raises(Died):
        say(world, command, unit, dies_at("finalize_publication", "hold"))


def cut(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def newest_commit(world: World) -> Path:
    return max((world.homes["sales"] / "_delta_log").glob("*.json"))


def test_a_repair_leaves_a_commit_alone_that_is_complete_since_the_examination(
    world: World, observed: Observed, unit: str
) -> None:
    dies_after_its_commit(world, "publish", unit)
    cut(newest_commit(world))
    (repair,) = (
        f.repair for f in world.doctor().examine() if f.repair is not None and f.repair.kind is RepairKind.set_aside
    )
    observed.injected(
        "a release puts the damaged commit aside and takes its number, between the doctor's look and its repair"
    )
    world.publisher().release(unit)
    world.doctor().stored.set_aside(repair.subject, int(repair.paths[0]))
    assert world.content() == NEW
    assert world.doctor().examine() == ()
    observed.found("the new commit stands")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_after_the_commit_never_gives_up_what_readers_see(
    world: World, observed: Observed, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    unit = ready(world, command)
    with monkeypatch.context() as patch:
        patch.setattr(PublishedTable, "_read_back", _too_many_files)
        observed.injected(f"too many open files while a {command} reads back what it has committed")
        with pytest.raises(ReadBackError, match=r"may be committed.*backfill reconcile") as refused:
            say(world, command, unit)
    assert world.content() == (NEW if command == "publish" else OLD)
    assert [repair.kind for repair in world.reconcile().run()] == [SettlementKind.finalized]
    assert world.doctor().examine() == ()
    observed.found(refused.value, "backfill reconcile finalizes it")
    if command == "publish":
        world.rollback().execute(published(world, unit), "no")
        assert world.content() == OLD


def _too_many_files(*_: object) -> None:
    raise OSError(24, "Too many open files")


def test_a_release_that_was_given_up_although_it_is_in_the_log_is_found_and_finalized(
    world: World, observed: Observed, unit: str
) -> None:
    dies_after_its_commit(world, "publish", unit)
    (intent,) = world.ledger.releases(unit=unit, states={ReleaseState.intent})
    world.ledger.abandon(intent.manifest.release)
    observed.injected("a committed release is abandoned in the ledger")
    (finding,) = world.doctor().examine()
    assert "was given up in the ledger, but is in the Delta log" in finding.what
    world.repairer().repair()
    assert world.ledger.release(intent.manifest.release).state is ReleaseState.finalized
    assert world.ledger.unit(unit).state is UnitState.published
    assert world.doctor().examine() == ()
    assert world.content() == NEW
    observed.found(finding.what, "finalized")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_waited_for_one_that_died_after_its_commit_finds_it_done(
    world: World, observed: Observed, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    unit = ready(world, command)
    locks, dead = reconcile.publish_locks, []

    @contextmanager
    def after_a_death(*args: object) -> Iterator[None]:
        if not dead:
            dead.append(command)
            dies_after_its_commit(world, command, unit)
        with locks(*args):  # type: ignore[arg-type]
            yield

    monkeypatch.setattr(reconcile, "publish_locks", after_a_death)
    observed.injected(f"the same {command} dies after its commit while another one waits for its lock")
    if command == "publish":
        assert isinstance(world.publisher().release(unit), AlreadyReleased)
    else:
        with pytest.raises(BackfillError, match="are already as they were before it"):
            world.rollback().execute(published(world, unit), "no")
    assert world.content() == (NEW if command == "publish" else OLD)
    assert world.doctor().examine() == ()
    observed.found("done already")


def test_a_running_release_of_two_datasets_is_not_called_lost(two: World, observed: Observed) -> None:
    unit = two.open_unit({"orders": DAYS, "sales": DAYS})
    for name in ("orders", "sales"):
        two.build(unit, name, NEW)
    repairing, commits = two.reconcile(), []

    def dies_between_its_commits(step: str) -> None:
        commits.append(step)
        if step == "commit":
            raise Died

    class ReadsLate:
        """The manifests of a table are read during a release, after the ledger was asked."""

        def __getattr__(self, name: str) -> object:
            return getattr(two.tables["orders"], name)

        def manifests(self) -> object:
            if not commits:
                with pytest.raises(Died):
                    two.publisher(dies_between_its_commits).release(unit.id)
            return two.tables["orders"].manifests()

    tables: dict[str, PublishedTable] = {**two.tables, "orders": ReadsLate()}  # type: ignore[dict-item]
    observed.injected("a release of two datasets is between its commits while reconcile looks for lost ones")
    repairing = replace(repairing, warehouse=replace(repairing.warehouse, tables=tables))
    assert Rebuild(repairing.warehouse).run(["orders"]) == ()
    assert two.ledger.unit(unit.id).state is UnitState.open
    two.reconcile().run()
    assert two.ledger.unit(unit.id).state is UnitState.open
    assert two.ledger.holds("orders") == ()
    assert (two.content("orders"), two.content("sales")) == ({}, {})
    assert two.doctor().examine() == ()
    two.publisher().release(unit.id)
    assert (two.content("orders"), two.content("sales")) == (NEW, NEW)
    assert two.doctor().examine() == ()
    observed.found("none lost; half of the unit is taken back, and no day is on hold")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kept", [True, False], ids=["ledger kept", "ledger lost"])
def test_a_release_is_on_the_disk_before_reconcile_finalizes_it(
    world: World,
    observed: Observed,
    command: str,
    kept: bool,  # noqa: FBT001
) -> None:
    unit = ready(world, command)
    dies_after_its_commit(world, command, unit)
    found = world if kept else lost_ledger(world)
    commit, release = newest_commit(found), str(found.tables["sales"].history()[0].release)
    counted: list[bool] = []

    def look(path: Path) -> None:
        if path == commit:
            done = found.ledger.releases("sales", states={ReleaseState.finalized})
            counted.append(release in {r.manifest.release for r in done})

    found.tables["sales"] = PublishedTable(layout(found.folder), found.datasets["sales"], found.clock, on_paths(look))
    more = "" if kept else ", and the ledger is lost"
    observed.injected(f"a {command} died before anybody knew its commit to be on the disk{more}")
    assert found.reconcile().run()
    assert counted[0] is False
    assert found.content() == (NEW if command == "publish" else OLD)
    assert found.ledger.release(release).state is ReleaseState.finalized
    # A rebuilt ledger does not know the unit whose shadow it would have to seal: the doctor does.
    unsealed = [RepairKind.seal] if command == "publish" and not kept else []
    assert [f.repair and f.repair.kind for f in found.doctor().examine()] == unsealed
    repaired(found)
    found.close()
    observed.found("reconcile brought it there before it counts")


def test_a_checkpoint_is_synced_to_disk_with_its_commit_and_set_aside_with_it(world: World, observed: Observed) -> None:
    world.released(OLD)
    table, log = world.homes["sales"], world.homes["sales"] / "_delta_log"
    # What delta-rs leaves after every hundredth commit.
    commit = newest_commit(world)
    checkpoint, pointer = commit.with_name(f"{commit.stem}.checkpoint.parquet"), log / "_last_checkpoint"
    checkpoint.write_bytes(b"half")
    pointer.write_text(f'{{"version":{int(commit.stem)},"size":1}}', encoding="utf-8")
    synced: list[Path] = []
    shadows.sync_commits(OnDisk(table), int(commit.stem) - 1, on_paths(synced.append))
    assert {commit, checkpoint, pointer} <= set(synced)

    cut(commit)
    observed.injected("the newest commit is cut, and so is its checkpoint")
    assert shadows.set_aside_torn(OnDisk(table), OnDisk(world.folder / "aside"), sync)
    assert not {commit, checkpoint, pointer} & set(log.iterdir())
    assert world.tables["sales"].version() == int(commit.stem) - 1
    observed.found("the version before is read again")


@pytest.mark.parametrize("loss", [b"", b"half", b"\0" * 5_000], ids=["empty", "half", "zeros"])
def test_a_checkpoint_that_cannot_be_read_is_set_aside_where_the_commits_contain_all_of_it(
    world: World, observed: Observed, loss: bytes
) -> None:
    world.released(OLD)
    table = DeltaTable(world.homes["sales"])
    table.create_checkpoint()
    world.released(NEW)
    (checkpoint,) = (world.homes["sales"] / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(loss)
    observed.injected(f"a checkpoint of the published table is {loss[:4]!r}")
    (finding,) = world.doctor().examine()
    assert "its commits have all that was in it" in finding.what
    world.repairer().repair()
    assert world.doctor().examine() == ()
    assert world.content() == NEW
    observed.found(finding.what, "set aside")


def test_a_checkpoint_that_the_log_depends_on_needs_a_person(world: World, observed: Observed) -> None:
    world.released(OLD)
    DeltaTable(world.homes["sales"]).create_checkpoint()
    world.released(NEW)
    log = world.homes["sales"] / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"half")
    (log / f"{0:020}.json").unlink()
    observed.injected("a checkpoint is half there, and the commits before it are cleaned up")
    assert [finding.repair for finding in world.doctor().examine()] == [None]
    assert world.repairer().repair() == ()
    assert checkpoint.exists()
    observed.found("left for a person")


def test_two_datasets_of_a_unit_go_back_one_after_the_other(two: World, observed: Observed) -> None:
    unit = two.open_unit({"orders": DAYS, "sales": DAYS})
    for name in ("orders", "sales"):
        two.build(unit, name, NEW)
    releases = two.publisher().release(unit.id).releases
    two.wait = dt.timedelta(0)

    def the_other(step: str) -> None:
        if step == "commit":
            with pytest.raises(LedgerError, match="publish:"):
                two.rollback().execute(releases["sales"], "no")

    observed.injected("two rollbacks of one unit, each of another dataset, at once")
    two.rollback(the_other).execute(releases["orders"], "no")
    assert two.ledger.unit(unit.id).state is UnitState.published
    two.rollback().execute(releases["sales"], "no")
    assert two.ledger.unit(unit.id).state is UnitState.rolled_back
    assert (two.content("orders"), two.content("sales")) == ({}, {})
    assert two.doctor().examine() == ()
    observed.found("the second waits for the first, and nothing is left of the unit")


def test_every_file_that_a_block_writes_to_a_table_is_synced_to_disk(observed: Observed, tmp_path: Path) -> None:
    observed.injected("a block writes two commits to a table of its own")
    home = tmp_path / "raw" / "sales"
    synced: list[Path] = []
    for number in range(2):
        synced.clear()
        with shadows.kept(OnDisk(home), on_paths(synced.append)):
            write_shadow(home, "", rows_of({day(number): [number]}))
        written = set(home.glob(f"day={day(number)}/*.parquet"))
        assert written
        assert written | {home / "_delta_log" / f"{number:020}.json"} <= set(synced)
        assert {home / "_delta_log", home, home.parent} <= set(synced)
    synced.clear()
    with shadows.kept(OnDisk(home), on_paths(synced.append)):
        pass
    assert synced == []
    with pytest.raises(StorageError, match=r"its log names a file of another folder .*/elsewhere/1\.parquet"):
        shadows.keep(OnDisk(home), ["/elsewhere/1.parquet"])
    observed.found(f"{len(written)} data files, the log and their folders are on the disk; no more than was written")
