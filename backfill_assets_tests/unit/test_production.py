"""What docs/production.md promises, as far as it needs no complete installation: proxy, webserver for viewers, audit."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import requests
import uvicorn
import yaml
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_webserver.webserver import DagsterWebserver

from backfill_assets.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
PROXY = re.sub(r"#.*", "", (ROOT / "deploy" / "production" / "nginx.conf").read_text(encoding="utf-8"))
_OF = "{ __typename }"
MUTATIONS = (
    'launchRun(executionParams: {selector: {repositoryName: "r", repositoryLocationName: "l", jobName: "unit_publish"}})'
    + _OF,
    'deleteRun(runId: "r")' + _OF,
    'wipeAssets(assetPartitionRanges: [{assetKey: {path: ["sales", "published"]}}])' + _OF,
    'reportRunlessAssetEvents(eventParams: {eventType: ASSET_MATERIALIZATION, assetKey: {path: ["sales", "published"]}})'
    + _OF,
    'setConcurrencyLimit(concurrencyKey: "dataset_sales", limit: 0)',
    "reloadWorkspace" + _OF,
)
"""For some others Dagster looks up the object (a backfill, a run, a sensor) before the permission; here it does not exist."""


@pytest.fixture(scope="module")
def viewers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The webserver as `dagster-webserver --read-only` runs it; its address."""
    with (
        dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("home"))) as instance,
        WorkspaceProcessContext(instance, EmptyWorkspaceTarget(), version="", read_only=True) as context,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        server = uvicorn.Server(uvicorn.Config(DagsterWebserver(context).create_asgi_app(), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
        thread.start()
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda text: text.partition("(")[0])
def test_the_webserver_for_viewers_changes_nothing(viewers: str, mutation: str) -> None:
    query = f"mutation {{ {mutation} }}"
    graphql = f"{viewers}/graphql"
    for answer in (
        requests.post(graphql, json={"query": query}, timeout=60),
        requests.get(graphql, {"query": query}, timeout=60),
    ):
        said: dict[str, Any] = answer.json()
        assert "UnauthorizedError" in str(said), said


def test_no_permission_is_left_in_the_webserver_for_viewers(viewers: str) -> None:
    query = "{ permissions { permission value } }"
    found = requests.post(f"{viewers}/graphql", json={"query": query}, timeout=60).json()["data"]["permissions"]
    assert {"launch_partition_backfill", "cancel_partition_backfill", "start_schedule"} <= {
        p["permission"] for p in found
    }
    assert [p["permission"] for p in found if p["value"]] == []


@pytest.mark.parametrize("kind", ["materialization", "check", "observation"])
def test_no_user_can_report_events_at_the_webserver_for_viewers(viewers: str, kind: str) -> None:
    body = {"check_name": "rows", "passed": True}
    assert requests.post(f"{viewers}/report_asset_{kind}/sales/published", json=body, timeout=60).status_code == 401


def servers() -> list[str]:
    """The blocks of the proxy that take requests by TLS."""
    found = [block for block in re.split(r"(?m)^server ", PROXY)[1:] if "listen 443 ssl" in block]
    assert len(found) == 2
    return found


@pytest.mark.parametrize("server", servers(), ids=["viewers", "operators"])
def test_the_proxy_asks_for_a_password_and_refuses_requests_of_foreign_pages(server: str) -> None:
    assert re.search(r"(?m)^ {4}auth_basic_user_file +\S+;", server)
    assert "auth_basic off" not in server
    assert "if ($foreign) { return 403; }" in server
    assert server.count("proxy_pass") == server.count('proxy_set_header   Authorization "";')
    for path in ("/notebook", "/dagit/notebook"):
        assert re.search(rf"location = {path} +{{ return 404; }}", server)


def test_the_proxy_leads_each_host_to_its_own_webserver_with_its_own_passwords() -> None:
    viewers, operators = servers()
    ports = [set(re.findall(r"proxy_pass +http://127\.0\.0\.1:(\d+);", server)) for server in (viewers, operators)]
    assert ports == [{"3001"}, {"3000"}]
    files = [re.findall(r"auth_basic_user_file +(\S+);", server) for server in (viewers, operators)]
    assert files == [["/etc/nginx/backfill.viewers"], ["/etc/nginx/backfill.operators"]]
    for file in (*files[0], *files[1]):
        assert f"htpasswd -B -c {file} " in DOCUMENT
    assert "if ($bare_get) { return 405; }" in operators


def test_every_webserver_of_the_document_listens_on_this_machine_only_and_viewers_have_a_read_only_one() -> None:
    started = re.findall(r"`(dagster-webserver [^`]*)`", DOCUMENT)
    assert {tuple(re.findall(r"-h (\S+) -p (\d+)", line)[0]) for line in started} == {
        ("127.0.0.1", "3000"),
        ("127.0.0.1", "3001"),
    }
    assert [line.endswith("--read-only") for line in started] == ["3001" in line for line in started]


def test_every_variable_of_the_document_is_a_setting() -> None:
    known = {"DAGSTER_HOME", "DAGSTER_STATE", "DAGSTER_URL"} | {name.upper() for name in Settings.model_fields}
    named = set(re.findall(r"BACKFILL_ASSETS_([A-Z_]+[A-Z])", DOCUMENT))
    assert named - known == set()


def test_the_audit_looks_up_what_is_pinned_and_is_no_part_of_the_tests() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\naudit:")[2].partition("\n\n")[0]
    assert all(
        flag in recipe for flag in ("--requirement requirements.lock", "--require-hashes", "--disable-pip", "--strict")
    )
    assert "audit" not in re.search(r"(?m)^test:.*$", makefile)[0]  # type: ignore[index]
    assert "audit" not in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_a_workflow_of_its_own_audits_each_week_and_with_each_change_of_the_lock() -> None:
    # Only workflows in this folder are run; elsewhere it would be an example.
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "audit.yml").read_text(encoding="utf-8"))
    # To YAML 1.1 the key `on` is the word true.
    started = workflow[True]
    assert set(started) == {"schedule", "push", "pull_request", "workflow_dispatch"}
    assert [re.fullmatch(r"\d+ \d+ \* \* [0-6]", each["cron"]) is not None for each in started["schedule"]] == [True]
    assert started["push"]["branches"] == ["main"]
    for change in ("push", "pull_request"):
        assert set(started[change]["paths"]) == {"requirements.lock", ".github/workflows/audit.yml"}
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make audit PYTHON=python"]
    # A finding that fails nothing would go unnoticed.
    assert not any("continue-on-error" in part for part in (job, *job["steps"]))


def test_the_audit_runs_on_the_oldest_and_the_newest_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "audit.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    asked = re.search(
        r'requires-python = ">=(3\.\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert asked is not None
    assert job["strategy"]["matrix"]["python"] == [asked[1], f"3.{int(asked[2]) - 1}"]
