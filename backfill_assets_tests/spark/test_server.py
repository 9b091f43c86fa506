"""The shared server: who gets in, and what can be seen of it from outside."""

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster_pyspark import LazyPySparkResource

from backfill_assets.application import Application
from backfill_assets.core.errors import EngineError, ServerLostError
from backfill_assets.orchestration.definitions import warm_spark
from backfill_assets.settings import Settings
from backfill_assets.spark.client import Answer, ask, take_session
from backfill_assets.spark.registration import TOKEN_VARIABLE, Endpoint, client_environment
from backfill_assets.spark.server import ServerState, SparkServer
from backfill_assets.spark.session import open_session
from backfill_assets_tests.engine import engine_environment, engine_settings, start_python

ASKS = """
import os, time
from pathlib import Path
from backfill_assets.spark.client import ask
from backfill_assets.spark.server import SparkServer
from backfill_assets.settings import Settings
endpoint = SparkServer(Settings.from_env(os.environ)).folder.read().endpoint
for _ in range(3):
    print(ask(endpoint).value)
time.sleep(2)  # they end in the background
print("event_engine\\n" in [name.read_text() for name in Path("/proc/self/task").glob("*/comm")])
"""


def test_the_running_server_is_found_and_not_started_again(spark_server: SparkServer) -> None:
    before = spark_server.status()
    endpoint = spark_server.ensure()
    after = spark_server.status()
    assert after.state is ServerState.RUNNING
    assert (after.pid, after.started_at, after.url) == (before.pid, before.started_at, endpoint.url)
    assert after.configuration["spark.driver.memory"] == "3g"


def test_a_wrong_token_is_refused(spark_server: SparkServer) -> None:
    wrong = replace(spark_server.ensure(), token="not-the-token")
    assert ask(wrong) is Answer.REFUSED
    with pytest.raises(ServerLostError, match="refuses our token"):
        take_session(wrong, "anything")


def test_asking_again_and_again_never_ends_the_threads_of_grpc(spark_server: SparkServer) -> None:
    # It would do so while it holds Python's lock, and sometimes freeze the process (see `_kept_open`).
    with start_python(ASKS, engine_environment(spark_server.folder.root.parent)) as process:
        said, _ = process.communicate(timeout=120)
    assert said.split() == ["ready", "ready", "ready", "True"]


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


def test_the_server_listens_on_this_machine_only(spark_server: SparkServer) -> None:
    pid = spark_server.status().pid
    assert pid is not None
    found = psutil.Process(pid).net_connections(kind="inet")
    listening = {c.laddr.ip.removeprefix("::ffff:") for c in found if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_the_token_reaches_no_event_no_error_message_and_no_output(
    spark_settings: Settings, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = SparkServer(spark_settings).ensure().token
    assert token is not None
    # Dagster's resource sets it, for this process only.
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    application = Application(spark_settings)

    @dg.op(out=dg.Out(dg.Nothing))
    def fails_in_the_model(context: dg.OpExecutionContext) -> None:
        with application.session(f"token-{context.run_id}") as spark:
            spark.sql("SELECT no_such_column FROM range(3)").collect()

    @dg.op(out=dg.Out(dg.Nothing))
    def fails_in_the_server(context: dg.OpExecutionContext) -> None:
        with application.session(f"token-{context.run_id}") as spark:
            spark.sql("SELECT raise_error('on purpose')").collect()

    @dg.op(out=dg.Out(dg.Nothing), required_resource_keys={"pyspark"})
    def fails_in_dagsters_resource(context: dg.OpExecutionContext) -> None:
        spark = context.resources.pyspark.spark_session
        try:
            spark.sql("SELECT 1 / 0").collect()
        finally:
            spark.stop()

    @dg.op(out=dg.Out(dg.Nothing))
    def is_refused(context: dg.OpExecutionContext) -> None:
        take_session(replace(SparkServer(spark_settings).ensure(), token=f"{token}x"), context.run_id)

    @dg.job(resource_defs={"pyspark": warm_spark(application)}, executor_def=dg.in_process_executor)
    def everything() -> None:
        fails_in_the_model(), fails_in_the_server(), fails_in_dagsters_resource(), is_refused()

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        done = everything.execute_in_process(instance=instance, raise_on_error=False)
        kept = "\n".join(str(record.event_log_entry) for record in instance.get_records_for_run(done.run_id).records)
    assert {event.step_key for event in done.all_events if event.is_step_failure} == {
        "fails_in_the_model", "fails_in_the_server", "fails_in_dagsters_resource", "is_refused"
    }  # fmt: skip
    assert all(word in kept for word in ("no_such_column", "on purpose", "DIVIDE_BY_ZERO", "refuses our token"))
    out, err = capfd.readouterr()
    assert token not in kept + out + err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]


def test_a_url_makes_a_client_of_that_server_and_starts_none(spark_server: SparkServer, tmp_path: Path) -> None:
    endpoint = spark_server.ensure()
    settings = engine_settings(tmp_path, spark_url=f"{endpoint.url}/;token={endpoint.token}")
    remote = SparkServer(settings)
    assert remote.ensure() == Endpoint(endpoint.url, endpoint.token)
    with open_session(settings, "by-url") as spark:
        assert spark.range(3).count() == 3
    assert remote.status().state is ServerState.REMOTE
    with pytest.raises(EngineError, match="BACKFILL_ASSETS_SPARK_URL"):
        remote.stop()
    assert not list(tmp_path.iterdir())


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
            "spark.authenticate": "true",
            "spark.network.crypto.enabled": "true",
        }
        assert {key: str(spark.conf.get(key)).lower() for key in expected} == {
            key: value.lower() for key, value in expected.items()
        }
        spark.range(3).write.format("delta").saveAsTable("set_up")
        detail = spark.sql("DESCRIBE DETAIL set_up").collect()[0]
        assert detail.format == "delta"
        assert (
            Path(detail.location.removeprefix("file:")) == SparkServer(spark_settings).folder.root / "tables" / "set_up"
        )
        spark.sql("DROP TABLE set_up")
    assert (SparkServer(spark_settings).folder.root / "metastore").is_dir()
