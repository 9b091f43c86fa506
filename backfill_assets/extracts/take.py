"""Takes the extracts of delivery days, one after another, within the limits that all launches share."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from backfill_assets.core.errors import LedgerError, SourceError
from backfill_assets.dataset.extracts import Extract
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.extracts.database import extract_query
from backfill_assets.extracts.rows import have_same_rows
from backfill_assets.extracts.script import extract_script
from backfill_assets.storage.delivering import delivering
from backfill_assets.warehouse import OnWarehouse

_NO_WAIT: Final = dt.timedelta(0)
_LOOK_SECONDS: Final = 0.3


@dataclass(frozen=True)
class Extracts(OnWarehouse):
    """Writes files into the sources folder, from which days then land like all others."""

    def take(self, name: str, days: Collection[dt.date]) -> None:
        """Write the file of each delivery day, each from one moment of its source; a file whose rows are the same stays.

        Raises:
            SourceError: rows cannot be fetched or do not fit; names dataset, day, key and remedy. Files of days before it stay.
            StorageError: the disk is full, or the sources folder may not be written to.
        """
        loaded = self.datasets[name]
        extract = loaded.dataset.extract
        if extract is None:
            return
        for day in sorted(days):
            with self._turn(name, extract):
                self._take(loaded, extract, day)

    def _take(self, loaded: LoadedDataset, extract: Extract, day: dt.date) -> None:
        source = loaded.dataset.landing
        with delivering(self.layout.source_file(source.template.filled(day)), self.clock.now(), have_same_rows) as file:
            try:
                if extract.file is None:
                    extract_query(loaded.dataset, extract, day, file)
                else:
                    extract_script(source, extract, day, file)
            except SourceError as error:
                raise SourceError(f"{loaded.name} {day}: source.extract: {error}") from None

    @contextmanager
    def _turn(self, name: str, extract: Extract) -> Iterator[None]:
        """Wait for one of the places at a database, and for the time at which the next extract may begin."""
        key = _key(name, extract)
        alike = [
            one
            for other, loaded in self.datasets.items()
            if (one := loaded.dataset.extract) is not None and _key(other, one) == key
        ]
        places, interval = min(one.max_parallel for one in alike), max(one.interval for one in alike)
        with ExitStack() as stack:
            while not self._enter(stack, [f"extract:{key}:{number}" for number in range(places)]):
                time.sleep(_LOOK_SECONDS)
            while wait := self.ledger.turn(f"extract:{key}", interval):
                time.sleep(wait.total_seconds())
            yield

    def _enter(self, stack: ExitStack, places: Sequence[str]) -> bool:
        """Take a free place and keep it until the stack ends; false if there is none."""
        now = self.clock.now()
        held = {lock.name for lock in self.ledger.locks() if lock.until > now}
        for place in places:
            if place not in held:
                with suppress(LedgerError):  # another process was faster
                    stack.enter_context(self.ledger.lock(place, _NO_WAIT))
                    return True
        return False


def _key(name: str, extract: Extract) -> str:
    """What limits belong to: a database, by its variable, or a dataset with a file."""
    return name if extract.database is None else extract.database.removeprefix("env:")
