"""Native backfills: launch, follow, cancel; and the Dagster instance that commands work with."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import requests
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES, BulkActionsFilter, BulkActionStatus
from dagster._core.execution.backfill import PartitionBackfill as DagsterBackfill
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import AUTO_RETRY_RUN_ID_TAG, PARTITION_NAME_TAG

from backfill_assets.application import Application
from backfill_assets.campaign.state import CAMPAIGN_TAG
from backfill_assets.control.catch_up import Ended
from backfill_assets.control.conductor import BackfillRequest, Backfills
from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.errors import BackfillError
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import LIVE_TAG, UnitState
from backfill_assets.orchestration.launches import BACKFILL_TAG
from backfill_assets.orchestration.names import FAILED_DAYS, asset_key, last_metadata_value

OVER = frozenset(status.value for status in BULK_ACTION_TERMINAL_STATUSES)
"""Final states of a backfill, in Dagster's words."""

_LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
    ... on UnauthorizedError { message }
    ... on PartitionKeysNotFoundError { message }
    ... on InvalidSubsetError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""


# Like `dagster-graphql`, with the variables from a file: ten thousand days do not fit on a command line.
_ASK = """
import sys
from pathlib import Path
from dagster_graphql.cli import cli
cli([*sys.argv[2:], "--variables", Path(sys.argv[1]).read_text(encoding="utf-8")], obj={})
"""


class LaunchError(BackfillError):
    """Raised when Dagster does not accept a backfill."""


def params_of(request: BackfillRequest) -> dict[str, Any]:
    """A backfill as GraphQL's `LaunchBackfillParams`."""
    return {
        "assetSelection": [{"path": [name, layer]} for name, layers in request.layers.items() for layer in layers],
        "partitionNames": [day.isoformat() for day in request.days],
        "title": request.title or None,
        "description": request.description or None,
        "tags": [{"key": key, "value": value} for key, value in request.tags.items()],
        "runConfigData": dict(request.run_config),
        "fromFailure": False,
    }


def launch_backfill(request: BackfillRequest, webserver: str | None = None) -> str:
    """Launch a backfill and return its Dagster id; the Dagster daemon runs it.

    Without a webserver's URL the instance of DAGSTER_HOME and the workspace of the working folder are used.

    Raises:
        LaunchError: Dagster refused it or did not answer; the message is Dagster's.
    """
    answer = graphql(_LAUNCH, {"params": params_of(request)}, webserver)["launchPartitionBackfill"]
    if answer["__typename"] != "LaunchBackfillSuccess":
        reason = (
            answer.get("message") or "; ".join(e["message"] for e in answer.get("errors", ())) or answer["__typename"]
        )
        raise LaunchError(f"Dagster did not accept the backfill of {next(iter(request.layers))}: {reason}")
    return str(answer["backfillId"])


def graphql(query: str, variables: Mapping[str, Any], webserver: str | None = None) -> dict[str, Any]:
    """Send a GraphQL query to a webserver or to the instance itself, and return the data of its answer.

    Raises:
        LaunchError: the query could not be answered.
    """
    answer = _ask_webserver(webserver, query, variables) if webserver else _ask_instance(query, variables)
    if answer.get("errors"):
        raise LaunchError(f"Dagster could not answer: {answer['errors'][0].get('message', answer['errors'][0])}")
    data = answer.get("data")
    if not isinstance(data, dict):
        raise LaunchError("the answer is not from a Dagster webserver; check --webserver")
    return data


def _ask_webserver(webserver: str, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    url = webserver.rstrip("/") + "/graphql"
    try:
        response = requests.post(url, json={"query": query, "variables": variables}, timeout=60)
        answer = response.json()
    except (requests.RequestException, ValueError) as error:
        # The URL may contain a user and a password, and the library's error quotes it.
        secret = "@" in webserver
        where, why = (
            ("the given URL (not shown: it may contain a password)", type(error).__name__)
            if secret
            else (webserver, error)
        )
        raise LaunchError(f"no Dagster webserver answers at {where} ({why}); start it with: make dev") from None
    return answer if isinstance(answer, dict) else {}


def _ask_instance(query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        document, given, out = (Path(folder, name) for name in ("query.graphql", "variables.json", "answer.json"))
        document.write_text(query, encoding="utf-8")
        given.write_text(json.dumps(variables), encoding="utf-8")
        command = [
            sys.executable, "-P", "-c", _ASK, str(given), "--file", str(document), "--output", str(out), *_workspace()
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # our own arguments
        if done.returncode or not out.exists():
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
            raise LaunchError(
                f"Dagster did not answer ({last[0]}); run this in the project's folder, with DAGSTER_HOME set"
            )
        answer: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return answer


def _workspace() -> list[str]:
    # Dagster finds a workspace in the working folder by itself; elsewhere, use ours.
    if Path("workspace.yaml").exists() or Path("pyproject.toml").exists():
        return []
    return ["--module-name", "backfill_assets.definitions"]


WEBSERVER = "BACKFILL_ASSETS_WEBSERVER"
"""Variable with the URL of a webserver to launch through; without it, the instance is used, which takes longer."""
_ACTIVE = [status for status in BulkActionStatus if status not in BULK_ACTION_TERMINAL_STATUSES]


def live_runs(instance: dg.DagsterInstance) -> tuple[str, ...]:
    """Ids of the live runs that are running or queued, oldest first; found by their tag."""
    wanted = dg.RunsFilter(tags={LIVE_TAG: "true"}, statuses=list(NOT_FINISHED_STATUSES))
    return tuple(reversed(instance.get_run_ids(wanted)))


def live_days(instance: dg.DagsterInstance) -> frozenset[dt.date]:
    """The days of the live runs that are running or queued, in any dataset."""
    runs = instance.get_runs(dg.RunsFilter(tags={LIVE_TAG: "true"}, statuses=NOT_FINISHED_STATUSES))
    return frozenset(dt.date.fromisoformat(key) for run in runs if (key := run.tags.get(PARTITION_NAME_TAG)))


@dataclass(frozen=True)
class DagsterBackfills(Backfills):
    """Native backfills of a campaign, or, with the tag of units, of a unit: found by the tag and the name."""

    instance: dg.DagsterInstance
    webserver: str = ""
    tag: str = CAMPAIGN_TAG

    def launch(self, request: BackfillRequest) -> str:
        """Launch a backfill through GraphQL and return its Dagster id.

        Raises:
            LaunchError: Dagster refused it or did not answer.
        """
        return launch_backfill(request, self.webserver or None)

    def active(self, campaign: str) -> tuple[str, ...]:
        """Ids of the campaign's backfills that are not over."""
        return tuple(backfill.backfill_id for backfill in self._active(campaign))

    def ended(self, unit: str, since: dt.datetime) -> tuple[Ended, ...]:
        """The backfills of a unit (or a campaign) that were launched after `since` and are over, newest first."""
        # The clocks of Dagster and of the ledger may differ.
        filters = BulkActionsFilter(statuses=list(BULK_ACTION_TERMINAL_STATUSES), created_after=since - ONE_DAY)
        return tuple(
            Ended(
                dt.datetime.fromtimestamp(one.backfill_end_timestamp or one.backfill_timestamp, dt.UTC),
                one.status is BulkActionStatus.CANCELED,
            )
            for one in self._tagged(unit, filters)
        )

    def cancel(self, campaign: str) -> int:
        """Have the daemon cancel what is left of the campaign's backfills, queued runs included."""
        left = [one for one in self._active(campaign) if one.status is not BulkActionStatus.CANCELING]
        for backfill in left:
            self.instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELING))  # type: ignore[no-untyped-call]
        return len(left)

    def failure(self, campaign: str, but: Collection[str] = ()) -> str:
        """Why the newest backfill failed; empty unless it is over and something failed, runs in `but` not counted."""
        filters = BulkActionsFilter(tags={self.tag: campaign})
        newest = next(iter(self.instance.get_backfills(filters=filters)), None)
        return failure_of(self.instance, newest, but) if newest is not None else ""

    def _active(self, name: str) -> Sequence[DagsterBackfill]:
        return self._tagged(name, BulkActionsFilter(statuses=_ACTIVE))

    def _tagged(self, name: str, filters: BulkActionsFilter) -> Sequence[DagsterBackfill]:
        # Not by the filter of tags: in a database that was not migrated it finds a backfill only once it has runs.
        return [one for one in self.instance.get_backfills(filters=filters) if one.tags.get(self.tag) == name]


def _runs_by_state(instance: dg.DagsterInstance, backfill: DagsterBackfill) -> Counter[str]:
    return Counter(
        "WAITING_FOR_RETRY" if run.is_complete_and_waiting_to_retry else run.status.value
        for run in instance.get_runs(dg.RunsFilter(tags={BACKFILL_TAG: backfill.backfill_id}))
        if not _retried(run)
    )


def under_way(instance: dg.DagsterInstance) -> list[dict[str, Any]]:
    """The backfills that are not over: id, what they build, and their runs by state."""
    return [
        {
            "launch": one.backfill_id,
            "what": one.title or ", ".join(sorted({key.path[0] for key in one.asset_selection or ()})),
            "runs": _runs_by_state(instance, one),
        }
        for one in instance.get_backfills(filters=BulkActionsFilter(statuses=_ACTIVE))
    ]


@dataclass(frozen=True)
class Launched:
    """A native backfill that was launched: its id in Dagster, its days, its only layer, and the unit that its tag names."""

    backfill: str
    targets: Mapping[str, Collection[dt.date]]
    only: Layer | None = None
    unit: str = ""


@dataclass(frozen=True)
class LaunchState:
    """How far a native backfill is: its status, its runs by state, how many days are checked, and the units it works in.

    Of a run that was retried only the retry counts. `failure` says why it ended without success; it is empty until then.
    """

    status: str
    runs: Mapping[str, int]
    checked: int
    units: frozenset[str]
    failure: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.status in OVER


def launch_state(
    application: Application, instance: dg.DagsterInstance, launched: Launched, before: Collection[str] = ()
) -> LaunchState:
    """How far a backfill is; `before` are the units that an earlier look found, which may be released now.

    Raises:
        LaunchError: the instance does not have the backfill.
    """
    backfill = instance.get_backfill(launched.backfill)
    if backfill is None:
        raise LaunchError(
            f"the Dagster instance in DAGSTER_HOME does not have backfill {launched.backfill}, so this command cannot "
            "follow it. It runs where the webserver belongs to: follow it there, or set DAGSTER_HOME to that instance"
        )
    runs = _runs_by_state(instance, backfill)
    units = _units_of(application, launched, before, began=bool(runs))
    days = {(name, day) for name, found in launched.targets.items() for day in found}
    evidence = (application.ledger.evidence(unit) for unit in units)
    checked = {key for by_day in evidence for key, found in by_day.items() if found.verdicts} & days
    # Days that were never built, as of a dataset downstream of the crash, have no retry that could have succeeded.
    status, failure = ended_as(instance, backfill) if days == checked else backfill.status.value, ""
    if days == checked and runs.keys() == {"SUCCESS"} and _are_released(application, launched, units):
        # The daemon looks every 30 s whether a backfill is over.
        status = BulkActionStatus.COMPLETED_SUCCESS.value
    if status in OVER and status != BulkActionStatus.COMPLETED_SUCCESS.value:
        ended = f"backfill {launched.backfill} ended as {status.lower().replace('_', ' ')}; see it in Dagster"
        failure = failure_of(instance, backfill) or ended
    return LaunchState(status, runs, len(checked), units, failure)


def _are_released(application: Application, launched: Launched, units: Collection[str]) -> bool:
    """Whether all these units are published, and this launch has opened them, or names the one."""
    own = {launched.unit, *(unit.id for unit in application.ledger.units(launch=launched.backfill))}
    return own.issuperset(units) and {application.ledger.unit(unit).state for unit in units} == {UnitState.published}


def ended_as(instance: dg.DagsterInstance, backfill: DagsterBackfill) -> str:
    """The status of a backfill in Dagster's words; a success if all of its failed runs were retried with success.

    Dagster looks for what is materialized, then for runs: if a retry ends in between, it calls the backfill failed.
    """
    if backfill.status is BulkActionStatus.COMPLETED_FAILED:
        runs = instance.get_runs(dg.RunsFilter(tags={BACKFILL_TAG: backfill.backfill_id}))
        last = [run for run in runs if not _retried(run)]
        if len(last) < len(runs) and all(run.status is dg.DagsterRunStatus.SUCCESS for run in last):
            return BulkActionStatus.COMPLETED_SUCCESS.value
    return backfill.status.value


def _units_of(application: Application, launched: Launched, before: Collection[str], *, began: bool) -> frozenset[str]:
    """The units that a launch works in: in each release group the one that it has opened, otherwise the one it joins.

    A launch that builds joins the unit that holds all of its days; one of published alone releases every unit of them.
    """
    if launched.unit:
        return frozenset({launched.unit})
    if launched.only in {Layer.raw, Layer.staging}:
        return frozenset()
    ledger = application.ledger
    opened = ledger.units(launch=launched.backfill)
    known = [ledger.unit(unit) for unit in before]
    found = {unit.id for unit in opened}
    for group in application.catalog.groups:
        targets = {name: launched.targets[name] for name in group if name in launched.targets}
        if not began or any(unit.targets.keys() & targets.keys() for unit in opened):
            continue
        claims = [ledger.claims(name, days) for name, days in targets.items()]
        joined = {unit for by_day in claims for unit in by_day.values()}
        complete = all(len(by_day) == len(days) for by_day, days in zip(claims, targets.values(), strict=True))
        if not complete or (len(joined) > 1 and launched.only is not Layer.published):
            joined = set()
        joined = {unit for unit in joined if not ledger.unit(unit).campaign}
        found |= joined or {unit.id for unit in known if unit.targets.keys() & targets.keys()}
    return frozenset(found)


def built_in(instance: dg.DagsterInstance, launched: Launched) -> frozenset[str]:
    """The units that the newest shadows of a launch's days belong to."""
    found = (
        last_metadata_value(instance, asset_key(Layer.shadow, name), sorted(days), "unit")
        for name, days in launched.targets.items()
    )
    return frozenset(str(unit) for by_day in found for unit in by_day.values())


def failure_of(instance: dg.DagsterInstance, backfill: DagsterBackfill, but: Collection[str] = ()) -> str:
    """Why a backfill failed; empty unless it is over and something failed, runs in `but` not counted."""
    if backfill.status not in BULK_ACTION_TERMINAL_STATUSES:
        return ""
    if backfill.error is not None:
        return f"backfill {backfill.backfill_id}: {backfill.error.message.strip()}"
    wanted = dg.RunsFilter(tags={BACKFILL_TAG: backfill.backfill_id}, statuses=[dg.DagsterRunStatus.FAILURE])
    failed = [run for run in instance.get_runs(wanted) if run.run_id not in but and not _retried(run)]
    return f"run {failed[0].run_id[:8]}: {_why(instance, failed[0].run_id)}" if failed else ""


def _why(instance: dg.DagsterInstance, run_id: str) -> str:
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    for record in instance.get_records_for_run(run_id, of_type=kinds, limit=1).records:
        event = record.event_log_entry.dagster_event
        data = event.event_specific_data if event is not None else None
        said = getattr(data, "user_failure_data", None)
        if said is not None and said.description:
            # Failed checks are listed by whoever shows the unit, together with those of other runs.
            return said.description.splitlines()[0] if FAILED_DAYS in said.metadata else str(said.description)
        error = getattr(data, "error", None)
        while error is not None and error.cause is not None:
            error = error.cause
        if error is not None:
            return str(error.message).strip()
        if event is not None and event.message:
            return event.message
    return "it failed; see its log"


def _retried(run: dg.DagsterRun) -> bool:
    # Dagster has launched the run of a crashed worker again by itself: only how that one ended counts.
    return AUTO_RETRY_RUN_ID_TAG in run.tags
