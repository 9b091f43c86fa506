"""Inputs: which deliveries a business day is built from, and their digest."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

from backfill_assets.domain.canonical import digest
from backfill_assets.domain.dataset import Dataset
from backfill_assets.domain.measurement import SourceState
from backfill_assets.domain.work import Delivery, StagedDay

Deliveries = Mapping[dt.date, Sequence[Delivery]]
"""Deliveries by delivery day."""


def by_delivery_day(deliveries: Iterable[Delivery]) -> Deliveries:
    """Group deliveries by their day, so that ten thousand days can be looked up one by one."""
    grouped: dict[dt.date, list[Delivery]] = {}
    for delivery in deliveries:
        grouped.setdefault(delivery.day, []).append(delivery)
    return grouped


def deliveries_of(dataset: Dataset, day: dt.date, deliveries: Deliveries) -> tuple[Delivery, ...]:
    """The deliveries that may hold rows of one business day."""
    return tuple(d for window_day in dataset.delivery_days((day,)) for d in deliveries.get(window_day, ()))


def staged_inputs(dataset: Dataset, day: dt.date, deliveries: Deliveries, references: Mapping[str, str]) -> str:
    """Digest of what one staged day is built from; `references` maps reference names to fingerprints."""
    own = sorted((d.path, d.fingerprint) for d in deliveries_of(dataset, day, deliveries))
    return digest([own, dict(references)])


def fact_inputs(dataset: Dataset, day: dt.date, deliveries: Deliveries, references: Mapping[str, str]) -> str:
    """Digest of what one day of the fact is built from: its own staged inputs and those of the days it looks back at."""
    return digest([staged_inputs(dataset, d, deliveries, references) for d in dataset.with_lookback((day,))])


def origins(dataset: Dataset, day: dt.date, deliveries: Deliveries) -> tuple[str, ...]:
    """The deliveries that one day of the fact is built from, those of the days it looks back at included.

    Each is a digest of path and content, so that what came later can be told without comparing times.
    """
    behind = (d for own in dataset.fact_delivery_days((day,)) for d in deliveries.get(own, ()))
    return tuple(sorted({digest([d.path, d.fingerprint])[:16] for d in behind}))


def source_state(
    dataset: Dataset, day: dt.date, deliveries: Deliveries, staged: Mapping[dt.date, StagedDay]
) -> SourceState:
    """What was delivered for one business day, for the checks."""
    own, read = deliveries.get(day, ()), deliveries_of(dataset, day, deliveries)
    return SourceState(
        deliveries=len(own),
        rows=sum(d.rows for d in own),
        corrupt_rows=sum(d.corrupt_rows for d in read),
        outside_rows=staged[day].outside_rows if day in staged else 0,
        delivered_at=max((d.delivered_at for d in own), default=None),
        rows_read=sum(d.rows for d in read),
    )
