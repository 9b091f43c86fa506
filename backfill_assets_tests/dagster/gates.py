"""Gates: places at which a process of an installation stands still until a test has killed it there or lets it go on.

A gate is a FIFO in a folder, named after the call before or after which the process stands. Whoever comes to it writes its
process id and waits at a second FIFO beside it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

HOLD_VARIABLE = "BACKFILL_ASSETS_TEST_HOLD"
"""Environment variable that names the folder of the gates at which a process stands."""
_ON = ".on"


def shut(folder: Path, name: str) -> Path:
    """Make a gate; the next process that comes to it stands there."""
    gate = folder / name
    os.mkfifo(folder / f"{name}{_ON}")
    os.mkfifo(gate)
    return gate


def stand(folder: Path, name: str) -> None:
    """Stand at a gate, if there is one: for ever, or until `let_go`."""
    gate = folder / name
    if not gate.is_fifo():
        return
    # Opening blocks until the test has opened the other end; then this process is the test's.
    with gate.open("w", encoding="ascii") as out:
        out.write(str(os.getpid()))
    on = folder / f"{name}{_ON}"
    if not on.exists():
        signal.pause()
    on.read_bytes()


def reached(gate: Path) -> int:
    """Wait until a process stands at a gate, which is open for all others from now on; its process id."""
    pid = int(gate.read_text(encoding="ascii"))
    gate.unlink()
    return pid


def let_go(*gates: Path) -> None:
    """Let the processes that stand at these gates go on, at the same moment."""
    opened = [gate.with_name(f"{gate.name}{_ON}").open("wb") for gate in gates]
    for on in opened:
        on.close()
    for gate in gates:
        gate.with_name(f"{gate.name}{_ON}").unlink()


def killed_at(gate: Path) -> int:
    """Wait until a process stands at a gate, and kill it there; its process id."""
    pid = reached(gate)
    os.kill(pid, signal.SIGKILL)
    return pid
