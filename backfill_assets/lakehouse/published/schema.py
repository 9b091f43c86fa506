"""The published table's schema: what the dataset declares, and how tables may differ from it."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from deltalake import DeltaTable, Schema
from deltalake.schema import Field

from backfill_assets.core.errors import PreconditionError
from backfill_assets.dataset.consistency import AUDIT_COLUMNS
from backfill_assets.dataset.definition import Dataset

Types = Mapping[str, str]
"""Delta's names of the types by column, in the table's order; the dataset contract uses the same names."""

_REFUSED_FEATURES = ("columnMapping", "deletionVectors")
_CONSTRAINT: Final = "delta.constraints."
_RULES_OF_FIELDS: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.")
"""What the metadata of a field begins with where an engine refuses or makes up its values."""


def declared_types(dataset: Dataset) -> Types:
    """The columns that dataset.yaml declares, and the audit columns after them."""
    return {**{name: column.type for name, column in dataset.columns.items()}, **AUDIT_COLUMNS}


def without_dropped(types: Types, dataset: Dataset) -> Types:
    """A table's columns less those that dataset.yaml says nothing fills any more."""
    return {name: kind for name, kind in types.items() if name not in dataset.dropped_columns}


def delta_schema(types: Types) -> Schema:
    """A Delta schema of nullable columns: what must not be null is a matter of the checks, before the release."""
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))


def delta_fields(types: Types) -> list[Field]:
    """The fields of `delta_schema`."""
    return list(delta_schema(types).fields)


def types_of(fields: Iterable[Mapping[str, Any]]) -> Types:
    """The types in the fields of a schema's JSON; a type that is not primitive shows as its JSON."""
    return {f["name"]: f["type"] if isinstance(f["type"], str) else json.dumps(f["type"]) for f in fields}


def table_fields(table: DeltaTable) -> Sequence[Mapping[str, Any]]:
    """The fields of a table, as the JSON of its schema has them."""
    fields: Sequence[Mapping[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def table_types(table: DeltaTable) -> Types:
    """The types of a table's columns."""
    return types_of(table_fields(table))


def differences(expected: Types, found: Types) -> list[str]:
    """How columns differ, one line each; the order of columns is none of it."""
    lines = [f"column {n}: expected {t}, found no such column" for n, t in expected.items() if n not in found]
    lines += [f"column {n}: expected no such column, found {t}" for n, t in found.items() if n not in expected]
    both = [n for n in expected if n in found and expected[n] != found[n]]
    return lines + [f"column {n}: expected {expected[n]}, found {found[n]}" for n in both]


def require_same(what: str, expected: Types, found: Types, remedy: str) -> None:
    """Refuse different columns.

    Raises:
        PreconditionError: names each column with what was expected and found.
    """
    if lines := differences(expected, found):
        raise PreconditionError(f"{what}: {'; '.join(lines)}. {remedy}")


def require_partitioning(what: str, dataset: Dataset, found: Sequence[str]) -> None:
    """Refuse a table that is not partitioned by exactly the dataset's partition column.

    Raises:
        PreconditionError: names what was expected and found.
    """
    if tuple(found) != (dataset.partition_column,):
        raise PreconditionError(
            f"{what}: expected to be partitioned by column {dataset.partition_column}, found {', '.join(found) or 'none'}; "
            "partitioning cannot be changed in place: publish under a new dataset name"
        )


def require_plain(what: str, features: Iterable[str], configuration: Mapping[str, str]) -> None:
    """Refuse column mapping and deletion vectors: a file taken out of its table would be read wrongly.

    Raises:
        PreconditionError: names the feature.
    """
    listed = set(features)
    refused = [name for name in _REFUSED_FEATURES if name in listed]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        refused.append("columnMapping")
    if configuration.get("delta.enableDeletionVectors", "false") == "true":
        refused.append("deletionVectors")
    if refused:
        raise PreconditionError(
            f"{what}: expected a table without column mapping and deletion vectors, found {', '.join(sorted(set(refused)))}; "
            "files of such a table cannot be swapped. Write it without these features"
        )


def require_no_rules(what: str, fields: Iterable[Mapping[str, Any]], configuration: Mapping[str, str]) -> None:
    """Refuse a table with rules of its own: rows of files that are swapped in are never held against them.

    Raises:
        PreconditionError: names each rule.
    """
    rules = [
        f"constraint {name.removeprefix(_CONSTRAINT)} ({sql})"
        for name, sql in sorted(configuration.items())
        if name.startswith(_CONSTRAINT)
    ]
    for field in fields:
        rules += [f"column {field['name']} NOT NULL"] if not field["nullable"] else []
        rules += [f"column {field['name']} {key}" for key in field["metadata"] if key.startswith(_RULES_OF_FIELDS)]
    if rules:
        raise PreconditionError(
            f"{what}: expected a table without rules of its own, found {', '.join(rules)}; a release swaps files, of which no "
            "engine looks at the rows. Declare them in dataset.yaml, under checks.rules or as nullable: false of a column, and "
            "take them off the table: ALTER TABLE … DROP CONSTRAINT, or ALTER COLUMN … DROP NOT NULL"
        )


_KEPT: Final = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
_INTERVAL: Final = re.compile(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)


def kept_too_short(configuration: Mapping[str, str | None], needed: dt.timedelta) -> dict[str, str]:
    """The settings of a table's log that keep less than is needed, with what they have to be; longer ones stay."""
    wanted = f"interval {needed // dt.timedelta(seconds=1)} seconds"
    return {name: wanted for name in _KEPT if _interval(configuration.get(name) or "") < needed}


def _interval(text: str) -> dt.timedelta:
    """An interval as Delta writes it; none for what cannot be read, which is set again."""
    found = _INTERVAL.fullmatch(text.strip())
    return dt.timedelta(**{f"{found[2].lower()}s": int(found[1])}) if found else dt.timedelta(0)
