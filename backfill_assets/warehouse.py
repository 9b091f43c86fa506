"""A warehouse and its services: what every use case works on."""

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
    """The datasets of a warehouse, their location, published tables and ledger; also clock, ids and the current user."""

    catalog: Catalog
    layout: Layout
    tables: Mapping[str, PublishedTable]
    ledger: Ledger
    clock: Clock
    ids: Ids
    identity: Identity

    def of(self, catalog: Catalog) -> Warehouse:
        """The same warehouse with other datasets, such as those of another checkout."""
        return replace(self, catalog=catalog, tables=tables_of(catalog, self.layout, self.clock))


def tables_of(catalog: Catalog, layout: Layout, clock: Clock) -> Mapping[str, PublishedTable]:
    """The published table of every dataset."""
    return {name: PublishedTable(layout, loaded.dataset, clock) for name, loaded in catalog.datasets.items()}


@dataclass(frozen=True)
class OnWarehouse:
    """Works on a warehouse and names its parts."""

    warehouse: Warehouse

    @property
    def catalog(self) -> Catalog:
        """The datasets that could be loaded, and the problems of the others."""
        return self.warehouse.catalog

    @property
    def datasets(self) -> Mapping[str, LoadedDataset]:
        """The loaded datasets by name, as they are seen now."""
        return self.catalog.seen_at(self.clock.now)

    @property
    def definitions(self) -> Mapping[str, Dataset]:
        """The definition of each of them in `dataset.yaml`."""
        return self.catalog.definitions

    @property
    def layout(self) -> Layout:
        """The location of tables and sources."""
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
        """The source of the current time."""
        return self.warehouse.clock

    @property
    def ids(self) -> Ids:
        """The source of new ids."""
        return self.warehouse.ids

    @property
    def identity(self) -> Identity:
        """The source of the current user."""
        return self.warehouse.identity
