"""Compares the figures of consumers before a release, right after it, and now."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from backfill_assets.campaign.specification import Notice
from backfill_assets.campaign.state import Campaign
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import DatasetError, TimeTravelError, UnitError
from backfill_assets.core.expected_change import ROUNDING, UNCHANGED, Contract
from backfill_assets.core.measured import Figures
from backfill_assets.core.release import ReleaseKind, restorable_until
from backfill_assets.core.unit import ReleaseRecord
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.sources import Consumer
from backfill_assets.delta.table import PublishedTable
from backfill_assets.warehouse import OnWarehouse


@dataclass(frozen=True)
class Watched:
    """One figure of a consumer before the release, right after it, and now; `tolerance` is a fraction."""

    consumer: str
    figure: str
    before: Decimal | None
    after: Decimal | None
    now: Decimal | None
    tolerance: Decimal
    drifted: bool


@dataclass(frozen=True)
class Moments:
    """The figures that consumers read from the table, by consumer: before a release, right after it, and now."""

    before: Mapping[str, Figures]
    after: Mapping[str, Figures]
    now: Mapping[str, Figures]


def expects_change(contract: Contract) -> bool:
    """Whether a contract expects any metric to change."""
    return any(change != UNCHANGED for clause in contract.clauses for change in clause.metrics.values())


def watched(consumers: Mapping[str, Consumer], moments: Moments, *, change_expected: bool) -> tuple[Watched, ...]:
    """Compare each figure of each consumer with what it should be now, in the order of `dataset.yaml`.

    That is the figure right after the release if a change was expected, and otherwise the figure before it.
    """
    found = []
    for name, consumer in consumers.items():
        before, after, now = (side.get(name, {}) for side in (moments.before, moments.after, moments.now))
        for figure in dict.fromkeys([*after, *before, *now]):
            values = before.get(figure), after.get(figure), now.get(figure)
            should = values[1] if change_expected else values[0]
            drifted = drifts(should, values[2], consumer.tolerance)
            found.append(Watched(name, figure, *values, consumer.tolerance, drifted))
    return tuple(found)


def drifts(should: Decimal | None, now: Decimal | None, tolerance: Decimal) -> bool:
    """Whether a figure differs from what it should be by more than `tolerance`, a fraction of that; ignores rounding.

    A missing figure equals only a missing one; NaN and infinity equal only themselves.
    """
    if should is None or now is None or not should.is_finite() or not now.is_finite():
        same = should is now is None or (should is not None and now is not None and str(should) == str(now))
        return not same
    slack = ROUNDING * max(abs(should), abs(now))
    return abs(now - should) > tolerance * abs(should) + slack


class ConsumerQueries(Protocol):
    """Runs the queries of a dataset's consumers on any version of its published table."""

    def figures(self, dataset: str, versions: Sequence[int], through: dt.date) -> Mapping[int, Mapping[str, Figures]]:
        """The figures of each consumer's query over the days up to `through`, by version and consumer.

        Raises:
            DatasetError: a query of dataset.yaml fails, or does not return one row of numbers.
        """
        ...


@dataclass(frozen=True)
class ReleaseWatch:
    """How consumers' figures changed since a release, over the days up to `through`, and how to undo the release.

    `rollback` is the command to run; it is empty from `until` on, when the release can no longer be undone.
    """

    release: str
    dataset: str
    through: dt.date
    change_expected: bool
    figures: tuple[Watched, ...]
    rollback: str
    until: dt.datetime

    @property
    def drifted(self) -> tuple[Watched, ...]:
        """The figures that drifted beyond their tolerance."""
        return tuple(w for w in self.figures if w.drifted)

    def __str__(self) -> str:
        """What drifted and how to undo the release; one line if nothing drifted."""
        if not self.drifted:
            return f"{self.release} ({self.dataset}): no consumer's figures have drifted"
        base = "after it" if self.change_expected else "before it"
        lines = [
            f"{self.release} ({self.dataset}): figures that consumers read have drifted from what they were {base}"
        ]
        lines += [
            f"  {w.consumer} {w.figure}: before {_shown(w.before)}, after {_shown(w.after)}, now {_shown(w.now)}"
            for w in self.drifted
        ]
        undo = f"undo the release until {self.until:%Y-%m-%d %H:%M} UTC with: {self.rollback}"
        gone = f"the release could be undone until {self.until:%Y-%m-%d %H:%M} UTC: build the days again"
        return "\n".join([*lines, undo if self.rollback else gone])


@dataclass(frozen=True)
class WatchRelease(OnWarehouse):
    """Compares consumers' figures around a release and reports those that drifted; changes nothing."""

    queries: ConsumerQueries
    notify: Callable[[Campaign, Notice, str], object]

    def watch(self, release_id: str) -> ReleaseWatch:
        """The figures of every consumer of the release's dataset, in the table as it was and as it is.

        Leaves out days after the release: they are no drift. If figures of a campaign's release drifted, the people in
        its specification get a notice with the command that undoes it.

        Raises:
            UnitError: there is no such release, or it is a rollback or a baseline.
            DatasetError: the dataset lists no consumers, or one of their queries fails.
            TimeTravelError: the release was never committed, or its files or the earlier ones have been cleaned up.
        """
        record = self.ledger.release(release_id)
        manifest = record.manifest
        if manifest.kind is ReleaseKind.baseline:
            raise UnitError(f"release {release_id} is a baseline, which changed nothing; watch a release after it")
        if manifest.kind is not ReleaseKind.publish:
            raise UnitError(f"release {release_id} is a rollback; watch the release that it undid: {manifest.undoes}")
        loaded, table = self._loaded(manifest.dataset), self.tables[manifest.dataset]
        after = table.committed(release_id)
        if after is None:
            raise TimeTravelError(
                f"release {release_id} was never committed ({record.state.value}); see: backfill releases"
            )
        versions = (after - 1, after, table.version())
        for version in versions[:2]:
            self._require_whole(table, record, version)
        through = max([*table.at(after), *(swap.day for swap in manifest.days)])
        found = self.queries.figures(manifest.dataset, versions, through)
        moments = Moments(*(found[version] for version in versions))
        expected = expects_change(self._contract(record))
        figures = watched(loaded.dataset.consumers, moments, change_expected=expected)
        until = restorable_until(record.since or manifest.created_at, table.keep_for)
        undo = f"backfill rollback {release_id} --reason '…'" if self.clock.now() < until else ""
        seen = ReleaseWatch(release_id, manifest.dataset, through, expected, figures, undo, until)
        campaign = self.ledger.campaign_of(manifest.unit)
        if seen.drifted and campaign is not None:
            self.notify(campaign, Notice.drifted, f"{campaign.id}: {seen}")
        return seen

    def _loaded(self, name: str) -> LoadedDataset:
        if name not in self.datasets:
            raise DatasetError(f"dataset {name!r} is not loaded; put its folder back, or repair its dataset.yaml")
        loaded = self.datasets[name]
        if not loaded.dataset.consumers:
            raise DatasetError(
                f"{loaded.folder / 'dataset.yaml'}: consumers is empty; name who reads {name}, with a query for each"
            )
        return loaded

    def _require_whole(self, table: PublishedTable, record: ReleaseRecord, version: int) -> None:
        release = record.manifest.release
        if lost := table.missing_files(f for files in table.at(version).values() for f in files):
            raise TimeTravelError(
                f"release {release}: version {version} of {record.manifest.dataset} can no longer be read completely "
                f"({format_days({f.day for f in lost}, most=3)} cleaned up), so there is nothing to compare with"
            )

    def _contract(self, record: ReleaseRecord) -> Contract:
        try:
            return self.ledger.unit(record.manifest.unit).contract.of(record.manifest.dataset)
        except UnitError:
            # A ledger rebuilt from manifests has no units.
            return Contract()


def _shown(value: Decimal | None) -> str:
    return "nothing" if value is None else f"{value:,f}"
