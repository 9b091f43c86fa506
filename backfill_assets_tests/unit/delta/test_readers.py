"""Readers without Spark: every example of docs/readers.md runs unchanged and finds the same rows."""

from __future__ import annotations

import datetime as dt
import glob
import json
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from typer.testing import CliRunner

from backfill_assets.cli.app import app
from backfill_assets.core.errors import DatasetError, TimeTravelError, UnitError
from backfill_assets.delta.table import PublishedTable
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.objects import BUCKET, folder_of, object_store
from backfill_assets_tests.harness.tables import dataset, day, layout, publish, write_shadow
from backfill_assets_tests.unit.delta.every_type import PARTS, TYPES, VALUES, every_type, probes
from backfill_assets_tests.unit.delta.flights import DISTANCE, SEATS, Departure, Flights

pytestmark = pytest.mark.slow

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "readers.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
READERS = ("pandas", "polars", "DuckDB")
RELEASE_IN_DOCUMENT = "r_20130401_060000_000001"
CAPACITY = SEATS * DISTANCE
Capacity = Mapping[str, tuple[int, int]]

EVERY_DAY = [day(i) for i in range(12)]
MARCH = [dt.date(2013, 3, number) for number in range(10, 14)]
TWICE: list[Departure] = [("B6", 1, 5), ("B6", 1, 5), ("UA", 2, None), ("UA", 2, None)]
ONCE: list[Departure] = [("B6", 1, 5), ("UA", 2, None)]
BEFORE: Capacity = {"AA": (1, CAPACITY), "B6": (4, 4 * CAPACITY), "UA": (4, 0)}
AFTER: Capacity = {"AA": (1, CAPACITY), "B6": (2, 2 * CAPACITY), "UA": (2, 0)}


def section(title: str) -> list[tuple[str, str]]:
    """Language and text of the code blocks below a heading."""
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    return _BLOCK.findall(found)


def code(title: str, language: str = "python") -> list[str]:
    return [text for found, text in section(title) if found == language]


def correct(flights: Flights) -> None:
    """Two of four days were delivered twice, and corrected by the second release; the third brought another day."""
    assert flights.release({MARCH[0]: ONCE, MARCH[1]: [*TWICE, ("AA", 3, 0)], MARCH[2]: TWICE}) == RELEASE_IN_DOCUMENT
    flights.release({MARCH[1]: [*ONCE, ("AA", 3, 0)], MARCH[2]: ONCE})
    flights.release({MARCH[3]: ONCE})


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Flights:
    flights = Flights(tmp_path_factory.mktemp("readers"))
    correct(flights)
    return flights


def shell(flights: Flights, script: str) -> dict[str, str]:
    """Run the document's shell lines; returns the variables that they set for the programs after them."""
    done = subprocess.run(
        ["bash", "-euc", f"{script}\nenv -0"],
        cwd=flights.home.parent, env=flights.shell(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if line)


@pytest.fixture(scope="module")
def newest(flights: Flights) -> dict[str, str]:
    (script,) = code("Where the table is", "console")
    return shell(flights, script)


@pytest.fixture(scope="module")
def released(flights: Flights) -> dict[str, str]:
    (script,) = code("As it was after a release", "console")
    return shell(flights, script)


def run(example: str, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run an example in a module of its own; returns everything that it defines."""
    for name in ("FLIGHTS", "VERSION"):
        monkeypatch.setenv(name, environ.get(name, "none"))
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "docs/readers.md", "exec"), names)  # noqa: S102  # our own document
    return names


def capacity(found: pd.DataFrame | pl.DataFrame) -> dict[str, tuple[int, int]]:
    assert list(found.columns) == ["carrier", "departures", "seat_miles"]
    rows = found.rows() if isinstance(found, pl.DataFrame) else found.itertuples(index=False, name=None)
    return {carrier: (int(departures), int(miles)) for carrier, departures, miles in rows}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_finds_the_newest_rows(
    reader: str, newest: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = code(reader)
    assert capacity(run(example, newest, monkeypatch)["capacity"]) == AFTER


@pytest.fixture(scope="module")
def remote(flights: Flights, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The same table in a bucket."""
    with object_store(tmp_path_factory.mktemp("objects")) as store:
        shutil.copytree(flights.home, store.folder / BUCKET / "published" / "flights")
        yield {**store.environ, "AWS_ALLOW_HTTP": "true", "FLIGHTS": f"{store.url}/published/flights"}


@pytest.mark.parametrize("reader", ["polars", "A table in a bucket", "DuckDB"])
def test_every_reader_finds_the_rows_of_a_table_in_a_bucket(
    reader: str, remote: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in remote.items():
        monkeypatch.setenv(name, value)
    (example,) = code(reader)
    if reader == "DuckDB":
        # With the file system of the section on buckets, as it says.
        (other,) = code("A table in a bucket")
        (files,) = re.findall(r"^from pyarrow\.fs .*?^files = .*?^\)$", other, re.MULTILINE | re.DOTALL)
        files = files.replace("from deltalake import DeltaTable\n", "")
        for line in ("from pyarrow.fs import LocalFileSystem, SubTreeFileSystem\n", 'folder = os.environ["FLIGHTS"]\n'):
            assert line in example
            example = example.replace(line, "")
        whole = "SubTreeFileSystem(folder, LocalFileSystem())"
        assert whole in example
        example = example.replace(whole, "files").replace("DeltaTable(folder)", "DeltaTable(table)")
        example = f"import os\n{files}\n{example}"
    assert capacity(run(example, remote, monkeypatch)["capacity"]) == AFTER


@pytest.mark.parametrize("number", range(len(READERS)), ids=READERS)
def test_every_reader_finds_the_rows_as_they_were_after_a_release(
    number: int, released: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = code("As it was after a release")
    assert len(examples) == len(READERS)
    assert capacity(run(examples[number], released, monkeypatch)["capacity"]) == BEFORE


def test_the_document_finds_the_release_of_a_loaded_version(
    newest: dict[str, str], released: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = code("Which release is this\\?")
    assert run(example, newest, monkeypatch)["release"] == "r_20130401_060000_000003"
    load = 'DeltaTable(os.environ["FLIGHTS"]'
    assert example.count(load) == 1
    older = example.replace(load, f'{load}, version=int(os.environ["VERSION"])')
    assert run(older, released, monkeypatch)["release"] == RELEASE_IN_DOCUMENT


def test_the_asset_of_the_document_reads_the_table_through_its_resource(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = code("A Dagster asset downstream")
    for name, value in flights.environ.items():
        monkeypatch.setenv(name, value)
    # Dagster reads the annotations of an asset in its module.
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    exec(compile(example, "docs/readers.md", "exec"), vars(module))  # noqa: S102  # our own document
    job = module.defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(asset_selection=[dg.AssetKey(["newest_day"])])
    (event,) = result.get_asset_materialization_events()
    found = event.materialization.metadata
    assert [found[name].value for name in ("newest_day", "rows", "version")] == ["2013-03-13", 9, 3]


def path(flights: Flights, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["path", *arguments], env=flights.environ)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_path_prints_the_folder_alone_without_a_release(flights: Flights) -> None:
    assert path(flights, "flights") == f"{flights.home}\n"


def test_path_of_a_release_is_one_line_of_folder_tab_and_version(flights: Flights) -> None:
    assert path(flights, "flights", "--release", RELEASE_IN_DOCUMENT) == f"{flights.home}\t1\n"


def test_path_as_json_says_whose_version_it_is_and_how_long_it_is_kept(flights: Flights) -> None:
    newest = json.loads(path(flights, "flights", "--json"))
    assert newest == {"path": str(flights.home), "dataset": "flights", "version": 3}
    found = json.loads(path(flights, "flights", "--release", RELEASE_IN_DOCUMENT, "--json"))
    kept = dt.datetime.fromisoformat(found.pop("kept_until")) - dt.datetime.fromisoformat(found.pop("released_at"))
    assert kept == flights.dataset.retention.keep_for + dt.timedelta(days=7)
    assert found == {
        "path": str(flights.home), "dataset": "flights", "version": 1, "release": RELEASE_IN_DOCUMENT, "kind": "publish",
    }  # fmt: skip


def test_path_refuses_an_unknown_release_and_an_unknown_dataset(flights: Flights) -> None:
    with pytest.raises(UnitError, match=r"no release 'r_none'.*backfill releases"):
        path(flights, "flights", "--release", "r_none")
    with pytest.raises(DatasetError, match="no_such_table"):
        path(flights, "no_such_table", "--release", RELEASE_IN_DOCUMENT)


def test_path_refuses_a_release_with_a_missing_file(tmp_path: Path) -> None:
    own = Flights(tmp_path)
    first = own.release({MARCH[0]: TWICE, MARCH[1]: ONCE})
    (gone,) = own.table.active([MARCH[0]])[MARCH[0]]
    second = own.release({MARCH[0]: ONCE})
    (own.home / gone.path).unlink()
    with pytest.raises(TimeTravelError, match=rf"version 1 of flights .* 1 of its 2 files .* \({MARCH[0]}\)"):
        path(own, "flights", "--release", first)
    assert path(own, "flights", "--release", second) == f"{own.home}\t2\n"


def test_every_example_of_the_document_is_tried() -> None:
    tried = [
        *READERS,
        "A table in a bucket",
        "As it was after a release",
        r"Which release is this\?",
        "A Dagster asset downstream",
    ]
    here = [text for title in tried for text in code(title)]
    here += [text for title in ("Where the table is", "As it was after a release") for text in code(title, "console")]
    # backfill_assets_tests/spark/test_readers_in_spark.py runs those that need Spark.
    here += code("Spark SQL", "console")
    assert sorted(here) == sorted(text for _, text in _BLOCK.findall(DOCUMENT))


def test_a_reader_that_has_loaded_a_version_keeps_it(tmp_path: Path) -> None:
    own = Flights(tmp_path)
    own.release({MARCH[0]: TWICE})
    reader = DeltaTable(own.home)
    own.release({MARCH[0]: ONCE})
    assert reader.to_pyarrow_table().num_rows == 4
    assert DeltaTable(own.home).to_pyarrow_table().num_rows == 2


def test_a_copy_with_the_underscored_folders_reads_the_same_and_one_without_shadows_does_not(
    flights: Flights, tmp_path: Path
) -> None:
    rows = DeltaTable(flights.home).to_pyarrow_table().num_rows
    shutil.copytree(flights.home, tmp_path / "whole")
    assert DeltaTable(tmp_path / "whole").to_pyarrow_table().num_rows == rows
    shutil.copytree(flights.home, tmp_path / "without", ignore=shutil.ignore_patterns("_shadow"))
    with pytest.raises(FileNotFoundError):
        DeltaTable(tmp_path / "without").to_pyarrow_table()


def test_a_glob_over_parquet_files_reads_what_no_reader_should(flights: Flights) -> None:
    files = glob.glob(f"{flights.home}/**/*.parquet", recursive=True)  # noqa: PTH207  # what a careless reader does
    rows = ds.dataset(files, partitioning="hive").count_rows()
    assert rows > DeltaTable(flights.home).to_pyarrow_table().num_rows


@pytest.fixture(scope="module")
def every_type_published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every_type")
    home = folder_of(layout(folder).published_path("sales"))
    write_shadow(home, "_shadow/u/1", every_type())
    publish(PublishedTable(layout(folder), dataset(columns=TYPES), FixedClock()), "_shadow/u/1", EVERY_DAY, "r")
    return home


@pytest.mark.parametrize("column", [*VALUES, "recalculated_at"])
def test_duckdb_finds_the_same_rows_by_a_filter_that_it_passes_on(every_type_published: Path, column: str) -> None:
    files = SubTreeFileSystem(str(every_type_published), LocalFileSystem())
    dataset_ = DeltaTable(every_type_published).to_pyarrow_dataset(filesystem=files)
    with duckdb.connect() as duck:
        duck.register("published", dataset_)
        duck.execute("CREATE TABLE copied AS SELECT * FROM published")
        (kind,) = duck.execute(f"SELECT typeof({column}) FROM copied LIMIT 1").fetchall()[0]

        def ids(table: str, condition: str, *values: object) -> list[tuple[int]]:
            query = f"SELECT id FROM {table} WHERE {column} {condition} ORDER BY id"
            return duck.execute(query, list(values)).fetchall()

        for name, sign, value in probes():
            if name == column:
                condition = f"{sign} CAST(? AS {kind})"
                assert ids("published", condition, value) == ids("copied", condition, value), (sign, value)
        for condition in ("IS NULL", "IS NOT NULL"):
            assert ids("published", condition) == ids("copied", condition)


def test_duckdb_reads_values_with_parts_as_they_were_written(every_type_published: Path) -> None:
    columns = ", ".join(PARTS)
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        duck.register("published", DeltaTable(every_type_published).to_pyarrow_dataset())
        duck.register("written", every_type())
        found, meant = (
            duck.execute(f"SELECT {columns} FROM {t} ORDER BY id").fetchall() for t in ("published", "written")
        )
    assert found == meant
    assert len(meant) == every_type().num_rows
