"""A dataset as a component of Dagster, for projects that `dg` made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dagster as dg
from dagster.components.core.component_tree import ComponentTree

from backfill_assets.application import Application
from backfill_assets.core.errors import DatasetError, SettingsError
from backfill_assets.environment import require_one_environment
from backfill_assets.orchestration.definitions import dataset_definitions, location_definitions
from backfill_assets.project.scaffold import DEFS_YAML, dataset_files

_FILES: Final = ("defs.yaml", "defs.yml", "component.yaml")
"""What makes a folder a component for Dagster."""


@dataclass(frozen=True)
class _Location:
    """A code location that is loaded: one application for all its datasets; `first` brings what it has once."""

    tree: ComponentTree
    application: Application
    first: Path


_newest: list[_Location] = []
"""The code location that was loaded last."""


class DatasetScaffolder(dg.Scaffolder[dg.Model]):
    """Writes a dataset folder that the user then makes their own."""

    def scaffold(self, request: dg.ScaffoldRequest[dg.Model]) -> None:
        """Write the example's dataset.yaml and models, with the folder's name; existing files stay."""
        folder = request.target_path
        files = {**dataset_files(folder.name), "defs.yaml": DEFS_YAML}
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            if not (folder / name).exists():
                (folder / name).write_text(text, encoding="utf-8")


@dg.scaffold_with(DatasetScaffolder)
class DatasetComponent(dg.Component, dg.Resolvable, dg.Model):
    """A daily-partitioned table: this folder holds its `dataset.yaml` and its models."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Assets and checks of the dataset; the first dataset also brings the jobs, schedules and sensors of all.

        Raises:
            DatasetError: the dataset has problems, or another one is no component.
            SettingsError: commands would look for datasets in another folder.
        """
        folder = Path(context.path)
        if not folder.is_dir():
            raise DatasetError(f"{folder}: a dataset is a component by its defs.yaml, which says: {DEFS_YAML.strip()}")
        location = _location(context.component_tree, folder)
        catalog = location.application.catalog
        if problems := [str(one) for one in catalog.problems if one.file.is_relative_to(folder)]:
            raise DatasetError("\n".join(problems))
        found = dataset_definitions(catalog.dataset(folder.name), location.application)
        if folder != location.first:
            return found
        for other in catalog.datasets.values():
            if not any((other.folder / name).exists() for name in _FILES):
                raise DatasetError(f"{other.folder} has no defs.yaml; write one that says: {DEFS_YAML.strip()}")
        return dg.Definitions.merge(found, location_definitions(location.application))


def _location(tree: ComponentTree, folder: Path) -> _Location:
    # By identity: two loads of one project have equal trees, and the second has to read the files again.
    found = next((known for known in _newest if known.tree is tree), None)
    if found is None:
        require_one_environment(os.environ)
        found = _Location(tree, Application.from_env(), folder)
        _newest[:] = [found]
    datasets = found.application.settings.datasets
    if datasets.resolve() != folder.parent.resolve():
        raise SettingsError(
            f"{folder} is a dataset outside of {datasets}, where commands look for datasets; set "
            f"BACKFILL_ASSETS_DATASETS={folder.parent} in the project's .env, or move the dataset"
        )
    return found
