"""A dataset of `publication: approval`: the shadow is built and green, the release is a step of its own."""

from __future__ import annotations

import datetime as dt

from backfill_assets.core.days import day_range
from backfill_assets_tests.dagster.lab import Lab, amounts
from backfill_assets_tests.harness.waiting import wait_for
from benchmarks.installation import LAUNCH_RUN, LOCATION

DAYS = day_range(dt.date(2024, 5, 1), dt.date(2024, 5, 2))


def _publish(lab: Lab, unit: str, evidence: str) -> bool:
    selector = {
        "repositoryLocationName": LOCATION, "repositoryName": "__repository__",
        "pipelineName": "unit_publish",
    }  # fmt: skip
    config = {"ops": {"unit_publish_op": {"config": {"unit": unit, "evidence": evidence}}}}
    answer = lab.graphql(LAUNCH_RUN, params={"selector": selector, "runConfigData": config})["launchRun"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    run_id = answer["run"]["runId"]
    with lab.instance as instance:
        wait_for(lambda: bool((run := instance.get_run_by_id(run_id)) and run.is_finished), "the publish job", 180)
        run = instance.get_run_by_id(run_id)
        assert run is not None
        return run.is_success


def test_the_release_is_a_separate_step_bound_to_the_approved_evidence(lab: Lab) -> None:
    for day in DAYS:
        lab.deliver("invoices", day, [(1, 10)])
    built = lab.launch("invoices", DAYS, layers=("raw", "staging", "shadow"))
    assert lab.finished(built) == "COMPLETED_SUCCESS", lab.failures(built)
    unit = lab.unit(built).id
    evidence = lab.application.publisher.evidence_hash(unit)

    refused = lab.backfill("publish", unit)
    assert refused.returncode == 1
    assert "only after approval" in refused.stderr
    assert not _publish(lab, unit, "0" * 64)
    assert lab.published("invoices") == {}

    assert _publish(lab, unit, evidence)
    assert amounts(lab, "invoices", DAYS) == dict.fromkeys(DAYS, 10)
    assert lab.materialized("published", "invoices") == {str(d) for d in DAYS}
    status = lab.backfill("status", unit)
    assert "published" in status.stdout, status.stderr
