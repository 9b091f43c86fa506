"""Sends notices on campaigns, and does the follow-up of a release, a rollback or a repair."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from backfill_assets.campaign.specification import Notice
from backfill_assets.campaign.state import RELEASES, Action, Campaign, JournalEntry
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import BackfillError, NoticeError
from backfill_assets.core.release import Manifest, ReleaseKind, restorable_until
from backfill_assets.core.text import shortened
from backfill_assets.core.unit import LOCK_WAIT, ReleaseRecord
from backfill_assets.release.finish import is_rollback, taken_back
from backfill_assets.release.readers import DataReleases
from backfill_assets.warehouse import OnWarehouse

_LOG: Final = logging.getLogger(__name__)
_LONGEST: Final = 1000


@dataclass(frozen=True)
class Notifier(OnWarehouse):
    """Sends the notices in `notify.on` to the specification's webhook.

    `send` sends a text to the webhook whose URL an environment variable holds, or raises `NoticeError`; see `Webhook.send`.
    """

    send: Callable[[str, str], object]

    def notify(self, campaign: Campaign, notice: Notice, text: str) -> None:
        """Send a notice if the specification asks for it; at most 1,000 characters, and for `stopped` one line.

        A notice that cannot be sent is recorded in the campaign's journal; this changes nothing else.
        """
        notify = campaign.specification.notify
        if notify is None or not notify.wants(notice):
            return
        try:
            self.send(notify.variable, _short(notice, text))
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
    """Shorten a text for a message: the reason of a failed run may be a long stack of errors, and the journal has all of it."""
    found = next((line for line in text.splitlines() if line.strip()), "") if notice is Notice.stopped else text
    return shortened(found, _LONGEST)


@dataclass(frozen=True)
class AfterRelease(OnWarehouse):
    """The follow-up of finalized releases. All of it is safe to repeat, and none of it undoes or refuses a release."""

    data_releases: DataReleases
    notify: Callable[[Campaign, Notice, str], object]
    tidy: Callable[[], object]

    def repairing(self) -> AfterRelease:
        """The same for a repair, which also finds rows of `data_releases` that were altered."""
        return replace(self, data_releases=replace(self.data_releases, whole=True))

    def __call__(self, releases: Sequence[str]) -> bool:
        """Report these releases; true if the table `data_releases` lacked something."""
        try:
            self._journal([self.ledger.release(name) for name in releases])
        except Exception as error:  # noqa: BLE001  # on any error: the release is made, and must not look failed
            _warn(f"releases {', '.join(releases)} are finalized, but not in their campaign's journal", error)
        try:
            # A release seals the shadows that a preview of its unit reads.
            self.tidy()
        except Exception as error:  # noqa: BLE001  # the same
            _warn("previews of finished units could not be dropped; drop them later", error)
        try:
            return self.data_releases.refresh(releases)
        except Exception as error:  # noqa: BLE001  # the same
            _warn("the table data_releases is behind the ledger; repair it with: backfill reconcile", error)
            return False

    def _journal(self, records: Sequence[ReleaseRecord]) -> None:
        groups: dict[tuple[str, ReleaseKind, dt.datetime], list[ReleaseRecord]] = {}
        for record in records:
            manifest = record.manifest
            if manifest.kind is ReleaseKind.publish or is_rollback(record):
                groups.setdefault((manifest.unit, manifest.kind, manifest.created_at), []).append(record)
        for (unit, kind, _), members in groups.items():
            campaign = self.ledger.campaign_of(unit)
            if campaign is None:
                continue
            if taken_back(self.ledger.releases(unit=unit)) & {r.manifest.release for r in members}:
                # Taken back immediately: readers hardly saw it, and it is not reported to people.
                continue
            if self._noted(campaign, kind, members):
                published = kind is ReleaseKind.publish
                text = self._published(campaign, members) if published else _rolled_back(campaign, members[0].manifest)
                self.notify(campaign, Notice.published if published else Notice.rolled_back, text)

    def _noted(self, campaign: Campaign, kind: ReleaseKind, records: Sequence[ReleaseRecord]) -> bool:
        """Write the releases into the journal unless they are there; returns whether they were missing."""
        # A reconciliation may be reporting the same release at the same time.
        with self.ledger.lock(f"journal:{campaign.id}", LOCK_WAIT):
            known = {release for entry in self.ledger.journal(campaign.id) for release in entry.released}
            if {r.manifest.release for r in records} <= known:
                return False
            self.ledger.note(_entry(campaign, kind, records))
        return True

    def _published(self, campaign: Campaign, records: Sequence[ReleaseRecord]) -> str:
        lines = [f"{campaign.id} is published by {records[0].manifest.by}: {campaign.specification.reason.change}"]
        for record in records:
            manifest = record.manifest
            until = restorable_until(record.since or manifest.created_at, self.tables[manifest.dataset].keep_for)
            lines.append(
                f"{manifest.dataset} {format_days(s.day for s in manifest.days)} as {manifest.release}; until "
                f"{until:%Y-%m-%d %H:%M} UTC undo it with: backfill rollback {manifest.release} --reason '…'"
            )
        return "\n".join(lines)


def _warn(what: str, error: Exception) -> None:
    # Expected errors say what to do; only unexpected ones need a trace.
    _LOG.warning("%s (%s)", what, error, exc_info=not isinstance(error, BackfillError))


def _entry(campaign: Campaign, kind: ReleaseKind, records: Sequence[ReleaseRecord]) -> JournalEntry:
    first, published = records[0].manifest, kind is ReleaseKind.publish
    detail = {
        RELEASES: {r.manifest.dataset: r.manifest.release for r in records},
        "days": {r.manifest.dataset: format_days(s.day for s in r.manifest.days) for r in records},
        **({"approved_by": first.approved_by} if published else {"undoes": first.undoes}),
    }
    action = Action.published if published else Action.rolled_back
    return JournalEntry(campaign.id, first.created_at, first.by, action, first.reason, detail)


def _rolled_back(campaign: Campaign, manifest: Manifest) -> str:
    return (
        f"{campaign.id}: {manifest.dataset} {format_days(s.day for s in manifest.days)} is rolled back by {manifest.by} "
        f"({manifest.release} undoes {manifest.undoes}): {manifest.reason}"
    )
