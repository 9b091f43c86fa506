"""A Delta table as the source of a dataset, as `dataset.yaml` declares it: its rows are read where they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from backfill_assets.core.canonical import digest
from backfill_assets.core.errors import MisfitError
from backfill_assets.core.fields import RelativePath
from backfill_assets.core.text import shortened, visible
from backfill_assets.dataset.sources import Columns, Header, OnMissing, Source

NEWEST: Final = "newest"
_IN_A_CATALOG: Final = re.compile(r"\w+(\.\w+){1,2}")
_LONGEST_KEY: Final = 60


def _folder(value: str) -> str:
    if _IN_A_CATALOG.fullmatch(value):
        raise ValueError(
            f"a source is named by its folder, not by its name in a catalog; write the folder of a Delta table below the "
            f"sources folder (./{value} if the folder has this name)"
        )
    return value


def _version(value: object) -> object:
    if value != NEWEST and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError("write newest, or the number of a version of the table")
    return value


class TableSource(Columns):
    """The Delta table that the days are read from; its rows stay where they are."""

    table: Annotated[RelativePath, AfterValidator(_folder)] = Field(
        description="Folder of a Delta table below the sources folder."
    )
    day: Header = Field(
        description="Its partition column with the delivery day: a date, or text that is an ISO date, such as 2024-01-31."
    )
    version: Annotated[
        Literal["newest"] | int,
        BeforeValidator(_version),
        WithJsonSchema({"anyOf": [{"const": NEWEST}, {"type": "integer", "minimum": 0}]}),
    ] = Field(
        default=NEWEST, description="The version that is read: the newest one, or always the one with this number."
    )
    late_days: Annotated[int, Field(ge=0, le=366)] = Field(
        default=0,
        description="Up to this many later delivery days may also hold rows of a day; staging reads that far.",
    )
    on_missing: OnMissing = OnMissing.fail

    @model_validator(mode="before")
    @classmethod
    def _has_keys_of_a_table(cls, value: Any) -> Any:
        known = ", ".join(cls.model_fields)
        strange = [key for key in value if key not in cls.model_fields] if isinstance(value, dict) else []
        if strange:
            texts = {key: visible(shortened(str(key), _LONGEST_KEY)) for key in strange}
            raise MisfitError(
                [
                    ((key,), f"source.{shown}: a table has no such key, only {known}; drop it")
                    for key, shown in texts.items()
                ]
            )
        return value

    @property
    def pinned(self) -> int | None:
        """The number of the version that is always read; None for the newest one."""
        return None if self.version == NEWEST else int(self.version)

    @property
    def reading(self) -> str:
        """How its rows are read: a digest of their columns, names there and types, and of the column of the day."""
        columns = {name: [self.headers[name], kind] for name, kind in self.types.items()}
        return f"table {digest([columns, self.day.lower()])[:16]}"

    @property
    def compared(self) -> Mapping[str, str]:
        """The types of the columns that tell the rows of one day from others: all but the day itself, unless it is alone."""
        others = {name: kind for name, kind in self.types.items() if self.headers[name] != self.day.lower()}
        return others or self.types


def of_its_kind(value: object) -> object:
    """A source of `dataset.yaml` as the model of its kind: with the key `table` it is a table, otherwise files.

    Raises:
        ValueError: it is no mapping, or not what its kind must be.
    """
    if value is None or isinstance(value, (Source, TableSource)):
        return value
    if not isinstance(value, dict):
        raise ValueError("write a mapping of key: value lines")  # noqa: TRY004  # pydantic reports no other
    kind = TableSource if "table" in value else Source
    # As JSON, like the whole file: strict, but dates and enums are text.
    return kind.model_validate_json(json.dumps(value), strict=True)
