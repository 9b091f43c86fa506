"""The clock of the ledger's database: where several hosts write to one ledger, none of them dates anything by its own."""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import Final

from sqlalchemy import URL, text

from backfill_assets.core.errors import LedgerError
from backfill_assets.core.ports import Clock
from backfill_assets.ledger.database import Database, parsed_url

ASK_AGAIN: Final = dt.timedelta(minutes=1)
"""How long a time of the database is counted on from, before it is asked again."""

# Goes on while a machine sleeps, unlike the plain one; only Linux has it.
_COUNTER: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def ledger_clock(url: str, own: Clock) -> Clock:
    """The clock to date everything by: Postgres' for a ledger there, this host's `own` for a file, which no other host opens.

    Raises:
        LedgerError: the URL cannot be read.
    """
    parsed = parsed_url(url)
    return own if parsed.get_backend_name() == "sqlite" else PostgresClock(parsed)


class PostgresClock:
    """The port `Clock` on Postgres; between two questions the time is counted on, whatever this host's clock is set to."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._told: tuple[dt.datetime, float] | None = None

    def now(self) -> dt.datetime:
        """The present moment, aware, in UTC; counted on while the database is away.

        Raises:
            LedgerError: the database could not be reached yet.
        """
        with self._lock:
            told = self._told
            if told is None or self._passed(told) >= ASK_AGAIN:
                told = self._told = self._asked_unless_away(told)
            return told[0] + self._passed(told)

    def _asked_unless_away(self, told: tuple[dt.datetime, float] | None) -> tuple[dt.datetime, float]:
        try:
            return self._asked(), time.clock_gettime(_COUNTER)
        except LedgerError:
            if told is None:
                raise
            # A failed question takes seconds. The counted time counts as an answer, so nobody asks again for a minute.
            passed = self._passed(told)
            return told[0] + passed, told[1] + passed.total_seconds()

    def _passed(self, told: tuple[dt.datetime, float]) -> dt.timedelta:
        return dt.timedelta(seconds=time.clock_gettime(_COUNTER) - told[1])

    def _asked(self) -> dt.datetime:
        # A connection of its own, closed at once: a process that is forked later must not share it.
        database = Database(self._url)
        try:
            with database.read() as connection:
                found: dt.datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        finally:
            database.close()
        return found.astimezone(dt.UTC)
