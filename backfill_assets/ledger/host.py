"""Which machine this is: a SQLite ledger serves the processes of one host only."""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True)
class Host:
    """A machine: a name for people, and an id that survives renaming."""

    name: str
    id: str


def this_host() -> Host:
    """The machine that this process runs on; where it has no machine id (containers), its name has to do."""
    name = socket.gethostname()
    try:
        machine = _MACHINE_ID.read_text().strip()
    except OSError:
        machine = ""
    # Machine ids are not meant to leave the machine as they are.
    return Host(name, hashlib.sha256(f"backfill_assets:{machine or name}".encode()).hexdigest()[:16])


def worker_name() -> str:
    """This process, as leases and locks name their holders: `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"


def process_here(worker: str) -> int | None:
    """The number of a worker's process, if it is or was one of this host."""
    host, _, number = worker.rpartition(":")
    return int(number) if host == socket.gethostname() else None
