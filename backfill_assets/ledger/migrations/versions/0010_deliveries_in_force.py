"""Deliveries have an order and can be withdrawn: of each path what came last counts, and a journal says what happened to it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_OF_A_DAY = 10**9
_JOURNAL = ("number", "dataset", "day", "path", "fingerprint", "deed", "order", "at", "by", "reason")


def upgrade() -> None:
    op.add_column("deliveries", sa.Column("order", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.add_column("deliveries", sa.Column("withdrawn", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("deliveries", sa.Column("landings", sa.Integer(), nullable=False, server_default=sa.text("1")))
    op.create_index(op.f("ix_deliveries_dataset_order"), "deliveries", ["dataset", "order"], unique=False)
    _create_journal()
    _number_what_is_known()


def _create_journal() -> None:
    op.create_table(
        "delivery_journal",
        sa.Column("number", _COUNTER, nullable=False),
        sa.Column("dataset", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("deed", sa.String(length=16), nullable=False),
        sa.Column("order", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_delivery_journal")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_delivery_journal_dataset_day"), "delivery_journal", ["dataset", "day"], unique=False)
    if op.get_bind().dialect.name == "sqlite":
        for change in ("update", "delete"):
            op.execute(
                f"CREATE TRIGGER delivery_journal_refuses_{change} BEFORE {change.upper()} ON delivery_journal "
                "BEGIN SELECT RAISE(ABORT, 'delivery_journal is append-only'); END"
            )
        differs = " OR ".join(f't."{column}" IS NOT NEW."{column}"' for column in _JOURNAL)
        op.execute(
            "CREATE TRIGGER delivery_journal_refuses_replacement BEFORE INSERT ON delivery_journal "
            f"WHEN EXISTS (SELECT 1 FROM delivery_journal t WHERE t.rowid = NEW.rowid AND ({differs})) "
            "BEGIN SELECT RAISE(ABORT, 'delivery_journal is append-only'); END"
        )
        return
    op.execute(
        "CREATE TRIGGER delivery_journal_refuses_changes BEFORE UPDATE OR DELETE ON delivery_journal "
        "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
    )
    op.execute(
        "CREATE TRIGGER delivery_journal_refuses_truncate BEFORE TRUNCATE ON delivery_journal "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def _number_what_is_known() -> None:
    """What the first landing of a day found is numbered by day, time of change and path, the rest as it was landed."""
    table = sa.table(
        "deliveries",
        sa.column("number", sa.BigInteger()), sa.column("dataset", sa.String()), sa.column("day", sa.Date()),
        sa.column("path", sa.Text()), sa.column("delivered_at", sa.DateTime(timezone=True)),
        sa.column("landed_at", sa.DateTime(timezone=True)), sa.column("order", sa.BigInteger()),
    )  # fmt: skip
    connection = op.get_bind()
    known = connection.execute(sa.select(table).order_by(table.c.dataset, table.c.number)).all()
    orders = [
        {"its": number, "new": order}
        for _, rows in groupby(known, key=lambda row: row.dataset)
        for number, order in _orders(list(rows))
    ]
    if orders:
        statement = sa.update(table).where(table.c.number == sa.bindparam("its")).values(order=sa.bindparam("new"))
        connection.execute(statement, orders)


def _orders(rows: Sequence[sa.Row[Any]]) -> Iterator[tuple[int, int]]:
    first: dict[dt.date, dt.datetime] = {}
    for row in rows:
        first[row.day] = min(first.get(row.day, row.landed_at), row.landed_at)
    paths: set[tuple[dt.date, str]] = set()
    baseline, later = dict[dt.date, list[sa.Row[Any]]](), list[sa.Row[Any]]()
    for row in rows:
        if row.landed_at == first[row.day] and (row.day, row.path) not in paths:
            baseline.setdefault(row.day, []).append(row)
        else:
            later.append(row)
        paths.add((row.day, row.path))
    for day, own in baseline.items():
        own.sort(key=lambda row: (row.delivered_at, row.path))
        yield from ((row.number, day.toordinal() * _OF_A_DAY + place) for place, row in enumerate(own, 1))
    behind = max(first).toordinal() * _OF_A_DAY + _OF_A_DAY // 2
    yield from ((row.number, behind + place) for place, row in enumerate(later, 1))
