from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from backfill_assets.core.errors import EngineError, ForeignServerError, PortTakenError
from backfill_assets.settings import Settings
from backfill_assets.spark.registration import (
    Endpoint,
    EngineFolder,
    ProcessRef,
    Registration,
    client_environment,
)
from backfill_assets.spark.server import ServerState, SparkServer
from backfill_assets.spark.start import server_command, server_configuration, server_environment, write_configuration


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({"BACKFILL_ASSETS_STATE": str(tmp_path)})


def _registration(server: ProcessRef, host: str | None = None) -> Registration:
    return Registration(
        host=host or socket.gethostname(),
        server=server,
        watcher=None,
        port=15002,
        token="hunter2",
        configuration={"spark.driver.memory": "2g"},
    )


def _folder(settings: Settings) -> EngineFolder:
    folder = SparkServer(settings).folder
    folder.root.mkdir(parents=True)
    return folder


def test_a_registration_comes_back_as_it_was_written_and_only_its_user_may_read_it(
    settings: Settings,
) -> None:
    folder = _folder(settings)
    registration = _registration(ProcessRef.of(os.getpid()))
    folder.write(registration)
    assert folder.read() == registration
    assert stat.S_IMODE(folder.registration.stat().st_mode) == 0o600
    assert "hunter2" not in repr(registration)


def test_a_running_process_is_found() -> None:
    found = ProcessRef.of(os.getpid()).find()
    assert found is not None
    assert found.pid == os.getpid()


def test_another_process_with_the_same_number_is_not_taken_for_the_server() -> None:
    me = ProcessRef.of(os.getpid())
    earlier = me.model_copy(update={"started": me.started - 60, "since_boot": me.since_boot - 60})
    before_a_reboot = me.model_copy(update={"started": me.started - 3600})
    for other in (earlier, before_a_reboot):
        assert other.find() is None
        other.terminate()  # and is certainly not ended for it: this test continues


@pytest.mark.parametrize("corrected", [-1.0, 1.0, 300.0])
def test_a_process_is_the_same_if_the_clock_was_corrected_since_it_was_registered(corrected: float) -> None:
    me = ProcessRef.of(os.getpid())
    assert me.model_copy(update={"started": me.started + corrected}).find() is not None
    # The whole second of the boot may change between two looks at it.
    once = min(corrected, 1.0)
    assert me.model_copy(update={"started": me.started + once, "since_boot": me.since_boot + once}).find() is not None


def test_an_ended_process_is_not_found_even_before_its_parent_has_noticed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ref = ProcessRef.of(child.pid)
    assert ref.find() is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, still a zombie
    assert ref.find() is None
    child.communicate()


def test_a_server_registered_by_another_host_is_neither_used_nor_replaced_nor_stopped(
    settings: Settings,
) -> None:
    folder = _folder(settings)
    folder.write(_registration(ProcessRef.of(os.getpid()), host="elsewhere.example.org"))
    server = SparkServer(settings)
    for action in (server.ensure, server.stop):
        with pytest.raises(
            ForeignServerError,
            match=r"elsewhere\.example\.org.*_SPARK_FOLDER.*_SPARK_URL",
        ):
            action()
    assert server.status().state is ServerState.ELSEWHERE
    assert folder.registration.exists()


def test_a_server_is_used_only_for_the_store_that_it_was_started_for(tmp_path: Path) -> None:
    """Without an address, the settings are some of those of a server with an address; it would find another bucket."""
    where = {"BACKFILL_ASSETS_STATE": str(tmp_path), "BACKFILL_ASSETS_WAREHOUSE": "s3://lake/tables"}
    aws = Settings.from_env(where)
    own = Settings.from_env({**where, "AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
    folder = _folder(aws)
    for started, used in ((own, aws), (aws, own), (own, own), (aws, aws)):
        found = replace_configuration(
            _registration(ProcessRef.of(os.getpid())), server_configuration(started, folder, 15002)
        )
        folder.write(found)
        assert ("was started for other places" in SparkServer(used).obstacle()) is (started is not used)
    elsewhere = Settings.from_env({"BACKFILL_ASSETS_STATE": str(tmp_path)})
    assert SparkServer(elsewhere).obstacle() == ""  # folders are in reach of any server


def replace_configuration(found: Registration, configuration: Mapping[str, str]) -> Registration:
    return found.model_copy(update={"configuration": dict(configuration)})


def test_another_server_may_work_beside_the_embedded_one(settings: Settings, tmp_path: Path) -> None:
    _folder(settings).write(_registration(ProcessRef.of(os.getpid())))
    named = {"BACKFILL_ASSETS_STATE": str(tmp_path), "BACKFILL_ASSETS_SPARK_URL": "sc://127.0.0.1:1"}
    remote = SparkServer(Settings.from_env(named))
    assert remote.ensure() == Endpoint("sc://127.0.0.1:1")
    assert remote.obstacle().startswith(
        "The Spark server at sc://127.0.0.1:1 (BACKFILL_ASSETS_SPARK_URL) does not answer"
    )


def test_a_damaged_registration_is_refused_without_showing_its_token(settings: Settings) -> None:
    folder = _folder(settings)
    folder.registration.write_text('{"host": "me", "token": "hunter2"}')
    with pytest.raises(EngineError, match=r"server\.json cannot be read.*delete the file") as caught:
        SparkServer(settings).ensure()
    assert "hunter2" not in str(caught.value)


def test_looking_at_the_status_creates_nothing(settings: Settings) -> None:
    assert SparkServer(settings).status().state is ServerState.STOPPED
    assert not SparkServer(settings).folder.root.exists()


def test_a_dead_server_counts_as_stopped_and_stopping_it_clears_the_registration(settings: Settings) -> None:
    folder = _folder(settings)
    folder.write(_registration(ProcessRef(pid=os.getpid(), started=0.0, since_boot=0.0)))
    server = SparkServer(settings)
    assert server.status().state is ServerState.STOPPED
    assert not server.stop()
    assert folder.read() is None


def test_a_port_that_is_taken_is_refused_with_the_variable_to_change(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        variables = {"BACKFILL_ASSETS_STATE": str(tmp_path), "BACKFILL_ASSETS_SPARK_PORT": str(port)}
        server = SparkServer(Settings.from_env(variables))
        with pytest.raises(PortTakenError, match=rf"Port {port} .*BACKFILL_ASSETS_SPARK_PORT"):
            server.ensure()
        assert not server.folder.registration.exists()


def test_the_token_is_in_a_private_file_and_not_on_the_command_line(settings: Settings) -> None:
    folder = _folder(settings)
    write_configuration(folder, server_configuration(settings, folder, 15002), "hunter2")
    assert "hunter2" in folder.properties.read_text()
    assert stat.S_IMODE(folder.properties.stat().st_mode) == 0o600
    assert "hunter2" not in " ".join(server_command(folder))


def test_variables_for_another_spark_do_not_reach_the_server(settings: Settings) -> None:
    given = {"SPARK_HOME": "/opt/spark3", "SPARK_REMOTE": "sc://x", "PYSPARK_PYTHON": "p", "HOME": "/elsewhere"}
    environ = server_environment(given, SparkServer(settings).folder)
    assert environ["HOME"] == "/elsewhere"
    assert environ["SPARK_HOME"].endswith("pyspark")
    assert not {"SPARK_REMOTE", "PYSPARK_PYTHON"} & environ.keys()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sc://host:15002", Endpoint("sc://host:15002")),
        ("sc://host", Endpoint("sc://host")),
        ("sc://host:443/;use_ssl=true", Endpoint("sc://host:443/;use_ssl=true")),
        ("sc://host:443/;token=a%2Fb;use_ssl=true", Endpoint("sc://host:443/;use_ssl=true", "a/b")),
        ("sc://host/;token=hunter2", Endpoint("sc://host", "hunter2")),
    ],
)
def test_the_token_of_a_url_is_kept_apart_from_what_may_be_shown(url: str, expected: Endpoint) -> None:
    endpoint = Endpoint.remote(url)
    assert endpoint == expected
    assert endpoint.token is None or endpoint.token not in repr(endpoint)


def test_clients_of_others_get_the_token_by_a_variable() -> None:
    assert client_environment(Endpoint.local(15002, "t")) == {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "t"}
    assert client_environment(Endpoint("sc://host")) == {}


def test_the_watcher_does_not_carry_sparks_client() -> None:
    code = (
        "import sys, backfill_assets.spark.watcher; "
        "print([name for name in ('pyspark', 'grpc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
