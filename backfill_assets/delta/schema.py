"""The columns of a Delta table: their types, by the names of `dataset.yaml`, and how they differ."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from deltalake import DeltaTable, Schema

from backfill_assets.core.errors import PreconditionError
from backfill_assets.core.types import Array, Kind, Map, Plain, Struct, kind_of
from backfill_assets.dataset.definition import Dataset

Field = Mapping[str, Any]
"""A column in the JSON of a Delta schema."""
Types = Mapping[str, str]
"""The types of columns as `dataset.yaml` writes them, in the table's order."""

_NAMES: Final = {"smallint": "short"}
"""What Delta calls the types that it calls otherwise."""
_OWN_NAMES: Final = {name: own for own, name in _NAMES.items()}
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The names of fields of structs that `dataset.yaml` can write."""


def declared_types(dataset: Dataset) -> Types:
    """The columns that dataset.yaml declares, followed by the audit columns."""
    return {**dataset.types, **dataset.audit_columns}


def without_dropped(types: Types, dataset: Dataset) -> Types:
    """A table's columns without those that dataset.yaml lists as dropped."""
    return {name: kind for name, kind in types.items() if name not in dataset.dropped_columns}


def delta_schema(types: Types) -> Schema:
    """A Delta schema of nullable columns: the checks reject nulls before the release."""
    return Schema.from_json(json.dumps(_struct((name, kind_of(kind)) for name, kind in types.items())))


def _struct(fields: Iterable[tuple[str, Kind]]) -> Field:
    own = [{"name": name, "type": _delta(kind), "nullable": True, "metadata": {}} for name, kind in fields]
    return {"type": "struct", "fields": own}


def _delta(kind: Kind) -> str | Field:
    match kind:
        case Plain():
            return _NAMES.get(str(kind), str(kind))
        case Array():
            return {"type": "array", "elementType": _delta(kind.element), "containsNull": True}
        case Map():
            value = {"valueType": _delta(kind.value), "valueContainsNull": True}
            return {"type": "map", "keyType": _delta(kind.key), **value}
        case Struct():
            return _struct(kind.fields)


def types_of(fields: Iterable[Field]) -> Types:
    """The types in the fields of a schema's JSON; one that `dataset.yaml` cannot write keeps the name that Delta has for it."""
    return {f["name"]: _written(f["type"]) for f in fields}


def _written(kind: Any) -> str:
    match kind:
        case {"type": "array", "elementType": element}:
            return f"array<{_written(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{_written(key)},{_written(value)}>"
        case {"type": "struct", "fields": fields} if all(_FIELD.fullmatch(field["name"]) for field in fields):
            return f"struct<{','.join(f'{name}:{own}' for name, own in types_of(fields).items())}>"
        case _:
            return _OWN_NAMES.get(kind, kind) if isinstance(kind, str) else json.dumps(kind)


def parts_with_rules(kind: Any, path: str = "") -> Iterator[str]:
    """The parts of a type in a schema's JSON with a rule of their own, such as that they are never null, by their paths."""
    match kind:
        case {"type": "array", "elementType": element}:
            yield from () if kind.get("containsNull", True) else (f"{path}.element",)
            yield from parts_with_rules(element, f"{path}.element")
        case {"type": "map", "valueType": value}:
            yield from () if kind.get("valueContainsNull", True) else (f"{path}.value",)
            yield from parts_with_rules(value, f"{path}.value")
        case {"type": "struct", "fields": fields}:
            for field in fields:
                own = f"{path}.{field['name']}"
                ruled = any(key.startswith("delta.") for key in field["metadata"])
                yield from (own,) if ruled or not field["nullable"] else ()
                yield from parts_with_rules(field["type"], own)
        case _:
            return


def table_fields(table: DeltaTable) -> Sequence[Field]:
    """The fields of a table in the JSON of its schema."""
    fields: Sequence[Field] = json.loads(table.schema().to_json())["fields"]
    return fields


def table_types(table: DeltaTable) -> Types:
    """The types of a table's columns."""
    return types_of(table_fields(table))


def differences(expected: Types, found: Types) -> list[str]:
    """How columns differ, one line each; ignores the order of columns."""
    lines = [f"column {n}: expected {t}, found no such column" for n, t in expected.items() if n not in found]
    lines += [f"column {n}: expected no such column, found {t}" for n, t in found.items() if n not in expected]
    both = [n for n in expected if n in found and expected[n] != found[n]]
    return lines + [f"column {n}: expected {expected[n]}, found {found[n]}" for n in both]


def require_same(what: str, expected: Types, found: Types, remedy: str) -> None:
    """Refuse different columns.

    Raises:
        PreconditionError: columns differ; names each with what was expected and found.
    """
    if lines := differences(expected, found):
        raise PreconditionError(f"{what}: {'; '.join(lines)}. {remedy}")
