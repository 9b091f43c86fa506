"""A small world for release tests: real Delta tables, a real SQLite ledger, time and names under control."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from backfill_assets.campaigns.building.basis import CurrentBasis
from backfill_assets.campaigns.building.road import Road
from backfill_assets.campaigns.examining.doctor import Doctor
from backfill_assets.campaigns.examining.repair import Repairer
from backfill_assets.campaigns.releasing.publish import Publisher
from backfill_assets.campaigns.releasing.reconcile import Reconcile
from backfill_assets.campaigns.releasing.rollback import Rollback
from backfill_assets.campaigns.releasing.steps import no_checkpoint
from backfill_assets.campaigns.releasing.sweep import Sweep
from backfill_assets.catalog import Language, Layer, LoadedDataset, Model
from backfill_assets.domain.checks_config import Severity
from backfill_assets.domain.dataset import Dataset, LateData, Upstream
from backfill_assets.domain.evidence import Basis, DayEvidence
from backfill_assets.domain.health import Finding, Gravity
from backfill_assets.domain.health_ports import EventLog
from backfill_assets.domain.measurement import NOTHING, ROW_COUNT, DayMeasurement, Side, SourceState
from backfill_assets.domain.release import layout_digest
from backfill_assets.domain.units import Launch, ReleaseMode, Unit
from backfill_assets.domain.verdict import Verdict
from backfill_assets.domain.work import Attempt, AttemptState
from backfill_assets.lakehouse.published import DeltaPublishedTable
from backfill_assets.lakehouse.stored_tables import DeltaStoredTables
from backfill_assets.ledger import LockPace, SqlLedger
from backfill_assets.reports.folder import ReportFolder
from backfill_assets_tests.harness.ledgers import opened_ledger
from backfill_assets_tests.unit.published.tables import (
    TestClock,
    content,
    dataset,
    layout,
    rows_of,
    write_shadow,
)

CHECKS = ("unique_key", "row_count_change")
LEASE = dt.timedelta(minutes=5)
QUICK = LockPace(poll=dt.timedelta(milliseconds=5))


class CountedIds:
    """Names that count up; `start` keeps two processes apart."""

    def __init__(self, start: int = 0) -> None:
        self._numbers = itertools.count(start + 1)

    def new(self, prefix: str) -> str:
        return f"{prefix}_{next(self._numbers):04}"


class Ada:
    """Always the same user."""

    def name(self) -> str:
        return "ada"


@dataclass
class SetBasis:
    """A basis that tests set: code by dataset, inputs by dataset and day."""

    codes: dict[str, str] = field(default_factory=dict)
    changed: dict[tuple[str, dt.date], str] = field(default_factory=dict)

    def inputs(self, name: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        return {d: self.changed.get((name, d), "as delivered") for d in days}

    def upstream(self, name: str, days: Collection[dt.date], unit: Unit | None = None) -> Mapping[dt.date, str]:  # noqa: ARG002  # none has one
        return dict.fromkeys(days, "")

    def code(self, name: str) -> str:
        return self.codes.get(name, "c0de")

    def checks(self, name: str) -> tuple[str, ...]:  # noqa: ARG002  # every dataset has the same
        return CHECKS


@dataclass
class TableFingerprints:
    """Fingerprints of what delta-rs reads from the published tables."""

    homes: Mapping[str, Path]
    asked: list[tuple[str, tuple[dt.date, ...]]] = field(default_factory=list)

    def of(self, name: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        self.asked.append((name, tuple(sorted(days))))
        found = content(self.homes[name])
        return {d: fingerprint(found.get(d, ())) for d in days}


def fingerprint(amounts: Sequence[int]) -> str:
    return hashlib.sha256(repr(sorted(amounts)).encode()).hexdigest()[:16] if amounts else ""


class World:
    """Everything that a release needs, below one folder; a second one on the same folder is another process.

    A name such as `sales<orders` is a dataset that is built from another one. The ledger is a file in the folder unless its
    URL is given.
    """

    def __init__(
        self,
        folder: Path,
        described: Sequence[str] = ("sales",),
        first_id: int = 0,
        clock: TestClock | None = None,
        ledger: str = "",
    ) -> None:
        names = [name.split("<")[0] for name in described]
        self.described = tuple(described)
        self.folder = folder
        self.wait = dt.timedelta(seconds=30)
        self.clock = clock or TestClock()
        self.ids = CountedIds(first_id)
        self.basis: SetBasis | CurrentBasis = SetBasis()
        self.events: EventLog | None = None
        self.datasets = {text.split("<")[0]: derived(*text.split("<")) for text in described}
        self.homes = {name: layout(folder).published_path(name) for name in names}
        self.tables = {name: DeltaPublishedTable(layout(folder), self.datasets[name], self.clock) for name in names}
        self.fingerprints = TableFingerprints(self.homes)
        self.ledger: SqlLedger = opened_ledger(ledger or f"sqlite:///{folder / 'ledger.db'}", self.clock, QUICK)

    def publisher(self, checkpoint: Callable[[str], None] = no_checkpoint) -> Publisher:
        return Publisher(
            self.ledger, self.tables, self.clock, self.ids, Ada(), self.fingerprints, self.basis,
            datasets=self.datasets, wait=self.wait, checkpoint=checkpoint,
        )  # fmt: skip

    def rollback(self, checkpoint: Callable[[str], None] = no_checkpoint) -> Rollback:
        return Rollback(self.ledger, self.tables, self.clock, self.ids, Ada(), self.wait, checkpoint, self.datasets)

    def reconcile(self) -> Reconcile:
        return Reconcile(self.ledger, self.tables, self.clock, self.datasets)

    def sweep(self) -> Sweep:
        return Sweep(self.ledger, self.tables, self.clock)

    def doctor(self) -> Doctor:
        places = (DeltaStoredTables(layout(self.folder)), ReportFolder(self.folder / "reports"))
        return Doctor(self.ledger, self.tables, self.clock, *places, self.datasets, events=self.events)

    def repairer(self) -> Repairer:
        return Repairer(self.doctor(), self.reconcile(), Ada())

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
        evidence = []
        for d in days:
            digest = layout_digest(active.get(d, ()))
            basis = Basis(
                self.basis.inputs(name, [d])[d],
                self.basis.code(name),
                unit.contract.of(name).hash,
                digest,
                self.basis.upstream(name, [d], unit)[d],
            )
            measured = DayMeasurement(d, side(data[d]), side(published.get(d, ())), NOTHING, SourceState(1))
            verdicts = tuple(
                Verdict(c, d, passed or c != "unique_key", Severity.error, True, "no duplicate", "what is there")
                for c in self.basis.checks(name)
            )
            evidence.append(
                DayEvidence(
                    unit.id, attempt.number, name, d, basis, files.get(d, ()), measured, verdicts, self.clock.now()
                )
            )
        self.ledger.add_evidence(attempt.number, evidence)
        self.ledger.end_attempt(attempt.number, AttemptState.done)

    def days_to_build(self, unit: str, name: str) -> tuple[dt.date, ...]:
        """The days that a run would build, whatever launched it."""
        basis: Any = self.basis
        road = Road(self.ledger, {}, self.tables, layout(self.folder), basis, self.clock)
        opened = self.ledger.unit(unit)
        return road.days_to_build(opened, name, opened.targets[name])

    def released(self, data: Mapping[dt.date, Sequence[int]], name: str = "sales") -> str:
        """Open, build and release a unit; the release's name."""
        unit = self.open_unit({name: sorted(data)})
        self.build(unit, name, data)
        return self.publisher().release(unit.id).releases[name]

    def content(self, name: str = "sales") -> dict[dt.date, list[int]]:
        return content(self.homes[name])

    def close(self) -> None:
        self.ledger.close()


def explained(world: World) -> tuple[Finding, ...]:
    """Right after a crash the doctor finds nothing that only a backup could mend; what it finds."""
    found = world.repairer().doctor.examine()
    assert [str(f) for f in found if f.severity is Gravity.error and f.cure is None] == []
    return found


def lost_ledger(world: World) -> World:
    """The same folder with an empty ledger: the old one is closed and out of the way."""
    world.close()
    for path in world.folder.glob("ledger.db*"):
        shutil.move(path, path.with_name(f"lost_{path.name}"))
    return World(world.folder, world.described, 5000)


def mended(world: World) -> None:
    """After what follows a crash nothing is left but what a repair mends, such as the lock of the dead."""
    done = world.repairer().repair()
    assert [str(one) for one in done if one.fault] == []
    assert [str(f) for f in world.repairer().doctor.examine()] == []


class TwoChecks(CurrentBasis):
    """The real basis, with the two checks for which the world makes verdicts."""

    def checks(self, dataset: str) -> tuple[str, ...]:  # noqa: ARG002
        return CHECKS


def loaded(dataset: Dataset, folder: Path) -> LoadedDataset:
    """A dataset as if its folder had been loaded; there are no models in it."""
    fact = Model(Layer.fact, folder / "fact.sql", Language.sql, "")
    return LoadedDataset(dataset, folder, None if dataset.source is None else fact, fact, "c0de")


def derived(name: str, *upstream: str, lookback: int = 0) -> Dataset:
    """A dataset, built from others instead of deliveries if some are named."""
    above = {other: Upstream(lookback_days=lookback) for other in upstream}
    return dataset(name).model_copy(update={"source": None, "upstream": above} if above else {})


def side(amounts: Sequence[int]) -> Side:
    return Side(metrics={ROW_COUNT: Decimal(len(amounts))}, fingerprint=fingerprint(amounts))
