"""Due days that are not published, and the deliveries that they need, for every kind of source."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets.dataset.extracts import Extract
from backfill_assets.dataset.releasing import CatchUp, DatasetState, Live, Provisional
from backfill_assets.dataset.sources import OnMissing
from backfill_assets.evidence.gaps import Gaps, gaps_of, newest_due
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.clocks import START
from backfill_assets_tests.harness.tables import day, layout
from backfill_assets_tests.unit.evidence.test_late_deliveries import Inbox

pytestmark = pytest.mark.slow

FIRST, LAST = day(55), day(58)
"""The days from Wednesday to Saturday before the world's time, a Sunday."""
ASKED = Live(catch_up=CatchUp())


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    """Four days are due, and the file of the second one is missing."""
    made = Inbox(tmp_path)
    for name in ("sales", "totals"):
        made.says(name, start=FIRST, live=ASKED)
    for date in (FIRST, day(57), LAST):
        made.deliver(date)
    yield made
    made.world.close()


def found(inbox: Inbox) -> dict[dt.date, str]:
    """The gaps, with what each waits for."""
    return {gap.day: gap.waits_for for gap in Gaps(inbox.warehouse).of(("sales", "totals"))}


def of_sales(inbox: Inbox, **what: object) -> None:
    inbox.says(source=inbox.world.datasets["sales"].landing.model_copy(update=what))


def test_a_day_without_a_delivery_waits_for_it(inbox: Inbox) -> None:
    assert found(inbox) == {FIRST: "", day(56): "sales has no delivery", day(57): "", LAST: ""}


def test_a_day_whose_own_source_is_looked_back_at_waits_for_the_days_before_it(inbox: Inbox) -> None:
    inbox.says(lookback_days=1)
    assert found(inbox)[day(57)] == f"sales has no delivery for {day(56)}, which it looks back at"
    assert found(inbox)[LAST] == ""


def test_a_day_waits_for_the_days_that_it_looks_ahead_to(inbox: Inbox) -> None:
    inbox.says(lookahead_days=1)
    assert found(inbox)[FIRST] == f"sales has no delivery for {day(56)}, which it looks ahead to"
    assert found(inbox)[day(56)] == "sales has no delivery"
    assert found(inbox)[day(57)] == ""
    inbox.says(provisional=Provisional(may_change=("amount",)))
    assert found(inbox)[FIRST] == ""
    assert found(inbox)[day(56)] == "sales has no delivery"


def test_a_group_that_looks_ahead_has_no_gap_before_the_days_after_it_are_over(inbox: Inbox) -> None:
    for name in ("sales", "totals"):
        inbox.world.datasets[name] = inbox.world.datasets[name].linked({}, 1)
        inbox.says(name)
    assert max(found(inbox)) == day(57)
    assert gaps_of(inbox.world.datasets["sales"], [FIRST], inbox.world.clock.now()) == (day(56), day(57))


def test_a_member_has_gaps_from_its_own_start_on(inbox: Inbox) -> None:
    inbox.says("totals", start=day(57))
    gaps = Gaps(inbox.warehouse).of(("sales", "totals"))
    assert {gap.day: gap.datasets for gap in gaps} == {
        FIRST: ("sales",), day(56): ("sales",), day(57): ("sales", "totals"), LAST: ("sales", "totals"),
    }  # fmt: skip
    inbox.says("sales", start=LAST)
    gaps = Gaps(inbox.warehouse).of(("sales", "totals"))
    assert {gap.day: gap.datasets for gap in gaps} == {day(57): ("totals",), LAST: ("sales", "totals")}


def test_no_day_before_the_start_is_a_gap(inbox: Inbox) -> None:
    inbox.says(start=day(57), live=Live())
    assert gaps_of(inbox.world.datasets["sales"], [FIRST], inbox.world.clock.now()) == (day(57), LAST)


def test_nothing_of_a_draft_is_due(inbox: Inbox) -> None:
    inbox.says(state=DatasetState.draft)
    assert gaps_of(inbox.world.datasets["sales"], [FIRST], inbox.world.clock.now()) == ()
    inbox.says(state=DatasetState.live)
    assert gaps_of(inbox.world.datasets["sales"], [FIRST], inbox.world.clock.now()) == (day(56), day(57), LAST)


def test_days_that_may_be_empty_and_days_that_are_extracted_wait_for_no_delivery(inbox: Inbox) -> None:
    of_sales(inbox, on_missing=OnMissing.pass_)
    assert set(found(inbox).values()) == {""}
    of_sales(inbox, on_missing=OnMissing.fail)
    assert set(found(inbox).values()) != {""}
    of_sales(inbox, extract=Extract(database="env:SHOP_URL", query="SELECT id FROM sales WHERE day = :day"))
    assert set(found(inbox).values()) == {""}


def test_days_of_a_month_need_the_file_of_the_month(inbox: Inbox) -> None:
    of_sales(inbox, path="x/{yyyymm}.csv", on_missing=OnMissing.pass_)
    assert set(found(inbox).values()) == {"sales has no delivery"}
    (path_of(layout(inbox.folder).sources) / "x" / f"{FIRST:%Y%m}.csv").write_text("id\n1\n", encoding="utf-8")
    assert set(found(inbox).values()) == {""}


def test_a_landed_delivery_whose_file_is_gone_counts(inbox: Inbox) -> None:
    inbox.land(FIRST)
    (path_of(layout(inbox.folder).sources) / "x" / f"{FIRST}.csv").unlink()
    assert found(inbox)[FIRST] == ""


@pytest.mark.parametrize(
    ("offset", "end", "hours", "newest"),
    [
        (0, None, 0, LAST),
        # Just after midnight, the daily schedule has not taken the day before yet.
        (0, None, 12.1, LAST),
        (0, None, 16, day(59)),
        (-2, None, 0, day(56)),
        (1, None, 0, LAST),
        (0, day(57), 0, day(57)),
        (0, day(400), 0, LAST),
    ],
)
def test_the_newest_due_day_is_the_one_that_the_schedule_has_taken(
    inbox: Inbox, offset: int, end: dt.date | None, hours: float, newest: dt.date
) -> None:
    for name in ("sales", "totals"):
        inbox.says(name, end_offset=offset, end=end)
    members = [inbox.loaded[name].dataset for name in ("sales", "totals")]
    assert newest_due(members, START + dt.timedelta(hours=hours)) == newest


def test_only_a_history_that_catches_up_has_gaps_before_its_first_published_day(inbox: Inbox) -> None:
    dataset = inbox.loaded["sales"].dataset
    assert gaps_of(dataset, [day(57)], START) == (FIRST, day(56), LAST)
    assert gaps_of(dataset, [], START) == (FIRST, day(56), day(57), LAST)
    plain = dataset.model_copy(update={"live": Live()})
    assert gaps_of(plain, [day(57)], START) == (LAST,)
    assert gaps_of(plain, [], START) == ()
    ended = dataset.model_copy(update={"end": day(57)})
    assert gaps_of(ended, [FIRST], START) == (day(56), day(57))
