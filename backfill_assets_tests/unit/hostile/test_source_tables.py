"""Source tables as their owners call, fill and damage them: their days are found, or the table is refused by key."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from backfill_assets.core.errors import LayoutError, PreconditionError, SourceError
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.table_source import TableSource
from backfill_assets.delta.adoptable import look_at
from backfill_assets.delta.reading import held_by_day
from backfill_assets.evidence.known_deliveries import TableVersion, table_days, table_version
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets_tests.harness.tables import dataset, day, layout, loaded
from backfill_assets_tests.unit.hostile.strategies import broken, days, often, spoiled, texts
from backfill_assets_tests.unit.hostile.watch import little_read, nothing_written, observed, showable

pytestmark = pytest.mark.slow

NAME = "bronze/trips"
D1 = day(1)
Line = dict[str, Any]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with one day of one row; its days are text."""
    home = tmp_path_factory.mktemp("table")
    write_deltalake(home, pa.table({"day": [D1.isoformat()], "id": [1]}), partition_by=["day"])
    return home


@contextmanager
def sources_with(table: Path, below: Path, name: str = NAME) -> Iterator[Path]:
    """A folder of its own for one example, whose sources have the table under this name."""
    with tempfile.TemporaryDirectory(dir=below) as folder:
        shutil.copytree(table, path_of(layout(Path(folder)).sources) / name)
        yield Path(folder)


def described(folder: Path, **source: object) -> LoadedDataset:
    said = TableSource.model_validate({"table": NAME, "day": "day", "columns": {"id": "long"}, **source})
    return loaded(dataset().model_copy(update={"source": said}), folder)


def found(one: LoadedDataset, folder: Path) -> TableVersion | None:
    """What the table has; nothing if it is refused, by its key and in words that a terminal may show."""
    with nothing_written(folder), little_read():
        try:
            version = table_version(one, layout(folder))
        except LayoutError as refusal:
            showable(observed(refusal))
            return None
        except SourceError as refusal:
            showable(observed(refusal))
            assert "dataset.yaml: source." in str(refusal)  # noqa: PT017
            return None
    for prints in ({}, dict.fromkeys(version.days, "1:2:3")):
        for delivery in table_days(one, version, version.days, prints):
            showable(delivery.path)
    return version


NAMES = (
    "a b", "100%", "a@v0", "a?b#c", "dt=2024-01-31", "[a]*{b,c}", "\u00fc", "u\u0308", "~", "a:b", "file:a",
    ".hidden", "_under", "a.parquet", "$HOME", "a;b", "a'b\"c", "a`b", "a&b=c", "-a", "a+b", "\u6f22",
)  # fmt: skip


def taken_for(name: str) -> set[str]:
    """What a library could take a name for: another folder."""
    cut = [name.partition(mark)[0] for mark in "@?#;*%"]
    forms = [unicodedata.normalize(form, name) for form in ("NFC", "NFD", "NFKC")]
    others = {unquote(name), quote(name), name.strip(), name.rstrip("."), name.lower(), *cut, *forms}
    return {other for other in others if other and "/" not in other and other not in {name, ".", ".."}}


def read_under(table: Path, below: Path, name: str) -> TableVersion | None:
    """What is found under a name, beside folders with another table that the name could be taken for."""
    with sources_with(table, below, f"bronze/{name}") as folder:
        home = path_of(layout(folder).sources) / "bronze"
        for other in taken_for(name):
            if not (home / other).exists():
                write_deltalake(
                    folder / "other", pa.table({"day": [], "id": []}, pa.schema({"day": pa.string(), "id": pa.int64()}))
                )
                (folder / "other").rename(home / other)
        return found(described(folder, table=f"bronze/{name}"), folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_read_from_the_folder_that_is_named_and_from_no_other(
    name: str, table: Path, tmp_path: Path
) -> None:
    version = read_under(table, tmp_path, name)
    assert version is not None
    assert list(version.days) == [D1]


@pytest.mark.parametrize("name", ["a%20b", "a%2520b", "%2e%2e", "%41", "\u00fc%C3%BC"])
def test_a_name_that_delta_rs_takes_for_another_is_refused(name: str, table: Path, tmp_path: Path) -> None:
    with sources_with(table, tmp_path, f"bronze/{name}") as folder:
        home = path_of(layout(folder).source(f"bronze/{name}"))
        with pytest.raises(
            SourceError, match=r"source\.table: .*because of the % in its path, .* would be read; rename"
        ):
            table_version(described(folder, table=f"bronze/{name}"), layout(folder))
        with pytest.raises(PreconditionError, match="because of the % in its path"):
            look_at(OnDisk(home))
        with pytest.raises(ValueError, match="because of the % in its path"):
            held_by_day(OnDisk(home), "day", [D1])


@often
@given(
    texts()
    .map(lambda text: text.replace("\0", "").replace("/", "_")[:60])
    .filter(lambda text: text not in {"", ".", ".."})
)
def test_no_name_of_a_table_does_harm(table: Path, tmp_path: Path, name: str) -> None:
    try:
        version = read_under(table, tmp_path, name)
    except ValidationError:
        return  # refused in dataset.yaml
    assert version is None or list(version.days) == [D1]


def lines_of(table: Path) -> list[Line]:
    text = (table / "_delta_log" / f"{0:020}.json").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def rewrite(folder: Path, content: bytes) -> None:
    (path_of(layout(folder).sources) / NAME / "_delta_log" / f"{0:020}.json").write_bytes(content)


def as_log(lines: list[Line]) -> bytes:
    return "\n".join(map(json.dumps, lines)).encode()


def with_days(lines: list[Line], kind: str, values: list[object]) -> bytes:
    """A log whose partition column has this type, with a file of one row for each value."""
    changed = []
    for line in lines:
        if "metaData" in line:
            schema = json.loads(line["metaData"]["schemaString"])
            schema["fields"] = [f | {"type": kind} if f["name"] == "day" else f for f in schema["fields"]]
            changed.append({"metaData": line["metaData"] | {"schemaString": json.dumps(schema)}})
        elif "add" in line:
            changed += [
                {"add": line["add"] | {"path": f"{number}.parquet", "partitionValues": {"day": value}}}
                for number, value in enumerate(values)
            ]
        else:
            changed.append(line)
    return as_log(changed)


KINDS = (
    "string",
    "date",
    "timestamp",
    "timestamp_ntz",
    "integer",
    "long",
    "double",
    "decimal(9,2)",
    "boolean",
    "binary",
)
VALUES = (
    "10000-01-01",
    "+12345-01-01",
    "-0001-01-01",
    "0000-01-01",
    "2024-1-1",
    "2024-01-01 00:00:00",
    "1e309",
    "nan",
    "\ud800",
    "9" * 50,
)


@often
@given(st.sampled_from(KINDS), st.lists(days() | texts() | st.sampled_from(VALUES) | st.none(), min_size=1, max_size=3))
@example("string", ["x" * 100_000])
@example("date", ["10000-01-01"])
@example("date", [None])
@example("timestamp", ["2026-01-02 00:00:00"])
def test_a_value_of_the_day_is_a_day_or_the_table_is_refused(
    table: Path, tmp_path: Path, kind: str, values: list[object]
) -> None:
    with sources_with(table, tmp_path) as folder:
        rewrite(folder, with_days(lines_of(table), kind, values))
        version = found(described(folder), folder)
    if version is not None and kind == "string":
        assert {str(d) for d in version.days} == set(values)
    assert version is None or all(type(d) is dt.date for d in version.days)
    # A time is no day, even at midnight, and neither is a number.
    assert version is None or kind in {"string", "date", "binary"}


@often
@given(st.data())
def test_a_damaged_log_is_understood_or_refused_by_key(table: Path, tmp_path: Path, data: st.DataObject) -> None:
    lines = lines_of(table)
    content = data.draw(
        broken(as_log(lines).decode())
        | spoiled({str(number): line for number, line in enumerate(lines)}).map(
            lambda document: (
                as_log(list(document.values())) if isinstance(document, dict) else json.dumps(document).encode()
            )
        )
    )
    with sources_with(table, tmp_path) as folder:
        rewrite(folder, content)
        version = found(described(folder), folder)
    assert version is None or all(type(d) is dt.date for d in version.days)


ADDS: Mapping[str, Callable[[Line], Line]] = {
    "a negative size": lambda add: add | {"size": -1},
    "a huge size": lambda add: add | {"size": 2**63 - 1},
    "no statistics": lambda add: {key: value for key, value in add.items() if key != "stats"},
    "statistics that are none": lambda add: add | {"stats": "[]"},
    "a number of rows that is none": lambda add: add | {"stats": '{"numRecords": "x"}'},
    "a negative number of rows": lambda add: add | {"stats": '{"numRecords": -5}'},
    "a path that leads out": lambda add: add | {"path": "../../../etc/passwd"},
    "a path elsewhere": lambda add: add | {"path": "s3://other/T0SECRET"},
    "a path with an escape": lambda add: add | {"path": "a%0Ab%1B"},
}


@pytest.mark.parametrize("what", ADDS)
def test_odd_files_in_a_log_are_understood_or_refused_by_key(what: str, table: Path, tmp_path: Path) -> None:
    changed = [{"add": ADDS[what](line["add"])} if "add" in line else line for line in lines_of(table)]
    with sources_with(table, tmp_path) as folder:
        rewrite(folder, as_log(changed))
        version = found(described(folder), folder)
    assert version is None or list(version.days) == [D1]


@often
@given(st.integers(0, 10**30) | st.sampled_from([2**31, 2**53, 2**63 - 1, 2**63, 2**64, "newest"]))
@example(2**63 - 1)
def test_any_version_is_the_one_that_is_there_or_refused(table: Path, tmp_path: Path, version: object) -> None:
    with sources_with(table, tmp_path) as folder:
        has = found(described(folder, version=version), folder)
    assert (has is not None) == (version in {0, "newest"})


@often
@given(texts())
def test_any_column_of_the_day_is_the_one_that_is_there_or_refused(table: Path, tmp_path: Path, column: str) -> None:
    with sources_with(table, tmp_path) as folder:
        try:
            one = described(folder, day=column)
        except ValidationError:
            return  # refused in dataset.yaml
        has = found(one, folder)
    assert (has is not None) == (column.lower() == "day")


def test_a_table_without_any_file_has_no_day(table: Path, tmp_path: Path) -> None:
    with sources_with(table, tmp_path) as folder:
        DeltaTable(path_of(layout(folder).sources) / NAME).delete()
        version = found(described(folder), folder)
    assert version is not None
    assert version.days == {}


@pytest.mark.parametrize("target", ["/etc", "../..", "trips", "/proc/self"])
def test_a_table_is_followed_below_the_sources_only(target: str, tmp_path: Path) -> None:
    home = path_of(layout(tmp_path).sources) / "bronze"
    home.mkdir(parents=True)
    (home / "trips").symlink_to(target)
    assert found(described(tmp_path), tmp_path) is None
