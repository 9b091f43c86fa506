from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from backfill_assets.core.errors import SettingsError
from backfill_assets.settings import Settings
from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.start import (
    DELTA_PACKAGE,
    S3_PACKAGES,
    packages_of,
    server_configuration,
    store_configuration,
)
from backfill_assets.storage.bucket import InBucket
from backfill_assets.storage.disk import OnDisk


def test_everything_has_a_default_below_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_env({})
    assert settings.state == tmp_path / ".state"
    assert settings.warehouse == OnDisk(tmp_path / ".state" / "warehouse")
    assert settings.sources == OnDisk(tmp_path / ".state" / "sources")
    assert settings.datasets.name == "datasets"
    assert settings.datasets.parent.name == "backfill_assets"
    assert settings.ledger_url == f"sqlite:///{tmp_path}/.state/ledger.db"
    assert (settings.spark_url, settings.spark_memory, settings.spark_port) == (None, "2g", 0)
    assert settings.spark_idle == settings.query_timeout == timedelta(minutes=30)
    assert settings.chunk is None


def test_the_other_folders_follow_the_state_folder() -> None:
    settings = Settings.from_env({"BACKFILL_ASSETS_STATE": "/data/state"})
    assert settings.warehouse == OnDisk(Path("/data/state/warehouse"))
    assert settings.sources == OnDisk(Path("/data/state/sources"))
    assert settings.ledger_url == "sqlite:////data/state/ledger.db"


def test_a_relative_folder_is_taken_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.from_env({"BACKFILL_ASSETS_WAREHOUSE": "lake"}).warehouse == OnDisk(tmp_path / "lake")


def test_an_empty_variable_counts_as_unset() -> None:
    settings = Settings.from_env({"BACKFILL_ASSETS_CHUNK": " ", "BACKFILL_ASSETS_SPARK_URL": ""})
    assert settings.chunk is None
    assert settings.spark_url is None


def test_a_warehouse_in_a_bucket_has_the_address_and_region_of_the_clouds_own_variables() -> None:
    variables = {"AWS_ENDPOINT_URL": "http://store.example.org:9000", "AWS_DEFAULT_REGION": "eu-central-1"}
    found = Settings.from_env({"BACKFILL_ASSETS_WAREHOUSE": "s3://lake/ware/house/", **variables}).warehouse
    assert isinstance(found, InBucket)
    assert (str(found), found.for_spark) == ("s3://lake/ware/house", "s3a://lake/ware/house")
    assert found.storage_options == {
        "AWS_ENDPOINT_URL": "http://store.example.org:9000", "AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip
    assert str(Settings.from_env({"BACKFILL_ASSETS_WAREHOUSE": "s3://lake"}).warehouse) == "s3://lake"


@pytest.mark.parametrize("names", [{"WAREHOUSE"}, {"SOURCES"}, {"WAREHOUSE", "SOURCES"}])
def test_the_embedded_server_knows_the_store_of_tables_or_of_sources(names: set[str], tmp_path: Path) -> None:
    variables = {"BACKFILL_ASSETS_STATE": str(tmp_path), "AWS_ENDPOINT_URL": "http://store.example.org:9000"}
    settings = Settings.from_env({**variables, **{f"BACKFILL_ASSETS_{name}": "s3://lake/x" for name in names}})
    assert {str(settings.warehouse), str(settings.sources)} >= {"s3://lake/x"}
    assert set(S3_PACKAGES) < set(packages_of(settings))
    own = server_configuration(settings, SparkServer(settings).folder, 15002)
    assert own["spark.hadoop.fs.s3a.endpoint"] == "http://store.example.org:9000"
    folders = Settings.from_env(variables)
    assert (packages_of(folders), store_configuration(folders, SparkServer(folders).folder)) == ((DELTA_PACKAGE,), {})


def test_two_addresses_of_one_store_are_refused() -> None:
    variables = {"AWS_ENDPOINT_URL": "http://one", "AWS_ENDPOINT_URL_S3": "http://two"}
    with pytest.raises(SettingsError, match="AWS_ENDPOINT_URL and AWS_ENDPOINT_URL_S3 name different addresses"):
        Settings.from_env({"BACKFILL_ASSETS_WAREHOUSE": "s3://lake/warehouse", **variables})


def test_a_store_without_conditional_puts_is_refused_by_the_variable_that_switches_them_off() -> None:
    with pytest.raises(SettingsError, match="AWS_CONDITIONAL_PUT=disabled: a commit is a conditional put"):
        Settings.from_env({"BACKFILL_ASSETS_WAREHOUSE": "s3://lake/warehouse", "AWS_CONDITIONAL_PUT": "disabled"})


@pytest.mark.parametrize(("text", "expected"), [("all", "all"), ("31", 31)])
def test_the_chunk_is_a_number_of_days_or_all(text: str, expected: object) -> None:
    assert Settings.from_env({"BACKFILL_ASSETS_CHUNK": text}).chunk == expected


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("CHUNK", "0", "number of days"),
        ("CHUNK", "most", "number of days"),
        ("SPARK_MEMORY", "lots", "1500m or 4g"),
        ("SPARK_MEMORY", "100m", "512m"),
        ("SPARK_PORT", "80", "1024 to 65535"),
        ("SPARK_PORT", "70000", "1024 to 65535"),
        ("SPARK_PORT", "-1", "1024 to 65535"),
        ("SPARK_IDLE", "soon", "number and s, m, h or d"),
        ("QUERY_TIMEOUT", "0s", "above zero"),
        ("QUERY_TIMEOUT", "400d", "365d"),
        ("WAREHOUSE", "s3://", "s3://bucket/prefix"),
        ("WAREHOUSE", "s3://Bucket/lake", "s3://bucket/prefix"),
        ("WAREHOUSE", "s3://bucket//lake", "s3://bucket/prefix"),
        ("WAREHOUSE", "s3://bucket/../lake", "s3://bucket/prefix"),
        ("WAREHOUSE", "s3://bucket/a lake", "s3://bucket/prefix"),
        ("WAREHOUSE", "s3a://bucket/lake", "write s3://"),
        ("WAREHOUSE", "gs://bucket/lake", "nobody has tried"),
        ("WAREHOUSE", "ftp://host/lake", "not a URL"),
        ("SOURCES", "s3a://bucket/files", "write s3://"),
        ("REPORTS", "s3://bucket/reports", "not a URL"),
    ],
)
def test_a_bad_value_is_refused_with_variable_value_and_remedy(variable: str, value: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({f"BACKFILL_ASSETS_{variable}": value})
    message = str(caught.value)
    assert message.startswith(f"BACKFILL_ASSETS_{variable}: ")
    assert repr(value) in message
    assert remedy in message


@pytest.mark.parametrize("variable", ["SPARK_URL", "LEDGER_URL"])
def test_a_bad_url_is_refused_without_showing_its_password(variable: str) -> None:
    with pytest.raises(SettingsError, match=f"BACKFILL_ASSETS_{variable}") as caught:
        Settings.from_env({f"BACKFILL_ASSETS_{variable}": "ftp://user:hunter2@host"})
    assert "hunter2" not in str(caught.value)


def test_settings_do_not_show_secrets_when_printed() -> None:
    settings = Settings.from_env(
        {
            "BACKFILL_ASSETS_SPARK_URL": "sc://spark.example.org:443/;use_ssl=true;token=hunter2",
            "BACKFILL_ASSETS_LEDGER_URL": "postgresql+psycopg2://me:hunter2@host/ledger",
        }
    )
    assert "hunter2" not in repr(settings)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("not a folder")
    with pytest.raises(SettingsError, match="it is a file"):
        Settings.from_env({"BACKFILL_ASSETS_WAREHOUSE": str(tmp_path / "lake")})


def test_a_warehouse_behind_circular_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    with pytest.raises(SettingsError, match=r"BACKFILL_ASSETS_WAREHOUSE: .*its links cannot be followed"):
        Settings.from_env({"BACKFILL_ASSETS_WAREHOUSE": str(tmp_path / "one" / "lake")})


def mounted(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str) -> None:
    """Let the operating system say that a file system of this kind is mounted at a folder, beside a disk at the root."""

    def listed(*, all: bool = False) -> list[SimpleNamespace]:  # noqa: A002  # psutil's own word
        disk = SimpleNamespace(device="/dev/sda1", mountpoint="/", fstype="ext4", opts="rw")
        # psutil names mounts that are no disks only if all are requested.
        return (
            [disk, SimpleNamespace(device="bucket", mountpoint=str(folder), fstype=kind, opts="rw")] if all else [disk]
        )

    monkeypatch.setattr(psutil, "disk_partitions", listed)


@pytest.mark.parametrize("variable", ["WAREHOUSE", "STATE"])
def test_a_warehouse_on_an_object_store_that_is_mounted_as_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    mounted(monkeypatch, tmp_path, "fuse.s3fs")
    with pytest.raises(SettingsError, match=r"^BACKFILL_ASSETS_WAREHOUSE: '.*' cannot be used; ") as refused:
        Settings.from_env({f"BACKFILL_ASSETS_{variable}": str(tmp_path / "lake")})
    assert f"{tmp_path} shows an object store as a folder (s3fs), and commits would be lost" in str(refused.value)
    assert "use a folder on a local disk or on NFS" in str(refused.value)


def test_a_warehouse_behind_a_link_to_such_a_mount_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "lake").symlink_to(tmp_path / "bucket")
    mounted(monkeypatch, tmp_path / "bucket", "fuse.s3fs")
    with pytest.raises(SettingsError, match=r"bucket shows an object store as a folder \(s3fs\)"):
        Settings.from_env({"BACKFILL_ASSETS_WAREHOUSE": str(tmp_path / "lake" / "warehouse")})


def test_a_warehouse_on_a_mounted_network_file_system_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, tmp_path, "nfs4")
    assert Settings.from_env({"BACKFILL_ASSETS_WAREHOUSE": str(tmp_path / "lake")}).warehouse == OnDisk(
        tmp_path / "lake"
    )


def test_every_setting_says_which_variable_sets_it() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description is not None
        variable = {"computes": "SPARK_URL_<NAME>"}.get(name, name.upper())
        assert field.description.startswith(f"BACKFILL_ASSETS_{variable}: ")


def test_roles_name_their_users() -> None:
    variables = {"BACKFILL_ASSETS_ROLES": "finance-controller=anna,ben; data-lead=carl"}
    assert Settings.from_env(variables).roles == {"finance-controller": ("anna", "ben"), "data-lead": ("carl",)}
    assert Settings.from_env({}).roles == {}
    with pytest.raises(SettingsError, match=r"BACKFILL_ASSETS_ROLES: 'anna' .*write finance-controller=anna,ben"):
        Settings.from_env({"BACKFILL_ASSETS_ROLES": "anna"})
