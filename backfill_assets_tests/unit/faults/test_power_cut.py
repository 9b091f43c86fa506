"""The power fails: files that were not synced to disk are gone, empty, zeros or half there. Nothing confirmed is lost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from backfill_assets.core.errors import EvidenceError, PreconditionError
from backfill_assets.delta.table import PublishedTable
from backfill_assets_tests.harness.between import Died, dies_at
from backfill_assets_tests.harness.objects import folder_of
from backfill_assets_tests.harness.tables import day, layout, on_paths
from backfill_assets_tests.harness.world import World, lost_ledger, repaired
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.faults.kit import COMMANDS, NEW, OLD, POINTS, assert_one_command_finishes_it, ready, say

pytestmark = [pytest.mark.faults, pytest.mark.slow]

MINUTE = dt.timedelta(minutes=1)


def _gone(path: Path) -> None:
    path.unlink()


def _cut_to(share: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def cut(path: Path) -> None:
        path.write_bytes(share(path.read_bytes()))

    return cut


LOSSES: dict[str, Callable[[Path], None]] = {
    "gone": _gone,
    "empty": _cut_to(lambda _whole: b""),
    "half": _cut_to(lambda whole: whole[: len(whole) // 2]),
    "zeros": _cut_to(lambda whole: b"\0" * len(whole)),
    "its first two lines": _cut_to(lambda whole: b"\n".join(whole.split(b"\n")[:2]) + b"\n"),
}


class Disk:
    """A disk with a cache: a power cut damages every file whose present content was not synced."""

    def __init__(self, world: World) -> None:
        self._home = world.homes["sales"]
        self._safe = {self._state(path) for path in self._files()}
        self.dies_at: Callable[[Path], bool] = lambda _path: False
        world.tables["sales"] = PublishedTable(
            layout(world.folder), world.datasets["sales"], world.clock, on_paths(self.sync)
        )

    def sync(self, path: Path) -> None:
        if self.dies_at(path):
            raise Died
        if path.is_file():
            self._safe.add(self._state(path))

    def forget(self) -> None:
        """Count no file as safe any more, also not the earlier ones."""
        self._safe.clear()

    def is_new_commit(self, path: Path) -> bool:
        """Whether a file is a new or changed commit."""
        return path.parent.name == "_delta_log" and path.suffix == ".json" and self._state(path) not in self._safe

    def cut(self, damage: Callable[[Path], None]) -> list[str]:
        """Damage all files that are not safe; returns their names."""
        lost = [path for path in self._files() if self._state(path) not in self._safe]
        for path in lost:
            damage(path)
        return [path.name for path in lost]

    def _files(self) -> list[Path]:
        # The writer of a manifest syncs it to disk.
        return [path for path in self._home.rglob("*") if path.is_file() and path.parent.name != "_releases"]

    @staticmethod
    def _state(path: Path) -> tuple[int, int, int]:
        # Its name does not count: a shadow's log is renamed when it is sealed.
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("command", "step"), POINTS, ids=lambda value: value)
def test_the_power_fails_before_a_step_of_a_release(
    world: World, observed: Observed, command: str, step: str, loss: str
) -> None:
    world.released(OLD)
    disk = Disk(world)
    unit = world.open_unit({"sales": list(OLD)})
    world.build(unit, "sales", NEW)
    if command == "rollback":
        world.publisher().release(unit.id)
    with pytest.raises(Died):
        say(world, command, unit.id, dies_at(step))
    lost = disk.cut(LOSSES[loss])
    observed.injected(f"power cut before {step} of a {command}: {len(lost)} files not on the disk yet are {loss}")
    world.clock.advance(5 * MINUTE)
    observed.found(*assert_one_command_finishes_it(world, command, unit.id))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_power_fails_while_the_commit_is_written(world: World, observed: Observed, command: str, loss: str) -> None:
    unit = ready(world, command)
    disk = Disk(world)
    disk.dies_at = disk.is_new_commit
    with pytest.raises(Died):
        say(world, command, unit)
    (commit,) = disk.cut(LOSSES[loss])
    observed.injected(f"power cut while a {command} commits: {commit} is {loss}")
    disk.dies_at = lambda _path: False
    world.clock.advance(5 * MINUTE)
    unreadable = loss in {"half", "zeros"}
    if unreadable:
        with pytest.raises(PreconditionError, match="backfill reconcile"):
            world.tables["sales"].version()
    world.reconcile().run()
    found = assert_one_command_finishes_it(world, command, unit)
    observed.found("the log was unreadable until backfill reconcile" if unreadable else "the log was readable", *found)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commit_that_was_cut_needs_no_command_of_its_own(world: World, observed: Observed, command: str) -> None:
    unit = ready(world, command)
    disk = Disk(world)
    disk.dies_at = disk.is_new_commit
    with pytest.raises(Died):
        say(world, command, unit)
    observed.injected(f"power cut while a {command} commits: half of {disk.cut(LOSSES['half'])}")
    disk.dies_at = lambda _path: False
    world.clock.advance(5 * MINUTE)
    newest = max(world.homes["sales"].glob("_delta_log/*.json"))
    checksum = newest.with_name(f".{newest.name}.crc")
    checksum.touch()
    say(world, command, unit)
    assert world.content() == (NEW if command == "publish" else OLD)
    aside = folder_of(layout(world.folder).aside_path("published/sales"))
    assert {path.name for path in aside.iterdir()} == {newest.name, checksum.name}
    assert not checksum.exists()
    assert world.doctor().examine() == ()
    observed.found(f"the next {command} set it aside and went through")


def test_every_commit_that_a_rebuilt_ledger_counts_on_is_on_the_disk(world: World, observed: Observed) -> None:
    world.released(OLD)
    world.released(NEW)
    observed.injected("the ledger is lost, and whoever committed both releases died before they were on the disk")
    found = lost_ledger(world)
    disk = Disk(found)
    disk.forget()
    assert len(found.reconcile().run()) == 2
    # Version 0 is no release: it created the table.
    unsafe = {path.name for path in found.homes["sales"].glob("_delta_log/*.json") if disk.is_new_commit(path)}
    assert unsafe <= {f"{0:020}.json"}
    assert found.content() == NEW
    found.close()
    observed.found("backfill reconcile brings both commits to the disk")


def test_unknown_files_change_nothing(world: World, observed: Observed, unit: str) -> None:
    home = world.homes["sales"]
    strays = [
        home / "_delta_log" / f"{2:020}.json#1",
        home / "_delta_log" / ".tmp-0d1c.json",
        home / "_releases" / ".r_0009.json.4711",
        home / "_shadow" / "u_0001" / "1" / "day=2026-01-01" / ".part-00000.parquet.crc",
        home / "day=2026-01-02" / "part-00000-stray.parquet",
    ]
    for stray in strays:
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_bytes(b"PAR1 half a")
    observed.injected(f"{len(strays)} temporary files that a power cut left in all folders of a table")
    observed.found(*assert_one_command_finishes_it(world, "publish", unit))


@pytest.mark.parametrize("loss", ["gone", "empty", "half", "zeros"])
def test_a_shadow_that_the_disk_lost_is_refused_by_name_and_built_again(
    world: World, observed: Observed, unit: str, loss: str
) -> None:
    (file,) = world.ledger.evidence(unit)["sales", day(1)].shadow_files
    LOSSES[loss](world.homes["sales"] / file.path)
    observed.injected(f"a data file of a shadow that had passed is {loss}")
    with pytest.raises(EvidenceError, match="2026-01-02") as refused:
        say(world, "publish", unit)
    assert "2026-01-01" not in str(refused.value)
    assert world.content() == OLD
    (named,) = world.doctor().examine()
    assert "sales 2026-01-02: files that unit" in named.what
    # The work of a run of `backfill resume`.
    assert world.days_to_build(unit, "sales") == (day(1),)
    world.build(world.ledger.unit(unit), "sales", {day(1): [2]})
    say(world, "publish", unit)
    assert world.content() == NEW
    assert world.doctor().examine() == ()
    observed.found(refused.value, "built again, that day alone, and published")


@pytest.mark.parametrize("loss", ["empty", "half", "zeros"])
def test_a_damaged_manifest_prevents_no_publication_and_is_named(
    world: World, observed: Observed, unit: str, loss: str
) -> None:
    (manifest,) = world.homes["sales"].glob("_releases/*.json")
    LOSSES[loss](manifest)
    observed.injected(f"the manifest of an earlier release is {loss}")
    say(world, "publish", unit)
    assert world.content() == NEW
    with pytest.raises(PreconditionError, match=manifest.name) as named:
        world.tables["sales"].manifests()
    (finding,) = world.doctor().examine()
    assert manifest.stem in finding.what
    assert finding.repair is not None
    world.rollback().execute(world.ledger.releases(unit=unit)[0].manifest.release, "no")
    assert world.content() == OLD
    repaired(world)
    observed.found("published and rolled back", named.value)


@pytest.mark.parametrize("loss", ["gone", "empty", "half", "zeros"])
def test_a_shadow_whose_log_the_disk_lost_is_refused_and_built_again(
    world: World, observed: Observed, unit: str, loss: str
) -> None:
    LOSSES[loss](world.homes["sales"] / f"_shadow/{unit}/2/_delta_log/{0:020}.json")
    observed.injected(f"the log of a shadow that had passed is {loss}")
    with pytest.raises(EvidenceError, match=f"(?s)the log of its shadow.*backfill resume {unit}") as refused:
        say(world, "publish", unit)
    assert world.content() == OLD
    (finding,) = world.doctor().examine()
    assert "their shadow's log, are lost or altered" in finding.what
    assert finding.remedy == f"run: backfill resume {unit}"
    # What `resume` launches, and the work of its run.
    assert {fault.day for fault in world.publisher().blockers(unit)} == set(OLD)
    assert world.days_to_build(unit, "sales") == tuple(OLD)
    world.build(world.ledger.unit(unit), "sales", NEW)
    say(world, "publish", unit)
    assert world.content() == NEW
    assert world.doctor().examine() == ()
    observed.found(refused.value, finding.what, "built again and published")
