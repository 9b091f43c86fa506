"""The use cases of campaigns, wired to one Dagster instance."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES, BulkActionsFilter, BulkActionStatus
from dagster._core.execution.backfill import PartitionBackfill as DagsterBackfill
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import AUTO_RETRY_RUN_ID_TAG

from backfill_assets.application import Application
from backfill_assets.campaign.state import CAMPAIGN_TAG
from backfill_assets.control.commands import Control
from backfill_assets.control.conductor import BackfillRequest, Backfills, Conductor
from backfill_assets.control.gatekeeper import Gatekeeper, LiveRuns
from backfill_assets.control.standing import Standings
from backfill_assets.core.unit import LIVE_TAG
from backfill_assets.orchestration.backfills import Backfill, launch_backfill
from backfill_assets.orchestration.launches import BACKFILL_TAG
from backfill_assets.orchestration.names import keys_of

WEBSERVER = "BACKFILL_ASSETS_WEBSERVER"
"""Variable with the URL of a webserver to launch through; without it the instance itself is asked, which takes longer."""
_ACTIVE = [status for status in BulkActionStatus if status not in BULK_ACTION_TERMINAL_STATUSES]


@dataclass(frozen=True)
class Desk:
    """What operators, the conductor's sensor and the runs of a campaign work with."""

    control: Control
    conductor: Conductor
    gatekeeper: Gatekeeper
    standings: Standings


def desk_of(application: Application, instance: dg.DagsterInstance, webserver: str = "") -> Desk:
    """The use cases for an application and an instance; a `webserver`, if named, launches the backfills."""
    gatekeeper = Gatekeeper(
        application.ledger,
        application.catalog,
        application.clock,
        DagsterLiveRuns(instance),
        application.workload,
    )
    backfills = DagsterBackfills(instance, webserver or os.environ.get(WEBSERVER, ""))
    tell = application.notifier.tell
    conductor = Conductor(application.ledger, application.clock, application.publisher, gatekeeper, backfills, tell)
    control = Control(
        application.ledger, application.catalog, application.clock, application.ids, application.identity,
        conductor, application.planner.plan, tell,
    )  # fmt: skip
    standings = Standings(application.ledger, application.publisher, gatekeeper, application.settings.roles or None)
    return Desk(control, conductor, gatekeeper, standings)


@dataclass(frozen=True)
class DagsterLiveRuns(LiveRuns):
    """Live runs by their tag."""

    instance: dg.DagsterInstance

    def active(self) -> tuple[str, ...]:
        """Ids of the live runs that are at work or in the queue, oldest first."""
        wanted = dg.RunsFilter(tags={LIVE_TAG: "true"}, statuses=list(NOT_FINISHED_STATUSES))
        return tuple(reversed(self.instance.get_run_ids(wanted)))


@dataclass(frozen=True)
class DagsterBackfills(Backfills):
    """Native backfills of a campaign, found by its tag."""

    instance: dg.DagsterInstance
    webserver: str = ""

    def launch(self, request: BackfillRequest) -> str:
        """Launch a backfill through GraphQL; its Dagster id.

        Raises:
            LaunchError: Dagster refused it or could not be asked.
        """
        first, *others = request.layers
        backfill = Backfill(
            dataset=first,
            partitions=tuple(keys_of(request.days)),
            layers=request.layers[first],
            others={name: request.layers[name] for name in others},
            title=request.title,
            description=request.description,
            tags=request.tags,
        )
        return launch_backfill(backfill, self.webserver or None)

    def active(self, campaign: str) -> tuple[str, ...]:
        """Ids of the campaign's backfills that are not over."""
        return tuple(backfill.backfill_id for backfill in self._all(campaign, _ACTIVE))

    def cancel(self, campaign: str) -> int:
        """Have the daemon cancel what is left of the campaign's backfills, queued runs included."""
        left = [b for b in self._all(campaign, _ACTIVE) if b.status is not BulkActionStatus.CANCELING]
        for backfill in left:
            self.instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELING))  # type: ignore[no-untyped-call]
        return len(left)

    def failure(self, campaign: str, but: Collection[str] = ()) -> str:
        """What the newest backfill failed of; empty unless it is over and something of it failed, except runs in `but`."""
        newest = next(iter(self._all(campaign, None)), None)
        if newest is None or newest.status not in BULK_ACTION_TERMINAL_STATUSES:
            return ""
        if newest.error is not None:
            return f"backfill {newest.backfill_id}: {newest.error.message.strip()}"
        wanted = dg.RunsFilter(tags={BACKFILL_TAG: newest.backfill_id}, statuses=[dg.DagsterRunStatus.FAILURE])
        failed = [run for run in self.instance.get_runs(wanted) if run.run_id not in but and not _retried(run)]
        return f"run {failed[0].run_id[:8]}: {self._why(failed[0].run_id)}" if failed else ""

    def _why(self, run_id: str) -> str:
        kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
        for record in self.instance.get_records_for_run(run_id, of_type=kinds, limit=1).records:
            event = record.event_log_entry.dagster_event
            data = event.event_specific_data if event is not None else None
            error = getattr(data, "error", None)
            while error is not None and error.cause is not None:
                error = error.cause
            if error is not None:
                return str(error.message).strip()
            if event is not None and event.message:
                return event.message
        return "it failed; see its log"

    def _all(self, campaign: str, statuses: Sequence[BulkActionStatus] | None) -> Sequence[DagsterBackfill]:
        filters = BulkActionsFilter(statuses=statuses, tags={CAMPAIGN_TAG: campaign})
        return self.instance.get_backfills(filters=filters)


def _retried(run: dg.DagsterRun) -> bool:
    # A crashed worker's run that Dagster has launched again by itself: what counts is how that one ended.
    return AUTO_RETRY_RUN_ID_TAG in run.tags
