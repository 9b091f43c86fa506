"""Notices to people about a campaign: those that its specification asks for, and never a reason for anything to fail."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from backfill_assets.campaign.specification import Notice
from backfill_assets.campaign.state import Action, Campaign, JournalEntry
from backfill_assets.core.errors import BackfillError, NoticeError
from backfill_assets.core.ports import Clock, Identity
from backfill_assets.domain.reader_ports import Notices
from backfill_assets.ledger.ledger import Ledger

_LOG: Final = logging.getLogger(__name__)
_LONGEST: Final = 1000


@dataclass(frozen=True)
class Notifier:
    """Sends what `notify.on` lists to the specification's webhook."""

    ledger: Ledger
    notices: Notices
    clock: Clock
    identity: Identity

    def tell(self, campaign: Campaign, notice: Notice, text: str) -> None:
        """Send a notice if the specification asks for it, at most 1,000 characters of it, and of `stopped` one line.

        One that cannot be sent is noted in the campaign's journal and changes nothing else.
        """
        notify = campaign.specification.notify
        if notify is None or not notify.wants(notice):
            return
        try:
            self.notices.send(notify.variable, _short(notice, text))
        except NoticeError as error:
            self._note(campaign, notice, str(error))

    def _note(self, campaign: Campaign, notice: Notice, error: str) -> None:
        reason = f"the notice {notice.value!r} could not be sent: {error}"
        detail = {"notice": notice.value, "sent": False}
        entry = JournalEntry(campaign.id, self.clock.now(), self.identity.name(), Action.notified, reason, detail)
        try:
            self.ledger.note(entry)
        except BackfillError:
            _LOG.warning("campaign %s: %s", campaign.id, reason, exc_info=True)


def _short(notice: Notice, text: str) -> str:
    """What fits into a message: a failed run's reason may be a whole stack of errors, and the journal has all of it."""
    told = next((line for line in text.splitlines() if line.strip()), "") if notice is Notice.stopped else text
    return told if len(told) <= _LONGEST else f"{told[: _LONGEST - 1]}…"
