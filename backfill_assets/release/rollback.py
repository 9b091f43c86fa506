"""Undoes a release day by day: the days return to their previous files in one commit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import BackfillError, PreconditionError, RollbackError
from backfill_assets.core.release import DataFile, DaySwap, Manifest, ReleaseKind, ReleaseState, restorable_until
from backfill_assets.core.unit import ReleaseRecord, UnitState
from backfill_assets.delta.table import PublishedTable
from backfill_assets.evidence.contents import effective
from backfill_assets.release.finish import (
    WAIT,
    After,
    Checkpoint,
    Finisher,
    commit_alone,
    in_rounds,
    no_after,
    no_checkpoint,
    require_tables,
    unit_or_none,
)
from backfill_assets.release.reconcile import Reconcile
from backfill_assets.warehouse import OnWarehouse

SetOfDays = frozenset[dt.date]


@dataclass(frozen=True)
class Covered:
    """Days that show a later release."""

    release: Manifest
    days: tuple[dt.date, ...]

    def __str__(self) -> str:
        """One line of text with the remedy."""
        later = self.release
        if later.kind is ReleaseKind.baseline:
            return (
                f"{format_days(self.days)} show what another writer brought ({later.release}, accepted by {later.by}, "
                f"{later.created_at:%Y-%m-%d %H:%M:%S} UTC), which cannot be undone; build these days again instead"
            )
        return (
            f"{format_days(self.days)} show the later release {later.release} ({later.by}, {later.created_at:%Y-%m-%d %H:%M:%S} "
            f"UTC); roll that one back first: backfill rollback {later.release} --reason '…'"
        )


@dataclass(frozen=True)
class Proposal:
    """What a rollback would do.

    `swaps` go back. `rewritten` days show data that no release brought; they go back only with consent (`consentable`
    holds their swaps). `covered` days show later releases, which have to be rolled back first. `restored` days are
    already as they were before the release. `missing` files are needed but gone.
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

    def chosen(self, consent: SetOfDays) -> tuple[DaySwap, ...]:
        """The swaps that go back with consent to these rewritten days, in order."""
        agreed = (swap for swap in self.consentable if swap.day in consent)
        return tuple(sorted((*self.swaps, *agreed), key=lambda swap: swap.day))

    def left(self, consent: SetOfDays) -> tuple[dt.date, ...]:
        """The days of the release that a rollback would leave as they are, although they differ from before it."""
        here = {*self.rewritten, *(day for covered in self.covered for day in covered.days)}
        return tuple(sorted(here - days_of(self.chosen(consent))))


def later_releases(
    records: Sequence[ReleaseRecord], release: str, top: Mapping[dt.date, Manifest], days: Iterable[dt.date]
) -> tuple[Covered, ...]:
    """Which of these days show a release later than this one, latest first.

    `records` are all releases of the dataset, newest first; `top` says which of them each day shows.
    """
    names = [record.manifest.release for record in records]
    later, found = frozenset(names[: names.index(release)]), dict[str, list[dt.date]]()
    for day in sorted(days):
        if day in top and top[day].release in later:
            found.setdefault(top[day].release, []).append(day)
    manifests = (record.manifest for record in records)
    return tuple(Covered(m, tuple(found[m.release])) for m in manifests if m.release in found)


def days_of(swaps: Sequence[DaySwap]) -> SetOfDays:
    """The days of some swaps."""
    return frozenset(swap.day for swap in swaps)


def undoing(
    manifest: Manifest, active: Mapping[dt.date, Sequence[DataFile]], days: SetOfDays | None = None
) -> tuple[DaySwap, ...]:
    """The swaps that undo a release: a day goes back only if it still has the files that the release added.

    `active` maps each day to the files that readers see now; `days` limits the rollback to some of the release's days.
    """
    return tuple(
        DaySwap(swap.day, tuple(active.get(swap.day, ())), swap.remove, swap.evidence)
        for swap in manifest.days
        if (days is None or swap.day in days) and _same(active.get(swap.day, ()), swap.add)
    )


@dataclass(frozen=True)
class RolledBack:
    """A completed rollback: its own release, the one it undid, the days that went back, and those left as they are."""

    release: str
    undoes: str
    dataset: str
    unit: str
    version: int
    days: tuple[dt.date, ...]
    left: tuple[dt.date, ...]


@dataclass(frozen=True)
class Rollback(OnWarehouse):
    """Undoes releases day by day while they are restorable."""

    wait: dt.timedelta = WAIT
    checkpoint: Checkpoint = no_checkpoint
    after: After = no_after

    def plan(self, release_id: str, days: SetOfDays | None = None) -> Proposal:
        """What rolling back a release, or some of its days, would do now; changes nothing.

        Raises:
            UnitError: there is no such release.
            RollbackError: the release can no longer be rolled back, does not have all of these days, or the ledger has
                another manifest than the committed one.
        """
        record = self.ledger.release(release_id)
        manifest = record.manifest
        require_tables(self.tables, (manifest.dataset,))
        table = self.tables[manifest.dataset]
        until = self._window(record, table.keep_for)
        _require_own_days(manifest, days)
        _require_committed(record, table)
        version = table.version()
        active = table.active({swap.day for swap in manifest.days})
        records = self.ledger.releases(manifest.dataset)
        top = effective(records)
        swaps = tuple(s for s in undoing(manifest, active, days) if s.day in top and top[s.day].release == release_id)
        returning = days_of(swaps)
        others = [s for s in manifest.days if (days is None or s.day in days) and s.day not in returning]
        back = {s.day for s in others if _same(active.get(s.day, ()), s.remove)}
        covered = later_releases(records, release_id, top, (s.day for s in others if s.day not in back))
        known = back.union(*(c.days for c in covered))
        rewritten = [s for s in others if s.day not in known]
        consentable = tuple(
            DaySwap(s.day, tuple(active.get(s.day, ())), s.remove, s.evidence)
            for s in rewritten
            if not {f.path for f in active.get(s.day, ())} & {f.path for f in s.remove}
        )
        missing = table.missing_files(f for s in swaps for f in s.add)
        left = tuple(s.day for s in rewritten)
        return Proposal(record, version, swaps, left, consentable, covered, tuple(sorted(back)), missing, until)

    def refusals(self, proposal: Proposal, consent: SetOfDays = frozenset()) -> tuple[BackfillError, ...]:
        """Every reason why a proposal cannot be executed with consent to these rewritten days; changes nothing."""
        release, table = proposal.record.manifest.release, self.tables[proposal.record.manifest.dataset]
        found = [str(c) for c in proposal.covered if consent & set(c.days)]
        if mixed := consent & set(proposal.rewritten) - days_of(proposal.consentable):
            found.append(
                f"{format_days(mixed)} hold some of the files to restore mixed with other files; "
                "build these days again instead"
            )
        swaps = proposal.chosen(consent)
        if not swaps and not found:
            found.append(f"nothing to roll back: {'; '.join(self._reasons(proposal))}")
        if missing := table.missing_files(f for swap in swaps for f in swap.add):
            names = ", ".join(f"{f.path} ({f.size} bytes)" for f in missing[:5])
            found.append(
                f"{len(missing)} files to restore are gone or altered: {names}; "
                f"nothing was changed. Roll back without {format_days(f.day for f in missing)}, or build these days again"
            )
        if found:
            return tuple(RollbackError(f"release {release}: {text}") for text in found)
        back = replace(proposal.record.manifest, kind=ReleaseKind.rollback, days=swaps, undoes=release)
        try:
            table.verify(back, proposal.version)
        except PreconditionError as error:
            return (error,)
        return ()

    def execute(
        self, release_id: str, reason: str, *, days: SetOfDays | None = None, consent_rewritten: SetOfDays = frozenset()
    ) -> RolledBack:
        """Roll back a release, or some of its days, and put the days on hold so that live runs leave them alone.

        Days that were rewritten since stay as they are unless `consent_rewritten` names them. Days that show a later
        release stay until that release is rolled back.

        Raises:
            UnitError: there is no such release.
            RollbackError: nothing can be restored, needed files are gone, or the consent names days that show a later
                release; says which and why.
            PreconditionError: the table has changed in a way that no release fits, such as by a new rule.
            TableMovedError: other writers committed to the table during every attempt.
        """
        undone = self.ledger.release(release_id).manifest
        dataset = undone.dataset
        require_tables(self.tables, (dataset,))
        # An earlier rollback of it may have died before its follow-up.
        if earlier := [r.manifest.release for r in self._undoings(undone)]:
            self.after(earlier)
        reconcile = Reconcile(self.warehouse, self.after)
        unit = unit_or_none(self.ledger, undone.unit)
        # Datasets of one unit go back one after the other: only the last rollback sees that no day is left.
        together = {dataset, *(unit.targets if unit else ())}
        with reconcile.settled((dataset,), together, self.wait):
            done = in_rounds(lambda: self._execute(self.plan(release_id, days), reason, consent_rewritten))
        self.after((done.release,))
        return done

    def _execute(self, proposal: Proposal, reason: str, consent: SetOfDays) -> RolledBack:
        if refusals := self.refusals(proposal, consent):
            raise refusals[0]
        swaps = proposal.chosen(consent)
        manifest = self._manifest(proposal.record.manifest, swaps, reason)
        version = commit_alone(self.warehouse, manifest, proposal.version, self.checkpoint, self.after)
        Finisher(self.warehouse).rollback(manifest, version)
        self.checkpoint("finalize")
        done, left = tuple(s.day for s in swaps), proposal.left(consent)
        return RolledBack(manifest.release, manifest.undoes, manifest.dataset, manifest.unit, version, done, left)

    def _manifest(self, undone: Manifest, swaps: tuple[DaySwap, ...], reason: str) -> Manifest:
        return Manifest(
            release=self.ids.new("r"),
            kind=ReleaseKind.rollback,
            dataset=undone.dataset,
            unit=undone.unit,
            by=self.identity.name(),
            created_at=self.clock.now(),
            evidence=undone.evidence,
            code_version=undone.code_version,
            days=swaps,
            reason=reason,
            undoes=undone.release,
            campaign=undone.campaign,
            source_range=undone.source_range,
        )

    def _reasons(self, proposal: Proposal) -> list[str]:
        """Why there is nothing to roll back."""
        reasons = []
        if proposal.restored:
            days = format_days(proposal.restored)
            reasons.append(f"{days} are already as they were before it{self._undone(proposal)}")
        if proposal.rewritten:
            days = format_days(proposal.rewritten)
            reasons.append(
                f"{days} were rewritten since; to restore them anyway, consent to each of them (--include-rewritten)"
            )
        return reasons + [str(covered) for covered in proposal.covered]

    def _undone(self, proposal: Proposal) -> str:
        """The earlier rollback of this release, if there is one."""
        undoings = self._undoings(proposal.record.manifest)
        if not undoings:
            return ""
        found = undoings[0].manifest
        return (
            f" ({found.release}, rolled back by {found.by} at {found.created_at:%Y-%m-%d %H:%M:%S} UTC: {found.reason})"
        )

    def _undoings(self, undone: Manifest) -> tuple[ReleaseRecord, ...]:
        """The finalized rollbacks of a release, newest first."""
        # A rollback belongs to the unit of the release that it undoes; a unit has far fewer releases than a dataset.
        found = self.ledger.releases(unit=undone.unit, states={ReleaseState.finalized})
        return tuple(r for r in found if r.manifest.undoes == undone.release)

    def _window(self, record: ReleaseRecord, keep_for: dt.timedelta) -> dt.datetime:
        release = record.manifest.release
        if record.manifest.kind is ReleaseKind.baseline:
            raise RollbackError(
                f"release {release} is a baseline: nothing is known of what was before it. To give the table back: "
                f"backfill unadopt {record.manifest.dataset}"
            )
        if record.manifest.kind is not ReleaseKind.publish:
            raise RollbackError(f"release {release} is itself a rollback; {self._instead(record.manifest)}")
        if record.state is not ReleaseState.finalized or record.since is None:
            raise RollbackError(f"release {release} is {record.state.value}, not finalized; see: backfill releases")
        until = restorable_until(record.since, keep_for)
        if self.clock.now() >= until:
            raise RollbackError(
                f"release {release} was restorable until {until:%Y-%m-%d %H:%M} UTC (retention.keep_for in dataset.yaml); "
                "its files may be gone: build the days again and publish them"
            )
        return until

    def _instead(self, manifest: Manifest) -> str:
        unit = unit_or_none(self.ledger, manifest.unit)
        if unit is not None and unit.state is UnitState.rolled_back:
            return f"publish its unit again instead: backfill publish {unit.id}"
        days = format_days(swap.day for swap in manifest.days)
        return f"to publish these days again, launch {manifest.dataset} {days}"


def _require_own_days(manifest: Manifest, days: SetOfDays | None) -> None:
    strange = (days or frozenset()) - days_of(manifest.days)
    if strange:
        raise RollbackError(
            f"release {manifest.release} does not have {manifest.dataset} {format_days(strange)}; "
            f"it has {format_days(s.day for s in manifest.days)}"
        )


def _require_committed(record: ReleaseRecord, table: PublishedTable) -> None:
    manifest, version = record.manifest, table.committed(record.manifest.release)
    version = record.version if version is None else version
    committed = "" if version is None else table.manifest_at(version, manifest.release)
    if committed not in {"", manifest.hash}:
        raise RollbackError(
            f"release {manifest.release}: its manifest in the ledger ({manifest.hash[:16]}) is not the one that was "
            f"committed ({committed[:16]}): it was altered, so it restores nothing. Restore the ledger from a backup"
        )


def _same(one: Sequence[DataFile], other: Sequence[DataFile]) -> bool:
    return {f.identity for f in one} == {f.identity for f in other}
