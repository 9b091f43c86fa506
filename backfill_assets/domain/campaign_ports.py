"""Ports of campaigns: the ledger that keeps them, the live runs that they yield to, the backfills that they launch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from backfill_assets.domain.campaign import Approval, Campaign, JournalEntry, Phase


class CampaignLedger(Protocol):
    """Campaigns, their journal, and approvals."""

    def add_campaign(self, campaign: Campaign, entry: JournalEntry) -> Campaign:
        """Store a planned campaign, or a new plan of one that is still planned; returns it with its revision.

        `CampaignError` if there is one of this id that has been launched.
        """
        ...

    def campaign(self, campaign_id: str) -> Campaign:
        """The campaign, or `CampaignError` naming what there is."""
        ...

    def campaigns(self) -> tuple[Campaign, ...]:
        """All campaigns, newest first."""
        ...

    def campaign_of(self, unit: str) -> Campaign | None:
        """The campaign that a unit belongs to; none for a unit without one."""
        ...

    def change_campaign(self, campaign: Campaign, allowed: Collection[Phase], entry: JournalEntry) -> Campaign:
        """Store a changed campaign (phase, knobs, unit, a plan made again) and why; returns it with its new revision.

        Compare and set: where its phase is not among the allowed ones, or its revision is not that of `campaign`,
        nothing happens but a `CampaignError` that says who changed it, when and why.
        """
        ...

    def note(self, entry: JournalEntry) -> None:
        """Write into a campaign's journal without changing the campaign."""
        ...

    def journal(self, campaign_id: str) -> tuple[JournalEntry, ...]:
        """A campaign's journal, oldest entry first."""
        ...

    def approve(self, approval: Approval, entry: JournalEntry | None = None) -> None:
        """Store an approval of days of a unit, and the journal's entry of it, both or neither."""
        ...

    def approvals(self, unit: str) -> tuple[Approval, ...]:
        """The approvals of a unit, oldest first."""
        ...


class LiveRuns(Protocol):
    """The live pipeline, seen from a backfill that yields to it."""

    def active(self) -> tuple[str, ...]:
        """Ids of the live runs that are at work or in the queue."""
        ...


@dataclass(frozen=True)
class BackfillRequest:
    """A native backfill to be launched: layers by dataset over some days, with title, description and run tags."""

    layers: Mapping[str, tuple[str, ...]]
    days: tuple[dt.date, ...]
    title: str
    description: str
    tags: Mapping[str, str]


class Backfills(Protocol):
    """The scheduler's native backfills, of one campaign at a time."""

    def launch(self, request: BackfillRequest) -> str:
        """Launch a backfill; its id."""
        ...

    def active(self, campaign: str) -> tuple[str, ...]:
        """Ids of the campaign's backfills that are not over."""
        ...

    def cancel(self, campaign: str) -> int:
        """Cancel what is left of the campaign's backfills, queued runs included; how many backfills that were."""
        ...

    def failure(self, campaign: str, but: Collection[str] = ()) -> str:
        """What the newest backfill of the campaign failed of, in words; empty unless it is over and a run of it failed.

        Runs in `but` are left out: they gave up before a shut gate.
        """
        ...
