"""The Dagster instance that commands work with."""

from __future__ import annotations

import dagster as dg

from backfill_assets.core.errors import SettingsError
from dagster_batched_events import UnreadableUrlError


def opened_instance() -> dg.DagsterInstance:
    """The instance of DAGSTER_HOME; whoever opens it closes it.

    Raises:
        SettingsError: the URL of its database cannot be read; the message never shows it.
    """
    try:
        return dg.DagsterInstance.get()
    except UnreadableUrlError as error:
        raise SettingsError(
            f"{error}; deploy/postgres/dagster.yaml takes it from BACKFILL_ASSETS_DAGSTER_URL"
        ) from None
