"""A warehouse with all that works on it: what every act takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import Catalog, LoadedDataset
from backfill_assets.delta.table import PublishedTable
from backfill_assets.ledger.open import Ledger
from backfill_assets.storage.layout import Layout
from backfill_assets.system import Clock, Identity, Ids


@dataclass(frozen=True)
class Warehouse:
    """The datasets of a warehouse, where they lie, their published tables and the ledger; with time, ids and the user at work."""

    catalog: Catalog
    layout: Layout
    tables: Mapping[str, PublishedTable]
    ledger: Ledger
    clock: Clock
    ids: Ids
    identity: Identity

    def of(self, catalog: Catalog) -> Warehouse:
        """The same with other datasets, such as those of another checkout."""
        return replace(self, catalog=catalog, tables=tables_of(catalog, self.layout, self.clock))


def tables_of(catalog: Catalog, layout: Layout, clock: Clock) -> Mapping[str, PublishedTable]:
    """The published table of every dataset."""
    return {name: PublishedTable(layout, loaded.dataset, clock) for name, loaded in catalog.datasets.items()}


@dataclass(frozen=True)
class OnWarehouse:
    """Works on a warehouse, and calls its parts by their names."""

    warehouse: Warehouse

    @property
    def catalog(self) -> Catalog:
        """The datasets that could be loaded, and the faults of the others."""
        return self.warehouse.catalog

    @property
    def datasets(self) -> Mapping[str, LoadedDataset]:
        """The loaded datasets by name."""
        return self.catalog.datasets

    @property
    def definitions(self) -> Mapping[str, Dataset]:
        """What `dataset.yaml` says of each of them."""
        return self.catalog.definitions

    @property
    def layout(self) -> Layout:
        """Where tables and sources lie."""
        return self.warehouse.layout

    @property
    def tables(self) -> Mapping[str, PublishedTable]:
        """The published table of each dataset."""
        return self.warehouse.tables

    @property
    def ledger(self) -> Ledger:
        """The control state."""
        return self.warehouse.ledger

    @property
    def clock(self) -> Clock:
        """What time it is."""
        return self.warehouse.clock

    @property
    def ids(self) -> Ids:
        """Where new names come from."""
        return self.warehouse.ids

    @property
    def identity(self) -> Identity:
        """Who is at work."""
        return self.warehouse.identity
