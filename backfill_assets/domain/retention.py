"""Retention: which files under `_shadow/` somebody may still need; everything else may be swept."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from backfill_assets.core.release import Manifest, StoredFile


@dataclass(frozen=True)
class Needs:
    """Everything that keeps files alive: active files, releases with their end, and folders of open or running work."""

    active: frozenset[str]
    releases: tuple[tuple[Manifest, dt.datetime], ...]
    folders: frozenset[str]

    def files(self, now: dt.datetime) -> frozenset[str]:
        """Paths that are referred to at `now`."""
        kept = {f.path for m, until in self.releases if until > now for f in (*m.added, *m.removed)}
        return self.active | kept


def collectable(stored: Iterable[StoredFile], needs: Needs, now: dt.datetime, grace: dt.timedelta) -> tuple[str, ...]:
    """The files that nobody needs: not active, in no retained release, in no folder of open work, older than `grace`."""
    needed = needs.files(now)
    return tuple(
        sorted(
            f.path
            for f in stored
            if f.path not in needed
            and not any(f.path.startswith(folder) for folder in needs.folders)
            and now - f.modified >= grace
        )
    )
