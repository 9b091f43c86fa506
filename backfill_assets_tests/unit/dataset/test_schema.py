"""The JSON Schema in docs/ is the one that the loader's model gives."""

from __future__ import annotations

import re
from pathlib import Path

from backfill_assets.dataset.definition import Dataset
from tools.schemas import as_text, dataset_schema

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_schema_in_docs_is_up_to_date() -> None:
    stored = (DOCS / "dataset.schema.json").read_text(encoding="utf-8")
    assert stored == as_text(dataset_schema()), "write it again: python -m tools.schemas"


def test_the_schema_refuses_unknown_keys_everywhere() -> None:
    schema = dataset_schema()
    described = [schema, *schema["$defs"].values()]
    assert [s for s in described if s.get("type") == "object" and s.get("additionalProperties") is not False] == []


def test_the_defaults_of_the_schema_fit_their_own_patterns() -> None:
    tolerance = dataset_schema()["$defs"]["Measure"]["properties"]["tolerance"]
    pattern = next(option["pattern"] for option in tolerance["anyOf"] if "pattern" in option)
    assert re.match(pattern, tolerance["default"])


def test_the_reference_names_every_key() -> None:
    reference = (DOCS / "dataset-yaml.md").read_text(encoding="utf-8")
    schema = dataset_schema()
    keys = {key for part in [schema, *schema["$defs"].values()] for key in part.get("properties", {})}
    assert {key for key in keys if f"`{key}`" not in reference} == set()
    assert set(Dataset.model_fields) <= keys
