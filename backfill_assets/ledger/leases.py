"""Leases: what a holder renews while it works, and loses if it is dead."""

from __future__ import annotations

import datetime as dt
import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from backfill_assets.core.errors import LedgerError, LockHeldError
from backfill_assets.ledger.database import Database, LockPace, worker_name
from backfill_assets.ledger.schema import drivers, locks
from backfill_assets.system import Clock

_log = logging.getLogger(__name__)
_random = random.SystemRandom()
DRIVER_WAIT: Final = dt.timedelta(hours=6)
"""How long to wait for another Spark driver: longer than any batch of many days takes."""
_KEPT_LEASES: Final = 10
_WORTH_A_WORD: Final = dt.timedelta(minutes=10)


IsOver = Callable[[BaseException], bool]
"""Whether the work under a lease has ended with an error."""

ENDED: Final[IsOver] = lambda _: True  # noqa: E731
"""What holds for work of this process alone."""


@dataclass(frozen=True)
class _Hold:
    """Who holds a lease, as it was read; each renewal changes it."""

    holder: str
    renewals: tuple[object, ...]


class _Lease(ABC):
    """What a holder renews while it works, and loses if it is dead."""

    def __init__(self, database: Database, clock: Clock, pace: LockPace, name: str) -> None:
        self._database = database
        self._clock = clock
        self._pace = pace
        self._name = name

    @contextmanager
    def held(self, wait: dt.timedelta, over: IsOver = ENDED) -> Iterator[int]:
        """Hold the lock during the body; yields its fencing token, which grows with every holder and never resets.

        If the body fails, `over` tells from its error whether its work has ended; if not, no other holder gets the lock before the
        lease runs out.

        Raises:
            LedgerError: another process holds it until the wait ends; names the holder.
        """
        token = self._take(wait)
        ended = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(token, ended), daemon=True)
        keeper.start()
        at_work = False
        try:
            yield token
        except BaseException as error:
            ended.set()  # an answer that never comes must not keep the lease alive
            at_work = True
            at_work = not over(error)
            raise
        finally:
            ended.set()
            keeper.join()
            if at_work:
                _log.warning("lock %s: its work may still go on, so the lease runs out by itself", self._name)
            else:
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
            if seen[0] is None and wait > _WORTH_A_WORD:
                _log.warning("lock %s: waiting for %s", self._name, taken.holder)
            if taken != seen[0]:
                seen = (taken, time.monotonic())
            left = deadline - time.monotonic()
            if left <= 0:
                raise LockHeldError(
                    f"lock {self._name!r}: held by {taken.holder}, and not free within {wait.total_seconds():g} s; "
                    "wait until it finishes, or end it: "
                    f"a dead holder loses the lock after {self._pace.lease.total_seconds():g} s"
                )
            time.sleep(min(left, self._pace.poll.total_seconds() * _random.uniform(0.5, 1.5)))

    def _silent(self, seen: tuple[object, float]) -> object:
        """The hold that was not renewed while watched for a lease: its holder is dead, even if clocks were set back."""
        hold, since = seen
        return hold if time.monotonic() - since >= self._pace.lease.total_seconds() else None

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
            # The work under the lock is done, and the lease ends by itself: this must not make the work fail.
            _log.warning("lock %s: not released, its lease runs out: %s", self._name, error)

    @abstractmethod
    def _try(self, connection: Connection, silent: object) -> int | _Hold:
        """Take the lease and return its token, or who holds it; the holder that was `silent` has lost it."""

    @abstractmethod
    def _set_until(self, token: int, until: dt.datetime | None) -> bool:
        """Renew the lease, or release it with None; False if it is no longer ours."""


class LeasedLock(_Lease):
    """One named lock, for one holder."""

    def _try(self, connection: Connection, silent: object) -> int | _Hold:
        now = self._clock.now()
        mine = {"holder": worker_name(), "until": now + self._pace.lease}
        row = connection.execute(select(locks).where(locks.c.name == self._name)).mappings().one_or_none()
        if row is None:
            connection.execute(insert(locks).values(name=self._name, token=1, **mine))
            return 1
        token, hold = int(row["token"]), _Hold(str(row["holder"]), (row["token"], row["until"]))
        if row["until"] is not None and row["until"] > now and hold != silent:
            return hold
        connection.execute(update(locks).where(locks.c.name == self._name).values(token=token + 1, **mine))
        return token + 1

    def _set_until(self, token: int, until: dt.datetime | None) -> bool:
        ours = (locks.c.name == self._name) & (locks.c.token == token)
        with self._database.write() as connection:
            return bool(connection.execute(update(locks).where(ours).values(until=until)).rowcount)


class DriverLease(_Lease):
    """The right of a Spark driver to write a table: shared by its sessions, given to drivers in order of their arrival."""

    def __init__(self, database: Database, clock: Clock, pace: LockPace, place: str, driver: str) -> None:
        super().__init__(database, clock, pace, place)
        self._driver = driver
        self._number: int | None = None

    def _take(self, wait: dt.timedelta) -> int:
        try:
            return super()._take(wait)
        except BaseException:
            if self._number is not None:
                self._release(self._number)
            raise

    def _try(self, connection: Connection, silent: object) -> int | _Hold:
        now = self._clock.now()
        here = connection.execute(select(drivers).where(drivers.c.place == self._name).order_by(drivers.c.number)).all()
        live = [one for one in here if one.until > now and one.driver != self._driver]
        ahead = [one for one in live if one.holds or self._number is None or one.number < self._number]
        hold = _Hold(", ".join(one.holder for one in ahead), tuple((one.number, one.until) for one in ahead))
        waits = bool(ahead) and hold != silent
        mine = {"holds": not waits, "until": now + self._pace.lease}
        own = drivers.c.number == self._number
        if self._number is None or not connection.execute(update(drivers).where(own).values(**mine)).rowcount:
            new = {"place": self._name, "driver": self._driver, "holder": f"{self._driver} for {worker_name()}", **mine}
            self._number = connection.execute(insert(drivers).values(new).returning(drivers.c.number)).scalar_one()
        if waits:
            return hold
        # A session of our own driver that could not renew may still write: its row keeps others out for as long as it is renewed.
        old = now - _KEPT_LEASES * self._pace.lease
        dead = [one.number for one in here if one in ahead or one.until <= (old if one.driver == self._driver else now)]
        connection.execute(delete(drivers).where(drivers.c.number.in_(dead)))
        return self._number

    def _set_until(self, token: int, until: dt.datetime | None) -> bool:
        ours = drivers.c.number == token
        change = delete(drivers).where(ours) if until is None else update(drivers).where(ours).values(until=until)
        with self._database.write() as connection:
            return bool(connection.execute(change).rowcount)
