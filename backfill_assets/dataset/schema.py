"""The JSON Schemas of dataset.yaml and of specifications, for editors that complete and check while one types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from backfill_assets.dataset.definition import Dataset


def dataset_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of dataset.yaml, made from the model that loads it."""
    return schema_of(Dataset, "dataset.yaml")


def schema_text() -> str:
    """The schema as it is stored in docs/dataset.schema.json."""
    return schema_as_text(dataset_schema())


def schema_of(model: type[BaseModel], title: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a model."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_tight(model.model_json_schema())}
    return {**schema, "title": title}


def schema_as_text(schema: Mapping[str, Any]) -> str:
    """A schema as it is stored in docs/."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


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
