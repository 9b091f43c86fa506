"""The tables of the ledger; migrations produce exactly this schema (a test compares them)."""

from __future__ import annotations

import datetime as dt

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.types import TypeDecorator

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""All tables; constraints have names so that later migrations can find them."""


class UtcDateTime(TypeDecorator[dt.datetime]):
    """An aware time in UTC on every database; SQLite by itself drops the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(
        self,
        value: dt.datetime | None,
        dialect: Dialect,  # noqa: ARG002 - SQLAlchemy passes it
    ) -> dt.datetime | None:
        """Refuse naive times (`ValueError`), convert all others to UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"the ledger accepts only times with a time zone, got {value!r}; add its time zone")
        return value.astimezone(dt.UTC)

    def process_result_value(
        self,
        value: dt.datetime | None,
        dialect: Dialect,  # noqa: ARG002 - SQLAlchemy passes it
    ) -> dt.datetime | None:
        """Restore the zone that SQLite dropped."""
        if value is None:
            return None
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


# SQLite generates numbers only in a column declared INTEGER.
COUNTER = BigInteger().with_variant(Integer(), "sqlite")
NAME = String(63)

meta = Table("meta", metadata, Column("key", String(64), primary_key=True), Column("value", Text, nullable=False))

units = Table(
    "units",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("opened_by", String(255), nullable=False, unique=True),
    Column("opened_at", UtcDateTime, nullable=False),
    Column("by", Text, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("live", Boolean, nullable=False),
    Column("contract", Text, nullable=False),
)

unit_days = Table(
    "unit_days",
    metadata,
    Column("unit", ForeignKey("units.id"), primary_key=True),
    Column("dataset", NAME, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("claimed", Boolean, nullable=False),
    Index(None, "dataset", "day"),
)
"""The targets of a unit; `claimed` is false if a live unit ignored the claim of another unit."""

claims = Table(
    "claims",
    metadata,
    Column("dataset", NAME, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("unit", String(128), nullable=False, index=True),
    ForeignKeyConstraint(["unit", "dataset", "day"], ["unit_days.unit", "unit_days.dataset", "unit_days.day"]),
)
"""The primary key guarantees one open unit per dataset and day."""

holds = Table(
    "holds",
    metadata,
    Column("dataset", NAME, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("since", UtcDateTime, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("number", COUNTER, primary_key=True),
    Column("dataset", NAME, nullable=False),
    Column("day", Date, nullable=False),
    Column("path", Text, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("delivered_at", UtcDateTime, nullable=False),
    Column("landed_at", UtcDateTime, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("corrupt_rows", BigInteger, nullable=False),
    Column("order", BigInteger, nullable=False, server_default=text("0")),
    Column("withdrawn", Boolean, nullable=False, server_default=false()),
    Column("landings", Integer, nullable=False, server_default=text("1")),
    Column("reading", String(64), nullable=False, server_default=text("''")),
    UniqueConstraint("dataset", "path", "fingerprint", "day"),
    Index(None, "dataset", "day"),
    Index(None, "dataset", "order"),
)
"""The delivery with the highest `order` of a path counts; it is 0 if another landing of the path was faster."""

delivery_journal = Table(
    "delivery_journal",
    metadata,
    Column("number", COUNTER, primary_key=True),
    Column("dataset", NAME, nullable=False),
    Column("day", Date, nullable=False),
    Column("path", Text, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("deed", String(16), nullable=False),
    Column("order", BigInteger, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Index(None, "dataset", "day"),
    sqlite_autoincrement=True,
)
"""Append-only: what happened to deliveries after their first landing."""

staged_days = Table(
    "staged_days",
    metadata,
    Column("dataset", NAME, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("inputs", String(64), nullable=False),
    Column("code", String(64), nullable=False),
    Column("outside_rows", BigInteger, nullable=False),
    Column("place", Text, nullable=False, server_default=text("''")),
    Column("files", String(64), nullable=False, server_default=text("''")),
)

attempts = Table(
    "attempts",
    metadata,
    Column("number", COUNTER, primary_key=True),
    Column("unit", ForeignKey("units.id"), nullable=False, index=True),
    Column("dataset", NAME, nullable=False),
    Column("run", String(255), nullable=False, index=True),
    Column("worker", Text, nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("started_at", UtcDateTime, nullable=False),
    Column("lease_until", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Column("rows", BigInteger),
    Column("bytes_read", BigInteger),
    Column("waited_seconds", Double),
    Column("layer", String(16)),
    sqlite_autoincrement=True,
)
"""Numbers never repeat, even after deletions, because they are fencing tokens and folder names."""

attempt_days = Table(
    "attempt_days",
    metadata,
    Column("attempt", ForeignKey("attempts.number"), primary_key=True),
    Column("day", Date, primary_key=True),
)

evidence = Table(
    "evidence",
    metadata,
    Column("number", COUNTER, primary_key=True),
    Column("unit", ForeignKey("units.id"), nullable=False),
    Column("attempt", ForeignKey("attempts.number"), nullable=False),
    Column("dataset", NAME, nullable=False),
    Column("day", Date, nullable=False),
    Column("recorded_at", UtcDateTime, nullable=False),
    Column("body", Text, nullable=False),
    Column("hash", String(64)),
    Index(None, "unit", "dataset", "day", "number"),
    sqlite_autoincrement=True,
)
"""History is kept; the highest number per (unit, dataset, day) counts. `hash` is the hash of the body, computed once."""

contents = Table(
    "contents",
    metadata,
    Column("dataset", NAME, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("layout", String(64), primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("upstream", Text, nullable=False),
    Column("inputs", Text),
    Column("deliveries", Text),
    Column("references", Text),
    Column("parts", String(16)),
)
"""The measured content and origin of each set of files that was ever a day."""

codes = Table(
    "codes",
    metadata,
    Column("dataset", NAME, primary_key=True),
    Column("parts", String(16), primary_key=True),
    Column("digests", Text, nullable=False),
)
"""The digests of the parts of all code that ever built a day, as JSON, by a digest of them."""

kept_days = Table(
    "kept_days",
    metadata,
    Column("number", COUNTER, primary_key=True),
    Column("dataset", NAME, nullable=False),
    Column("day", Date, nullable=False),
    Column("about", String(64), nullable=False),
    Column("fingerprint", Text),
    Column("upstream", Text),
    Column("inputs", Text),
    Column("deliveries", Text),
    Column("references", Text),
    Column("parts", String(16)),
    Column("causes", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("reason", Text, nullable=False),
    Index(None, "dataset", "day"),
    sqlite_autoincrement=True,
)
"""Append-only: who keeps a published day, as if it had been built from what was there then; `causes` are apart by spaces."""

releases = Table(
    "releases",
    metadata,
    Column("number", COUNTER, primary_key=True),
    Column("release", String(128), nullable=False, unique=True),
    Column("dataset", NAME, nullable=False, index=True),
    Column("unit", String(128), nullable=False, index=True),
    Column("state", String(16), nullable=False),
    Column("version", BigInteger),
    Column("created_at", UtcDateTime, nullable=False),
    Column("committed_at", UtcDateTime, index=True),
    Column("manifest", Text, nullable=False),
    Index(None, "state", "release"),
    sqlite_autoincrement=True,
)
"""No foreign key to units: a ledger rebuilt from manifests has releases whose units are gone."""

locks = Table(
    "locks",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("until", UtcDateTime),
)
"""A free lock keeps its row (`until` is null), so that its token keeps growing."""

drivers = Table(
    "drivers",
    metadata,
    Column("number", COUNTER, primary_key=True),
    Column("place", String(255), nullable=False),
    Column("driver", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("holds", Boolean, nullable=False),
    Column("until", UtcDateTime, nullable=False),
    sqlite_autoincrement=True,
)
"""Who writes a table through which Spark driver, or waits for that (`holds` is false), in order of arrival."""

campaigns = Table(
    "campaigns",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("file", Text, nullable=False),
    Column("specification", Text, nullable=False),
    Column("plan", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("max_concurrency", Integer, nullable=False),
    Column("partitions_per_batch", Integer, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("unit", ForeignKey("units.id"), unique=True),
    Column("canary_only", Boolean, nullable=False),
    Column("revision", Integer, nullable=False),
)
"""`unit` is null until the launch; `revision` grows with every change, including a new plan."""

campaign_journal = Table(
    "campaign_journal",
    metadata,
    Column("number", COUNTER, primary_key=True),
    Column("campaign", ForeignKey("campaigns.id"), nullable=False, index=True),
    Column("at", UtcDateTime, nullable=False),
    Column("by", Text, nullable=False),
    Column("action", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("revision", Integer),
    Column("phase", String(16)),
    sqlite_autoincrement=True,
)
"""Append-only. `revision` is null for notes that change nothing; `phase` is null if the phase did not change."""

approvals = Table(
    "approvals",
    metadata,
    Column("number", COUNTER, primary_key=True),
    Column("unit", ForeignKey("units.id"), nullable=False, index=True),
    Column("evidence", String(64), nullable=False),
    Column("by", Text, nullable=False),
    Column("identity", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("after_release", BigInteger, nullable=False, server_default=text("0")),
    Column("after_entry", BigInteger, nullable=False, server_default=text("0")),
    sqlite_autoincrement=True,
)
"""Append-only, as are its days. `after_release` and `after_entry` say what an approval comes after, not `at`."""

approval_days = Table(
    "approval_days",
    metadata,
    Column("approval", ForeignKey("approvals.number"), primary_key=True),
    Column("dataset", NAME, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("evidence", String(64), nullable=False),
)
"""The hash of the evidence that the approver saw of each day."""

comparisons = Table(
    "comparisons",
    metadata,
    Column("unit", ForeignKey("units.id"), primary_key=True),
    Column("dataset", NAME, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("attempt", COUNTER, nullable=False),
    Column("body", Text, nullable=False),
)
"""The rows behind a day's differences, from its newest comparison; kept out of evidence, which is read often."""

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
"""Append-only; `unit` is empty for a certificate of a dataset without a unit, `number` is 0 if older than that column."""
