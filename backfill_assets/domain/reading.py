"""How source files are read: what raw keeps of them, and a digest of all that decides which values come out."""

from __future__ import annotations

from typing import Final

from backfill_assets.core.canonical import digest
from backfill_assets.domain.dataset import Source, Undeclared
from backfill_assets.domain.files import Format

_ELSEWHERE: Final = {"path", "late_days", "on_missing", "order_by", "removed_after_landing"}
"""Keys of `source` that say where files lie and which count, and nothing of how they are read."""

_RULES: Final = 2
"""Counts up whenever the same lines are read otherwise than before, so that what has landed is read and counted again."""


def reading_of(source: Source) -> str:
    """How a source is read now: what raw keeps of its files, and a digest of format, options, columns and types.

    Spark's version is no part of it.
    """
    said = source.model_dump(mode="json", exclude=_ELSEWHERE)
    rules = _RULES if source.format is not Format.parquet else 0
    order = list(source.columns) if source.format is Format.csv and not source.csv.header else []
    return f"{_form(source)} {digest([rules, said, order])[:16]}"


def form_of(reading: str) -> str:
    """What raw keeps of a delivery that was read so: two readings of one form need no source, for raw has what both read."""
    return reading.partition(" ")[0]


def _form(source: Source) -> str:
    """The lines of text files; of what is written otherwise than it came, a digest of how."""
    if source.format is Format.parquet:
        # A column that a file lacks is null in raw: only its file tells whether it may be.
        kept = [source.columns, sorted(source.optional)] if source.optional else source.columns
        return f"columns:{digest(kept)[:16]}"
    if source.undeclared is Undeclared.drop:
        read = source.model_dump(mode="json", include={"format", "csv", "encoding", "optional"})
        # Without a headline raw keeps under each name what stood at its place.
        by_place = source.format is Format.csv and not source.csv.header
        names = list(source.columns) if by_place else sorted(source.columns)
        return f"cells:{digest([read, names])[:16]}"
    # A headline is no row, and which row of a file was the first nobody knows afterwards.
    return "lines+header" if source.format is Format.csv and source.csv.header else "lines"
