"""Campaigns with their journal, approvals, comparisons and certificates; history is append-only."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from sqlalchemy import Column, ColumnElement, Connection, func, insert, select, true, update

from backfill_assets.campaign.state import Approval, Campaign, JournalEntry, Phase, require_phase
from backfill_assets.core.canonical import canonical_json, from_json
from backfill_assets.core.certificate import Certificate
from backfill_assets.core.errors import ApprovalError, CampaignError, UnitError
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.measured import DayComparison
from backfill_assets.core.unit import shown_days
from backfill_assets.ledger.codec import campaign_columns, campaign_from_row, entry_columns, entry_from_row
from backfill_assets.ledger.database import Rows, matching, span, upsert
from backfill_assets.ledger.schema import (
    approval_days,
    approvals,
    campaign_journal,
    campaigns,
    certificates,
    comparisons,
    releases,
)
from backfill_assets.ledger.units import load_unit
from backfill_assets.ledger.work import living

_CAMPAIGNS = campaigns
_JOURNAL = campaign_journal
_APPROVALS = approvals


class CampaignRows(Rows):
    """The campaigns of the ledger."""

    def add_campaign(self, campaign: Campaign, entry: JournalEntry) -> Campaign:
        """Store a planned campaign, or a new plan of one that is still planned; returns it with its revision.

        A new plan counts as a change: the old plan can no longer be launched.

        Raises:
            CampaignError: a campaign of this id has been launched, or `campaign` itself is not planned.
        """
        _refuse_foreign_entry(campaign, entry)
        if campaign.phase is not Phase.planned or campaign.unit:
            raise CampaignError(
                f"campaign {campaign.id} is {campaign.phase.value}; add it as planned first, and change it then"
            )
        with self._database.write() as connection:
            before = _find(connection, campaign.id)
            if before is not None and before.phase is not Phase.planned:
                raise CampaignError(
                    f"campaign {campaign.id} already exists and is {before.phase.value} "
                    f"({_last(connection, campaign.id, _JOURNAL.c.phase)}); give the new one another backfill_id"
                )
            added = replace(campaign, revision=before.revision + 1 if before else 0)
            columns = campaign_columns(added)
            upsert(connection, _CAMPAIGNS, [{"id": campaign.id, **columns}], replace=list(columns))
            _write(connection, entry, added.revision, added.phase)
        return added

    def campaign(self, campaign_id: str) -> Campaign:
        """The campaign, or `CampaignError`, which names the newest existing ones."""
        with self._database.read() as connection:
            return _load_one(connection, campaign_id)

    def campaigns(self) -> tuple[Campaign, ...]:
        """All campaigns, newest first."""
        with self._database.read() as connection:
            return _load(connection, true())

    def campaign_of(self, unit: str) -> Campaign | None:
        """The campaign of a unit; None for a unit without one."""
        with self._database.read() as connection:
            return next(iter(_load(connection, _CAMPAIGNS.c.unit == unit)), None)

    def change_campaign(self, campaign: Campaign, allowed: Collection[Phase], entry: JournalEntry) -> Campaign:
        """Store a changed campaign (phase, knobs, unit, a new plan) and the reason; returns it with its new revision.

        Raises:
            CampaignError: it is in another phase, or was changed since `campaign` was read; says by whom and why.
            UnitError: its unit does not exist.
        """
        _refuse_foreign_entry(campaign, entry)
        with self._database.write() as connection:
            before = _load_one(connection, campaign.id)
            last = _last(connection, campaign.id, _JOURNAL.c.phase)
            require_phase(before, allowed, f"being {entry.action.value}", last)
            if before.revision != campaign.revision:
                raise CampaignError(
                    f"campaign {campaign.id} was changed in between ({_last(connection, campaign.id)}); "
                    f"check it (backfill status {campaign.id}) and repeat the command if you still want it"
                )
            if campaign.unit:
                load_unit(connection, campaign.unit)
            changed = replace(campaign, revision=before.revision + 1)
            own = _CAMPAIGNS.c.id == campaign.id
            connection.execute(update(_CAMPAIGNS).where(own).values(campaign_columns(changed)))
            _write(connection, entry, changed.revision, changed.phase if changed.phase is not before.phase else None)
        return changed

    def note(self, entry: JournalEntry) -> None:
        """Add an entry to a campaign's journal without changing the campaign; `CampaignError` if there is none."""
        with self._database.write() as connection:
            _load_one(connection, entry.campaign)
            _write(connection, entry)

    def journal(self, campaign_id: str) -> tuple[JournalEntry, ...]:
        """A campaign's journal, oldest entry first; `CampaignError` if there is no such campaign."""
        own = select(_JOURNAL).where(_JOURNAL.c.campaign == campaign_id).order_by(_JOURNAL.c.number)
        with self._database.read() as connection:
            rows = connection.execute(own).mappings().all()
            if not rows:
                raise _unknown(connection, campaign_id)
        return tuple(entry_from_row(row) for row in rows)

    def approve(self, approval: Approval, entry: JournalEntry | None = None) -> None:
        """Store an approval of days of a unit and its journal entry, both or neither.

        Approvals are never replaced; the newest of a day counts. The ledger records what it comes after: the newest
        release and the newest journal entry.

        Raises:
            UnitError: there is no such unit.
            ApprovalError: it names no days, or days that are not in the unit.
        """
        columns = ("unit", "evidence", "by", "identity", "at")
        row = {name: getattr(approval, name) for name in columns}
        with self._database.write() as connection:
            own = frozenset(load_unit(connection, approval.unit).days)
            strangers = frozenset(approval.days) - own
            if strangers or not approval.days:
                raise ApprovalError(
                    f"an approval of unit {approval.unit} names {shown_days(strangers) or 'no days'}; "
                    f"approve days that it holds: {shown_days(own)}"
                )
            row["after_release"] = _highest(connection, releases.c.number)
            row["after_entry"] = _highest(connection, _JOURNAL.c.number)
            number = connection.execute(insert(_APPROVALS).values(row).returning(_APPROVALS.c.number)).scalar_one()
            days = [
                {"approval": number, "dataset": name, "day": day, "evidence": seen}
                for (name, day), seen in sorted(approval.days.items())
            ]
            connection.execute(insert(approval_days), days)
            if entry is not None:
                _write(connection, entry)

    def approvals(self, unit: str) -> tuple[Approval, ...]:
        """The approvals of a unit, oldest first."""
        own = _APPROVALS.c.unit == unit
        joined = select(approval_days).join(_APPROVALS, _APPROVALS.c.number == approval_days.c.approval)
        days: dict[int, dict[DatasetDay, str]] = defaultdict(dict)
        with self._database.read() as connection:
            for row in connection.execute(joined.where(own).order_by(approval_days.c.dataset, approval_days.c.day)):
                days[row.approval][row.dataset, row.day] = row.evidence
            rows = connection.execute(select(_APPROVALS).where(own).order_by(_APPROVALS.c.number)).all()
        return tuple(
            Approval(r.unit, r.evidence, r.by, r.identity, r.at, days[r.number], r.after_release, r.after_entry)
            for r in rows
        )


def _highest(connection: Connection, number: Column[int]) -> int:
    return connection.execute(select(func.max(number))).scalar_one() or 0


def _load(connection: Connection, wanted: ColumnElement[bool]) -> tuple[Campaign, ...]:
    newest = (_CAMPAIGNS.c.created_at.desc(), _CAMPAIGNS.c.id.desc())
    rows = connection.execute(select(_CAMPAIGNS).where(wanted).order_by(*newest)).mappings()
    return tuple(campaign_from_row(row) for row in rows)


def _find(connection: Connection, campaign_id: str) -> Campaign | None:
    return next(iter(_load(connection, _CAMPAIGNS.c.id == campaign_id)), None)


def _load_one(connection: Connection, campaign_id: str) -> Campaign:
    found = _find(connection, campaign_id)
    if found is None:
        raise _unknown(connection, campaign_id)
    return found


def _unknown(connection: Connection, campaign_id: str) -> CampaignError:
    newest = select(_CAMPAIGNS.c.id).order_by(_CAMPAIGNS.c.created_at.desc(), _CAMPAIGNS.c.id.desc()).limit(5)
    known = connection.execute(newest).scalars().all()
    hint = f"newest: {', '.join(known)}; see: backfill list" if known else "none exists yet; create one: backfill new"
    return CampaignError(f"there is no campaign {campaign_id!r}; {hint}")


def _last(
    connection: Connection, campaign_id: str, marks: ColumnElement[object] = _JOURNAL.c.revision
) -> JournalEntry | None:
    """The newest entry that changed the campaign, or (with the column `phase`) moved it into its phase."""
    query = (
        select(_JOURNAL)
        .where(_JOURNAL.c.campaign == campaign_id, marks.is_not(None))
        .order_by(_JOURNAL.c.number.desc())
        .limit(1)
    )
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else entry_from_row(row)


def _write(
    connection: Connection, entry: JournalEntry, revision: int | None = None, phase: Phase | None = None
) -> None:
    marks = {"revision": revision, "phase": None if phase is None else phase.value}
    connection.execute(insert(_JOURNAL).values({**entry_columns(entry), **marks}))


def _refuse_foreign_entry(campaign: Campaign, entry: JournalEntry) -> None:
    if entry.campaign != campaign.id:
        raise CampaignError(
            f"a journal entry of campaign {entry.campaign} cannot explain a change of {campaign.id}; use one of its own"
        )


_COMPARISONS = comparisons
_CERTIFICATES = certificates


class ProofRows(Rows):
    """The comparisons and certificates of the ledger."""

    def add_comparisons(self, attempt: int, comparisons: Iterable[DayComparison]) -> None:
        """Store the differences of an attempt's days; replaces older comparisons of these days.

        Raises:
            LeaseLostError: the attempt is not running, or its lease has ended.
            UnitError: a comparison is not of this attempt's dataset and days.
        """
        given = tuple(comparisons)
        with self._database.write() as connection:
            held = living(connection, attempt, self._clock.now())
            for one in given:
                if (one.dataset, one.attempt) != (held.dataset, held.number) or one.day not in held.days:
                    raise UnitError(
                        f"the comparison of {one.dataset} {one.day}, attempt {one.attempt}, does not belong to attempt "
                        f"{attempt} ({held.dataset}); store it with its own attempt"
                    )
            rows = [
                {"unit": held.unit, "dataset": one.dataset, "day": one.day, "attempt": attempt}
                | {"body": canonical_json(one)}
                for one in given
            ]
            upsert(connection, _COMPARISONS, rows, replace=["attempt", "body"])

    def comparisons(
        self, unit: str, dataset: str | None = None, days: Collection[dt.date] | None = None
    ) -> Mapping[DatasetDay, DayComparison]:
        """The newest comparison of each day of a unit; optionally of one dataset or some days only."""
        wanted = matching(_COMPARISONS, unit=unit, dataset=dataset)
        if days is not None:
            wanted &= span(_COMPARISONS.c.day, days)
        query = select(_COMPARISONS.c.body).where(wanted).order_by(_COMPARISONS.c.dataset, _COMPARISONS.c.day)
        with self._database.read() as connection:
            bodies = connection.execute(query).scalars().all()
        asked = None if days is None else frozenset(days)
        found = (from_json(DayComparison, body) for body in bodies)
        return {(one.dataset, one.day): one for one in found if asked is None or one.day in asked}

    def add_certificate(self, certificate: Certificate) -> None:
        """Store a certificate; does nothing if it is already stored."""
        row = {name: getattr(certificate, name) for name in ("id", "dataset", "unit", "at")}
        with self._database.write() as connection:
            known = select(_CERTIFICATES.c.id).where(_CERTIFICATES.c.id == certificate.id)
            if connection.execute(known).one_or_none() is None:
                newest = connection.execute(select(func.max(_CERTIFICATES.c.number))).scalar_one() or 0
                body = canonical_json(certificate)
                connection.execute(insert(_CERTIFICATES).values(**row, body=body, number=newest + 1))

    def certificates(self, dataset: str | None = None, unit: str | None = None) -> tuple[Certificate, ...]:
        """Certificates, newest first; optionally of one dataset or one unit only."""
        wanted = matching(_CERTIFICATES, dataset=dataset, unit=unit)
        # Certificates from before the column `number` existed have 0: the time orders them.
        newest = (_CERTIFICATES.c.number.desc(), _CERTIFICATES.c.at.desc(), _CERTIFICATES.c.id.desc())
        query = select(_CERTIFICATES.c.body).where(wanted).order_by(*newest)
        with self._database.read() as connection:
            bodies = connection.execute(query).scalars().all()
        return tuple(from_json(Certificate, body) for body in bodies)
