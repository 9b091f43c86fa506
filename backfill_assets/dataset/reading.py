"""How a source is read, as a text that deliveries keep: what raw keeps of its files, how lines become rows, which count."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import Field

from backfill_assets.core.canonical import digest
from backfill_assets.core.fields import Part
from backfill_assets.dataset.sources import NamedBy, Source, Undeclared

_ELSEWHERE: Final = {"path", "late_days", "on_missing", "order_by", "removed_after_landing", "extract"}
"""Keys of `source` about where files are and which count, not about how they are read."""

_RULES: Final = 2
"""Increase it whenever the same lines are read differently, so that landed files are read and counted again."""


def reading_of(source: Source) -> str:
    """How a source is read now: what raw keeps of its files, and a digest of format, options, columns and types.

    Spark's version is not part of it.
    """
    said = source.model_dump(mode="json", exclude=_ELSEWHERE)
    rules = _RULES if source.is_text else 0
    order = list(source.columns) if source.named_by is NamedBy.place else []
    return f"{_form(source)} {digest([rules, said, order])[:16]}"


def form_of(reading: str) -> str:
    """What raw keeps of a delivery with this reading: enough for every reading of the same form, without the source."""
    return reading.partition(" ")[0]


def _form(source: Source) -> str:
    """The lines of text files; for files that raw stores in another form, a digest of that form."""
    if not source.is_text:
        # A column that is missing in a file is null in raw: only the file shows whether it was missing.
        columns = {name: _with_header(source, name, kind) for name, kind in source.types.items()}
        kept: object = [columns, sorted(source.optional)] if source.optional else columns
        if source.extract is not None:
            # Only the database has the rows of another query.
            kept = [kept, source.extract.identity]
        return f"columns:{digest(kept)[:16]}"
    if source.undeclared is Undeclared.drop:
        read = source.model_dump(mode="json", include={"format", "csv", "encoding", "optional"})
        # Without a header, raw keeps under each name the value at its place.
        names = list(source.columns) if source.named_by is NamedBy.place else sorted(source.columns)
        return f"cells:{digest([read, [_with_header(source, name, name) for name in names]])[:16]}"
    # A header is not a row, and raw does not know which row of a file was the first.
    return "lines+header" if source.named_by is NamedBy.header else "lines"


def _with_header(source: Source, name: str, what: str) -> object:
    """What identifies a column, and its header if it is read from one with another name."""
    own = source.columns[name].from_
    return what if own is None else [own.lower(), what]


class Deduplicate(StrEnum):
    """Which rows staging keeps if several deliveries of a day contain the same key."""

    latest_delivery = "latest_delivery"
    latest_file = "latest_file"
    none = "none"


class Staging(Part):
    """How deliveries become staged rows."""

    deduplicate: Deduplicate = Field(
        default=Deduplicate.latest_delivery,
        description="latest_delivery keeps for each key only the rows of its newest delivery, latest_file for each delivery day "
        "only its newest file, with all its rows; with none, deliveries add up.",
    )
