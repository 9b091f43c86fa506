"""Which places can keep a warehouse: where a commit may be overwritten by another one, no warehouse may lie.

Delta needs of its storage that of two writers only one can create a file of a given name ("mutual exclusion"), see
https://docs.delta.io/delta-storage. A folder of a local or network file system does that; an object store does it only by
settings which all writers share. Here are two kinds of writers: Spark writes raw, staging and shadows, delta-rs releases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

_S3: Final = (
    "of two writers on S3 one overwrites the other's commit, unless all go through one log store: Spark's is a table in "
    "DynamoDB, delta-rs' are conditional puts, and there is none that both use"
)
_RENAME: Final = (
    "Spark and delta-rs commit there each in its own way, and manifests, locks and seals of releases need the hard links "
    "and atomic renames of a folder"
)
_OBJECT_STORES: Final = {
    **dict.fromkeys(("s3", "s3a", "s3n"), _S3),
    **dict.fromkeys(("gs", "gcs", "abfs", "abfss", "az", "azure", "adl", "wasb", "wasbs", "oss", "r2"), _RENAME),
}
_REMEDY: Final = (
    "Give a folder on a local disk or on NFS, and copy released tables from there; docs/storage.md has the sources"
)

OBJECT_STORE_MOUNTS: Final = (
    "blobfuse", "blobfuse2", "gcsfuse", "geesefs", "goofys", "mount-s3", "mountpoint-s3", "rclone", "s3fs",
)  # fmt: skip
"""Programs that show an object store as a folder, by the names that they have in the list of mounts."""


@dataclass(frozen=True)
class Mount:
    """One mounted file system: where, what for, and of which type, such as `fuse.s3fs`."""

    point: PurePath
    device: str
    kind: str


def refused_url(url: str) -> str:
    """Why a warehouse cannot lie at a URL and what to do, or nothing if it is not a URL of an object store."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    reason = _OBJECT_STORES.get(scheme)
    return f"it is an object store, and commits would be lost: {reason}. {_REMEDY}" if reason else ""


def refused_mount(folder: PurePath, mounts: Iterable[Mount]) -> str:
    """Why a warehouse cannot lie in a folder and what to do, or nothing; `folder` is absolute, links followed."""
    above = [mount for mount in mounts if folder.is_relative_to(mount.point)]
    # Of two that were mounted at one point, the later hides the earlier.
    nearest = max(reversed(above), key=lambda mount: len(mount.point.parts), default=None)
    if nearest is None:
        return ""
    names = {nearest.device.lower(), *nearest.kind.lower().split(".")}
    program = next((name for name in OBJECT_STORE_MOUNTS if name in names), "")
    if not program:
        return ""
    return (
        f"{nearest.point} shows an object store as a folder ({program}), and commits would be lost: its renames are copies, "
        f"so that of two writers one overwrites the other's commit. {_REMEDY}"
    )
