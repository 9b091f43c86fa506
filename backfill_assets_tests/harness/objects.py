"""A throw-away S3-compatible store on loopback: versitygw over a folder, gone after the tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from backfill_assets.storage.bucket import InBucket, bucket_of
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.location import Location
from backfill_assets_tests.harness.waiting import wait_for

PROGRAM = Path.home() / ".cache" / "backfill_assets" / "versitygw" / "versitygw"
"""Where `make store` puts it; a versitygw of the PATH does as well."""
BUCKET = "lake"
_KEYS = ("minder", "of-the-store")


@dataclass(frozen=True)
class ObjectStore:
    """A running store with one empty bucket: its folder, and the environment that reaches it."""

    folder: Path
    environ: Mapping[str, str]

    @property
    def url(self) -> str:
        """The bucket."""
        return f"s3://{BUCKET}"


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Run a store over a new folder, or skip the test where none can be started."""
    program = shutil.which("versitygw") or (str(PROGRAM) if PROGRAM.is_file() else None)
    if program is None:
        pytest.skip("no object store: make store")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / BUCKET).mkdir(parents=True)
    environ = {"ROOT_ACCESS_KEY": _KEYS[0], "ROOT_SECRET_KEY": _KEYS[1]}
    words = [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)]
    with subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            wait_for(lambda: _answers(port), "the object store to listen", 30)
            yield ObjectStore(folder, {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": _KEYS[0], "AWS_SECRET_ACCESS_KEY": _KEYS[1],
            })  # fmt: skip
        finally:
            started.kill()


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


ROOT_VARIABLE = "BACKFILL_ASSETS_TEST_STORE"
"""Names the folder of the store on which tests keep their tables; without it they keep them in folders."""


def in_bucket(folder: Path) -> Location | None:
    """The place in the store whose files lie in this folder; None if the tests run without a store."""
    root = os.environ.get(ROOT_VARIABLE)
    if root is None:
        return None
    return bucket_of(f"s3://{folder.relative_to(root)}")


def new_folder(prefix: str) -> Path:
    """A new folder for an example of Hypothesis, in the store if the tests run with one."""
    root = os.environ.get(ROOT_VARIABLE)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=root and f"{root}/{BUCKET}"))


def place_at(folder: Path) -> Location:
    """The folder itself, or the place in the store whose files lie in it."""
    return in_bucket(folder) or OnDisk(folder)


def folder_of(place: Location) -> Path:
    """The folder in which the files of a place lie."""
    if isinstance(place, InBucket):
        return Path(os.environ[ROOT_VARIABLE]) / str(place).removeprefix("s3://")
    return path_of(place)
