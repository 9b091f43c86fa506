"""Time travel: which version of a published table a release made, and whether it can still be read whole."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import TimeTravelError
from backfill_assets.core.release import EXTRA, ReleaseKind, restorable_until
from backfill_assets.delta.table import PublishedTable
from backfill_assets.ledger.ledger import Ledger


@dataclass(frozen=True)
class ReleasedVersion:
    """The whole table as it was right after a release, and until when nothing cleans that version up."""

    release: str
    kind: ReleaseKind
    dataset: str
    version: int
    released_at: dt.datetime
    kept_until: dt.datetime


@dataclass(frozen=True)
class TimeTravel:
    """Finds the version that a release made, for readers who want the table as it was then."""

    ledger: Ledger
    tables: Mapping[str, PublishedTable]

    def to_release(self, dataset: str, release: str) -> ReleasedVersion:
        """The version of a dataset's published table that a release (or a rollback) made; every file of it is there.

        Raises:
            UnitError: there is no such release.
            TimeTravelError: the release is another dataset's or was never committed, or its version has been cleaned up.
        """
        record = self.ledger.release(release)
        manifest, table = record.manifest, self.tables[dataset]
        if manifest.dataset != dataset:
            raise TimeTravelError(
                f"release {release} is one of {manifest.dataset}, not of {dataset}; see: backfill releases {dataset}"
            )
        # The log is the truth: the ledger may not have heard of a commit whose run died right after it.
        version = table.committed(release)
        if version is None:
            raise TimeTravelError(
                f"release {release} of {dataset} was never committed ({record.state.value}), so no version shows it; "
                f"see: backfill releases {dataset}"
            )
        self._require_whole(dataset, release, version)
        at, since = record.committed_at or manifest.created_at, record.since or manifest.created_at
        return ReleasedVersion(
            release, manifest.kind, dataset, version, at, restorable_until(since, table.keep_for + EXTRA)
        )

    def _require_whole(self, dataset: str, release: str, version: int) -> None:
        table = self.tables[dataset]
        needed = [file for files in table.at(version).values() for file in files]
        if lost := table.missing_files(needed):
            raise TimeTravelError(
                f"release {release}: version {version} of {dataset} can no longer be read whole, "
                f"{len(lost)} of its {len(needed)} files have been cleaned up ({format_days({f.day for f in lost}, most=3)}); "
                f"read the newest version, at: backfill path {dataset}"
            )
