"""The process beside the embedded server that stops it when nobody uses it: after a while, or soon if it works on for nobody."""

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
_NOBODY_SECONDS: Final = 10.0
_AT_WORK_PERCENT: Final = 20.0
"""Of a core. A server without sessions uses some hundredths of a core, one at work more than this even on a crowded machine."""
_LOOKS: Final = 2


def watch(folder: EngineFolder, idle_seconds: float, poll_seconds: float = _LONGEST_POLL_SECONDS) -> None:
    """Return when the server is gone, is watched by somebody else, or has been stopped.

    It is in use while a client is connected, whatever that client does or fails to do, and for
    `idle_seconds` after somebody last held a session. Spark may go on with a query that was cancelled
    while it planned it, and does go on with one whose client was killed: a server that is at work in
    two looks in a row, although nobody has been connected for ten seconds, is stopped. The next session
    starts another one. The looks are at most `poll_seconds` apart.
    """
    effort = _Effort()
    while (registration := _ours(folder)) is not None:
        sockets = _sockets(registration)
        if psutil.CONN_ESTABLISHED in sockets:
            folder.touch()
            effort = _Effort()
        # Not while it starts: it is at work for whoever waits for it.
        elif psutil.CONN_LISTEN in sockets:
            effort.look(registration.server.pid)
        unused, for_nobody = folder.seconds_unused(), effort.looks_at_work >= _LOOKS
        limit = min(_NOBODY_SECONDS, idle_seconds) if for_nobody else idle_seconds
        why = "It works, but for nobody" if for_nobody else f"Nobody used the server for {unused:.0f} s"
        if unused > limit and _stop_if_unused(folder, limit, why):
            return
        time.sleep(min(poll_seconds, idle_seconds / 4))


class _Effort:
    """How many times in a row a process was found at work since the look before."""

    def __init__(self) -> None:
        self.looks_at_work = 0
        self._process: psutil.Process | None = None

    def look(self, pid: int) -> None:
        """Look at the CPU time that it has used; the first look only notes it."""
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
    # Not yet registered itself: it was started a moment ago.
    mine = registration.watcher is None or registration.watcher.pid == os.getpid()
    return registration if mine else None


def _sockets(registration: Registration) -> frozenset[str]:
    """The states of the sockets at the server's port."""
    try:
        connections = psutil.Process(registration.server.pid).net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return frozenset()
    return frozenset(c.status for c in connections if c.laddr.port == registration.port)


def _stop_if_unused(folder: EngineFolder, seconds: float, why: str) -> bool:
    # Looked at again under the lock, under which a client that finds the server touches `last_used`.
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
