"""New files for published days are found, or the reason why they wait is reported."""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import ClaimedDaysError
from backfill_assets.core.unit import Hold, LateData, UnitState
from backfill_assets.dataset.extracts import Extract
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.dataset.reading import reading_of
from backfill_assets.dataset.references import Reference
from backfill_assets.dataset.releasing import Live, Provisional
from backfill_assets.dataset.sources import Format, OnMissing
from backfill_assets.evidence.late_deliveries import LateDeliveries
from backfill_assets.evidence.stale import StaleCause, Staleness
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.location import State
from backfill_assets.storage.sources import discover
from backfill_assets_tests.harness.actors import TwoChecks
from backfill_assets_tests.harness.tables import day, layout, loaded
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

D1, D2, D3, D4, D5 = (day(i) for i in range(1, 6))


class Inbox:
    """Where files of `sales` arrive; `totals` is built from it."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, ("sales", "totals<sales"))
        self.folder = folder
        self.written = 1_700_000_000
        self.loaded = {name: loaded(dataset, folder) for name, dataset in self.world.datasets.items()}
        self.warehouse = replace(self.world.warehouse(), catalog=Catalog(self.loaded))
        self.world.basis = self.basis = TwoChecks(self.warehouse)

    @property
    def late(self) -> LateDeliveries:
        return LateDeliveries(self.warehouse)

    def says(self, name: str = "sales", **what: object) -> None:
        """Change what the contract of a dataset says."""
        dataset = self.world.datasets[name].model_copy(update=what)
        self.world.datasets[name] = dataset
        self.loaded[name] = loaded(dataset, self.folder)
        # A catalog keeps the groups that it has found.
        self.warehouse = replace(self.warehouse, catalog=Catalog(self.loaded))

    def days(self) -> list[dt.date]:
        return [late.day for late in self.late.of("sales")]

    def deliver(self, date: dt.date, content: str = "id\n1\n") -> None:
        file = path_of(layout(self.folder).sources) / "x" / f"{date}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
        # The clock of a file system is too coarse to tell two deliveries of one test apart.
        self.written += 1
        os.utime(file, (self.written, self.written))

    def land(self, *days: dt.date, rows: int = 0) -> None:
        """What the raw step of these days does: it lands the files of all delivery days behind them."""
        files = discover(self.loaded["sales"], layout(self.folder), self.loaded["sales"].dataset.delivery_days(days))
        now, reading = self.world.clock.now(), reading_of(self.loaded["sales"].dataset.landing)
        self.world.ledger.add_deliveries(
            Delivery("sales", f.day, f.path, f.fingerprint, f.size, f.delivered_at, now, rows, reading=reading)
            for f in files
        )


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    inbox = Inbox(tmp_path)
    for date in (D1, D2, D3):
        inbox.deliver(date)
    inbox.land(D1, D2, D3)
    inbox.world.released({D1: [1], D2: [2], D3: [3]})
    inbox.world.clock.advance(dt.timedelta(minutes=1))
    yield inbox
    inbox.world.close()


def test_nothing_is_late_when_all_deliveries_have_landed(inbox: Inbox) -> None:
    assert inbox.late.of("sales") == ()


def test_a_new_file_for_a_published_day_is_late_and_the_next_day_is_not(inbox: Inbox) -> None:
    inbox.deliver(D2, "id\n2\n")
    inbox.deliver(D4)
    (late,) = inbox.late.of("sales")
    assert (late.day, late.files, late.waits_for) == (D2, (f"x/{D2}.csv",), "")
    again = inbox.late.of("sales")[0]
    assert again.deliveries == late.deliveries
    inbox.deliver(D2, "id\n3\n")
    assert inbox.late.of("sales")[0].deliveries != late.deliveries
    inbox.land(D2)
    assert inbox.late.of("sales")[0].files == ()
    inbox.world.released({D2: [3]})
    assert inbox.late.of("sales") == ()


def test_a_corrected_file_makes_the_days_late_that_look_ahead_to_its_day(inbox: Inbox) -> None:
    inbox.says(lookahead_days=1)
    inbox.world.basis = TwoChecks(inbox.warehouse)
    inbox.world.released({D1: [1], D2: [2]})
    assert inbox.days() == []
    inbox.deliver(D2, "id\n2\n")
    assert inbox.days() == [D1, D2]
    # Of a file of the first watched day, the day before it has to be built again as well.
    inbox.says(live=Live(watch_days=2))
    assert inbox.days() == [D1, D2]
    inbox.says(end=D1)
    assert D3 not in inbox.days()


def test_a_provisional_day_is_late_when_the_day_that_it_awaits_lands(inbox: Inbox) -> None:
    inbox.says(lookahead_days=1, provisional=Provisional(may_change=("amount",)))
    inbox.land(D1, D2, D3, rows=1)
    inbox.world.basis = TwoChecks(inbox.warehouse)
    inbox.world.released({D1: [1], D2: [2], D3: [3]})
    assert inbox.days() == []
    inbox.deliver(D4)
    (late,) = inbox.late.of("sales")
    assert (late.day, late.files) == (D3, (f"x/{D4}.csv",))
    inbox.land(D4, rows=1)
    (landed,) = inbox.late.of("sales")
    assert (landed.day, landed.deliveries, landed.unjudged) == (D3, late.deliveries, False)
    # The run of it has claimed the day, and died before it checked anything.
    unit = inbox.world.open_unit({"sales": [D3], "totals": [D3]}, live=True)
    assert [one.unjudged for one in inbox.late.of("sales")] == [True]
    inbox.world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    assert [one.unjudged for one in inbox.late.of("sales")] == [False]
    inbox.world.basis = TwoChecks(inbox.warehouse)
    inbox.world.released({D3: [4]})
    assert inbox.days() == []


def test_a_file_of_a_day_that_is_not_over_makes_no_provisional_day_late(inbox: Inbox) -> None:
    inbox.says(lookahead_days=1, provisional=Provisional(may_change=("amount",)))
    inbox.land(D1, D2, D3, rows=1)
    end_of_d4 = dt.datetime.combine(D5, dt.time(), dt.UTC)
    inbox.world.clock.advance(end_of_d4 - inbox.world.clock.now() + dt.timedelta(hours=1))
    inbox.world.basis = TwoChecks(inbox.warehouse)
    inbox.world.released({D1: [1], D2: [2], D3: [3]})
    inbox.deliver(D4)
    assert inbox.days() == []
    assert inbox.late.not_landed("sales").get(D3, ()) == ()
    # Its daily run begins at 03:00.
    inbox.world.clock.advance(dt.timedelta(hours=2))
    assert inbox.days() == [D3]


def test_a_day_waits_for_the_open_unit_that_has_claimed_it(inbox: Inbox) -> None:
    inbox.deliver(D2, "id\n2\n")
    unit = inbox.world.open_unit({"sales": [D2]})
    assert inbox.late.of("sales")[0].waits_for == f"claimed by open unit {unit.id}"


def test_a_day_waits_for_a_claim_on_any_dataset_of_the_group_that_a_live_run_works_on(inbox: Inbox) -> None:
    inbox.deliver(D2, "id\n2\n")
    unit = inbox.world.open_unit({"totals": [D2]})
    assert inbox.late.of("sales")[0].waits_for == f"totals is claimed by open unit {unit.id}"
    with pytest.raises(ClaimedDaysError):
        inbox.world.open_unit({"sales": [D2], "totals": [D2]}, live=True)


def test_a_corrected_file_does_not_wait_for_the_failed_live_unit_of_its_own_day(inbox: Inbox) -> None:
    inbox.deliver(D2, "id\nbad\n")
    unit = inbox.world.open_unit({"sales": [D2], "totals": [D2]}, live=True)
    inbox.land(D2)
    inbox.deliver(D2, "id\ncorrected\n")
    assert inbox.late.of("sales")[0].waits_for == ""
    # Because a live run of the day would continue it.
    assert inbox.world.open_unit({"sales": [D2], "totals": [D2]}, live=True).id == unit.id


@pytest.mark.parametrize(
    ("targets", "live"),
    [
        ({"sales": [D2], "totals": [D2]}, False),
        ({"sales": [D2]}, True),
        ({"sales": [D2, D3], "totals": [D2, D3]}, True),
    ],
    ids=["no live unit", "not of the whole group", "of other days, too"],
)
def test_a_day_waits_for_any_other_unit(inbox: Inbox, targets: Mapping[str, Sequence[dt.date]], live: object) -> None:
    unit = inbox.world.open_unit(targets, live=bool(live))
    inbox.deliver(D2, "id\n2\n")
    assert inbox.late.of("sales")[0].waits_for.endswith(f"claimed by open unit {unit.id}")


def test_files_that_are_known_are_not_read_again(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    honest = OnDisk.content

    def content(file: OnDisk) -> tuple[State, str]:
        read.append(file.name)
        return honest(file)

    monkeypatch.setattr(OnDisk, "content", content)
    assert inbox.days() == []
    assert read == []
    inbox.deliver(D2, "id\n2\n")
    assert inbox.days() == [D2]
    assert read == [f"{D2}.csv"]
    # The landing reads them.
    inbox.land(D1)
    assert read[1:] == [f"{D1}.csv"]


def test_a_file_that_a_later_day_looks_back_at_makes_both_days_late(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.says(lookback_days=1)
    for date in (D1, D2, D3):
        inbox.deliver(date)
    inbox.land(D1, D2, D3)
    inbox.world.released({D1: [1], D2: [2], D3: [3]})
    assert inbox.late.of("sales") == ()
    inbox.deliver(D1, "id\n2\n")
    assert [(late.day, late.files) for late in inbox.late.of("sales")] == [(d, (f"x/{D1}.csv",)) for d in (D1, D2)]
    inbox.world.close()


def test_a_claim_is_passed_only_if_every_dataset_of_the_group_says_so(inbox: Inbox) -> None:
    inbox.deliver(D2, "id\n2\n")
    unit = inbox.world.open_unit({"sales": [D2]})
    inbox.says(late_data=LateData.publish)
    assert inbox.late.of("sales")[0].waits_for == f"claimed by open unit {unit.id}"
    inbox.says("totals", late_data=LateData.publish)
    assert inbox.late.of("sales")[0].waits_for == ""


@pytest.mark.parametrize(
    ("held", "said"), [("sales", "on hold: rolled back"), ("totals", "totals is on hold: rolled back")]
)
@pytest.mark.parametrize("late_data", LateData)
def test_a_day_on_hold_waits_whatever_the_datasets_say(inbox: Inbox, held: str, said: str, late_data: LateData) -> None:
    inbox.deliver(D2, "id\n2\n")
    inbox.says(late_data=late_data)
    inbox.says("totals", late_data=late_data)
    inbox.world.ledger.hold([Hold((held, D2), "rolled back", "ada", inbox.world.clock.now())])
    assert inbox.late.of("sales")[0].waits_for == said


def test_a_file_for_several_days_keeps_each_of_them_late_until_it_is_released(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    source = inbox.world.datasets["sales"].landing.model_copy(update={"late_days": 2})
    inbox.says(source=source)
    for date in (D1, D2, D3):
        inbox.deliver(date)
    inbox.land(D1, D2, D3)
    inbox.world.released({D1: [1], D2: [2], D3: [3]})
    inbox.world.clock.advance(dt.timedelta(minutes=1))
    assert inbox.days() == []
    inbox.deliver(D3, "id\n3\n")
    assert inbox.days() == [D1, D2, D3]
    before = {late.day: late.deliveries for late in inbox.late.of("sales")}
    inbox.land(D1)
    inbox.world.released({D1: [1, 3]})
    assert [(late.day, late.files) for late in inbox.late.of("sales")] == [(D2, ()), (D3, ())]
    assert {late.day: late.deliveries for late in inbox.late.of("sales")}.items() <= before.items()
    inbox.world.released({D2: [2], D3: [3]})
    assert inbox.days() == []
    inbox.world.close()


def test_a_new_reference_is_no_late_delivery(inbox: Inbox, tmp_path: Path) -> None:
    cities = Reference(format=Format.csv, path="cities.csv", columns={"city": "string"})
    (path_of(layout(tmp_path).sources) / "cities.csv").write_text("city\nParis\n", encoding="utf-8")
    inbox.says(references={"cities": cities})
    inputs = inbox.basis.inputs("sales", [D1])
    inbox.world.released({D1: [1]})
    inbox.world.clock.advance(dt.timedelta(minutes=1))
    (path_of(layout(tmp_path).sources) / "cities.csv").write_text("city\nRoma\n", encoding="utf-8")
    assert inbox.basis.inputs("sales", [D1]) != inputs
    assert inbox.days() == []


def test_days_that_were_built_from_other_references_are_stale(inbox: Inbox, tmp_path: Path) -> None:
    cities = Reference(format=Format.csv, path="cities.csv", columns={"city": "string"})
    file = path_of(layout(tmp_path).sources) / "cities.csv"
    file.write_text("city\nParis\n", encoding="utf-8")
    inbox.says(references={"cities": cities})
    staleness = Staleness(inbox.warehouse, inbox.basis)

    def stale(cause: StaleCause = StaleCause.reference) -> tuple[dt.date, ...]:
        return staleness.of("sales").by_cause.get(cause, ())

    inbox.world.released({D1: [1], D2: [2]})
    # The third day was built before there was a reference.
    assert (stale(), stale(StaleCause.contract)) == ((), (D3,))
    file.write_text("city\nRoma\n", encoding="utf-8")
    assert stale() == (D1, D2)
    inbox.world.released({D1: [1]})
    assert [one.days for one in staleness.all(among={StaleCause.reference})] == [(D2,)]
    inbox.deliver(D2, "id\n2\n")
    inbox.land(D2)
    assert (stale(), stale(StaleCause.source)) == ((D2,), (D2,))
    file.unlink()
    # Building a day reports the file; that there is another delivery is known without it.
    assert (stale(), stale(StaleCause.source)) == ((), (D2,))


def test_a_landing_that_began_before_a_release_and_ended_after_it_is_late_whatever_the_times_say(inbox: Inbox) -> None:
    """The run of another day found the file but was slow: it recorded it in the ledger after the release of this day."""
    began = inbox.world.clock.now()
    inbox.world.clock.advance(dt.timedelta(minutes=1))
    inbox.world.released({D2: [2]})
    ago = began - dt.timedelta(days=400)
    inbox.world.ledger.add_deliveries([Delivery("sales", D2, f"x/{D2}-more.csv", "f" * 64, 5, ago, began, 1, 0)])
    assert inbox.days() == [D2]
    inbox.world.released({D2: [2, 3]})
    assert inbox.days() == []


def test_days_with_unknown_deliveries_are_not_late(inbox: Inbox) -> None:
    with sqlite3.connect(inbox.folder / "ledger.db") as ledger:
        ledger.execute("UPDATE contents SET deliveries = NULL")
    ledger.close()
    inbox.deliver(D2, "id\n2\n")
    inbox.land(D2)
    assert inbox.days() == []


def test_only_the_watched_days_are_checked(inbox: Inbox) -> None:
    inbox.deliver(D1, "id\n2\n")
    inbox.deliver(D3, "id\n2\n")
    inbox.says(live=Live(watch_days=2))
    assert inbox.days() == [D3]
    inbox.says(live=Live(watch_days=3))
    assert inbox.days() == [D1, D3]


def test_only_published_days_are_late(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for date in (D1, D2, D3, D4):
        inbox.deliver(date)
    assert inbox.days() == []
    inbox.land(D3, D4)
    inbox.world.released({D3: [], D4: [1]})
    assert inbox.days() == []
    inbox.deliver(D3, "id\n3\n")
    assert inbox.days() == [D3]
    inbox.world.close()


@pytest.fixture
def week(inbox: Inbox) -> Inbox:
    """The first three days are published; it is noon on the day after the fifth, and the pipeline runs at three."""
    # The clock of the world is at the first of March.
    inbox.says(live=Live(watch_days=60))
    inbox.world.clock.advance(dt.datetime(2026, 1, 7, 12, tzinfo=dt.UTC) - inbox.world.clock.now())
    return inbox


def test_a_first_file_that_comes_after_the_daily_run_is_a_gap_that_is_run(week: Inbox) -> None:
    assert week.late.of("sales") == ()
    week.deliver(D4)
    (gap,) = week.late.of("sales")
    assert (gap.day, gap.files, gap.gap, gap.waits_for) == (D4, (f"x/{D4}.csv",), True, "")
    assert week.late.of("sales") == (gap,)
    week.deliver(D4, "id\n7\n")
    assert week.late.of("sales")[0].deliveries != gap.deliveries
    week.land(D4)
    week.world.released({D4: [7]})
    assert week.late.of("sales") == ()


def test_a_file_of_a_day_that_was_released_without_rows_is_late_although_no_later_day_has_rows(week: Inbox) -> None:
    week.says(source=week.world.datasets["sales"].landing.model_copy(update={"on_missing": OnMissing.pass_}))
    week.world.released({D4: []})
    assert [(late.day, late.gap) for late in week.late.of("sales")] == [(D5, True)]
    week.deliver(D4)
    assert [(late.day, late.gap) for late in week.late.of("sales")] == [(D4, False), (D5, True)]
    week.land(D4)
    assert week.days() == [D4, D5]
    week.world.released({D4: [4]})
    assert week.days() == [D5]


def test_a_day_that_was_released_without_rows_has_moved_once_it_has_a_delivery(inbox: Inbox) -> None:
    inbox.world.released({D2: []})
    assert inbox.late.moved("sales") == ()
    inbox.deliver(D2, "id\n2\n")
    inbox.land(D2)
    assert inbox.late.moved("sales") == (D2,)
    inbox.world.released({D2: [2]})
    assert inbox.late.moved("sales") == ()


def test_the_file_of_a_month_is_late_for_its_published_days_and_fills_its_gaps(week: Inbox) -> None:
    source = week.world.datasets["sales"].landing.model_copy(update={"path": "x/{yyyymm}.csv"})
    week.says(source=source)
    file = path_of(layout(week.folder).sources) / "x" / f"{D1:%Y%m}.csv"
    file.write_text("id\n1\n", encoding="utf-8")
    found = {late.day: late.gap for late in week.late.of("sales")}
    assert found == {D1: False, D2: False, D3: False, D4: True, D4 + dt.timedelta(days=1): True}
    assert {late.files for late in week.late.of("sales")} == {(f"x/{file.name}",)}
    # All of its days are watched as long as one is.
    week.says(live=Live(watch_days=1))
    assert {late.day: late.gap for late in week.late.of("sales")} == found
    # Without its file no day of a month is known to be empty.
    file.unlink()
    week.says(source=source.model_copy(update={"on_missing": OnMissing.pass_}))
    assert [late.day for late in week.late.of("sales") if late.gap] == []


def test_a_gap_that_a_unit_has_claimed_is_run_once_the_claim_has_ended(week: Inbox) -> None:
    """The daily run was refused because of the claim, after the files of the day had landed with another one."""
    week.deliver(D4)
    week.land(D4)
    free = week.late.of("sales")[0]
    unit = week.world.open_unit({"sales": [D4]})
    assert week.late.of("sales")[0].waits_for == f"claimed by open unit {unit.id}"
    week.world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    (gap,) = week.late.of("sales")
    assert (gap.day, gap.files, gap.waits_for) == (D4, (), "")
    assert gap.deliveries != free.deliveries


def test_a_gap_that_a_live_run_has_judged_is_not_run_again_until_a_file_comes(week: Inbox) -> None:
    week.deliver(D4)
    week.land(D4)
    before = week.late.of("sales")[0]
    unit = week.world.open_unit({"sales": [D4], "totals": [D4]}, live=True)
    week.world.build(unit, "sales", {D4: [1]}, passed=False)
    assert week.late.of("sales") == ()
    week.deliver(D4, "id\n7\n")
    assert week.days() == [D4]
    week.deliver(D4)
    # If the unit is given up, that is no reason to try the same again.
    week.world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    assert week.late.of("sales")[0].deliveries == before.deliveries


def test_a_gap_that_was_judged_without_the_version_of_its_day_is_run_once_that_has_come(week: Inbox) -> None:
    file = path_of(layout(week.folder).sources) / "cities.csv"
    file.write_text("city,since,until\nParis,2020-01-01,2026-01-05\n", encoding="utf-8")
    columns = {"city": "string", "since": "date", "until": "date"}
    cities = Reference(format=Format.csv, path="cities.csv", columns=columns, valid=("since", "until"))
    week.says(references={"cities": cities})
    week.deliver(D4)
    week.land(D4)
    before = week.late.of("sales")[0]
    unit = week.world.open_unit({"sales": [D4], "totals": [D4]}, live=True)
    week.world.build(unit, "sales", {D4: [1]}, passed=False)
    assert week.late.of("sales") == ()
    # Another day's version is nothing that this day waits for.
    file.write_text("city,since,until\nParis,2020-01-01,2026-01-05\nRoma,2026-03-01,\n", encoding="utf-8")
    assert week.late.of("sales") == ()
    file.write_text("city,since,until\nParis,2020-01-01,\n", encoding="utf-8")
    (gap,) = week.late.of("sales")
    assert gap.day == D4
    assert gap.deliveries != before.deliveries
    file.unlink()
    assert week.late.of("sales") == ()


def test_a_day_that_was_rolled_back_to_nothing_waits_and_is_another_gap_once_its_hold_is_lifted(week: Inbox) -> None:
    week.deliver(D4)
    week.land(D4)
    before = week.late.of("sales")[0]
    release = week.world.released({D4: [1]})
    week.world.rollback().execute(release, "wrong rates")
    assert week.late.of("sales")[0].waits_for == "on hold: wrong rates"
    week.world.ledger.lift("sales", [D4])
    (gap,) = week.late.of("sales")
    assert (gap.day, gap.waits_for) == (D4, "")
    assert gap.deliveries != before.deliveries


@pytest.mark.parametrize(
    ("at", "found"), [("2026-01-06T02:59", []), ("2026-01-06T03:09", []), ("2026-01-06T03:10", [D4])]
)
def test_a_day_is_no_gap_before_the_daily_run_has_had_its_turn(inbox: Inbox, at: str, found: list[dt.date]) -> None:
    inbox.deliver(D4)
    inbox.world.clock.advance(dt.datetime.fromisoformat(f"{at}+00:00") - inbox.world.clock.now())
    assert inbox.days() == found


def test_gaps_are_run_as_far_back_as_is_watched_and_not_of_a_closed_history(week: Inbox) -> None:
    week.deliver(D4)
    week.says(live=Live(watch_days=1))
    assert week.late.of("sales") == ()
    week.says(live=Live(watch_days=2))
    assert week.days() == [D4]
    week.says(end=dt.date(2026, 1, 31))
    assert week.late.of("sales") == ()


def test_a_day_that_may_be_empty_is_a_gap_without_a_file(week: Inbox) -> None:
    source = week.world.datasets["sales"].landing.model_copy(update={"on_missing": OnMissing.pass_})
    week.says(source=source)
    assert [(gap.day, gap.files) for gap in week.late.of("sales")] == [(D4, ()), (D5, ())]


def test_a_day_whose_file_an_extract_writes_is_a_gap_without_one(week: Inbox) -> None:
    extract = Extract(database="env:SHOP_URL", query="SELECT id FROM sales WHERE day = :day")
    week.says(source=week.world.datasets["sales"].landing.model_copy(update={"extract": extract}))
    assert [(gap.day, gap.files) for gap in week.late.of("sales")] == [(D4, ()), (D5, ())]
