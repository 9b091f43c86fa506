"""The project that `backfill init` writes, in an empty folder and beside what is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from backfill_assets.cli.app import app
from backfill_assets.core.errors import ArgumentError, InvalidNameError, StorageError
from backfill_assets.dataset.load import load_folder
from backfill_assets.environment import env_file
from backfill_assets.project.scaffold import dataset_files, new_project

ROOT = Path(__file__).resolve().parents[3]
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The console script in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return invoke


def files_of(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in found}


def test_an_empty_folder_becomes_a_project_whose_dataset_loads(run: Run, tmp_path: Path) -> None:
    done = run("init", "shop")
    assert done.exit_code == 0, done.output
    files = files_of(tmp_path / "shop")
    assert done.output.splitlines()[:-1] == [f"wrote shop/{name}" for name in new_project(tmp_path / "other").files]
    assert {".env", ".gitignore", "dagster.yaml", "workspace.yaml", "definitions.py", "README.md"} < set(files)
    catalog = load_folder(tmp_path / "shop" / "datasets")
    assert catalog.problems == ()
    assert list(catalog.datasets) == ["store_sales"]
    assert yaml.safe_load(files[".github/workflows/backfills.yml"])["jobs"]
    assert done.output.splitlines()[-1].startswith("next: cd shop, then start dagster dev; in a second terminal")


def test_its_settings_lie_in_its_own_folder(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("init")
    monkeypatch.setenv("PWD", str(tmp_path))
    assert env_file(tmp_path) == {
        "DAGSTER_HOME": str(tmp_path),
        "BACKFILL_ASSETS_STATE": f"{tmp_path}/.state",
        "BACKFILL_ASSETS_DAGSTER_STATE": f"{tmp_path}/.state/dagster",
        "BACKFILL_ASSETS_DATASETS": f"{tmp_path}/datasets",
        "BACKFILL_ASSETS_SOURCES": f"{tmp_path}/sources",
    }


def test_it_runs_under_the_same_limits_as_this_checkout() -> None:
    template = ROOT / "backfill_assets" / "project" / "template" / "dagster.yaml"
    assert template.read_text(encoding="utf-8") == (ROOT / "dagster.yaml").read_text(encoding="utf-8")


def test_the_readme_shows_the_dataset_that_it_writes() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, text in dataset_files("store_sales").items():
        assert f"`{name}`\n\n```{name.rsplit('.')[-1]}\n{text}```\n" in readme
        assert readme.count(text) == 1


def test_a_repository_and_an_environment_may_be_there_already(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    new_project(tmp_path).write()
    assert (tmp_path / "definitions.py").exists()


@pytest.mark.parametrize("name", ["notes.txt", ".env", "datasets"])
def test_a_folder_with_anything_else_is_refused_and_nothing_is_written(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine", encoding="utf-8")
    done = run("init")
    assert isinstance(done.exception, ArgumentError)
    assert f"is not empty: it has {name!r}" in str(done.exception)
    assert files_of(tmp_path) == {name: "mine"}


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    scaffold = new_project(tmp_path)
    (tmp_path / "workspace.yaml").write_text("mine", encoding="utf-8")
    with pytest.raises(StorageError, match=r"workspace\.yaml cannot be written: File exists"):
        scaffold.write()
    # All files or none: the next attempt finds an empty folder again.
    assert files_of(tmp_path) == {"workspace.yaml": "mine"}


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="cannot be read: Not a directory"):
        new_project(tmp_path / "file")


def test_an_existing_project_keeps_its_files_and_learns_what_to_add(run: Run, tmp_path: Path) -> None:
    mine = {
        "definitions.py": "defs = None\n",
        "workspace.yaml": "load_from: []\n",
        ".env": "export DAGSTER_HOME=/srv/dagster\nBACKFILL_ASSETS_SOURCES = /srv/sources\nTOKEN=x\n",
        "dagster.yaml": "telemetry: {enabled: false}\n",
        "README.md": "# Mine\n",
    }
    for name, text in mine.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = run("init", "--into")
    assert done.exit_code == 0, done.output
    files = files_of(tmp_path)
    assert {name: files[name] for name in mine} == mine
    assert "build_definitions(" in files["backfill_definitions.py"]
    assert "materialize -f backfill_definitions.py --select" in files[".github/workflows/backfills.yml"]
    assert (
        "kept workspace.yaml; add below load_from:\n  - python_file:\n      relative_path: backfill_definitions.py"
        in done.output
    )
    assert "kept .env; add to it:\nBACKFILL_ASSETS_STATE=${PWD}/.state\n" in done.output
    assert "kept dagster.yaml; what backfills need in it: run_coordinator" in done.output
    # These are the project's own.
    assert "DAGSTER_HOME" not in done.output
    assert "BACKFILL_ASSETS_SOURCES" not in done.output
    assert done.output.splitlines()[-1].startswith("next: start dagster dev; in a second terminal")


def test_a_second_time_it_finds_all_that_it_wrote(run: Run, tmp_path: Path) -> None:
    run("init")
    before = files_of(tmp_path)
    done = run("init", "--into")
    assert done.exit_code == 0, done.output
    assert files_of(tmp_path) == before
    assert not any(line.startswith("wrote") or "; " in line for line in done.output.splitlines()[:-1])


@pytest.mark.parametrize("source", ["src/", ""])
def test_a_project_of_dg_gets_a_component_among_its_definitions(run: Run, tmp_path: Path, source: str) -> None:
    defs = tmp_path / source / "shop" / "defs"
    defs.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.dg.project]\nroot_module = "shop"\n', encoding="utf-8")
    done = run("init", "--into")
    assert done.exit_code == 0, done.output
    files = files_of(tmp_path)
    datasets = f"{source}shop/defs/datasets"
    assert files[f"{datasets}/store_sales/defs.yaml"] == "type: backfill_assets.Dataset\n"
    assert load_folder(tmp_path / datasets).problems == ()
    assert f"BACKFILL_ASSETS_DATASETS=${{PWD}}/{datasets}\n" in files[".env"]
    # Dagster finds the project's definitions by its pyproject.toml.
    assert 'dagster asset materialize --select "group:store_sales"' in files[".github/workflows/backfills.yml"]
    assert not {"definitions.py", "workspace.yaml"} & set(files)


def test_a_project_with_datasets_does_not_get_the_example(run: Run, tmp_path: Path) -> None:
    run("init")
    (tmp_path / "datasets" / "store_sales").rename(tmp_path / "datasets" / "orders")
    (tmp_path / "definitions.py").unlink()
    (tmp_path / ".github/workflows/backfills.yml").unlink()
    done = run("init", "--into")
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == ["orders"]
    # It would build the example.
    assert not (tmp_path / ".github/workflows/backfills.yml").exists()
    assert done.output.splitlines()[-1].endswith("backfill run DATASET DAYS --watch")
    assert (tmp_path / "definitions.py").exists()


def test_datasets_lie_where_the_projects_own_settings_say(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("BACKFILL_ASSETS_DATASETS=${PWD}/tables\n", encoding="utf-8")
    done = run("init", "--into")
    assert done.exit_code == 0, done.output
    assert load_folder(tmp_path / "tables").problems == ()
    assert '/ "tables")' in (tmp_path / "definitions.py").read_text(encoding="utf-8")
    assert not (tmp_path / "datasets").exists()
    (tmp_path / ".env").write_text("BACKFILL_ASSETS_DATASETS=/srv/tables\n", encoding="utf-8")
    assert "is outside of the project" in str(run("init", "--into").exception)


def test_a_project_whose_module_dagster_knows_learns_how_to_start_both(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "mine"\n', encoding="utf-8")
    done = run("init", "--into")
    assert "next: start dagster dev -w workspace.yaml, with your own location in it" in done.output.splitlines()[-1]


def test_files_that_are_not_utf_8_are_kept(run: Run, tmp_path: Path) -> None:
    for name in (".gitignore", "workspace.yaml", "definitions.py"):
        (tmp_path / name).write_bytes("# größe\n".encode("latin-1"))
    done = run("init", "--into")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "definitions.py").read_bytes() == "# größe\n".encode("latin-1")


@pytest.mark.parametrize(
    ("name", "text", "defs"),
    [
        ("dg.toml", '[project]\nroot_module = "shop"\n', "src/shop/defs/datasets"),
        ("pyproject.toml", '[tool.dg.project]\nroot_module = "shop"\ndefs_module = "shop.parts"\n', "src/shop/parts/datasets"),
        ("pyproject.toml", "tool = 3\n", "datasets"),
        ("pyproject.toml", "[tool]\ndg = 3\n", "datasets"),
    ],
)  # fmt: skip
def test_components_lie_where_dg_looks_for_them(run: Run, tmp_path: Path, name: str, text: str, defs: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    done = run("init", "--into")
    assert done.exit_code == 0, done.output
    assert load_folder(tmp_path / defs).problems == ()
    assert ("start dg dev" in done.output) == defs.startswith("src")


def test_a_project_file_that_cannot_be_read_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool", encoding="utf-8")
    done = run("init", "--into")
    assert isinstance(done.exception, ArgumentError)
    assert "pyproject.toml cannot be read" in str(done.exception)
    assert isinstance(run("init", "--into", "nowhere").exception, ArgumentError)
    assert list(files_of(tmp_path)) == ["pyproject.toml"]


def test_a_new_dataset_has_the_name_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    for name, text in dataset_files("orders").items():
        (folder / name).write_text(text, encoding="utf-8")
    assert list(load_folder(tmp_path).datasets) == ["orders"]
    with pytest.raises(InvalidNameError):
        dataset_files("../orders")
