"""What makes published days stale in a dataset's code, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill_assets.dataset import parts as parts_module
from backfill_assets.dataset.definition import Column, Dataset
from backfill_assets.dataset.load import load_dataset
from backfill_assets.dataset.loaded import Language, LoadedDataset, Model, ModelLayer
from backfill_assets.dataset.models import without_comments
from backfill_assets.dataset.parts import PART_OF, CodePart, code_parts
from backfill_assets.dataset.references import Reference
from backfill_assets.dataset.sources import Source, Upstream
from backfill_assets.dataset.table_source import TableSource

YAML = """\
name: trips
description: What was driven.
partition_column: day
start: 2026-01-01
key: [id]
source: {format: csv, path: "x/{day}.csv", columns: {id: long, fare: double}, on_missing: pass}
staging: {deduplicate: latest_delivery}
references: {cities: {format: csv, path: cities.csv, columns: {city: string}}}
columns:
  id: {type: long, nullable: false, description: The number}
  day: {type: date}
  description: {type: double, tolerance: 0.01}
measures: {description: {}}
checks: {rules: {positive: {sql: description > 0}}}
golden: {booked: {description: As booked, file: {format: csv, path: b.csv, columns: {id: long, day: date}}, key: [id, day]}}
"""
STAGING = "SELECT id, fare, _lineage -- all of them\nFROM raw"
FACT = """\
from pyspark.sql import DataFrame

QUERY = '''
SELECT 1

FROM x  # no comment
'''


def fact(staging: DataFrame) -> DataFrame:
    # The fare is net.
    return staging.selectExpr(

        "id",  # the key
        "date '2026-01-01' AS day",
        "fare AS description",
    )
"""


def loaded(home: Path, yaml: str = YAML, staging: str = STAGING, fact: str = FACT) -> LoadedDataset:
    home.mkdir(parents=True, exist_ok=True)
    for name, text in {"dataset.yaml": yaml, "staging.sql": staging, "fact.py": fact}.items():
        (home / name).write_text(text, encoding="utf-8")
    found = load_dataset(home)
    assert isinstance(found, LoadedDataset), found
    return found


def changed(tmp_path: Path, **texts: str) -> set[str]:
    """The parts that differ from those of the texts above."""
    before, after = code_parts(loaded(tmp_path / "trips")), code_parts(loaded(tmp_path / "trips", **texts))
    assert before.keys() == after.keys() == set(CodePart)
    return {part.value for part in CodePart if before[part] != after[part]}


def test_every_key_of_a_dataset_has_its_part() -> None:
    assert set(PART_OF) == set(Dataset.model_fields)


def test_a_key_that_a_later_version_adds_changes_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trips = loaded(tmp_path / "trips")
    before = code_parts(trips)
    monkeypatch.setattr(parts_module, "PART_OF", {**PART_OF, "of_later": CodePart.contract})
    assert code_parts(trips) == before


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("What was driven.", "What was driven, by trip.", set()),
        ("The number", "Its number", set()),
        ("As booked", "As the books say", set()),
        ("start: 2026-01-01", "start: 2026-01-02\nowner: me\nchunk_days: 7\nlate_data: publish", set()),
        ("path: cities.csv", "path: towns.csv", set()),
        ("path: b.csv", "path: books.csv", set()),
        ('path: "x/{day}.csv"', 'path: "y/{day}.csv"', set()),
        ("nullable: false, ", "", {"columns"}),
        ("description: {type: double", "description: {type: float", {"columns"}),
        ("key: [id]", "key: [id]\naudit: ledger", {"columns"}),
        ("0.01", "0.02", {"checks"}),
        ("measures: {description: {}}", "measures: {description: {distinct: true}}", {"checks"}),
        ("description > 0", "description >= 0", {"checks"}),
        (", on_missing: pass", "", {"checks"}),
        ("key: [id, day]}", "key: [id, day], max_mismatches: 1}", {"checks"}),
        ("fare: double}", "fare: float}", {"reading"}),
        ("columns: {id: long, fare: double}", "columns: {fare: double, id: long}", {"reading"}),
        ("key: [id]", "key: [id]\nlookback_days: 0", set()),
        ("key: [id]", "key: [id, day]", {"contract"}),
        ("key: [id]", "key: [id]\ntime_zone: Europe/Paris", {"contract"}),
        ("latest_delivery", "none", {"contract"}),
        ("key: [id]", "key: [id]\nlookback_days: 1", {"contract"}),
        ("key: [id]", "key: [id]\nlookahead_days: 1", {"contract"}),
        (", on_missing: pass", ", on_missing: pass, late_days: 3", {"contract"}),
        ("columns: {city: string}", "columns: {city: string, zone: string}", {"contract"}),
        ("columns: {city: string}", "columns: {city: string}, as_of: published", {"contract"}),
    ],
)
def test_a_key_of_the_contract_changes_its_part_and_descriptions_change_none(
    tmp_path: Path, old: str, new: str, parts: set[str]
) -> None:
    assert YAML.count(old) == 1
    assert changed(tmp_path, yaml=YAML.replace(old, new)) == parts


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        (" -- all of them\n", "\n  ", set()),
        ("SELECT id", "/* rows */ SELECT id", set()),
        ("SELECT id", "SELECT /* all /* of */ raw */ id", {"code"}),
        ("SELECT id", "SELECT /*+ REPARTITION(3) */ id", {"code"}),
        ("fare", "fare / 2 AS fare", {"code"}),
        ("FROM raw", "FROM raw WHERE 'a -- b' > ''", {"code"}),
        ("fare", "'It''s' AS fare", {"code"}),
    ],
)
def test_comments_and_layout_of_sql_do_not_count(tmp_path: Path, old: str, new: str, parts: set[str]) -> None:
    assert changed(tmp_path, staging=STAGING.replace(old, new)) == parts


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("    # The fare is net.\n", "", set()),
        ("  # the key", "", set()),
        ("(\n\n        ", "(\n        ", set()),
        ("\n\n\ndef", "\n# A model.\n\n\n\ndef", set()),
        ("  # no comment\n", "\n", {"code"}),
        ("SELECT 1\n\nFROM", "SELECT 1\nFROM", {"code"}),
        ('"fare AS', '"2 * fare AS', {"code"}),
    ],
)
def test_comments_and_blank_lines_of_python_do_not_count(tmp_path: Path, old: str, new: str, parts: set[str]) -> None:
    assert FACT.count(old) == 1
    assert changed(tmp_path, fact=FACT.replace(old, new)) == parts


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT 'It''s'", "SELECT 'It' 's'"),
        ("SELECT 1L", "SELECT 1 L"),
        ("SELECT `a``b`", "SELECT `a` `b`"),
        ("SELECT 1 -- a\n, 2", "SELECT 1 -- a, 2"),
        ("SELECT a/*b*/c", "SELECT ac"),
    ],
)
def test_different_texts_in_sql_stay_different(one: str, other: str) -> None:
    assert without_comments(one) != without_comments(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('x = [\n"""a\n#abc""",\n]', 'x = [\n"""a\n#xyz""",\n]'),
        ("# coding: latin-1\nx = 'é'", "x = 'é'"),
        ("if x:\n  a()\nb()", "if x:\n  a()\n  b()"),
        ('x = """a\n\nb"""', 'x = """a\nb"""'),
        ("x = 1 \\\n\n+ 2", "x = 1 \\\n+ 2"),
    ],
)
def test_different_texts_in_python_stay_different(tmp_path: Path, one: str, other: str) -> None:
    models = [Model(ModelLayer.fact, tmp_path / "fact.py", Language.python, text) for text in (one, other)]
    first, second = (code_parts(replace(loaded(tmp_path / "trips"), fact=model))[CodePart.code] for model in models)
    assert first != second


def test_each_key_of_a_source_an_upstream_and_a_column_is_looked_at() -> None:
    """A new key changes rows, verdicts or neither: say in `parts` which, then add it here."""
    assert set(Column.model_fields) == {"type", "nullable", "description", "tolerance"}
    assert set(Upstream.model_fields) == {"lookback_days", "on_missing"}
    assert set(TableSource.model_fields) == {"table", "day", "version", "late_days", "on_missing", "columns"}
    read = {"format", "optional", "encoding", "csv", "columns", "undeclared"}
    elsewhere = {"path", "late_days", "on_missing", "order_by", "removed_after_landing", "extract"}
    assert set(Source.model_fields) == read | elsewhere
    of_references = {"path", "format", "optional", "encoding", "csv", "columns", "valid", "as_of", "renew"}
    assert set(Reference.model_fields) == of_references


def test_days_that_are_renewed_make_only_these_days_stale(tmp_path: Path) -> None:
    kept = YAML.replace("columns: {city: string}", "columns: {city: string}, as_of: published")
    renewed = kept.replace("as_of: published", "as_of: published, renew: 2026-01-03")
    assert kept != renewed
    one, other = (code_parts(loaded(tmp_path / "trips", yaml=yaml)) for yaml in (kept, renewed))
    assert one == other


def test_what_a_model_imports_counts_without_its_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    (tmp_path / "modules").mkdir()
    module = tmp_path / "modules" / "parts_of_the_fare.py"
    fact = f"import parts_of_the_fare\n{FACT}"
    found = []
    for text in ("NET = 2\n", "# The net fare.\nNET = 2  # euros\n", "NET = 3\n"):
        module.write_text(text, encoding="utf-8")
        found.append(code_parts(loaded(tmp_path / "trips", fact=fact))[CodePart.code])
    assert found[0] == found[1] != found[2]
