"""The process that stops an unused embedded server: after its idle time, or sooner if it works without any client."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Final

import psutil

from backfill_assets.spark.registration import EngineFolder, Registration

_logger: Final = logging.getLogger("watcher")
_LONGEST_POLL_SECONDS: Final = 5.0
_UNUSED_SECONDS: Final = 10.0
_AT_WORK_PERCENT: Final = 20.0
"""Percent of a core. An idle server uses some hundredths of a core, a working one more than this even on a busy machine."""
_LOOKS: Final = 2


def watch(folder: EngineFolder, idle_seconds: float, poll_seconds: float = _LONGEST_POLL_SECONDS) -> None:
    """Return when the server is gone, has another watcher, or has been stopped.

    The server is in use while a client is connected, even an inactive one, and for `idle_seconds`
    after the last session. Spark may continue a query that was cancelled during its planning, and
    does continue one whose client was killed: a server is stopped if it works in two checks in a
    row although no client has been connected for ten seconds. The next session starts another one.
    The checks are at most `poll_seconds` apart.
    """
    effort = _Effort()
    while (registration := _ours(folder)) is not None:
        sockets = _sockets(registration)
        if psutil.CONN_ESTABLISHED in sockets:
            folder.touch()
            effort = _Effort()
        # Not while it starts: then it works for the process that waits for it.
        elif psutil.CONN_LISTEN in sockets:
            effort.look(registration.server.pid)
        unused, unattended = folder.seconds_unused(), effort.looks_at_work >= _LOOKS
        limit = min(_UNUSED_SECONDS, idle_seconds) if unattended else idle_seconds
        why = "The server works without a client" if unattended else f"The server was not used for {unused:.0f} s"
        if unused > limit and _stop_if_unused(folder, limit, why):
            return
        time.sleep(min(poll_seconds, idle_seconds / 4))


class _Effort:
    """How many checks in a row found a process working since the check before."""

    def __init__(self) -> None:
        self.looks_at_work = 0
        self._process: psutil.Process | None = None

    def look(self, pid: int) -> None:
        """Check the CPU time that it has used; the first check only records it."""
        try:
            self._process = self._process or psutil.Process(pid)
            at_work = self._process.cpu_percent() > _AT_WORK_PERCENT
        except psutil.NoSuchProcess:
            return
        self.looks_at_work = self.looks_at_work + 1 if at_work else 0


def _ours(folder: EngineFolder) -> Registration | None:
    registration = folder.read()
    if registration is None or registration.server.find() is None:
        return None
    # No watcher in the registration: this one was started a moment ago.
    mine = registration.watcher is None or registration.watcher.pid == os.getpid()
    return registration if mine else None


def _sockets(registration: Registration) -> frozenset[str]:
    try:
        connections = psutil.Process(registration.server.pid).net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return frozenset()
    return frozenset(c.status for c in connections if c.laddr.port == registration.port)


def _stop_if_unused(folder: EngineFolder, seconds: float, why: str) -> bool:
    # Check again under the lock: a client that finds the server touches `last_used` under it.
    with folder.locked():
        registration = _ours(folder)
        if registration is None:
            return True
        if psutil.CONN_ESTABLISHED in _sockets(registration) or folder.seconds_unused() <= seconds:
            return False
        _logger.warning("%s: stopping it.", why)
        registration.server.terminate()
        folder.remove()
        return True


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    watch(EngineFolder(Path(sys.argv[1])), float(sys.argv[2]))
