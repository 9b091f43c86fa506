"""Runs whose process is gone without a word: who finds them, by what, and who is left in peace. With real processes."""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.events import EngineEventData
from dagster._core.storage.tags import GRPC_INFO_TAG

from backfill_assets.domain.work import Attempt, AttemptState
from backfill_assets.orchestration.event_log import DagsterEventLog
from backfill_assets.orchestration.sensors import dead_workers
from backfill_assets_tests.dagster.lab import wait_for
from backfill_assets_tests.unit.orchestration.house import House
from backfill_assets_tests.unit.published.tables import day

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


class Look:
    """The sensor as the daemon asks it: what it keeps between two looks is all that it knows of the first."""

    def __init__(self, house: House, instance: dg.DagsterInstance) -> None:
        self.house, self.instance = house, instance
        self.events = DagsterEventLog(instance, house.application)
        self._cursor: str | None = None

    def started(self, pid: int, tags: Mapping[str, str], status: dg.DagsterRunStatus = STARTED) -> None:
        """A run of this status, whose process has said its number as Dagster's do."""
        run = self.instance.add_run(dg.DagsterRun("job", RUN, status=status, tags=tags))
        self.instance.report_engine_event("queued", run)
        self.instance.report_engine_event("started", run, EngineEventData.in_process(pid))

    def again(self) -> str:
        """Look once; how many runs were failed, in the sensor's words."""
        context = dg.build_sensor_context(instance=self.instance, cursor=self._cursor)
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
        """The process of the run that is gone, as the doctor hears of it."""
        (run,) = self.events.at_work()
        return run.ended_process

    def attempt(self) -> Attempt:
        unit = self.house.world.open_unit({"sales": [day(0)]})
        return self.house.world.ledger.start_attempt(unit.id, "sales", [day(0)], RUN, LEASE)


@pytest.fixture
def look(house: House, instance: dg.DagsterInstance) -> Look:
    return Look(house, instance)


def dead() -> int:
    """The number of a process of this host that is gone."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_the_run_of_a_process_that_is_gone_is_failed_at_the_second_look(look: Look, here: Mapping[str, str]) -> None:
    look.started(pid := dead(), here)
    assert (look.again(), look.status) == ("every worker is alive", STARTED)
    assert (look.again(), look.status) == ("1 runs of dead workers failed", FAILURE)
    (event,) = look.instance.all_logs(RUN, of_type=dg.DagsterEventType.PIPELINE_FAILURE)
    assert f"The process {pid} of this run is gone" in event.message
    assert look.again() == "every worker is alive"


def test_a_run_that_is_being_cancelled_ends_as_canceled_and_is_not_started_again(
    look: Look, here: Mapping[str, str]
) -> None:
    look.started(dead(), here, CANCELING)
    look.again()
    look.again()
    assert look.status is CANCELED


def test_a_process_that_nobody_has_waited_for_is_gone_as_well(look: Look, here: Mapping[str, str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        zombie = psutil.Process(process.pid)
        wait_for(lambda: zombie.status() == psutil.STATUS_ZOMBIE, "the process to end", 20)
        look.started(process.pid, here)
        assert look.ended == process.pid


def test_a_run_whose_process_is_there_is_left_in_peace(look: Look, here: Mapping[str, str]) -> None:
    look.started(os.getpid(), here)
    assert {look.again(), look.again()} == {"every worker is alive"}
    assert (look.status, look.ended) == (STARTED, None)


def test_a_run_that_says_its_end_between_two_looks_is_left_as_it_said(look: Look, here: Mapping[str, str]) -> None:
    look.started(dead(), here)
    look.again()
    run = look.instance.get_run_by_id(RUN)
    assert run is not None
    look.instance.report_run_canceled(run)
    assert (look.again(), look.status) == ("every worker is alive", CANCELED)


def test_whose_attempts_have_ended_is_known_by_its_worker_and_not_by_the_code_server(look: Look) -> None:
    look.started(dead(), {})
    attempt = look.attempt()
    # It holds a lease: who renews it is alive, whatever number Dagster has written down.
    assert {look.again(), look.again()} == {"every worker is alive"}
    look.house.world.ledger.end_attempt(attempt.number, AttemptState.done)
    look.again()
    assert (look.again(), look.status) == ("1 runs of dead workers failed", FAILURE)


def test_a_worker_past_its_lease_is_failed_at_the_first_look(look: Look) -> None:
    look.started(dead(), {})
    look.attempt()
    look.house.world.clock.advance(LEASE + dt.timedelta(seconds=1))
    assert (look.again(), look.status) == ("1 runs of dead workers failed", FAILURE)
    assert [a.state for a in look.house.world.ledger.attempts()] == [AttemptState.lost]


def test_the_process_of_another_host_is_nobodys_business(look: Look, here: Mapping[str, str]) -> None:
    look.started(dead(), here)
    attempt = look.attempt()
    look.house.world.ledger.end_attempt(attempt.number, AttemptState.done)
    assert look.ended is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "elsewhere")
        assert look.ended is None


def test_a_run_without_an_attempt_is_known_by_the_code_server_that_still_listens(look: Look) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        look.started(dead(), {GRPC_INFO_TAG: json.dumps({"host": "127.0.0.1", "port": port})})
        assert look.ended is not None
    # Nobody listens any more: it may have been another host's.
    assert look.ended is None


@pytest.mark.parametrize(
    "tags",
    [
        {},
        {GRPC_INFO_TAG: json.dumps({"host": "localhost", "socket": "/nowhere/code"})},
        {GRPC_INFO_TAG: json.dumps({"host": "code.example", "port": 4000})},
    ],
    ids=["a command's", "a code server that is gone", "a code server elsewhere"],
)
def test_a_run_without_an_attempt_of_which_nobody_can_tell_is_left_in_peace(
    look: Look, tags: Mapping[str, str]
) -> None:
    look.started(dead(), tags)
    assert {look.again(), look.again()} == {"every worker is alive"}
    assert (look.status, look.ended) == (STARTED, None)
