"""What people do to campaigns and releases, each once: its text, its parameters, what it does, and what is said of it.

An operation is a function: its docstring is its text, and `PARAMETERS` describes what it takes. The console takes what stands
before the `*` by its place and the rest as options, a job of Dagster takes all of it as config.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any, Final

from backfill_assets.application import Application, report_unit
from backfill_assets.campaign.load import uncompared
from backfill_assets.campaign.plan import SHOWN_DIGITS, Plan, explain
from backfill_assets.campaign.state import Campaign
from backfill_assets.control.commands import Control
from backfill_assets.control.planner import FrozenPlans
from backfill_assets.core.days import checked_range, format_days, parse_days
from backfill_assets.core.errors import RollbackError
from backfill_assets.core.unit import ReleaseRecord, Unit, shown_days
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets.release.rollback import RolledBack


@dataclass(frozen=True)
class Shell:
    """What the console or a job hands to an operation.

    Attributes:
        application: the use cases, with models as they are now.
        control: opens what steers campaigns through Dagster.
        report: tells Dagster of a release or a rollback.
        warn: shows what does not keep the operation from being done.
    """

    application: Application
    control: Callable[[], Control]
    report: Callable[[Released | AlreadyReleased | RolledBack], object]
    warn: Callable[[str], object]


@dataclass(frozen=True)
class Result:
    """What is said of an operation, some of it empty, and what came of it; `failed` if somebody has to look at it."""

    said: Iterable[str]
    value: Any = None
    failed: bool = False


PARAMETERS: Final[Mapping[str, str]] = {
    "by": "The name of the specification's list in which you approve.",
    "campaign": "The campaign: the backfill_id of its specification.",
    "canary_only": "Stop after the canaries have passed.",
    "dry_run": "Say what would be done, and do nothing.",
    "evidence": "The hash of the evidence that you mean, as `backfill status` shows it; no other will do.",
    "file": "The specification, a YAML file under backfills/.",
    "first": "First day to put back; without it, the first of the release.",
    "include_rewritten": "Also put back days that somebody has rewritten past the releases; their newer rows go.",
    "last": "Last day to put back; without it, the last of the release.",
    "max_concurrency": "Batches at work at once; 0 leaves it as it is.",
    "outside_window": "Publish a campaign outside of its publish window, and why.",
    "partitions": "The days, such as 2013-03-01,2013-03-05 or 2013-03-01..2013-03-03.",
    "partitions_per_batch": "Days in a batch from now on; 0 leaves it as it is.",
    "reason": "Why; kept in the journal and the history, and shown beside a hold.",
    "release": "The release, as `backfill releases` lists it.",
    "target": "A campaign, a unit or a dataset.",
    "unit": "The unit, as `backfill status` lists it.",
}
"""What each parameter is, in whatever operation."""


def plan(shell: Shell, file: Path) -> Result:
    """Freeze the plan of a specification: batches, canaries, estimate, warnings; nothing is built yet."""
    application, settings = shell.application, shell.application.settings
    frozen_plans = FrozenPlans(application.planner, settings.computes, settings.state)
    campaign, frozen = frozen_plans.freeze(file)
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
    """Which days would be built from something else now than when they were planned, in words, or nothing."""
    days = application.planner.moved(planned)
    return f"moved since the plan, and built from what is there now: {shown_days(days)}" if days else ""


def pause(shell: Shell, campaign: str, *, reason: str) -> Result:
    """Let no further batch start; what is at work ends, what has passed stays, no run slot is held."""
    shell.control().pause(campaign, reason)
    return Result([f"campaign {campaign} is paused; go on with: backfill resume {campaign}"])


def resume(shell: Shell, campaign: str, *, reason: str = "") -> Result:
    """Go on with what is missing, failed or stale, and only that."""
    shell.control().resume(campaign, reason)
    return Result([f"campaign {campaign} goes on with what is missing, failed or stale"])


def stop(shell: Shell, campaign: str, *, reason: str) -> Result:
    """Stop a campaign for a cause that has to be mended; what has passed stays."""
    shell.control().stop(campaign, reason)
    return Result([f"campaign {campaign} is stopped; after the cause is mended: backfill resume {campaign}"])


def set_knobs(
    shell: Shell, campaign: str, *, max_concurrency: int = 0, partitions_per_batch: int = 0, reason: str = ""
) -> Result:
    """Turn the knobs of a campaign; batches that start from now on go by them."""
    asked = {"max_concurrency": max_concurrency, "partitions_per_batch": partitions_per_batch}
    given = {name: value for name, value in asked.items() if value}
    knobs = shell.control().set(campaign, reason, **given).knobs
    shown = f"max_concurrency={knobs.max_concurrency}, partitions_per_batch={knobs.partitions_per_batch}"
    return Result([f"campaign {campaign}: {shown}"])


def discard(shell: Shell, campaign: str, *, reason: str = "") -> Result:
    """Give a campaign up: its days are free again."""
    return discarded(shell.control().discard(campaign, reason))


def discarded(unit: Unit) -> Result:
    """What is said of a unit that was given up."""
    return Result([f"discarded {unit.id}; free again: {shown_days(unit.days)}"])


def approve(shell: Shell, campaign: str, *, evidence: str, by: str = "", reason: str = "") -> Result:
    """Approve exactly the evidence that you have seen; days recomputed later need an approval of their own."""
    application = shell.application
    given = application.approving.approve(campaign, evidence, by=by, reason=reason)
    who = given.identity if given.by == given.identity else f"{given.identity} as {given.by}"
    said = f"{who} approves {shown_days(given.days)} of campaign {campaign}, evidence {given.evidence[:16]}"
    written = _report_written(shell, application.ledger.campaign(campaign).unit)
    return Result((said, *written, f"next: backfill publish {campaign}"))


def sign_off(shell: Shell, campaign: str, *, reason: str = "") -> Result:
    """Close a published campaign: somebody has looked at what readers see, and it is right."""
    shell.application.sign_off.sign_off(campaign, reason)
    by = shell.application.identity.name()
    return Result([f"campaign {campaign} is signed off by {by}; its files stay until the window ends"])


def cleanup(shell: Shell, campaign: str, *, reason: str = "", dry_run: bool = False) -> Result:
    """Let go of what only a rollback of the campaign needed, after its window has ended and it is signed off."""
    done = shell.application.sign_off.cleanup(campaign, reason, dry_run=dry_run)
    window = f"the rollback window ends at {done.window_until:%Y-%m-%d %H:%M} UTC" if done.window_until else ""
    refusal = f"would be refused: {done.refusal}" if done.refusal else ""
    return Result((window, refusal, done.listed(dry_run=dry_run)), done)


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
    """Release a complete unit after its evidence has been approved; refused without it."""
    outcome = shell.application.publisher.release(unit, evidence_hash=evidence, reason=reason)
    return _released(shell, outcome, f"unit {outcome.unit} is released as {outcome.release}")


def _released(shell: Shell, outcome: Released | AlreadyReleased, said: str) -> Result:
    shell.report(outcome)
    lines = [said]
    for name, days in outcome.days.items():
        lines.append(f"{outcome.releases[name]}: {name} {format_days(days)} is published")
        lines.append(f"undo it with: backfill rollback {outcome.releases[name]} --reason '…'")
    return Result(chain(lines, _left_behind(shell.application, outcome.days)))


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
    """Put the days of a release back to what they were; days written since stay, and later releases have to go first."""
    rollbacks = shell.application.rollback
    days = _days(shell.application.ledger.release(release), first, last)
    said, consent = list[str](), frozenset[date]()
    try:
        proposal = rollbacks.plan(release, days=days)
    except RollbackError:
        if dry_run or include_rewritten:
            raise
        # Executed all the same: that first finishes a release that died half-way, or refuses by itself.
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
    lift = f"backfill hold lift {done.dataset} {min(done.days)} {max(done.days)}"
    said += [
        f"{done.release}: {done.dataset} {format_days(done.days)} is back to what it was before {release}",
        f"live runs leave these days alone until they are published again, or: {lift}",
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
    """How to bring up to date what was built from datasets that have changed; looked up once all else is said."""
    for name in application.catalog.downstream_of(changed):
        if days := application.outdated.of(name).days:
            yield (
                f"{name} {format_days(days)} was built from what has changed now; bring it up to date: "
                f"backfill refresh {name}, with --expected-change if its figures must change"
            )


def watch_release(shell: Shell, release: str) -> Result:
    """Run the queries of a dataset's consumers before, after and now; fails if a figure has drifted."""
    seen = shell.application.watch_release.watch(release)
    return Result([str(seen)], seen, failed=bool(seen.drifted))


def prove(shell: Shell, target: str, *, partitions: str = "") -> Result:
    """Compute days again, in several ways, and compare; three days are chosen unless some are named. Fails if rows differ."""
    days = parse_days(partitions, "partitions") if partitions else ()
    certificates = shell.application.prover.prove(target, days)
    said = [f"certificate {one}" for one in certificates]
    for unit in dict.fromkeys(one.unit for one in certificates if one.unit):
        said += _report_written(shell, unit)
    return Result(said, certificates, failed=not all(one.passed for one in certificates))


def warn_uncompared(shell: Shell, campaign: Campaign) -> None:
    """Warn where nobody would notice that the specification has moved."""
    if attention := uncompared(campaign):
        shell.warn(attention)


def _report_written(shell: Shell, unit: str) -> tuple[str, str]:
    """Write the report of a unit after a step that has changed what it says; its sentence, and where it is."""
    told = report_unit(shell.application, shell.application.ledger.unit(unit), shell.warn)
    return told.sentence, told.address or told.page


@dataclass(frozen=True)
class Operation:
    """An operation by the names that it has in the shells.

    Attributes:
        job: Dagster's job.
        act: does it.
        command: the console's command; none where the console has one of its own, that takes more or shows more.
        conducts: whether it takes a campaign's next step, through a webserver if the console is told of one.
    """

    job: str
    act: Callable[..., Result]
    command: str = ""
    conducts: bool = False

    @property
    def text(self) -> str:
        """What it is for."""
        return inspect.getdoc(self.act) or ""

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What it takes besides the shell, by name."""
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
)
