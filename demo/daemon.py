"""A Dagster daemon for the time of the demo."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import dagster as dg

from backfill_assets.core.errors import BackfillError

_STOP_SECONDS = 30
_HEARTBEAT_SECONDS = 40
"""A daemon sends a heartbeat every thirty seconds."""


class DaemonError(BackfillError):
    """Raised when the demo's Dagster daemon cannot run."""


@contextlib.contextmanager
def running_daemon(log: Path, extra: Mapping[str, str]) -> Iterator[None]:
    """Run a daemon on the instance of DAGSTER_HOME, with `extra` environment variables; its output goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    module = "backfill_assets.orchestration.daemon"
    command = [sys.executable, "-m", module, "run", "-m", "backfill_assets.definitions"]
    with log.open("ab") as out:
        # Its own session: ctrl-C reaches the demo alone, which then ends the daemon in order.
        process = subprocess.Popen(  # our own arguments
            command,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **extra},
            start_new_session=True,
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def refuse_second_daemon() -> None:
    """Make sure that no other daemon runs on the instance; waits up to 40 s if one was seen a moment ago.

    Raises:
        DaemonError: a daemon is alive.
    """
    with dg.DagsterInstance.get() as instance:
        seen = _last_heartbeat(instance)
        while time.time() - seen < _HEARTBEAT_SECONDS:
            time.sleep(1)
            if _last_heartbeat(instance) > seen:
                raise DaemonError(
                    "a Dagster daemon runs on this checkout already (make dev?); stop it, then start again"
                )


def _last_heartbeat(instance: dg.DagsterInstance) -> float:
    beats = [status.last_heartbeat for status in instance.get_daemon_statuses().values()]
    return max((beat.timestamp for beat in beats if beat is not None), default=0.0)
