"""A long log costs a look no more than a short one: the text of statistics is in its checkpoint, and a known version stays open."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.errors import PreconditionError
from backfill_assets.core.release import DaySwap, ReleaseKind
from backfill_assets.delta import opening, statistics
from backfill_assets.delta.opening import LOG, Action, Newest, commit_name
from backfill_assets.delta.table import PublishedTable
from backfill_assets.storage.location import Location
from backfill_assets_tests.harness.clocks import START, FixedClock
from backfill_assets_tests.harness.objects import place_at
from backfill_assets_tests.harness.tables import dataset, day, layout, manifest, publish, rows_of, write_shadow

DAYS = [day(0), day(1)]


def fresh(folder: Path) -> PublishedTable:
    """The same table as another process sees it."""
    return PublishedTable(layout(folder), dataset(), FixedClock())


def texts_of(table: PublishedTable) -> Mapping[dt.date, list[tuple[str, str]]]:
    return {d: [(file.path, file.stats) for file in files] for d, files in table.active().items()}


@pytest.fixture
def home(table: PublishedTable, home: Path) -> Path:
    """Days published twice, one of them rolled back since, so that a file was added again."""
    releases = []
    for number in (1, 2):
        write_shadow(home, f"_shadow/u/{number}", rows_of({d: [number, number + 1] for d in DAYS}))
        releases.append(publish(table, f"_shadow/u/{number}", DAYS, f"r_{number}"))
    back = [DaySwap(s.day, s.add, s.remove) for s in releases[1].days[:1]]
    table.commit(manifest("r_back", back, kind=ReleaseKind.rollback, undoes="r_2"), table.version())
    return home


def make_checkpoint(home: Path) -> Path:
    DeltaTable(home).create_checkpoint()
    return home / LOG / f"{DeltaTable(home).version():020}.checkpoint.parquet"


def test_a_checkpoint_has_the_same_text_of_statistics_as_the_commits(tmp_path: Path, home: Path) -> None:
    of_commits = texts_of(fresh(tmp_path))
    checkpoint = make_checkpoint(home)
    write_shadow(home, "_shadow/u/3", rows_of({day(2): [7]}))
    publish(fresh(tmp_path), "_shadow/u/3", [day(2)], "r_3")
    # As a clean-up of the log does: nothing but the checkpoint and the newest commit is left to read.
    for version in range(int(checkpoint.name.partition(".")[0]) + 1):
        (home / LOG / commit_name(version)).unlink()
    found = texts_of(fresh(tmp_path))
    assert {d: found[d] for d in of_commits} == of_commits
    assert all("nullCount" in text for files in found.values() for _, text in files)
    assert found.keys() - of_commits.keys() == {day(2)}


def log_of(
    folder: Path, *commits: Mapping[str, str | None], checkpoints: Mapping[str, Mapping[str, str | None]]
) -> Location:
    """A log by hand: what each commit adds, with the text of its statistics, and what checkpoints have of that."""
    log = folder / LOG
    log.mkdir(parents=True)
    for version, added in enumerate(commits):
        lines = [
            json.dumps({"add": {"path": path, "stats": text}}, separators=(",", ":")) for path, text in added.items()
        ]
        (log / commit_name(version)).write_text("\n".join(lines), encoding="utf-8")
    for name, kept in checkpoints.items():
        rows = [None, *({"path": path, "stats": text} for path, text in kept.items())]
        kind = pa.struct({"path": pa.string(), "stats": pa.string()})
        pq.write_table(pa.table({"add": pa.array(rows, kind)}), log / name)
    return place_at(folder) / LOG


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions of the commits that were read for statistics."""
    versions, real = list[int](), statistics.actions

    def noted(commit: Location, kind: str) -> Iterator[Action]:
        versions.append(int(commit.name.partition(".")[0]))
        return real(commit, kind)

    monkeypatch.setattr(statistics, "actions", noted)
    return versions


COMMITS: tuple[dict[str, str | None], ...] = ({"a": "a0"}, {"b": "b1"}, {"a": "a2"}, {"c": "c3"}, {"b": "b4"})
"""Each file but the third is added again later, with another text."""


@pytest.mark.parametrize(
    ("version", "texts", "commits"),
    [
        (4, {"a": "a2", "b": "b4", "c": "c3"}, [4]),
        (3, {"a": "a2", "b": "b1", "c": "c3"}, []),
        (2, {"a": "a2", "b": "b1"}, [2]),
        (1, {"a": "a0", "b": "b1"}, []),
        (0, {"a": "a0"}, [0]),
    ],
)
def test_a_version_has_the_texts_of_its_newest_checkpoint_and_of_the_commits_after_it(
    tmp_path: Path, read: list[int], version: int, texts: dict[str, str], commits: list[int]
) -> None:
    checkpoints = {
        f"{1:020}.checkpoint.parquet": {"a": "a0", "b": "b1"},
        f"{3:020}.checkpoint.parquet": {"a": "a2", "b": "b1", "c": "c3"},
    }
    log = log_of(tmp_path / "table", *COMMITS, checkpoints=checkpoints)
    assert (statistics.texts(log, version, texts), read) == (texts, commits)


def test_all_commits_are_read_for_a_file_of_which_the_checkpoint_has_no_text(tmp_path: Path, read: list[int]) -> None:
    kept = {"a": None, "b": "b1", "c": "c3"}
    log = log_of(tmp_path / "table", *COMMITS, checkpoints={f"{3:020}.checkpoint.parquet": kept})
    assert statistics.texts(log, 4, {"a", "b", "c"}) == {"a": "a2", "b": "b4", "c": "c3"}
    assert sorted(read) == [0, 1, 2, 3, 4]


def test_a_checkpoint_does_not_count_if_the_log_lacks_a_commit_after_it(tmp_path: Path) -> None:
    """Another engine made a newer one in several parts, and the log was cleaned up; what a file had before is no longer true."""
    names = [f"{1:020}.checkpoint.parquet", f"{3:020}.checkpoint.0000000001.0000000001.parquet"]
    log = log_of(tmp_path / "table", *COMMITS, checkpoints={name: {"a": "a0", "b": "b1"} for name in names})
    for version in range(4):
        (log / commit_name(version)).remove()
    assert statistics.texts(log, 4, {"a", "b", "c"}) == {"b": "b4"}


def without_texts(checkpoint: pa.Table, *, dropped: bool) -> pa.Table:
    """A checkpoint as an engine writes it that does not keep statistics as text: without the field, or with nulls in it."""
    adds = checkpoint.column("add").combine_chunks()
    names = [field.name for field in adds.type if not (dropped and field.name == "stats")]
    fields = [pa.nulls(len(adds), pa.string()) if name == "stats" else adds.field(name) for name in names]
    made = pa.StructArray.from_arrays(fields, names, mask=adds.is_null())
    return checkpoint.set_column(checkpoint.column_names.index("add"), "add", made)


@pytest.mark.parametrize("damage", ["torn", "empty", "without texts", "texts in another form"])
def test_commits_say_what_a_checkpoint_cannot(tmp_path: Path, home: Path, damage: str) -> None:
    version = DeltaTable(home).version()
    files = {path for found in texts_of(fresh(tmp_path)).values() for path, _ in found}
    place = place_at(home) / LOG
    wanted = {path: text for path, text in statistics.texts(place, version, files).items() if path in files}
    checkpoint = make_checkpoint(home)
    match damage:
        case "torn":
            checkpoint.write_bytes(checkpoint.read_bytes()[:-9])
        case "empty":
            checkpoint.write_bytes(b"")
        case "without texts":
            pq.write_table(without_texts(pq.read_table(checkpoint), dropped=True), checkpoint)
        case _:
            pq.write_table(without_texts(pq.read_table(checkpoint), dropped=False), checkpoint)
    found = statistics.texts(place, version, files)
    assert {path: found[path] for path in files} == wanted


def test_looks_at_a_table_open_it_once(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, real = list[str](), opening.DeltaTable

    def noted(place: str, **given: Any) -> DeltaTable:
        opened.append(place)
        return real(place, **given)

    monkeypatch.setattr(opening, "DeltaTable", noted)
    table = fresh(tmp_path)
    for _ in range(3):
        assert (table.version(), "amount" in table.types(), set(table.active())) == (3, True, set(DAYS))
    assert len(opened) == 1


def test_a_table_that_is_replaced_while_it_is_opened_is_not_kept(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, place, real = Newest(), place_at(home), opening.DeltaTable

    def replaced(at: str, **given: Any) -> DeltaTable:
        table = real(at, **given)
        shutil.move(home, tmp_path / "aside")
        for number in range(table.version() + 1):
            write_deltalake(home, rows_of({day(number): [number]}), mode="append", partition_by=["day"])
        return table

    with monkeypatch.context() as patch:
        patch.setattr(opening, "DeltaTable", replaced)
        before = newest.of(place)
    assert newest.of(place).metadata().id != before.metadata().id


def test_what_left_a_table_is_not_said_from_a_log_that_lost_a_commit(tmp_path: Path, home: Path) -> None:
    """Looks still answer from what they opened before; the sweep must not take what it cannot see for unused."""
    table = fresh(tmp_path)
    gone = {path for found in texts_of(table).values() for path, _ in found}
    assert table.removed_since(START) - gone
    (home / LOG / commit_name(2)).unlink()
    assert table.version() == 3
    with pytest.raises(PreconditionError, match="its Delta log cannot be read"):
        table.removed_since(START)


def test_a_damaged_commit_of_a_release_is_named(table: PublishedTable, home: Path) -> None:
    commit = home / LOG / commit_name(1)
    commit.write_text('{"commitInfo":{"release":', encoding="utf-8")
    with pytest.raises(PreconditionError, match=rf"{commit.name} is damaged"):
        table.manifest_at(1, "r_1")
    commit.unlink()
    assert table.manifest_at(1, "r_1") == ""


def test_a_table_is_opened_again_only_after_its_log_has_changed(table: PublishedTable, home: Path) -> None:
    newest, place = Newest(), place_at(home)
    known = newest.of(place)
    assert newest.of(place) is known
    write_deltalake(home, rows_of({day(5): [1]}), mode="append")
    seen = newest.of(place)
    assert (seen.version(), newest.of(place) is seen) == (known.version() + 1, True)


def test_a_log_that_lost_its_newest_commit_is_opened_again(home: Path) -> None:
    newest, place = Newest(), place_at(home)
    version = newest.of(place).version()
    (home / LOG / commit_name(version)).unlink()
    assert newest.of(place).version() == version - 1


def test_another_table_in_its_place_is_opened_again(home: Path, tmp_path: Path) -> None:
    newest, place = Newest(), place_at(home)
    known = newest.of(place)
    shutil.move(home, tmp_path / "aside")
    for number in range(known.version() + 1):
        write_deltalake(home, rows_of({day(number): [number]}), mode="append", partition_by=["day"])
    assert newest.of(place).version() == known.version()
    assert newest.of(place).metadata().id != known.metadata().id


def test_a_version_whose_commit_is_only_in_a_checkpoint_is_never_kept(home: Path) -> None:
    make_checkpoint(home)
    newest, place = Newest(), place_at(home)
    version = newest.of(place).version()
    for one in range(version + 1):
        (home / LOG / commit_name(one)).unlink()
    assert newest.of(place) is not newest.of(place)
