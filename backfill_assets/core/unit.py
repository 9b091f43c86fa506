"""Units, attempts and holds: who may work on a day, what was done, which unit a launch belongs to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from backfill_assets.core.days import days_argument, format_days
from backfill_assets.core.errors import ClaimedDaysError, HeldDaysError, UnitError
from backfill_assets.core.evidence import DatasetDay, shadow_folder
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.layers import Layer
from backfill_assets.core.release import Manifest, ReleaseKind, ReleaseState


class LateData(StrEnum):
    """What a live run does with a day that an open unit has claimed: wait, or publish and make the day stale."""

    hold = "hold"
    publish = "publish"


UNIT_TAG = "backfill_assets/unit"
"""Run tag that names the unit a launch belongs to."""
LIVE_TAG = "backfill_assets/live"
"""Run tag of the live pipeline; its value is `true`."""
CONTRACT_TAG = "backfill_assets/expected_change"
"""Run tag that names a YAML file with the expected change, or holds it as JSON."""
REASON_TAG = "backfill_assets/reason"
"""Run tag that says why the days are built again; kept in the history of the release that the launch makes."""
OPENED_BY = "campaign:"
"""What the `opened_by` of a campaign's unit begins with, before the campaign's id."""
CATCH_UP = "catch_up:"
"""What the `opened_by` of a unit that fills gaps begins with, before `DATASET/DAYS/CODE/ID`: the first dataset of the release
group, the most days that the unit could have, and a digest of the group's code."""


class UnitState(StrEnum):
    """The state of a unit. Only an open unit holds claims."""

    open = "open"
    published = "published"
    rolled_back = "rolled_back"
    discarded = "discarded"


class ReleaseMode(StrEnum):
    """Who releases a complete unit: the run that completes it, or a separate step."""

    auto = "auto"
    manual = "manual"


@dataclass(frozen=True)
class Unit:
    """What is released together: days of one or several datasets.

    `opened_by` is the Dagster backfill or run that opened it (unique); `targets` maps each dataset to its days.
    """

    id: str
    opened_by: str
    opened_at: dt.datetime
    by: str
    targets: Mapping[str, tuple[dt.date, ...]]
    mode: ReleaseMode
    contract: Contract = field(default_factory=Contract)
    state: UnitState = UnitState.open
    live: bool = False

    @property
    def days(self) -> tuple[DatasetDay, ...]:
        """Every (dataset, day) of the unit in order."""
        return tuple((name, day) for name in sorted(self.targets) for day in sorted(self.targets[name]))

    @property
    def campaign(self) -> str:
        """The campaign that opened it, even if its launch was not completed; empty for a unit without a campaign."""
        return self.opened_by.removeprefix(OPENED_BY).partition("/")[0] if self.opened_by.startswith(OPENED_BY) else ""

    @property
    def catches_up(self) -> bool:
        """Whether the sensor `catch_up` opened it, and launches its backfills."""
        return self.opened_by.startswith(CATCH_UP)

    @property
    def handle(self) -> str:
        """Its name in commands: the campaign that it belongs to, otherwise its own id."""
        return self.campaign or self.id

    def moved(self, state: UnitState) -> Unit:
        """The same unit in another state."""
        return replace(self, state=state)

    def holds(self, dataset: str, days: frozenset[dt.date]) -> bool:
        """Whether all of these days belong to the unit."""
        return days <= set(self.targets.get(dataset, ()))


@dataclass(frozen=True)
class Launch:
    """What is known about a launch when one of its steps asks for its unit: the days by dataset that it will build.

    Every step of a launch knows the same targets, whichever dataset it works on. `since` is when it was made: days that were
    released after that count as done.
    """

    targets: Mapping[str, frozenset[dt.date]]
    opened_by: str
    named_unit: str | None = None
    live: bool = False
    late_data: LateData = LateData.hold
    since: dt.datetime | None = None

    @property
    def days(self) -> frozenset[DatasetDay]:
        """Every (dataset, day) of the launch."""
        return frozenset((name, day) for name, days in self.targets.items() for day in days)


@dataclass(frozen=True)
class Join:
    """The launch works on an open unit."""

    unit: str


@dataclass(frozen=True)
class Open:
    """The launch opens its own unit; without claims on days where a live run ignores another unit's claim."""

    claim: frozenset[DatasetDay]


def assign_unit(
    launch: Launch,
    opened: Unit | None,
    claims: Mapping[DatasetDay, str],
    held: Mapping[DatasetDay, str],
    live_units: frozenset[str] = frozenset(),
) -> Join | Open:
    """Decide which unit a launch belongs to; pure, so that the ledger can decide and act in one transaction.

    `opened` is the unit that this launch opened before, the unit that its tag names, or, if its days are free, the unit that
    released them after the launch was made; `claims` maps claimed days of the launch to the open unit that claimed them;
    `held` maps days on hold to the reason; `live_units` are the claiming units that a live run opened: its retry continues
    with them.

    Raises:
        UnitError: the tag names a unit that does not exist, was discarded or rolled back, or does not have these days.
        ClaimedDaysError: some or all of the days are claimed by another unit.
        HeldDaysError: a live launch asks for days that are on hold.
    """
    if launch.live and held:
        raise HeldDaysError(_held(held))
    if opened is not None or launch.named_unit is not None:
        return Join(_usable(launch, opened))
    units = sorted(set(claims.values()))
    if not units:
        return Open(launch.days)
    complete = len(units) == 1 and set(claims) == launch.days
    if complete and (not launch.live or units[0] in live_units):
        return Join(units[0])
    if launch.live and launch.late_data is LateData.publish:
        return Open(launch.days - set(claims))
    raise ClaimedDaysError(_claimed(launch, claims, units))


def shown_days(days: Iterable[DatasetDay]) -> str:
    """Days by dataset for people: `daily_capacity 2013-03-01..2013-03-04; flights 2013-03-01`."""
    by_dataset: dict[str, list[dt.date]] = {}
    for name, day in days:
        by_dataset.setdefault(name, []).append(day)
    return "; ".join(f"{name} {format_days(found)}" for name, found in sorted(by_dataset.items()))


def _held(held: Mapping[DatasetDay, str]) -> str:
    name = min(held)[0]
    days = [day for dataset, day in held if dataset == name]
    return (
        f"{shown_days(held)}: on hold ({held[min(held)]}); the live pipeline would publish the rejected logic "
        f"again. Lift it with: backfill hold lift {name} {days_argument(days)}"
    )


def _usable(launch: Launch, unit: Unit | None) -> str:
    if unit is None:
        raise UnitError(f"tag {UNIT_TAG}: there is no unit {launch.named_unit!r}; see: backfill status")
    strangers = launch.days - set(unit.days)
    if strangers:
        raise UnitError(
            f"unit {unit.id} does not hold {shown_days(strangers)}; launch only its own days "
            f"({shown_days(unit.days)}) or drop the tag {UNIT_TAG}"
        )
    # Published is no error: a step of the same launch may have completed the unit, and nothing is left to do.
    if unit.state in {UnitState.discarded, UnitState.rolled_back} and launch.named_unit is not None:
        raise UnitError(f"unit {unit.id} is {unit.state.value}; launch without the tag {UNIT_TAG} for a new unit")
    return unit.id


def _claimed(launch: Launch, claims: Mapping[DatasetDay, str], units: list[str]) -> str:
    parts = [f"{u} ({shown_days(d for d, owner in claims.items() if owner == u)})" for u in units]
    free = launch.days - set(claims)
    tail = f"; not claimed: {shown_days(free)}" if free else ""
    return (
        f"{shown_days(launch.days)}: claimed by open unit {', '.join(parts)}{tail}. Launch only days "
        f"of one unit to go on with it, publish it (backfill publish {units[0]}), or give it up (backfill discard {units[0]})"
    )


LOCK_WAIT: Final = dt.timedelta(minutes=2)
"""How long to wait for a lock: longer than its lease, or the command after a killed one would fail without need."""


class AttemptState(StrEnum):
    """The state of an attempt."""

    running = "running"
    done = "done"
    failed = "failed"
    lost = "lost"


@dataclass(frozen=True)
class Work:
    """The work of an attempt: the rows it wrote, the bytes of the files it read, and how long it waited to be admitted.

    `layer` is the layer that it built: also `raw` and `staging` if a campaign counts them.
    """

    rows: int = 0
    bytes_read: int = 0
    waited: dt.timedelta = dt.timedelta()
    layer: Layer = Layer.shadow


@dataclass(frozen=True)
class Attempt:
    """One run's work on some days of a unit, in a shadow folder of its own.

    `number` grows with every attempt in the ledger and is the fencing token of its lease: evidence is taken only from
    an attempt that still holds its lease. `ended_at` is None while it runs, and if it ended before the ledger recorded ends;
    `rows`, `bytes_read`, `waited` and `layer` are as in `Work`, zero if not reported.
    """

    number: int
    unit: str
    dataset: str
    days: tuple[dt.date, ...]
    run: str
    worker: str
    state: AttemptState
    started_at: dt.datetime
    lease_until: dt.datetime
    ended_at: dt.datetime | None = None
    rows: int = 0
    bytes_read: int = 0
    waited: dt.timedelta = dt.timedelta()
    layer: Layer = Layer.shadow

    @property
    def folder(self) -> str:
        """The shadow folder, relative to the published table's folder."""
        return shadow_folder(self.unit, self.number)

    def spent(self, now: dt.datetime) -> dt.timedelta:
        """How long it has taken so far; if its worker died, until its lease ended."""
        end = self.ended_at or min(now, self.lease_until)
        return max(end - self.started_at, dt.timedelta(0))


@dataclass(frozen=True)
class StagedDay:
    """What a staged day was built from, and how many rows of that delivery day belong to no day that it may contain.

    `inputs` is the digest of the deliveries and references, `code` the fingerprint of the dataset's code. `files` is the digest of
    the files that hold the day in the table `place` below staging: files from another process or a backup have another digest.
    """

    dataset: str
    day: dt.date
    inputs: str
    code: str
    outside_rows: int = 0
    place: str = ""
    files: str = ""


@dataclass(frozen=True)
class ReleaseHead:
    """What changes about a release after the intent; its manifest never changes."""

    state: ReleaseState
    version: int | None = None
    committed_at: dt.datetime | None = None


@dataclass(frozen=True)
class ReleaseRecord:
    """The ledger's row of a release; the Delta log is the truth, this is its projection.

    `number` grows with every release of the ledger: it gives the order of releases, whatever the clocks showed. `corrected`
    replaces a time that cannot be right (see `release.corrected`), and is None otherwise.
    """

    manifest: Manifest
    state: ReleaseState
    version: int | None = None
    committed_at: dt.datetime | None = None
    number: int = field(default=0, compare=False)
    corrected: dt.datetime | None = field(default=None, compare=False)

    @property
    def since(self) -> dt.datetime | None:
        """When it was committed (corrected if wrong), which starts its rollback window; None before that."""
        return self.corrected or self.committed_at


@dataclass(frozen=True)
class Hold:
    """A day that live runs and `backfill refresh` leave alone until it is published again, or a user lifts the hold."""

    target: DatasetDay
    reason: str
    by: str
    since: dt.datetime


def holds_of(manifest: Manifest) -> tuple[Hold, ...]:
    """The holds that a release puts on its days: a rollback holds all its days, a publication none."""
    if manifest.kind is not ReleaseKind.rollback:
        return ()
    reason = manifest.reason or f"rolled back by {manifest.release}"
    return tuple(Hold((manifest.dataset, s.day), reason, manifest.by, manifest.created_at) for s in manifest.days)


IDENTICAL_FILES: Final = "identical_files"
"""The check that warns of files that were delivered twice and whose rows add up."""


@dataclass(frozen=True)
class DayFindings:
    """The figures of one day's evidence.

    `golden_mismatches` counts the rows on which a golden source and the day differ, `tolerated` names the other checks
    that failed and do not block; `passed` says whether there are verdicts and none of them refuses the release.
    """

    rows: int = 0
    duplicate_keys: int = 0
    golden_mismatches: int = 0
    tolerated: tuple[str, ...] = ()
    passed: bool = False


@dataclass(frozen=True)
class Lock:
    """A named lock that a process holds, or held when it died: its lease ends at `until`."""

    name: str
    holder: str
    until: dt.datetime
