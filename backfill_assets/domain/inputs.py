"""Inputs: which deliveries a business day is built from, and their digest."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from backfill_assets.core.canonical import digest
from backfill_assets.core.days import ONE_DAY, day_range
from backfill_assets.core.delivery import Delivery, Place
from backfill_assets.core.measured import SameContent, SourceDay, SourceState
from backfill_assets.core.unit import StagedDay
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import in_force, place_of

Deliveries = Mapping[dt.date, Sequence[Delivery]]
"""Deliveries by delivery day."""
_WEEK: Final = 7
"""For so many days before its own a delivery is looked for that had the same content."""


def force_by_day(dataset: Dataset, known: Iterable[Delivery]) -> Deliveries:
    """The deliveries in force by their day; `known` are all of these days, as the ledger has them."""
    return by_delivery_day(in_force(dataset, known))


def by_delivery_day(deliveries: Iterable[Delivery]) -> Deliveries:
    """Group deliveries by their day, so that ten thousand days can be looked up one by one."""
    grouped: dict[dt.date, list[Delivery]] = {}
    for delivery in deliveries:
        grouped.setdefault(delivery.day, []).append(delivery)
    return grouped


def deliveries_of(dataset: Dataset, day: dt.date, deliveries: Deliveries) -> tuple[Delivery, ...]:
    """The deliveries that may hold rows of one business day, oldest first."""
    return _oldest_first(d for window_day in dataset.delivery_days((day,)) for d in deliveries.get(window_day, ()))


def _oldest_first(deliveries: Iterable[Delivery]) -> tuple[Delivery, ...]:
    return tuple(sorted(deliveries, key=lambda d: (d.order, d.path, d.fingerprint)))


def staged_inputs(dataset: Dataset, day: dt.date, deliveries: Deliveries, references: Mapping[str, str]) -> str:
    """Digest of what one staged day is built from; `references` maps reference names to fingerprints.

    Of `deliveries`, those in force, all counts that a model can see: also their numbers, when they were delivered, and how
    they were read.
    """
    own = [
        [*_content(d), d.order, d.delivered_at.isoformat(), d.reading] for d in deliveries_of(dataset, day, deliveries)
    ]
    return digest([own, dict(references)])


def fact_inputs(dataset: Dataset, day: dt.date, deliveries: Deliveries, references: Mapping[str, str]) -> str:
    """Digest of what one day of the fact is built from: its own staged inputs and those of the days it looks back at."""
    return digest([staged_inputs(dataset, d, deliveries, references) for d in dataset.with_lookback((day,))])


def origin(delivery: Delivery) -> str:
    """A delivery as contents name it: a digest of its path and its content, and of how often it was read again."""
    return digest(_content(delivery))[:16]


def origins_ever(delivery: Delivery) -> frozenset[str]:
    """How contents may name a delivery, however often it had been read by then: the same bytes are no other delivery."""
    return frozenset(origin(replace(delivery, landings=n)) for n in range(1, max(delivery.landings, 1) + 1))


def _content(delivery: Delivery) -> list[str | int]:
    again = [delivery.landings] if delivery.landings > 1 else []
    return [delivery.path, delivery.fingerprint, *again]


def origins(dataset: Dataset, day: dt.date, deliveries: Deliveries) -> tuple[str, ...]:
    """The deliveries that one day of the fact is built from, oldest first, those of the days it looks back at included.

    What came or went later can be told by them without comparing times.
    """
    behind = _oldest_first(d for own in dataset.fact_delivery_days((day,)) for d in deliveries.get(own, ()))
    return tuple(dict.fromkeys(origin(d) for d in behind))


def lost_days(deliveries: Iterable[Delivery], rows: Mapping[dt.date, int]) -> frozenset[dt.date]:
    """The delivery days of which raw has fewer `rows` than were landed, such as after a backup of it was restored."""
    return frozenset(day for day, known in _rows_landed(deliveries).items() if rows.get(day, 0) < known)


def surplus_days(deliveries: Iterable[Delivery], rows: Mapping[dt.date, int]) -> frozenset[dt.date]:
    """The delivery days of which raw has more `rows` than were landed, such as after a backup of the ledger was restored."""
    landed = _rows_landed(deliveries)
    return frozenset(day for day, found in rows.items() if found > landed[day])


def _rows_landed(deliveries: Iterable[Delivery]) -> Counter[dt.date]:
    landed = Counter[dt.date]()
    for delivery in deliveries:
        landed[delivery.day] += delivery.rows
    return landed


def week_before(day: dt.date) -> tuple[dt.date, ...]:
    """The days with whose deliveries those of a day are compared: a stale export comes again under the next day's name."""
    return day_range(day - _WEEK * ONE_DAY, day - ONE_DAY)


def source_state(
    dataset: Dataset,
    day: dt.date,
    deliveries: Deliveries,
    staged: Mapping[dt.date, StagedDay],
    gone: Collection[Place] = (),
) -> SourceState:
    """What was delivered for one business day and for those that it looks back at, for the checks.

    `deliveries` are those in force, of the week before the day as well: what was superseded or withdrawn is judged by nobody.
    `gone` are the places of those whose file is not among the sources any more.
    """
    own, read = deliveries.get(day, ()), deliveries_of(dataset, day, deliveries)
    before = (d for d in dataset.with_lookback((day,)) if d != day)
    behind = [d for own_day in dataset.fact_delivery_days((day,)) for d in deliveries.get(own_day, ())]
    prints = {d.fingerprint for d in own}
    stale = [d for earlier in week_before(day) for d in deliveries.get(earlier, ()) if d.fingerprint in prints]
    looked_back = (_source_day(dataset, d, deliveries, staged) for d in before)
    return SourceState(
        deliveries=len(own),
        rows=sum(d.rows for d in own),
        corrupt_rows=sum(d.corrupt_rows for d in read),
        outside_rows=staged[day].outside_rows if day in staged else 0,
        delivered_at=max((d.delivered_at for d in own), default=None),
        rows_read=sum(d.rows for d in read),
        faulty_before=tuple(one for one in looked_back if not one.rows or one.bad_rows),
        identical=_identical({*behind, *stale}),
        gone=tuple(d.path for d in behind if place_of(d) in gone),
    )


def _identical(deliveries: Iterable[Delivery]) -> tuple[SameContent, ...]:
    """Files of equal content under several names, among deliveries in force."""
    alike: dict[str, list[Delivery]] = {}
    for delivery in deliveries:
        if delivery.rows:
            alike.setdefault(delivery.fingerprint, []).append(delivery)
    several = [found for found in alike.values() if len(found) > 1]
    same = (SameContent(tuple(sorted(d.path for d in f)), tuple(sorted({d.day for d in f}))) for f in several)
    return tuple(sorted(same, key=lambda one: one.paths))


def _source_day(
    dataset: Dataset, day: dt.date, deliveries: Deliveries, staged: Mapping[dt.date, StagedDay]
) -> SourceDay:
    bad = sum(d.corrupt_rows for d in deliveries_of(dataset, day, deliveries))
    outside = staged[day].outside_rows if day in staged else 0
    return SourceDay(day, sum(d.rows for d in deliveries.get(day, ())), bad + outside)
