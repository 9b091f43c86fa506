"""A Dagster daemon for the time of the demo."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import dagster as dg

from backfill_assets.domain.errors import BackfillError

_STOP_SECONDS = 30


class DaemonError(BackfillError):
    """Raised when the demo's Dagster daemon cannot run."""


@contextlib.contextmanager
def running_daemon(log: Path, extra: Mapping[str, str]) -> Iterator[None]:
    """Run a daemon on the instance of DAGSTER_HOME, with `extra` environment variables; its output goes to `log`.

    Raises:
        DaemonError: another daemon runs on this instance already.
    """
    _refuse_second_daemon()
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


def _refuse_second_daemon() -> None:
    with dg.DagsterInstance.get() as instance:
        statuses = instance.get_daemon_statuses()
    if any(status.healthy for status in statuses.values()):
        raise DaemonError(
            "a Dagster daemon already runs on this checkout (make dev?) or ended less than a minute ago; "
            "stop it, or wait a minute, and start the demo again"
        )
