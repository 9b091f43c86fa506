"""Safe historical backfills for daily-partitioned tables: scoped, idempotent, controlled, observable, reversible."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import dagster as dg

__all__ = ["Dataset", "build_definitions"]

Dataset: type[dg.Component]
"""The component of a dataset; see `__getattr__`."""


def build_definitions(folder: Path | str | None = None) -> dg.Definitions:
    """Dagster definitions of every dataset in a folder of dataset folders, also outside this project.

    By default, this is the folder in BACKFILL_ASSETS_DATASETS. A dataset folder with problems is left out with a warning
    that says what to fix; the others load.

    Raises:
        SettingsError: an environment variable cannot be used.
    """
    # Imported here: the Spark server's watcher imports this package and must stay small.
    from backfill_assets.orchestration.definitions import definitions_from  # noqa: PLC0415

    return definitions_from(folder)


def __getattr__(name: str) -> object:
    # As above. Dagster's components look for `type: backfill_assets.Dataset` here.
    if name == "Dataset":
        from backfill_assets.orchestration.component import DatasetComponent  # noqa: PLC0415

        return DatasetComponent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "Dataset"]
