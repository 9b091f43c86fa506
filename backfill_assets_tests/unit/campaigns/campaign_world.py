"""A world with campaigns: specification, plan, unit, evidence, and everybody who does something with them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backfill_assets.campaigns.conducting.aftermath import Aftermath
from backfill_assets.campaigns.conducting.approving import Approving
from backfill_assets.campaigns.conducting.campaign_release import CampaignRelease
from backfill_assets.campaigns.conducting.drift import drift_of
from backfill_assets.campaigns.conducting.guard import CampaignGuard
from backfill_assets.campaigns.conducting.notifying import Notifier
from backfill_assets.campaigns.conducting.sign_off import SignOff
from backfill_assets.campaigns.examining.doctor import Doctor
from backfill_assets.campaigns.examining.repair import Repairer
from backfill_assets.campaigns.releasing.approvals import Approved, approved, current_evidence
from backfill_assets.campaigns.releasing.data_releases import DataReleases
from backfill_assets.campaigns.releasing.preview import Preview
from backfill_assets.campaigns.releasing.publish import Publisher
from backfill_assets.campaigns.releasing.reconcile import Reconcile
from backfill_assets.campaigns.releasing.rollback import Rollback
from backfill_assets.domain.campaign import Action, Campaign, JournalEntry, Knobs, Phase
from backfill_assets.domain.errors import EngineError
from backfill_assets.domain.plan import Estimate, Plan, PlannedDataset
from backfill_assets.domain.reader_ports import Notices
from backfill_assets.domain.specification import Specification
from backfill_assets.domain.units import Launch, ReleaseMode, Unit
from backfill_assets.lakehouse.published import DeltaReleasesTable
from backfill_assets_tests.unit.campaigns.world import World
from backfill_assets_tests.unit.published.tables import day, layout

DAYS = (day(0), day(1), day(2))
ROLES = {"finance-controller": ("anna", "ben"), "finance-data": ("dora",)}
NAME = "tax-fix-2026"


@dataclass(frozen=True)
class User:
    """Somebody at work."""

    called: str

    def name(self) -> str:
        return self.called


class Post:
    """Takes every notice and keeps it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def send(self, webhook: str, text: str) -> None:
        self.sent.append((webhook, text))


class Catalogue:
    """Previews by dataset, with what they were made of; `broken` stands for a Spark that cannot be reached."""

    def __init__(self) -> None:
        self.views: dict[str, tuple[str, tuple[dt.date, ...], dict[str, tuple[dt.date, ...]]]] = {}
        self.broken = False

    def show(self, dataset: str, unit: str, days: Sequence[dt.date], shadows: Mapping[str, Sequence[dt.date]]) -> str:
        self.views[dataset] = (unit, tuple(days), {folder: tuple(own) for folder, own in shadows.items()})
        return f"preview.{dataset}"

    def shown(self) -> Mapping[str, str]:
        return {dataset: unit for dataset, (unit, _, _) in self.views.items()}

    def drop(self, datasets: Sequence[str]) -> None:
        if self.broken:
            raise EngineError("no Spark")
        for dataset in datasets:
            self.views.pop(dataset, None)


def specification(**changes: object) -> Specification:
    plain: dict[str, object] = {
        "backfill_id": NAME,
        "owner": "finance-data",
        "source_range": {"start": str(DAYS[0]), "end": str(DAYS[-1])},
        "target": {"dataset": "sales", "partition_key": "day"},
        "reason": {"issue": "FIN-2841", "change": "Correct the tax"},
        "approval": {"required": True, "by": ["finance-controller"]},
    }
    return Specification.from_plain(plain | changes)


class CampaignWorld(World):
    """A world in which campaigns are approved, published, undone and closed."""

    def __init__(self, folder: Path, names: Sequence[str] = ("sales",), first_id: int = 0) -> None:
        super().__init__(folder, names, first_id)
        self.post: Notices = Post()
        self.catalogue = Catalogue()
        self.data_releases = DataReleases(self.ledger, DeltaReleasesTable(layout(folder)))

    def notifier(self) -> Notifier:
        return Notifier(self.ledger, self.post, self.clock, User("ada"))

    def aftermath(self) -> Aftermath:
        tell = self.notifier().tell
        tidy = Preview(self.ledger, self.catalogue).tidy
        return Aftermath(self.ledger, self.data_releases, tell, lambda name: self.tables[name].keep_for, tidy)

    def guard(self) -> CampaignGuard:
        return CampaignGuard(self.ledger, self.tables, self.clock, self.drift, roles=ROLES)

    def drift(self, campaign: Campaign) -> str:
        return drift_of(campaign, {name: self.basis.code(name) for name in self.datasets})

    def guarded(self, user: str = "ada") -> Publisher:
        return replace(self.publisher(), guard=self.guard(), after=self.aftermath(), identity=User(user))

    def undoer(self, user: str = "ada") -> Rollback:
        return replace(self.rollback(), after=self.aftermath(), identity=User(user))

    def mender(self) -> Reconcile:
        return Reconcile(self.ledger, self.tables, self.clock, self.datasets, self.aftermath().repairing())

    def examiner(self) -> Doctor:
        return replace(self.doctor(), data_releases=self.data_releases)

    def repairer(self) -> Repairer:
        return Repairer(self.examiner(), self.mender(), User("ada"))

    def release(self, user: str = "ada") -> CampaignRelease:
        return CampaignRelease(self.ledger, self.guarded(user), self.guard())

    def approving(self, user: str = "anna") -> Approving:
        return Approving(self.ledger, self.guarded(user), self.clock, User(user), ROLES, self.drift)

    def sign_off(self) -> SignOff:
        return SignOff(self.ledger, self.tables, self.clock, User("ada"), self.sweep())

    def planned(self, targets: Mapping[str, Sequence[dt.date]], **changes: object) -> Campaign:
        asked, now = specification(**changes), self.clock.now()
        datasets = tuple(
            PlannedDataset(n, ("shadow",), tuple(d), self.basis.code(n), {}, 0, 0) for n, d in targets.items()
        )
        plan = Plan(asked.backfill_id, asked.hash, now, datasets, (), (), Estimate(0, 0, 0, 0.0))
        campaign = Campaign(asked, plan, Knobs(1, 7), now)
        return self.ledger.add_campaign(campaign, JournalEntry(campaign.id, now, "ada", Action.planned))

    def launched(
        self, targets: Mapping[str, Sequence[dt.date]] | None = None, **changes: object
    ) -> tuple[Campaign, Unit]:
        """A campaign that runs, with an open unit and nothing built yet."""
        wanted = targets or {"sales": DAYS}
        campaign = self.planned(wanted, **changes)
        opened_by = f"campaign:{campaign.id}"
        contract = campaign.specification.contract(tuple(wanted))
        days = {n: tuple(d) for n, d in wanted.items()}
        proposal = Unit(self.ids.new("u"), opened_by, self.clock.now(), "ada", days, ReleaseMode.manual, contract)
        unit = self.ledger.assign(Launch({n: frozenset(d) for n, d in wanted.items()}, opened_by), proposal)
        return self.turned(replace(campaign, unit=unit.id), Phase.running, Action.launched), unit

    def turned(self, campaign: Campaign, phase: Phase, action: Action, by: str = "ada") -> Campaign:
        entry = JournalEntry(campaign.id, self.clock.now(), by, action, "because")
        return self.ledger.change_campaign(replace(campaign, phase=phase), frozenset(Phase), entry)

    def validated(self, amount: int = 2, **changes: object) -> tuple[Campaign, Unit]:
        """A campaign whose every day has passed."""
        campaign, unit = self.launched(**changes)
        for name, days in unit.targets.items():
            self.build(unit, name, {d: [amount] for d in days})
        return campaign, unit

    def approved(self, **changes: object) -> tuple[Campaign, Unit]:
        campaign, unit = self.validated(**changes)
        self.approve(campaign)
        return campaign, unit

    def approve(self, campaign: Campaign, user: str = "anna") -> None:
        self.approving(user).approve(campaign.id, self.approval_of(campaign.unit).pending)

    def approval_of(self, unit_id: str) -> Approved:
        """What of a unit waits for an approval, and what has one."""
        unit = self.ledger.unit(unit_id)
        return approved(self.ledger, unit, current_evidence(self.ledger, unit), ROLES)

    def actions(self, campaign: Campaign) -> list[Action]:
        return [entry.action for entry in self.ledger.journal(campaign.id)]
