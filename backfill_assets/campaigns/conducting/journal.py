"""Reading a campaign's journal: who brought it where it is."""

from __future__ import annotations

from backfill_assets.campaign.state import NOTES, JournalEntry
from backfill_assets.ledger.sql_ledger import Ledger


def last_step(ledger: Ledger, campaign_id: str) -> JournalEntry | None:
    """The newest entry that has brought the campaign on; notes about waits, knobs and notices explain no phase.

    Raises:
        CampaignError: there is no such campaign.
    """
    return next((entry for entry in reversed(ledger.journal(campaign_id)) if entry.action not in NOTES), None)
