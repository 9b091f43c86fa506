"""Stores the deliveries landed in raw, which of them count, and the inputs of staged days."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from sqlalchemy import Connection, and_, bindparam, func, insert, select, update

from backfill_assets.core.delivery import Deed, Delivery, DeliveryEntry, Place
from backfill_assets.core.unit import StagedDay
from backfill_assets.dataset.deliveries import decided_out, received
from backfill_assets.ledger.database import Rows, span, upsert
from backfill_assets.ledger.schema import deliveries, delivery_journal, staged_days

# The method `deliveries` hides the table of that name inside the class.
_DELIVERIES = deliveries
_COLUMNS: Final = [column for column in _DELIVERIES.c if column.name != "number"]
_CHANGING: Final = ("delivered_at", "rows", "corrupt_rows", "reading", "order", "withdrawn", "landings")
"""Columns of a delivery that a later landing or a person may change; the journal records when and why."""


Counting = Callable[[Sequence[Delivery]], Iterable[Delivery]]
"""Those that count among all deliveries of some days."""


def _none(_: Sequence[Delivery]) -> Iterable[Delivery]:
    return ()


class DeliveryRows(Rows):
    """The deliveries and staged days of the ledger."""

    def add_deliveries(self, deliveries: Iterable[Delivery], seen: Mapping[Place, int] | None = None) -> None:
        """Record landed files of one dataset in order, and number those that are new at their path (`received`)."""
        found = tuple(deliveries)
        if not found:
            return
        dataset, days = found[0].dataset, {one.day for one in found}
        with self._database.write() as connection:
            known = _of(connection, dataset, days)
            before = {d.content: d for d in known}
            changed = received(known, found, seen, _edge(connection, dataset))
            new = [one for one in changed if one.content not in before]
            again = [one for one in changed if one.content in before]
            if new:
                connection.execute(insert(_DELIVERIES), [vars(one) for one in new])
            _write(connection, again)
            now = self._clock.now()
            deeds = [Deed.read if one.order == before[one.content].order else Deed.again for one in again]
            _journal(connection, [_entry(one, deed, now) for one, deed in zip(again, deeds, strict=True)])

    def change_deliveries(
        self, changed: Iterable[Delivery], deed: Deed, by: str = "", reason: str = "", counting: Counting = _none
    ) -> tuple[Delivery, ...]:
        """Withdraw, restore or purge deliveries, or record that raw read or lost them; returns those that it changed.

        For a delivery that raw read, takes the rows and the reading from `changed`; a lost or purged one has no rows. Of a
        withdrawal that only a purge has made, a person's decision is recorded: it counts as changed.

        What `counting` finds among all deliveries of these days is not purged, nor is what counts or came again since `changed`
        was read; and nothing is restored that raw no longer has.
        """
        wanted = tuple(changed)
        if not wanted:
            return ()
        given = {d.content: d for d in wanted}
        with self._database.write() as connection:
            dataset, days = wanted[0].dataset, {one.day for one in wanted}
            known = _of(connection, dataset, days)
            kept = {one.content for one in counting(known)} if deed is Deed.purged else frozenset()
            asked = ((d, given[d.content]) for d in known if d.content in given and d.content not in kept)
            pairs = [(one, _changed(one, other, deed)) for one, other in asked if not _stays(one, other, deed)]
            decided = decided_out(_entries(connection, dataset, days)) if deed is Deed.withdrawn else frozenset()

            def is_news(after: Delivery) -> bool:
                # What raw had lost already is purged, too: its last rows and files go.
                lost = deed is Deed.purged and not after.landings
                return lost or (deed is Deed.withdrawn and after.content not in decided)

            done = [after for before, after in pairs if after != before or is_news(after)]
            _write(connection, done)
            now = self._clock.now()
            _journal(connection, [_entry(one, deed, now, by, reason) for one in done])
        return tuple(done)

    def deliveries(self, dataset: str, days: Collection[dt.date]) -> tuple[Delivery, ...]:
        """All deliveries of these delivery days, in order of landing, also those that do not count."""
        with self._database.read() as connection:
            return _of(connection, dataset, days)

    def deliveries_since(self, dataset: str, first: dt.date) -> tuple[Delivery, ...]:
        """All deliveries of this delivery day and later ones, as `deliveries`."""
        these = (_DELIVERIES.c.dataset == dataset) & (_DELIVERIES.c.day >= first)
        query = select(*_COLUMNS).where(these).order_by(_DELIVERIES.c.landed_at, _DELIVERIES.c.number)
        with self._database.read() as connection:
            return tuple(Delivery(**row) for row in connection.execute(query).mappings())

    def delivery_journal(self, dataset: str, days: Collection[dt.date]) -> tuple[DeliveryEntry, ...]:
        """What happened to the deliveries of these days after their landing, oldest first."""
        with self._database.read() as connection:
            return _entries(connection, dataset, days)

    def add_staged(self, staged: Iterable[StagedDay]) -> None:
        """Record what days were staged from; replaces earlier records."""
        rows = [vars(day) for day in staged]
        with self._database.write() as connection:
            upsert(connection, staged_days, rows, replace=["inputs", "code", "outside_rows", "place", "files"])

    def staged(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, StagedDay]:
        """What these days were staged from."""
        asked = frozenset(days)
        these = (staged_days.c.dataset == dataset) & span(staged_days.c.day, asked)
        with self._database.read() as connection:
            query = select(staged_days).where(these).order_by(staged_days.c.day)
            rows = connection.execute(query).mappings().all()
        return {row["day"]: StagedDay(**row) for row in rows if row["day"] in asked}


def _of(connection: Connection, dataset: str, days: Collection[dt.date]) -> tuple[Delivery, ...]:
    asked = frozenset(days)
    these = (_DELIVERIES.c.dataset == dataset) & span(_DELIVERIES.c.day, asked)
    query = select(*_COLUMNS).where(these).order_by(_DELIVERIES.c.landed_at, _DELIVERIES.c.number)
    return tuple(Delivery(**row) for row in connection.execute(query).mappings() if row["day"] in asked)


def _entries(connection: Connection, dataset: str, days: Collection[dt.date]) -> tuple[DeliveryEntry, ...]:
    asked, table = frozenset(days), delivery_journal
    these = (table.c.dataset == dataset) & span(table.c.day, asked)
    columns = [column for column in table.c if column.name != "number"]
    rows = connection.execute(select(*columns).where(these).order_by(table.c.number)).mappings()
    return tuple(DeliveryEntry(**{**row, "deed": Deed(row["deed"])}) for row in rows if row["day"] in asked)


def _edge(connection: Connection, dataset: str) -> tuple[dt.date | None, int]:
    newest, highest = (
        connection.execute(select(func.max(column)).where(_DELIVERIES.c.dataset == dataset)).scalar_one()
        for column in (_DELIVERIES.c.day, _DELIVERIES.c.order)
    )
    return newest, highest or 0


def _stays(before: Delivery, given: Delivery, deed: Deed) -> bool:
    """Whether somebody else has done something since somebody looked, so that this must not be done."""
    if deed is Deed.purged:
        return (before.withdrawn, before.order) != (given.withdrawn, given.order)
    return deed is Deed.restored and not before.landings


def _changed(before: Delivery, given: Delivery, deed: Deed) -> Delivery:
    match deed:
        case Deed.withdrawn | Deed.restored:
            return replace(before, withdrawn=deed is Deed.withdrawn)
        case Deed.read:
            read = replace(before, rows=given.rows, corrupt_rows=given.corrupt_rows, reading=given.reading)
            return replace(read, landings=before.landings + 1)
        case Deed.lost | Deed.purged:
            # What was purged does not count again because the same bytes are delivered again.
            out = before.withdrawn or deed is Deed.purged
            return replace(before, rows=0, corrupt_rows=0, landings=0, withdrawn=out)
        case Deed.again:
            return before
        case _:
            assert_never(deed)


def _write(connection: Connection, changed: Collection[Delivery]) -> None:
    if not changed:
        return
    table, identity = _DELIVERIES, ("dataset", "day", "path", "fingerprint")
    this = and_(*(table.c[name] == bindparam(f"its_{name}") for name in identity))
    rows = [
        {f"its_{name}": getattr(one, name) for name in identity} | {name: getattr(one, name) for name in _CHANGING}
        for one in changed
    ]
    connection.execute(update(table).where(this), rows)


def _entry(one: Delivery, deed: Deed, at: dt.datetime, by: str = "", reason: str = "") -> DeliveryEntry:
    return DeliveryEntry(one.dataset, one.day, one.path, one.fingerprint, deed, one.order, at, by, reason)


def _journal(connection: Connection, entries: Collection[DeliveryEntry]) -> None:
    if entries:
        connection.execute(insert(delivery_journal), [{**vars(entry), "deed": entry.deed.value} for entry in entries])
