"""Ports of proof: what the ledger keeps for reviewers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from backfill_assets.core.certificate import Prints, Recomputation
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.measured import RowChange, Value
from backfill_assets.domain.history_diff import DayDifference


@dataclass(frozen=True)
class Sampled:
    """Days of a dataset that are recomputed; `upstream` says by upstream dataset and place which days are read from where.

    A place is a shadow's folder below the published table, or empty for what is published. `deliveries` are those in force.
    """

    dataset: str
    days: tuple[dt.date, ...]
    upstream: Mapping[str, Mapping[str, tuple[dt.date, ...]]] = field(default_factory=dict)
    deliveries: tuple[Delivery, ...] = ()


class Recomputations(Protocol):
    """Computes days anew where no reader looks, and says what came out."""

    def recompute(self, sampled: Sampled, folder: str, how: Recomputation) -> None:
        """Compute the days from raw and upstream, staging included, into a folder below the published table.

        `ModelError` or `SourceError` if they cannot be.
        """
        ...

    def prints(self, dataset: str, days: Collection[dt.date], place: str) -> Mapping[dt.date, Prints]:
        """The prints of the days in a shadow's folder, or of what is published where `place` is empty."""
        ...

    def rows(
        self, dataset: str, days: Collection[dt.date], places: tuple[str, str]
    ) -> Mapping[dt.date, tuple[Mapping[str, Value], ...]]:
        """Some of the rows by day in which two places differ, as in `Disagreement`; `old` is that of the first place."""
        ...

    def layouts(self, dataset: str) -> Mapping[str, Mapping[dt.date, str]]:
        """Digests of the files of raw and staging, by table and then day, as their Delta logs name them now."""
        ...


class Histories(Recomputations, Protocol):
    """Compares days that were computed anew with what is published."""

    def differences(
        self, dataset: str, days: Collection[dt.date], folder: str
    ) -> tuple[tuple[DayDifference, ...], tuple[RowChange, ...]]:
        """The differences by day, in order, and of each measure the rows that move it most."""
        ...
