"""Models are checked without being run."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill_assets.dataset.load import load_dataset
from backfill_assets.dataset.loaded import Language
from backfill_assets.dataset.models import sql_problems
from backfill_assets_tests.harness.dataset_folders import loaded, problems, write_dataset


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "select 1;\n",
        "-- a; b\nSELECT ';' AS a, \";\" AS b, `;` AS c /* ; */ FROM raw",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "SELECT 'it''s; DELETE' AS a",
        "WITH a AS (SELECT `insert` FROM raw) SELECT * FROM a",
    ],
)
def test_one_select_is_accepted(text: str) -> None:
    assert sql_problems(text) == ()


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the file is empty"),
        ("-- nothing\n/* at all */", 1, "the file is empty"),
        (";", 1, "begins with ';'"),
        ("SELECT 1;\nSELECT 2", 2, "something follows the semicolon"),
        ("SELECT 1; -- done", 1, "something follows the semicolon"),
        ("\nDROP TABLE raw", 2, "begins with 'DROP'"),
        ("INSERT INTO a SELECT 1", 1, "begins with 'INSERT'"),
        ("WITH a AS (SELECT 1)\nINSERT INTO b SELECT * FROM a", 2, "contains INSERT; a model only reads"),
    ],
)
def test_what_is_not_one_select_is_refused(text: str, line: int, message: str) -> None:
    ((found, text),) = sql_problems(text)
    assert message in text
    assert found == line


def python_dataset(root: Path, text: str, layer: str = "fact") -> Path:
    folder = write_dataset(root)
    (folder / f"{layer}.sql").unlink()
    (folder / f"{layer}.py").write_text(text, encoding="utf-8")
    return folder


def test_a_python_model_is_known_by_its_parameters_and_never_run(tmp_path: Path) -> None:
    text = "import math\nfrom pyspark.sql import DataFrame\nraise SystemExit\n\ndef fact(staging, *, cities): ...\n"
    model = loaded(python_dataset(tmp_path, text)).fact
    assert (model.language, model.parameters) == (Language.python, ("staging", "cities"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def fact(:", "fact.py:1: this is not valid Python: invalid syntax"),
        ("a = '\0'", "this is not valid Python"),
        ("def facts(staging): ...", "there is no function fact; write def fact(cities, staging)"),
        ("class A:\n    def fact(self): ...", "there is no function fact"),
        ("def fact(raw): ...", "fact.py:1: fact asks for the table 'raw'; there are: cities, staging"),
        ("\ndef fact(staging, *tables): ...", "fact.py:2: fact takes * or **; name the tables"),
        ("def fact(staging, **tables): ...", "fact takes * or **"),
        ("def fact(): ...", "fact asks for no table"),
        ("import pandas\ndef fact(staging): ...", "fact.py:1: imports pandas; a model may import pyspark"),
        ("def fact(staging):\n    from . import x", "fact.py:2: imports .; a model may import"),
        ("import no_such_module_anywhere\ndef fact(staging): ...", "fact.py:1: imports no_such_module_anywhere"),
        ("from backfill_assets.no_such import days\ndef fact(staging): ...", "imports backfill_assets.no_such"),
    ],
)
def test_a_python_model_that_cannot_work_is_refused(tmp_path: Path, text: str, message: str) -> None:
    messages = [str(problem) for problem in problems(python_dataset(tmp_path, text))]
    assert any(message in found for found in messages), messages


def test_a_staging_model_gets_raw_and_not_staging(tmp_path: Path) -> None:
    assert loaded(python_dataset(tmp_path / "a", "def staging(raw): ...", "staging")).staging.parameters == ("raw",)
    (problem,) = problems(python_dataset(tmp_path / "b", "def staging(staging): ...", "staging"))
    assert "there are: cities, raw" in str(problem)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    (folder / "staging.sql").unlink()
    (problem,) = problems(folder)
    assert "there is no staging model; write staging.sql or staging.py" in str(problem)


def test_a_model_in_both_languages_is_refused(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    (folder / "staging.py").touch()
    (problem,) = problems(folder)
    assert "staging.sql and staging.py are both there; remove one" in str(problem)


def test_a_model_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    (folder / "fact.sql").write_bytes(b"SELECT '\xff'")
    (problem,) = problems(folder)
    assert "fact.sql:1: byte 8 is not valid UTF-8" in str(problem)


def test_a_sql_model_wrong_in_its_third_line_names_that_line(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    (folder / "fact.sql").write_text("SELECT 1\n;\nSELECT 2")
    result = load_dataset(folder)
    assert isinstance(result, tuple)
    assert str(result[0]).endswith("fact.sql:3: something follows the semicolon; a model is one SELECT")
