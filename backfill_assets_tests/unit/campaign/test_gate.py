"""The admission gate: what stops a campaign, what it waits for, and the floor of progress beside the live pipeline."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.campaign.gate import Admitted, Closed, Decision, Halts, Traffic, Waits, admit
from backfill_assets.campaign.state import WORKING, Campaign, Phase
from backfill_assets_tests.unit.ledger.campaign_samples import a_campaign, a_specification

# Noon in Berlin, far from the blackout window of the specification (07:00-09:30).
NOW = dt.datetime(2026, 3, 3, 11, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
GB = 10**9


def running(**execution: object) -> Campaign:
    specification = a_specification(execution={"max_concurrency": 2, **execution}) if execution else a_specification()
    return replace(a_campaign(), specification=specification, phase=Phase.running, unit="u_1")


def traffic(**more: object) -> Traffic:
    return Traffic(**{"now": NOW, "last_batch": NOW - dt.timedelta(minutes=1), **more})  # type: ignore[arg-type]


def decided(campaign: Campaign, **more: object) -> Decision:
    return admit(campaign, traffic(**more))


def test_a_batch_starts_when_no_rule_holds_it_back() -> None:
    assert decided(running()) == Admitted()


@pytest.mark.parametrize("phase", sorted(set(Phase) - WORKING))
def test_no_batch_starts_unless_the_campaign_is_running(phase: Phase) -> None:
    assert decided(replace(running(), phase=phase)) == Closed(f"the campaign is {phase.value}")


def test_drift_halts_the_campaign() -> None:
    assert decided(running(), drift="the code moved") == Halts("the code moved")


def test_a_batch_that_would_go_over_the_days_bytes_halts_the_campaign() -> None:
    assert decided(running(), bytes_today=400 * GB, next_bytes=100 * GB) == Admitted()
    over = decided(running(), bytes_today=400 * GB, next_bytes=100 * GB + 1)
    assert isinstance(over, Halts)
    assert "bytes_read_per_day" in over.reason


def test_a_campaign_may_wait_for_midnight_in_its_zone_when_the_days_bytes_are_used_up() -> None:
    waits = running(budget={"bytes_read_per_day": "500GB", "used_up": "wait"})
    midnight_in_berlin = dt.datetime(2026, 3, 3, 23, tzinfo=dt.UTC)
    assert decided(waits, bytes_today=400 * GB, next_bytes=100 * GB) == Admitted()
    found = decided(waits, bytes_today=400 * GB, next_bytes=100 * GB + 1)
    assert found == Waits(
        "the next batch would bring the bytes read today to 500,000,000,001 (execution.budget.bytes_read_per_day: "
        "500,000,000,000)",
        midnight_in_berlin,
    )
    assert isinstance(decided(waits, next_bytes=500 * GB + 1), Halts), "it would wait for ever"


def test_a_blackout_window_that_ends_later_is_named_before_the_budget() -> None:
    waits = running(budget={"bytes_read_per_day": "1GB", "used_up": "wait"}, blackout_windows=["07:00-09:30"])
    found = admit(waits, traffic(now=dt.datetime(2026, 3, 3, 7, tzinfo=dt.UTC), bytes_today=2 * GB))
    assert isinstance(found, Waits)
    assert found.reason.startswith("blackout window")


def test_a_campaign_that_has_used_its_time_halts() -> None:
    assert decided(running(), spent=6 * HOUR - dt.timedelta(seconds=1)) == Admitted()
    over = decided(running(), spent=6 * HOUR)
    assert isinstance(over, Halts)
    assert "wall_time: 6h" in over.reason


def test_a_blackout_window_is_waited_out_to_its_end_in_the_specifications_zone() -> None:
    eight_in_berlin = dt.datetime(2026, 3, 3, 7, tzinfo=dt.UTC)
    found = admit(running(), traffic(now=eight_in_berlin))
    assert found == Waits("blackout window 07:00-09:30 (Europe/Berlin)", dt.datetime(2026, 3, 3, 8, 30, tzinfo=dt.UTC))


def test_the_floor_does_not_open_a_blackout_window() -> None:
    eight_in_berlin = dt.datetime(2026, 3, 3, 7, tzinfo=dt.UTC)
    found = admit(running(), traffic(now=eight_in_berlin, last_batch=eight_in_berlin - 9 * HOUR, live_runs=("r",)))
    assert isinstance(found, Waits)


def test_no_more_batches_run_together_than_the_knob_allows() -> None:
    campaign = running()
    assert decided(campaign, in_flight=1) == Admitted()
    assert isinstance(decided(campaign, in_flight=2), Waits)
    assert isinstance(decided(campaign.turned(max_concurrency=1), in_flight=1), Waits)


def test_live_runs_come_first_until_the_floor_is_due() -> None:
    campaign = running()
    waits = decided(campaign, live_runs=("0123456789",))
    assert isinstance(waits, Waits)
    assert waits.until == NOW + dt.timedelta(minutes=59)
    due = decided(campaign, live_runs=("0123456789",), last_batch=NOW - HOUR)
    assert isinstance(due, Admitted)
    assert due.why


def test_without_a_floor_live_runs_are_waited_for_as_long_as_they_take() -> None:
    campaign = running(pause_during_live_pipeline=True)
    assert isinstance(decided(campaign, live_runs=("r",), last_batch=NOW - 99 * HOUR), Waits)


def test_a_campaign_that_need_not_yield_does_not() -> None:
    assert decided(running(pause_during_live_pipeline=False), live_runs=("r",)) == Admitted()


@given(batches=st.integers(1, 12), hours=st.integers(1, 12), seconds=st.integers(5, 600))
def test_the_floor_of_progress_holds_beside_a_pipeline_that_never_rests(batches: int, hours: int, seconds: int) -> None:
    campaign = running(min_progress=f"{batches} batches per {hours}h")
    now, last, begun = NOW, NOW, 0
    end = NOW + hours * HOUR
    while now < end:
        now += dt.timedelta(seconds=seconds)
        # Days without a blackout window and without a budget: only live runs hold back a batch.
        if isinstance(admit(campaign, traffic(now=now, last_batch=last, live_runs=("r",))), Admitted):
            last, begun = now, begun + 1
    # A check every so many seconds can be late by one interval for each batch.
    late = dt.timedelta(seconds=seconds) * batches
    assert begun >= batches or (batches - begun) * (hours * HOUR / batches) <= late + hours * HOUR / batches
    assert begun <= batches


decisions = st.builds(
    Traffic,
    now=st.datetimes(dt.datetime(2026, 1, 1), dt.datetime(2026, 12, 31), timezones=st.just(dt.UTC)),  # noqa: DTZ001
    last_batch=st.just(NOW),
    live_runs=st.sampled_from([(), ("r1",), ("r1", "r2")]),
    in_flight=st.integers(0, 5),
    bytes_today=st.integers(0, 10**12),
    next_bytes=st.integers(0, 10**11),
    spent=st.timedeltas(dt.timedelta(0), dt.timedelta(hours=9)),
)


@given(decisions)
def test_what_is_admitted_keeps_every_limit(found: Traffic) -> None:
    campaign = running(
        budget={"bytes_read_per_day": "500GB", "wall_time": "6h"}, blackout_windows=["07:00-09:30"], max_concurrency=3
    )
    campaign = campaign.turned(max_concurrency=3)
    if isinstance(admit(campaign, found), Admitted):
        assert found.bytes_today + found.next_bytes <= 500 * GB
        assert found.spent < 6 * HOUR
        assert found.in_flight < 3
        assert not found.live_runs
        local = found.now.astimezone(campaign.specification.zone).time()
        assert not dt.time(7) <= local < dt.time(9, 30)
