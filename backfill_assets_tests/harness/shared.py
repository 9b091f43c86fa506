"""What the processes of one test run share: a folder, and the servers with their state in it.

With pytest-xdist a run has several processes. The first that needs a server starts it, the others use it, and the process
that began the run stops it. Works as a pytest plugin.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from benchmarks.processes import living_with

FOLDER_VARIABLE = "BACKFILL_ASSETS_TEST_SHARED"
"""Names the folder; set for the whole run, and for every process that it starts."""
_BEGAN = pytest.StashKey[bool]()


def shared_folder() -> Path:
    """The folder of this run."""
    return Path(os.environ[FOLDER_VARIABLE])


def made_once(name: str, make: Callable[[], str]) -> str:
    """The value that the first process of the run makes; all others wait for it and get the same.

    Raises:
        RuntimeError: the first process could not make it; the others get the reason.
    """
    made = shared_folder() / f"{name}.made"
    failed = made.with_suffix(".failed")
    with FileLock(made.with_suffix(".lock")):
        if failed.exists():
            raise RuntimeError(f"{name} could not be made for this run: {failed.read_text(encoding='utf-8')}")
        if not made.exists():
            try:
                found = make()
            except BaseException as error:
                failed.write_text(str(error) or repr(error), encoding="utf-8")
                raise
            made.write_text(found, encoding="utf-8")
    return made.read_text(encoding="utf-8")


class Installation:
    """The installation that the tests of Dagster and the browser share; it runs all the time, so it ends with the last of them."""

    FOLDERS = ("/dagster/", "/ui/")

    def __init__(self) -> None:
        self._waiting: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._will_run([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._will_run(ids)

    def _will_run(self, ids: Iterable[str]) -> None:
        self._waiting.update(name for name in ids if any(folder in name for folder in self.FOLDERS))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and report.nodeid in self._waiting:
            self._waiting.remove(report.nodeid)
            if not self._waiting:
                _end("DAGSTER_HOME", str(shared_folder() / "lab" / "home"))


def pytest_configure(config: pytest.Config) -> None:
    if FOLDER_VARIABLE not in os.environ:
        os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="backfill-assets-")
        config.stash[_BEGAN] = True
        config.pluginmanager.register(Installation())


def pytest_unconfigure(config: pytest.Config) -> None:
    if not config.stash.get(_BEGAN, False):
        return
    folder = os.environ.pop(FOLDER_VARIABLE)
    _end(FOLDER_VARIABLE, folder)
    shutil.rmtree(folder, ignore_errors=True)


def _end(variable: str, value: str) -> None:
    """End every process in whose environment the variable has this value, whatever its parent."""
    found = [process for process in living_with(variable, value) if not _is_tracker(process)]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=30)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _is_tracker(process: psutil.Process) -> bool:
    """Whether it watches over what a process shares: it heeds no signal, and ends with the process that began it."""
    with contextlib.suppress(psutil.Error):
        return "multiprocessing.resource_tracker" in " ".join(process.cmdline())
    return False
