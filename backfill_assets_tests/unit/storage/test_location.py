"""What tables need of the place where their files lie, alike in a folder and in a bucket."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import itertools
import os
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.fs import S3FileSystem

from backfill_assets.core.errors import LayoutError, StorageError
from backfill_assets.delta.opening import is_table, table_at
from backfill_assets.storage.bucket import bucket_of
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import (
    CHUNK,
    Copied,
    Location,
    move_into,
    overlap,
    parents_up_to,
    remove_all,
    sync,
)
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.objects import ObjectStore
from backfill_assets_tests.harness.tables import day, rows_of

_HOMES = itertools.count()


def names(found: Iterator[Location]) -> list[str]:
    return sorted(place.name for place in found)


@pytest.mark.parametrize("size", [0, 5, CHUNK, CHUNK + 1, 6 * CHUNK])
def test_a_copy_has_the_same_bytes_wherever_both_lie(home: Location, tmp_path: Path, size: int) -> None:
    there = tmp_path / "there.bin"
    there.write_bytes(content := os.urandom(size))
    target = home / "below" / "copy.bin"
    copied = target.copy_from(OnDisk(there))
    assert copied == Copied(size, hashlib.sha256(content).hexdigest())
    assert (target.end(), target.size()) == (content, size)
    back = OnDisk(tmp_path / "back.bin")
    assert back.copy_from(target) == (home / "second.bin").copy_from(target) == copied
    assert back.path.read_bytes() == (home / "second.bin").end() == content
    target.copy_from(OnDisk(tmp_path / "back.bin"))
    with pytest.raises(FileNotFoundError):
        target.copy_from(home / "nothing.bin")
    with pytest.raises(StorageError, match=r"there.bin is damaged: its bytes are not those that were saved there"):
        target.copy_from(OnDisk(there), Copied(size, "0" * 64))
    assert (target.end(), target.size()) == (content, size)
    assert names((home / "below").listed()) == ["copy.bin"], "no draft is left"


def test_what_is_written_is_read_and_what_is_not_there_is_missing(home: Location) -> None:
    file = home / "a" / "b.json"
    assert (file.is_there(), file.size(), file.stamp(), home.is_folder()) == (False, -1, (), False)
    assert (list(home.listed()), list(home.fitting("*"))) == ([], [])
    for read in (file.text, file.end, file.reader):
        with pytest.raises(FileNotFoundError):
            read()
    file.write("Zürich")
    assert (file.text(), file.size(), file.end(2), file.end()) == ("Zürich", 7, b"ch", "Zürich".encode())
    with file.reader() as opened:
        opened.seek(-2, io.SEEK_END)
        assert opened.read() == b"ch"
    assert file.sha256() == hashlib.sha256("Zürich".encode()).hexdigest()
    assert (file.is_there(), file.is_folder(), file.parent.is_there(), file.parent.is_folder()) == (
        True, False, False, True,
    )  # fmt: skip
    before = file.stamp()
    file.write("Genf")
    assert file.stamp() != before
    file.write("")
    assert (file.size(), file.end(), file.text(), file.is_there()) == (0, b"", "", True)
    sync(file)
    file.remove()
    file.remove()
    assert not file.is_there()


def test_a_file_says_when_it_was_changed_and_what_is_in_it_and_a_folder_nothing(home: Location) -> None:
    file, begin = home / "a/b", SystemClock().now()
    assert file.state() is None
    with pytest.raises(FileNotFoundError):
        file.content()
    file.parent.make_folder()
    file.write("rows")
    state, fingerprint = file.content()
    assert (state, fingerprint) == (file.state(), file.sha256())
    assert (state.size, fingerprint) == (4, hashlib.sha256(b"rows").hexdigest())
    assert abs(state.at - begin) < dt.timedelta(minutes=5)
    assert ((home / "a").state(), file.is_broken_link()) == (None, False)
    (found,) = home.glob("*/b")
    assert (found, found.state()) == (file, state)


def test_a_link_leads_to_another_place_until_it_is_removed(home: Location) -> None:
    target, link = home / "old/table", home / "published/sales"
    (target / "a").parent.make_folder()
    (target / "a").write("rows")
    link.parent.make_folder()
    assert (link.target(), target.target(), (target / "a").target()) == (None, None, None)
    link.link_to(target)
    assert (link.target(), link.target() == target.resolved()) == (target, True)
    assert [place.name for place in (home / "published").listed()] == ["sales"]
    for taken in (link, target):
        with pytest.raises(FileExistsError):
            taken.link_to(home / "elsewhere")
    link.remove()
    assert (link.target(), (target / "a").text()) == (None, "rows")
    link.link_to(home / "elsewhere")
    assert link.target() == home / "elsewhere"


def test_places_overlap_if_one_is_in_the_other_and_not_if_only_their_names_begin_alike(home: Location) -> None:
    a, b = home / "a", home / "ab"
    assert [overlap(one, other) for one, other in ((a, b), (b, a), (a / "x", b), (a, a), (a, a / "x"), (a / "x/y", a))] == [
        False, False, False, True, True, True,
    ]  # fmt: skip
    top = OnDisk(Path("/")) if isinstance(home, OnDisk) else bucket_of("s3://lake")
    assert (overlap(top, top / "a"), overlap(top / "a", top)) == (True, True)
    assert not overlap(bucket_of("s3://lake/a"), bucket_of("s3://lakes/a"))


def test_a_loop_of_links_leads_nowhere_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "warehouse" / "published").mkdir(parents=True)
    (loop := tmp_path / "warehouse" / "published" / "loop").symlink_to(loop)
    write_deltalake(tmp_path / "warehouse" / "published" / "sales", rows_of({day(0): [1]}))
    layout = Layout(OnDisk(tmp_path / "warehouse"), OnDisk(tmp_path))
    assert [name for name, _ in layout.published_tables("_delta_log")] == ["sales"]


def test_a_link_of_a_bucket_leads_to_another_bucket_and_not_to_a_folder(store: ObjectStore, tmp_path: Path) -> None:
    (store.folder / "beside").mkdir(exist_ok=True)
    link = bucket_of(f"{store.url}/links/sales")
    with pytest.raises(LayoutError, match="is no place in a bucket"):
        link.link_to(OnDisk(tmp_path))
    bucket_of("s3://beside/team/sales/notes").write("there")
    link.link_to(bucket_of("s3://beside/team/sales"))
    assert (found := link.target()) == bucket_of("s3://beside/team/sales")
    assert found is not None
    assert (found / "notes").text() == "there"
    for other in ("", "no link", "[]", '{"dataset":"x"}'):
        link.write(other)
        assert link.target() is None


@pytest.mark.parametrize("path", ["./a/b", "a//b", "a/./b"])
def test_a_path_may_be_written_in_several_ways(home: Location, path: str) -> None:
    file = home / "a/b"
    file.parent.make_folder()
    file.write("rows")
    assert home.below(path).text() == "rows"
    assert [place.relative_to(home) for place in home.glob(path)] == ["a/b"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3_000_000), st.sampled_from([0, 1, 70_000, 2_000_000, -1])), max_size=6))
def test_an_object_is_read_at_any_position_like_a_file(store: ObjectStore, reads: list[tuple[int, int]]) -> None:
    place, content = bucket_of(f"{store.url}/large"), "".join(f"{number:08}" for number in range(312_500))
    if not place.is_there():
        place.write(content)
    with place.reader() as found, io.BytesIO(content.encode()) as expected:
        for position, length in reads:
            assert (found.seek(position), found.read(length)) == (expected.seek(position), expected.read(length))
            assert found.tell() == expected.tell()


def test_what_is_read_is_of_one_version(store: ObjectStore) -> None:
    place = bucket_of(f"{store.url}/replaced")
    place.write("1" * 2_500_000)
    with place.reader() as found:
        assert found.read(10) == b"1" * 10
        place.write("2" * 2_500_000)
        with pytest.raises(OSError, match="was replaced while it was read"):
            found.read()


def test_of_many_that_create_a_file_at_once_exactly_one_wins(home: Location) -> None:
    home.make_folder()

    def create(number: int) -> bool:
        try:
            (home / "one.json").create(f"{number}")
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(40)))
    assert won.count(True) == 1
    assert (home / "one.json").text() == str(won.index(True))
    assert names(home.listed()) == ["one.json"]


def test_entries_are_listed_and_found_by_patterns_of_each_part(home: Location) -> None:
    for path in (
        "raw/x/_delta_log/0.json",
        "raw/y/_delta_log/1.json",
        "raw/y/day=1/a.parquet",
        "raw/z.txt",
        "other/x/f",
    ):
        place = home / path
        place.parent.make_folder()
        place.write("{}")
    assert names(home.listed()) == ["other", "raw"]
    assert names((home / "raw").listed()) == ["x", "y", "z.txt"]
    assert names((home / "raw").fitting("[xz]*")) == ["x", "z.txt"]
    found = sorted((home / "raw").fitting("*/_delta_log"))
    assert [place.relative_to(home) for place in found] == ["raw/x/_delta_log", "raw/y/_delta_log"]
    assert [place.parent for place in found] == [home / "raw/x", home / "raw" / "y"]
    assert [place.relative_to(home) for place in home.fitting("other/x/f")] == ["other/x/f"]
    assert list(home.fitting("other/nothing")) == list((home / "raw").fitting("[!.]*.json")) == []
    files = {file.path: file.size for file in (home / "raw").files(home, without="y")}
    assert files == {"raw/x/_delta_log/0.json": 2, "raw/z.txt": 2}
    assert [place.relative_to(home) for place in parents_up_to(found[0], home / "raw")] == ["raw/x", "raw"]
    with pytest.raises(ValueError, match="raw"):
        list(parents_up_to(found[0], home / "other"))
    with pytest.raises(ValueError, match=str(home)):
        home.relative_to(home / "raw")


@pytest.mark.parametrize("path", ["", "..", "a/../..", "/etc/passwd", "../beside", "a\0b"])
def test_no_path_leads_out(home: Location, path: str) -> None:
    with pytest.raises(LayoutError):
        home.below(path)
    assert home.below("a/b=1/c.parquet").relative_to(home.resolved()) == "a/b=1/c.parquet"


def test_only_whole_files_of_the_right_size_count(home: Location) -> None:
    home.make_folder()
    for name, text in {
        "good": "PAR1..PAR1",
        "head": "PAR1......",
        "tail": "......PAR1",
        "short": "PAR1.PAR1",
        "tiny": "P",
    }.items():
        (home / name).write(text)
    sizes = {**dict.fromkeys(("good", "head", "tail", "short", "gone"), 10), "tiny": 1}
    assert home.altered(sizes, b"PAR1") == sizes.keys() - {"good"}
    assert home.altered({}, b"PAR1") == frozenset()


def test_a_folder_is_renamed_with_all_its_files_once(home: Location) -> None:
    log = home / "_delta_log"
    with pytest.raises(FileNotFoundError):
        log.rename_folder("_sealed_log", f"{0:020}.json")
    log.make_folder()
    for number in range(5):
        (log / f"{number:020}.json").write(str(number))
    log.rename_folder("_sealed_log", f"{0:020}.json")
    log.rename_folder("_sealed_log", f"{0:020}.json")
    assert not log.is_folder()
    assert [place.text() for place in sorted((home / "_sealed_log").listed())] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("copied", range(6))
@pytest.mark.parametrize("removed", range(5))
def test_a_rename_in_a_bucket_can_be_cut_off_anywhere_and_repeated(
    store: ObjectStore, copied: int, removed: int
) -> None:
    home = bucket_of(f"{store.url}/found{next(_HOMES)}")
    last_first = [f"{number}.json" for number in reversed(range(5))]
    for name in last_first[removed if copied == len(last_first) else 0 :]:
        (home / "log" / name).write(name)
    for name in last_first[:copied]:
        (home / "sealed" / name).write(name)
    (home / "log").rename_folder("sealed", "0.json")
    assert {place.name: place.text() for place in (home / "sealed").listed()} == {name: name for name in last_first}
    assert not (home / "log").is_folder()


def test_what_somebody_writes_after_the_rename_is_neither_taken_over_nor_removed(store: ObjectStore) -> None:
    home = bucket_of(f"{store.url}/found{next(_HOMES)}")
    for name in ("0.json", "1.json"):
        (home / "log" / name).write(name)
    (home / "log").rename_folder("sealed", "0.json")
    for name, text in {"0.json": "another", "1.json": "1.json", "2.json": "2.json"}.items():
        (home / "log" / name).write(text)
    (home / "log").rename_folder("sealed", "0.json")
    assert {place.name: place.text() for place in (home / "sealed").listed()} == {
        "0.json": "0.json",
        "1.json": "1.json",
    }
    assert names((home / "log").listed()) == ["0.json", "2.json"]


def test_marks_of_folders_as_hadoop_leaves_them_are_no_files(store: ObjectStore) -> None:
    home = bucket_of(f"{store.url}/found{next(_HOMES)}")
    marks = S3FileSystem(endpoint_override=store.environ["AWS_ENDPOINT_URL"].removeprefix("http://"), scheme="http")
    for folder in ("a", "a/_delta_log", "b"):
        marks.create_dir(str(home / folder).removeprefix("s3://"))
    (home / "a" / "_delta_log" / "0.json").write("{}")
    (home / "a" / "empty").write("")
    assert sorted(file.path for file in home.files(home)) == ["a/_delta_log/0.json", "a/empty"]
    assert names((home / "a").listed()) == ["_delta_log", "empty"]
    assert names((home / "a" / "_delta_log").listed()) == ["0.json"]
    assert ((home / "a").is_folder(), (home / "b").is_folder()) == (True, False)
    (home / "a" / "_delta_log").rename_folder("_sealed_log", "0.json")
    assert not (home / "a" / "_delta_log").is_folder()
    assert (home / "a" / "_sealed_log" / "0.json").is_there()


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_two_addresses_are_refused(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    with pytest.raises(ValueError, match=f"{variable}.*different addresses"):
        bucket_of(store.url)
    monkeypatch.setenv(variable, store.environ["AWS_ENDPOINT_URL"])
    assert bucket_of(store.url).storage_options["AWS_ENDPOINT_URL"] == store.environ["AWS_ENDPOINT_URL"]


def test_a_log_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    log = OnDisk(tmp_path / "table" / "_delta_log")
    log.make_folder()
    # After a clean-up of the log; the first commit can be asked for without a listing.
    (log / f"{7:020}.json").write("{}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(number.name) for number in Path("/proc/self/fd").iterdir())
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(most)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
    try:
        for ask in (lambda: is_table(log.parent), lambda: list(log.fitting("*.json")), lambda: list(log.listed())):
            with pytest.raises(OSError, match="Too many open files"):
                ask()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in taken:
            os.close(number)
    assert is_table(log.parent)


def test_a_draft_that_is_the_file_itself_under_a_second_name_does_not_damage_it(tmp_path: Path) -> None:
    file = OnDisk(tmp_path / "m.json")
    file.write("whole")
    draft = tmp_path / f".m.json.{os.getpid()}.{threading.get_native_id()}"
    os.link(file.path, draft)
    with pytest.raises(FileExistsError):
        file.create("another")
    assert (file.text(), draft.exists()) == ("whole", False)


def test_files_are_moved_in_order_and_never_over_another(home: Location) -> None:
    aside, log = home / "_set_aside" / "raw", home / "log"
    log.make_folder()
    synced: list[Location] = []
    for text in ("first", "second"):
        (log / "0.json").write(text)
        move_into(aside, [log / "gone.crc", log / "0.json"], synced.append)
    assert names(log.listed()) == []
    assert {place.name: place.text() for place in aside.listed()} == {"0.json": "first", "0.json.1": "second"}
    assert synced == [aside, log] * 2
    remove_all(home, [*aside.listed(), home / "gone"], [log, aside, aside.parent])
    assert list(home.listed()) == []


def test_a_delta_table_is_opened_where_it_is(home: Location) -> None:
    assert not is_table(home)
    home.make_folder()
    write_deltalake(str(home), rows_of({day(0): [1, 2]}), partition_by=["day"], storage_options=home.storage_options)
    assert is_table(home)
    assert table_at(home).to_pyarrow_table().num_rows == 2
    assert [place.name for place in (home / "_delta_log").fitting("*.json")] == [f"{0:020}.json"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.lists(st.sampled_from(["a", "b", ".c", "_d", "day=1", "x y", "ü", "1.json"]), min_size=1, max_size=3).map("/".join),
        st.text(max_size=5), max_size=5,
    ),
    st.sampled_from(
        ["*", "[!.]*", "*.json", "a", "a/b", "*/*", "a/*", "*/1.json", "day=1/[ab]", "**/*.json", "a/**/b", "**/a/*", "a/**/[ab]"]
    ),
)  # fmt: skip
def test_folder_and_bucket_find_the_same(
    store: ObjectStore, tmp_path_factory: pytest.TempPathFactory, files: dict[str, str], pattern: str
) -> None:
    homes = OnDisk(tmp_path_factory.mktemp("same")), bucket_of(f"{store.url}/found{next(_HOMES)}")
    # A name is a file or a folder: an object store would let it be both.
    kept = {path: text for path, text in files.items() if not any(other.startswith(f"{path}/") for other in files)}
    seen = []
    for home in homes:
        for path, text in kept.items():
            (home / path).parent.make_folder()
            (home / path).write(text)
        seen.append(
            (
                sorted(place.relative_to(home) for place in home.fitting(pattern)) if "**" not in pattern else [],
                sorted(place.relative_to(home) for place in home.glob(pattern) if place.is_there()),
                sorted((file.path, file.size) for file in home.files(home)) if kept else [],
                names(home.listed()),
            )
        )
    assert seen[0] == seen[1]


def test_a_bucket_that_is_gone_and_keys_that_are_wrong_are_named(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match=r"s3://nowhere/x: .*AWS_ENDPOINT_URL"):
        bucket_of("s3://nowhere/x").write("1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorageError, match=r"refuses access .*AWS_SECRET_ACCESS_KEY"):
        bucket_of(f"{store.url}/x").write("1")
