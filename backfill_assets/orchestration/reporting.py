"""Tells Dagster of releases that were made outside of a run, so that its catalogue and heat maps stay true."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Collection, Iterable, Iterator, Mapping

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.campaigns.releasing.publish import AlreadyReleased, Released
from backfill_assets.campaigns.releasing.rollback import RolledBack
from backfill_assets.orchestration.names import asset_key
from backfill_assets.orchestration.outdated import report_downstream
from backfill_assets.orchestration.release_assets import released_events
from backfill_assets.orchestration.release_figures import release_figures
from backfill_assets.orchestration.storage import batched_events


def report_release(application: Application, outcome: Released | AlreadyReleased) -> bool:
    """Report the materializations of a release; false where no Dagster instance is configured."""
    return _report(application, _released(application, outcome), outcome.days)


def report_rollback(application: Application, done: RolledBack, reason: str) -> bool:
    """Report which partitions went back to what they were; false where no Dagster instance is configured."""
    metadata = {"release": done.release, "undoes": done.undoes, "reason": reason}
    key = asset_key("published", done.dataset)
    events = (
        dg.AssetObservation(key, partition=day.isoformat(), metadata=metadata, description="rolled back")
        for day in done.days
    )
    return _report(application, events, {done.dataset: done.days})


def _released(application: Application, outcome: Released | AlreadyReleased) -> Iterator[dg.AssetMaterialization]:
    """As a generator: where nobody is told, no figures are taken."""
    yield from released_events([outcome], "backfill publish", release_figures(application, [outcome]))


def _report(
    application: Application,
    events: Iterable[dg.AssetMaterialization | dg.AssetObservation],
    changed: Mapping[str, Collection[dt.date]],
) -> bool:
    if not os.environ.get("DAGSTER_HOME"):
        return False
    with dg.DagsterInstance.get() as instance, batched_events(instance):
        for event in events:
            instance.report_runless_asset_event(event)
        report_downstream(instance, application, changed)
    return True
