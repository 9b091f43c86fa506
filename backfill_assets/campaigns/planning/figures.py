"""Figures for a plan: what each day holds, from the logs of the tables, the ledger and the sizes of source files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from backfill_assets.campaign.plan import Days
from backfill_assets.core.release import DataFile
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import in_force
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.table import PublishedTable
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.sources import delivered_sizes


@dataclass(frozen=True)
class Amount:
    """Rows and bytes of something."""

    rows: int
    bytes: int

    def plus(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(self.rows + other.rows, self.bytes + other.bytes)


NOTHING: Final = Amount(0, 0)
Amounts = Mapping[dt.date, Amount]


@dataclass(frozen=True)
class Figures:
    """What is known of a dataset's days: what is published, delivered (by delivery day), and published of its upstreams.

    `expected` is what a day will about hold: what it holds as published; otherwise what was delivered on that day, or
    what its upstreams hold of it.
    """

    dataset: Dataset
    published: Amounts
    delivered: Amounts
    upstream: Mapping[str, Amounts]
    expected: Amounts

    def bytes_read(self, batch: Days) -> int:
        """Bytes of the files behind one batch, counted as the budget of a campaign counts them (`Workload`)."""
        window = self.dataset.fact_delivery_days(batch)
        above = ((self.upstream[name], self.dataset.upstream_days(name, batch)) for name in self.dataset.upstream)
        parts = ((self.delivered, window), (self.published, batch), *above)
        return sum(amounts.get(day, NOTHING).bytes for amounts, days in parts for day in days)


@dataclass(frozen=True)
class FigureReader:
    """Reads figures; each source is asked once, whatever the number of days."""

    ledger: Ledger
    datasets: Mapping[str, LoadedDataset]
    tables: Mapping[str, PublishedTable]
    layout: Layout

    def read(self, name: str, days: Days, above: Mapping[str, Figures], *, landing: bool) -> Figures:
        """Figures of one dataset; `above` holds those of its upstreams that are planned as well.

        With `landing`, source files count that nobody has landed yet: their rows are guessed from their sizes.
        """
        loaded = self.datasets[name]
        dataset = loaded.dataset
        published = self._published(name, days)
        delivered = self._delivered(loaded, dataset.fact_delivery_days(days), landing=landing)
        upstream = {u: self._published(u, dataset.upstream_days(u, days)) for u in dataset.upstream}
        known = [delivered] if dataset.source is not None else [
            {**amounts, **(above[u].expected if u in above else {})} for u, amounts in upstream.items()
        ]  # fmt: skip
        expected = {day: published.get(day) or _sum(amounts.get(day, NOTHING) for amounts in known) for day in days}
        return Figures(dataset, published, delivered, upstream, expected)

    def _published(self, name: str, days: Collection[dt.date]) -> Amounts:
        table = self.tables[name]
        if not days or not table.exists():
            return {}
        return {day: _of_files(files) for day, files in table.active(days).items() if files}

    def _delivered(self, loaded: LoadedDataset, window: Days, *, landing: bool) -> Amounts:
        if not window:
            return {}
        found: dict[dt.date, Amount] = {}
        for delivery in in_force(loaded.dataset, self.ledger.deliveries(loaded.name, window)):
            found[delivery.day] = found.get(delivery.day, NOTHING).plus(Amount(delivery.rows, delivery.size))
        if landing:
            known = _sum(found.values())
            share = known.rows / known.bytes if known.bytes else 0
            sizes = delivered_sizes(loaded, self.layout, [day for day in window if day not in found])
            found |= {day: Amount(round(size * share), size) for day, size in sizes.items()}
        return found


def _of_files(files: Iterable[DataFile]) -> Amount:
    return _sum(Amount(file.rows or 0, file.size) for file in files)


def _sum(amounts: Iterable[Amount]) -> Amount:
    total = NOTHING
    for amount in amounts:
        total = total.plus(amount)
    return total
