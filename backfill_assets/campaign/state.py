"""A campaign: its phases, its journal, its knobs, and whether its next batch may start now."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from backfill_assets.campaign.execution import MOST_AT_ONCE, MOST_IN_A_BATCH
from backfill_assets.campaign.plan import Plan, Step, StepKind
from backfill_assets.campaign.specification import Specification
from backfill_assets.core.errors import CampaignError
from backfill_assets.core.unit import Unit, UnitState

CAMPAIGN_TAG = "backfill_assets/campaign"
"""Run tag that names the campaign a run works for; its unit is named by a tag of its own."""


class Phase(StrEnum):
    """What operators and the conductor decide; everything else follows from the unit, its evidence and its approvals."""

    planned = "planned"
    canary = "canary"
    running = "running"
    paused = "paused"
    stopped = "stopped"
    closed = "closed"
    cleaned = "cleaned"


class CampaignState(StrEnum):
    """The state of a campaign, as people see it."""

    planned = "planned"
    canary = "canary"
    running = "running"
    paused = "paused"
    stopped = "stopped"
    stale = "stale"
    validated = "validated"
    approved = "approved"
    published = "published"
    rolled_back = "rolled_back"
    discarded = "discarded"
    closed = "closed"
    cleaned = "cleaned"


class Action(StrEnum):
    """The kinds of entries in a campaign's journal."""

    planned = "planned"
    launched = "launched"
    canaries_passed = "canaries passed"
    paused = "paused"
    resumed = "resumed"
    stopped = "stopped"
    set = "set"
    backfill = "backfill launched"
    waits = "waits"
    validated = "validated"
    stale = "stale"
    approved = "approved"
    published = "published"
    rolled_back = "rolled back"
    discarded = "discarded"
    signed_off = "signed off"
    cleaned = "cleaned"
    notified = "notified"
    repaired = "repaired"


CHANGED = "changed"
"""Key of a journal entry's detail: the top-level keys of the specification that have changed."""
RELEASES = "releases"
"""The same: the releases that were made, by dataset."""
_BEFORE, _AFTER = "before", "after"

NOTES = frozenset(
    {Action.backfill, Action.waits, Action.set, Action.validated, Action.stale, Action.notified, Action.repaired}
)
"""Entries that do not change a campaign's phase."""

BEGINNINGS = frozenset({Action.launched, Action.resumed})
"""Entries with which a user lets a campaign work."""
WORKING = frozenset({Phase.canary, Phase.running})
"""Phases in which batches may start."""


@dataclass(frozen=True)
class Knobs:
    """What can be changed while a campaign runs; read again before each batch."""

    max_concurrency: int
    partitions_per_batch: int

    @property
    def problem(self) -> str:
        """What is wrong with them, if anything: the bounds are those of a specification."""
        good = 1 <= self.max_concurrency <= MOST_AT_ONCE and 1 <= self.partitions_per_batch <= MOST_IN_A_BATCH
        bounds = (
            f"write max_concurrency from 1 to {MOST_AT_ONCE} and partitions_per_batch from 1 to {MOST_IN_A_BATCH:,}"
        )
        return "" if good else f"{self.max_concurrency} and {self.partitions_per_batch} cannot be used; {bounds}"

    def turned_to(self, knobs: Knobs) -> dict[str, object]:
        """The detail of a journal entry about the change; empty if nothing changes."""
        return {_BEFORE: vars(self), _AFTER: vars(knobs)} if knobs != self else {}


@dataclass(frozen=True)
class Campaign:
    """A planned campaign and its controls.

    `file` is the absolute path that the specification was read from; `unit` is empty until the launch; with `canary_only`
    the conductor does not continue after the canaries; `revision` grows with every change, so that two operators notice
    each other's changes.
    """

    specification: Specification
    plan: Plan
    knobs: Knobs
    created_at: dt.datetime
    file: str = ""
    phase: Phase = Phase.planned
    unit: str = ""
    canary_only: bool = False
    revision: int = 0

    @property
    def id(self) -> str:
        """The `backfill_id` of the specification."""
        return self.specification.backfill_id

    @property
    def step(self) -> Step:
        """The current step of a launched campaign: its canaries, or the step after them."""
        done = {StepKind.announce, StepKind.open_unit} | (
            {StepKind.canary} if self.phase is not Phase.canary else set()
        )
        return next(step for step in self.plan.steps if step.kind not in done)

    def turned(self, *, max_concurrency: int | None = None, partitions_per_batch: int | None = None) -> Campaign:
        """The same campaign with changed knobs."""
        given = {"max_concurrency": max_concurrency, "partitions_per_batch": partitions_per_batch}
        return replace(self, knobs=replace(self.knobs, **{k: v for k, v in given.items() if v is not None}))

    def replanned(self, specification: Specification, plan: Plan) -> Campaign:
        """The same campaign with a changed specification and its plan.

        If the specification now names another value for a knob, that is the latest decision and wins over the knob's current
        value. All other knobs keep their current values.
        """
        one, other = self.specification.execution, specification.execution
        named = {knob: getattr(other, knob) for knob in vars(self.knobs) if getattr(other, knob) != getattr(one, knob)}
        return replace(self.turned(**named), specification=specification, plan=plan)


@dataclass(frozen=True)
class JournalEntry:
    """One line of a campaign's journal: who did what, when and why; `detail` holds plain JSON values.

    `number` grows with every entry of the ledger, and is 0 until the entry is in it.
    """

    campaign: str
    at: dt.datetime
    by: str
    action: Action
    reason: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)
    number: int = field(default=0, compare=False)

    @property
    def changed(self) -> tuple[str, ...]:
        """The top-level keys of the specification that changed with this entry."""
        keys = self.detail.get(CHANGED)
        return tuple(map(str, keys)) if isinstance(keys, (list, tuple)) else ()

    @property
    def released(self) -> frozenset[str]:
        """The releases that this entry reports as published or rolled back."""
        named = self.detail.get(RELEASES) if self.action in {Action.published, Action.rolled_back} else None
        return frozenset(map(str, named.values())) if isinstance(named, Mapping) else frozenset()

    def __str__(self) -> str:
        """One line for people."""
        what = f" with changed {', '.join(self.changed)}" if self.changed else ""
        turned = f" ({', '.join(self._turned())})" if self._turned() else ""
        why = f": {' '.join(self.reason.split())}" if self.reason.strip() else ""
        return f"{self.action.value} by {self.by} at {self.at:%Y-%m-%d %H:%M:%S} UTC{what}{turned}{why}"

    def _turned(self) -> list[str]:
        before, after = self.detail.get(_BEFORE), self.detail.get(_AFTER)
        if not isinstance(before, Mapping) or not isinstance(after, Mapping):
            return []
        return [f"{knob} {before.get(knob)} → {value}" for knob, value in after.items() if value != before.get(knob)]


@dataclass(frozen=True)
class Approval:
    """One approval of a unit: by (dataset, day) the hash of the evidence that the approver saw.

    `evidence` is the hash that they named; `by` is the approver in the specification's list, `identity` the actual user.
    `after_release` and `after_entry` are the newest release and the newest journal entry in the ledger at that time.
    """

    unit: str
    evidence: str
    by: str
    identity: str
    at: dt.datetime
    days: Mapping[tuple[str, dt.date], str]
    after_release: int = field(default=0, compare=False)
    after_entry: int = field(default=0, compare=False)


def state_of(
    campaign: Campaign, unit: Unit | None, *, complete: bool, approved: bool, stale: bool = False
) -> CampaignState:
    """The state of a campaign, given its unit and whether all evidence is present and current, and approved.

    `stale`: all days had passed, but the basis of some has changed since.
    """
    if campaign.phase is Phase.cleaned or unit is None:
        return CampaignState(campaign.phase.value)
    if campaign.phase is Phase.closed and unit.state is UnitState.published:
        return CampaignState.closed
    ended = {
        UnitState.published: CampaignState.published,
        UnitState.rolled_back: CampaignState.rolled_back,
        UnitState.discarded: CampaignState.discarded,
    }
    if unit.state in ended:
        return ended[unit.state]
    if complete and campaign.phase is not Phase.stopped:
        return CampaignState.approved if approved else CampaignState.validated
    if stale and campaign.phase in WORKING:
        return CampaignState.stale
    return CampaignState(campaign.phase.value)


def require_phase(campaign: Campaign, allowed: Collection[Phase], action: str, last: JournalEntry | None) -> None:
    """Refuse an action in the wrong phase, and say who brought the campaign into it.

    Raises:
        CampaignError: names the phase, its last journal entry and the phases in which the action is possible.
    """
    if campaign.phase in allowed:
        return
    done = f" ({last})" if last else ""
    wanted = " or ".join(sorted(phase.value for phase in allowed))
    raise CampaignError(
        f"campaign {campaign.id} is {campaign.phase.value}{done}; {action} needs a campaign that is {wanted}. "
        f"See: backfill status {campaign.id}"
    )
