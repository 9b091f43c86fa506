"""Spark's internal ports accept no other process of the host, and a server whose tasks do not run says so."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner, Result

from backfill_assets.cli.app import app
from backfill_assets.settings import Settings
from backfill_assets.spark.registration import Endpoint, ProcessRef, Registration
from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.engine import engine_environment, engine_settings
from tools.cluster import connect

STRANGER = Path(__file__).with_name("stop_executor.py")
OPEN = {"spark.authenticate": "false", "spark.network.crypto.enabled": "false"}


def listens_on(port: int) -> tuple[int, list[int]]:
    """The process that listens on a port, and all its other ports."""
    listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.pid is not None]
    (pid,) = {c.pid for c in listening if c.laddr.port == port}
    return pid, sorted({c.laddr.port for c in listening if c.pid == pid} - {port})


def stranger(ports: list[int]) -> list[str]:
    """The result, by port, if another process asks the executor to stop."""
    observed = [sys.executable, str(STRANGER), *map(str, ports)]
    return subprocess.run(observed, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()


def status(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Result:
    for name, value in engine_environment(settings.state).items():
        monkeypatch.setenv(name, value)
    return CliRunner().invoke(app, ["spark", "status"])


def test_another_process_on_the_host_cannot_stop_the_work_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = engine_settings(tmp_path)
    server = SparkServer(settings)
    port = server.ensure().port
    try:
        assert port is not None
        _, ports = listens_on(port)
        said = stranger(ports)
        assert len(said) == len(ports) > 0
        assert all("Expected SaslMessage" in line for line in said), said
        found = status(settings, monkeypatch)
        assert (found.exit_code, "yes" in found.output) == (0, True), found.output
    finally:
        server.stop()


def test_a_server_that_runs_no_task_is_reported_as_not_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = engine_settings(tmp_path)
    home = SparkServer(settings).folder
    with connect(settings, tmp_path / "open", OPEN) as server:
        endpoint = Endpoint.remote(server.url)
        assert endpoint.port is not None
        pid, ports = listens_on(endpoint.port)
        home.root.mkdir(parents=True)
        itself = ProcessRef.of(pid)
        home.write(
            Registration(
                host=socket.gethostname(), server=itself, watcher=itself, port=endpoint.port,
                token=str(endpoint.token), configuration={},
            )
        )  # fmt: skip
        assert status(settings, monkeypatch).exit_code == 0
        assert any(line.endswith("told") for line in stranger(ports))
        found = status(settings, monkeypatch)
        assert (found.exit_code, "no: Job aborted" in found.output) == (1, True), found.output
        assert "backfill spark stop" in found.output
