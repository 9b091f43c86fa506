"""Ports: what the use cases need from the outside world. Adapters live in the other rooms."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from backfill_assets.domain.campaign_ports import CampaignLedger
from backfill_assets.domain.contract import Contract
from backfill_assets.domain.deliveries import Deed, DeliveryEntry, Place
from backfill_assets.domain.evidence import DatasetDay, DayEvidence
from backfill_assets.domain.findings import DayFindings
from backfill_assets.domain.health import Lock
from backfill_assets.domain.proof_ports import ProofLedger
from backfill_assets.domain.release import Manifest, ReleaseState
from backfill_assets.domain.units import Launch, ReleaseMode, Unit, UnitState
from backfill_assets.domain.work import (
    Attempt,
    AttemptState,
    Content,
    Delivery,
    Hold,
    ReleaseHead,
    ReleaseRecord,
    StagedDay,
    Work,
)


class Clock(Protocol):
    """Time as a port."""

    def now(self) -> dt.datetime:
        """The present moment, aware, in UTC."""
        ...


class Ids(Protocol):
    """Identifiers as a port."""

    def new(self, prefix: str) -> str:
        """A fresh identifier that sorts by time and is a safe name, such as `u_20261121_101500_3f9a2c`."""
        ...


class Identity(Protocol):
    """Who is at work."""

    def name(self) -> str:
        """The user's name as the configured source gives it."""
        ...


class UnitLedger(Protocol):
    """Units, claims and holds."""

    def assign(self, launch: Launch, proposal: Unit) -> Unit:
        """Join or open a unit for a launch (`assign_unit`), claims and all, in one transaction.

        `proposal` is the unit to open if the decision is to open one; a second call with the same `opened_by` joins it.
        """
        ...

    def unit(self, unit_id: str) -> Unit:
        """The unit, or `UnitError` if there is none."""
        ...

    def units(self, dataset: str | None = None, states: Collection[UnitState] = ()) -> tuple[Unit, ...]:
        """Units, newest first, optionally only of one dataset or in some states."""
        ...

    def claims(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Which of the days are claimed, and by which unit."""
        ...

    def set_contract(self, unit_id: str, contract: Contract) -> Unit:
        """Replace the contract of an open unit."""
        ...

    def set_mode(self, unit_id: str, mode: ReleaseMode) -> Unit:
        """Change who releases an open unit."""
        ...

    def move(self, unit_id: str, allowed: Collection[UnitState], to: UnitState) -> Unit:
        """Change a unit's state if it is in one of the allowed states; `UnitError` names the state found otherwise.

        Leaving `open` frees the claims; coming back to it takes them again or raises `ClaimedDaysError`.
        """
        ...

    def hold(self, holds: Iterable[Hold]) -> None:
        """Put days on hold."""
        ...

    def lift(self, dataset: str, days: Collection[dt.date]) -> int:
        """Lift holds; the number of days that were on hold."""
        ...

    def holds(self, dataset: str, days: Collection[dt.date] | None = None) -> tuple[Hold, ...]:
        """Holds of a dataset."""
        ...


class WorkLedger(Protocol):
    """Deliveries, staged days, attempts with leases, evidence."""

    def add_deliveries(self, deliveries: Iterable[Delivery], seen: Mapping[Place, int] | None = None) -> None:
        """Record landed files of one dataset in their order, and number those that are new at their path, as `received` says.

        All in one transaction: of two landings at once each number is given once. `seen` is as in `received`.
        """
        ...

    def change_deliveries(
        self, changed: Iterable[Delivery], deed: Deed, by: str = "", reason: str = ""
    ) -> tuple[Delivery, ...]:
        """Withdraw, restore, or write down that raw has read or lost deliveries of one dataset; gives those that it changed.

        Each goes to the journal. Of a delivery that was read, the rows are taken from `changed`.
        """
        ...

    def deliveries(self, dataset: str, days: Collection[dt.date]) -> tuple[Delivery, ...]:
        """Deliveries of these delivery days, in order of landing, whether they count or not; `in_force` says which do."""
        ...

    def delivery_journal(self, dataset: str, days: Collection[dt.date]) -> tuple[DeliveryEntry, ...]:
        """What happened to the deliveries of these days after they were landed, oldest first."""
        ...

    def add_staged(self, staged: Iterable[StagedDay]) -> None:
        """Record what days were staged from, replacing what was known."""
        ...

    def staged(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, StagedDay]:
        """What days were staged from."""
        ...

    def start_attempt(self, unit: str, dataset: str, days: Sequence[dt.date], run: str, lease: dt.timedelta) -> Attempt:
        """Begin an attempt with a lease; an older running attempt of the same run on the same dataset is lost to it."""
        ...

    def renew(self, number: int, lease: dt.timedelta) -> None:
        """Prolong the lease, or `LeaseLostError` if the attempt is no longer running."""
        ...

    def charge(self, number: int, work: Work) -> None:
        """Write down what a running attempt will take, so that it counts however it ends."""
        ...

    def end_attempt(self, number: int, state: AttemptState, work: Work | None = None) -> None:
        """End an attempt that is running, with what it took if that is known; otherwise nothing happens."""
        ...

    def attempts(
        self, unit: str | None = None, state: AttemptState | None = None, run: str | None = None
    ) -> tuple[Attempt, ...]:
        """Attempts in order of their numbers."""
        ...

    def add_evidence(self, attempt: int, evidence: Iterable[DayEvidence]) -> None:
        """Store evidence, the newest of a (unit, dataset, day) counts; `LeaseLostError` if the attempt lost its lease."""
        ...

    def evidence(
        self, unit: str, dataset: str | None = None, days: Collection[dt.date] | None = None
    ) -> Mapping[DatasetDay, DayEvidence]:
        """The evidence that counts, by dataset and day, optionally only of one dataset or of some days."""
        ...

    def findings(self, dataset: str, units: Mapping[dt.date, str]) -> Mapping[dt.date, DayFindings]:
        """What the evidence that counts found of each day in the unit named for it; days without any lack.

        Several times as fast as reading the evidence itself.
        """
        ...

    def contents(self, dataset: str, layouts: Mapping[dt.date, str]) -> Mapping[dt.date, Content]:
        """What is known to be in each day's files, given their layout digests; days whose files nobody measured lack."""
        ...

    def add_contents(self, dataset: str, contents: Mapping[dt.date, tuple[str, Content]]) -> None:
        """Remember what was measured in files that somebody else wrote, by day: the layout digest and the content."""
        ...


class ReleaseLedger(Protocol):
    """Releases and locks."""

    def intend(self, manifest: Manifest) -> None:
        """Store the intent of a release before its commit."""
        ...

    def finalize(self, release: str, version: int, committed_at: dt.datetime, unit_state: UnitState) -> None:
        """Mark a release as true and move its unit, in one transaction; doing it again changes nothing."""
        ...

    def abandon(self, release: str) -> None:
        """Give up an intent that never was committed."""
        ...

    def release(self, release: str) -> ReleaseRecord:
        """The release, or `UnitError` naming what there is."""
        ...

    def releases(
        self, dataset: str | None = None, unit: str | None = None, states: Collection[ReleaseState] = ()
    ) -> tuple[ReleaseRecord, ...]:
        """Releases, newest first by their numbers, optionally only those of one dataset, of one unit or in some states."""
        ...

    def heads(self) -> Mapping[str, ReleaseHead]:
        """How every release stands, by its name; without the manifests, which are long."""
        ...

    def lock(self, name: str, wait: dt.timedelta) -> AbstractContextManager[int]:
        """Hold a named lock (a lease kept fresh while held); yields its fencing token.

        `LedgerError` names the holder if the lock cannot be had within `wait`.
        """
        ...

    def locks(self) -> tuple[Lock, ...]:
        """Locks that are held, or whose holder died before it let go, by name."""
        ...


class Ledger(UnitLedger, WorkLedger, ReleaseLedger, CampaignLedger, ProofLedger, Protocol):
    """The control state, whole."""
