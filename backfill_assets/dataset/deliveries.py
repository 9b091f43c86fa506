"""Deliveries in force: for each path, the newest content counts. The ledger keeps the order; all callers ask here.

The first landing of a delivery day numbers its files by the day and their place in that landing, so it makes no difference
which day lands first. Later deliveries (other content at a known path, content that is delivered again, or a new path of a
day that has already landed) are numbered after the newest delivery day known at that time.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.delivery import ARCHIVES, Deed, Delivery, DeliveryEntry, FileContent, Place
from backfill_assets.core.errors import SourceError
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.reading import Deduplicate, form_of, reading_of
from backfill_assets.dataset.sources import OrderBy

_OUT: Final = frozenset({Deed.withdrawn, Deed.purged})
_OF_A_DAY: Final = 10**9
"""Order numbers per delivery day; the second half is for later deliveries."""


def place_of(delivery: Delivery) -> Place:
    """The place of a delivery: its delivery day and path."""
    return delivery.day, delivery.path


def heads(known: Iterable[Delivery]) -> Mapping[Place, Delivery]:
    """The newest content of each path, withdrawn or not."""
    found: dict[Place, Delivery] = {}
    for one in known:
        place = place_of(one)
        if one.order and (place not in found or one.order > found[place].order):
            found[place] = one
    return found


def in_force(dataset: Dataset, known: Iterable[Delivery]) -> tuple[Delivery, ...]:
    """The deliveries that count, oldest first; `known` has all deliveries of their days."""
    standing = sorted((one for one in heads(known).values() if not one.withdrawn), key=lambda one: one.order)
    if dataset.staging.deduplicate is Deduplicate.latest_file:
        newest = {one.day: one for one in standing}
        standing = [one for one in standing if newest[one.day] is one]
    return tuple(standing)


def out_of_path(dataset: Dataset, known: Iterable[Delivery]) -> tuple[Delivery, ...]:
    """The deliveries in force that `source.path` no longer finds, on days with other deliveries that it finds.

    `known` has all deliveries of their days. If the path finds none of a day, the files may have moved: they still count.
    A delivery without rows is left out, unless it would replace the other files of its day (latest_file).
    """
    template, deliveries = dataset.landing.template, tuple(known)
    standing = (one for one in heads(deliveries).values() if not one.withdrawn)
    found = {one.day for one in standing if template.fits(one.day, one.path)}
    newest_only = dataset.staging.deduplicate is Deduplicate.latest_file
    force = (one for one in in_force(dataset, deliveries) if one.rows or newest_only)
    return tuple(one for one in force if one.day in found and not template.fits(one.day, one.path))


def require_in_path(dataset: Dataset, known: Iterable[Delivery]) -> None:
    """Refuse days with deliveries in force that `source.path` no longer finds beside others that it finds; see `out_of_path`.

    Raises:
        SourceError: names such a file, and says what to do.
    """
    if found := out_of_path(dataset, known):
        one, more = found[0], f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise SourceError(
            f"{dataset.name} {one.day}: {one.path}{more} landed under another source.path than {dataset.landing.path} and would "
            f"count in addition to the files found now; take it out: backfill withdraw {dataset.name} {one.path} --reason TEXT, or "
            "set source.path in dataset.yaml back"
        )


def require_months(dataset: Dataset, known: Iterable[Delivery]) -> None:
    """Refuse months whose files of single days nothing reads, because `source.path` names months now and finds none of theirs.

    `known` has all deliveries of all days of these months.

    Raises:
        SourceError: names such a file, and says what to do.
    """
    force = in_force(dataset, known) if dataset.is_monthly else ()
    found = {one.day for one in force if dataset.landing.template.fits(one.day, one.path)}
    unread = [one for one in force if one.rows and one.day != (due := dataset.due(one.day)) and due not in found]
    if unread:
        one, more = unread[0], f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        raise SourceError(
            f"{dataset.name} {one.day}: {one.path}{more} landed while source.path named days. No file of the month has landed "
            f"under {dataset.landing.path}, so these rows would be missing; deliver the file of the month, or set source.path in "
            "dataset.yaml back"
        )


def decided_out(journal: Iterable[DeliveryEntry]) -> frozenset[FileContent]:
    """The contents that somebody has withdrawn and not taken back, whether or not they were purged as well."""
    last = {(e.day, e.path, e.fingerprint): e.deed for e in journal if e.deed in {Deed.withdrawn, Deed.restored}}
    return frozenset(content for content, deed in last.items() if deed is Deed.withdrawn)


def require_known_decision(dataset: Dataset, known: Iterable[Delivery], journal: Iterable[DeliveryEntry]) -> None:
    """Refuse days on which a delivery does not count only because it was purged, and nobody has said what is to count instead.

    It was delivered again, or what took its place was withdrawn, or the history begins earlier now. `known` has all deliveries of
    their days, `journal` what happened to them.

    Raises:
        SourceError: names such a file, and says what to do.
    """
    every, decided = tuple(known), decided_out(journal)
    purged = {one.content for one in every if one.withdrawn and one.content not in decided}
    would = in_force(dataset, [replace(one, withdrawn=False) if one.content in purged else one for one in every])
    if missing := [one for one in would if one.content in purged]:
        one = missing[0]
        raise SourceError(
            f"{dataset.name} {one.day}: {one.path} ({one.fingerprint[:8]}) would count, and was purged; deliver other content at "
            f"its path, or leave it out: backfill withdraw {dataset.name} {one.path} --reason TEXT. To let it count, put it back, "
            f"launch raw of {one.day}, and add --undo"
        )


def require_packed_once(dataset: Dataset, known: Iterable[Delivery]) -> None:
    """Refuse days on which one file would count twice, plain and compressed; see `packed_twice`.

    Raises:
        SourceError: names both, and says what to do.
    """
    if twice := packed_twice(dataset, known):
        raise SourceError(
            f"{dataset.name} {twice[0].day}: {twice[0].path} and {twice[1].path} are one file, plain and compressed, and both "
            f"would count; take out the older one: backfill withdraw {dataset.name} {twice[0].path} --reason TEXT"
        )


def packed_twice(dataset: Dataset, known: Iterable[Delivery]) -> tuple[Delivery, ...]:
    """Two deliveries in force of a day whose paths differ only in the ending of compressed text; empty if there are none.

    They are one file, before and after it was compressed, and would count twice.
    """
    plain: dict[Place, Delivery] = {}
    for one in in_force(dataset, known):
        if not one.rows:
            continue
        path = PurePosixPath(one.path)
        name = path.with_suffix("") if path.suffix.lower() in ARCHIVES else path
        other = plain.setdefault((one.day, str(name)), one)
        if other is not one:
            return other, one
    return ()


def to_extract(
    dataset: Dataset, days: Iterable[dt.date], known: Iterable[Delivery], now: dt.datetime, *, again: bool = False
) -> tuple[dt.date, ...]:
    """The delivery days among these that have to be extracted, in order; none if the source has no extract.

    These are days that have begun, unless a delivery in force is of this very extract and was taken after the end of its day.
    With `again`, days are also extracted until `extract.again` after their end. `known` has all deliveries of the days; `now`
    is aware.
    """
    if dataset.extract is None:
        return ()
    source = dataset.landing
    form, wait = form_of(reading_of(source)), dataset.extract.again if again else dt.timedelta(0)
    own = (one for one in in_force(dataset, known) if one.landings and source.template.fits(one.day, one.path))
    taken = {one.day: one.delivered_at for one in own if form_of(one.reading) == form}

    def is_final(day: dt.date) -> bool:
        # What was taken during the day may be only a part of it.
        end = dataset.end_of(day)
        return day in taken and taken[day] >= end and now >= end + wait

    return tuple(day for day in sorted(set(days)) if dataset.end_of(day - ONE_DAY) <= now and not is_final(day))


def outdated(dataset: Dataset, known: Sequence[Delivery]) -> tuple[Delivery, ...]:
    """The deliveries in force that were not read as `dataset.yaml` declares them now; `known` has all of their days."""
    reading = reading_of(dataset.landing)
    return tuple(d for d in in_force(dataset, known) if d.landings and d.reading != reading)


def to_land_again(dataset: Dataset, known: Sequence[Delivery], lost: frozenset[dt.date]) -> frozenset[Place]:
    """The places of deliveries whose rows raw may have lost, and of those in force that raw keeps in another form."""
    form = form_of(reading_of(dataset.landing))
    outdated = {place_of(d) for d in in_force(dataset, known) if form_of(d.reading) != form}
    return frozenset(outdated | {place_of(d) for d in known if d.day in lost})


def in_order(dataset: Dataset, found: Iterable[Delivery]) -> tuple[Delivery, ...]:
    """The files of one landing, oldest first, as `source.order_by` says."""
    by_path = dataset.landing.order_by is OrderBy.path
    return tuple(sorted(found, key=lambda one: (one.path,) if by_path else (one.delivered_at, one.path)))


def received(
    known: Sequence[Delivery],
    found: Iterable[Delivery],
    seen: Mapping[Place, int] | None = None,
    edge: tuple[dt.date | None, int] | None = None,
) -> tuple[Delivery, ...]:
    """The records that a landing adds or changes, with their numbers.

    Content that is already the newest at its path changes only if raw had lost it or reads it differently. `known` has all
    deliveries of the days of `found`, which is in order. `seen` has each path's newest number when this landing looked: if
    another landing was faster, its content stays newest. `edge` is the newest day and number if `known` lacks days.
    """
    newest, highest = edge or (max((d.day for d in known), default=None), max((d.order for d in known), default=0))
    last, contents = dict(heads(known)), {d.content: d for d in known}
    landed, index = {d.day for d in known}, Counter[dt.date]()
    changed: dict[FileContent, Delivery] = {}
    for one in found:
        place = place_of(one)
        head, before = last.get(place), contents.get(one.content)
        newest = max(newest or one.day, one.day)
        if head is not None and head is before:
            # The same bytes: at most, raw has back what it had lost.
            order = head.order
        elif seen is not None and seen.get(place, 0) != (head.order if head else 0):
            order = before.order if before else 0
        elif one.day not in landed and head is None:
            index[one.day] += 1
            order = one.day.toordinal() * _OF_A_DAY + index[one.day]
        else:
            order = max(highest, newest.toordinal() * _OF_A_DAY + _OF_A_DAY // 2) + 1
        record = _received(before, one, order)
        if record is not before:
            changed[one.content] = contents[one.content] = record
        if order and (head is None or order >= head.order):
            last[place] = record
        highest = max(highest, order)
    return tuple(changed.values())


def _received(before: Delivery | None, one: Delivery, order: int) -> Delivery:
    if before is None:
        return replace(one, order=order, withdrawn=False, landings=1)
    if not before.landings or one.reading != before.reading:
        # Raw now has what this landing counted.
        counted = replace(before, rows=one.rows, corrupt_rows=one.corrupt_rows, reading=one.reading)
        before = replace(counted, landings=before.landings + 1)
    return before if order == before.order else replace(before, order=order, delivered_at=one.delivered_at)


@dataclass(frozen=True)
class DeliveryStanding:
    """A delivery, whether it is in force, and why if it is not."""

    delivery: Delivery
    counts: bool
    why: str = ""


def standings(
    dataset: Dataset, known: Sequence[Delivery], journal: Iterable[DeliveryEntry] = ()
) -> tuple[DeliveryStanding, ...]:
    """The standing of each delivery, by delivery day and path, the newest content of a path first."""
    last, standing = heads(known), in_force(dataset, known)
    force, newest = {id(one) for one in standing}, {one.day: one for one in standing}
    events = {(e.day, e.path, e.fingerprint, e.deed in _OUT): str(e) for e in journal}
    found = []
    for one in sorted(known, key=lambda d: (d.day, d.path, -d.order)):
        head = last.get(place_of(one))
        out = one.withdrawn and head is one
        happened = events.get((*place_of(one), one.fingerprint, out), "")
        if id(one) in force:
            why = happened
        elif out:
            why = happened or "withdrawn"
            if one.landings and why.startswith(Deed.purged):
                why = f"landed again, {why}"
        elif head is not None and head is not one:
            why = f"superseded by {head.fingerprint[:8]}, delivered at {head.delivered_at:%Y-%m-%d %H:%M:%S} UTC"
            gone = events.get((*place_of(one), one.fingerprint, True), "")
            why += f"; {gone}" if gone and not one.landings else ""
        else:
            why = f"superseded by {newest[one.day].path}: latest_file takes the newest file of a day"
        found.append(DeliveryStanding(one, id(one) in force, why))
    return tuple(found)
