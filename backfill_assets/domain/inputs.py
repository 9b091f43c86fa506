"""Inputs: which deliveries a business day is built from, and their digest."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from backfill_assets.domain.canonical import digest
from backfill_assets.domain.dataset import Dataset
from backfill_assets.domain.measurement import SourceDay, SourceState
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
    own = sorted((d.path, d.fingerprint, d.reading) for d in deliveries_of(dataset, day, deliveries))
    return digest([own, dict(references)])


def fact_inputs(dataset: Dataset, day: dt.date, deliveries: Deliveries, references: Mapping[str, str]) -> str:
    """Digest of what one day of the fact is built from: its own staged inputs and those of the days it looks back at."""
    return digest([staged_inputs(dataset, d, deliveries, references) for d in dataset.with_lookback((day,))])


def origin(delivery: Delivery) -> str:
    """A delivery as contents name it: a digest of its path and its content."""
    return digest([delivery.path, delivery.fingerprint])[:16]


def origins(dataset: Dataset, day: dt.date, deliveries: Deliveries) -> tuple[str, ...]:
    """The deliveries that one day of the fact is built from, those of the days it looks back at included.

    What came later can be told by them without comparing times.
    """
    behind = (d for own in dataset.fact_delivery_days((day,)) for d in deliveries.get(own, ()))
    return tuple(sorted({origin(d) for d in behind}))


def lost_days(deliveries: Iterable[Delivery], rows: Mapping[dt.date, int]) -> frozenset[dt.date]:
    """The delivery days of which raw has fewer `rows` than were landed, such as after a backup of it was restored."""
    landed = Counter[dt.date]()
    for delivery in deliveries:
        landed[delivery.day] += delivery.rows
    return frozenset(day for day, known in landed.items() if rows.get(day, 0) < known)


def source_state(
    dataset: Dataset, day: dt.date, deliveries: Deliveries, staged: Mapping[dt.date, StagedDay]
) -> SourceState:
    """What was delivered for one business day and for those that it looks back at, for the checks."""
    own, read = deliveries.get(day, ()), deliveries_of(dataset, day, deliveries)
    before = (d for d in dataset.with_lookback((day,)) if d != day)
    looked_back = (_source_day(dataset, d, deliveries, staged) for d in before)
    return SourceState(
        deliveries=len(own),
        rows=sum(d.rows for d in own),
        corrupt_rows=sum(d.corrupt_rows for d in read),
        outside_rows=staged[day].outside_rows if day in staged else 0,
        delivered_at=max((d.delivered_at for d in own), default=None),
        rows_read=sum(d.rows for d in read),
        faulty_before=tuple(one for one in looked_back if not one.rows or one.bad_rows),
    )


def _source_day(
    dataset: Dataset, day: dt.date, deliveries: Deliveries, staged: Mapping[dt.date, StagedDay]
) -> SourceDay:
    # Of a path what came last: what corrects a file takes the place of its bad rows.
    newest = {d.path: d for d in sorted(deliveries_of(dataset, day, deliveries), key=lambda d: d.delivered_at)}
    bad = sum(d.corrupt_rows for d in newest.values())
    outside = staged[day].outside_rows if day in staged else 0
    return SourceDay(day, sum(d.rows for d in deliveries.get(day, ())), bad + outside)
