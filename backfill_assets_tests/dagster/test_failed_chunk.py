"""A shadow that fails in one chunk: nothing of the unit is published until everything is proven; the tests run in order."""

from __future__ import annotations

import datetime as dt
import re
import shlex

import dagster as dg
import pytest

from backfill_assets.core.days import day_range
from backfill_assets.core.release import shadow_of
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.dagster.lab import Lab, amounts

DATASET = "tickets_failed"
DAYS = day_range(dt.date(2024, 2, 1), dt.date(2024, 2, 6))
BAD = dt.date(2024, 2, 5)

_RETRY = """
mutation Retry($params: ReexecutionParams!) {
  reexecutePartitionBackfill(reexecutionParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""


@pytest.fixture(scope="module")
def failed(lab: Lab) -> str:
    """A backfill over two chunks, launched by `backfill run`; one chunk has a duplicate key on one day."""
    for day in DAYS:
        rows = [(1, 10), (2, 10)] if day != BAD else [(1, 10), (1, 11)]
        lab.deliver(DATASET, day, rows)
    done = lab.backfill("run", DATASET, f"{DAYS[0]}..{DAYS[-1]}", "--watch", BACKFILL_ASSETS_WEBSERVER=lab.url)
    (backfill,) = re.findall(r"launched backfill (\w+)", done.stdout)
    assert lab.finished(backfill) != "COMPLETED_SUCCESS"
    # The command ends with what failed and how to go on.
    assert (done.returncode, f"{DATASET} {BAD} failed its checks" in done.stdout) == (1, True), done.stdout
    assert done.stdout.count("unique_key: expected") == 1, done.stdout
    assert f"backfill resume {lab.unit(backfill).id}" in done.stdout
    return backfill


def test_nothing_of_the_unit_is_published_when_one_chunk_fails(lab: Lab, failed: str) -> None:
    assert amounts(lab, DATASET, DAYS) == {}
    assert lab.materialized("published", DATASET) & {str(d) for d in DAYS} == set()


def test_the_failure_names_day_check_and_what_was_found(lab: Lab, failed: str) -> None:
    text = lab.failures(failed)
    assert f"{BAD} unique_key: expected no duplicate keys, found 1 duplicate key" in text
    assert f"backfill resume {lab.unit(failed).id}" in text


def test_every_day_has_its_own_check_result_with_the_numbers_behind_it(lab: Lab, failed: str) -> None:
    key = dg.AssetCheckKey(dg.AssetKey([DATASET, "shadow"]), "unique_key")
    with lab.instance as instance:
        records = instance.event_log_storage.get_asset_check_execution_history(key, limit=100)
    events = [r.event.dagster_event for r in records if r.event is not None]
    # A check that was only planned, because its run ended before it, is also in the history.
    done = [e for e in events if e is not None and e.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION]
    evaluations = [e.asset_check_evaluation_data for e in done]
    results = {e.partition: e for e in evaluations if e.partition in {str(d) for d in DAYS}}
    assert {day: e.passed for day, e in results.items()} == {str(d): d != BAD for d in DAYS}
    metadata = results[str(BAD)].metadata
    assert metadata["found"].value == "1 duplicate key"
    assert "ticket" in str(metadata["sample"].value)


def test_retry_failed_from_the_ui_never_publishes_unproven_days(lab: Lab, failed: str) -> None:
    answer = lab.graphql(_RETRY, params={"parentRunId": failed, "strategy": "FROM_FAILURE"})[
        "reexecutePartitionBackfill"
    ]
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    assert lab.finished(answer["backfillId"]) != "COMPLETED_SUCCESS"
    assert amounts(lab, DATASET, DAYS) == {}


def test_published_alone_on_unproven_days_is_refused_with_the_list_of_what_is_missing(lab: Lab, failed: str) -> None:
    alone = lab.launch(DATASET, DAYS, layers=("published",))
    assert lab.finished(alone) != "COMPLETED_SUCCESS"
    text = lab.failures(alone)
    assert f"{DATASET} {BAD} failed its checks" in text
    assert f"backfill resume {lab.unit(failed).id}" in text
    assert amounts(lab, DATASET, DAYS) == {}


def test_a_run_of_one_good_day_of_the_unit_is_refused_by_name_and_is_no_green_run_without_a_release(
    lab: Lab, failed: str
) -> None:
    day = str(DAYS[0])
    command = ("dagster", "asset", "materialize", "-m", "backfill_assets.definitions", "--select", f"group:{DATASET}")
    done = lab.run(*command, "--partition", day)
    assert done.returncode != 0
    assert f"{DATASET} {BAD} failed its checks" in done.stdout + done.stderr
    assert amounts(lab, DATASET, DAYS) == {}


def test_the_printed_relaunch_releases_the_complete_unit_and_recomputes_only_the_failed_day(
    lab: Lab, failed: str
) -> None:
    unit = lab.unit(failed)
    attempts = {e.attempt for e in lab.application.ledger.evidence(unit.id).values() if e.passed}
    lab.deliver(DATASET, BAD, [(1, 10), (2, 10)], number=2)
    (command,) = set(re.findall(r"backfill resume u_\w+", lab.failures(failed)))

    done = lab.run(*command.split(), "--watch", BACKFILL_ASSETS_WEBSERVER=lab.url)

    assert done.returncode == 0, done.stderr
    (release,) = lab.application.ledger.releases(unit=unit.id)
    assert f"undo it with: backfill rollback {release.manifest.release} --reason" in done.stdout
    (resumed,) = re.findall(r"launched backfill (\w+)", done.stdout)
    assert lab.finished(resumed) == "COMPLETED_SUCCESS", lab.failures(resumed)
    assert amounts(lab, DATASET, DAYS) == dict.fromkeys(DAYS, 20)
    assert {str(d) for d in DAYS} <= lab.materialized("published", DATASET)
    after = lab.application.ledger.evidence(unit.id)
    assert {e.day for e in after.values() if e.attempt not in attempts} == {BAD}
    assert len(lab.application.ledger.releases(unit=unit.id)) == 1


def test_a_resume_builds_again_what_the_disk_has_lost_of_the_days_that_had_passed(lab: Lab) -> None:
    days = day_range(dt.date(2024, 2, 11), dt.date(2024, 2, 16))
    for day in days:
        lab.deliver(DATASET, day, [(1, 10), (2, 10)] if day != days[5] else [(1, 10), (1, 11)])
    backfill = lab.launch(DATASET, days)
    assert lab.finished(backfill) == "COMPLETED_FAILED"
    unit, table = lab.unit(backfill), path_of(lab.application.layout.published_path(DATASET))
    passed = {e.day: e for e in lab.application.ledger.evidence(unit.id).values() if e.passed}
    (log,) = (table / shadow_of(passed[days[0]].shadow_files[0].path) / "_delta_log").glob("*.json")
    log.write_bytes(bytes(log.stat().st_size))
    (table / passed[days[3]].shadow_files[0].path).unlink()
    lab.deliver(DATASET, days[5], [(1, 10), (2, 10)], number=2)

    done = lab.backfill("resume", unit.id, BACKFILL_ASSETS_WEBSERVER=lab.url)

    (resumed,) = re.findall(r"launched backfill (\w+)", done.stdout)
    assert lab.finished(resumed) == "COMPLETED_SUCCESS", lab.failures(resumed)
    assert amounts(lab, DATASET, days) == dict.fromkeys(days, 20)
    after = {e.day: e for e in lab.application.ledger.evidence(unit.id).values()}
    kept = [day for day in days if day in passed and after[day].attempt == passed[day].attempt]
    # The first chunk lost its log, the second one file beside the day that had failed.
    assert kept == [days[4]]


def test_the_printed_expected_change_releases_an_intended_change_with_the_reason_of_its_launch(
    lab: Lab, failed: str
) -> None:
    days = DAYS[:2]
    assert amounts(lab, DATASET, days) == dict.fromkeys(days, 20), failed
    for day in days:
        lab.deliver(DATASET, day, [(1, 15), (2, 15)], number=3)
    words = ("run", DATASET, f"{days[0]}..{days[1]}", "--reason", "the fee was missing", "--watch")
    refused = lab.backfill(*words, BACKFILL_ASSETS_WEBSERVER=lab.url)
    assert refused.returncode == 1, refused.stdout
    (offered,) = re.findall(r"^ +(backfill resume .+ --expected-change .+)$", refused.stdout, re.MULTILINE)
    unit = shlex.split(offered)[2]
    assert offered in lab.backfill("status", unit).stdout
    assert amounts(lab, DATASET, days) == dict.fromkeys(days, 20)

    done = lab.run(*shlex.split(offered), "--watch", BACKFILL_ASSETS_WEBSERVER=lab.url)

    assert done.returncode == 0, done.stdout + done.stderr
    assert amounts(lab, DATASET, days) == dict.fromkeys(days, 30)
    (release,) = lab.application.ledger.releases(unit=unit)
    assert release.manifest.reason == "the fee was missing"
