"""`.env` and the environment: one installation for every command, or a refusal that names the setting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_assets import build_definitions
from backfill_assets.core.errors import SettingsError
from backfill_assets.environment import env_file, environment_in, is_dagster, require_one_environment, require_state_of
from backfill_assets.settings import Settings

DOTENV = """\
DAGSTER_HOME=${PWD}
BACKFILL_ASSETS_STATE=${PWD}/.state
BACKFILL_ASSETS_LEDGER_URL=postgresql://me:secret@db/ledger
BACKFILL_ASSETS_CHUNK=
TOKEN=theirs
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a `.env`, which is the working folder."""
    (tmp_path / ".env").write_text(DOTENV, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    return tmp_path


def test_the_env_file_of_the_working_folder_completes_the_environment(project: Path) -> None:
    found = environment_in(project, {"HOME": "/srv/me", "TOKEN": "mine", "BACKFILL_ASSETS_STATE": ""})
    assert found == {
        "HOME": "/srv/me",
        "TOKEN": "theirs",  # as Dagster has it
        "DAGSTER_HOME": str(project),
        "BACKFILL_ASSETS_STATE": f"{project}/.state",
        "BACKFILL_ASSETS_LEDGER_URL": "postgresql://me:secret@db/ledger",
        "BACKFILL_ASSETS_CHUNK": "",
    }
    assert Settings.from_env(found).state == project / ".state"
    assert environment_in(project.parent, {"HOME": "/srv/me"}) == {"HOME": "/srv/me"}


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("DAGSTER_HOME", "/srv/dagster", "DAGSTER_HOME is '/srv/dagster' in the environment and '{project}' in {project}/.env"),
        ("BACKFILL_ASSETS_STATE", "/srv/state", "BACKFILL_ASSETS_STATE is '/srv/state' in the environment"),
        ("BACKFILL_ASSETS_CHUNK", "all", "BACKFILL_ASSETS_CHUNK is 'all' in the environment and '' in {project}/.env"),
        ("BACKFILL_ASSETS_LEDGER_URL", "postgresql://you:hidden@db/ledger", "(not shown: it may hold a secret) in {project}/.env"),
    ],
)  # fmt: skip
def test_a_setting_with_two_values_is_refused_by_name(project: Path, name: str, value: str, shown: str) -> None:
    with pytest.raises(SettingsError) as caught:
        environment_in(project, {name: value})
    assert shown.format(project=project) in str(caught.value)
    assert f"Unset {name} or change that file, and start Dagster again." in str(caught.value)
    assert "me:secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_two_spellings_of_a_folder_are_one_value(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("links") / "project"
    link.symlink_to(project)
    assert environment_in(project, {"DAGSTER_HOME": str(link)})["DAGSTER_HOME"] == str(project)

    assert environment_in(project, {"BACKFILL_ASSETS_STATE": ".state/"})["BACKFILL_ASSETS_STATE"] == f"{project}/.state"


@pytest.mark.parametrize("shell", ["/srv/other", ""])
def test_a_folder_of_the_shell_that_is_not_the_working_folder_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    # As `env -C`, an IDE or systemd start a process: Dagster would put everything into that folder.
    monkeypatch.setenv("PWD", shell)
    with pytest.raises(SettingsError, match=f"uses PWD, which is '{shell}' although this runs in"):
        env_file(project)
    text = "# below PWD\nFTP_PWD=secret\nBACKFILL_ASSETS_STATE=/srv/state\n"
    (project / ".env").write_text(text, encoding="utf-8")
    assert env_file(project) == {"FTP_PWD": "secret", "BACKFILL_ASSETS_STATE": "/srv/state"}
    monkeypatch.setenv("DAGSTER_PROJECT_ENV_FILE_PATHS", f'{{"shop": "{project}"}}')
    require_one_environment(os.environ)
    (project / ".env").write_text("DAGSTER_HOME=${PWD}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="uses PWD"):
        require_one_environment(os.environ)


def test_a_command_inside_a_project_does_not_begin_another_state(project: Path) -> None:
    inside = project / "datasets" / "store_sales"
    for environ in ({}, {"BACKFILL_ASSETS_STATE": ""}):
        with pytest.raises(SettingsError, match=rf"{project}/\.env names it: start the command in {project}"):
            environment_in(inside, environ)
        with pytest.raises(SettingsError, match="is not set"):
            require_state_of(inside, environ)
    own = {"BACKFILL_ASSETS_STATE": "/srv/state"}
    assert environment_in(inside, own) == own
    (project / ".env").write_text("# BACKFILL_ASSETS_STATE=.state\nBACKFILL_ASSETS_STATED=1\n", encoding="utf-8")
    assert environment_in(inside, {}) == {}


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("/venv/bin/python /venv/bin/dagster dev", True),
        ("python3 -u -m dagster dev", True),
        ("python -X dev -m dagster._daemon run", True),
        ("python -m dagster_webserver", True),
        ("/venv/bin/dagster-daemon run", True),
        ("python /venv/bin/dg dev", True),
        ("python -m backfill_assets.orchestration.daemon run", True),
        ("python -m pytest backfill_assets_tests/dagster", False),
        ("make dagster-up", False),
        ("bash -c dagster", False),
        ("python", False),
        ("", False),
    ],
)
def test_programs_of_dagster_are_known_by_their_command_line(command: str, found: object) -> None:
    assert is_dagster(command.split()) is found


def test_definitions_of_another_folder_than_that_of_commands_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "datasets").mkdir()
    monkeypatch.setenv("BACKFILL_ASSETS_STATE", str(tmp_path / ".state"))
    monkeypatch.setenv("BACKFILL_ASSETS_DATASETS", str(tmp_path / "others"))
    with pytest.raises(SettingsError, match="is where commands look for datasets; make both the same"):
        build_definitions(tmp_path / "datasets")


def test_an_env_file_that_cannot_be_decoded_is_refused(project: Path) -> None:
    (project / ".env").write_bytes(b"TOKEN=\xff\n")
    with pytest.raises(SettingsError, match="cannot be read"):
        env_file(project)


INJECTED = """
import os, pathlib
from backfill_assets.environment import env_file, require_one_environment

os.environ.update(env_file(pathlib.Path.cwd()))  # as Dagster's commands do
require_one_environment(os.environ)
"""


@pytest.mark.slow  # processes of their own
def test_a_process_whose_setting_was_replaced_is_refused_and_so_are_those_that_it_starts(project: Path) -> None:
    (project / "dagster_parent.py").write_text(
        "import os, pathlib, subprocess, sys\n"
        "from backfill_assets.environment import env_file\n"
        "os.environ.update(env_file(pathlib.Path.cwd()))\n"
        "sys.exit(subprocess.call([sys.executable, 'child.py']))\n",
        encoding="utf-8",
    )
    (project / "child.py").write_text(INJECTED, encoding="utf-8")

    def started(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_"))}
        own |= {"PYTHONPATH": str(Path(__file__).parents[2]), **environ}
        return subprocess.run([sys.executable, script], env=own, capture_output=True, text=True, check=False)

    for script in ("child.py", "dagster_parent.py"):
        assert started(script).returncode == 0, started(script).stderr
        assert started(script, BACKFILL_ASSETS_STATE=f"{project}/.state").returncode == 0
        done = started(script, BACKFILL_ASSETS_STATE="/srv/state")
        assert "SettingsError: BACKFILL_ASSETS_STATE is '/srv/state' in the environment" in done.stderr
