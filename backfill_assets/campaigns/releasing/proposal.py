"""What a rollback would do, day by day: what goes back, what stays, and which later releases come first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from backfill_assets.core.days import format_days
from backfill_assets.core.release import DataFile, DaySwap, Manifest
from backfill_assets.core.unit import ReleaseRecord

Days = frozenset[dt.date]


@dataclass(frozen=True)
class Covered:
    """Days that show a later release."""

    release: Manifest
    days: tuple[dt.date, ...]

    def __str__(self) -> str:
        """One line for people, with the way out."""
        later = self.release
        return (
            f"{format_days(self.days)} show the later release {later.release} ({later.by}, {later.created_at:%Y-%m-%d %H:%M:%S} "
            f"UTC); roll that one back first: backfill rollback {later.release} --reason '…'"
        )


@dataclass(frozen=True)
class Proposal:
    """What a rollback would do.

    `swaps` go back; `rewritten` days show what no release brought and go back only with consent (`consentable` holds
    their swaps); `covered` days show later releases, each of which has to be rolled back first; `restored` days are as
    they were before already; `missing` are files that would be needed and are gone.
    """

    record: ReleaseRecord
    version: int
    swaps: tuple[DaySwap, ...]
    rewritten: tuple[dt.date, ...]
    consentable: tuple[DaySwap, ...]
    covered: tuple[Covered, ...]
    restored: tuple[dt.date, ...]
    missing: tuple[DataFile, ...]
    until: dt.datetime

    def chosen(self, consent: Days) -> tuple[DaySwap, ...]:
        """What goes back if somebody consents to these rewritten days, in order."""
        agreed = (swap for swap in self.consentable if swap.day in consent)
        return tuple(sorted((*self.swaps, *agreed), key=lambda swap: swap.day))

    def left(self, consent: Days) -> tuple[dt.date, ...]:
        """The days that would stay although the release brought them and they are not what they were before it."""
        here = {*self.rewritten, *(day for covered in self.covered for day in covered.days)}
        return tuple(sorted(here - days_of(self.chosen(consent))))


def later_releases(
    records: Sequence[ReleaseRecord], release: str, top: Mapping[dt.date, Manifest], days: Iterable[dt.date]
) -> tuple[Covered, ...]:
    """Which of these days show a release that is later than this one, the latest first.

    `records` are all releases of the dataset, newest first, `top` says which of them each day shows.
    """
    names = [record.manifest.release for record in records]
    later, found = frozenset(names[: names.index(release)]), dict[str, list[dt.date]]()
    for day in sorted(days):
        if day in top and top[day].release in later:
            found.setdefault(top[day].release, []).append(day)
    manifests = (record.manifest for record in records)
    return tuple(Covered(m, tuple(found[m.release])) for m in manifests if m.release in found)


def days_of(swaps: Sequence[DaySwap]) -> Days:
    """The days of some swaps."""
    return frozenset(swap.day for swap in swaps)
