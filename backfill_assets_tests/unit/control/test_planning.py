"""A plan says what will be built, from what, how long it takes, and what needs attention; it changes nothing."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backfill_assets.campaign.plan import ASSUMED, Plan, StepKind, batches, parse_price
from backfill_assets.campaign.specification import Specification
from backfill_assets.control.figures import FigureReader
from backfill_assets.control.planner import Planner, layers_from, write_plan
from backfill_assets.core.canonical import from_json
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import ClaimedDaysError, InvalidDayError, SpecificationError
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import AttemptState, Hold, Launch, ReleaseMode, Unit, Work
from backfill_assets.dataset.loaded import Catalog, LoadedDataset
from backfill_assets.dataset.sources import OnMissing, Source
from backfill_assets.evidence.basis import CurrentBasis
from backfill_assets.storage.disk import path_of
from backfill_assets.storage.sources import delivered_sizes, discover
from backfill_assets.warehouse import Warehouse
from backfill_assets_tests.harness.specifications import specification
from backfill_assets_tests.harness.tables import dataset, day, derived, layout, loaded
from backfill_assets_tests.harness.world import LEASE, World

pytestmark = pytest.mark.slow

RANGE = tuple(day(i) for i in range(10))


class Office:
    """`sales` with a source, `totals` built from it, and a planner for both."""

    def __init__(self, folder: Path, lookback: int = 0) -> None:
        self.folder = folder
        self.world = World(folder, ("sales", "totals"))
        self.datasets = {"sales": dataset(), "totals": derived("totals", "sales", lookback=lookback)}

    @property
    def loaded(self) -> dict[str, LoadedDataset]:
        return {name: loaded(d, self.folder, f"c0de_{name}") for name, d in self.datasets.items()}

    @property
    def planner(self) -> Planner:
        return Planner(self.warehouse, CurrentBasis(self.warehouse))

    @property
    def warehouse(self) -> Warehouse:
        return replace(self.world.warehouse(), catalog=Catalog(self.loaded))

    def source(self, **changes: object) -> None:
        self.change("sales", source=self.datasets["sales"].landing.model_copy(update=changes))

    def change(self, name: str, **changes: object) -> None:
        self.datasets[name] = self.datasets[name].model_copy(update=changes)

    def deliver(self, date: dt.date, size: int = 10) -> None:
        file = path_of(layout(self.folder).sources) / "x" / f"{date}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x" * size, encoding="utf-8")

    def land(self, *days: dt.date, rows: int = 5, size: int = 100, print_: str = "f") -> None:
        now = self.world.clock.now()
        self.world.ledger.add_deliveries(
            Delivery("sales", d, f"x/{d}.csv", f"{print_}{d}", size, now, now, rows) for d in days
        )

    def release(self, *days: dt.date, names: tuple[str, ...] = ("sales", "totals")) -> None:
        unit = self.world.open_unit(dict.fromkeys(names, days))
        for name in names:
            self.world.build(unit, name, {d: [1, 2] for d in days})
        self.world.publisher().release(unit.id)

    def measure(self, seconds: float, rows: int, dataset: str = "sales") -> None:
        """An attempt of an earlier unit with this duration."""
        unit = self.world.open_unit({dataset: [day(300)]})
        attempt = self.world.ledger.start_attempt(unit.id, dataset, [day(300)], "r", LEASE)
        self.world.clock.advance(dt.timedelta(seconds=seconds))
        self.world.ledger.end_attempt(attempt.number, AttemptState.done, Work(rows, 7 * rows))
        self.world.ledger.move(unit.id, {unit.state}, type(unit.state).discarded)


def spec(**changes: Any) -> Specification:
    own = {
        "backfill_id": "tax-fix",
        "source_range": {"start": str(RANGE[0]), "end": str(RANGE[-1])},
        "execution": {"partitions_per_batch": 4, "canary": {"partitions": 3}},
        "approval": {"required": False},
    }
    return specification(**{**own, **changes})


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    yield made
    made.world.close()


def warned(plan: Plan, text: str) -> list[str]:
    return [warning for warning in plan.warnings if text in warning]


def test_a_plan_names_datasets_upstream_first_with_layers_code_days_and_inputs(office: Office) -> None:
    office.land(*RANGE)
    plan = office.planner.plan(spec())
    assert [(d.name, d.layers, d.code_version) for d in plan.datasets] == [
        ("sales", ("raw", "staging", "shadow"), "c0de_sales"),
        ("totals", ("shadow",), "c0de_totals"),
    ]
    assert plan.targets == {"sales": RANGE, "totals": RANGE}
    assert plan.datasets[0].inputs == office.planner.basis.inputs("sales", RANGE)
    assert plan.created_at == office.world.clock.now()
    assert plan.specification == spec().hash


def test_a_dataset_that_begins_later_is_planned_from_its_start_on(office: Office) -> None:
    office.land(*RANGE)
    office.change("totals", start=RANGE[6])
    plan = office.planner.plan(spec())
    assert plan.targets == {"sales": RANGE, "totals": RANGE[6:]}
    assert set(plan.canaries) == {RANGE[6], RANGE[7], RANGE[9]}
    assert f"sales, then totals (from {RANGE[6]} on)" in plan.steps[0].text
    # Canaries are two runs of days in both; the others are two runs, one of them in two batches, of sales and one day of totals.
    canary, rest = (step.text for step in plan.steps if step.kind in {StepKind.canary, StepKind.rest})
    assert ["in 4 batches" in text for text in (canary, rest)] == [True, True]
    assert plan.estimate.batches == 8


def test_the_scope_decides_on_datasets_and_first_layer(office: Office) -> None:
    plan = office.planner.plan(spec(scope={"from": "staging", "downstream": "none"}))
    assert [(d.name, d.layers) for d in plan.datasets] == [("sales", ("staging", "shadow"))]
    assert warned(plan, "totals is built from sales and not in the scope")
    assert not warned(office.planner.plan(spec()), "not in the scope")


@pytest.mark.parametrize(
    ("first", "layers"),
    [("raw", ("raw", "staging", "shadow")), ("staging", ("staging", "shadow")), ("shadow", ("shadow",))],
)
def test_a_campaign_never_builds_the_published_layer(office: Office, first: str, layers: tuple[str, ...]) -> None:
    assert layers_from(Layer(first), office.datasets["sales"]) == layers
    assert layers_from(Layer(first), office.datasets["totals"]) == ("shadow",)


def test_making_the_same_plan_again_gives_the_same_fingerprint_and_a_new_delivery_another(office: Office) -> None:
    office.land(*RANGE)
    first = office.planner.plan(spec())
    office.world.clock.advance(dt.timedelta(hours=1))
    assert office.planner.plan(spec()).fingerprint == first.fingerprint
    office.land(RANGE[4], print_="late")
    moved = office.planner.plan(spec())
    assert moved.fingerprint != first.fingerprint
    changed = {d for d in RANGE if moved.datasets[0].inputs[d] != first.datasets[0].inputs[d]}
    assert changed == {RANGE[4]}


def test_the_inputs_of_a_derived_dataset_move_with_the_published_content_of_its_upstream(office: Office) -> None:
    before = office.planner.inputs("totals", RANGE)
    office.release(RANGE[2])
    after = office.planner.inputs("totals", RANGE)
    assert {d for d in RANGE if before[d] != after[d]} == {RANGE[2]}


def test_rows_come_from_published_statistics_otherwise_from_deliveries_or_the_upstream(office: Office) -> None:
    office.land(*RANGE[:4], rows=5, size=100)
    office.release(RANGE[0])
    sales, totals = office.planner.plan(spec()).datasets
    files = office.world.tables["sales"].active()[RANGE[0]]
    assert sales.rows == totals.rows == 2 + 3 * 5
    assert sales.bytes == sum(f.size for f in files) + 300


def test_files_that_have_not_landed_count_where_raw_is_run(office: Office) -> None:
    office.land(RANGE[0], rows=5, size=100)
    office.deliver(RANGE[1], size=60)
    plan = office.planner.plan(spec(scope={"downstream": "none"}))
    assert (plan.datasets[0].rows, plan.datasets[0].bytes) == (5 + 3, 160)
    assert warned(plan, f"sales, 8 days {RANGE[2]}..{RANGE[9]}: no source data")
    later = office.planner.plan(spec(scope={"from": "staging", "downstream": "none"}))
    assert later.datasets[0].bytes == 100


def test_the_largest_day_is_a_canary(office: Office) -> None:
    office.land(*RANGE, size=100)
    office.land(RANGE[6], size=1_000, print_="more")
    plan = office.planner.plan(spec())
    assert plan.canaries == (RANGE[0], RANGE[-1], RANGE[6])
    assert office.planner.plan(spec(), RANGE[3:4]).canaries == RANGE[3:4]
    assert office.planner.plan(spec(execution={})).canaries == ()


def test_the_estimate_counts_batches_of_canaries_and_rest_and_the_bytes_that_they_read(office: Office) -> None:
    office.source(late_days=1)
    office.land(*RANGE, day(10), rows=5, size=100)
    office.release(*RANGE)
    plan = office.planner.plan(spec())
    cuts = [step for step in plan.steps if step.kind in {StepKind.canary, StepKind.rest}]
    assert plan.estimate.batches == sum(int(s.text.split(" batches")[0].split()[-1]) for s in cuts)
    reader = FigureReader(office.warehouse)
    each = [batch for step in cuts for batch in batches(step.days, 4, 31)]
    alone = [reader.read(name, b, {}, landing=False).bytes_read(b) for name in ("sales", "totals") for b in each]
    assert plan.estimate.bytes == sum(alone)


def test_without_any_measured_attempt_the_time_is_the_assumed_one(office: Office) -> None:
    office.land(*RANGE, rows=1_000)
    estimate = office.planner.plan(spec(scope={"downstream": "none"})).estimate
    assert estimate.seconds == round(ASSUMED.seconds(estimate.batches, 10_000), 1)
    assert estimate.cost == ""


def test_time_and_cost_come_from_finished_attempts(office: Office) -> None:
    office.land(*RANGE)
    office.measure(70, 1)
    planner = replace(office.planner, price=parse_price("3.60 EUR"))
    estimate = planner.plan(spec(scope={"downstream": "none"})).estimate
    assert estimate.seconds == pytest.approx(70 * estimate.batches, rel=1e-3)
    assert estimate.cost == f"{estimate.seconds / 1000:.2f} EUR"


def test_the_canaries_correct_the_estimate_of_what_is_left(office: Office) -> None:
    office.land(*RANGE)
    plan = office.planner.plan(spec())
    targets = {name: list(days) for name, days in plan.targets.items()}
    unit = office.world.open_unit(targets)
    for name in targets:
        for date in plan.canaries:
            attempt = office.world.ledger.start_attempt(unit.id, name, [date], f"r{name}{date}", LEASE)
            office.world.clock.advance(dt.timedelta(seconds=20))
            office.world.ledger.end_attempt(attempt.number, AttemptState.done, Work(5, 400))
    left = replace(office.planner, price=parse_price("3.60 EUR")).corrected(
        plan, office.world.ledger.attempts(unit.id), 7
    )
    assert (left.rows, left.bytes, left.batches) == (70, 2 * 7 * 400, 2)
    assert left.seconds == pytest.approx(20 * left.batches, rel=1e-2)
    assert left.cost.endswith(" EUR")


def test_days_without_source_data_are_warned_of_whatever_was_delivered_for_later_ones(office: Office) -> None:
    office.source(late_days=2)
    office.land(*RANGE[:5])
    office.deliver(RANGE[9])
    (warning,) = warned(office.planner.plan(spec()), "no source data")
    assert warning == f"sales, 4 days {RANGE[5]}..{RANGE[8]}: no source data; they will fail their check source_present"
    office.source(late_days=2, on_missing=OnMissing.pass_)
    assert warned(office.planner.plan(spec()), "they will have only rows from later files")
    office.source(late_days=0)
    assert warned(office.planner.plan(spec()), "they will be empty")
    (staged,) = warned(office.planner.plan(spec(scope={"from": "staging"})), "no source data")
    assert f"{RANGE[5]}..{RANGE[9]}" in staged


def test_a_month_is_delivered_by_its_file_and_each_of_its_days_expects_a_share(office: Office) -> None:
    # Its days may be empty, but not for want of the file.
    office.source(path="x/{yyyymm}.csv", on_missing=OnMissing.pass_)
    (warning,) = warned(office.planner.plan(spec()), "no source data")
    assert warning.endswith("they will fail their check source_present")
    last = RANGE[0].replace(day=31)
    office.land(last, rows=310, size=3_100)
    plan = office.planner.plan(spec())
    assert warned(plan, "no source data") == []
    assert plan.estimate.rows == len(RANGE) * 10 * len(plan.targets)


def test_published_days_of_a_month_that_is_recomputed_in_part_are_warned_of(office: Office) -> None:
    office.release(*RANGE, day(15), day(40))
    assert warned(office.planner.plan(spec()), "same months") == []
    office.source(path="x/{yyyymm}.csv")
    (warning,) = warned(office.planner.plan(spec()), "same months")
    assert warning.startswith(
        f"sales, 1 day {day(15)}: published, of the same months and not in the scope; recompute whole"
    )


def test_days_without_a_published_upstream_are_warned_of_unless_they_are_built_along(tmp_path: Path) -> None:
    office = Office(tmp_path, lookback=2)
    start = str(RANGE[3])
    ranged = {"source_range": {"start": start, "end": str(RANGE[5])}, "execution": {}}
    alone = spec(target={"dataset": "totals", "partition_key": "day"}, **ranged)
    office.release(RANGE[4], names=("sales",))
    (warning,) = warned(office.planner.plan(alone), "its upstream sales has published nothing")
    assert f"{RANGE[1]}..{RANGE[3]}, {RANGE[5]}" in warning
    (warning,) = warned(office.planner.plan(spec(**ranged)), "its upstream sales has published nothing")
    assert f"{RANGE[1]}..{RANGE[2]};" in warning
    office.world.close()


def test_canaries_are_refused_where_a_dataset_looks_back_at_another_one_of_the_campaign(tmp_path: Path) -> None:
    office = Office(tmp_path, lookback=2)
    with pytest.raises(
        SpecificationError,
        match=r"execution.canary: each day of totals is also built from the 2 days before it of sales",
    ):
        office.planner.plan(spec())
    assert office.planner.plan(spec(scope={"downstream": "none"})).canaries
    assert not office.planner.plan(spec(execution={})).canaries
    office.world.close()


def test_days_on_hold_are_warned_of_with_reason_and_remedy(office: Office) -> None:
    office.world.ledger.hold([Hold(("sales", d), "rolled back", "ada", office.world.clock.now()) for d in RANGE[2:4]])
    (warning,) = warned(office.planner.plan(spec()), "on hold")
    assert f"2 days {RANGE[2]}..{RANGE[3]}: on hold (rolled back)" in warning
    assert f"backfill hold lift sales {RANGE[2]}..{RANGE[3]}" in warning


def test_days_that_were_never_published_are_warned_of(office: Office) -> None:
    office.release(*RANGE[:9])
    assert warned(office.planner.plan(spec()), f"sales, 1 day {RANGE[9]}: nothing is published yet")
    office.release(RANGE[9])
    assert not warned(office.planner.plan(spec()), "nothing is published yet")


def test_a_budget_below_the_estimate_is_warned_of(office: Office) -> None:
    tight = spec(execution={"budget": {"wall_time": "10s"}})
    assert warned(office.planner.plan(tight), "execution.budget.wall_time: 10s is less than the estimate")
    assert not warned(office.planner.plan(spec(execution={"budget": {"wall_time": "9h"}})), "wall_time")


def test_days_claimed_by_another_open_unit_are_refused_naming_it(office: Office) -> None:
    unit = office.world.open_unit({"totals": RANGE[3:5]})
    with pytest.raises(ClaimedDaysError, match=rf"totals {RANGE[3]}\.\.{RANGE[4]}: claimed by open unit {unit.id}"):
        office.planner.plan(spec())
    assert office.planner.plan(spec(scope={"downstream": "none"})).targets == {"sales": RANGE}


def test_a_launched_campaign_can_be_planned_again_over_its_own_claims(office: Office) -> None:
    plan = office.planner.plan(spec())
    launch = Launch({name: frozenset(days) for name, days in plan.targets.items()}, "campaign:tax-fix")
    now = office.world.clock.now()
    office.world.ledger.assign(launch, Unit("u_own", launch.opened_by, now, "ada", plan.targets, ReleaseMode.manual))
    assert office.planner.plan(spec()).fingerprint == plan.fingerprint
    with pytest.raises(ClaimedDaysError, match="u_own"):
        office.planner.plan(spec(backfill_id="other-fix"))


def test_days_outside_the_history_are_refused(office: Office) -> None:
    with pytest.raises(InvalidDayError, match="outside the history of sales"):
        office.planner.plan(spec(source_range={"start": "2025-12-31", "end": str(RANGE[-1])}))


def test_planning_writes_nothing(office: Office) -> None:
    office.land(*RANGE)
    office.release(RANGE[0])
    before = {path for path in office.folder.rglob("*") if "ledger.db" not in path.name}
    office.planner.plan(spec())
    assert {path for path in office.folder.rglob("*") if "ledger.db" not in path.name} == before


def test_the_frozen_plan_lies_under_its_campaign_and_fingerprint(office: Office, tmp_path: Path) -> None:
    plan = office.planner.plan(spec())
    file = write_plan(tmp_path / "state", plan)
    assert file == tmp_path / "state" / "campaigns" / plan.campaign / f"plan-{plan.fingerprint[:12]}.json"
    assert file == tmp_path / "state" / "campaigns" / "tax-fix" / f"plan-{plan.fingerprint[:12]}.json"
    assert from_json(Plan, file.read_text(encoding="utf-8")) == plan
    assert json.loads(file.read_text(encoding="utf-8"))["campaign"] == "tax-fix"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    "pattern",
    [
        "x/{day}.csv",
        "x/{day}/*.csv",
        "x/{day}_*.csv",
        "**/{day}.csv",
        "{day}/x_[ab].csv",
        "x/{yyyy}/{mm}/{dd}.csv",
        "x/{yyyymmdd}-*.csv",
        "x/*/{day}/part-?.csv",
    ],
)
def test_sizes_of_deliveries_are_those_of_the_files_that_a_landing_finds(tmp_path: Path, pattern: str) -> None:
    home = layout(tmp_path)
    for date in RANGE[:3]:
        for number, relative in enumerate(
            (
                f"x/{date}.csv", f"x/{date}/1.csv", f"x/{date}/2.csv", f"x/{date}_1.csv", f"x/{date}_2.csv", f"{date}.csv",
                f"x/y/{date}.csv", f"{date}/x_a.csv", f"{date}/x_c.csv",
                f"x/{date:%Y/%m/%d}.csv", f"x/{date:%Y%m%d}-1.csv", f"x/e/{date}/part-1.csv",
                f"x/e/{date}/part-2.csv.tmp", f"x/{date}_.hidden/1.csv", f"x/{date}/_part.csv",
            )
        ):  # fmt: skip
            file = path_of(home.sources) / relative
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("x" * (number + 1), encoding="utf-8")
    (path_of(home.sources) / f"{RANGE[0]}").mkdir(exist_ok=True)
    (path_of(home.sources) / f"{RANGE[0]}" / f"{RANGE[1]}_a.csv").write_text("another day inside", encoding="utf-8")
    loaded = _with_pattern(tmp_path, pattern)
    found: dict[dt.date, int] = {}
    for file in discover(loaded, home, RANGE[1:5]):
        found[file.day] = found.get(file.day, 0) + file.size
    assert found
    assert delivered_sizes(loaded, home, RANGE[1:5]) == found


def _with_pattern(folder: Path, pattern: str) -> LoadedDataset:
    source = Source.model_validate({"format": "csv", "path": pattern, "columns": {"id": "long"}})
    return loaded(dataset().model_copy(update={"source": source}), folder)
