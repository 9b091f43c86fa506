"""The JSON Schemas of dataset.yaml and of specifications, for editors that complete and check while one types."""

from __future__ import annotations

from typing import Any

from backfill_assets.dataset.schema import schema_as_text, schema_of
from backfill_assets.domain.specification import Specification


def specification_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a backfill specification, made from the model that loads it."""
    return schema_of(Specification, "backfill specification")


def specification_schema_text() -> str:
    """The schema as it is stored in docs/backfill.schema.json."""
    return schema_as_text(specification_schema())
