"""Real processes that do something at the same moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from backfill_assets_tests.harness.waiting import wait_for


def together(
    script: str, url: str, folder: Path, processes: int, turns: int, *, within: Sequence[Sequence[str]] = ()
) -> tuple[tuple[str, ...], ...]:
    """The output of each process; they get url, folder, their number and the turns, and begin once `folder/go` exists.

    `within` are commands that wrap each of them.
    """
    command = [sys.executable, "-c", script, url, str(folder)]
    outer = within or [()] * processes
    started = [
        subprocess.Popen(
            [*outer[me], *command, str(me), str(turns)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for me in range(processes)
    ]

    def all_ready_or_one_dead() -> bool:
        return len(list(folder.glob("ready-*"))) == processes or any(p.poll() is not None for p in started)

    wait_for(all_ready_or_one_dead, "the processes to be ready", every=0.01)
    (folder / "go").touch()
    printed = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * processes, [error for _, error in printed]
    return tuple(tuple(out.splitlines()) for out, _ in printed)
