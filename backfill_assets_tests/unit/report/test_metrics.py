"""Each metric by example."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

import pytest

from backfill_assets.campaign.plan import Estimate, Plan, PlannedDataset
from backfill_assets.campaign.state import Action, Campaign, CampaignState, JournalEntry, Knobs, Phase
from backfill_assets.core.days import day_range
from backfill_assets.core.release import DaySwap, Manifest, ReleaseKind, ReleaseState
from backfill_assets.core.unit import (
    OPENED_BY,
    Attempt,
    AttemptState,
    DayFindings,
    ReleaseMode,
    ReleaseRecord,
    Unit,
    UnitState,
)
from backfill_assets.dataset.definition import Dataset
from backfill_assets.report.metrics import (
    LastSuccess,
    Metrics,
    Published,
    RollbackWindow,
    SecondsPerPartition,
    Watermark,
    campaign_metrics,
    dataset_metrics,
    days_done,
    seconds_per_partition,
    watermark,
)
from backfill_assets_tests.harness.judged import dataset
from backfill_assets_tests.harness.specifications import specification

DAYS = day_range(dt.date(2024, 3, 1), dt.date(2024, 3, 10))
NOON = dt.datetime(2024, 3, 12, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
UNIT = Unit("u_1", "b_1", NOON, "ada", {"trips": DAYS}, ReleaseMode.auto)


def attempt(seconds: float, days: Sequence[dt.date] = DAYS[:1], **changes: object) -> Attempt:
    end = NOON + dt.timedelta(seconds=seconds)
    made = Attempt(1, "u_1", "trips", tuple(days), "r", "w", AttemptState.done, NOON, NOON, end)
    return replace(made, **changes)  # type: ignore[arg-type]


def release(name: str, at: dt.datetime, days: Sequence[dt.date] = DAYS) -> ReleaseRecord:
    swaps = tuple(DaySwap(day, (), ()) for day in days)
    manifest = Manifest(name, ReleaseKind.publish, "trips", "u_1", "ada", at, "e", "c", swaps)
    return ReleaseRecord(manifest, ReleaseState.finalized, 1, at)


def published(**changes: object) -> Published:
    record = release("r_1", NOON - 3 * HOUR)
    made = Published(dataset(), DAYS, dict.fromkeys(DAYS, record.manifest), {}, [record], [UNIT], [])
    return replace(made, **changes)  # type: ignore[arg-type]


def with_calendar(**changes: object) -> Dataset:
    return dataset(time_zone="UTC", start="2024-03-01", **changes)


def test_duplicate_keys_are_counted_per_thousand_rows_of_what_is_published() -> None:
    findings = {DAYS[0]: DayFindings(rows=1500, duplicate_keys=3), DAYS[1]: DayFindings(rows=500)}
    found = dataset_metrics(published(findings=findings), NOON)
    assert (found.rows, found.duplicate_keys, found.duplicate_keys_per_1000_rows) == (2000, 3, 1.5)
    assert dataset_metrics(published(), NOON).duplicate_keys_per_1000_rows is None


def test_mismatches_are_rows_that_a_golden_source_contradicts_and_failures_that_were_let_pass() -> None:
    findings = {
        DAYS[0]: DayFindings(10, golden_mismatches=4),
        DAYS[1]: DayFindings(10, golden_mismatches=1, tolerated=("change_fare", "rule_lenient")),
    }
    found = dataset_metrics(published(findings=findings), NOON)
    assert (found.golden_mismatches, found.failed_checks, found.mismatches) == (5, 2, 7)


def test_a_batch_spreads_its_time_over_its_days_and_percentiles_are_those_of_days() -> None:
    batches = [attempt(19.0, DAYS[:1]), attempt(18.0, [*DAYS[1:], DAYS[0]] * 2)]
    assert seconds_per_partition("trips", [UNIT], batches) == SecondsPerPartition(0.9, 0.9, 21)
    slow = [*batches, attempt(40.0, DAYS[:2])]
    assert seconds_per_partition("trips", [UNIT], slow) == SecondsPerPartition(0.9, 20.0, 23)


def test_only_finished_shadow_attempts_of_backfills_are_timed() -> None:
    live = replace(UNIT, id="u_live", live=True)
    others = [
        attempt(900.0, unit="u_live"),
        attempt(900.0, dataset="others"),
        attempt(900.0, layer="raw"),
        attempt(900.0, state=AttemptState.failed),
        attempt(900.0, ended_at=None),
    ]
    assert seconds_per_partition("trips", [UNIT, live], others) is None
    # The wait for the gate is before an attempt begins.
    waited = attempt(2.0, waited=HOUR)
    assert seconds_per_partition("trips", [UNIT, live], [*others, waited]) == SecondsPerPartition(2.0, 2.0, 1)


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ((), (None, None, None, None)),
        (DAYS, (DAYS[9], DAYS[9], 1, 12.0)),
        ([*DAYS, dt.date(2024, 3, 11)], (dt.date(2024, 3, 11), dt.date(2024, 3, 11), 0, 0.0)),
        ([*DAYS[:3], *DAYS[5:8]], (DAYS[7], DAYS[2], 3, 60.0)),
        (DAYS[4:6], (DAYS[5], DAYS[5], 5, 108.0)),
    ],
    ids=["nothing", "yesterday is lacking", "up to date", "with a gap", "begun in the middle"],
)
def test_a_watermark_and_its_lag_behind_the_newest_day_that_is_over(
    days: Sequence[dt.date], expected: tuple[object, ...]
) -> None:
    found = watermark(with_calendar(), days, NOON)
    assert found.due == dt.date(2024, 3, 11)
    assert (found.newest, found.gap_free, found.lag_days, found.lag_hours) == expected


def test_a_closed_history_is_never_late_once_it_is_complete() -> None:
    assert watermark(with_calendar(end="2024-03-10"), DAYS, NOON) == Watermark(DAYS[9], DAYS[9], DAYS[9], 0, 0.0)


def test_gaps_are_the_due_days_that_are_missing_from_the_first_published_one_on() -> None:
    missing = dt.date(2024, 3, 11)
    assert watermark(with_calendar(), DAYS, NOON).gaps == ((missing, missing),)
    assert watermark(with_calendar(), [*DAYS[2:3], *DAYS[5:8]], NOON).gaps == ((DAYS[3], DAYS[4]), (DAYS[8], missing))
    assert watermark(with_calendar(end="2024-12-31"), [*DAYS[2:3], *DAYS[5:8]], NOON).gaps == ((DAYS[3], DAYS[4]),)
    assert watermark(with_calendar(), (), NOON).gaps == ()


@pytest.mark.parametrize(("offset", "due", "days", "hours"), [(1, 12, 2, 36.0), (-1, 10, 0, 0.0), (-2, 9, 0, 0.0)])
def test_an_end_offset_moves_what_is_due(offset: int, due: int, days: int, hours: float) -> None:
    found = watermark(with_calendar(end_offset=offset), DAYS, NOON)
    assert (found.due, found.lag_days, found.lag_hours) == (dt.date(2024, 3, due), days, hours)


def test_a_day_is_due_when_the_days_that_it_looks_ahead_to_are_over() -> None:
    found = watermark(with_calendar().linked({}, 2), DAYS[:8], NOON)
    assert (found.due, found.lag_days, found.lag_hours) == (dt.date(2024, 3, 9), 1, 12.0)
    ended = watermark(with_calendar(end="2024-03-11").linked({}, 2), DAYS[:9], NOON)
    assert (ended.due, ended.lag_days, ended.lag_hours) == (dt.date(2024, 3, 11), 2, 12.0)


def test_a_day_is_over_at_midnight_of_the_datasets_own_zone() -> None:
    late = dt.datetime(2024, 3, 11, 23, 30, tzinfo=dt.UTC)
    berlin = dataset(time_zone="Europe/Berlin", start="2024-03-01")
    assert watermark(with_calendar(), DAYS, late).lag_days == 0
    assert (watermark(berlin, DAYS, late).lag_days, watermark(berlin, DAYS, late).lag_hours) == (1, 0.5)


def test_before_the_first_day_is_over_nothing_is_due() -> None:
    assert watermark(with_calendar(), (), NOON - 30 * 24 * HOUR) == Watermark(None, None, None, None, None)


def test_the_last_success_is_the_newest_release_that_is_still_in_force() -> None:
    old, new, undone = release("r_1", NOON - 9 * HOUR), release("r_2", NOON - 5 * HOUR), release("r_3", NOON - HOUR)
    standing = {day: (old if day < DAYS[5] else new).manifest for day in DAYS}
    found = dataset_metrics(published(records=[undone, new, old], standing=standing), NOON)
    assert found.last_success == LastSuccess("r_2", NOON - 5 * HOUR, 5.0)
    assert dataset_metrics(published(records=[], standing={}), NOON).last_success is None


def test_rollback_windows_are_open_while_a_release_is_kept_and_some_day_shows_it() -> None:
    keep = dt.timedelta(days=30)
    gone, old, new = release("r_0", NOON - keep), release("r_1", NOON - keep + HOUR), release("r_2", NOON)
    covered = release("r_9", NOON - HOUR)
    shown = (gone, old, old, old, new, new, new, new, new, new)
    standing = {day: record.manifest for day, record in zip(DAYS, shown, strict=True)}
    found = dataset_metrics(published(records=[new, covered, old, gone], standing=standing), NOON)
    assert found.rollback_windows == (
        RollbackWindow("r_2", 6, DAYS[4], DAYS[9], NOON + keep),
        RollbackWindow("r_1", 3, DAYS[1], DAYS[3], NOON + HOUR),
    )


def test_open_units_are_called_by_their_campaign() -> None:
    units = [
        replace(UNIT, id="u_2", opened_by=f"{OPENED_BY}tax-fix"),
        UNIT,
        replace(UNIT, id="u_3", state=UnitState.published),
    ]
    assert dataset_metrics(published(units=units), NOON).open_units == ("tax-fix", "u_1")


def a_campaign(phase: Phase = Phase.running) -> Campaign:
    asked = specification()
    planned = PlannedDataset("trips", ("shadow",), DAYS, "c", {}, 0, 0)
    plan = Plan(asked.backfill_id, asked.hash, NOON, (planned,), (), (), Estimate(0, 0, 0, 0.0))
    return Campaign(asked, plan, Knobs(1, 4), NOON, phase=phase, unit="u_1")


def entry(action: Action, hours: float, reason: str = "") -> JournalEntry:
    return JournalEntry("tax-fix-2026", NOON + hours * HOUR, "the gate", action, reason)


def test_a_campaign_counts_its_days_and_the_batches_that_they_make() -> None:
    found = campaign_metrics(a_campaign(), CampaignState.running, 3, [], [])
    assert (found.days_done, found.days_total, found.batches_left) == (3, 10, 2)
    over = campaign_metrics(a_campaign(Phase.stopped), CampaignState.discarded, 3, [], [])
    assert over.batches_left == 0


def test_a_campaign_waits_since_the_first_run_that_gave_up_after_its_last_batch() -> None:
    journal = [
        entry(Action.launched, 0), entry(Action.waits, 1, "old"), entry(Action.waits, 3, "blackout"),
        entry(Action.backfill, 4), entry(Action.waits, 5, "live runs"),
    ]  # fmt: skip
    batch = attempt(60, started_at=NOON + 2 * HOUR, waited=HOUR / 2)
    found = campaign_metrics(a_campaign(), CampaignState.running, 1, [batch, replace(batch, waited=HOUR)], journal)
    assert (found.waiting_since, found.waiting_for) == (NOON + 3 * HOUR, "live runs")
    assert (found.waited_hours, found.gave_up) == (1.5, 3)


@pytest.mark.parametrize(
    ("phase", "state"), [(Phase.paused, AttemptState.done), (Phase.running, AttemptState.running)], ids=str
)
def test_a_paused_or_running_campaign_waits_for_nothing(phase: Phase, state: AttemptState) -> None:
    journal = [entry(Action.launched, 0), entry(Action.waits, 1, "live runs")]
    found = campaign_metrics(a_campaign(phase), CampaignState.running, 1, [attempt(60, state=state)], journal)
    assert (found.waiting_since, found.waiting_for, found.gave_up) == (None, "", 1)


def test_a_resumed_campaign_waits_for_nothing_until_a_run_gives_up_again() -> None:
    journal = [entry(Action.launched, 0), entry(Action.waits, 1, "live runs"), entry(Action.resumed, 2)]
    assert campaign_metrics(a_campaign(), CampaignState.running, 0, [], journal).waiting_since is None


def test_a_day_is_done_when_its_evidence_passes() -> None:
    findings = {("trips", DAYS[0]): DayFindings(passed=True), ("trips", DAYS[1]): DayFindings(passed=False)}
    assert days_done([("trips", day) for day in DAYS], findings) == 1


def test_as_plain_values_the_metrics_have_their_computed_figures_as_numbers() -> None:
    one = dataset_metrics(published(findings={DAYS[0]: DayFindings(1000, 1, 2)}), NOON)
    campaign = campaign_metrics(a_campaign(), CampaignState.running, 0, [], [])
    found = Metrics(NOON, (one,), (campaign,)).to_plain()
    datasets, campaigns = found["datasets"], found["campaigns"]
    assert isinstance(datasets, list)
    assert isinstance(campaigns, list)
    assert (datasets[0]["duplicate_keys_per_1000_rows"], datasets[0]["mismatches"]) == (1.0, 2)
    assert datasets[0]["watermark"]["newest"] == "2024-03-10"
    assert campaigns[0]["days_total"] == 10
