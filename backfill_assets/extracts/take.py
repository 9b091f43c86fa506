"""Takes the extracts of delivery days, one after another, within the limits that all launches share."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import LedgerError, SourceError
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import in_force, to_extract
from backfill_assets.dataset.extracts import Extract
from backfill_assets.extracts.database import extract_query, newest_change
from backfill_assets.extracts.rows import have_same_rows, is_newest_change
from backfill_assets.extracts.script import extract_script
from backfill_assets.storage.delivering import delivering
from backfill_assets.storage.disk import OnDisk
from backfill_assets.warehouse import OnWarehouse

_NO_WAIT: Final = dt.timedelta(0)
_LOOK: Final = dt.timedelta(seconds=0.3)
_LIVE: Final = 100
"""How many live runs at a database can keep others waiting at a time: as many as may ever work there."""


@dataclass(frozen=True)
class Extracts(OnWarehouse):
    """Writes files into the sources folder, from which days then land like all others."""

    def take(self, name: str, days: Collection[dt.date], *, live: bool = False) -> None:
        """Write the file of each delivery day, each from one moment of its source; a file whose rows are the same stays.

        Until the last day of a `live` run is taken, no other run begins an extract at the same database.

        Raises:
            SourceError: rows cannot be fetched or do not fit; names dataset, day, key and remedy. Files of days before it stay.
            StorageError: the disk is full, or the sources folder may not be written to.
        """
        self._each(name, days, self._take, live=live)

    def due(
        self, dataset: Dataset, days: Collection[dt.date], known: Sequence[Delivery], *, again: bool, live: bool = False
    ) -> tuple[dt.date, ...]:
        """The delivery days to extract, see `to_extract`; with `again`, also those that `modified_column` shows to have changed.

        Raises:
            SourceError: as `take` does, if the database has to be asked.
        """
        found = set(to_extract(dataset, days, known, self.clock.now(), again=again))
        column = dataset.extract.modified_column if dataset.extract is not None else None

        def look(dataset: Dataset, extract: Extract, day: dt.date) -> None:
            change = newest_change(dataset, extract, day)
            if not is_newest_change(self._file(dataset, day), dataset.landing, column or "", change):
                found.add(day)

        if again and column is not None:
            landed = {one.day for one in in_force(dataset, known)} & set(days)
            self._each(dataset.name, landed - found, look, live=live)
        return tuple(sorted(found))

    def _take(self, dataset: Dataset, extract: Extract, day: dt.date) -> None:
        with delivering(self._file(dataset, day), self.clock.now(), have_same_rows) as file:
            if extract.file is None:
                extract_query(dataset, extract, day, file)
            else:
                extract_script(dataset.landing, extract, day, file)

    def _file(self, dataset: Dataset, day: dt.date) -> Path:
        place = self.layout.source(dataset.landing.template.filled(day))
        if not isinstance(place, OnDisk):
            # Whether a day is complete depends on when its rows were read.
            raise SourceError(
                f"{place} is in a bucket, and a store only knows when it got a file, not when its rows were read; "
                "set BACKFILL_ASSETS_SOURCES to a folder"
            )
        return place.path

    def _each(
        self, name: str, days: Collection[dt.date], do: Callable[[Dataset, Extract, dt.date], None], *, live: bool
    ) -> None:
        dataset = self.datasets[name].dataset
        extract = dataset.extract
        if extract is None or not days:
            return
        limits = self._limits(name, extract)
        with ExitStack() as mark:
            if live:
                self._enter(mark, limits.live)
            for day in sorted(days):
                with self._turn(limits, live=live):
                    try:
                        do(dataset, extract, day)
                    except SourceError as error:
                        raise SourceError(f"{name} {day}: source.extract: {error}") from None

    def _limits(self, name: str, extract: Extract) -> _Limits:
        key = _key(name, extract)
        alike = [
            one
            for other, loaded in self.datasets.items()
            if (one := loaded.dataset.extract) is not None and _key(other, one) == key
        ]
        places, interval = min(one.max_parallel for one in alike), max(one.interval for one in alike)
        names = [f"extract:{key}:{number}" for number in range(places)]
        return _Limits(f"extract:{key}", interval, names, [f"extract:{key}:live:{number}" for number in range(_LIVE)])

    @contextmanager
    def _turn(self, limits: _Limits, *, live: bool) -> Iterator[None]:
        """Wait for a place and for the turn; a run that is not `live` waits until no live run has or wants one."""
        with ExitStack() as place:
            entered, wait = False, _LOOK
            while wait:
                wait = _LOOK
                if not live and self._held().intersection(limits.live):
                    # Also out of a place: the live run may be waiting for it.
                    place.close()
                    entered = False
                elif entered := entered or self._enter(place, limits.places):
                    wait = self.ledger.turn(limits.name, limits.interval) if limits.interval else _NO_WAIT
                time.sleep(min(wait, _LOOK).total_seconds())
            yield

    def _enter(self, stack: ExitStack, locks: Sequence[str]) -> bool:
        """Take a free one of these locks and keep it until the stack ends; false if there is none."""
        held = self._held()
        for lock in locks:
            if lock not in held:
                with suppress(LedgerError):  # another process was faster
                    stack.enter_context(self.ledger.lock(lock, _NO_WAIT))
                    return True
        return False

    def _held(self) -> frozenset[str]:
        now = self.clock.now()
        return frozenset(lock.name for lock in self.ledger.locks() if lock.until > now)


@dataclass(frozen=True)
class _Limits:
    """The limits that all extracts of a database share: the locks of its places and of its live runs, and the rate."""

    name: str
    interval: dt.timedelta
    places: Sequence[str]
    live: Sequence[str]


def _key(name: str, extract: Extract) -> str:
    """What limits belong to: a database, by its variable, or a dataset with a file."""
    return name if extract.database is None else extract.database.removeprefix("env:")
