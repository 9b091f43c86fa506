"""A small disk of a test's own, and the time in which it is full."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

TMPFS, LIMITED = "a full tmpfs", "a file size limit of nothing"
NO_DISK = f"the full disk is {LIMITED}, as no tmpfs can be mounted (as root with CAP_SYS_ADMIN)"


@contextmanager
def small_disk() -> Iterator[tuple[Path, str]]:
    """A folder on a disk of 16 MB of its own, or on any disk if this user may not mount one; and which of the two it is."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder]
        if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
            yield Path(folder), LIMITED
            return
        try:
            yield Path(folder), TMPFS
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def full(folder: Path, kind: str, pid: int | None = None, pages: int = 0) -> Iterator[None]:
    """Within this block, nothing more can be written below a folder.

    Without a disk of its own, only this process cannot write, or the one with this number. A tmpfs still has room for
    some pages.
    """
    if kind != TMPFS:
        with _limited(pid):
            yield
        return
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as out:
        for size in (1 << 16, 1):
            with suppress(OSError):
                while True:
                    out.write(b"\0" * size)
        out.truncate(out.tell() - pages * os.sysconf("SC_PAGE_SIZE"))
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def _limited(pid: int | None) -> Iterator[None]:
    """Within this block, a process can write nothing to any file."""
    limit: Callable[..., tuple[int, int] | None] = partial(resource.setrlimit, resource.RLIMIT_FSIZE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if pid is not None:
        if "PYTEST_XDIST_WORKER" in os.environ:
            pytest.skip("the limit would hold for other tests on the same server; without a tmpfs it needs: -n 0")
        if not hasattr(resource, "prlimit"):
            pytest.skip("the limits of another process can be set on Linux alone")
        limit = partial(resource.prlimit, pid, resource.RLIMIT_FSIZE)
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    limit((0, hard))
    try:
        yield
    finally:
        limit((soft, hard))
