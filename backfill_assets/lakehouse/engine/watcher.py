"""The process beside the embedded server that stops it when nobody has used it for long enough."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Final

import psutil

from backfill_assets.lakehouse.engine.registration import EngineFolder, Registration

_logger: Final = logging.getLogger("watcher")
_LONGEST_POLL_SECONDS: Final = 5.0


def watch(folder: EngineFolder, idle_seconds: float) -> None:
    """Return when the server is gone, is watched by somebody else, or has been stopped for being idle.

    It is in use while a client is connected, whatever that client does or fails to do, and for
    `idle_seconds` after somebody last held a session.
    """
    while (registration := _ours(folder)) is not None:
        if _has_clients(registration):
            folder.touch()
        if folder.seconds_unused() > idle_seconds and _stop_if_idle(folder, idle_seconds):
            return
        time.sleep(min(_LONGEST_POLL_SECONDS, idle_seconds / 4))


def _ours(folder: EngineFolder) -> Registration | None:
    registration = folder.read()
    if registration is None or registration.server.find() is None:
        return None
    # Not yet registered itself: it was started a moment ago.
    mine = registration.watcher is None or registration.watcher.pid == os.getpid()
    return registration if mine else None


def _has_clients(registration: Registration) -> bool:
    try:
        connections = psutil.Process(registration.server.pid).net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return False
    return any(
        connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == registration.port
        for connection in connections
    )


def _stop_if_idle(folder: EngineFolder, idle_seconds: float) -> bool:
    # Looked at again under the lock, under which a client that finds the server touches `last_used`.
    with folder.locked():
        registration = _ours(folder)
        if registration is None:
            return True
        if _has_clients(registration) or folder.seconds_unused() <= idle_seconds:
            return False
        _logger.warning("Nobody used the server for %.0f s: stopping it.", idle_seconds)
        registration.server.terminate()
        folder.remove()
        return True


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    watch(EngineFolder(Path(sys.argv[1])), float(sys.argv[2]))
