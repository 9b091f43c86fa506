"""Processes: found by what their environment says, and waited for."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

import psutil


def living_with(variable: str, value: str) -> list[psutil.Process]:
    """Processes in whose environment the variable has this value, whatever their parent, except this one."""
    found = []
    for process in psutil.process_iter():
        # A process that ends while it is examined raises one error or the other.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(variable) == value:
                found.append(process)
    return found


def comes_true(condition: Callable[[], object], seconds: float, every: float = 0.2) -> bool:
    """Wait until a condition holds, checked every so many seconds; returns whether it does within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
