"""Does the batches of a step: one after another, or several at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from pyspark.sql import SparkSession

from backfill_assets.core.errors import BackfillError
from backfill_assets.core.unit import Attempt, AttemptState
from backfill_assets.ledger.open import Ledger

_CUT_OFF_SECONDS: Final = 15.0


@dataclass
class Slot:
    """Does one batch, in a Spark session of its own."""

    attempt: Attempt
    spark: SparkSession | None = None


class BatchPool:
    """Does the batches of a step: one after another in this thread, or several at the same time, each in a thread of its own.

    If one has failed, no other begins; those at work end first, then the first failure is raised. If the run is cancelled,
    all attempts at work end at once.
    """

    def __init__(self, ledger: Ledger, complain: Callable[[str], object]) -> None:
        self._ledger = ledger
        self._complain = complain
        self._working: dict[int, Slot] = {}
        self._failures: list[BaseException] = []
        self._changed = threading.Condition()

    @property
    def attempts(self) -> tuple[int, ...]:
        """The numbers of the attempts at work."""
        with self._changed:
            return tuple(self._working)

    def wait(self, most: int) -> None:
        """Wait until fewer than `most` are at work; raises the failure of a batch."""
        with self._changed:
            self._changed.wait_for(lambda: self._failures or len(self._working) < most)
        self.check()

    def check(self) -> None:
        """Raise the failure of a batch."""
        if self._failures:
            raise self._failures[0]

    def run(self, work: Callable[[Slot], None], attempt: Attempt, most: int) -> None:
        """Do a batch: to its end if at most one is at work, otherwise only begin with it."""
        if most == 1:
            return work(Slot(attempt))
        slot = Slot(attempt)
        with self._changed:
            self._working[attempt.number] = slot
        # Not waited for at the end of the process: its attempt is over then.
        thread = threading.Thread(target=self._try, args=(work, slot), name=f"batch-{attempt.number}", daemon=True)
        try:
            return thread.start()
        except RuntimeError:
            self._working.pop(attempt.number)
            self._end(slot)
            raise

    def _try(self, work: Callable[[Slot], None], slot: Slot) -> None:
        failure: BaseException | None = None
        try:
            work(slot)
        except BaseException as error:  # noqa: BLE001  # raised again by the thread that waits
            failure = error
        with self._changed:
            del self._working[slot.attempt.number]
            self._failures += [failure] if failure is not None else []
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, Exception):
            self._cut_off()
            return
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._working)
        except BaseException:
            self._cut_off()
            raise
        for other in self._failures[1:]:
            self._complain(f"another batch failed as well: {other}")
        # The gate may have closed because of it: then the failure is what a user has to read.
        if self._failures and error is not self._failures[0]:
            raise self._failures[0]

    def _cut_off(self) -> None:
        """End all attempts, then interrupt their work in Spark; what does not end soon goes on, and adds no evidence."""
        with self._changed:
            slots = list(self._working.values())
        for slot in slots:
            self._end(slot)
        for slot in slots:
            # A server that is gone may not answer for minutes.
            threading.Thread(target=_interrupt, args=(slot,), daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: not self._working, _CUT_OFF_SECONDS)

    def _end(self, slot: Slot) -> None:
        with contextlib.suppress(BackfillError):
            self._ledger.end_attempt(slot.attempt.number, AttemptState.failed)


def _interrupt(slot: Slot) -> None:
    with contextlib.suppress(Exception):  # the session may be closed already
        if slot.spark is not None:
            slot.spark.interruptAll()
