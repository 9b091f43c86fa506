"""Keeping the table `data_releases` what the ledger says."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from backfill_assets.core.unit import LOCK_WAIT
from backfill_assets.dataset.consistency import DATA_RELEASES
from backfill_assets.delta.releases_table import by_name, differing, is_of, projection
from backfill_assets.domain.reader_ports import ReleasesTable
from backfill_assets.ledger.ledger import Ledger


@dataclass(frozen=True)
class DataReleases:
    """Projects the ledger's releases into the table; the ledger stays the one that counts.

    A row that says how its release stands is trusted in all else, because manifests are long and there are ever more of
    them; a repair compares the `whole` table with them.
    """

    ledger: Ledger
    table: ReleasesTable
    wait: dt.timedelta = LOCK_WAIT
    whole: bool = False

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
            found, heads = self.table.read(), self.ledger.heads()
            trusted = () if self.whole else found or ()
            rows = [row for row in trusted if row.release in heads and is_of(row, heads[row.release])]
            lacking = heads.keys() - {row.release for row in rows}
            rows = sorted([*rows, *projection(self.ledger.release(name) for name in lacking)], key=by_name)
            if found is not None and sorted(found, key=by_name) == rows:
                return False
            self.table.write(rows)
        return True
