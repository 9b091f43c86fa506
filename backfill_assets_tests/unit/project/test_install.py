"""The packages, installed into an empty environment in each way that README gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.slow
_INSTALL = re.compile(r"^pip install .*$", re.MULTILINE)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This project as a git repository of one commit, with what `make dist` writes."""
    root = tmp_path_factory.mktemp("repository") / "backfill_assets"
    unwanted = shutil.ignore_patterns(
        ".git", ".venv", ".state", "dist", "build", "*.egg-info", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, root, ignore=unwanted, symlinks=True)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(root)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    (root / ".venv").symlink_to(Path(sys.executable).parents[1])
    (root / ".gitignore").write_text(".venv\n", encoding="utf-8")
    subprocess.run(["make", "-s", "-o", ".venv/.installed", "dist"], cwd=root, env=_environ(), check=True)
    return root


def _environ() -> dict[str, str]:
    return {
        n: v for n, v in os.environ.items() if not n.startswith(("BACKFILL_", "DAGSTER_", "PYTHON", "VIRTUAL_", "MAKE"))
    }


def _plain(line: str) -> str:
    """A requirement with its name as indexes spell it."""
    name, _, version = line.partition("==")
    return f"{name.lower().replace('_', '-').replace('.', '-')}=={version}"


@pytest.mark.parametrize("way", [0, 1], ids=["wheel", "git"])
def test_it_installs_into_an_empty_environment_and_begins_a_project(repository: Path, tmp_path: Path, way: int) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = _INSTALL.findall(readme)[way].replace("git+URL", f"git+file://{repository}")
    if way:
        command = command.replace("constraints.txt", str(repository / "dist" / "constraints.txt"))
    else:
        shutil.copytree(repository / "dist", tmp_path / "dist")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    environ = _environ()
    environ["PATH"] = f"{tmp_path / 'env' / 'bin'}{os.pathsep}{environ['PATH']}"
    script = f"{command} --quiet --disable-pip-version-check\nbackfill init shop\ncd shop\ndagster definitions validate\npip check"

    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Validation successful for code location backfills" in done.stdout + done.stderr
    installed = subprocess.run(
        ["pip", "freeze"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    pinned = {line.split(" ")[0] for line in (repository / "dist" / "constraints.txt").read_text().splitlines()}
    others = {
        _plain(line) for line in installed if "==" in line and not line.startswith(("backfill", "dagster-batched"))
    }
    assert others <= pinned
