"""The first draft of a dataset folder for a table that was there before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from backfill_assets.core.errors import ArgumentError
from backfill_assets.core.text import checked_name
from backfill_assets.core.types import is_numeric
from backfill_assets.dataset.releasing import AuditTrail
from backfill_assets.delta.adoptable import FoundColumn, FoundTable
from backfill_assets.delta.commit import GENERATED, LENGTH

_HEAD: Final = "# Drafted by `backfill adopt`; dataset-yaml.md in the docs of backfill_assets explains each key.\n"
_ASKED: Final = """\
time_zone: UTC  # where its days begin and end, such as Europe/Berlin
start: {first}
end: {last}  # the last day of the table. Remove this line when this project is to write new days
# Where its rows come from. Until files are there, no day can be built, and the table stays as it is.
"""
_LONGEST: Final = 63
"""Characters of a name."""
_NAMES: Final = {GENERATED: "generated", LENGTH: "length"}
"""What rules of columns are called in the draft."""


def draft_of(found: FoundTable, name: str, key: tuple[str, ...], audit: AuditTrail) -> Mapping[str, str]:
    """The files of a dataset folder that declares the table as it is, by name.

    Its own rules become checks that block a release: NOT NULL as such, all others as rules.

    Raises:
        InvalidNameError: it is not a name for a dataset.
        ArgumentError: the key is missing, or names a column that the table does not have.
    """
    checked_name(name, "dataset")
    known = [column.name for column in found.columns]
    if wrong := [column for column in key if column not in known] or ([] if key else ["nothing"]):
        raise ArgumentError(
            f"--key names {wrong[0]}, and the table has {', '.join(known)}; name the columns that identify a row"
        )
    if not found.days:
        raise ArgumentError(f"{found.folder} has no rows; there is nothing to adopt: declare a new dataset instead")
    about = {
        "name": name,
        **_described(found.comment),
        "partition_column": found.partition,
        # Keys are compared within each day.
        "key": list(dict.fromkeys((found.partition, *key))),
        "audit": audit.value,
    }
    rest: dict[str, Any] = {
        "source": {
            "format": "parquet",
            "path": f"{name}/{{day}}.parquet",
            "columns": {column.name: column.type for column in found.columns},
        },
        "columns": {column.name: _declared(column) for column in found.columns},
        **({"measures": measures} if (measures := _measures(found, key)) else {}),
        **({"checks": {"rules": rules}} if (rules := _rules(found)) else {}),
    }
    columns = ", ".join(known)
    asked = _ASKED.format(first=found.days[0], last=found.days[-1])
    return {
        "dataset.yaml": f"{_HEAD}{_dumped(about)}{asked}{_dumped(rest)}",
        "staging.sql": f"SELECT {columns}, _lineage\nFROM raw\n",
        "fact.sql": f"SELECT {columns}\nFROM staging\n",
    }


def _dumped(part: Mapping[str, Any]) -> str:
    return yaml.safe_dump(part, sort_keys=False, allow_unicode=True, width=120)


def _declared(column: FoundColumn) -> Mapping[str, Any]:
    return {
        "type": column.type,
        **({} if column.nullable else {"nullable": False}),
        **_described(column.comment),
    }


def _described(comment: str) -> Mapping[str, str]:
    """The description without characters that nobody sees, which `dataset.yaml` may not have."""
    text = "".join(sign if sign.isprintable() else " " for sign in comment).strip()
    return {"description": text} if text else {}


def _measures(found: FoundTable, key: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
    """All numbers: no total of a day changes by accident."""
    return {c.name: {"tolerance": "0%"} for c in found.columns if is_numeric(c.type) and c.name not in key}


def _rules(found: FoundTable) -> Mapping[str, Mapping[str, str]]:
    constraints = {
        f"constraint_{i}_{re.sub('[^a-z0-9]+', '_', name.lower())}"[:_LONGEST]: {"sql": sql}
        for i, (name, sql) in enumerate(found.constraints.items(), 1)
    }
    of_columns = {
        f"{_NAMES[key]}_{column.name}"[:_LONGEST]: {"sql": sql}
        for column in found.columns
        for key, sql in column.rules.items()
        if sql
    }
    return constraints | of_columns
