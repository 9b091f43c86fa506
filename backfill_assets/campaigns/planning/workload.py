"""Workload: how many bytes a batch reads, from the sizes of its files as the logs and the ledger give them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from backfill_assets.dataset.deliveries import in_force
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.table import PublishedTable
from backfill_assets.ledger.ledger import Ledger


@dataclass(frozen=True)
class Workload:
    """Sizes of what days are built from and compared with."""

    ledger: Ledger
    datasets: Mapping[str, LoadedDataset]
    tables: Mapping[str, PublishedTable]

    def bytes_read(self, name: str, days: Collection[dt.date], layer: str = "shadow") -> int:
        """Bytes of the files behind one batch of a layer, compressed as they lie there.

        What was delivered for the days and for those they look back at, the published files that they are compared with,
        and the published files of the upstream days; raw and staging read only what was delivered. The small references
        are left out.
        """
        dataset, asked = self.datasets[name].dataset, tuple(sorted(days))
        window = dataset.fact_delivery_days(asked)
        known = self.ledger.deliveries(name, window) if window else ()
        delivered = sum(d.size for d in in_force(dataset, known))
        if layer != "shadow":
            return delivered
        upstream = sum(self._published(above, dataset.upstream_days(above, asked)) for above in dataset.upstream)
        return delivered + upstream + self._published(name, asked)

    def _published(self, name: str, days: Collection[dt.date]) -> int:
        table = self.tables[name]
        return sum(f.size for files in table.active(days).values() for f in files) if table.exists() else 0
