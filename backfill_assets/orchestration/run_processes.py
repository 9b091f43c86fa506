"""Whether the process of a run that shows as started is still there.

A code server fails the runs of its processes that end without a word. It does not when it was killed itself, or when its
thread for that has died: that thread gives up once the database was away for longer than Dagster tries again, about six
seconds. Nothing of Dagster asks after such a run before `max_runtime_seconds`, and it keeps its slot of the queue until then.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import dagster as dg
import psutil
from dagster._core.storage.tags import GRPC_INFO_TAG  # a hidden tag, by which Dagster itself finds the code server

from backfill_assets.ledger.host import of_this_host

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PATIENCE_SECONDS = 2


def ended_process(
    instance: dg.DagsterInstance, run: dg.DagsterRun, worker_of: Callable[[str], str | None]
) -> int | None:
    """The number of a run's process that was one of this host and is gone; none while it is there, or if nobody can tell.

    `worker_of` names the worker (`host:pid`) of the run's last attempt; it is asked only if no such process is there. A number
    that another process has got meanwhile counts as there.
    """
    number = _recorded(instance, run.run_id)
    if number is None or _is_there(number):
        return None
    worker = worker_of(run.run_id)
    if not (_of_code_server_here(run) if worker is None else of_this_host(worker)):
        return None
    # It may have told of its end between the look at the run and the one at the process.
    now = instance.get_run_by_id(run.run_id)
    return None if now is None or now.is_finished else number


def _recorded(instance: dg.DagsterInstance, run: str) -> int | None:
    """The process that Dagster says to have started the run in, in the first of its engine events that names one."""
    for record in instance.get_records_for_run(run, of_type=dg.DagsterEventType.ENGINE_EVENT, limit=20).records:
        event = record.event_log_entry.dagster_event
        value = event.engine_event_data.metadata.get("pid") if event is not None else None
        if value is not None:
            return int(str(value.value))
    return None


def _is_there(number: int) -> bool:
    try:
        # One whose parent does not look after it stays as a zombie.
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _of_code_server_here(run: dg.DagsterRun) -> bool:
    """Whether the code server that started a run can be reached in a way in which no other host's could."""
    info = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
    if info.get("socket"):
        return Path(info["socket"]).is_socket()
    if info.get("host") in _LOOPBACK and info.get("port"):
        with suppress(OSError), socket.create_connection((info["host"], info["port"]), _PATIENCE_SECONDS):
            return True
    return False
