"""A long log costs a look no more than a short one: the text of statistics is in its checkpoint, and a known version stays open."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.release import DaySwap, ReleaseKind
from backfill_assets.delta import statistics
from backfill_assets.delta.opening import LOG, Newest, commit_name
from backfill_assets.delta.table import PublishedTable
from backfill_assets_tests.harness.clocks import FixedClock
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


def test_an_older_version_does_not_read_a_newer_checkpoint(tmp_path: Path, home: Path) -> None:
    before = fresh(tmp_path).at(2)
    make_checkpoint(home)
    assert fresh(tmp_path).at(2) == before


def without_texts(checkpoint: pa.Table, *, dropped: bool) -> pa.Table:
    """A checkpoint as an engine writes it that does not keep statistics as text: without the field, or with nulls in it."""
    adds = checkpoint.column("add").combine_chunks()
    names = [field.name for field in adds.type if not (dropped and field.name == "stats")]
    fields = [pa.nulls(len(adds), pa.string()) if name == "stats" else adds.field(name) for name in names]
    made = pa.StructArray.from_arrays(fields, names, mask=adds.is_null())
    return checkpoint.set_column(checkpoint.column_names.index("add"), "add", made)


@pytest.mark.parametrize("damage", ["torn", "empty", "without texts", "texts in another form"])
def test_commits_say_what_a_checkpoint_cannot(tmp_path: Path, home: Path, damage: str) -> None:
    version, files = (
        DeltaTable(home).version(),
        {path for found in texts_of(fresh(tmp_path)).values() for path, _ in found},
    )
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
