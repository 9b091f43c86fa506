"""What landed in raw, and what days were staged from."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import BindParameter, bindparam, select, update

from backfill_assets.domain.work import Delivery, StagedDay
from backfill_assets.ledger.database import span, upsert
from backfill_assets.ledger.rows import Rows
from backfill_assets.ledger.schema import deliveries, staged_days

# The method `deliveries` hides the table of that name inside the class.
_DELIVERIES = deliveries
_KNOWN_BY = ("dataset", "path", "fingerprint", "day")


class DeliveryRows(Rows):
    """The deliveries and staged days of the ledger."""

    def add_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        """Record landed files; one known already (dataset, path, fingerprint, day) changes nothing."""
        rows = [vars(delivery) for delivery in deliveries]
        with self._database.write() as connection:
            upsert(connection, _DELIVERIES, rows)

    def read_again(self, deliveries: Iterable[Delivery]) -> None:
        """Record how known deliveries are read now: their rows, those that cannot be read, and the reading."""
        these = [_DELIVERIES.c[name] == bindparam(f"known_{name}") for name in _KNOWN_BY]
        moved: dict[str, BindParameter[object]] = {
            name: bindparam(f"new_{name}") for name in ("rows", "corrupt_rows", "reading")
        }
        rows = [
            {f"known_{n}": getattr(d, n) for n in _KNOWN_BY} | {f"new_{n}": getattr(d, n) for n in moved}
            for d in deliveries
        ]
        if rows:
            with self._database.write() as connection:
                connection.execute(update(_DELIVERIES).where(*these).values(moved), rows)

    def deliveries(self, dataset: str, days: Collection[dt.date]) -> tuple[Delivery, ...]:
        """Deliveries of these delivery days, in order of landing."""
        asked = frozenset(days)
        columns = [column for column in _DELIVERIES.c if column.name != "number"]
        these = (_DELIVERIES.c.dataset == dataset) & span(_DELIVERIES.c.day, asked)
        query = select(*columns).where(these).order_by(_DELIVERIES.c.landed_at, _DELIVERIES.c.number)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(Delivery(**row) for row in rows if row["day"] in asked)

    def add_staged(self, staged: Iterable[StagedDay]) -> None:
        """Record what days were staged from, replacing what was known."""
        rows = [vars(day) for day in staged]
        with self._database.write() as connection:
            upsert(connection, staged_days, rows, replace=["inputs", "code", "outside_rows", "place", "files"])

    def staged(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, StagedDay]:
        """What days were staged from."""
        asked = frozenset(days)
        these = (staged_days.c.dataset == dataset) & span(staged_days.c.day, asked)
        with self._database.read() as connection:
            query = select(staged_days).where(these).order_by(staged_days.c.day)
            rows = connection.execute(query).mappings().all()
        return {row["day"]: StagedDay(**row) for row in rows if row["day"] in asked}
