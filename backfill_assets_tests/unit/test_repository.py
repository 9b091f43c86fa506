"""The repository itself: the lock, what may be committed, the Makefile, the Dagster instance's limits."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dagster_batched_events import BatchedSqliteEventLogStorage

ROOT = Path(__file__).resolve().parents[2]
EVENTS = ROOT / "packages" / "dagster-batched-events"

# In two parts, so that this file does not name what it forbids.
REGISTRY_HOSTS = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "npm" + "js.com",
    "crates" + ".io",
    "maven" + ".org",
    "maven.apache" + ".org",
    "proxy.go" + "lang.org",
    "deb.de" + "bian.org",
]
HOME_FOLDER = re.compile(r"(?<![\w.~}/*])/(?:home|Users)/[A-Za-z]|(?<![\w.~}/*])/ro" + r"ot/")


def committed_files() -> list[Path]:
    """Files that git tracks or would track: the content of another clone."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def text_of(path: Path) -> str:
    content = path.read_bytes()
    return "" if b"\0" in content[:8192] else content.decode("utf-8", errors="replace")


def project(folder: Path = ROOT) -> dict[str, Any]:
    with (folder / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def requirements(metadata: dict[str, Any]) -> list[Requirement]:
    return [*map(Requirement, [*metadata["dependencies"], *chain(*metadata["optional-dependencies"].values())])]


def locked_versions() -> dict[str, set[str]]:
    versions: dict[str, set[str]] = {}
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        match = re.match(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^ ;\\]+)", line)
        if match:
            versions.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return versions


def make_targets() -> dict[str, str]:
    """Target -> help text (empty without one), for every phony target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = {name for line in re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE) for name in line.split()}
    rules = dict(re.findall(r"^([a-z-]+):[^=\n]*?(?:## *([^\n]*))?$", makefile, re.MULTILINE))
    return {name: rules.get(name, "") for name in phony}


def dagster_instance() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "dagster.yaml").read_text(encoding="utf-8"))


def test_the_lock_names_no_registry() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert re.findall(r"https?://|^--(?:index|extra|find|trusted)\S*|@ file:", lock, re.MULTILINE) == []


def test_every_locked_package_has_a_hash() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    blocks = [block for block in re.split(r"\n(?=\S)", lock) if "==" in block.split("\n")[0]]
    assert blocks
    assert [block.split("\n")[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_every_dependency_of_the_project_is_locked_within_its_bounds() -> None:
    of_this_repository = project(EVENTS)["name"]
    locked = locked_versions()
    assert of_this_repository not in locked
    wrong = {}
    for requirement in (*requirements(project()), *requirements(project(EVENTS))):
        if requirement.name == of_this_repository:
            continue
        versions = locked.get(canonicalize_name(requirement.name), set())
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            wrong[str(requirement)] = versions
    assert wrong == {}


def test_the_project_asks_for_the_batched_events_of_this_repository_on_the_same_python_and_dagster() -> None:
    ours, theirs = project(), project(EVENTS)
    asked = {str(r.specifier) for r in requirements(ours) if r.name == theirs["name"]}
    assert asked == {f"=={theirs['version']}"}
    assert ours["requires-python"] == theirs["requires-python"]
    dagster = [{str(r) for r in requirements(each) if r.name == "dagster"} for each in (ours, theirs)]
    assert dagster[0] == dagster[1] != set()


def test_no_file_names_a_registry() -> None:
    found = {
        str(path.relative_to(ROOT)): host
        for path in committed_files()
        for host in REGISTRY_HOSTS
        if re.search(rf"(?<![\w-]){re.escape(host)}", text_of(path))
    }
    assert found == {}


def test_no_file_contains_a_path_of_a_home_folder() -> None:
    found = {
        str(path.relative_to(ROOT)): match[0]
        for path in committed_files()
        if (match := HOME_FOLDER.search(text_of(path)))
    }
    assert found == {}


@pytest.mark.parametrize("text", ["/ho" + "me/ann/x", "path=/Us" + "ers/ann", "cd /ro" + "ot/main"])
def test_a_home_folder_is_recognised(text: str) -> None:
    assert HOME_FOLDER.search(text)


@pytest.mark.parametrize("text", ["${HOME}/x", "src/root/x", "tests/home/x", "~/home/x", "a/Users/b"])
def test_an_ordinary_path_is_no_home_folder(text: str) -> None:
    assert not HOME_FOLDER.search(text)


def test_no_state_is_committed() -> None:
    forbidden = re.compile(r"(^|/)(\.state|_shadow|_delta_log|__pycache__|\.venv)/|\.(db|pyc|crc)$")
    names = [path.relative_to(ROOT).as_posix() for path in committed_files()]
    assert [name for name in names if forbidden.search(name)] == []


def test_every_target_of_the_makefile_has_a_help_text() -> None:
    targets = make_targets()
    assert {"help", "setup", "demo", "test", "check", "dev", "clean", "lock"} <= targets.keys()
    assert [name for name, text in targets.items() if not text] == []


def test_make_help_lists_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert [name for name in make_targets() if not re.search(rf"make {name}\s", shown)] == []


def test_the_example_workflow_comments_on_pull_requests_and_calls_a_command_that_exists() -> None:
    workflow = yaml.safe_load((ROOT / "docs" / "history-diff.yml").read_text(encoding="utf-8"))
    # To YAML 1.1 the key `on` is the word true.
    assert set(workflow) == {"name", True, "permissions", "concurrency", "jobs"}
    assert set(workflow[True]) == {"pull_request"}
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    (job,) = workflow["jobs"].values()
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    runs = "\n".join(step.get("run", "") for step in job["steps"])
    assert 'backfill" diff-history --models HEAD --out' in runs
    assert "gh pr comment" in runs
    assert {"BACKFILL_ASSETS_WAREHOUSE", "BACKFILL_ASSETS_SOURCES", "BACKFILL_ASSETS_LEDGER_URL"} <= job["env"].keys()


@pytest.mark.slow  # opens a Dagster instance
def test_the_instance_of_this_project_stores_its_events_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_ASSETS_DAGSTER_STATE", str(tmp_path / "state"))
    shutil.copyfile(ROOT / "dagster.yaml", tmp_path / "dagster.yaml")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert isinstance(instance.event_log_storage, BatchedSqliteEventLogStorage)
        assert dg.DagsterInstance.from_ref(instance.get_ref()).event_log_storage.get_maximum_record_id() is None


def test_a_live_run_always_finds_a_slot_beside_backfills() -> None:
    runs = dagster_instance()["concurrency"]["runs"]
    limits = {limit["key"]: limit for limit in runs["tag_concurrency_limits"]}
    backfills = limits["dagster/backfill"]
    # With a value, the limit would count each backfill separately, and two of them would fill the queue.
    assert "value" not in backfills
    assert 0 < backfills["limit"] < runs["max_concurrent_runs"]


def test_a_plain_dagster_command_gets_every_variable_that_the_instance_needs() -> None:
    dotenv = (ROOT / ".env").read_text(encoding="utf-8")
    provided = set(re.findall(r"^([A-Z_]+)=", dotenv, re.MULTILINE))
    instance = (ROOT / "dagster.yaml").read_text(encoding="utf-8")
    needed = set(re.findall(r"env: *([A-Z_]+)", instance))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    exported = set(re.findall(r"^export ([A-Z_]+) ", makefile, re.MULTILINE))
    assert needed
    assert needed | {"DAGSTER_HOME", "BACKFILL_ASSETS_STATE"} <= provided
    assert provided <= exported


SKIPPING = """
import pytest

def test_that_runs(): pass

{body}
"""


@pytest.mark.slow  # each of them is a pytest of its own
@pytest.mark.parametrize(
    ("body", "ci", "exit_code"),
    [
        ("def test_more(): pass", "true", 0),
        ("def test_more(): pytest.skip('no network')", "true", 1),
        ("def test_more(): pytest.skip('no network')", "", 0),
        ("@pytest.mark.skip\ndef test_more(): pass", "", 1),
        ("@pytest.mark.skip(reason='later')\ndef test_more(): pass", "true", 1),
        ("@pytest.mark.xfail(reason='known')\ndef test_more(): assert False", "true", 1),
        ("@pytest.mark.xfail(reason='known')\ndef test_more(): assert False", "", 0),
        ("pytest.importorskip('no_such_module')", "true", 1),
    ],
)
def test_a_skipped_test_fails_ci_and_needs_a_reason_elsewhere(
    tmp_path: Path, body: str, ci: str, exit_code: int
) -> None:
    (tmp_path / "conftest.py").write_text(
        "from backfill_assets_tests.skips import pytest_sessionfinish, pytest_terminal_summary\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_sample.py").write_text(SKIPPING.format(body=body))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == exit_code, result.stdout + result.stderr
    assert ("refused" in result.stdout) is (exit_code == 1)


WEAKER = """
import pytest

@pytest.mark.parametrize("case", range(3))
def test_of_a_fault(observed, case):
    observed.injected("a small fault")
    if case:
        observed.weaker("it was only half as bad")
"""


@pytest.mark.slow  # a pytest of its own
def test_results_that_a_machine_shows_in_a_weaker_way_are_printed_after_every_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from backfill_assets_tests.observed import observed, pytest_terminal_summary\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_sample.py").write_text(WEAKER)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "shown in a weaker way" in result.stdout
    assert "2 cases: it was only half as bad" in result.stdout
    assert "a small fault" not in result.stdout
