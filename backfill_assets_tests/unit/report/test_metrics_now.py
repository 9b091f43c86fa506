"""Metrics from a real ledger and real tables."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from functools import partial

import pytest

from backfill_assets.campaign.state import Action, JournalEntry, Phase
from backfill_assets.report.metrics import MetricsNow
from backfill_assets_tests.harness.specifications import DAYS, NAME
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.harness.world import World, side

pytestmark = pytest.mark.slow

HOUR = dt.timedelta(hours=1)


def metrics(world: World) -> MetricsNow:
    return MetricsNow(world.warehouse())


def test_a_dataset_without_a_release_has_no_figures(world: World) -> None:
    found = metrics(world).of("sales")
    assert (found.published, found.rows, found.duplicate_keys_per_1000_rows) == (0, 0, None)
    assert (found.watermark.newest, found.last_success, found.rollback_windows) == (None, None, ())


def test_figures_are_those_of_what_is_published_now(world: World) -> None:
    world.released({day(0): [1, 2], day(1): [1, 2]})
    world.measure = partial(side, duplicate_keys=1)
    second = world.released({day(1): [1, 2, 3]})
    world.measure = side
    found = metrics(world).of("sales")
    assert (found.rows, found.duplicate_keys, found.duplicate_keys_per_1000_rows) == (5, 1, 200.0)
    world.rollback().execute(second, "odd")
    found = metrics(world).of("sales")
    assert (found.rows, found.duplicate_keys) == (4, 0)


def test_only_checks_of_the_named_days_are_read(world: World) -> None:
    world.released({day(0): [1, 2], day(1): [1, 2, 3]})
    found = metrics(world).of("sales", [day(1)])
    assert (found.published, found.rows) == (2, 3)


def test_a_day_that_was_released_without_a_row_counts_as_published(world: World) -> None:
    world.released({day(0): [1], day(1): []})
    found = metrics(world).of("sales")
    assert (found.published, found.watermark.newest, found.rows) == (2, day(1), 1)


def test_success_and_rollback_windows_follow_releases_and_rollbacks(world: World) -> None:
    first = world.released({day(0): [1], day(1): [1]})
    world.clock.advance(HOUR)
    second = world.released({day(1): [2]})
    world.clock.advance(HOUR)
    found = metrics(world).of("sales")
    assert found.last_success is not None
    assert (found.last_success.release, found.last_success.hours_ago) == (second, 1.0)
    assert [(w.release, w.days) for w in found.rollback_windows] == [(second, 1), (first, 1)]
    world.rollback().execute(second, "odd")
    found = metrics(world).of("sales")
    assert found.last_success is not None
    assert found.last_success.release == first
    assert [(w.release, w.days) for w in found.rollback_windows] == [(first, 2)]


def test_open_units_are_listed_until_they_are_released(world: World) -> None:
    unit = world.open_unit({"sales": [day(0)]})
    assert metrics(world).of("sales").open_units == (unit.id,)
    world.build(unit, "sales", {day(0): [1]})
    world.publisher().release(unit.id)
    assert metrics(world).of("sales").open_units == ()


def test_a_campaign_goes_from_running_through_validated_and_approved_to_published(campaigns: World) -> None:
    campaign, unit = campaigns.launched()
    observed = []

    def notify() -> None:
        (found,) = metrics(campaigns).all().campaigns
        observed.append((found.state, found.days_done, found.batches_left))

    notify()
    campaigns.build(unit, "sales", {DAYS[0]: [1]})
    campaigns.build(unit, "sales", {DAYS[1]: [1]}, passed=False)
    notify()
    campaigns.build(unit, "sales", {d: [1] for d in DAYS[1:]})
    notify()
    campaigns.approve(campaign)
    notify()
    release = campaigns.release("carl").publish(NAME).outcome.release
    notify()
    campaigns.campaign_rollback("ben").execute(release, "odd")
    notify()
    assert observed == [
        ("running", 0, 1), ("running", 1, 1), ("validated", 3, 0), ("approved", 3, 0), ("published", 3, 0),
        ("rolled_back", 3, 0),
    ]  # fmt: skip


def test_a_planned_campaign_has_no_day_done(campaigns: World) -> None:
    campaigns.planned({"sales": DAYS})
    (found,) = metrics(campaigns).all().campaigns
    assert (found.campaign, found.state, found.days_done, found.days_total) == (NAME, "planned", 0, 3)


def test_a_campaign_whose_days_went_stale_is_called_stale(campaigns: World) -> None:
    campaign, _ = campaigns.validated()
    campaigns.ledger.note(JournalEntry(campaign.id, campaigns.clock.now(), "x", Action.stale, "moved"))
    (found,) = metrics(campaigns).all().campaigns
    assert found.state == "stale"


def test_a_campaign_at_a_closed_gate_says_since_when_and_for_what(campaigns: World) -> None:
    campaign, _ = campaigns.launched()
    campaigns.clock.advance(HOUR)
    since = campaigns.clock.now()
    campaigns.ledger.note(JournalEntry(campaign.id, since, "the gate", Action.waits, "live runs are running"))
    (found,) = metrics(campaigns).all().campaigns
    assert (found.waiting_since, found.waiting_for) == (since, "live runs are running")
    campaigns.turned(replace(campaign), Phase.paused, Action.paused)
    assert metrics(campaigns).all().campaigns[0].waiting_since is None


def test_every_dataset_is_listed_by_name(two: World) -> None:
    two.released({day(0): [1]}, "sales")
    found = metrics(two).all()
    assert [(one.dataset, one.published) for one in found.datasets] == [("orders", 0), ("sales", 1)]
    assert found.at == two.clock.now()
