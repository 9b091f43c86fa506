"""Keeps an attempt's lease while a step works on it, so that a dead worker is noticed and a live one is not."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Iterator

from backfill_assets.core.errors import BackfillError
from backfill_assets.core.unit import Attempt, AttemptState
from backfill_assets.ledger.ledger import Ledger


@contextlib.contextmanager
def kept_lease(ledger: Ledger, attempt: Attempt, lease: dt.timedelta) -> Iterator[None]:
    """Renew the lease in the background; a step that fails ends its attempt.

    A lease that was lost is not fought for: the ledger refuses the evidence of such an attempt.
    """
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(lease.total_seconds() / 4):
            with contextlib.suppress(BackfillError):
                ledger.renew(attempt.number, lease)

    keeper = threading.Thread(target=renew, name=f"lease-{attempt.number}", daemon=True)
    keeper.start()
    try:
        ledger.renew(attempt.number, lease)
        yield
    except BaseException:
        ledger.end_attempt(attempt.number, AttemptState.failed)
        raise
    finally:
        ended.set()
        keeper.join()
