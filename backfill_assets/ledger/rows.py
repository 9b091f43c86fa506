"""What all parts of the ledger have."""

from __future__ import annotations

from backfill_assets.core.ports import Clock
from backfill_assets.ledger.database import Database
from backfill_assets.ledger.locks import LockPace


class Rows:
    """A database, a clock, and the pace of locks."""

    def __init__(self, database: Database, clock: Clock, lock_pace: LockPace) -> None:
        self._database = database
        self._clock = clock
        self._lock_pace = lock_pace
