"""No kill during a campaign makes it build a passed batch again; and it yields to live runs, down to its floor."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.storage.dagster_run import DagsterRun
from dagster._core.utils import make_new_run_id

from backfill_assets.campaign.state import CampaignState, Phase
from backfill_assets.control.standing import CampaignStanding
from backfill_assets.core.days import day_range
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import LIVE_TAG, Attempt, AttemptState
from backfill_assets.doctor.findings import Finding
from backfill_assets.orchestration.event_log import DagsterEventLog
from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.dagster.campaigns import backfill, planned, reaches, standing
from backfill_assets_tests.dagster.lab import Lab, started_alone
from backfill_assets_tests.harness.waiting import PATIENCE, wait_for
from backfill_assets_tests.observed import Observed

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200 * PATIENCE)]

DATASET = "tickets_faults"
# A batch takes some seconds: long enough to be killed in the middle of it.
SLOW = "CAST(amount + (SELECT count(*) FROM range(1000000000) WHERE id % 7 = 8) AS BIGINT) AS amount"
FLOOR = dt.timedelta(seconds=10)
# A ticket of ten is delivered for each day, and the model adds nothing to it.
DELIVERED = [(1, 10)]
AS_BUILT = {1: 10}
Days = tuple[dt.date, ...]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An installation with a Spark server of its own: server and daemon are killed, and other tests go on."""
    root = tmp_path_factory.mktemp("faults")
    made = Lab(root, root / "state", variables={"BACKFILL_ASSETS_SPARK_MEMORY": "1g"})
    # The run limits as shipped: a slot is kept for live runs.
    made.set_up({DATASET: "tickets"}, run_limits={})
    made.edit_model(DATASET, "fact.sql", "SELECT day, ticket, amount", f"SELECT day, ticket, {SLOW}")
    with started_alone(made):
        yield made


def delivered_and_planned(lab: Lab, name: str, first: dt.date, count: int, **execution: object) -> Days:
    """A planned campaign over newly delivered days, a day in each batch."""
    days = day_range(first, first + dt.timedelta(days=count - 1))
    for day in days:
        lab.deliver(DATASET, day, DELIVERED)
    planned(lab, name, DATASET, days, partitions_per_batch=1, **execution)
    return days


def shadows(lab: Lab, name: str, state: AttemptState | None = None) -> list[Attempt]:
    """The batches of a campaign that build shadows, in order."""
    ledger = lab.application.ledger
    unit = ledger.campaign(name).unit
    return [a for a in ledger.attempts(unit, state) if a.layer == "shadow"] if unit else []


def at_work(lab: Lab, name: str, *, after: int) -> Attempt:
    """The running batch, once so many have passed."""

    def found() -> bool:
        return len(shadows(lab, name, AttemptState.done)) >= after and bool(shadows(lab, name, AttemptState.running))

    wait_for(found, f"a batch of {name} to be at work", 300)
    running = shadows(lab, name, AttemptState.running)
    assert running, "the batch was over too soon to be killed"
    return running[-1]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def assert_built_once(observed: Observed, lab: Lab, name: str, days: Days) -> None:
    """Each day has passed exactly once, and readers see none of the new rows."""
    done = Counter(day for attempt in shadows(lab, name, AttemptState.done) for day in attempt.days)
    assert done == dict.fromkeys(days, 1)
    seen: CampaignStanding = standing(lab, name)
    assert (seen.good, seen.state) == (len(days), CampaignState.validated)
    assert not set(lab.published(DATASET)) & set(days)
    assert not [r for r in lab.application.ledger.releases(DATASET) if r.manifest.unit == seen.campaign.unit]
    doctor_finds_nothing(lab)
    observed.found(f"{len(days)} days of {name} passed once each, none is published; the doctor: nothing")


def assert_published_once(observed: Observed, lab: Lab, name: str, days: Days) -> None:
    """`backfill publish` releases all days at once: readers see the model's content, and no day was built again for it."""
    backfill(lab, "publish", name)
    assert {d: rows for d, rows in lab.published(DATASET).items() if d in days} == dict.fromkeys(days, AS_BUILT)
    unit = lab.application.ledger.campaign(name).unit
    releases = [r for r in lab.application.ledger.releases(DATASET) if r.manifest.unit == unit]
    found = [(r.state, sorted(d.day for d in r.manifest.days)) for r in releases]
    assert found == [(ReleaseState.finalized, sorted(days))]
    done = Counter(day for attempt in shadows(lab, name, AttemptState.done) for day in attempt.days)
    assert done == dict.fromkeys(days, 1)
    doctor_finds_nothing(lab)
    observed.found(f"backfill publish: {len(days)} days as the model makes them, in one release; the doctor: nothing")


def doctor_finds_nothing(lab: Lab) -> None:
    """Examine as `backfill doctor` does; the last batch or release is reported to Dagster a moment after it is in the ledger."""
    seen: list[Finding] = []

    def nothing() -> bool:
        with lab.instance as instance:
            events = DagsterEventLog(instance, lab.application)
            seen[:] = replace(lab.application.doctor, events=events).examine()
        return not seen

    try:
        wait_for(nothing, "the doctor to find nothing", 60)
    except pytest.fail.Exception as error:
        pytest.fail("; ".join([str(error), *map(str, seen)]))


def launched(lab: Lab, name: str) -> bool:
    """Whether a campaign is running, so that the command that launched it only watches."""
    ledger = lab.application.ledger
    return ledger.campaign(name).phase is Phase.running and f"launch:{name}" not in {
        lock.name for lock in ledger.locks()
    }


def test_a_killed_command_and_a_killed_run_worker_need_no_command(observed: Observed, lab: Lab) -> None:
    observed.injected("kill -9 of `backfill launch --watch`, then of a run worker in the middle of a batch")
    name = "faults-workers"
    days = delivered_and_planned(lab, name, dt.date(2024, 9, 1), 4)
    program = str(Path(sys.executable).with_name("backfill"))
    environ = {**os.environ, **lab.environ, "BACKFILL_ASSETS_WEBSERVER": lab.url}
    with subprocess.Popen(
        [program, "launch", name, "--watch"], cwd=lab.root, env=environ, stdout=subprocess.DEVNULL
    ) as command:
        # Killed during the launch, it would leave its lock behind, which the doctor reports.
        wait_for(lambda: launched(lab, name), "the launch", 120)
        kill(command.pid)
    attempt = at_work(lab, name, after=1)
    kill(int(attempt.worker.rsplit(":", 1)[1]))
    reaches(lab, "validated", name)
    (lost,) = [a for a in shadows(lab, name) if a.number == attempt.number]
    assert lost.state is AttemptState.lost
    assert_built_once(observed, lab, name, days)
    assert_published_once(observed, lab, name, days)


def test_after_a_killed_daemon_and_a_killed_spark_server_only_missing_days_are_built(
    observed: Observed, lab: Lab
) -> None:
    observed.injected("kill -9 of the daemon after the first batch, of the Spark server in the middle of the fourth")
    name = "faults-servers"
    days = delivered_and_planned(lab, name, dt.date(2024, 9, 11), 6)
    backfill(lab, "launch", name)
    at_work(lab, name, after=1)
    lab.kill_daemon()
    lab.start_daemon()
    attempt = at_work(lab, name, after=3)
    pid = SparkServer(lab.application.settings).status().pid
    assert pid is not None
    kill(pid)
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "its end", 30)
    # The conductor launches the rest again by itself, after its first pause.
    reaches(lab, "validated", name)
    (failed,) = [a for a in shadows(lab, name) if a.number == attempt.number]
    assert failed.state in {AttemptState.failed, AttemptState.lost}
    assert_built_once(observed, lab, name, days)
    assert_published_once(observed, lab, name, days)


def test_no_batch_begins_between_the_start_and_the_end_of_a_live_run(observed: Observed, lab: Lab) -> None:
    observed.injected("a live run in the middle of a campaign")
    name, today = "faults-live", dt.date(2024, 9, 30)
    days = delivered_and_planned(lab, name, dt.date(2024, 9, 21), 6)
    lab.deliver(DATASET, today, [(1, 7)])
    backfill(lab, "launch", name)
    at_work(lab, name, after=1)
    live = lab.launch_live(DATASET, today)
    with lab.instance as instance:

        def record() -> dg.RunRecord:
            found = instance.get_run_record_by_id(live)
            assert found is not None
            return found

        wait_for(lambda: record().dagster_run.is_finished, "the live run to end", 300)
        assert record().dagster_run.status is dg.DagsterRunStatus.SUCCESS
        began, ended = record().start_time, record().end_time
    assert began is not None
    assert ended is not None
    reaches(lab, "validated", name)
    starts = [attempt.started_at.timestamp() for attempt in shadows(lab, name)]
    assert [start for start in starts if began <= start <= ended] == []
    assert [start for start in starts if start > ended], "the campaign was over too soon to prove anything"
    assert_built_once(observed, lab, name, days)


def test_the_floor_of_progress_holds_beside_a_live_run_that_never_ends(observed: Observed, lab: Lab) -> None:
    observed.injected("a live run that never ends")
    name = "faults-floor"
    days = delivered_and_planned(lab, name, dt.date(2024, 10, 1), 3, min_progress=f"1 batch per {FLOOR.seconds}s")
    with lab.instance as instance:
        sleeping = DagsterRun(
            job_name=f"live_{DATASET}",
            run_id=make_new_run_id(),
            tags={LIVE_TAG: "true"},
            status=dg.DagsterRunStatus.STARTED,
        )
        instance.add_run(sleeping)
        try:
            backfill(lab, "launch", name)
            reaches(lab, "validated", name)
        finally:
            instance.report_run_canceled(sleeping)
    batches = sorted(
        lab.application.ledger.attempts(lab.application.ledger.campaign(name).unit), key=lambda a: a.number
    )
    starts = [attempt.started_at for attempt in batches]
    assert len(shadows(lab, name, AttemptState.done)) == len(days)
    assert min(later - one for one, later in pairwise(starts)) >= FLOOR
    assert_built_once(observed, lab, name, days)
