"""Tells Dagster of releases that were made outside of a run, so that its catalogue and heat maps stay true."""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Collection, Iterable, Mapping

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.orchestration.instance import opened_instance
from backfill_assets.orchestration.outdated import report_downstream
from backfill_assets.orchestration.release_assets import release_metadata, released_events, rolled_back_events
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets.release.rollback import RolledBack
from dagster_batched_events import batched_events

_log = logging.getLogger(__name__)


def report_release(application: Application, outcome: Released | AlreadyReleased) -> bool:
    """Report the materializations of a release; false where no Dagster instance is configured."""
    if not _configured():
        return False
    metadata = release_metadata(application, [outcome], "backfill publish", _log)
    return _report(application, released_events([outcome], metadata), outcome.days)


def report_rollback(application: Application, done: RolledBack) -> bool:
    """Report the materializations of a rollback; false where no Dagster instance is configured."""
    if not _configured():
        return False
    rollback = application.ledger.release(done.release).manifest
    return _report(application, rolled_back_events(application, rollback, done.days, _log), {done.dataset: done.days})


def _configured() -> bool:
    return bool(os.environ.get("DAGSTER_HOME"))


def _report(
    application: Application,
    events: Iterable[dg.AssetMaterialization],
    changed: Mapping[str, Collection[dt.date]],
) -> bool:
    with opened_instance() as instance, batched_events(instance):
        for event in events:
            instance.report_runless_asset_event(event)
        report_downstream(instance, application, changed)
    return True
