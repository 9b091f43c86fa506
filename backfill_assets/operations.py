"""The operations on campaigns and releases, each defined once: help text, parameters, action and report.

An operation is a function: its docstring is its help text, and `PARAMETERS` describes its parameters. The console takes
parameters before the `*` by position and the rest as options; a Dagster job takes all of them as config.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final

from backfill_assets.application import Application, report_unit
from backfill_assets.campaign.approval import signature
from backfill_assets.campaign.load import uncompared
from backfill_assets.campaign.plan import SHOWN_DIGITS, Plan, explain
from backfill_assets.campaign.state import Campaign
from backfill_assets.control.commands import Control
from backfill_assets.core.days import checked_range, days_argument, format_days, parse_days
from backfill_assets.core.errors import ArgumentError, RollbackError
from backfill_assets.core.text import format_duration, number_of
from backfill_assets.core.unit import ReleaseRecord, Unit, shown_days
from backfill_assets.evidence.readiness import Blocker, DayBlocker
from backfill_assets.evidence.stale import StaleCause
from backfill_assets.pipeline.acceptance import expected_change_for
from backfill_assets.pipeline.purge import Purge
from backfill_assets.release.adopt import Adopted
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets.release.rollback import RolledBack

_TEN_YEARS: Final = 10 * 365 * 24 * 60
"""In minutes."""


@dataclass(frozen=True)
class Shell:
    """What the console or a job hands to an operation.

    Attributes:
        application: the use cases, with the current models.
        control: opens the control of campaigns through Dagster.
        delete_run_logs: deletes Dagster's logs of runs that ended before a moment, or only counts them (True); returns how many.
        report: reports a release, a rollback or a baseline to Dagster.
        warn: shows a warning that does not stop the operation.
    """

    application: Application
    control: Callable[[], Control]
    delete_run_logs: Callable[[datetime, bool], int]
    report: Callable[[Released | AlreadyReleased | RolledBack | Adopted], object]
    warn: Callable[[str], object]


@dataclass(frozen=True)
class Result:
    """The outcome of an operation: the lines to show (some may be empty), its value, and whether a user must check it."""

    lines: Iterable[str]
    value: Any = None
    failed: bool = False


PARAMETERS: Final[Mapping[str, str]] = {
    "by": "The name or role, from approval.by of the specification, that you approve as.",
    "campaign": "The campaign: the backfill_id of its specification.",
    "canary_only": "Stop after the canaries have passed.",
    "dry_run": "Show what would be done, and change nothing.",
    "evidence": "The hash of the evidence, as `backfill status` shows it; if the evidence has another hash now, this fails.",
    "file": "The specification, a YAML file under backfills/.",
    "first": "First day to put back; by default, the first of the release.",
    "grace": "Keep files that are younger than this many minutes.",
    "include_rewritten": "Also put back days that were rewritten without a release; their newer rows are removed.",
    "last": "Last day to put back; by default, the last of the release.",
    "max_concurrency": "Batches that run at the same time; 0 leaves it unchanged.",
    "outside_window": "Publish a campaign outside its publish window, for this reason.",
    "partitions": "The days, such as 2013-03-01,2013-03-05 or 2013-03-01..2013-03-03.",
    "partitions_per_batch": "Days per batch from now on; 0 leaves it unchanged.",
    "reason": "The reason; kept in the journal and the history, and shown with a hold.",
    "release": "The release, as `backfill releases` lists it.",
    "target": "A campaign, a unit or a dataset.",
    "unit": "The unit, as `backfill status` lists it.",
}
"""The description of each parameter, the same in all operations."""


def plan(shell: Shell, file: Path) -> Result:
    """Freeze the plan of a specification: batches, canaries, estimate, warnings; nothing is built yet."""
    settings = shell.application.settings
    campaign, frozen = shell.application.planner.freeze(file, settings.computes, settings.state)
    made = campaign.plan
    said = (
        explain(made),
        f"plan {made.fingerprint[:SHOWN_DIGITS]} is frozen in {frozen}",
        f"next: backfill launch {campaign.id}" + (" --canary-only" if made.canaries else ""),
    )
    return Result(said, {"fingerprint": made.fingerprint, "plan": made, "file": str(frozen)})


def launch(shell: Shell, campaign: str, *, canary_only: bool = False) -> Result:
    """Announce a planned campaign, claim its days, and launch it as native backfills: canaries first, then the rest."""
    moved = moved_since(shell.application, shell.application.ledger.campaign(campaign).plan)
    launched = shell.control().launch(campaign, canary_only=canary_only)
    warn_uncompared(shell, launched)
    targets = "; ".join(f"{name} {format_days(days, most=3)}" for name, days in launched.plan.targets.items())
    claimed = f"campaign {campaign} is launched; unit {launched.unit} claims {targets}"
    return Result((claimed, moved, f"the Dagster daemon runs it; see: backfill status {campaign}"))


def moved_since(application: Application, planned: Plan) -> str:
    """A sentence on the days whose inputs have changed since they were planned; empty if there are none."""
    days = application.planner.moved(planned)
    return f"inputs changed since the plan; built from the current inputs: {shown_days(days)}" if days else ""


def pause(shell: Shell, campaign: str, *, reason: str) -> Result:
    """Start no further batch; running batches finish, passed days stay, and no run slot is held."""
    shell.control().pause(campaign, reason)
    return Result([f"campaign {campaign} is paused; go on with: backfill resume {campaign}"])


def resume(shell: Shell, campaign: str, *, reason: str = "") -> Result:
    """Continue with what is missing, failed or stale, and only that."""
    shell.control().resume(campaign, reason)
    return Result([f"campaign {campaign} goes on with what is missing, failed or stale"])


def stop(shell: Shell, campaign: str, *, reason: str) -> Result:
    """Stop a campaign because something has to be fixed; passed days stay."""
    shell.control().stop(campaign, reason)
    return Result([f"campaign {campaign} is stopped; fix the cause, then: backfill resume {campaign}"])


def set_knobs(
    shell: Shell, campaign: str, *, max_concurrency: int = 0, partitions_per_batch: int = 0, reason: str = ""
) -> Result:
    """Change the knobs of a campaign; they apply to batches that start from now on."""
    asked = {"max_concurrency": max_concurrency, "partitions_per_batch": partitions_per_batch}
    given = {name: value for name, value in asked.items() if value}
    knobs = shell.control().set(campaign, reason, **given).knobs
    shown = f"max_concurrency={knobs.max_concurrency}, partitions_per_batch={knobs.partitions_per_batch}"
    return Result([f"campaign {campaign}: {shown}"])


def discard(shell: Shell, campaign: str, *, reason: str = "") -> Result:
    """Give up a campaign: its days are free again."""
    return discarded(shell.control().discard(campaign, reason))


def discarded(unit: Unit) -> Result:
    """The result for a unit that was given up."""
    return Result([f"discarded {unit.id}; free again: {shown_days(unit.days)}"])


def approve(shell: Shell, campaign: str, *, evidence: str, by: str = "", reason: str = "") -> Result:
    """Approve exactly the evidence that you have seen; days recomputed later need an approval of their own."""
    application = shell.application
    given = application.approving.approve(campaign, evidence, by=by, reason=reason)
    who = signature(given)
    said = f"{who} approves {shown_days(given.days)} of campaign {campaign}, evidence {given.evidence[:16]}"
    written = _report_written(shell, application.ledger.campaign(campaign).unit)
    return Result((said, *written, f"next: backfill publish {campaign}"))


def sign_off(shell: Shell, campaign: str, *, reason: str = "") -> Result:
    """Close a published campaign: you have checked what readers see, and it is right."""
    shell.application.sign_off.sign_off(campaign, reason)
    by = shell.application.identity.name()
    return Result([f"campaign {campaign} is signed off by {by}; its files stay until the window ends"])


def cleanup(shell: Shell, campaign: str, *, reason: str = "", dry_run: bool = False) -> Result:
    """Delete files that only a rollback of the campaign needs, after its rollback window has ended and it is signed off."""
    done = shell.application.sign_off.cleanup(campaign, reason, dry_run=dry_run)
    window = f"the rollback window ends at {done.window_until:%Y-%m-%d %H:%M} UTC" if done.window_until else ""
    refusal = f"would be refused: {done.refusal}" if done.refusal else ""
    problem = any(swept.problem for swept in done.swept)
    return Result((window, refusal, done.listed(dry_run=dry_run)), done, failed=problem)


def publish_campaign(
    shell: Shell, campaign: str, *, evidence: str = "", reason: str = "", outside_window: str = ""
) -> Result:
    """Release the whole range in one commit per dataset."""
    warn_uncompared(shell, shell.application.ledger.campaign(campaign))
    publication = shell.application.campaign_release.publish(
        campaign, reason=reason, outside_window=outside_window, evidence_hash=evidence
    )
    return _released(shell, publication.outcome, str(publication))


def publish_unit(shell: Shell, unit: str, *, evidence: str | None, reason: str = "") -> Result:
    """Release a complete unit after its evidence has been approved; refused without approval."""
    outcome = shell.application.publisher.release(unit, evidence_hash=evidence, reason=reason)
    return _released(shell, outcome, f"unit {outcome.unit} is released as {outcome.release}")


def _released(shell: Shell, outcome: Released | AlreadyReleased, said: str) -> Result:
    shell.report(outcome)
    lines = [said]
    for name, days in outcome.days.items():
        lines += published_lines(outcome.releases[name], name, days)
    return Result(chain(lines, _left_behind(shell.application, outcome.days)))


def published_lines(release: str, dataset: str, days: Iterable[date]) -> tuple[str, str]:
    """What a release has published, and how to undo it."""
    return (
        f"{release}: {dataset} {format_days(days)} is published",
        f"undo it with: backfill rollback {release} --reason '…'",
    )


_OF_ROWS: Final = frozenset({"change_rows", "change_columns"})
"""Checks that a declared sum frees from judging its rows."""


def acceptance_lines(application: Application, unit: Unit, blockers: Iterable[DayBlocker]) -> tuple[str, ...]:
    """How to accept what the failed checks of a unit found; no line if it should not be, or needs a person's own words.

    None while days are not built, or were built from something else than what is there now.
    """
    if any(blocker.reason is not Blocker.failed for blocker in blockers):
        return ()
    evidence, datasets = application.ledger.evidence(unit.id).values(), application.catalog.definitions
    change = expected_change_for(unit, evidence, datasets)
    if not change:
        return ()
    failed = {verdict.check for one in evidence for verdict in one.verdicts if verdict.refuses}
    rows = " It also accepts how single rows changed, which nothing judges then." if failed & _OF_ROWS else ""
    command = f"    backfill resume {unit.id} --expected-change '{change}'"
    return (
        f"Only if this change is intended: resume, and declare what was found as the expected change.{rows}",
        command,
    )


def rollback(
    shell: Shell,
    release: str,
    *,
    reason: str,
    first: date | None = None,
    last: date | None = None,
    include_rewritten: bool = False,
    dry_run: bool = False,
) -> Result:
    """Put the days of a release back to what they were before; days written since stay. Roll back later releases first."""
    rollbacks = shell.application.rollback
    days = _days(shell.application.ledger.release(release), first, last)
    said, consent = list[str](), frozenset[date]()
    try:
        proposal = rollbacks.plan(release, days=days)
    except RollbackError:
        if dry_run or include_rewritten:
            raise
        # Execute anyway: it first finishes a release that crashed half-way, or raises the refusal itself.
        proposal = None
    if proposal is not None:
        consent = frozenset(proposal.rewritten) if include_rewritten else consent
        if proposal.rewritten:
            how = "put back too" if include_rewritten else "left alone (without --include-rewritten)"
            said.append(f"rewritten since, {how}: {format_days(proposal.rewritten)}")
        said += [f"left alone: {covered}" for covered in proposal.covered]
        if dry_run:
            if swaps := proposal.chosen(consent):
                said.append(f"would put back: {format_days(swap.day for swap in swaps)}")
            refusals = rollbacks.refusals(proposal, consent)
            return Result((*said, *(f"would be refused: {one}" for one in refusals)), failed=bool(refusals))
    done = rollbacks.execute(release, reason, days=days, consent_rewritten=consent)
    shell.report(done)
    lift = f"backfill hold lift {done.dataset} {days_argument(done.days)}"
    said += [
        f"{done.release}: {done.dataset} {format_days(done.days)} is back to what it was before {release}",
        f"live runs skip these days until they are published again, or until you run: {lift}",
    ]
    return Result(chain(said, _left_behind(shell.application, (done.dataset,))))


def _days(record: ReleaseRecord, first: date | None, last: date | None) -> frozenset[date] | None:
    if first is None and last is None:
        return None
    own = sorted(swap.day for swap in record.manifest.days)
    edges = first or own[0], last or own[-1]
    checked_range(*edges)
    return frozenset(day for day in own if edges[0] <= day <= edges[1])


def _left_behind(application: Application, changed: Iterable[str]) -> Iterator[str]:
    """Say how to refresh the days that were built from the changed datasets; computed after the other lines are shown."""
    for name in application.catalog.downstream_of(changed):
        stale = application.staleness.of(name, {StaleCause.upstream})
        yield from (f"{name} could not be compared: {problem}" for problem in stale.problems)
        if stale.days:
            yield (
                f"{name} {format_days(stale.days)} was built from data that has changed now; bring it up to date with: "
                f"backfill refresh {name}, with --expected-change if its figures must change"
            )


def watch_release(shell: Shell, release: str) -> Result:
    """Run the queries of a dataset's consumers before, after and now; fails if a figure has drifted."""
    seen = shell.application.watch_release.watch(release)
    return Result([str(seen)], seen, failed=bool(seen.drifted))


def prove(shell: Shell, target: str, *, partitions: str = "") -> Result:
    """Compute days again in several ways and compare the rows; fails if they differ. By default, three days are chosen."""
    days = parse_days(partitions, "partitions") if partitions else ()
    certificates = shell.application.prover.prove(target, days)
    said = [f"certificate {one}" for one in certificates]
    for unit in dict.fromkeys(one.unit for one in certificates if one.unit):
        said += _report_written(shell, unit)
    return Result(said, certificates, failed=not all(one.passed for one in certificates))


def sweep(shell: Shell, *, grace: int = 60, dry_run: bool = False) -> Result:
    """Remove shadow files that no reader, no release in its window and no open unit needs, and old files and logs."""
    if not 0 <= grace <= _TEN_YEARS:
        raise ArgumentError(f"grace: {grace} minutes are outside 0..{_TEN_YEARS}; give a number between them")
    sweeper = shell.application.sweep(timedelta(minutes=grace))
    swept = sweeper.plan() if dry_run else sweeper.execute()
    staging = {} if dry_run else shell.application.vacuum_staging()
    what = "would go" if dry_run else "are gone"
    lines = [one.listed(what) for one in swept]
    lines += [f"{name}: {number_of(count, 'old staging file')} deleted" for name, count in staging.items() if count]
    raw, problems = Purge(shell.application.pipeline).sweep_all(dry_run=dry_run)
    lines += [f"{name}: {number_of(count, 'file')} of raw with purged deliveries {what}" for name, count in raw.items()]
    if (keep := shell.application.settings.keep_run_logs) is not None:
        try:
            if runs := shell.delete_run_logs(shell.application.clock.now() - keep, dry_run):
                lines.append(
                    f"logs of {number_of(runs, 'run')} that ended more than {format_duration(keep)} ago {what}"
                )
        except Exception as error:  # noqa: BLE001 - Dagster's storage may be any; everything else is swept
            problems.append(f"Dagster's old logs are left alone: {error}")
    return Result([*lines, *problems], swept, failed=bool(problems) or any(one.problem for one in swept))


def warn_uncompared(shell: Shell, campaign: Campaign) -> None:
    """Warn if a change of the specification would go unnoticed."""
    if attention := uncompared(campaign):
        shell.warn(attention)


def _report_written(shell: Shell, unit: str) -> tuple[str, str]:
    """Write the report of a unit after a step that changed its content; returns its sentence and its address or path."""
    unit_report = report_unit(shell.application, shell.application.ledger.unit(unit), shell.warn)
    return unit_report.sentence, unit_report.address or unit_report.page


@dataclass(frozen=True)
class Operation:
    """An operation and its names in the console and in Dagster.

    Attributes:
        job: the name of the Dagster job.
        act: the function that does it.
        command: the console command; empty where the console defines its own command, which takes or shows more.
        conducts: whether it takes a campaign's next step, through a webserver if the console is given one.
    """

    job: str
    act: Callable[..., Result]
    command: str = ""
    conducts: bool = False

    @property
    def text(self) -> str:
        """The help text."""
        return inspect.getdoc(self.act) or ""

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters by name, without the shell."""
        _, *own = inspect.signature(self.act, eval_str=True).parameters.values()
        return {parameter.name: parameter for parameter in own}


OPERATIONS: Final = (
    Operation("campaign_plan", plan),
    Operation("campaign_launch", launch, conducts=True),
    Operation("campaign_pause", pause, command="pause", conducts=True),
    Operation("campaign_resume", resume, conducts=True),
    Operation("campaign_stop", stop, command="stop", conducts=True),
    Operation("campaign_set", set_knobs),
    Operation("campaign_discard", discard),
    Operation("campaign_approve", approve, command="approve"),
    Operation("campaign_publish", publish_campaign),
    Operation("unit_publish", publish_unit),
    Operation("release_rollback", rollback, command="rollback"),
    Operation("release_watch", watch_release, command="watch-release"),
    Operation("prove", prove, command="prove"),
    Operation("campaign_sign_off", sign_off, command="sign-off"),
    Operation("campaign_cleanup", cleanup, command="cleanup"),
    Operation("sweep", sweep, command="sweep"),
)
