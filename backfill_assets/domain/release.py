"""Releases: which files one atomic commit puts into and takes out of a published table, and how it is undone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backfill_assets.core.release import DataFile, DaySwap, Manifest


@dataclass(frozen=True)
class RollbackPlan:
    """What undoing a release would do: days that go back, and days that somebody else has rewritten since."""

    swaps: tuple[DaySwap, ...]
    rewritten: tuple[dt.date, ...]


def plan_rollback(
    manifest: Manifest, active: Mapping[dt.date, Sequence[DataFile]], days: frozenset[dt.date] | None = None
) -> RollbackPlan:
    """Undo a release day by day: a day goes back only if its files are still the ones that the release brought.

    `active` maps each day to the files that readers see now; `days` limits the rollback to some of the release's days.
    """
    swaps, rewritten = [], []
    for swap in manifest.days:
        if days is not None and swap.day not in days:
            continue
        now = tuple(active.get(swap.day, ()))
        if {f.identity for f in now} == {f.identity for f in swap.add}:
            swaps.append(DaySwap(swap.day, now, swap.remove, swap.evidence))
        else:
            rewritten.append(swap.day)
    return RollbackPlan(tuple(swaps), tuple(rewritten))
