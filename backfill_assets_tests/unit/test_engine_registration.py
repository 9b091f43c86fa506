from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backfill_assets.core.errors import EngineError, ForeignServerError, PortTakenError
from backfill_assets.settings import Settings
from backfill_assets.spark.registration import (
    FRESH_SECONDS,
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
    folder = EngineFolder(settings.warehouse)
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
    earlier = me.model_copy(update={"started": me.started - 60})
    assert earlier.find() is None
    earlier.terminate()  # and is certainly not ended for it: this test continues


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
        with pytest.raises(ForeignServerError, match=r"elsewhere\.example\.org.*BACKFILL_ASSETS_SPARK_URL"):
            action()
    assert server.status().state is ServerState.ELSEWHERE
    assert folder.registration.exists()


def _remote(tmp_path: Path, url: str = "sc://spark.example.org:15002") -> SparkServer:
    return SparkServer(Settings.from_env({"BACKFILL_ASSETS_STATE": str(tmp_path), "BACKFILL_ASSETS_SPARK_URL": url}))


@pytest.mark.parametrize("host", [None, "elsewhere.example.org"])
def test_a_remote_server_is_refused_while_an_embedded_one_runs_in_the_warehouse(
    settings: Settings, tmp_path: Path, host: str | None
) -> None:
    _folder(settings).write(_registration(ProcessRef.of(os.getpid()), host))
    with pytest.raises(ForeignServerError, match=r"lose commits \(docs/storage\.md\).*backfill spark stop"):
        _remote(tmp_path).ensure()
    assert _remote(tmp_path).note.at_work() is None


def test_a_url_of_the_embedded_server_itself_names_no_second_one(settings: Settings, tmp_path: Path) -> None:
    _folder(settings).write(_registration(ProcessRef.of(os.getpid())))
    same = _remote(tmp_path, "sc://localhost:15002")
    assert same.ensure() == Endpoint("sc://localhost:15002")
    assert same.note.at_work() is None
    with pytest.raises(ForeignServerError, match="lose commits"):
        _remote(tmp_path, "sc://localhost:15003").ensure()


def test_a_dead_embedded_server_does_not_block_a_remote_one(settings: Settings, tmp_path: Path) -> None:
    _folder(settings).write(_registration(ProcessRef(pid=os.getpid(), started=0.0)))
    assert _remote(tmp_path).ensure() == Endpoint("sc://spark.example.org:15002")


def test_only_the_busy_one_of_two_servers_is_used_until_its_work_is_over(settings: Settings, tmp_path: Path) -> None:
    one, other = _remote(tmp_path), _remote(tmp_path, "sc://other.example.org:15002/;token=hunter2")
    endpoint = one.ensure()
    for refused in (other, SparkServer(settings)):
        with pytest.raises(
            ForeignServerError, match=r"sc://spark\.example\.org:15002 works in .*lose commits"
        ) as caught:
            refused.ensure()
        assert "hunter2" not in str(caught.value)
    assert one.ensure() == endpoint
    one.keep_busy(endpoint)
    os.utime(one.note.path, (0, time.time() - FRESH_SECONDS - 1))
    assert other.ensure().url == "sc://other.example.org:15002"
    assert "hunter2" not in one.note.path.read_text()
    with pytest.raises(ForeignServerError, match=r"other\.example\.org"):
        one.ensure()


def test_a_note_that_another_user_wrote_is_renewed_as_ones_own(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = _remote(tmp_path)
    endpoint, old = one.ensure(), time.time() - FRESH_SECONDS - 1
    os.utime(one.note.path, (old, old))

    def not_the_owner(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", not_the_owner)
        one.keep_busy(endpoint)
    with pytest.raises(ForeignServerError, match=r"spark\.example\.org.*_remote_spark is then no longer renewed"):
        SparkServer(settings).ensure()


def test_a_session_renews_no_note_of_another_server_and_begins_none(settings: Settings, tmp_path: Path) -> None:
    one, other = _remote(tmp_path), _remote(tmp_path, "sc://other.example.org:15002")
    endpoint, old = one.ensure(), time.time() - FRESH_SECONDS - 1
    os.utime(one.note.path, (old, old))
    other.ensure()
    os.utime(one.note.path, (old, old))
    one.keep_busy(endpoint)
    assert one.note.at_work() is None
    one.note.remove()
    with pytest.raises(FileNotFoundError):
        one.keep_busy(endpoint)
    assert not one.note.path.exists()


def test_one_server_under_two_users_is_one_server(tmp_path: Path) -> None:
    _remote(tmp_path, "sc://spark.example.org:15002/;user_id=ada").ensure()
    same = _remote(tmp_path, "sc://spark.example.org:15002/;user_id=bob")
    assert same.ensure().url.startswith("sc://spark.example.org:15002")


def test_a_note_from_the_future_blocks_no_other_server(tmp_path: Path) -> None:
    one, later = _remote(tmp_path), time.time() + 40 * 86_400
    one.ensure()
    os.utime(one.note.path, (later, later))
    assert _remote(tmp_path, "sc://other.example.org:15002").ensure().url == "sc://other.example.org:15002"


def test_a_damaged_registration_is_refused_without_showing_its_token(settings: Settings) -> None:
    folder = _folder(settings)
    folder.registration.write_text('{"host": "me", "token": "hunter2"}')
    with pytest.raises(EngineError, match=r"server\.json cannot be read.*delete the file") as caught:
        SparkServer(settings).ensure()
    assert "hunter2" not in str(caught.value)


def test_looking_at_the_status_creates_nothing(settings: Settings) -> None:
    assert SparkServer(settings).status().state is ServerState.STOPPED
    assert not settings.warehouse.exists()


def test_a_dead_server_counts_as_stopped_and_stopping_it_clears_the_registration(settings: Settings) -> None:
    folder = _folder(settings)
    folder.write(_registration(ProcessRef(pid=os.getpid(), started=0.0)))
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
    environ = server_environment(given, EngineFolder(settings.warehouse))
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
