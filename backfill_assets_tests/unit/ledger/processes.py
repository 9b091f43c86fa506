"""Real processes that do something at the same moment."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import create_engine, make_url, text


def fresh_database(cluster: str, name: str) -> str:
    """The URL of a new database on the cluster."""
    engine = create_engine(cluster, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return make_url(cluster).set(database=name).render_as_string(hide_password=False)


def together(
    script: str, url: str, folder: Path, processes: int, turns: int, *, within: Sequence[Sequence[str]] = ()
) -> tuple[tuple[str, ...], ...]:
    """What each process printed; they get url, folder, their number and the turns, and begin once `folder/go` exists.

    `within` are commands that each of them is run by.
    """
    command = [sys.executable, "-c", script, url, str(folder)]
    outer = within or [()] * processes
    started = [
        subprocess.Popen(
            [*outer[me], *command, str(me), str(turns)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for me in range(processes)
    ]
    while len(list(folder.glob("ready-*"))) < processes and all(p.poll() is None for p in started):
        time.sleep(0.01)
    (folder / "go").touch()
    printed = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * processes, [error for _, error in printed]
    return tuple(tuple(out.splitlines()) for out, _ in printed)
