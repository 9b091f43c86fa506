"""Processes, found by what their environment says."""

from __future__ import annotations

import contextlib
import os

import psutil


def living_with(variable: str, value: str) -> list[psutil.Process]:
    """Processes in whose environment the variable has this value, whoever their parent is, but for this one."""
    found = []
    for process in psutil.process_iter():
        # A process that ends while it is looked at shows as one error or the other.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(variable) == value:
                found.append(process)
    return found
