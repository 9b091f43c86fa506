"""Golden sources: tables of somebody else that a dataset must agree with, such as what finance has booked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from backfill_assets.core.fields import Distance, Name, RelativePath
from backfill_assets.domain.checks_config import CheckConfig
from backfill_assets.domain.consistency import RESERVED_TABLES
from backfill_assets.domain.files import Part, Reference

if TYPE_CHECKING:
    from backfill_assets.domain.dataset import Dataset

_Query = Annotated[str, Field(min_length=1)]
_Fault = tuple[tuple[str, ...], str]


class GoldenColumn(Part):
    """A column whose values must agree."""

    tolerance: Distance = Field(
        default=Decimal(0), description="How far two numbers may lie apart to count as equal; 0 is exact."
    )


class Golden(CheckConfig):
    """A table that each day must agree with, and how both are brought to one grain.

    Rows are matched by `key`; one that is missing on either side, or differs in one of `columns`, is a mismatch.
    """

    description: str = ""
    file: Reference | None = None
    table: RelativePath | None = Field(default=None, description="Folder of a Delta table below the sources folder.")
    sql: _Query | None = Field(
        default=None,
        description="One SELECT that brings file or table, under the golden source's name, to the key and the columns; "
        "it may read references and upstreams by name, and needs no file or table then.",
    )
    ours: _Query | None = Field(
        default=None,
        description="One SELECT that brings the dataset's rows, under its name, to the same key and columns.",
    )
    key: tuple[Name, ...] = Field(min_length=1, description="Columns that rows are matched by; one is the day.")
    columns: dict[Name, GoldenColumn] = Field(default_factory=dict, description="Columns that are compared.")
    max_mismatches: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if self.file is not None and self.table is not None:
            raise ValueError("file and table are both set; a golden source is one of them")
        if self.file is None and self.table is None and self.sql is None:
            raise ValueError("set file, table or sql: what the days are compared with")
        return self


def golden_check(name: str) -> str:
    """The name of the check that compares with a golden source."""
    return f"golden_{name}"


def golden_misfits(dataset: Dataset) -> tuple[_Fault, ...]:
    """What in the golden sources of a dataset contradicts or refers to what is not there: (path of the key, message)."""
    return tuple(
        ((*("golden", name), *path), ".".join(("golden", name, *path)) + text)
        for name, golden in dataset.golden.items()
        for path, text in (
            *_naming_faults(dataset, name),
            *_key_faults(dataset, golden),
            *_column_faults(dataset, golden),
        )
    )


def _naming_faults(dataset: Dataset, name: str) -> Iterator[_Fault]:
    taken = {
        "a table of the models": name in RESERVED_TABLES,
        "a reference": name in dataset.references,
        "an upstream": name in dataset.upstream,
        "the dataset itself": name == dataset.name,
    }
    yield from (((), f": {what} has that name already; rename one") for what, is_taken in taken.items() if is_taken)


def _key_faults(dataset: Dataset, golden: Golden) -> Iterator[_Fault]:
    if dataset.partition_column not in golden.key:
        yield ("key",), f" lacks the partition column {dataset.partition_column!r}; rows are compared day by day"
    twice = [column for column, n in Counter(golden.key).items() if n > 1]
    yield from ((("key",), f" names {column!r} twice; once is enough") for column in twice)
    both = [column for column in golden.columns if column in golden.key]
    yield from ((("columns", c), " is part of the key, which must be equal; name it in one of them") for c in both)


def _column_faults(dataset: Dataset, golden: Golden) -> Iterator[_Fault]:
    if golden.ours is None:
        yield from _unknown(golden, dataset.columns, "columns of the dataset do not declare; add it there, or set ours")
    if golden.sql is None and golden.file is not None:
        yield from _unknown(golden, golden.file.columns, "file.columns do not declare; add it there, or set sql")


def _unknown(golden: Golden, known: Collection[str], text: str) -> Iterator[_Fault]:
    yield from ((("key",), f" names {c!r}, which {text}") for c in golden.key if c not in known)
    yield from ((("columns", c), f": {c!r} is what {text}") for c in golden.columns if c not in known)
