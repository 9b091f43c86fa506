"""The end of a campaign: its sign-off, and the clean-up of the files that only its rollback needed."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

from backfill_assets.campaign.state import Action, Campaign, JournalEntry, Phase, require_phase
from backfill_assets.core.errors import CampaignError
from backfill_assets.core.release import EXTRA, ReleaseKind, ReleaseState, restorable_until
from backfill_assets.core.unit import UnitState
from backfill_assets.ledger.open import last_step
from backfill_assets.release.sweep import SIGNED_OFF, Sweep, Swept
from backfill_assets.warehouse import OnWarehouse

_CLOSABLE = frozenset(Phase) - {Phase.planned, *SIGNED_OFF}


@dataclass(frozen=True)
class Cleanup:
    """A clean-up, planned or done: the files that are deleted at the time `at`, by dataset.

    The rollback window ends at `window_until` (None if nothing was published). Files that time travel still reads are
    `later`: any sweep after `files_until` deletes them.
    """

    campaign: str
    window_until: dt.datetime | None
    files_until: dt.datetime | None
    at: dt.datetime
    swept: tuple[Swept, ...]
    later: tuple[Swept, ...]
    refusal: str = ""

    def listed(self, *, dry_run: bool) -> str:
        """For people: which files are or would be deleted, and which later."""
        what = f"would go at {self.at:%Y-%m-%d %H:%M} UTC" if dry_run else "are gone"
        then = f"go with any sweep after {self.files_until:%Y-%m-%d %H:%M} UTC" if self.files_until else ""
        later = [swept.listed(then) for swept in self.later if swept.paths]
        return "\n".join([*(swept.listed(what) for swept in self.swept), *later])


@dataclass(frozen=True)
class SignOff(OnWarehouse):
    """Closes published campaigns, and cleans up after closed or undone ones."""

    def sign_off(self, campaign_id: str, reason: str = "") -> Campaign:
        """Close a published campaign: a user has checked what readers see, and it is right.

        Raises:
            CampaignError: there is no such campaign, it is not published, or it is already signed off (by whom, when).
        """
        campaign = self.ledger.campaign(campaign_id)
        require_phase(campaign, _CLOSABLE, "sign-off", last_step(self.ledger, campaign_id))
        state = self.ledger.unit(campaign.unit).state
        if state is not UnitState.published:
            raise CampaignError(
                f"campaign {campaign_id} is {campaign.phase.value} and its unit {campaign.unit} {state.value}; only what "
                f"readers see can be signed off. See: backfill status {campaign_id}"
            )
        return self._enter(campaign, Phase.closed, (Action.signed_off, reason))

    def cleanup(self, campaign_id: str, reason: str = "", *, dry_run: bool = False) -> Cleanup:
        """Delete the files that only a rollback of the campaign needed, after its rollback window and its sign-off.

        A campaign that was rolled back or discarded needs no sign-off: nothing of it is in effect. With `dry_run`
        nothing changes; `refusal` says why a clean-up would be refused, and `at` is the end of the window if that is in
        the future: the listed files are those deleted then.

        Raises:
            CampaignError: there is no such campaign, it is not signed off, its window has not ended, or it is cleaned up.
            LedgerError: a release of one of its datasets takes too long.
        """
        campaign = self.ledger.campaign(campaign_id)
        window, files = self._ends(campaign)
        refusal = self._refusal(campaign, window)
        targets = self.ledger.unit(campaign.unit).targets if campaign.unit else {}
        own = {name: self.tables[name] for name in targets if name in self.tables}
        sweep = Sweep(replace(self.warehouse, tables=own), over=frozenset({campaign.unit}))
        now = self.clock.now()
        at = max(now, window or now)
        if dry_run:
            swept = sweep.plan(at)
            return Cleanup(campaign_id, window, files, at, swept, _later(sweep, swept, files), refusal)
        if refusal:
            raise CampaignError(refusal)
        # The campaign first: if the sweep crashes, any later sweep deletes the rest.
        self._enter(campaign, Phase.cleaned, (Action.cleaned, reason))
        swept = sweep.execute()
        return Cleanup(campaign_id, window, files, at, swept, _later(sweep, swept, files))

    def _refusal(self, campaign: Campaign, window: dt.datetime | None) -> str:
        last = last_step(self.ledger, campaign.id)
        done = f" ({last})" if last else ""
        if campaign.phase in {Phase.planned, Phase.cleaned}:
            return f"campaign {campaign.id} is {campaign.phase.value}{done}: there is nothing to clean up"
        state = self.ledger.unit(campaign.unit).state
        if campaign.phase is not Phase.closed and state not in {UnitState.rolled_back, UnitState.discarded}:
            if state is UnitState.open:
                return (
                    f"campaign {campaign.id} is {campaign.phase.value}{done} and not finished: publish it, or give it up with: "
                    f"backfill discard {campaign.unit}"
                )
            return (
                f"campaign {campaign.id} is published{done} and not signed off; its files stay until you sign it off: "
                f"backfill sign-off {campaign.id}"
            )
        if window is not None and self.clock.now() < window:
            return (
                f"campaign {campaign.id} can be rolled back until {window:%Y-%m-%d %H:%M} UTC, and its files stay until "
                "then; clean it up after that"
            )
        return ""

    def _ends(self, campaign: Campaign) -> tuple[dt.datetime | None, dt.datetime | None]:
        """When the rollback window of the campaign's last release ends, and when all their files may be deleted."""
        asked, window, files = campaign.specification.rollback.keep_for, [], []
        for record in self.ledger.releases(unit=campaign.unit) if campaign.unit else ():
            name, at = record.manifest.dataset, record.since
            if record.state is ReleaseState.finalized and at is not None and name in self.tables:
                kept = self.tables[name].keep_for
                if record.manifest.kind is ReleaseKind.publish:
                    window.append(restorable_until(at, max(kept, asked)))
                files.append(restorable_until(at, kept + EXTRA))
        return max(window, default=None), max(files, default=None)

    def _enter(self, campaign: Campaign, phase: Phase, why: tuple[Action, str]) -> Campaign:
        action, reason = why
        entry = JournalEntry(campaign.id, self.clock.now(), self.identity.name(), action, reason)
        return self.ledger.change_campaign(replace(campaign, phase=phase), {campaign.phase}, entry)


def _later(sweep: Sweep, swept: tuple[Swept, ...], files: dt.datetime | None) -> tuple[Swept, ...]:
    """The files that are deleted after `files` and were not deleted before."""
    if files is None or files + sweep.grace <= sweep.clock.now():
        return ()
    gone = frozenset(path for one in swept for path in one.paths)
    # Add the grace period: files that left the table at that moment still count as read.
    return sweep.plan(files + sweep.grace, gone)
