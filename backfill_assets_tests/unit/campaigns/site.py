"""A campaign at work in a small world: real ledger and tables, a scheduler that does what tests tell it to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backfill_assets.campaigns.conducting.campaign_standing import Standings
from backfill_assets.campaigns.conducting.conductor import Conductor
from backfill_assets.campaigns.conducting.control import Control
from backfill_assets.campaigns.conducting.gatekeeper import Batch, Gatekeeper
from backfill_assets.campaigns.planning.workload import Workload
from backfill_assets.catalog import Catalog, Language, Layer, LoadedDataset, Model
from backfill_assets.domain.campaign import Action, Campaign, JournalEntry, Knobs, Phase
from backfill_assets.domain.campaign_ports import BackfillRequest
from backfill_assets.domain.evidence import DayEvidence
from backfill_assets.domain.gate import Admitted
from backfill_assets.domain.plan import Days, Estimate, Plan, PlannedDataset
from backfill_assets.domain.specification import Notice, Specification
from backfill_assets.ledger import SqlLedger
from backfill_assets_tests.unit.campaigns.campaign_world import CampaignWorld, User
from backfill_assets_tests.unit.campaigns.world import SetBasis
from backfill_assets_tests.unit.published.tables import day

ID = "fix-sales"
DAYS = tuple(day(i) for i in range(1, 7))
CANARIES = (DAYS[0], DAYS[-1])


@dataclass
class Scheduler:
    """Backfills that run when a test says so, and live runs that are at work until it says otherwise."""

    requests: list[BackfillRequest] = field(default_factory=list)
    at_work: list[str] = field(default_factory=list)
    live: tuple[str, ...] = ()
    failed_of: str = ""
    failed_run: str = "run_9"

    def launch(self, request: BackfillRequest) -> str:
        self.requests.append(request)
        self.at_work.append(f"b{len(self.requests)}")
        return self.at_work[-1]

    def active(self, campaign: str) -> tuple[str, ...]:
        assert campaign == ID
        return tuple(self.at_work)

    def cancel(self, campaign: str) -> int:
        assert campaign == ID
        gone, self.at_work = len(self.at_work), []
        return gone

    def failure(self, campaign: str, but: Collection[str] = ()) -> str:
        assert campaign == ID
        return "" if self.failed_run in but else self.failed_of


@dataclass
class LiveRunsOf:
    """The live runs of a scheduler."""

    scheduler: Scheduler

    def active(self) -> tuple[str, ...]:
        return self.scheduler.live


class Site:
    """One campaign over six days of `sales`, two of them canaries, and everything that acts on it."""

    def __init__(
        self,
        folder: Path,
        *,
        scheduler: Scheduler | None = None,
        approval: Mapping[str, object] | None = None,
        first_id: int = 0,
        **execution: object,
    ) -> None:
        self.world = CampaignWorld(folder, first_id=first_id)
        self.folder = folder
        self.scheduler = scheduler or Scheduler()
        self.told: list[tuple[Notice, str]] = []
        self.specification = Specification.model_validate(
            {
                "backfill_id": ID,
                "owner": "sales-data",
                "source_range": {"start": str(DAYS[0]), "end": str(DAYS[-1])},
                "target": {"dataset": "sales", "partition_key": "day"},
                "reason": {"change": "count every sale once"},
                "approval": approval or {"required": False},
                "execution": {"canary": {"partitions": 2}, "partitions_per_batch": 2, **execution},
            }
        )

    @property
    def basis(self) -> SetBasis:
        assert isinstance(self.world.basis, SetBasis)
        return self.world.basis

    @property
    def ledger(self) -> SqlLedger:
        return self.world.ledger

    def make_plan(self, specification: Specification, canaries: Days | None = None) -> Plan:
        days = specification.source_range.days
        planned = PlannedDataset("sales", ("raw", "staging", "shadow"), days, self.basis.code("sales"), {}, 10, 100)
        chosen = CANARIES if canaries is None else canaries
        estimate = Estimate(10, 100, 3, 1.0)
        return Plan(ID, specification.hash, self.world.clock.now(), (planned,), chosen, (), estimate)

    def plan(self) -> Campaign:
        campaign = Campaign(self.specification, self.make_plan(self.specification), Knobs(1, 2), self.world.clock.now())
        return self.ledger.add_campaign(campaign, JournalEntry(ID, campaign.created_at, "ada", Action.planned))

    @property
    def gatekeeper(self) -> Gatekeeper:
        model = Model(Layer.fact, self.folder / "fact.sql", Language.sql, "")
        loaded = {
            name: LoadedDataset(d, self.folder, None, model, self.basis.code(name))
            for name, d in self.world.datasets.items()
        }
        workload = Workload(self.ledger, loaded, self.world.tables)
        live = LiveRunsOf(self.scheduler)
        return Gatekeeper(self.ledger, Catalog(loaded), self.world.clock, live, workload)

    @property
    def conductor(self) -> Conductor:
        def tell(_: Campaign, notice: Notice, text: str) -> None:
            self.told.append((notice, text))

        publisher = self.world.guarded()
        return Conductor(self.ledger, self.world.clock, publisher, self.gatekeeper, self.scheduler, tell)

    @property
    def control(self) -> Control:
        return Control(
            self.ledger, self.gatekeeper.catalog, self.world.clock, self.world.ids, User("ada"),
            self.conductor, self.make_plan, self.conductor.tell,
        )  # fmt: skip

    @property
    def standings(self) -> Standings:
        return Standings(self.ledger, self.world.guarded(), self.gatekeeper)

    def campaign(self) -> Campaign:
        return self.ledger.campaign(ID)

    def phase(self) -> Phase:
        return self.campaign().phase

    def actions(self) -> list[Action]:
        return [entry.action for entry in self.ledger.journal(ID)]

    def conduct(self) -> str:
        return self.conductor.conduct(ID)

    def run(self, *, but: Collection[dt.date] = (), failing: Collection[dt.date] = ()) -> list[Days]:
        """Run the newest backfill to its end, as runs do: batch by batch through the gate; the batches that were built."""
        request, done = self.scheduler.requests[-1], list[Days]()
        days = [d for d in request.days if d not in but]
        while days:
            size = self.campaign().knobs.partitions_per_batch
            batch, days = tuple(days[:size]), days[size:]
            if not isinstance(self.gatekeeper.ask(ID, Batch("sales", batch)), Admitted):
                break
            self.build(batch, failing=failing)
            done.append(batch)
            if set(batch) & set(failing):
                self.conductor.halt(ID, "days failed their checks")
                break
        self.scheduler.at_work = []
        return done

    def build(self, batch: Sequence[dt.date], *, failing: Collection[dt.date] = ()) -> None:
        unit = self.ledger.unit(self.campaign().unit)
        for d in batch:
            self.world.build(unit, "sales", {d: [d.day, d.day]}, passed=d not in failing)

    def evidence(self) -> dict[dt.date, DayEvidence]:
        return {d: e for (_, d), e in self.ledger.evidence(self.campaign().unit).items()}
