"""A throw-away Postgres cluster: on a socket of its own, without network, gone after the tests."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy import make_url

from backfill_assets_tests.harness.waiting import wait_for

_PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
_LOCK = "postmaster.pid"


@contextmanager
def cluster() -> Iterator[str]:
    """Run a cluster, or skip the test where none can be started; yields the URL of its first database."""
    reason = _why_not()
    if reason is not None:
        pytest.skip(reason)
    # Not below pytest's folder: the path of a socket is limited to some 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    user = _unprivileged() if os.geteuid() == 0 else None
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    data = folder / "data"
    _run("initdb", "-D", str(data), "-U", "ledger", "-A", "trust", "-E", "UTF8", "--no-sync")
    try:
        start(folder)
        yield f"postgresql+psycopg2://ledger:secret@/postgres?host={folder}"
    finally:
        _stop(data)
        shutil.rmtree(folder)


def start(folder: Path) -> None:
    """Start the server of a cluster, for the first time or after it was killed."""
    options = f"-c listen_addresses='' -c fsync=off -k {folder}"
    _run("pg_ctl", "-D", str(folder / "data"), "-o", options, "-l", str(folder / "log"), "-w", "start")


def _server_of(data: Path) -> psutil.Process:
    return psutil.Process(int((data / _LOCK).read_text().splitlines()[0]))


def _stop(data: Path) -> None:
    """End the server of a cluster immediately."""
    server = _server_of(data)
    server.send_signal(signal.SIGQUIT)
    # pg_ctl would wait until the process id is gone: a minute where zombies are reaped late.
    wait_for(lambda: not is_running(server), "Postgres to end", 60)


class Killable:
    """A Postgres cluster that is ended by SIGKILL and started again on the same data."""

    def __init__(self, url: str) -> None:
        self._folder = Path(str(make_url(url).query["host"]))

    def kill(self) -> None:
        """End it with all its processes."""
        server = _server_of(self._folder / "data")
        # Its children would notice by themselves, but keep its shared memory until then.
        whole = [server, *server.children(recursive=True)]
        for process in whole:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        while any(is_running(process) for process in whole):
            time.sleep(0.01)
        # Where zombies are reaped late, Postgres would assume that this one still runs.
        for left in (self._folder / "data" / _LOCK, *self._folder.glob(".s.PGSQL.*.lock")):
            left.unlink()

    def start(self) -> None:
        """Start it again."""
        start(self._folder)


def _why_not() -> str | None:
    """Why no cluster can be started here; None if one can."""
    if importlib.util.find_spec("psycopg2") is None:
        return "psycopg2 is not installed (extra `postgres`)"
    if _programs() is None:
        return "the Postgres programs initdb and pg_ctl are not installed"
    if os.geteuid() == 0 and _unprivileged() is None:
        return "Postgres does not run as root, and there is no user postgres or nobody"
    return None


def is_running(process: psutil.Process) -> bool:
    """Whether a process is still running: it is neither gone nor a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _run(program: str, *arguments: str) -> None:
    folder = _programs()
    user = _unprivileged() if os.geteuid() == 0 else None
    done = subprocess.run(
        [str((folder or Path()) / program), *arguments],
        user=None if user is None else user.pw_uid,
        group=None if user is None else user.pw_gid,
        extra_groups=None if user is None else [],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{program} ended with {done.returncode}"


def _programs() -> Path | None:
    on_path = shutil.which("pg_ctl")
    places = [*_PLACES, *([Path(on_path).resolve().parent] if on_path else [])]
    return next((p for p in places if (p / "initdb").exists() and (p / "pg_ctl").exists()), None)


def _unprivileged() -> pwd.struct_passwd | None:
    known = {user.pw_name: user for user in pwd.getpwall()}
    return known.get("postgres") or known.get("nobody")
