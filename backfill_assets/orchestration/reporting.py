"""Tells Dagster of releases that were made outside of a run, so that its catalogue and heat maps stay true."""

from __future__ import annotations

import os
from collections.abc import Iterable

import dagster as dg

from backfill_assets.campaigns.publish import AlreadyReleased, Released
from backfill_assets.campaigns.rollback import RolledBack
from backfill_assets.orchestration.names import asset_key
from backfill_assets.orchestration.release_assets import released_events


def report_release(outcome: Released | AlreadyReleased) -> bool:
    """Report the materializations of a release; false where no Dagster instance is configured."""
    return _report(released_events([outcome], "backfill publish", set()))


def report_rollback(done: RolledBack, reason: str) -> bool:
    """Report which partitions went back to what they were; false where no Dagster instance is configured."""
    metadata = {"release": done.release, "undoes": done.undoes, "reason": reason}
    key = asset_key("published", done.dataset)
    return _report(
        dg.AssetObservation(key, partition=day.isoformat(), metadata=metadata, description="rolled back")
        for day in done.days
    )


def _report(events: Iterable[dg.AssetMaterialization | dg.AssetObservation]) -> bool:
    if not os.environ.get("DAGSTER_HOME"):
        return False
    with dg.DagsterInstance.get() as instance:
        for event in events:
            instance.report_runless_asset_event(event)
    return True
