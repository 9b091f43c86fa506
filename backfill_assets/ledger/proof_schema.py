"""The tables of the ledger that hold what reviewers look at: comparisons and certificates."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Date, ForeignKey, String, Table, Text, text

from backfill_assets.ledger.schema import COUNTER, NAME, UtcDateTime, metadata

comparisons = Table(
    "comparisons",
    metadata,
    Column("unit", ForeignKey("units.id"), primary_key=True),
    Column("dataset", NAME, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("attempt", COUNTER, nullable=False),
    Column("body", Text, nullable=False),
)
"""The rows behind a day's difference, of the newest attempt that compared it; apart from evidence, which is read often."""

certificates = Table(
    "certificates",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("dataset", NAME, nullable=False, index=True),
    Column("unit", String(128), nullable=False, index=True),
    Column("at", UtcDateTime, nullable=False),
    Column("body", Text, nullable=False),
    Column("number", BigInteger, nullable=False, server_default=text("0")),
)
"""Append-only; `unit` is empty for a certificate of a dataset without a unit, `number` 0 for those of before it was counted."""
