"""References, as `dataset.yaml` declares them: small tables that models join and checks refer to, each day what it sees of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from backfill_assets.core.days import parse_days
from backfill_assets.core.errors import InvalidDayError
from backfill_assets.core.fields import Name
from backfill_assets.dataset.sources import NamedBy, ReferenceFile

if TYPE_CHECKING:
    from backfill_assets.dataset.definition import Dataset


class AsOf(StrEnum):
    """Which version of its file a day sees: the current one, or for a published day the one that it was published with."""

    current = "current"
    published = "published"


def _days(value: str) -> str:
    try:
        parse_days(value)
    except InvalidDayError as error:
        raise ValueError(str(error)) from error
    return value


class Reference(ReferenceFile):
    """A small table that models join and checks refer to, read from one file.

    With `valid`, models and checks see for each day the rows that are valid on it, without those columns; with `as_of: published`,
    the rows of the version that the day was published with. With either, the day is in a column that has the name of the partition
    column.
    """

    valid: tuple[Name, Name] | None = Field(
        default=None,
        description="Two date columns: the first day on which a row is valid, and the first day on which it no longer is, or null.",
    )
    as_of: AsOf = Field(
        default=AsOf.current,
        description="published: a published day is computed again with the version of the file that it was published with.",
    )
    renew: Annotated[str, AfterValidator(_days)] | None = Field(
        default=None,
        description="Published days that take the current version all the same, such as 2024-03-01..2024-03-31.",
    )

    @property
    def by_day(self) -> bool:
        """Whether each day sees rows of its own, and the day is a column of them."""
        return self.valid is not None or self.as_of is AsOf.published

    @property
    def renewed(self) -> frozenset[dt.date]:
        """The published days that take the current version all the same."""
        return frozenset(parse_days(self.renew)) if self.renew else frozenset()

    @property
    def limits(self) -> tuple[str, str]:
        """What the columns of `valid` are called where they are read; raises TypeError if there are none."""
        if self.valid is None:
            raise TypeError("this reference is valid on all days")
        first, after = self.valid
        return self.headers[first], self.headers[after]

    def types_seen(self, partition: str) -> Mapping[str, str]:
        """The types of the columns that models see; `partition` is the dataset's partition column."""
        own = {name: kind for name, kind in self.types.items() if name not in (self.valid or ())}
        return {**own, partition: "date"} if self.by_day else own


def seen_alike(references: Mapping[str, Reference]) -> tuple[str, ...]:
    """The names of the references of which all days see the same rows, in order; staging models see only these."""
    return tuple(name for name, one in references.items() if not one.by_day)


def seen_by_day(references: Mapping[str, Reference]) -> frozenset[str]:
    """The names of the references of which each day sees rows of its own."""
    return frozenset(name for name, one in references.items() if one.by_day)


def as_published(references: Mapping[str, Reference]) -> frozenset[str]:
    """The names of the references of which a published day sees the version that it was published with."""
    return frozenset(name for name, one in references.items() if one.as_of is AsOf.published)


def version_misfits(dataset: Dataset) -> Iterator[tuple[tuple[str, ...], str]]:
    """What contradicts that days see rows of their own: (path of the key, message)."""
    kept = as_published(dataset.references)
    for name in sorted(seen_by_day(dataset.references)):
        if dataset.partition_column in dataset.references[name].columns:
            own = ("references", name, "columns", dataset.partition_column)
            yield own, f"{'.'.join(own)}: models see the day in a column of that name; rename this one"
        if name in kept and dataset.has_window:
            where = ("references", name, "as_of")
            text = "a day is built from other days as well, which may have been published with other versions; leave as_of out"
            yield where, f"{'.'.join(where)}: {text}"
        if name in kept and dataset.references[name].named_by is NamedBy.place:
            where = ("references", name, "as_of")
            text = "a file without a header is read by the order of its columns, which may have been another one; leave as_of out"
            yield where, f"{'.'.join(where)}: {text}"
    for name, reference in dataset.references.items():
        if reference.renew is not None and name not in kept:
            where = ("references", name, "renew")
            text = "each day sees the current version anyway; leave it out, or set as_of: published"
            yield where, f"{'.'.join(where)}: {text}"
