"""The one wiring of the tests: real Delta tables, a real ledger, controlled time and names, and every use case on them."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from backfill_assets.campaign.gate import Admitted
from backfill_assets.campaign.plan import Estimate, Plan, PlannedDataset, steps
from backfill_assets.campaign.specification import Notice, Specification
from backfill_assets.campaign.state import Action, Campaign, JournalEntry, Knobs, Phase
from backfill_assets.control.approve import Approved, Approving, approved, current_evidence
from backfill_assets.control.commands import Control
from backfill_assets.control.conductor import Batch, Conductor, Gatekeeper
from backfill_assets.control.publication import CampaignGuard, CampaignRelease
from backfill_assets.control.sign_off import SignOff
from backfill_assets.control.standing import Standings
from backfill_assets.core.days import Days
from backfill_assets.core.evidence import Basis, DayEvidence, Severity, Verdict
from backfill_assets.core.layers import Layer
from backfill_assets.core.measured import NOTHING, ROW_COUNT, DayMeasurement, Side, SourceState
from backfill_assets.core.release import layout_digest
from backfill_assets.core.unit import Attempt, AttemptState, LateData, Launch, ReleaseMode, Unit
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.dataset.parts import code_parts
from backfill_assets.delta.releases_table import ReleasesTable
from backfill_assets.delta.stored_tables import StoredTables
from backfill_assets.delta.table import PublishedTable
from backfill_assets.doctor.doctor import Doctor, Repairer
from backfill_assets.doctor.findings import EventLog, Finding, FindingSeverity
from backfill_assets.evidence.basis import CurrentBasis
from backfill_assets.ledger.database import LockPace
from backfill_assets.ledger.open import Ledger
from backfill_assets.notices.notifier import AfterRelease, Notifier
from backfill_assets.pipeline.batch import Pipeline
from backfill_assets.release.finish import no_checkpoint
from backfill_assets.release.publish import Publisher
from backfill_assets.release.readers import DataReleases, Preview
from backfill_assets.release.reconcile import Reconcile
from backfill_assets.release.rollback import Rollback
from backfill_assets.release.sweep import Sweep
from backfill_assets.storage.layout import ReportFolder
from backfill_assets.warehouse import Warehouse
from backfill_assets_tests.harness.actors import (
    CountedIds,
    Post,
    Previews,
    Scheduler,
    SetBasis,
    TableFingerprints,
    User,
)
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.ledgers import opened_ledger
from backfill_assets_tests.harness.objects import folder_of
from backfill_assets_tests.harness.specifications import CANARIES, DAYS, specification
from backfill_assets_tests.harness.tables import content, derived, fingerprint, layout, loaded, rows_of, write_shadow

LEASE = dt.timedelta(minutes=5)
QUICK = LockPace(poll=dt.timedelta(milliseconds=5))
ROLES = {"finance-controller": ("anna", "ben"), "finance-data": ("dora",)}


class Homes(Mapping[str, Path]):
    """The folders of the published tables, also of those that were adopted in the meantime."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._layout = layout(folder)
        self._names = list(names)

    def __getitem__(self, name: str) -> Path:
        return folder_of(self._layout.leads_to(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        """Another dataset, which the world got later."""
        self._names.append(name)


class World:
    """Everything that tables, releases and campaigns need, below one folder; a second one on it is another process.

    A dataset called `sales<orders` is built from another one. The ledger is a file in the folder unless its URL is given.
    A world with a campaign respects campaigns: its doctor and its repairs know their journals and data releases.
    """

    def __init__(
        self, folder: Path, described: Sequence[str] = ("sales",), first_id: int = 0, *,
        clock: FixedClock | None = None, ledger: str = "", scheduler: Scheduler | None = None,
        asked: Specification | None = None, pace: LockPace = QUICK,
    ) -> None:  # fmt: skip
        names = [name.split("<")[0] for name in described]
        self.described = tuple(described)
        self.folder = folder
        self.wait = dt.timedelta(seconds=30)
        self.clock = clock or FixedClock()
        self.ids = CountedIds(first_id)
        self.basis: SetBasis | CurrentBasis = SetBasis()
        self.events: EventLog | None = None
        self.datasets = {text.split("<")[0]: derived(*text.split("<")) for text in described}
        self.homes = Homes(folder, names)
        self.tables = {name: PublishedTable(layout(folder), self.datasets[name], self.clock) for name in names}
        self.fingerprints = self.basis.fingerprints = TableFingerprints(self.homes)
        self.ledger: Ledger = opened_ledger(ledger or f"sqlite:///{folder / 'ledger.db'}", self.clock, pace)
        self.data_releases = DataReleases(self.ledger, ReleasesTable(layout(folder)))
        self.post = Post()
        self.previews = Previews()
        self.scheduler = scheduler or Scheduler()
        self.notices: list[tuple[Notice, str]] = []
        self.measure: Callable[[Sequence[int]], Side] = side
        self.asked = asked

    def close(self) -> None:
        self.ledger.close()

    def warehouse(self, user: str = "ada") -> Warehouse:
        """What acts take in the present state."""
        catalog = Catalog({name: loaded(d, self.folder, self.basis.code(name)) for name, d in self.datasets.items()})
        return Warehouse(catalog, layout(self.folder), self.tables, self.ledger, self.clock, self.ids, User(user))

    # Use cases on tables and their releases.

    def publisher(self, checkpoint: Callable[[str], None] = no_checkpoint) -> Publisher:
        return Publisher(self.warehouse(), self.fingerprints, self.basis, self.wait, checkpoint)

    def rollback(self, checkpoint: Callable[[str], None] = no_checkpoint) -> Rollback:
        return Rollback(self.warehouse(), self.wait, checkpoint)

    def reconcile(self) -> Reconcile:
        plain = Reconcile(self.warehouse())
        return replace(plain, after=self.after_release().repairing()) if self.asked else plain

    def sweep(self) -> Sweep:
        return Sweep(self.warehouse())

    def doctor(self) -> Doctor:
        places = (StoredTables(layout(self.folder)), ReportFolder(self.folder / "reports"))
        return Doctor(self.warehouse(), *places, self.data_releases if self.asked else None, events=self.events)

    def repairer(self) -> Repairer:
        return Repairer(self.doctor(), self.reconcile())

    # Use cases on campaigns; their publisher and rollback respect the campaign's rules, and report what they did.

    def notifier(self) -> Notifier:
        return Notifier(self.warehouse(), self.post.send)

    def after_release(self) -> AfterRelease:
        tidy = Preview(self.ledger, self.previews).tidy
        return AfterRelease(self.warehouse(), self.data_releases, self.notifier().notify, tidy)

    def guard(self) -> CampaignGuard:
        return CampaignGuard(self.warehouse(), roles=ROLES)

    def campaign_publisher(self, user: str = "ada") -> Publisher:
        own = self.warehouse(user)
        return replace(self.publisher(), warehouse=own, guard=self.guard(), after=self.after_release())

    def campaign_rollback(self, user: str = "ada") -> Rollback:
        return replace(self.rollback(), warehouse=self.warehouse(user), after=self.after_release())

    def release(self, user: str = "ada") -> CampaignRelease:
        return CampaignRelease(self.warehouse(user), self.campaign_publisher(user), self.guard())

    def approving(self, user: str = "anna") -> Approving:
        return Approving(self.warehouse(user), self.campaign_publisher(user), ROLES)

    def sign_off(self) -> SignOff:
        return SignOff(self.warehouse())

    @property
    def gatekeeper(self) -> Gatekeeper:
        return Gatekeeper(self.warehouse(), lambda: self.scheduler.live)

    @property
    def conductor(self) -> Conductor:
        def notify(_: Campaign, notice: Notice, text: str) -> None:
            self.notices.append((notice, text))

        return Conductor(self.warehouse(), self.campaign_publisher(), self.gatekeeper, self.scheduler, notify)

    @property
    def control(self) -> Control:
        return Control(self.warehouse(), self.conductor, self.make_plan, self.conductor.notify)

    @property
    def standings(self) -> Standings:
        return Standings(self.warehouse(), self.campaign_publisher(), self.gatekeeper, self.guard().obstacles)

    # Units, and campaigns in any phase.

    def open_unit(
        self,
        targets: Mapping[str, Sequence[dt.date]],
        *,
        live: bool = False,
        late_data: LateData = LateData.hold,
    ) -> Unit:
        unit_id = self.ids.new("u")
        launch = Launch({n: frozenset(d) for n, d in targets.items()}, f"launch_{unit_id}", None, live, late_data)
        days = {n: tuple(d) for n, d in targets.items()}
        proposal = Unit(unit_id, launch.opened_by, self.clock.now(), "ada", days, ReleaseMode.auto, live=live)
        return self.ledger.assign(launch, proposal)

    def build(
        self,
        unit: Unit,
        name: str,
        data: Mapping[dt.date, Sequence[int]],
        *,
        passed: bool = True,
        attempt: Attempt | None = None,
    ) -> None:
        """One attempt: write a shadow, and record its evidence, with what is published now as its basis."""
        days = sorted(data)
        attempt = attempt or self.ledger.start_attempt(unit.id, name, days, f"run_{self.ids.new('n')}", LEASE)
        full = {d: amounts for d, amounts in data.items() if amounts}
        if full:
            write_shadow(self.homes[name], attempt.folder, rows_of(full, unit.id))
        active = self.tables[name].active(days)
        files = self.tables[name].shadow_files(attempt.folder, days)
        published = content(self.homes[name])
        known = isinstance(self.basis, CurrentBasis)
        parts = self.ledger.add_code(name, code_parts(self.basis.datasets[name])) if known else ""
        evidence = []
        for d in days:
            digest, behind = layout_digest(active.get(d, ())), self.basis.behind(name, [d])[d]
            basis = Basis(
                behind.inputs,
                self.basis.code(name),
                unit.contract.of(name).hash,
                digest,
                self.basis.upstream(name, [d], unit)[d],
            )
            measured = DayMeasurement(
                d, self.measure(data[d]), self.measure(published.get(d, ())), NOTHING, SourceState(1)
            )
            verdicts = tuple(
                Verdict(c, d, passed or c != "unique_key", Severity.error, True, "no duplicate", "what is there")
                for c in self.basis.checks(name)
            )
            evidence.append(
                DayEvidence(
                    unit.id,
                    attempt.number,
                    name,
                    d,
                    basis,
                    files.get(d, ()),
                    measured,
                    verdicts,
                    self.clock.now(),
                    deliveries=behind.deliveries,
                    references=behind.references,
                    parts=parts,
                )
            )
        self.ledger.add_evidence(attempt.number, evidence)
        self.ledger.end_attempt(attempt.number, AttemptState.done)

    def days_to_build(self, unit: str, name: str) -> tuple[dt.date, ...]:
        """The days that a run would build, however it was launched."""
        basis: Any = self.basis
        pipeline = Pipeline(self.warehouse(), basis)
        opened = self.ledger.unit(unit)
        return pipeline.days_to_build(opened, name, opened.targets[name])

    def released(self, data: Mapping[dt.date, Sequence[int]], name: str = "sales") -> str:
        """Open, build and release a unit; returns the release's name."""
        unit = self.open_unit({name: sorted(data)})
        self.build(unit, name, data)
        return self.publisher().release(unit.id).releases[name]

    def content(self, name: str = "sales") -> dict[dt.date, list[int]]:
        return content(self.homes[name])

    def planned(self, targets: Mapping[str, Sequence[dt.date]], **changes: object) -> Campaign:
        asked, now = specification(**changes), self.clock.now()
        datasets = tuple(
            PlannedDataset(n, (Layer.shadow,), tuple(d), self.basis.code(n), {}, 0, 0) for n, d in targets.items()
        )
        plan = Plan(
            asked.backfill_id, asked.hash, now, datasets, (), steps(asked, datasets, (), 7), Estimate(0, 0, 0, 0.0)
        )
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
        """Which evidence of a unit waits for an approval, and which has one."""
        unit = self.ledger.unit(unit_id)
        return approved(self.ledger, unit, current_evidence(self.ledger, unit), ROLES)

    # The one campaign that `specification` asks for, with canaries and a scheduler that runs on request.

    def make_plan(self, asked: Specification, canaries: Days | None = None) -> Plan:
        days = asked.source_range.days
        planned = PlannedDataset(
            "sales", (Layer.raw, Layer.staging, Layer.shadow), days, self.basis.code("sales"), {}, 10, 100
        )
        chosen = CANARIES if canaries is None else canaries
        estimate = Estimate(10, 100, 3, 1.0)
        taken = steps(asked, (planned,), chosen, 7)
        return Plan(asked.backfill_id, asked.hash, self.clock.now(), (planned,), chosen, taken, estimate)

    def plan(self) -> Campaign:
        campaign = Campaign(self.specification, self.make_plan(self.specification), Knobs(1, 2), self.clock.now())
        return self.ledger.add_campaign(campaign, JournalEntry(campaign.id, campaign.created_at, "ada", Action.planned))

    @property
    def specification(self) -> Specification:
        assert self.asked, "this world is asked for no campaign"
        return self.asked

    def campaign(self) -> Campaign:
        return self.ledger.campaign(self.specification.backfill_id)

    def phase(self) -> Phase:
        return self.campaign().phase

    def actions(self, campaign: Campaign | None = None) -> list[Action]:
        return [entry.action for entry in self.ledger.journal((campaign or self.campaign()).id)]

    def conduct(self) -> str:
        return self.conductor.conduct(self.specification.backfill_id)

    def run(self, *, but: Collection[dt.date] = (), failing: Collection[dt.date] = ()) -> list[Days]:
        """Run the newest backfill to its end, as runs do: batch by batch through the gate; returns the batches that were built."""
        campaign, done = self.specification.backfill_id, list[Days]()
        days = [d for d in self.scheduler.requests[-1].days if d not in but]
        while days:
            size = self.campaign().knobs.partitions_per_batch
            batch, days = tuple(days[:size]), days[size:]
            if not isinstance(self.gatekeeper.ask(campaign, Batch("sales", batch)), Admitted):
                break
            entries = len(self.ledger.journal(campaign))
            self.build_days(batch, failing=failing)
            done.append(batch)
            if set(batch) & set(failing):
                self.conductor.halt(campaign, "days failed their checks", entries)
                break
        self.scheduler.at_work = []
        return done

    def build_days(self, batch: Sequence[dt.date], *, failing: Collection[dt.date] = ()) -> None:
        unit = self.ledger.unit(self.campaign().unit)
        for d in batch:
            self.build(unit, "sales", {d: [d.day, d.day]}, passed=d not in failing)

    def evidence(self) -> dict[dt.date, DayEvidence]:
        return {d: e for (_, d), e in self.ledger.evidence(self.campaign().unit).items()}


def explained(world: World) -> tuple[Finding, ...]:
    """Right after a crash the doctor finds nothing that only a backup could repair; returns what it finds."""
    found = world.doctor().examine()
    assert [str(f) for f in found if f.severity is FindingSeverity.error and f.repair is None] == []
    return found


def repaired(world: World) -> None:
    """After the recovery from a crash, a repair ends all that is left, such as the lock of the dead process."""
    done = world.repairer().repair()
    assert [str(one) for one in done if one.problem] == []
    assert [str(f) for f in world.doctor().examine()] == []


def lost_ledger(world: World) -> World:
    """The same folder with an empty ledger: the old one is closed and moved away."""
    world.close()
    for path in world.folder.glob("ledger.db*"):
        shutil.move(path, path.with_name(f"lost_{path.name}"))
    return World(world.folder, world.described, 5000)


def side(amounts: Sequence[int], **counts: int) -> Side:
    return Side({ROW_COUNT: Decimal(len(amounts))}, counts, fingerprint(amounts))
