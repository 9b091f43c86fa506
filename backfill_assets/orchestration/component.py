"""A dataset as a component of Dagster, for projects that `dg` made."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg
from dagster.components.core.component_tree import ComponentTree

from backfill_assets.application import Application
from backfill_assets.core.errors import DatasetError, SettingsError
from backfill_assets.orchestration.definitions import dataset_definitions, location_definitions
from backfill_assets.project.scaffold import DEFS_YAML, dataset_files
from backfill_assets.settings import require_one_environment

_newest: list[tuple[ComponentTree, Application]] = []
"""The code location that was loaded last, and the one application for all its datasets."""


class DatasetScaffolder(dg.Scaffolder[dg.Model]):
    """Writes a dataset folder that the user then makes their own."""

    def scaffold(self, request: dg.ScaffoldRequest[dg.Model]) -> None:
        """Write the example's dataset.yaml and models, with the folder's name; existing files stay."""
        folder = request.target_path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in {**dataset_files(folder.name), "defs.yaml": DEFS_YAML}.items():
            if not (folder / name).exists():
                (folder / name).write_text(text, encoding="utf-8")


@dg.scaffold_with(DatasetScaffolder)
class DatasetComponent(dg.Component, dg.Resolvable, dg.Model):
    """A daily-partitioned table: this folder holds its `dataset.yaml` and its models."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Assets and checks of the dataset; the first dataset also brings the jobs, schedules and sensors of all.

        Raises:
            DatasetError: the dataset has problems.
            SettingsError: commands would look for datasets in another folder.
        """
        folder = Path(context.path)
        application = _application(context.component_tree, folder)
        problems = [str(one) for one in application.catalog.problems if one.file.is_relative_to(folder)]
        if problems:
            raise DatasetError("\n".join(problems))
        loaded = application.catalog.dataset(folder.name)
        components = (name for name, one in application.datasets.items() if (one.folder / "defs.yaml").exists())
        found = dataset_definitions(loaded, application)
        first = folder.name == next(components, None)
        return dg.Definitions.merge(found, location_definitions(application)) if first else found


def _application(tree: ComponentTree, folder: Path) -> Application:
    # By identity: two loads of one project have equal trees, and the second has to read the files again.
    found = next((known for one, known in _newest if one is tree), None)
    if found is None:
        require_one_environment(os.environ)
        found = Application.from_env()
        _newest[:] = [(tree, found)]
    datasets = found.settings.datasets
    if datasets.resolve() != folder.parent.resolve():
        raise SettingsError(
            f"{folder} is a dataset outside of {datasets}, where commands look for datasets; set "
            f"BACKFILL_ASSETS_DATASETS={folder.parent} in the project's .env, or move the dataset"
        )
    return found
