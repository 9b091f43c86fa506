"""Safe historical backfills for daily-partitioned tables: scoped, idempotent, controlled, observable, reversible."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import dagster as dg

__all__ = ["build_definitions"]


def build_definitions(folder: Path | str | None = None) -> dg.Definitions:
    """Dagster definitions of every dataset in a folder of dataset folders, also outside this project.

    Without a folder the one that BACKFILL_ASSETS_DATASETS names is used. A faulty dataset folder is left out with a
    warning that says what to mend; the others load.

    Raises:
        SettingsError: an environment variable cannot be used.
    """
    # Here, not above: the Spark server's watcher imports this package and must stay small.
    from backfill_assets.orchestration.definitions import definitions_from  # noqa: PLC0415

    return definitions_from(folder)
