"""What stands published: the release that each day shows, also where that release brought no row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence

from backfill_assets.core.release import Manifest, ReleaseKind, ReleaseState
from backfill_assets.core.unit import ReleaseRecord
from backfill_assets.delta.table import PublishedTable
from backfill_assets.ledger.ledger import Ledger


def effective(records: Sequence[ReleaseRecord]) -> Mapping[dt.date, Manifest]:
    """The release whose state each day should show: the newest one that has not been rolled back for that day.

    `records` are all releases of one dataset, newest first.
    """
    stacks: dict[dt.date, list[Manifest]] = {}
    for record in reversed(records):
        manifest = record.manifest
        if record.state is not ReleaseState.finalized:
            continue
        for swap in manifest.days:
            stack = stacks.setdefault(swap.day, [])
            names = [below.release for below in stack]
            if manifest.kind is ReleaseKind.publish:
                stack.append(manifest)
            elif manifest.undoes in names:
                # Whatever a ledger holds on top of it went with it.
                del stack[names.index(manifest.undoes) :]
    return {day: stack[-1] for day, stack in stacks.items() if stack}


def published_among(
    ledger: Ledger, table: PublishedTable, dataset: str, days: Collection[dt.date]
) -> frozenset[dt.date]:
    """Those of the days that are published: readers see rows of them, or a release said that they have none."""
    active = table.active(days) if days and table.exists() else {}
    filled = frozenset(day for day, files in active.items() if files)
    rest = frozenset(days) - filled
    # Manifests of long histories are big: they are read only for days without a file.
    return filled | (rest & effective(ledger.releases(dataset)).keys() if rest else frozenset())
