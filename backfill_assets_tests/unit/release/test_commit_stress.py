"""Many processes publish to one table while others read it: nothing is lost, and no reader sees a state that never was."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import write_deltalake

from backfill_assets.core.release import CommitKind, DaySwap, Manifest, ReleaseKind, ReleaseState
from backfill_assets.core.unit import UnitState
from backfill_assets_tests.harness.tables import actions, content, day, rows_of
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.release.stress import (
    STOP,
    Model,
    Said,
    Seen,
    fingerprint,
    polls,
    said,
    start_reader,
    start_writer,
    stress_world,
)

COMMITS = int(os.environ.get("BACKFILL_ASSETS_TEST_COMMITS", "24"))
SEED = int(os.environ.get("BACKFILL_ASSETS_TEST_SEED", "7"))
WRITERS, READERS = 4, 2


def test_the_model_gives_back_what_a_release_took() -> None:
    model = Model()
    model.publish("r1", {day(0): [1, 2], day(1): [4]})
    assert model.publish("r2", {day(0): [3]}) == fingerprint({day(0): [3], day(1): [4]})
    assert model.undo("r3", "r2", [day(0)]) == fingerprint({day(0): [2, 1], day(1): [4]})
    assert model.undo("r4", "r1", [day(0), day(1)]) == fingerprint({day(0): []})


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(900 + 3 * COMMITS)
def test_nothing_is_lost_and_nothing_is_mixed_when_many_processes_publish_at_once(
    observed: Observed, tmp_path: Path
) -> None:
    observed.injected(f"{COMMITS} commits by {WRITERS} processes at once, {READERS} readers; seed {SEED}")
    writers = [start_writer(tmp_path, n, COMMITS // WRITERS, SEED) for n in range(WRITERS)]
    readers = [start_reader(tmp_path, n) for n in range(READERS)]
    for writer in writers:
        writer.join()
    (tmp_path / STOP).touch()
    for reader in readers:
        reader.join()
    assert [p.exitcode for p in (*writers, *readers)] == [0] * (WRITERS + READERS)
    world, meant = stress_world(tmp_path), said(tmp_path)
    states = assert_log_is_what_was_meant(world, meant)
    seen = polls(tmp_path)
    assert_readers_saw_only(states, seen)
    assert world.doctor().examine() == ()
    checkpoints = (world.homes["sales"] / "_delta_log").glob("*.checkpoint.parquet")
    assert sorted(int(path.name.partition(".")[0]) for path in checkpoints) == list(range(9, COMMITS + 1, 10))
    versions = Counter(version for version, _ in seen)
    observed.found(f"{len(meant.releases)} commits, of them {len(meant.undone)} rollbacks, each with just its files")
    observed.found(f"{len(seen)} polls of {len(versions)} versions, none lost, none mixed")
    assert len(versions) > 1
    world.close()


def assert_log_is_what_was_meant(world: World, meant: Said) -> dict[int, str]:
    """Each commit is one that a writer reported, with exactly its files, once; returns what readers see at each version."""
    home, model = world.homes["sales"], Model()
    records = {r.manifest.release: r for r in world.ledger.releases("sales")}
    finalized = {name for name, r in records.items() if r.state is ReleaseState.finalized}
    assert finalized == meant.releases, "the ledger has other releases than writers told of"
    states: dict[int, str] = {}
    for commit in reversed(world.tables["sales"].history()):
        if commit.kind is not CommitKind.release:
            assert (commit.version, commit.kind) == (0, CommitKind.schema), "a commit is no release"
            states[commit.version] = fingerprint({})
            continue
        manifest = records[commit.release].manifest
        assert records[commit.release].version == commit.version, "a release is in another version"
        for kind, files in (("add", manifest.added), ("remove", manifest.removed)):
            found = [str(action["path"]) for action in actions(home, commit.version, kind)]
            assert sorted(found) == sorted(file.path for file in files), f"version {commit.version}: {kind}"
        days = [swap.day for swap in manifest.days]
        if manifest.undoes:
            assert manifest.undoes == meant.undone[commit.release], "a rollback is of another release"
            states[commit.version] = model.undo(commit.release, manifest.undoes, days)
        else:
            brought = meant.built[meant.published[commit.release]]
            assert sorted(brought) == days, "a release is of other days"
            states[commit.version] = model.publish(commit.release, brought)
    assert list(states) == list(range(len(meant.releases) + 1)), "a commit is lost"
    newest = max(states)
    sampled = {*range(0, newest, max(1, newest // 50)), newest}
    assert {v: fingerprint(content(home, v)) for v in sampled} == {v: states[v] for v in sampled}, "other rows"
    return states


def assert_readers_saw_only(states: Mapping[int, str], seen: Sequence[tuple[int, str]]) -> None:
    """What a reader saw at a version equals the model."""
    assert [(v, rows) for v, rows in seen if states.get(v) != rows] == [], "a reader saw other rows"


# The assertions above are tested: each must fail on a log that was damaged in its way.


class Scene:
    """A few commits by one writer, who reports them like the writers of the stress test."""

    def __init__(self, folder: Path) -> None:
        self.world = stress_world(folder)
        self.built: dict[str, Seen] = {}
        self.published: dict[str, str] = {}
        self.undone: dict[str, str] = {}
        self.first = self.publish({day(0): [1], day(1): [2]})
        self.second = self.publish({day(0): [3]})
        self.third = self.publish({day(0): [4]})

    @property
    def meant(self) -> Said:
        return Said(self.built, self.published, self.undone)

    def publish(self, brought: Seen) -> str:
        unit = self.world.open_unit({"sales": sorted(brought)})
        self.world.build(unit, "sales", brought)
        release = self.world.publisher().release(unit.id).releases["sales"]
        self.built[unit.id], self.published[release] = brought, unit.id
        return release

    def undo(self, release: str) -> None:
        self.undone[self.world.rollback().execute(release, "by chance").release] = release

    def manifest(self, release: str) -> Manifest:
        return self.world.ledger.release(release).manifest

    def rollback_to(self, release: str) -> Manifest:
        """A rollback of the third release that restores the files of this one, reported but not yet made."""
        now, (files,) = self.world.clock.now(), [s.add for s in self.manifest(release).days if s.day == day(0)]
        swap = DaySwap(day(0), self.manifest(self.third).added, files)
        kind = ReleaseKind.rollback
        made = replace(
            self.manifest(self.third), release="r_back", kind=kind, undoes=self.third, created_at=now, days=(swap,)
        )
        self.world.ledger.intend(made)
        self.undone[made.release] = self.third
        return made

    def commit(self, manifest: Manifest) -> None:
        table = self.world.tables["sales"]
        self.finalize(manifest, table.commit(manifest, table.version()))

    def finalize(self, manifest: Manifest, version: int) -> None:
        self.world.ledger.finalize(manifest.release, version, manifest.created_at, UnitState.rolled_back)

    def file(self, version: int) -> Path:
        return self.world.homes["sales"] / "_delta_log" / f"{version:020}.json"

    def lines(self, version: int) -> list[str]:
        return self.file(version).read_text(encoding="utf-8").splitlines()

    def write(self, version: int, lines: Sequence[str]) -> None:
        self.file(version).write_text("\n".join(lines) + "\n", encoding="utf-8")


def without(kind: str) -> Callable[[Scene], None]:
    """The newest commit lacks its action of a kind."""

    def damage(scene: Scene) -> None:
        scene.write(3, [line for line in scene.lines(3) if not line.startswith(f'{{"{kind}"')])

    return damage


def overwritten(scene: Scene) -> None:
    """Two commits have the same version, and the later one has won."""
    scene.publish({day(2): [5]})
    scene.file(4).rename(scene.file(3))


def of_another_release(scene: Scene) -> None:
    scene.commit(scene.rollback_to(scene.first))


def only_in_the_ledger(scene: Scene) -> None:
    scene.finalize(scene.rollback_to(scene.second), 4)


def in_two_commits(scene: Scene) -> None:
    """Readers see a day empty before they see it filled."""
    lines = scene.lines(3)
    gone = [line for line in lines if line.startswith('{"remove"')]
    scene.write(3, [*gone, '{"commitInfo":{"timestamp":0,"operation":"WRITE"}}'])
    scene.write(4, [line for line in lines if line not in gone])


def release_of_no_writer(scene: Scene) -> None:
    del scene.published[scene.third]


def commit_of_another_writer(scene: Scene) -> None:
    write_deltalake(scene.world.homes["sales"], rows_of({day(1): [9]}), mode="append")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.world.close()


DAMAGES: dict[str, tuple[Callable[[Scene], None], str]] = {
    "a commit forgets a removal": (without("remove"), "version 3: remove"),
    "a commit drops an added file": (without("add"), "version 3: add"),
    "a commit is overwritten by the next": (overwritten, "in another version"),
    "a rollback brings back another release": (of_another_release, "other rows"),
    "a release is finalized and was never committed": (only_in_the_ledger, "a commit is lost"),
    "a release is made in two commits": (in_two_commits, "a commit is no release"),
    "a release is nobody's": (release_of_no_writer, "the ledger has other releases"),
    "somebody else commits": (commit_of_another_writer, "a commit is no release"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_a_log_that_differs_from_the_intended_one_is_found(scene: Scene, name: str) -> None:
    damage, found = DAMAGES[name]
    damage(scene)
    with pytest.raises(AssertionError, match=found):
        assert_log_is_what_was_meant(scene.world, scene.meant)


@pytest.mark.slow
def test_a_reader_of_what_was_not_committed_is_found(scene: Scene) -> None:
    scene.undo(scene.third)
    states = assert_log_is_what_was_meant(scene.world, scene.meant)
    assert_readers_saw_only(states, list(states.items()))
    for version, rows in ((4, states[3]), (3, fingerprint({day(0): [5]})), (5, states[4])):
        with pytest.raises(AssertionError, match="a reader saw other rows"):
            assert_readers_saw_only(states, [(version, rows)])
