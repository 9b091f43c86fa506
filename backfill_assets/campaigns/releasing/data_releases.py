"""Keeping the table `data_releases` what the ledger says."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from backfill_assets.domain.consistency import DATA_RELEASES
from backfill_assets.domain.data_releases import differing, projection
from backfill_assets.domain.ports import ReleaseLedger
from backfill_assets.domain.reader_ports import ReleasesTable

_WAIT = dt.timedelta(seconds=30)


@dataclass(frozen=True)
class DataReleases:
    """Projects the ledger's releases into the table; the ledger stays the one that counts."""

    ledger: ReleaseLedger
    table: ReleasesTable
    wait: dt.timedelta = _WAIT

    def differing(self) -> tuple[str, ...]:
        """Releases of which the table does not say what the ledger says; changes nothing."""
        return differing(projection(self.ledger.releases()), self.table.read() or ())

    def refresh(self) -> bool:
        """Write the table again if it differs from the ledger; whether it did.

        Raises:
            LedgerError: somebody else has been writing it for too long.
        """
        # Read and written under one lock: an older reading must not come after a newer one.
        with self.ledger.lock(DATA_RELEASES, self.wait):
            rows, found = projection(self.ledger.releases()), self.table.read()
            if found is not None and sorted(found, key=lambda r: (r.dataset, r.release)) == list(rows):
                return False
            self.table.write(rows)
        return True
