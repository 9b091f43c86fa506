"""Dataset folders from a generator: each is loaded as it is meant, or refused with its place; none hides another."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.days import EARLIEST, LATEST
from backfill_assets.core.text import NAME_PATTERN, hidden_in
from backfill_assets.dataset.deliveries import to_extract
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.dataset.models import sql_problems
from backfill_assets.dataset.table_source import TableSource
from backfill_assets.dataset.yaml import MOST_PROBLEMS
from backfill_assets.orchestration.names import partitions_of
from backfill_assets.storage.disk import below
from backfill_assets_tests.harness.dataset_folders import FACT, YAML, loaded, problems, spoiled, write_dataset
from backfill_assets_tests.unit.hostile.strategies import BOMBS, as_yaml, broken, often, replaced, texts
from backfill_assets_tests.unit.hostile.strategies import spoiled as spoiled_document
from backfill_assets_tests.unit.hostile.watch import helpful, little_read, nothing_written, observed, showable

pytestmark = pytest.mark.slow

COMPARED = """\
dimensions: [city]
consumers:
  board: {sql: "SELECT sum(fare) AS fare FROM trips", tolerance: 1%}
golden:
  finance:
    file: {format: csv, path: golden/finance.csv, columns: {booked_on: date, net: "decimal(18,2)"}}
    sql: SELECT booked_on AS trip_date, sum(net) AS fare FROM finance GROUP BY ALL
    ours: SELECT trip_date, sum(fare) AS fare FROM trips GROUP BY ALL
    key: [trip_date]
    columns: {fare: {tolerance: 0.01}}
  source: {table: golden/trips, key: [trip_date, trip]}
"""
WHOLE = YAML.replace("nullable: false", "nullable: false, tolerance: 0.5") + COMPARED
GOOD = json.loads(json.dumps(yaml.safe_load(WHOLE), default=str))
NOW = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)

COLUMNS = {"trip": "long", "fare": {"from": "Fare EUR", "type": "decimal(10,2)"}, "city": "string"}
TABLE = {"table": "bronze/trips", "day": "ingested", "version": 3, "on_missing": "pass", "columns": COLUMNS}
LIMITS = {"max_parallel": 2, "rate_limit": "5/min", "again": "3d", "timeout": "1h"}
QUERY = {"database": "env:TRIPS_URL", "query": "SELECT trip, fare, city FROM trips WHERE day = :day", **LIMITS}
SOURCES = [
    TABLE,
    {"columns": COLUMNS, "extract": QUERY},
    {"columns": COLUMNS, "extract": {"file": "extract.py", **LIMITS}},
]


def fresh(root: Path) -> Path:
    """A folder of datasets with a good one, and one that the test breaks."""
    shutil.rmtree(root / "datasets", ignore_errors=True)
    write_dataset(root / "datasets", "good", YAML.replace("name: trips", "name: good"))
    return write_dataset(root / "datasets")


def judged(root: Path) -> Catalog:
    with nothing_written(root), little_read():
        catalog = load_folder(root / "datasets")
    assert "good" in catalog.datasets
    assert len(catalog.problems) <= 2 * MOST_PROBLEMS
    for problem in catalog.problems:
        text = observed(str(problem))
        showable(text)
        helpful(text, str(root / "datasets"))
    for name, found in catalog.datasets.items():
        assert NAME_PATTERN.fullmatch(name)
        dataset = found.dataset
        assert EARLIEST <= dataset.start <= (dataset.end or dataset.start) <= LATEST
        assert hidden_in(dataset.model_dump_json()) is None
        # What Dagster and the pipeline derive from the first and the last day.
        partitions_of(dataset, catalog)
        for day in (dataset.start, dataset.end or dataset.start):
            dataset.with_window((day,))
            dataset.delivery_days((day,))
            if dataset.extract is not None:
                below(root, dataset.landing.template.filled(day))
                assert dataset.extract.interval <= dt.timedelta(hours=1)
                to_extract(dataset, (day,), (), NOW, again=True)
        if isinstance(dataset.source, TableSource):
            below(root, dataset.source.table)
            assert dataset.source.day.isprintable()
    return catalog


@often
@given(spoiled_document(GOOD))
def test_a_dataset_with_hostile_values_is_loaded_or_refused_with_its_place(tmp_path: Path, document: object) -> None:
    (fresh(tmp_path) / "dataset.yaml").write_text(as_yaml(document), encoding="utf-8")
    judged(tmp_path)


@often
@given(spoiled_document(GOOD["golden"], most=1))
def test_a_golden_source_with_hostile_values_is_loaded_or_refused_with_its_place(
    tmp_path: Path, golden: object
) -> None:
    (fresh(tmp_path) / "dataset.yaml").write_text(as_yaml({**GOOD, "golden": golden}), encoding="utf-8")
    judged(tmp_path)


@often
@given(st.sampled_from(SOURCES).flatmap(spoiled_document))
def test_a_table_or_an_extract_with_hostile_values_is_loaded_or_refused_with_its_place(
    tmp_path: Path, source: object
) -> None:
    folder = fresh(tmp_path)
    (folder / "extract.py").write_text("def extract(day):\n    return []\n", encoding="utf-8")
    (folder / "dataset.yaml").write_text(as_yaml({**GOOD, "source": source}), encoding="utf-8")
    judged(tmp_path)


@often
@given(broken("import os\n\n\ndef extract(day):\n    return []\n"))
def test_a_broken_file_of_an_extract_is_read_and_never_run(tmp_path: Path, content: bytes) -> None:
    folder = fresh(tmp_path)
    (folder / "extract.py").write_bytes(content)
    (folder / "dataset.yaml").write_text(as_yaml({**GOOD, "source": SOURCES[2]}), encoding="utf-8")
    judged(tmp_path)


@often
@given(st.sampled_from(["dataset.yaml", "staging.sql", "fact.sql"]), st.data())
def test_a_broken_file_spoils_its_own_dataset_only(tmp_path: Path, name: str, data: st.DataObject) -> None:
    folder = fresh(tmp_path)
    (folder / name).write_bytes(data.draw(broken((folder / name).read_text())))
    judged(tmp_path)


@often
@given(broken("def fact(staging):\n    from os import path\n    return staging.where('fare > 0')\n"))
def test_a_broken_python_model_is_read_and_never_run(tmp_path: Path, content: bytes) -> None:
    folder = fresh(tmp_path)
    (folder / "fact.sql").unlink()
    (folder / "fact.py").write_bytes(content)
    judged(tmp_path)


@often
@given(
    texts(surrogates=True)
    .map(lambda text: text.replace("\0", "").replace("/", "_")[:80])
    .filter(lambda t: t not in {"", ".", ".."})
)
def test_no_name_of_a_folder_does_harm(tmp_path: Path, name: str) -> None:
    fresh(tmp_path)
    try:
        folder = tmp_path.joinpath("datasets", os.fsdecode(name.encode("utf-8", "surrogateescape")))
        folder.mkdir(exist_ok=True)
    except (OSError, UnicodeEncodeError):
        return  # no file system takes it
    (folder / "dataset.yaml").write_text(YAML, encoding="utf-8")
    judged(tmp_path)


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_no_bomb_goes_off(bomb: str, tmp_path: Path) -> None:
    folder = fresh(tmp_path)
    for name in ("dataset.yaml", "fact.sql"):
        path = folder / name
        path.write_text(path.read_text() + bomb, encoding="utf-8")
    assert set(judged(tmp_path).datasets) == {"good"}


@pytest.mark.parametrize(
    "text",
    [
        "a " * 200_000, "SELECT " + "/* " * 100_000, "SELECT " + "\\'" * 200_000, 'SELECT "' + '\\"' * 200_000,
        "SELECT '" + "\n" * 500_000, "(" * 500_000, "SELECT " + "-" * 500_000, "SELECT `" + "a" * 1_000_000, "x" * 1_000_000,
        "SELECT r'\\" * 100_000,
    ],
    ids=range(10),
)  # fmt: skip
def test_the_check_of_a_model_always_ends(text: str) -> None:
    for _, message in sql_problems(text):
        observed(message)


def test_a_raw_string_hides_nothing_that_comes_after_it() -> None:
    assert sql_problems(r"WITH a AS (SELECT r'\') INSERT INTO b SELECT * FROM a")[0][1].startswith(
        "the statement contains INSERT"
    )


@pytest.mark.parametrize(
    "nested", ["-" * 100_000 + "1", "(" * 100_000, "[" * 300 + "]" * 300, "x" + ".x" * 20_000, "1" + "+1" * 20_000]
)
def test_python_that_cannot_be_parsed_is_refused(nested: str, tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    (folder / "fact.sql").unlink()
    (folder / "fact.py").write_text(f"def fact(staging):\n    return {nested}\n")
    assert load_folder(tmp_path).problems


@pytest.mark.parametrize("size", [60_000, 260_000])
@pytest.mark.parametrize(
    "line", ["a\n", "a: 1\n", "f(a)\n", "import a\n", "import zz.y\n", "import a{n}\n", "[];" * 99 + "\n"]
)
def test_much_python_is_read_within_seconds_or_not_at_all(line: str, size: int, tmp_path: Path) -> None:
    folder = fresh(tmp_path)
    (folder / "fact.sql").unlink()
    text = "def fact(staging):\n    return staging\n" + "".join(line.format(n=n) for n in range(size // len(line)))
    (folder / "fact.py").write_text(text[:size].rpartition("\n")[0], encoding="utf-8")
    judged(tmp_path)


def test_pipes_folders_and_giants_in_place_of_files_are_refused(tmp_path: Path) -> None:
    for number, name in enumerate(("dataset.yaml", "fact.sql", "extra.sql")):
        for kind in ("pipe", "folder", "loop", "giant"):
            folder = write_dataset(
                tmp_path / "datasets", f"d{number}_{kind}", YAML.replace("name: trips", f"name: d{number}_{kind}")
            )
            file = folder / name
            file.unlink(missing_ok=True)
            {"pipe": os.mkfifo, "folder": os.mkdir, "loop": _loop, "giant": _giant}[kind](file)
    write_dataset(tmp_path / "datasets", "good", YAML.replace("name: trips", "name: good"))
    # A file that no layer uses still counts: it is part of the code.
    assert set(judged(tmp_path).datasets) == {"good", "d2_pipe", "d2_folder", "d2_loop"}


def test_a_folder_without_permission_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("good", "closed"):
        write_dataset(tmp_path / "datasets", name, YAML.replace("name: trips", f"name: {name}"))
    (tmp_path / "datasets" / "closed" / "cases").mkdir()
    looks = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:
        # As another user would see it; this one may be root.
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return looks(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    found = judged(tmp_path)
    assert set(found.datasets) == {"good"}
    (problem,) = found.problems
    assert "closed" in str(problem)
    assert "Permission denied" in str(problem)
    assert "let this user read the folder" in str(problem)


def test_an_import_of_a_name_that_no_file_can_have_hides_no_other(tmp_path: Path) -> None:
    for name in ("good", "long"):
        write_dataset(tmp_path / "datasets", name, YAML.replace("name: trips", f"name: {name}"))
    model = tmp_path / "datasets" / "long" / "fact.sql"
    model.unlink()
    model.with_suffix(".py").write_text(f"from backfill_assets.{'a' * 300} import x\n", encoding="utf-8")
    found = judged(tmp_path)
    assert set(found.datasets) == {"good"}
    assert all("long" in str(problem) for problem in found.problems)


def _loop(file: Path) -> None:
    file.symlink_to(file)


def _giant(file: Path) -> None:
    with file.open("wb") as out:
        out.truncate(1 << 40)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("start: 2024-01-01", "start: 0001-01-01", "start = '0001-01-01': write a day from 1900-01-01 to 2199-12-31"),
        ("start: 2024-01-01", "start: 2024-01-01\nend: 9999-12-31", "end = '9999-12-31': write a day from 1900-01-01"),
        ("start: 2024-01-01", "start: 1900-01-01\nend: 2199-12-31", "the history would be longer than 36,600 days"),
        ("trips/{day}.csv", "trips/[{day}].csv", "the day is in brackets"),
        ("trips/{day}.csv", "trips/[]{day}].csv", "the day is in brackets"),
        ("trips/{day}.csv", "trips/{day}/{day}.csv", "source.path = 'trips/{day}/{day}.csv': {day} occurs 2 times"),
        ("trips/{day}.csv", "trips/{yyyy}/{dd}/*.csv", "{yyyy}, {dd}: this is not one whole day, or month, in one spelling"),
        ("trips/{day}.csv", "trips/{\u0443\u0443\u0443\u0443mmdd}.csv", "is unknown; write the delivery day as {day}"),
        ("trips/{day}.csv", "trips/a**/{day}.csv", "** stands for folders"),
        ("trips/{day}.csv", "trips/**/**/{day}.csv", "only once"),
        ("trips/{day}.csv", "/".join(["x" * 250, "{day}.csv"]), "use at most 200 bytes for each name"),
        ("columns: {city: string}", 'columns: {city: {from: "Ci\\u00a0ty", type: string}}', "invisible character U+00A0"),
        ("columns: {city: string}", 'columns: {city: {from: "Ci\\u200dty", type: string}}', "invisible character U+200D"),
        ("columns: {city: string}", 'columns: {city: {from: "Ci\\u202ety", type: string}}', "invisible character U+202E"),
        ("columns: {city: string}", 'columns: {city: {from: "Ci\\tty", type: string}}', "write one line of text"),
        ("columns: {city: string}", "columns: {city: {from: " + "x" * 301 + ", type: string}}", "at most 300 characters"),
        ("path: cities.csv", 'path: "cities\\u0007.csv"', "of visible characters"),
        ("decimal(10, 2)", "decimal(\u0661\u0660, \u0662)", "use string, boolean"),
        ("tolerance: 2%", "tolerance: \u0662%", "write a percentage"),
    ],
)  # fmt: skip
def test_subtle_mistakes_are_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    shown_as = spoiled(tmp_path, old, new)
    assert any(message in text for text in shown_as), shown_as


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("path: golden/finance.csv", "path: ../../etc/passwd", "golden.finance.file.path = '../../etc/passwd': use a path"),
        ("path: golden/finance.csv", 'path: "golden\\u0007.csv"', "of visible characters"),
        ("table: golden/trips", "table: /etc", "golden.source.table = '/etc': use a path relative to the sources folder"),
        ("table: golden/trips", "table: " + "/".join(["x" * 250, "y"]), "use at most 200 bytes for each name"),
        ("path: golden/finance.csv,", 'path: f.csv, csv: {delimiter: "\\n"},', "delimiter and quote"),
        ("decimal(18,2)", "decimal(\u0661\u0660,\u0662)", "use string, boolean"),
        ("tolerance: 0.01", "tolerance: \u0662", "golden.finance.columns.fare.tolerance = '\u0662': write a number"),
        ("tolerance: 0.01", "tolerance: 1_000", "write a number"),
        ("tolerance: 0.01", "tolerance: 1.0e300", "no more than"),
        ("tolerance: 0.01", "tolerance: 1.0e-300", "no more than"),
        ("tolerance: 0.5", 'tolerance: "0.5"', "columns.fare.tolerance = '0.5': write a number"),
        ("dimensions: [city]", "dimensions: [c\u0456ty]", "is not a safe name"),
        ("  finance:", "  f\u0456nance:", "is not a safe name"),
        ("ours: SELECT", "ours: WITH a AS (SELECT 1) DELETE FROM trips SELECT", "the statement contains DELETE"),
        ("ours: SELECT trip_date", 'ours: "SELECT \\u202e trip_date', "ours contains the invisible character U+202E"),
        ("sql: SELECT", "sql: SELECT '" + "x" * 300_000 + "' AS x,", "longer than 256 KiB"),
        ("max_mismatches: 0", "max_mismatches: -1", "write a number of at least 0"),
        ("  board:", "  bo\u0430rd:", "is not a safe name"),
        ("tolerance: 1%}", "tolerance: \u0661%}", "consumers.board.tolerance = '\u0661%': write"),
        ('sql: "SELECT sum', 'sql: "SELECT \u202e sum', "U+202E"),
    ],
    ids=range(20),
)  # fmt: skip
def test_subtle_mistakes_in_comparisons_are_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    whole = WHOLE.replace("key: [trip_date]\n", "key: [trip_date]\n    max_mismatches: 0\n")
    assert whole.count(old) == 1
    changed = whole.replace(old, new)
    if '"SELECT' in new:
        changed = changed.replace("FROM trips GROUP BY ALL", 'FROM trips GROUP BY ALL"')
    shown_as = [observed(str(problem)) for problem in problems(write_dataset(tmp_path, yaml=changed))]
    assert any(message in text for text in shown_as), shown_as


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("table", "../bronze", "source.table = '../bronze': use a path relative to the sources folder"),
        ("table", "/etc", "use a path relative to the sources folder"),
        ("table", "s3://bucket/trips", "use a path relative to the sources folder"),
        ("table", "bronze\u202e/trips", "U+202E"),
        ("table", "\u0431ronze.trips", "a source is named by its folder, not by its name in a catalog"),
        ("day", "", "source.day = '': write one line of text"),
        ("day", "day\u200d", "invisible character U+200D"),
        ("day", "day ", "it begins or ends with a space"),
        ("version", 3.0, "write newest, or the number of a version"),
        ("version", "\u0663", "write newest, or the number of a version"),
        ("version", "Newest", "write newest, or the number of a version"),
        ("extract.database", "env:TRIPS\u0425", "write env:NAME"),
        ("extract.database", "postgresql://me:T0SECRET@h/x", "write env:NAME"),
        ("extract.database", "env:https://h/T0SECRET", "write env:NAME"),
        ("extract.query", "SELECT 1 WHERE day = :d\u0430y", "it does not use :day"),
        ("extract.query", "SELECT ':day', \":day\" -- :day", "it does not use :day"),
        ("extract.query", "SELECT :day /* \u202e */", "invisible character U+202E"),
        ("extract.query", "SELECT :day; DROP TABLE trips", "an extract's query is one SELECT"),
        ("extract.file", "../extract.py", "source.extract.file = '../extract.py': use 'extract.py'"),
        ("extract.rate_limit", "\uff15/s", "such as 5/s, 100/min or 30/h"),
        ("extract.rate_limit", "9999999/s", "such as 5/s, 100/min or 30/h"),
        ("extract.max_parallel", 101, "source.extract.max_parallel = 101"),
        ("extract.max_parallel", True, "source.extract.max_parallel = "),
        ("extract.again", "\u0663d", "write never, or a duration such as 3d"),
        ("extract.again", "-1d", "write never, or a duration such as 3d"),
        ("extract.timeout", "9999999d", "write a duration as a number"),
        ("extract.timeout", 30, "write a duration as a number"),
    ],
)  # fmt: skip
def test_subtle_mistakes_in_tables_and_extracts_are_refused(
    key: str, value: object, message: str, tmp_path: Path
) -> None:
    good = SOURCES[2] if key == "extract.file" else SOURCES[1] if "extract" in key else TABLE
    source = replaced(good, tuple(key.split(".")), value)
    shown_as = [
        observed(str(problem))
        for problem in problems(write_dataset(tmp_path, yaml=as_yaml({**GOOD, "source": source})))
    ]
    assert any(message in text for text in shown_as), shown_as
    assert "T0SECRET" not in "".join(shown_as)


@pytest.mark.parametrize("source", SOURCES, ids=["table", "query", "file"])
def test_a_good_table_and_a_good_extract_are_still_loaded(source: object, tmp_path: Path) -> None:
    folder = fresh(tmp_path)
    (folder / "extract.py").write_text("def extract(day):\n    return []\n", encoding="utf-8")
    (folder / "dataset.yaml").write_text(as_yaml({**GOOD, "source": source}), encoding="utf-8")
    assert set(judged(tmp_path).datasets) == {"good", "trips"}


@pytest.mark.parametrize(
    "csv",
    ['delimiter: "\\\\"', 'delimiter: "\\n"', "delimiter: '\"'", "quote: ','", 'quote: "\\n"', 'delimiter: "\\u0001"'],
)
def test_a_dialect_that_spark_cannot_read_is_refused(csv: str, tmp_path: Path) -> None:
    (problem,) = spoiled(tmp_path, "  path: trips/{day}.csv", f"  path: trips/{{day}}.csv\n  csv: {{{csv}}}")
    assert "delimiter and quote" in problem


@pytest.mark.parametrize("name", ["fact.sql", "staging.sql"])
def test_a_model_with_invisible_characters_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    (folder / name).write_text("-- harmless\nSELECT 1 -- \u202e\n" + FACT, encoding="utf-8")
    assert any(
        f"{name}:2: this line contains the invisible character U+202E" in str(problem) for problem in problems(folder)
    )


def test_a_good_folder_is_still_loaded(tmp_path: Path) -> None:
    assert loaded(write_dataset(tmp_path, yaml=WHOLE)).name == "trips"
