"""Named locks as leases: kept fresh while held, taken over when the holder is dead, no open transaction."""

from __future__ import annotations

import datetime as dt
import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, insert, select, update

from backfill_assets.core.errors import LedgerError
from backfill_assets.core.ports import Clock
from backfill_assets.ledger.database import Database
from backfill_assets.ledger.host import worker_name
from backfill_assets.ledger.schema import locks

_log = logging.getLogger(__name__)
_random = random.SystemRandom()


@dataclass(frozen=True)
class LockPace:
    """How long a lease lasts without renewal, how often its holder renews it, how often others look."""

    lease: dt.timedelta = dt.timedelta(seconds=60)
    renew: dt.timedelta = dt.timedelta(seconds=15)
    poll: dt.timedelta = dt.timedelta(milliseconds=200)


DEFAULT_PACE: Final = LockPace()


@dataclass(frozen=True)
class _Hold:
    """A lock as it was found: each renewal makes it another one."""

    holder: str
    token: int
    until: dt.datetime | None


class LeasedLock:
    """One named lock, as one holder sees it."""

    def __init__(self, database: Database, clock: Clock, pace: LockPace, name: str) -> None:
        self._database = database
        self._clock = clock
        self._pace = pace
        self._name = name

    @contextmanager
    def held(self, wait: dt.timedelta) -> Iterator[int]:
        """Hold the lock during the body; yields its fencing token, which grows with every holder, for ever.

        Raises:
            LedgerError: somebody else holds it until the wait is over; names the holder.
        """
        token = self._take(wait)
        ended = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(token, ended), daemon=True)
        keeper.start()
        try:
            yield token
        finally:
            ended.set()
            keeper.join()
            self._release(token)

    def _take(self, wait: dt.timedelta) -> int:
        # The wait is in real seconds: the clock port may stand still.
        deadline = time.monotonic() + wait.total_seconds()
        seen: tuple[object, float] = (None, 0.0)
        while True:
            with self._database.write() as connection:
                taken = self._try(connection, self._silent(seen))
            if isinstance(taken, int):
                return taken
            if taken != seen[0]:
                seen = (taken, time.monotonic())
            left = deadline - time.monotonic()
            if left <= 0:
                raise LedgerError(
                    f"lock {self._name!r}: held by {taken.holder}, and not free within {wait.total_seconds():g} s; "
                    "wait for it to finish, or end it: "
                    f"a dead holder loses the lock after {self._pace.lease.total_seconds():g} s"
                )
            time.sleep(min(left, self._pace.poll.total_seconds() * _random.uniform(0.5, 1.5)))

    def _silent(self, seen: tuple[object, float]) -> object:
        """The hold that nobody has renewed for a whole lease of watching: its holder is dead, even if clocks were set back."""
        hold, since = seen
        return hold if time.monotonic() - since >= self._pace.lease.total_seconds() else None

    def _try(self, connection: Connection, silent: object) -> int | _Hold:
        now = self._clock.now()
        mine = {"holder": worker_name(), "until": now + self._pace.lease}
        row = connection.execute(select(locks).where(locks.c.name == self._name)).mappings().one_or_none()
        if row is None:
            connection.execute(insert(locks).values(name=self._name, token=1, **mine))
            return 1
        hold = _Hold(str(row["holder"]), int(row["token"]), row["until"])
        if hold.until is not None and hold.until > now and hold != silent:
            return hold
        connection.execute(update(locks).where(locks.c.name == self._name).values(token=hold.token + 1, **mine))
        return hold.token + 1

    def _keep(self, token: int, ended: threading.Event) -> None:
        while not ended.wait(self._pace.renew.total_seconds()):
            try:
                if not self._set_until(token, self._clock.now() + self._pace.lease):
                    _log.warning("lock %s: lost to another holder while held (token %d)", self._name, token)
                    return
            except LedgerError as error:
                # The lease outlasts several failed renewals; the next one may succeed.
                _log.warning("lock %s: not renewed: %s", self._name, error)

    def _release(self, token: int) -> None:
        try:
            self._set_until(token, None)
        except LedgerError as error:
            # The work under the lock is done: a lease ends by itself, and must not turn that into a failure.
            _log.warning("lock %s: not released, its lease runs out: %s", self._name, error)

    def _set_until(self, token: int, until: dt.datetime | None) -> bool:
        ours = (locks.c.name == self._name) & (locks.c.token == token)
        with self._database.write() as connection:
            return bool(connection.execute(update(locks).where(ours).values(until=until)).rowcount)
