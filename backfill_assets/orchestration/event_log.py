"""What Dagster knows about launches, releases and run processes, for the doctor."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import psutil
from dagster._core.storage.tags import GRPC_INFO_TAG

from backfill_assets.application import Application
from backfill_assets.core.layers import Layer
from backfill_assets.core.release import Manifest, ReleaseKind, ReleaseState
from backfill_assets.core.unit import UNIT_TAG
from backfill_assets.doctor.findings import EventLog, RunAtWork
from backfill_assets.ledger.database import process_here
from backfill_assets.orchestration.names import asset_key, created_at, days_of, last_metadata_value
from backfill_assets.orchestration.release_events import (
    RELEASE_METADATA,
    changed_events,
    release_metadata,
    released_events,
    report_downstream,
)
from backfill_assets.release.publish import AlreadyReleased
from dagster_batched_events import batched_events

# If the clock was set forward, a process looks younger than its own messages.
_SLACK_SECONDS = 300
_MANY = 100


def ended_process(
    instance: dg.DagsterInstance, run: dg.DagsterRun, workers: Mapping[str, float], location: str
) -> int | None:
    """The number of a run's process if it ran on this host and is gone; None while it is alive or if unknown.

    `workers` are those of its attempts (`host:pid`) and when they began, in seconds of the epoch; `location` is the code
    location whose server asks, empty for any other caller. A run may have been started twice, by a queue that got no
    answer from a code server: it has ended if all of its processes have ended.
    """
    if run.status not in {dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING}:
        return None  # Dagster's start timeout handles it, and may start it again
    recorded = _recorded(instance, run.run_id)
    own = {process_here(worker): at for worker, at in workers.items()}
    if not recorded or None in own or not (own or _was_started_here(run, location)):
        return None
    said = [*recorded.items(), *((number, at) for number, at in own.items() if number is not None)]
    if any(_is_there(number, at) for number, at in said):
        return None
    # It may have reported its end between the check of the run and the check of its processes.
    now = instance.get_run_by_id(run.run_id)
    return None if now is None or now.is_finished else max(recorded, key=recorded.__getitem__)


def _recorded(instance: dg.DagsterInstance, run: str) -> dict[int, float]:
    """The processes in which Dagster started the run by its own account, and when each was first reported."""
    found: dict[int, float] = {}
    for record in instance.get_records_for_run(run, of_type=dg.DagsterEventType.ENGINE_EVENT, limit=_MANY).records:
        event = record.event_log_entry.dagster_event
        value = event.engine_event_data.metadata.get("pid") if event is not None else None
        if value is not None:
            found.setdefault(int(str(value.value)), record.event_log_entry.timestamp)
    return found


def _is_there(number: int, said_at: float) -> bool:
    """Whether the process that reported this number at that time still runs; assumed if it may not be inspected."""
    if not psutil.pid_exists(number):  # only this distinguishes processes from threads, which share their numbers
        return False
    try:
        process = psutil.Process(number)
        # A process that its parent does not reap stays as a zombie; a younger process has reused the number.
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < said_at + _SLACK_SECONDS
    except psutil.Error:
        return True


def _was_started_here(run: dg.DagsterRun, location: str) -> bool:
    """Whether a run without an attempt belongs to the code server that asks, or to one on a socket of this host."""
    if GRPC_INFO_TAG not in run.tags:
        return False  # a command has started it, on any host
    origin = run.remote_job_origin
    if location and origin is not None:
        return origin.location_name == location
    path = json.loads(run.tags[GRPC_INFO_TAG]).get("socket")
    return bool(path) and Path(path).is_socket()


_log = logging.getLogger(__name__)
_STARTED = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_LAUNCH = "backfill doctor"
"""The launch that a repair reports for a release."""


@dataclass(frozen=True)
class DagsterEventLog(EventLog):
    """The event log of one Dagster instance; `location` is the code location whose server asks, else empty."""

    instance: dg.DagsterInstance
    application: Application
    location: str = ""

    def at_work(self) -> tuple[RunAtWork, ...]:
        """Runs that have started and not ended, oldest first."""
        records = self.instance.get_run_records(dg.RunsFilter(statuses=_STARTED), ascending=True)
        return tuple(self._at_work(record) for record in records)

    def known(self, launches: Collection[str]) -> frozenset[str]:
        """The launches (ids of backfills or runs) that Dagster still knows."""
        runs = self.instance.get_run_ids(dg.RunsFilter(run_ids=list(launches))) if launches else ()
        backfills = (name for name in launches if self.instance.get_backfill(name) is not None)
        return frozenset((*runs, *backfills))

    def fail(self, run: str, why: str) -> bool:
        """End a run as failed, or as canceled if that was requested; False if it has already ended or is unknown."""
        found = self.instance.get_run_by_id(run)
        if found is None or found.is_finished:
            return False
        if found.status is dg.DagsterRunStatus.CANCELING:
            # A failed run would be started again.
            self.instance.report_run_canceled(found, why)
        else:
            self.instance.report_run_failed(found, why)
        return True

    def reported(self, dataset: str) -> Mapping[dt.date, str]:
        """The release that the newest materialization of each published day names; empty if it names none."""
        key = asset_key(Layer.published, dataset)
        days = days_of(self.instance.get_materialized_partitions(key))
        said = last_metadata_value(self.instance, key, days, RELEASE_METADATA)
        return {day: str(said.get(day, "")) for day in days}

    def report(self, release: str, days: Collection[dt.date]) -> None:
        """Report some days of a release as its run would have; see `released_events`, `changed_events`."""
        manifest = self.application.ledger.release(release).manifest
        if manifest.kind is not ReleaseKind.publish:
            self._report(changed_events(self.application, manifest, sorted(days), _log, again=True), manifest, days)
            return
        together = [
            r
            for r in self.application.ledger.releases(unit=manifest.unit, states={ReleaseState.finalized})
            if (r.manifest.kind, r.manifest.created_at) == (manifest.kind, manifest.created_at)
        ]
        outcome = AlreadyReleased(
            unit=manifest.unit,
            releases={r.manifest.dataset: r.manifest.release for r in together},
            days={manifest.dataset: tuple(sorted(days))},
            versions={r.manifest.dataset: r.version for r in together if r.version is not None},
            evidence=manifest.evidence,
        )
        metadata = release_metadata(self.application, [outcome], _LAUNCH, _log)
        self._report(released_events([outcome], metadata), manifest, days)

    def note(self, dataset: str, text: str) -> None:
        """Record a repair as an observation of the published asset, which makes no other asset due."""
        key = asset_key(Layer.published, dataset)
        # As text: file names are not Markdown.
        metadata = {"repair": dg.MetadataValue.text(text)}
        self.instance.report_runless_asset_event(dg.AssetObservation(key, metadata=metadata, description="repaired"))

    def _report(self, events: Iterable[dg.AssetMaterialization], manifest: Manifest, days: Collection[dt.date]) -> None:
        with batched_events(self.instance):
            for event in events:
                self.instance.report_runless_asset_event(event)
            report_downstream(self.instance, self.application, {manifest.dataset: days})

    def _at_work(self, record: dg.RunRecord) -> RunAtWork:
        run = record.dagster_run
        attempts = self.application.ledger.attempts(run=run.run_id)
        workers = {attempt.worker: attempt.started_at.timestamp() for attempt in attempts}
        try:
            ended = ended_process(self.instance, run, workers, self.location)
        except (dg.DagsterError, AttributeError, TypeError, ValueError):
            # A bad record of one run must not hide all others.
            _log.warning("cannot tell whether the process of run %s is alive", run.run_id, exc_info=True)
            ended = None
        return RunAtWork(run.run_id, _started(record), run.tags.get(UNIT_TAG, ""), ended)


def _started(record: dg.RunRecord) -> dt.datetime:
    if record.start_time is None:
        return created_at(record)
    return dt.datetime.fromtimestamp(record.start_time, dt.UTC)
