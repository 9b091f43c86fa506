"""Writes docs/dataset.schema.json and docs/backfill.schema.json, with which editors check the files that people write.

    python -m tools.schemas

They are JSON Schemas (draft 2020-12), made from the models that load the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from backfill_assets.campaign.specification import Specification
from backfill_assets.dataset.definition import Dataset

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"


def dataset_schema() -> dict[str, Any]:
    """The schema of dataset.yaml."""
    return _schema_of(Dataset, "dataset.yaml")


def specification_schema() -> dict[str, Any]:
    """The schema of a backfill specification."""
    return _schema_of(Specification, "backfill specification")


def as_text(schema: dict[str, Any]) -> str:
    """A schema as it is stored in docs/."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _schema_of(model: type[BaseModel], title: str) -> dict[str, Any]:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_tight(model.model_json_schema())}
    return {**schema, "title": title}


def _tight(node: Any) -> Any:
    if isinstance(node, list):
        return [_tight(item) for item in node]
    if not isinstance(node, dict):
        return node
    tight = {key: _tight(value) for key, value in node.items() if key != "title" or not isinstance(value, str)}
    # Keys that do not match the pattern of a name would pass in an editor and fail at load.
    if "patternProperties" in tight:
        tight["additionalProperties"] = False
    if {"const": 0} in tight.get("anyOf", []):
        tight["default"] = "0%"
    return tight


if __name__ == "__main__":
    (DOCS / "dataset.schema.json").write_text(as_text(dataset_schema()), encoding="utf-8")
    (DOCS / "backfill.schema.json").write_text(as_text(specification_schema()), encoding="utf-8")
