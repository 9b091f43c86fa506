"""Whether the process of a run that shows as started is still there.

A code server fails the runs of its processes that end without a word. It does not when it was killed itself, or when its
thread for that has died: that thread gives up once the database was away for longer than Dagster tries again, about six
seconds. Nothing of Dagster asks after such a run before `max_runtime_seconds`, and it keeps its slot of the queue until then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import psutil
from dagster._core.storage.tags import GRPC_INFO_TAG  # a hidden tag, by which Dagster itself finds the code server

from backfill_assets.ledger.database import process_here

# A clock that was set forward makes a process look younger than what it has said.
_SLACK_SECONDS = 300
_MANY = 100


def ended_process(
    instance: dg.DagsterInstance, run: dg.DagsterRun, workers: Mapping[str, float], location: str
) -> int | None:
    """The number of a run's process that was one of this host and is gone; none while it is there, or if nobody can tell.

    `workers` are those of its attempts (`host:pid`) and when they began, in seconds of the epoch; `location` is the code
    location whose server asks, empty for anybody else. A run may have been started twice, by the queue that had no answer
    from a code server: it has ended if all of its processes have.
    """
    if run.status not in {dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING}:
        return None  # the limit on starting looks after it, and may start it again
    recorded = _recorded(instance, run.run_id)
    own = {process_here(worker): at for worker, at in workers.items()}
    if not recorded or None in own or not (own or _was_started_here(run, location)):
        return None
    said = [*recorded.items(), *((number, at) for number, at in own.items() if number is not None)]
    if any(_is_there(number, at) for number, at in said):
        return None
    # It may have told of its end between the look at the run and the one at the processes.
    now = instance.get_run_by_id(run.run_id)
    return None if now is None or now.is_finished else max(recorded, key=recorded.__getitem__)


def _recorded(instance: dg.DagsterInstance, run: str) -> dict[int, float]:
    """The processes that Dagster says to have started the run in, and when they first said so."""
    found: dict[int, float] = {}
    for record in instance.get_records_for_run(run, of_type=dg.DagsterEventType.ENGINE_EVENT, limit=_MANY).records:
        event = record.event_log_entry.dagster_event
        value = event.engine_event_data.metadata.get("pid") if event is not None else None
        if value is not None:
            found.setdefault(int(str(value.value)), record.event_log_entry.timestamp)
    return found


def _is_there(number: int, said_at: float) -> bool:
    """Whether the process that has named its number then is at work; whoever may not look at it takes it for so."""
    if not psutil.pid_exists(number):  # it alone tells processes from threads, which are numbered with them
        return False
    try:
        process = psutil.Process(number)
        # One whose parent does not look after it stays as a zombie; a younger one has got the number since.
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < said_at + _SLACK_SECONDS
    except psutil.Error:
        return True


def _was_started_here(run: dg.DagsterRun, location: str) -> bool:
    """Whether a run without an attempt is of the code server that asks, or of one that listens on a socket of this host."""
    if GRPC_INFO_TAG not in run.tags:
        return False  # a command has started it, wherever
    origin = run.remote_job_origin
    if location and origin is not None:
        return origin.location_name == location
    path = json.loads(run.tags[GRPC_INFO_TAG]).get("socket")
    return bool(path) and Path(path).is_socket()
