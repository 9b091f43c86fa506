"""Campaigns with their journal and approvals; and of each attempt when it ended and what it took."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_APPEND_ONLY = ("campaign_journal", "approvals", "approval_days")
_COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _add_work_of_attempts()
    _create_campaigns()
    _create_journal()
    _create_approvals()
    if op.get_bind().dialect.name == "sqlite":
        _keep_history_on_sqlite()
    else:
        _keep_history_on_postgres()


def _add_work_of_attempts() -> None:
    # Null for attempts of before: nobody wrote down when they ended.
    op.add_column("attempts", sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("attempts", sa.Column("rows", sa.BigInteger(), nullable=True))
    op.add_column("attempts", sa.Column("bytes_read", sa.BigInteger(), nullable=True))
    op.add_column("attempts", sa.Column("waited_seconds", sa.Double(), nullable=True))
    op.add_column("attempts", sa.Column("layer", sa.String(length=16), nullable=True))


def _create_campaigns() -> None:
    op.create_table(
        "campaigns",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("specification", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("max_concurrency", sa.Integer(), nullable=False),
        sa.Column("partitions_per_batch", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("unit", sa.String(length=128), nullable=True),
        sa.Column("canary_only", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["unit"], ["units.id"], name=op.f("fk_campaigns_unit_units")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_campaigns")),
        sa.UniqueConstraint("unit", name=op.f("uq_campaigns_unit")),
    )


def _create_journal() -> None:
    op.create_table(
        "campaign_journal",
        sa.Column("number", _COUNTER, nullable=False),
        sa.Column("campaign", sa.String(length=63), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(["campaign"], ["campaigns.id"], name=op.f("fk_campaign_journal_campaign_campaigns")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_campaign_journal")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_campaign_journal_campaign"), "campaign_journal", ["campaign"], unique=False)


def _create_approvals() -> None:
    op.create_table(
        "approvals",
        sa.Column("number", _COUNTER, nullable=False),
        sa.Column("unit", sa.String(length=128), nullable=False),
        sa.Column("evidence", sa.String(length=64), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["unit"], ["units.id"], name=op.f("fk_approvals_unit_units")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_approvals")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_approvals_unit"), "approvals", ["unit"], unique=False)
    op.create_table(
        "approval_days",
        sa.Column("approval", _COUNTER, nullable=False),
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("evidence", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["approval"], ["approvals.number"], name=op.f("fk_approval_days_approval_approvals")),
        sa.PrimaryKeyConstraint("approval", "dataset", "day", name=op.f("pk_approval_days")),
    )


def _keep_history_on_sqlite() -> None:
    for table in _APPEND_ONLY:
        for change in ("update", "delete"):
            op.execute(
                f"CREATE TRIGGER {table}_refuses_{change} BEFORE {change.upper()} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def _keep_history_on_postgres() -> None:
    op.execute(
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in _APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_refuses_changes BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
