"""The shared server: who gets in, and what can be seen of it from outside."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from dagster_pyspark import LazyPySparkResource

from backfill_assets.domain.errors import EngineError, ServerLostError
from backfill_assets.lakehouse.engine.client import Answer, ask, take_session
from backfill_assets.lakehouse.engine.endpoint import Endpoint, client_environment
from backfill_assets.lakehouse.engine.server import ServerState, SparkServer
from backfill_assets.lakehouse.engine.session import open_session
from backfill_assets.settings import Settings
from backfill_assets_tests.engine import engine_settings


def test_the_running_server_is_found_and_not_started_again(spark_server: SparkServer) -> None:
    before = spark_server.status()
    endpoint = spark_server.ensure()
    after = spark_server.status()
    assert after.state is ServerState.RUNNING
    assert (after.pid, after.started_at, after.url) == (before.pid, before.started_at, endpoint.url)
    assert after.configuration["spark.driver.memory"] == "1g"


def test_a_wrong_token_is_refused(spark_server: SparkServer) -> None:
    wrong = replace(spark_server.ensure(), token="not-the-token")
    assert ask(wrong) is Answer.REFUSED
    with pytest.raises(ServerLostError, match="refuses our token"):
        take_session(wrong, "anything")


def test_no_token_is_refused(spark_server: SparkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", raising=False)
    assert ask(replace(spark_server.ensure(), token=None)) is Answer.REFUSED


def test_the_token_is_in_no_process_list_and_in_no_log(spark_settings: Settings, spark_server: SparkServer) -> None:
    token = spark_server.ensure().token
    assert token is not None
    with open_session(spark_settings, "token-watch") as spark:
        spark.sql("SELECT 1").collect()
        lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert any("SparkSubmit" in line for line in lines)
    assert not [line for line in lines if token in line]
    folder = spark_server.folder.root
    readable = [path for path in folder.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert {path.name for path in readable} == {"server.json", "spark.properties"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in readable} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert token not in repr(spark_server.ensure())
    assert token not in repr(spark_server.status())


def test_a_url_makes_a_client_of_that_server_and_starts_none(spark_server: SparkServer, tmp_path: Path) -> None:
    endpoint = spark_server.ensure()
    settings = engine_settings(tmp_path / "warehouse", spark_url=f"{endpoint.url}/;token={endpoint.token}")
    remote = SparkServer(settings)
    assert remote.ensure() == Endpoint(endpoint.url, endpoint.token)
    with open_session(settings, "by-url") as spark:
        assert spark.range(3).count() == 3
    assert remote.status().state is ServerState.REMOTE
    with pytest.raises(EngineError, match="BACKFILL_ASSETS_SPARK_URL"):
        remote.stop()
    assert not (tmp_path / "warehouse").exists()


def test_dagsters_spark_resource_reaches_the_server(spark_server: SparkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = spark_server.ensure()
    for name, value in client_environment(endpoint).items():
        monkeypatch.setenv(name, value)
    resource = LazyPySparkResource(spark_config={"spark.remote": endpoint.url})
    session: Any = resource.spark_session
    try:
        assert session.range(5).count() == 5
    finally:
        session.stop()


def test_the_server_is_set_up_for_delta_and_small_machines(spark_settings: Settings) -> None:
    with open_session(spark_settings, "configuration") as spark:
        expected = {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.sources.partitionOverwriteMode": "static",
            "spark.sql.ansi.enabled": "true",
            "spark.scheduler.mode": "FAIR",
        }
        assert {key: str(spark.conf.get(key)).lower() for key in expected} == {
            key: value.lower() for key, value in expected.items()
        }
        spark.range(3).write.format("delta").saveAsTable("set_up")
        detail = spark.sql("DESCRIBE DETAIL set_up").collect()[0]
        assert detail.format == "delta"
        assert Path(detail.location.removeprefix("file:")) == spark_settings.warehouse / "set_up"
        spark.sql("DROP TABLE set_up")
    metastore = spark_settings.warehouse / "_engine" / "metastore"
    assert metastore.is_dir()
