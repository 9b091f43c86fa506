"""What a day is built from: deliveries, references and golden sources, and their fingerprints."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from backfill_assets.core.canonical import digest
from backfill_assets.core.days import ONE_DAY, day_range
from backfill_assets.core.delivery import Delivery, Place
from backfill_assets.core.errors import PreconditionError, SourceError
from backfill_assets.core.measured import SameContent, SourceDay, SourceState
from backfill_assets.core.text import in_one_line
from backfill_assets.core.unit import StagedDay
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import in_force, place_of
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.sources import OnMissing
from backfill_assets.delta.opening import DeltaError, is_table
from backfill_assets.delta.reading import held_by_day
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location
from backfill_assets.storage.sources import read_from, require_no_folder

Deliveries = Mapping[dt.date, Sequence[Delivery]]
"""Deliveries by delivery day."""
GOLDEN: Final = "golden:"
"""The beginning of the names of golden sources among fingerprints, which references do not have."""
_AWAITED: Final = "awaited:"
"""The beginning of a day among the origins of another one that looks ahead to it, if it is not over, or has not landed."""
_WEEK: Final = 7
"""How many earlier days are searched for a delivery with the same content."""
_NONE: Final[Mapping[dt.date, int]] = {}


def force_by_day(dataset: Dataset, known: Iterable[Delivery]) -> Deliveries:
    """The deliveries in force by day; `known` are all deliveries of these days in the ledger."""
    return by_delivery_day(in_force(dataset, known))


def by_delivery_day(deliveries: Iterable[Delivery]) -> Deliveries:
    """Group deliveries by day, so that each of ten thousand days is found quickly."""
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
    """Digest of the inputs of one staged day; `references` maps reference names to fingerprints.

    `deliveries` are those in force. The digest covers all that a model can see of them: also their numbers, delivery
    times and how they were read.
    """
    own = [
        [*_content(d), d.order, d.delivered_at.isoformat(), d.reading] for d in deliveries_of(dataset, day, deliveries)
    ]
    return digest([own, dict(references)])


def fact_inputs(
    dataset: Dataset, day: dt.date, deliveries: Deliveries, references: Mapping[str, str], over: dt.date
) -> str:
    """Digest of the inputs of one day of the fact: the staged inputs of all days of its window, and those that it awaits."""
    waits = awaited(dataset, day, deliveries, over)
    # A provisional day changes when an awaited one lands, not when that is over.
    left_out = waits if dataset.provisional is not None else ()
    window = (d for d in dataset.with_window((day,)) if d not in left_out)
    staged = [staged_inputs(dataset, d, deliveries, references) for d in window]
    return digest([*staged, list(waits)] if waits else staged)


def awaited(dataset: Dataset, day: dt.date, deliveries: Deliveries, over: dt.date) -> tuple[dt.date, ...]:
    """The days that a day looks ahead to and that are not over yet; `over` is the newest day that is (`newest_settled`).

    If days are published before these, also those that are over and have not landed: until then a day stays provisional.
    """
    ahead = dataset.days_ahead(day)
    if dataset.provisional is None or dataset.feed.on_missing is OnMissing.pass_:
        return tuple(d for d in ahead if d > over)
    return tuple(d for d in ahead if d > over or not any(one.rows for one in deliveries.get(d, ())))


def awaited_in(origins: Collection[str]) -> frozenset[str]:
    """The names of the days that a day with these origins awaits: where there are any, it is provisional."""
    return frozenset(name for name in origins if name.startswith(_AWAITED))


def origin(delivery: Delivery) -> str:
    """The name of a delivery in contents: a digest of its path, its content, and how often it was read again."""
    return digest(_content(delivery))[:16]


def origins_ever(delivery: Delivery) -> frozenset[str]:
    """All names of a delivery in contents, one for each time it was read: the same bytes are the same delivery."""
    return frozenset(origin(replace(delivery, landings=n)) for n in range(1, max(delivery.landings, 1) + 1))


def _content(delivery: Delivery) -> list[str | int]:
    again = [delivery.landings] if delivery.landings > 1 else []
    return [delivery.path, delivery.fingerprint, *again]


def origins(dataset: Dataset, day: dt.date, deliveries: Deliveries, over: dt.date) -> tuple[str, ...]:
    """The deliveries that one day of the fact is built from, with all of its window, oldest first; then the days that it awaits.

    They show what came or went later, without comparing times.
    """
    known = dict.fromkeys(origin(d) for d in _behind(dataset, day, deliveries))
    return (*known, *_awaited_names(dataset, day, deliveries, over))


def _awaited_names(dataset: Dataset, day: dt.date, deliveries: Deliveries, over: dt.date) -> tuple[str, ...]:
    return tuple(f"{_AWAITED}{d}" for d in awaited(dataset, day, deliveries, over))


def _behind(dataset: Dataset, day: dt.date, deliveries: Deliveries) -> tuple[Delivery, ...]:
    return _oldest_first(d for own in dataset.fact_delivery_days((day,)) for d in deliveries.get(own, ()))


def names_ever(dataset: Dataset, day: dt.date, deliveries: Deliveries, over: dt.date) -> tuple[frozenset[str], ...]:
    """All names that each of `origins` ever had, in their order."""
    ever = {origin(d): origins_ever(d) for d in _behind(dataset, day, deliveries)}
    return (*ever.values(), *(frozenset({name}) for name in _awaited_names(dataset, day, deliveries, over)))


def lost_days(deliveries: Iterable[Delivery], rows: Mapping[dt.date, int]) -> frozenset[dt.date]:
    """The delivery days for which raw has fewer `rows` than were landed, such as after a restore of raw."""
    return frozenset(day for day, known in _rows_landed(deliveries).items() if rows.get(day, 0) < known)


def surplus_days(deliveries: Iterable[Delivery], rows: Mapping[dt.date, int]) -> frozenset[dt.date]:
    """The delivery days for which raw has more `rows` than were landed, such as after a restore of the ledger."""
    landed = _rows_landed(deliveries)
    return frozenset(day for day, found in rows.items() if found > landed[day])


def idle_days(dataset: Dataset, known: Iterable[Delivery]) -> frozenset[dt.date]:
    """The delivery days with rows that do not count; `known` has all deliveries of these days.

    There totals prove nothing: raw may have lost as many of these rows as it has of a delivery that nobody knows.
    """
    deliveries = tuple(known)
    force = {one.content for one in in_force(dataset, deliveries)}
    return frozenset(one.day for one in deliveries if one.landings and one.rows and one.content not in force)


def _rows_landed(deliveries: Iterable[Delivery]) -> Counter[dt.date]:
    landed = Counter[dt.date]()
    for delivery in deliveries:
        landed[delivery.day] += delivery.rows
    return landed


def week_before(day: dt.date) -> tuple[dt.date, ...]:
    """The days whose deliveries are compared with those of `day`: a stale export may come again as the next day's."""
    return day_range(day - _WEEK * ONE_DAY, day - ONE_DAY)


def source_state(
    dataset: Dataset,
    day: dt.date,
    deliveries: Deliveries,
    staged: Mapping[dt.date, StagedDay],
    over: dt.date,
    gone: Collection[Place] = (),
    rows: Mapping[dt.date, int] = _NONE,
) -> SourceState:
    """What was delivered for one business day and the other days of its window, for the checks.

    `deliveries` are those in force, also of the week before the day: no check judges superseded or withdrawn ones.
    `over` is the newest day that is over. `gone` are the places of deliveries whose file is no longer among the sources. `rows` are
    the numbers of staged rows, if files have whole months.
    """
    own, read = deliveries.get(dataset.due(day), ()), deliveries_of(dataset, day, deliveries)
    window = dataset.with_window((day,))
    behind = [d for own_day in dataset.fact_delivery_days((day,)) for d in deliveries.get(own_day, ())]
    prints = {d.fingerprint for later in window if later >= day for d in deliveries.get(dataset.due(later), ())}
    stale = [d for earlier in week_before(day) for d in deliveries.get(earlier, ()) if d.fingerprint in prints]
    beside = (_source_day(dataset, d, deliveries, staged, rows) for d in window if d != day)
    return SourceState(
        deliveries=len(own),
        rows=_own_rows(dataset, day, own, rows),
        corrupt_rows=sum(d.corrupt_rows for d in read),
        outside_rows=staged[day].outside_rows if day in staged else 0,
        delivered_at=max((d.delivered_at for d in own), default=None),
        rows_read=sum(d.rows for d in read),
        faulty_beside=tuple(one for one in beside if not one.rows or one.bad_rows),
        awaited=awaited(dataset, day, deliveries, over),
        identical=_identical({*behind, *stale}),
        gone=tuple(d.path for d in behind if place_of(d) in gone),
    )


def _identical(deliveries: Iterable[Delivery]) -> tuple[SameContent, ...]:
    """Files with equal content under several names, among deliveries in force."""
    alike: dict[str, list[Delivery]] = {}
    for delivery in deliveries:
        if delivery.rows:
            alike.setdefault(delivery.fingerprint, []).append(delivery)
    several = [found for found in alike.values() if len(found) > 1]
    same = (SameContent(tuple(sorted(d.path for d in f)), tuple(sorted({d.day for d in f}))) for f in several)
    return tuple(sorted(same, key=lambda one: one.paths))


def _own_rows(dataset: Dataset, day: dt.date, own: Iterable[Delivery], staged: Mapping[dt.date, int]) -> int:
    rows = sum(d.rows for d in own)
    # Until a month is over, its file may end before the day. Late rows in the next file do not replace a missing one.
    return staged.get(day, 0) if rows and dataset.is_monthly else rows


def _source_day(
    dataset: Dataset,
    day: dt.date,
    deliveries: Deliveries,
    staged: Mapping[dt.date, StagedDay],
    rows: Mapping[dt.date, int],
) -> SourceDay:
    bad = sum(d.corrupt_rows for d in deliveries_of(dataset, day, deliveries))
    outside = staged[day].outside_rows if day in staged else 0
    own = _own_rows(dataset, day, deliveries.get(dataset.due(day), ()), rows)
    return SourceDay(day, own, bad + outside)


def reference_stamps(loaded: LoadedDataset, layout: Layout) -> Mapping[str, tuple[object, ...]]:
    """What tells each reference and golden file from any other that was ever at its path; golden tables are left out.

    Fingerprints do not show a file that was replaced while Spark read it, if what they cover is the same in the next one.

    Raises:
        LayoutError: a link leads out of the sources folder.
    """
    files = {name: one.path for name, one in loaded.dataset.references.items()}
    files |= {f"{GOLDEN}{name}": one.file.path for name, one in loaded.dataset.golden.items() if one.file is not None}
    return {name: layout.source(path).stamp() for name, path in files.items()}


def golden_fingerprints(
    loaded: LoadedDataset, layout: Layout, days: Collection[dt.date]
) -> Mapping[dt.date, Mapping[str, str]]:
    """Fingerprints (hex SHA-256) of every golden file and table by day, as `golden:<name>`; needs no Spark.

    For a file it covers the content, for a table the names of its files: the day's own if the table is partitioned by
    day and read without a query, otherwise all of them. A commit that leaves these files alone changes nothing.

    Raises:
        SourceError: a file or table is missing, disappears during the reading, or is no Delta table.
        LayoutError: a link leads out of the sources folder.
    """
    found: dict[dt.date, dict[str, str]] = {day: {} for day in days}
    for name, golden in loaded.dataset.golden.items():
        if golden.file is None and golden.table is None:
            continue
        place = golden_place(loaded, layout, name)
        if golden.file is not None:
            with read_from(f"the file of golden source {name}"):
                held: Mapping[dt.date, str] = dict.fromkeys(days, place.sha256())
        else:
            # A query may compute a day from other days.
            column = loaded.dataset.partition_column if golden.sql is None else ""
            try:
                with read_from(f"the table of golden source {name}"):
                    held = held_by_day(place, column, days)
            except (DeltaError, PreconditionError, ValueError) as error:
                raise SourceError(
                    f"{golden_key(loaded, name)}: {golden.table} is not a complete Delta table: {in_one_line(error)}; "
                    "deliver it completely"
                ) from error
        for day in days:
            found[day][f"{GOLDEN}{name}"] = held[day]
    return found


def golden_key(loaded: LoadedDataset, name: str, *path: str) -> str:
    """The file and key that declare a golden source, for messages."""
    return f"{loaded.folder / 'dataset.yaml'}: {'.'.join(('golden', name, *path))}"


def golden_place(loaded: LoadedDataset, layout: Layout, name: str) -> Location:
    """The file of a golden source, or the folder of its Delta table.

    Raises:
        SourceError: it is not there.
        LayoutError: a link leads out of the sources folder.
    """
    golden = loaded.dataset.golden[name]
    if golden.file is not None:
        place = layout.source(golden.file.path)
        what, relative, key, there = "file", golden.file.path, "file.path", place.is_there()
    else:
        relative = golden.table or ""
        place = layout.source(relative)
        what, key, there = "Delta table", "table", is_table(place)
    if not there:
        raise SourceError(
            f"{golden_key(loaded, name)}: the {what} {relative} is not in {layout.sources}; "
            f"put it there, or correct golden.{name}.{key}"
        )
    if golden.file is not None:
        require_no_folder(place, relative)
    return place
