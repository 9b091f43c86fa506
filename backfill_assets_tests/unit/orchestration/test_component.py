"""`type: backfill_assets.Dataset`: datasets as components of a project of `dg`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster.components.core.package_entry import discover_entry_point_package_objects
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox
from dagster_shared.serdes.objects import EnvRegistryKey

import backfill_assets
from backfill_assets import build_definitions
from backfill_assets.core.errors import DatasetError, InvalidNameError, SettingsError
from backfill_assets.orchestration.component import DatasetComponent
from backfill_assets.project.scaffold import addition


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DefsFolderSandbox]:
    """A project of `dg` without datasets, and the settings that it needs."""
    with create_defs_folder_sandbox(project_name="shop_of_tests") as made:
        monkeypatch.setenv("BACKFILL_ASSETS_STATE", str(tmp_path / ".state"))
        monkeypatch.setenv("BACKFILL_ASSETS_DATASETS", str(made.defs_folder_path / "datasets"))
        yield made


def scaffolded(sandbox: DefsFolderSandbox, *names: str) -> list[Path]:
    return [sandbox.scaffold_component(component_cls=DatasetComponent, defs_path=f"datasets/{n}") for n in names]


def all_names(defs: dg.Definitions) -> dict[str, list[str]]:
    repository = defs.get_repository_def()
    return {
        "assets": sorted(key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()),
        "checks": sorted(str(key) for key in repository.asset_graph.asset_check_keys),
        "jobs": sorted(job.name for job in repository.get_all_jobs()),
        "sensors": sorted(sensor.name for sensor in repository.sensor_defs),
        "schedules": sorted(schedule.name for schedule in repository.schedule_defs),
        "resources": sorted(repository.get_top_level_resources()),
        "executors": sorted({job.executor_def.name for job in repository.get_all_jobs()}),
    }


def test_components_are_the_same_definitions_as_the_folder_gives(sandbox: DefsFolderSandbox) -> None:
    first, second = scaffolded(sandbox, "orders", "returns")
    assert sorted(path.name for path in first.iterdir()) == ["dataset.yaml", "defs.yaml", "fact.sql", "staging.sql"]
    with sandbox.build_all_defs() as defs:
        found = all_names(defs)
    assert found == all_names(build_definitions(second.parent))
    assert [name for name in found["assets"] if name.startswith("orders/")] != []
    assert "dead_workers" in found["sensors"]


def test_a_second_load_reads_the_files_again(sandbox: DefsFolderSandbox) -> None:
    (folder,) = scaffolded(sandbox, "orders")
    with sandbox.build_all_defs() as defs:
        before = all_names(defs)["checks"]
    file = folder / "dataset.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("sold_something", "sold_more"), encoding="utf-8")
    with sandbox.build_all_defs() as defs:
        assert all_names(defs)["checks"] != before


def test_the_jobs_of_all_datasets_do_not_depend_on_the_name_of_a_file(sandbox: DefsFolderSandbox) -> None:
    first, second = scaffolded(sandbox, "orders", "returns")
    (first / "defs.yaml").rename(first / "defs.yml")
    with sandbox.build_all_defs() as defs:
        assert all_names(defs) == all_names(build_definitions(second.parent))


def test_a_dataset_that_is_no_component_is_named(sandbox: DefsFolderSandbox) -> None:
    _, second = scaffolded(sandbox, "orders", "returns")
    (second / "defs.yaml").unlink()
    with pytest.raises(Exception, match="datasets/orders") as caught, sandbox.build_all_defs():
        pass
    assert str(caused(caught.value)).endswith(
        "returns has no defs.yaml; write one that says: type: backfill_assets.Dataset"
    )


def test_a_component_in_python_is_refused(sandbox: DefsFolderSandbox) -> None:
    (folder,) = scaffolded(sandbox, "orders")
    (folder / "defs.yaml").unlink()
    (folder / "component.py").write_text(
        "import dagster as dg\nfrom backfill_assets import Dataset\n\n@dg.component_instance\ndef load(context):\n"
        "    return Dataset()\n",
        encoding="utf-8",
    )
    with pytest.raises(Exception, match=r"component\.py") as caught, sandbox.build_all_defs():
        pass
    assert "a dataset is a component by its defs.yaml" in str(caused(caught.value))


def test_a_name_that_no_dataset_may_have_is_refused_before_anything_is_written(
    tmp_path: Path, sandbox: DefsFolderSandbox
) -> None:
    with pytest.raises(InvalidNameError):
        scaffolded(sandbox, "Bad-Name")
    assert not list((sandbox.defs_folder_path / "datasets").rglob("*.sql"))


def test_scaffolding_keeps_what_the_user_has_written(sandbox: DefsFolderSandbox) -> None:
    (folder,) = scaffolded(sandbox, "orders")
    (folder / "fact.sql").write_text("mine", encoding="utf-8")
    scaffolded(sandbox, "orders")
    assert (folder / "fact.sql").read_text(encoding="utf-8") == "mine"


def caused(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else caused(error.__cause__)


def test_a_dataset_with_a_problem_fails_its_load_with_file_key_and_remedy(sandbox: DefsFolderSandbox) -> None:
    (folder,) = scaffolded(sandbox, "orders")
    file = folder / "dataset.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("article]", "artikel]"), encoding="utf-8")
    with pytest.raises(Exception, match="datasets/orders") as caught, sandbox.build_all_defs():
        pass
    found = caused(caught.value)
    assert isinstance(found, DatasetError)
    assert "orders/dataset.yaml:8: key names 'artikel', which is not declared in columns" in str(found)


def test_a_dataset_that_commands_would_not_find_is_refused(
    sandbox: DefsFolderSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaffolded(sandbox, "orders")
    (tmp_path / "others").mkdir()
    monkeypatch.setenv("BACKFILL_ASSETS_DATASETS", str(tmp_path / "others"))
    with pytest.raises(Exception, match="datasets/orders") as caught, sandbox.build_all_defs():
        pass
    found = caused(caught.value)
    assert isinstance(found, SettingsError)
    assert f"set BACKFILL_ASSETS_DATASETS={sandbox.defs_folder_path / 'datasets'} in the project's .env" in str(found)


def test_dagster_finds_the_component_by_the_name_that_yaml_uses() -> None:
    key = EnvRegistryKey(name="Dataset", namespace="backfill_assets")
    assert discover_entry_point_package_objects()[key] is DatasetComponent
    assert backfill_assets.Dataset is DatasetComponent
    with pytest.raises(AttributeError, match="no attribute 'Datasets'"):
        backfill_assets.Datasets  # noqa: B018


@pytest.mark.slow  # four processes that load Dagster
def test_dg_lists_scaffolds_and_checks_datasets(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "src/shop/__init__.py", "src/shop/defs/__init__.py", "src/shop/definitions.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "shop"\n[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop"\n'
    )
    (tmp_path / "src/shop/definitions.py").write_text(
        "from pathlib import Path\nfrom dagster import definitions, load_from_defs_folder\n\n@definitions\ndef defs():\n"
        "    return load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
    )
    addition(tmp_path).write()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_"))}
    environ |= {"PYTHONPATH": str(tmp_path / "src"), "PWD": str(tmp_path), "COLUMNS": "400", "VIRTUAL_ENV": sys.prefix}

    def called(*words: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).parent / "dg")
        return subprocess.run([program, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)

    listed = called("list", "components", "--package", "backfill_assets", "--json")
    assert [one["key"] for one in json.loads(listed.stdout)["items"]] == ["backfill_assets.Dataset"]
    made = called("scaffold", "defs", "backfill_assets.Dataset", "datasets/orders")
    assert made.returncode == 0, made.stderr
    file = tmp_path / "src/shop/defs/datasets/orders/dataset.yaml"
    assert file.read_text().startswith("name: orders\n")
    checked = called("check", "defs")
    assert checked.returncode == 0, checked.stderr
    file.write_text(file.read_text().replace("article]", "artikel]"))
    refused = called("check", "defs")
    assert refused.returncode != 0
    assert "orders/dataset.yaml:8: key names 'artikel'" in refused.stderr + refused.stdout
