"""The JSON Schema of specifications in docs/ is the one that the loader's model gives, and the reference names every key."""

from __future__ import annotations

import re
from pathlib import Path

from backfill_assets.campaign.execution import OF_SPEED, PINNED, is_of_speed
from backfill_assets.campaign.specification import Specification
from backfill_assets_tests.unit.campaign.test_specifications import YAML
from tools.schemas import as_text, specification_schema

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_schema_in_docs_is_up_to_date() -> None:
    stored = (DOCS / "backfill.schema.json").read_text(encoding="utf-8")
    assert stored == as_text(specification_schema()), "write it again: python -m tools.schemas"


def test_the_schema_refuses_unknown_keys_everywhere() -> None:
    schema = specification_schema()
    described = [schema, *schema["$defs"].values()]
    assert [s for s in described if s.get("type") == "object" and s.get("additionalProperties") is not False] == []


def test_the_schema_has_both_spellings_of_an_expected_change() -> None:
    validation = specification_schema()["$defs"]["Validation"]
    assert "expected_change" in validation["properties"]
    assert any(re.search(pattern, "revenue_delta_expected") for pattern in validation["patternProperties"])


def test_the_defaults_of_the_schema_fit_their_own_patterns() -> None:
    schema = specification_schema()
    parts = [schema, *schema["$defs"].values()]
    keys = [key for part in parts for key in part.get("properties", {}).values()]
    patterned = [key for key in keys if "pattern" in key and "default" in key]
    assert patterned
    assert [key for key in patterned if not re.search(key["pattern"], key["default"])] == []


def test_the_reference_names_every_key() -> None:
    reference = (DOCS / "backfill-yaml.md").read_text(encoding="utf-8")
    schema = specification_schema()
    keys = {key for part in [schema, *schema["$defs"].values()] for key in part.get("properties", {})}
    assert {key for key in keys if f"`{key}`" not in reference} == set()
    assert set(Specification.model_fields) <= keys


def test_the_reference_lists_what_a_campaign_may_set_of_spark_and_what_is_pinned() -> None:
    reference = (DOCS / "backfill-yaml.md").read_text(encoding="utf-8")
    assert [name for name in (*OF_SPEED, *PINNED) if f"`{name}`" not in reference] == []
    assert [name for name in PINNED if is_of_speed(name)] == []


def test_the_example_of_the_reference_is_the_one_that_is_proven() -> None:
    assert YAML in (DOCS / "backfill-yaml.md").read_text(encoding="utf-8")
