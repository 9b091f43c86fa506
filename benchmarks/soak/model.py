"""What readers of the soak's table may see, derived from its deliveries and releases. Pure.

All rows of a day carry the number of the delivery that they came with, and every delivery has all tickets. So a day with fewer
rows has lost some, and a day with two numbers is mixed, for any reader at any time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Deliveries = Mapping[dt.date, Sequence[dt.datetime]]
"""When each delivery of a day arrived, in order; aware times."""


@dataclass(frozen=True, order=True)
class DayRows:
    """What a reader sees of a day: number of rows, least and greatest number of a delivery in them."""

    rows: int
    lowest: int
    highest: int


View = Mapping[dt.date, DayRows]
"""What a reader sees of a table at one moment; a day without rows is absent."""


@dataclass(frozen=True)
class Commit:
    """A version of the table: the release that made it (None: only the schema), its days, what it undoes, and when."""

    version: int
    release: str
    days: frozenset[dt.date]
    undoes: str
    at: dt.datetime


@dataclass(frozen=True)
class Poll:
    """One poll of a reader, between the newest version before and the newest after it."""

    reader: str
    first: int
    last: int
    view: View


@dataclass(frozen=True)
class Record:
    """All that is known at the end: rows of a full day, deliveries, commits by version, what each version shows, polls."""

    rows: int
    deliveries: Deliveries
    commits: Sequence[Commit]
    views: Mapping[int, View]
    polls: Sequence[Poll]


def lost_rows(record: Record) -> tuple[str, ...]:
    """Days that some version shows with fewer rows than were delivered, and delivered days that are gone at the end."""
    return (*_short_days(record), *_missing_days(record))


def mixed_reads(record: Record) -> tuple[str, ...]:
    """Days of two deliveries at once, commits that did not do what they say, and polls that saw no version."""
    return (*_mixed_days(record), *_wrong_commits(record), *_unknown_polls(record.polls, record.views))


def _short_days(record: Record) -> Iterator[str]:
    for version, view in record.views.items():
        for day, seen in view.items():
            if seen.rows != record.rows:
                yield f"version {version} shows {seen.rows} rows of {day}, {record.rows} were delivered"


def _mixed_days(record: Record) -> Iterator[str]:
    for version, view in record.views.items():
        for day, seen in view.items():
            if seen.lowest != seen.highest:
                yield f"version {version} shows deliveries {seen.lowest} and {seen.highest} of {day} at once"


def _missing_days(record: Record) -> Iterator[str]:
    final = record.views[record.commits[-1].version] if record.commits else {}
    undone = {day for commit in record.commits if commit.undoes for day in commit.days}
    for day in sorted(record.deliveries.keys() - final.keys() - undone):
        yield f"{day} was delivered and never rolled back, but is not there at the end"


def _wrong_commits(record: Record) -> Iterator[str]:
    before: View = {}
    newest: dict[dt.date, int] = {}
    replaced: dict[str, View] = {}
    for commit in record.commits:
        view = record.views[commit.version]
        name = f"version {commit.version} ({commit.release or 'schema'})"
        for day in sorted(before.keys() | view.keys()):
            if day not in commit.days and before.get(day) != view.get(day):
                yield f"{name} changed {day}, which is none of its days"
        for day in sorted(commit.days):
            if commit.undoes:
                if view.get(day) != replaced.get(commit.undoes, {}).get(day):
                    yield f"{name} did not bring {day} back to what it was before {commit.undoes}"
            else:
                yield from _wrong_day(record, commit, day, newest)
        replaced[commit.release] = {day: before[day] for day in commit.days if day in before}
        before = view


def _wrong_day(record: Record, commit: Commit, day: dt.date, newest: dict[dt.date, int]) -> Iterator[str]:
    """A published day shows an existing delivery, and none older than one that was published before."""
    seen = record.views[commit.version].get(day)
    there = sum(at <= commit.at for at in record.deliveries.get(day, ()))
    if seen is None or not newest.get(day, 1) <= seen.highest <= there:
        shown = "nothing" if seen is None else f"delivery {seen.highest}"
        yield f"version {commit.version} shows {shown} of {day}, expected one of {newest.get(day, 1)}..{there}"
    else:
        newest[day] = seen.highest


def _unknown_polls(polls: Iterable[Poll], views: Mapping[int, View]) -> Iterator[str]:
    for poll in polls:
        if not any(views.get(version) == poll.view for version in range(poll.first, poll.last + 1)):
            yield f"{poll.reader} saw what no version of {poll.first}..{poll.last} shows"
