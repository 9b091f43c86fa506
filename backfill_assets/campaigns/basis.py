"""What evidence would rest on if it were taken now."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from backfill_assets.catalog import LoadedDataset
from backfill_assets.domain.inputs import by_delivery_day, fact_inputs, staged_inputs
from backfill_assets.domain.judge import checks_of
from backfill_assets.domain.ports import Ledger
from backfill_assets.lakehouse.layout import Layout
from backfill_assets.lakehouse.road.references import reference_fingerprints


@dataclass(frozen=True)
class CurrentBasis:
    """The port `BasisNow` on the loaded datasets, the ledger's deliveries and the reference files."""

    datasets: Mapping[str, LoadedDataset]
    ledger: Ledger
    layout: Layout

    def inputs(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Digest of what each day's fact would be built from now."""
        return self._digests(dataset, days, lookback=True)

    def staged_inputs(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Digest of what each staged day would be built from now."""
        return self._digests(dataset, days, lookback=False)

    def code(self, dataset: str) -> str:
        """The code version that is loaded."""
        return self.datasets[dataset].code_version

    def checks(self, dataset: str) -> tuple[str, ...]:
        """Names of the checks that a release demands a verdict of."""
        return tuple(check.name for check in checks_of(self.datasets[dataset].dataset))

    def _digests(self, name: str, days: Collection[dt.date], *, lookback: bool) -> Mapping[dt.date, str]:
        loaded = self.datasets[name]
        dataset = loaded.dataset
        wanted = tuple(sorted(days))
        window = dataset.delivery_days(dataset.with_lookback(wanted) if lookback else wanted)
        by_day = by_delivery_day(self.ledger.deliveries(name, window))
        references = reference_fingerprints(loaded, self.layout)
        digest_of = fact_inputs if lookback else staged_inputs
        return {day: digest_of(dataset, day, by_day, references) for day in wanted}
