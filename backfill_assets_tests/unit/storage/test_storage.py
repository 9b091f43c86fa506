"""A warehouse is only allowed where no commit can overwrite another."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from backfill_assets.storage.layout import OBJECT_STORE_MOUNTS, Mount, refused_mount, refused_url

ROOT = Mount(PurePosixPath("/"), "/dev/sda1", "ext4")
LAKE = PurePosixPath("/mnt/lake")


@pytest.mark.parametrize("scheme", ["gs", "GS", "abfss", "wasbs", "az", "r2"])
def test_a_kind_of_store_that_nobody_has_tried_is_refused_with_a_remedy(scheme: str) -> None:
    observed = refused_url(f"{scheme}://bucket/lake")
    assert "nobody has tried" in observed
    assert "use a folder" in observed
    assert "docs/storage.md" in observed


@pytest.mark.parametrize("scheme", ["s3a", "s3n"])
def test_the_names_of_hadoop_are_refused_with_the_one_that_is_right_here(scheme: str) -> None:
    assert "write s3://" in refused_url(f"{scheme}://bucket/lake")


@pytest.mark.parametrize("text", ["/data/lake", "file:///data/lake", "lake", "ftp://host/lake", "s3://bucket/lake"])
def test_a_path_that_is_no_object_store_is_not_called_one(text: str) -> None:
    assert refused_url(text) == ""


@pytest.mark.parametrize("program", OBJECT_STORE_MOUNTS)
def test_an_object_store_that_is_mounted_as_a_folder_is_refused(program: str) -> None:
    for mount in (Mount(LAKE, "bucket", f"fuse.{program}"), Mount(LAKE, program, "fuse")):
        observed = refused_mount(LAKE / "warehouse", [ROOT, mount])
        assert observed.startswith(f"/mnt/lake shows an object store as a folder ({program})")
        assert "use a folder" in observed


def test_a_folder_beside_such_a_mount_or_below_another_one_in_it_is_fine() -> None:
    mounts = [ROOT, Mount(LAKE, "bucket", "fuse.s3fs"), Mount(LAKE / "disk", "/dev/sdb1", "xfs")]
    assert refused_mount(PurePosixPath("/mnt/lake2"), mounts) == ""
    assert refused_mount(LAKE / "disk" / "warehouse", mounts) == ""


def test_the_later_of_two_mounts_at_one_point_counts() -> None:
    bucket, disk = Mount(LAKE, "bucket", "fuse.gcsfuse"), Mount(LAKE, "/dev/sdb1", "xfs")
    assert refused_mount(LAKE, [ROOT, bucket, disk]) == ""
    assert refused_mount(LAKE, [ROOT, disk, bucket]) != ""


@pytest.mark.parametrize("kind", ["ext4", "nfs4", "cifs", "fuse.sshfs", "fuseblk", "tmpfs", "overlay"])
def test_other_file_systems_are_not_judged(kind: str) -> None:
    assert refused_mount(LAKE, [ROOT, Mount(LAKE, "host:/export", kind)]) == ""


def test_nothing_is_known_where_no_mounts_are_listed() -> None:
    assert refused_mount(LAKE, []) == ""
