"""Runs whose process died without reporting: how they are found, and which runs are left alone. With real processes."""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.events import EngineEventData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.tags import GRPC_INFO_TAG

from backfill_assets.core.unit import Attempt, AttemptState
from backfill_assets.ledger import work
from backfill_assets.orchestration.event_log import DagsterEventLog, ended_process
from backfill_assets.orchestration.sensors import dead_workers
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.unit.orchestration.house import House

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clock_of_the_house")]

RUN = "3c7a1d5e-0000-4000-8000-000000000002"
LEASE = dt.timedelta(seconds=60)
STARTED, CANCELING = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING
FAILURE, CANCELED = dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, str]]:
    """The tags of a run that a code server of this host has started, which still listens."""
    monkeypatch.chdir(tmp_path)  # the path of a socket is limited to some 100 characters
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind("code")
        yield {GRPC_INFO_TAG: json.dumps({"host": "localhost", "socket": str(Path("code").resolve())})}


@pytest.fixture
def gone_server() -> Mapping[str, str]:
    """The tags of a run whose code server has taken its socket with it."""
    return {GRPC_INFO_TAG: json.dumps({"host": "localhost", "socket": "/nowhere/code"})}


class Look:
    """The sensor as the daemon calls it: its cursor is all that it keeps from one check to the next."""

    def __init__(self, house: House, instance: dg.DagsterInstance) -> None:
        self.house, self.instance = house, instance
        self.events = DagsterEventLog(instance, house.application)
        self._cursor: str | None = None

    def started(
        self, *pids: int, tags: Mapping[str, str], status: dg.DagsterRunStatus = STARTED, location: str = "ours"
    ) -> dg.DagsterRun:
        """A run of this status, whose processes have reported their ids as Dagster's do."""
        origin = RemoteJobOrigin(
            RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "__repository__"), "job"
        )
        run = self.instance.add_run(dg.DagsterRun("job", RUN, status=status, tags=dict(tags), remote_job_origin=origin))
        self.instance.report_engine_event("queued", run)
        for pid in pids:
            self.instance.report_engine_event("started", run, EngineEventData.in_process(pid))
        return run

    def again(self) -> str:
        """Check once; returns how many runs were ended, in the sensor's words."""
        origin = RegisteredCodeLocationOrigin("ours")
        context = dg.SensorEvaluationContext(
            None, cursor=self._cursor, instance=self.instance, code_location_origin=origin
        )
        said = dead_workers(self.house.application)(context)
        self._cursor = context.cursor
        assert isinstance(said, dg.SkipReason)
        return said.skip_message or ""

    @property
    def status(self) -> dg.DagsterRunStatus:
        found = self.instance.get_run_by_id(RUN)
        assert found is not None
        return found.status

    @property
    def ended(self) -> int | None:
        """The dead process of the run, as the doctor sees it."""
        (run,) = self.events.at_work()
        return run.ended_process

    @property
    def lives(self) -> bool:
        """Whether two checks leave the run as it is."""
        return {self.again(), self.again()} == {"every worker is alive"} and self.status is STARTED

    def attempt(self) -> Attempt:
        unit = self.house.world.open_unit({"sales": [day(0)]})
        return self.house.world.ledger.start_attempt(unit.id, "sales", [day(0)], RUN, LEASE)


@pytest.fixture
def look(house: House, instance: dg.DagsterInstance) -> Look:
    return Look(house, instance)


def dead() -> int:
    """The id of a dead process of this host."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_the_run_of_a_process_that_is_gone_is_failed_at_the_second_check(look: Look, here: Mapping[str, str]) -> None:
    look.started(pid := dead(), tags=here)
    assert (look.again(), look.status) == ("every worker is alive", STARTED)
    assert (look.again(), look.status) == ("1 runs of dead workers ended", FAILURE)
    (event,) = look.instance.all_logs(RUN, of_type=dg.DagsterEventType.PIPELINE_FAILURE)
    assert f"The process {pid} of this run is gone" in event.message
    assert look.again() == "every worker is alive"


def test_a_run_that_is_being_cancelled_ends_as_canceled_and_is_not_started_again(
    look: Look, here: Mapping[str, str]
) -> None:
    look.started(dead(), tags=here, status=CANCELING)
    look.again()
    look.again()
    assert look.status is CANCELED


def test_a_zombie_process_counts_as_gone(look: Look, here: Mapping[str, str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        zombie = psutil.Process(process.pid)
        wait_for(lambda: zombie.status() == psutil.STATUS_ZOMBIE, "the process to end", 20)
        look.started(process.pid, tags=here)
        assert look.ended == process.pid


def test_a_process_id_that_was_reused_by_a_thread_or_a_younger_process_is_not_the_run(
    look: Look, here: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        look.started(thread.native_id, os.getpid(), tags=here)
        assert look.ended is None
        made = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: made(process) + 9_999)
        assert look.ended in {thread.native_id, os.getpid()}
    finally:
        ended.set()
        thread.join()


def test_a_run_whose_process_exists_is_left_alone(look: Look, here: Mapping[str, str]) -> None:
    look.started(os.getpid(), tags=here)
    assert look.lives
    assert look.ended is None


@pytest.mark.parametrize("pids", [(dead, os.getpid), (os.getpid, dead)], ids=["the second", "the first"])
def test_a_run_that_was_started_twice_lives_as_long_as_one_of_its_processes(
    look: Look, here: Mapping[str, str], pids: Sequence[Callable[[], int]]
) -> None:
    look.started(*(pid() for pid in pids), tags=here)
    assert look.lives


def test_a_run_that_is_being_started_is_left_to_the_limit_on_that(look: Look, here: Mapping[str, str]) -> None:
    look.started(dead(), tags=here, status=dg.DagsterRunStatus.STARTING)
    assert {look.again(), look.again()} == {"every worker is alive"}
    assert look.status is dg.DagsterRunStatus.STARTING


def test_a_run_that_reports_its_end_between_two_checks_is_left_as_reported(look: Look, here: Mapping[str, str]) -> None:
    run = look.started(pid := dead(), tags=here)
    look.again()
    assert ended_process(look.instance, run, {}, "ours") == pid
    look.instance.report_run_canceled(run)
    assert ended_process(look.instance, run, {}, "ours") is None  # as the run was before it reported this
    assert (look.again(), look.status) == ("every worker is alive", CANCELED)


def test_a_run_whose_attempts_have_ended_is_judged_by_its_worker_and_not_by_the_code_server(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    look.started(number := dead(), tags={})
    monkeypatch.setattr(work, "worker_name", lambda: f"{socket.gethostname()}:{number}")
    look.house.world.ledger.end_attempt(look.attempt().number, AttemptState.done)
    look.again()
    assert (look.again(), look.status) == ("1 runs of dead workers ended", FAILURE)


def test_a_worker_that_is_gone_in_the_middle_of_its_lease_is_not_waited_for(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    look.started(number := dead(), tags={})
    monkeypatch.setattr(work, "worker_name", lambda: f"{socket.gethostname()}:{number}")
    look.attempt()
    look.again()
    assert (look.again(), look.status) == ("1 runs of dead workers ended", FAILURE)
    assert [a.state for a in look.house.world.ledger.attempts()] == [AttemptState.lost]


def test_a_run_that_has_begun_an_attempt_is_alive_whatever_process_id_dagster_stored(look: Look) -> None:
    look.started(dead(), tags={})
    clock, begun = look.house.world.clock, dt.datetime.fromtimestamp(psutil.Process().create_time(), dt.UTC)
    clock.advance(begun - clock.now())  # the attempt is begun after its process
    look.attempt()
    assert look.lives


def test_a_worker_past_its_lease_is_failed_at_the_first_check(look: Look) -> None:
    look.started(dead(), tags={})
    look.attempt()
    look.house.world.clock.advance(LEASE + dt.timedelta(seconds=1))
    assert (look.again(), look.status) == ("1 runs of dead workers ended", FAILURE)
    assert [a.state for a in look.house.world.ledger.attempts()] == [AttemptState.lost]


def test_a_process_of_another_host_is_left_alone(
    look: Look, here: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look.started(number := dead(), tags=here)
    monkeypatch.setattr(work, "worker_name", lambda: f"elsewhere:{number}")
    look.house.world.ledger.end_attempt(look.attempt().number, AttemptState.done)
    assert look.lives


def test_a_run_without_an_attempt_is_its_own_code_servers_even_if_that_was_restarted(
    look: Look, gone_server: Mapping[str, str]
) -> None:
    look.started(dead(), tags=gone_server)
    assert look.ended is None  # a command cannot know: it may be of another host
    look.again()
    assert (look.again(), look.status) == ("1 runs of dead workers ended", FAILURE)


@pytest.mark.parametrize(("by_command", "location"), [(True, "ours"), (False, "theirs")])
def test_a_run_without_an_attempt_of_a_command_or_of_another_code_location_is_left_alone(
    look: Look, gone_server: Mapping[str, str], location: str, *, by_command: bool
) -> None:
    look.started(dead(), tags={} if by_command else gone_server, location=location)
    assert look.lives
    assert look.ended is None


def test_a_run_with_odd_stored_values_hides_no_other(look: Look) -> None:
    look.started(dead(), tags={GRPC_INFO_TAG: "no json"}, location="theirs")
    assert look.ended is None
