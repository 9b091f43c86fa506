"""What changed models would do to history: sampled published days are computed with them, and compared."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from backfill_assets.campaigns.proving.subjects import Days, Subjects
from backfill_assets.core.certificate import Recomputation
from backfill_assets.core.errors import ModelError, ProofError, SourceError
from backfill_assets.core.ports import Ids
from backfill_assets.dataset.checkout import Checkout
from backfill_assets.dataset.deliveries import in_force
from backfill_assets.dataset.loaded import Catalog, LoadedDataset
from backfill_assets.delta.table import PublishedTable
from backfill_assets.domain.history_diff import DatasetDiff, HistoryDiff
from backfill_assets.domain.proof_ports import Histories, Sampled
from backfill_assets.evidence.contents import effective
from backfill_assets.evidence.outdated import UpstreamPlaces
from backfill_assets.ledger.ledger import Ledger
from backfill_assets.pipeline.judge_rows import schema_change

_CONFIGURED = Recomputation("as configured", {})


@dataclass(frozen=True)
class HistoryDiffs:
    """Compares models with what is published; writes nothing but scratch shadows, which it removes.

    `code` are the versions of the present checkout; `tables` and `histories` work on whatever datasets they are given.
    """

    ledger: Ledger
    code: Mapping[str, str]
    ids: Ids
    tables: Callable[[Mapping[str, LoadedDataset]], Mapping[str, PublishedTable]]
    histories: Callable[[Mapping[str, LoadedDataset]], Histories]

    def of(self, models: Checkout, names: Collection[str] = (), days: Days = ()) -> HistoryDiff:
        """What the models of a commit would change of these datasets, or of those whose code is another one.

        Without days up to three published ones of each are chosen.

        Raises:
            DatasetError: there is no dataset of that name at the commit, or it is faulty.
            ProofError: nothing is published of a dataset that is named, or not on these days.
        """
        catalog = models.catalog
        for name in names:
            catalog.dataset(name)
        catalog.require_all()
        tables = self.tables(catalog.datasets)
        changed = tuple(name for name in catalog.upstream_first(catalog.datasets) if self._is_another(name, catalog))
        there = {name: {day for day, files in table.active().items() if files} for name, table in tables.items()}
        published = {name: there[name].intersection(days) if days else there[name] for name in names or changed}
        for name in names:
            if not published[name]:
                when = " on these days" if days else ""
                raise ProofError(f"nothing is published of {name}{when}; there is no history to compare")
        found = [
            self._diff(catalog, tables, name, _named(published[name], days)) for name in published if published[name]
        ]
        left = {name: tuple(d for d in days if d not in own) for name, own in published.items() if there[name]}
        same = tuple(name for name in sorted(catalog.datasets) if there[name] and name not in {*names, *changed})
        new = tuple(name for name in sorted(catalog.datasets) if not there[name])
        not_compared = {name: lacking for name, lacking in left.items() if lacking}
        return HistoryDiff(models.ref, models.commit, tuple(found), same, new, not_compared)

    def _is_another(self, name: str, catalog: Catalog) -> bool:
        code = catalog.code[name]
        published = {manifest.code_version for manifest in effective(self.ledger.releases(name)).values()}
        return self.code.get(name, code) != code or bool(published - {code})

    def _chosen(self, catalog: Catalog, tables: Mapping[str, PublishedTable], name: str) -> Days:
        datasets = {n: loaded.dataset for n, loaded in catalog.datasets.items()}
        return Subjects(self.ledger, datasets, tables).of_dataset(name).days

    def _diff(self, catalog: Catalog, tables: Mapping[str, PublishedTable], name: str, asked: Days) -> DatasetDiff:
        table = tables[name]
        try:
            days = asked or self._chosen(catalog, tables, name)
        except ProofError as error:
            return DatasetDiff(name, fault=str(error))
        scratch, engine = f"_shadow/{self.ids.new('d')}", self.histories(catalog.datasets)
        found = UpstreamPlaces(self.ledger, catalog.datasets).of(None, name, days)
        dataset = catalog.datasets[name].dataset
        force = in_force(dataset, self.ledger.deliveries(name, dataset.fact_delivery_days(days)))
        sampled = Sampled(name, days, {one.loaded.name: one.places for one in found}, force)
        try:
            engine.recompute(sampled, f"{scratch}/1", _CONFIGURED)
            differences, largest = engine.differences(name, days, f"{scratch}/1")
        except (ModelError, SourceError) as error:
            return DatasetDiff(name, fault=str(error))
        finally:
            table.delete(_below(table, scratch))
        schema = schema_change(dataset, table.types())
        return DatasetDiff(name, differences, largest, schema, catalog.downstream_of([name]))


def _named(published: Collection[dt.date], days: Days) -> Days:
    return tuple(day for day in days if day in published)


def _below(table: PublishedTable, folder: str) -> Iterator[str]:
    return (file.path for file in table.stored_files() if file.path.startswith(f"{folder}/"))
