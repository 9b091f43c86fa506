"""Ports of proof: what the ledger keeps for reviewers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from backfill_assets.domain.certificate import Certificate
from backfill_assets.domain.comparison import DayComparison
from backfill_assets.domain.evidence import DatasetDay


class ProofLedger(Protocol):
    """Comparisons of days, and certificates."""

    def add_comparisons(self, attempt: int, comparisons: Iterable[DayComparison]) -> None:
        """Store what an attempt's days differ in, replacing older comparisons; `LeaseLostError` if it lost its lease."""
        ...

    def comparisons(
        self, unit: str, dataset: str | None = None, days: Collection[dt.date] | None = None
    ) -> Mapping[DatasetDay, DayComparison]:
        """The newest comparison of each day of a unit, optionally only of one dataset or of some days.

        One whose `attempt` is not that of the day's evidence speaks of rows that are gone.
        """
        ...

    def add_certificate(self, certificate: Certificate) -> None:
        """Store a certificate; one that is there already changes nothing."""
        ...

    def certificates(self, dataset: str | None = None, unit: str | None = None) -> tuple[Certificate, ...]:
        """Certificates, newest first, optionally only those of one dataset or of one unit."""
        ...
