"""The sweep: finds files under `_shadow/` that are no longer needed, and deletes them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from backfill_assets.campaign.plan import shown_bytes
from backfill_assets.campaign.state import Phase
from backfill_assets.core.errors import LayoutError, PreconditionError, StorageError
from backfill_assets.core.release import (
    AHEAD,
    EXTRA,
    SHADOW,
    ReleaseState,
    StoredFile,
    restorable_until,
    shadow_of,
)
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import AttemptState, ReleaseRecord, UnitState
from backfill_assets.delta.opening import LOG
from backfill_assets.delta.reading import SEALED
from backfill_assets.delta.table import PublishedTable
from backfill_assets.release.finish import WAIT, publish_locks
from backfill_assets.warehouse import OnWarehouse

GRACE = dt.timedelta(hours=1)
"""The minimum age of a file before the sweep may delete it."""

SIGNED_OFF = frozenset({Phase.closed, Phase.cleaned})
"""Phases of a campaign after its sign-off."""

_MOST_PATHS = 20


@dataclass(frozen=True)
class Swept:
    """The files of one dataset that are not needed, relative to the published table, and their size in bytes.

    `problem` says why its table was left alone, or empty.
    """

    dataset: str
    paths: tuple[str, ...]
    size: int
    problem: str = ""

    def listed(self, what: str) -> str:
        """Text: number and size of the files, `what` happens to them, and the first paths, one per line; or the problem."""
        if self.problem:
            return f"{self.dataset}: left alone: {self.problem}"
        head = f"{self.dataset}: {number_of(len(self.paths), 'file')} ({shown_bytes(self.size)}) {what}"
        paths = [f"  {path}" for path in self.paths[:_MOST_PATHS]]
        more = [f"  … {len(self.paths) - _MOST_PATHS:,} more"] if len(self.paths) > _MOST_PATHS else []
        return "\n".join([head, *paths, *more])


@dataclass(frozen=True)
class Sweep(OnWarehouse):
    """Deletes files that no reader, no release in its window, no open unit and no campaign before its sign-off needs.

    `over` are units of campaigns that count as signed off although they are not yet.
    """

    grace: dt.timedelta = GRACE
    wait: dt.timedelta = WAIT
    over: frozenset[str] = frozenset()

    def plan(self, at: dt.datetime | None = None, but: Collection[str] = frozenset()) -> tuple[Swept, ...]:
        """Existing files that a sweep would delete now or `at` a later time, without the paths `but`; deletes none."""
        return tuple(
            _in_reach(name, partial(self._decide, name, at or self.clock.now(), but)) for name in sorted(self.tables)
        )

    def execute(self) -> tuple[Swept, ...]:
        """Delete what is not needed; holds the publish lock of each dataset while it decides and deletes.

        A table that cannot be read is left alone.

        Raises:
            LedgerError: a release of one of the datasets takes too long.
        """
        return tuple(_in_reach(name, partial(self._deleted, name)) for name in sorted(self.tables))

    def _deleted(self, name: str) -> Swept:
        with publish_locks(self.ledger, (name,), self.wait):
            swept = self._decide(name, self.clock.now())
            self.tables[name].delete(swept.paths)
        return swept

    def _decide(self, name: str, now: dt.datetime, but: Collection[str] = frozenset()) -> Swept:
        # List files before reading what is needed: work that begins in between is not in the list.
        stored = [file for file in self.tables[name].stored_files() if file.path not in but]
        if not stored:
            return Swept(name, (), 0)
        # Read before the releases: a unit that is released in between still counts as being worked on.
        at_work = tuple(self._folders_at_work(name))
        files = self._needed_files(name, now)
        folders = (*at_work, *_logs_of(files, stored))
        left = [
            file
            for file in stored
            if file.path not in files and not file.path.startswith(folders) and now - file.modified >= self.grace
        ]
        return Swept(name, tuple(sorted(file.path for file in left)), sum(file.size for file in left))

    def _needed_files(self, name: str, now: dt.datetime) -> frozenset[str]:
        """Files that readers see or may still read, and files that releases within their windows added or replaced."""
        table, waiting = self.tables[name], self._waiting()
        window, records = table.keep_for + EXTRA, self.ledger.releases(name)
        if not table.exists() and any(r.state is ReleaseState.finalized for r in records):
            raise PreconditionError(
                f"{name} has releases, and its published table has no log: nothing is deleted; restore its log from a backup"
            )
        kept = [r.manifest for r in records if _until(r, window, now, waiting) > now]
        active = {f.path for files in table.active().values() for f in files}
        # Also files that left the table in other ways (a compaction): readers may still use the earlier version.
        recent = table.removed_since(now - window) - self._dated_ahead(table, records, now)
        return recent | active | {f.path for m in kept for f in (*m.added, *m.removed)}

    def _folders_at_work(self, name: str) -> Iterator[str]:
        """The folders of open units and of running attempts."""
        yield from (f"{SHADOW}/{unit.id}/" for unit in self.ledger.units(name, {UnitState.open}))
        yield from (f"{attempt.folder}/" for attempt in self.ledger.attempts(state=AttemptState.running))

    def _dated_ahead(self, table: PublishedTable, records: Sequence[ReleaseRecord], now: dt.datetime) -> frozenset[str]:
        """Files removed with a date in the future by releases whose real time is known: their windows count instead."""
        known = {f.path for record in records if record.corrected for f in record.manifest.removed}
        return frozenset(known & table.removed_since(now + AHEAD)) if known else frozenset()

    def _waiting(self) -> frozenset[str]:
        """Units of campaigns without a sign-off: their releases can be undone at any age."""
        campaigns = self.ledger.campaigns()
        return frozenset(c.unit for c in campaigns if c.unit and c.phase not in SIGNED_OFF) - self.over


def _in_reach(name: str, sweep: Callable[[], Swept]) -> Swept:
    """What `sweep` returns, or the problem of its table, which must not keep the others from being swept."""
    try:
        return sweep()
    except (LayoutError, PreconditionError, StorageError, OSError) as error:
        return Swept(name, (), 0, str(error))


def _until(record: ReleaseRecord, window: dt.timedelta, now: dt.datetime, waiting: frozenset[str]) -> dt.datetime:
    if record.state is ReleaseState.abandoned:
        return now
    if record.since is None or record.manifest.unit in waiting:
        # An intent may still turn out to be committed.
        return dt.datetime.max.replace(tzinfo=dt.UTC)
    return restorable_until(record.since, window)


def _logs_of(kept: Iterable[str], stored: Sequence[StoredFile]) -> frozenset[str]:
    """The logs of shadows that keep files: publishing these files again compares the schema."""
    shadows = {shadow_of(path) for path in kept if path.startswith(f"{SHADOW}/")}
    present = {shadow_of(f.path) for f in stored}
    return frozenset(f"{shadow}/{log}/" for shadow in shadows & present for log in (SEALED, LOG))
