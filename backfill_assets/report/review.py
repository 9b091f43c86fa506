"""Reviews: all that the ledger and the Delta logs know about a unit, for the person who decides on its release."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property

from backfill_assets.campaign.approval import Roles
from backfill_assets.campaign.plan import Price
from backfill_assets.campaign.state import WORKING, Campaign, JournalEntry
from backfill_assets.campaign.validation import Certification
from backfill_assets.control.approve import approved, certificates_of, current_evidence, needs_approval
from backfill_assets.core.canonical import plain
from backfill_assets.core.certificate import Certificate
from backfill_assets.core.errors import CampaignError, UnitError
from backfill_assets.core.evidence import DatasetDay, DayEvidence, unit_hash
from backfill_assets.core.measured import Seam
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import Attempt, ReleaseRecord, Unit, UnitState
from backfill_assets.dataset.checks import checks_of
from backfill_assets.evidence.readiness import NO_OBSTACLES, Command, Obstacles, Survey, commands_for
from backfill_assets.release.publish import Publisher
from backfill_assets.report.causes import Attribution, Reach, attribute, made_reach, planned_reach
from backfill_assets.report.concerns import (
    Concern,
    of_certificate,
    of_missing_certificate,
    of_seams,
    of_unloaded,
    of_verdicts,
)
from backfill_assets.report.facts import (
    Agreement,
    Effort,
    Largest,
    Made,
    ReviewedDay,
    ReviewSubject,
    RowTotals,
    agreements,
    all_seams,
    day_states,
    effort_of,
    judged_seams,
    largest_changes,
    made_releases,
    of_reaches,
    place_of,
    row_totals,
    subject_of,
)
from backfill_assets.report.judgement import Grounds, Judgement, judge_unit
from backfill_assets.report.series import PublishedBeside, Series, series_of
from backfill_assets.warehouse import OnWarehouse


@dataclass(frozen=True)
class Proof:
    """A certificate of the reviewed evidence, with its verdict and its hash."""

    certificate: Certificate
    hash: str
    passed: bool


@dataclass(frozen=True)
class Review:
    """The review of a unit at one moment.

    `evidence` is the hash of all its evidence, `pending` that of evidence that waits for approval (empty if none).
    """

    unit: str
    made_at: dt.datetime
    state: str
    judgement: Judgement
    subject: ReviewSubject
    evidence: str
    pending: str
    concerns: tuple[Concern, ...]
    series: tuple[Series, ...]
    seams: tuple[Seam, ...]
    days: tuple[ReviewedDay, ...]
    rows: tuple[RowTotals, ...]
    largest: tuple[Largest, ...]
    attributions: tuple[Attribution, ...]
    certificates: tuple[Proof, ...]
    golden: tuple[Agreement, ...]
    effort: Effort
    batches: tuple[Attempt, ...]
    journal: tuple[JournalEntry, ...]
    reaches: tuple[Reach, ...]
    releases: tuple[Made, ...]
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        """Its name for people: the campaign, otherwise the unit."""
        return self.subject.campaign or self.unit

    @property
    def datasets(self) -> tuple[str, ...]:
        """The names of all datasets that it covers."""
        return tuple(sorted({day.dataset for day in self.days}))


@dataclass(frozen=True)
class Reviews(OnWarehouse):
    """Creates reviews; only reads.

    `price` is what an hour of batch time costs, if known; `obstacles` returns what keeps a campaign with passing,
    current evidence from being released. `roles` say whose approvals count, if this process knows any.
    """

    publisher: Publisher
    price: Price | None = None
    obstacles: Callable[[Campaign, Survey], Obstacles] = lambda _campaign, _survey: NO_OBSTACLES
    roles: Roles | None = None

    def of(self, target: str) -> Review:
        """The review of a campaign, a unit, or the unit of a release, as it stands now.

        Raises:
            CampaignError: the campaign has not been launched, so that there is nothing to review.
            UnitError: no campaign, no unit and no release has this name.
        """
        return _Reviewing(self, self.ledger.unit(self._unit_of(target))).review()

    def _unit_of(self, target: str) -> str:
        with suppress(UnitError):
            return self.ledger.unit(target).id
        with suppress(UnitError):
            return self.ledger.release(target).manifest.unit
        # Last, because all plans must be read.
        for campaign in self.ledger.campaigns():
            if campaign.id == target:
                if not campaign.unit:
                    raise CampaignError(
                        f"campaign {target} has not been launched, so there is nothing to review yet; see its plan: "
                        f"backfill status {target}"
                    )
                return campaign.unit
        raise UnitError(
            f"there is no campaign, no unit and no release {target!r}; see: backfill list, backfill status, backfill releases"
        )


@dataclass(frozen=True)
class _Reviewing:
    """One unit under review; everything is read once."""

    reviews: Reviews
    unit: Unit

    def review(self) -> Review:
        unit, ledger, now = self.unit, self.reviews.ledger, self.reviews.clock.now()
        campaign, attempts, made = self.campaign, ledger.attempts(unit.id), made_releases(self.records)
        rows, golden = row_totals(self.evidence), agreements(self.evidence)
        compared = [
            comparison
            for key, comparison in sorted(ledger.comparisons(unit.id).items())
            if key in self.evidence and self.evidence[key].attempt == comparison.attempt
        ]
        judgement = judge_unit(
            Grounds(
                unit.state, self.days, self.concerns, self.series, self.reaches, made, rows, self.pending,
                {p.certificate.dataset: len(p.certificate.days) for p in self.proofs if p.passed},
                sum(not one.counts.mismatches for one in golden),
                self.obstacles.refusals, self.obstacles.later,
            )
        )  # fmt: skip
        return Review(
            unit=unit.id,
            made_at=now,
            state=unit.state.value,
            judgement=judgement,
            subject=subject_of(unit, campaign),
            evidence=unit_hash(self.evidence.values()) if self.evidence else "",
            pending=self.pending,
            concerns=self.concerns,
            series=self.series,
            seams=self.seams,
            days=self.days,
            rows=rows,
            largest=largest_changes(compared),
            attributions=attribute(compared),
            certificates=self.proofs,
            golden=golden,
            effort=effort_of(campaign, attempts, now, self.reviews.price),
            batches=attempts,
            journal=ledger.journal(campaign.id) if campaign is not None else (),
            reaches=self.reaches,
            releases=made,
            commands=commands_for(
                unit,
                self._releasable,
                self.pending,
                self._undoable,
                self.obstacles,
                works=campaign is not None and campaign.phase in WORKING,
            ),
        )

    @cached_property
    def evidence(self) -> Mapping[DatasetDay, DayEvidence]:
        """The evidence that counts for the unit's days."""
        return current_evidence(self.reviews.ledger, self.unit)

    @cached_property
    def survey(self) -> Survey | None:
        """What a release would check, while a release is possible."""
        return self.reviews.publisher.survey(self.unit.id) if self._waits and not self._unloaded else None

    @cached_property
    def obstacles(self) -> Obstacles:
        """What else keeps a campaign with passing, current evidence from being released."""
        campaign, survey = self.campaign, self.survey
        if campaign is None and self.unit.campaign and self.unit.state is UnitState.open:
            # The launch died after it had opened the unit.
            unlaunched = f"campaign {self.unit.campaign} has not been launched completely"
            return Obstacles((unlaunched,), remedy=f"backfill launch {self.unit.campaign}")
        if campaign is None or survey is None or survey.blockers:
            return NO_OBSTACLES
        return self.reviews.obstacles(campaign, survey)

    @cached_property
    def shown(self) -> Mapping[str, PublishedBeside]:
        """What readers see of each loaded dataset."""
        tables, ledger = self.reviews.tables, self.reviews.ledger
        return {
            name: PublishedBeside(ledger, tables[name], name, self.unit) for name in self.unit.targets if name in tables
        }

    @cached_property
    def records(self) -> tuple[ReleaseRecord, ...]:
        """The releases of the unit, newest first."""
        return self.reviews.ledger.releases(unit=self.unit.id)

    @cached_property
    def days(self) -> tuple[ReviewedDay, ...]:
        blockers = self.survey.blockers if self.survey is not None and self.unit.state is UnitState.open else ()
        ended = self.unit.state in {UnitState.published, UnitState.rolled_back}
        changed = {key: state for one in self.shown.values() for key, state in one.became().items()} if ended else {}
        live = frozenset((name, day) for name, one in self.shown.items() for day in one.live)
        return day_states(self.unit, self.evidence, blockers, changed, live)

    @cached_property
    def series(self) -> tuple[Series, ...]:
        return tuple(one for name in sorted(self.shown) for one in self._series(name))

    def _series(self, name: str) -> tuple[Series, ...]:
        mine = {day: one for (dataset, day), one in self.evidence.items() if dataset == name}
        around = self.shown[name].around()
        return series_of(self.reviews.definitions[name], mine, self.unit.contract.of(name), around)

    @cached_property
    def seams(self) -> tuple[Seam, ...]:
        """The steps at the edges of the unit's days and at month boundaries within them."""
        return all_seams(self.series, judged_seams(self.evidence))

    @cached_property
    def reaches(self) -> tuple[Reach, ...]:
        """What the releases of the unit touched, or what a release of it would touch."""
        tables = self.reviews.tables
        if self.unit.state is UnitState.open and self.survey is not None:
            return planned_reach(tables, self.survey)
        true = (record for record in self.records if record.state is ReleaseState.finalized)
        return tuple(reach for record in true if (reach := made_reach(tables, record)) is not None)

    @cached_property
    def proofs(self) -> tuple[Proof, ...]:
        """The certificate of this evidence for each dataset."""
        found = certificates_of(self.reviews.ledger, self.unit.id, self.evidence)
        return tuple(Proof(one, one.hash, one.passed) for one in found.values())

    @cached_property
    def concerns(self) -> tuple[Concern, ...]:
        datasets = self.reviews.definitions
        checks = {name: checks_of(datasets[name]) for name in self.unit.targets if name in datasets}
        judged = judged_seams(self.evidence)
        unjudged = [seam for seam in self.seams if place_of(seam) not in judged]
        required = (
            self.campaign is not None and self.campaign.specification.validation.certificate is Certification.required
        )
        waits = self.unit.state is UnitState.open
        certified = [c for p in self.proofs for c in of_certificate(p.certificate, blocks=required and waits)]
        if required and waits and self._releasable:
            proven = {proof.certificate.dataset for proof in self.proofs}
            certified += [of_missing_certificate(n, self.unit.campaign) for n in self.unit.targets if n not in proven]
        unloaded = of_unloaded(self._unloaded) if self._waits else ()
        found = of_verdicts(self.evidence, checks)
        return (*unloaded, *found, *of_reaches(self.reaches), *of_seams(unjudged), *certified)

    @cached_property
    def pending(self) -> str:
        """The hash of the evidence that waits for approval; empty if none does, or if none could be approved."""
        if not self._releasable or not self.unit.campaign:
            return ""
        needed = needs_approval(self.campaign, self.unit.targets, self.reviews.definitions)
        return approved(self.reviews.ledger, self.unit, self.evidence, self.reviews.roles).pending if needed else ""

    @cached_property
    def campaign(self) -> Campaign | None:
        return self.reviews.ledger.campaign_of(self.unit.id)

    @property
    def _waits(self) -> bool:
        return self.unit.state in {UnitState.open, UnitState.rolled_back}

    @property
    def _unloaded(self) -> tuple[str, ...]:
        return tuple(name for name in sorted(self.unit.targets) if name not in self.reviews.tables)

    @property
    def _undoable(self) -> tuple[str, ...]:
        now = self.reviews.clock.now()
        undoable = frozenset[str]().union(*(shown.undoable(now) for shown in self.shown.values()))
        return tuple(r.manifest.release for r in self.records if r.manifest.release in undoable)

    @property
    def _releasable(self) -> str:
        """The hash of evidence that can be released as it is."""
        return self.survey.hash if self.survey is not None and not self.survey.blockers else ""


def as_plain(review: Review) -> dict[str, object]:
    """The review as JSON values, without the machines that ran the batches, because reports are shared.

    A number that is not finite is the text `nan`, `inf` or `-inf`.
    """
    found = {field.name: _finite(plain(getattr(review, field.name))) for field in fields(review)}
    batches = [{name: value for name, value in vars(one).items() if name != "worker"} for one in review.batches]
    return found | {"batches": _finite(plain(batches))}


def review_as_json(review: Review) -> str:
    """The review as JSON text."""
    return json.dumps(as_plain(review), ensure_ascii=False, allow_nan=False)


def _finite(value: object) -> object:
    match value:
        case dict():
            return {key: _finite(one) for key, one in value.items()}
        case list():
            return [_finite(one) for one in value]
        case float() if not math.isfinite(value):
            return str(value)
        case _:
            return value
