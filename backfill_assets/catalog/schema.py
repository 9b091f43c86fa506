"""The JSON Schema of dataset.yaml, for editors that complete and check while one types."""

from __future__ import annotations

import json
from typing import Any

from backfill_assets.domain.dataset import Dataset


def dataset_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of dataset.yaml, made from the model that loads it."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_tight(Dataset.model_json_schema()),
    }
    return {**schema, "title": "dataset.yaml"}


def schema_text() -> str:
    """The schema as it is stored in docs/dataset.schema.json."""
    return json.dumps(dataset_schema(), indent=2, ensure_ascii=False) + "\n"


def _tight(node: Any) -> Any:
    if isinstance(node, list):
        return [_tight(item) for item in node]
    if not isinstance(node, dict):
        return node
    tight = {key: _tight(value) for key, value in node.items() if key != "title" or not isinstance(value, str)}
    # Keys that do not match the pattern of a name would pass for an editor and fail at load.
    if "patternProperties" in tight:
        tight["additionalProperties"] = False
    if {"const": 0} in tight.get("anyOf", []):
        tight["default"] = "0%"
    return tight
