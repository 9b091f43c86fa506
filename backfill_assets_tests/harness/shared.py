"""What the processes of one test run share: a folder, and the servers whose state lies in it.

With pytest-xdist a run has several processes. Whoever needs a server first starts it, the others use it, and the process
that began the run stops it. Works as a pytest plugin.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

FOLDER_VARIABLE = "BACKFILL_ASSETS_TEST_SHARED"
"""Names the folder; set for the whole run, and for every process that it starts."""
_BEGAN = pytest.StashKey[bool]()


def shared_folder() -> Path:
    """The folder of this run."""
    return Path(os.environ[FOLDER_VARIABLE])


def made_once(name: str, make: Callable[[], str]) -> str:
    """What the first process of the run that asks has made; all others wait for it and get the same.

    Raises:
        RuntimeError: the first process could not make it; the others are told why.
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


def pytest_configure(config: pytest.Config) -> None:
    if FOLDER_VARIABLE not in os.environ:
        os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="backfill-assets-")
        config.stash[_BEGAN] = True


def pytest_unconfigure(config: pytest.Config) -> None:
    if not config.stash.get(_BEGAN, False):
        return
    folder = os.environ.pop(FOLDER_VARIABLE)
    _end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _end_all(folder: str) -> None:
    """End every process that this run has started and nobody has ended, whoever its parent is."""
    found = []
    for process in psutil.process_iter():
        # A process that ends while it is looked at shows as one error or the other.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(FOLDER_VARIABLE) == folder:
                found.append(process)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=30)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
