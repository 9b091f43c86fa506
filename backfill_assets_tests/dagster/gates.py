"""Gates: places at which a process of an installation waits until a test kills it there or lets it continue.

A gate is a FIFO in a folder, named after the call before or after which the process waits. A process that reaches it writes
its process id and waits at a second FIFO beside it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

HOLD_VARIABLE = "BACKFILL_ASSETS_TEST_HOLD"
"""Environment variable that names the folder of a process's gates."""
_ON = ".on"


def set_gate(folder: Path, name: str) -> Path:
    """Make a gate; the next process that reaches it waits there."""
    gate = folder / name
    os.mkfifo(folder / f"{name}{_ON}")
    os.mkfifo(gate)
    return gate


def stand(folder: Path, name: str) -> None:
    """Wait at a gate, if there is one: for ever, or until `open_gates` is called."""
    gate = folder / name
    if not gate.is_fifo():
        return
    # Opening blocks until the test has opened the other end; then the test controls this process.
    with gate.open("w", encoding="ascii") as out:
        out.write(str(os.getpid()))
    on = folder / f"{name}{_ON}"
    if not on.exists():
        signal.pause()
    on.read_bytes()


def reached(gate: Path) -> int:
    """Wait until a process is at a gate, which is open for all others from now on; returns its process id."""
    pid = int(gate.read_text(encoding="ascii"))
    gate.unlink()
    return pid


def open_gates(*gates: Path) -> None:
    """Let the processes at these gates continue, at the same moment."""
    opened = [gate.with_name(f"{gate.name}{_ON}").open("wb") for gate in gates]
    for on in opened:
        on.close()
    for gate in gates:
        gate.with_name(f"{gate.name}{_ON}").unlink()


def killed_at(gate: Path) -> int:
    """Wait until a process is at a gate, and kill it there; returns its process id."""
    pid = reached(gate)
    os.kill(pid, signal.SIGKILL)
    return pid
