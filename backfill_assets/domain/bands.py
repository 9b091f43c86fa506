"""Bands: between which figures a metric is expected, by the contract or else by the dataset's tolerance."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from backfill_assets.core.expected_change import Change, Contract
from backfill_assets.domain.dataset import Dataset
from backfill_assets.domain.measurement import tolerance_of


@dataclass(frozen=True)
class Band:
    """How far a metric may move on a day, and whether a contract says so or the dataset's own tolerance."""

    change: Change
    promised: bool


def band_of(metric: str, dataset: Dataset, day: dt.date, contract: Contract) -> Band:
    """The band in force for a metric on a day; the contract wins over the dataset's tolerance."""
    expected, tolerance = contract.expected(metric, day), tolerance_of(metric, dataset)
    return Band(Change(-tolerance, tolerance), promised=False) if expected is None else Band(expected, promised=True)
