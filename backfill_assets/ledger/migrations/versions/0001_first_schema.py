"""The ledger's first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _create_meta()
    _create_units()
    _create_unit_days()
    _create_claims()
    _create_holds()
    _create_deliveries()
    _create_staged_days()
    _create_attempts()
    _create_attempt_days()
    _create_evidence()
    _create_releases()
    _create_locks()


def _create_meta() -> None:
    op.create_table(
        "meta",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_meta")),
    )


def _create_units() -> None:
    op.create_table(
        "units",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("opened_by", sa.String(length=255), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.Column("contract", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_units")),
        sa.UniqueConstraint("opened_by", name=op.f("uq_units_opened_by")),
    )
    op.create_index(op.f("ix_units_state"), "units", ["state"], unique=False)


def _create_unit_days() -> None:
    op.create_table(
        "unit_days",
        sa.Column("unit", sa.String(length=128), nullable=False),
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("claimed", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["unit"], ["units.id"], name=op.f("fk_unit_days_unit_units")),
        sa.PrimaryKeyConstraint("unit", "dataset", "day", name=op.f("pk_unit_days")),
    )
    op.create_index(op.f("ix_unit_days_dataset_day"), "unit_days", ["dataset", "day"], unique=False)


def _create_claims() -> None:
    op.create_table(
        "claims",
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("unit", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(
            ["unit", "dataset", "day"],
            ["unit_days.unit", "unit_days.dataset", "unit_days.day"],
            name=op.f("fk_claims_unit_dataset_day_unit_days"),
        ),
        sa.PrimaryKeyConstraint("dataset", "day", name=op.f("pk_claims")),
    )
    op.create_index(op.f("ix_claims_unit"), "claims", ["unit"], unique=False)


def _create_holds() -> None:
    op.create_table(
        "holds",
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("dataset", "day", name=op.f("pk_holds")),
    )


def _create_deliveries() -> None:
    op.create_table(
        "deliveries",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("landed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("corrupt_rows", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_deliveries")),
        sa.UniqueConstraint(
            "dataset", "path", "fingerprint", "day", name=op.f("uq_deliveries_dataset_path_fingerprint_day")
        ),
    )
    op.create_index(op.f("ix_deliveries_dataset_day"), "deliveries", ["dataset", "day"], unique=False)


def _create_staged_days() -> None:
    op.create_table(
        "staged_days",
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("inputs", sa.String(length=64), nullable=False),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("outside_rows", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("dataset", "day", name=op.f("pk_staged_days")),
    )


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("unit", sa.String(length=128), nullable=False),
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("run", sa.String(length=255), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["unit"], ["units.id"], name=op.f("fk_attempts_unit_units")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_attempts")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_attempts_run"), "attempts", ["run"], unique=False)
    op.create_index(op.f("ix_attempts_state"), "attempts", ["state"], unique=False)
    op.create_index(op.f("ix_attempts_unit"), "attempts", ["unit"], unique=False)


def _create_attempt_days() -> None:
    op.create_table(
        "attempt_days",
        sa.Column("attempt", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.number"], name=op.f("fk_attempt_days_attempt_attempts")),
        sa.PrimaryKeyConstraint("attempt", "day", name=op.f("pk_attempt_days")),
    )


def _create_evidence() -> None:
    op.create_table(
        "evidence",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("unit", sa.String(length=128), nullable=False),
        sa.Column("attempt", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.number"], name=op.f("fk_evidence_attempt_attempts")),
        sa.ForeignKeyConstraint(["unit"], ["units.id"], name=op.f("fk_evidence_unit_units")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_evidence")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        op.f("ix_evidence_unit_dataset_day_number"),
        "evidence",
        ["unit", "dataset", "day", "number"],
        unique=False,
    )


def _create_releases() -> None:
    op.create_table(
        "releases",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("release", sa.String(length=128), nullable=False),
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("unit", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("committed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_releases")),
        sa.UniqueConstraint("release", name=op.f("uq_releases_release")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_releases_dataset"), "releases", ["dataset"], unique=False)
    op.create_index(op.f("ix_releases_unit"), "releases", ["unit"], unique=False)


def _create_locks() -> None:
    op.create_table(
        "locks",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_locks")),
    )
