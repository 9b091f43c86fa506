"""The status of a campaign: once, as JSON, or live; and the results of its checks."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from backfill_assets.application import Application
from backfill_assets.campaign.gate import Admitted
from backfill_assets.campaign.plan import Estimate
from backfill_assets.campaign.state import Action, CampaignState
from backfill_assets.cli.output import as_json, console, say, table
from backfill_assets.control.approve import certify_command, needs_approval
from backfill_assets.control.standing import CampaignStanding
from backfill_assets.core.days import format_days
from backfill_assets.core.evidence import DatasetDay, DayEvidence, Severity, Verdict
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import Attempt, AttemptState
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.yaml import shown_path
from backfill_assets.evidence.readiness import explain_blockers
from backfill_assets.report.series import MetricChange, metric_changes

if TYPE_CHECKING:
    from backfill_assets.orchestration.services import Services


Known = Mapping[DatasetDay, DayEvidence]
"""The evidence that counts, by dataset and day."""

_MOST_FAILED = 10


def known_of(application: Application, standing: CampaignStanding) -> Known:
    """The evidence that counts for a campaign's days."""
    unit = standing.campaign.unit
    return application.ledger.evidence(unit) if unit else {}


def say_verdicts(known: Known) -> None:
    """Print the failed checks, and the change of each metric next to what was promised."""
    failed = [(one, verdict) for one in known.values() for verdict in one.verdicts if not verdict.passed]
    if failed:
        # Those that stop a campaign come first.
        failed.sort(key=lambda pair: not pair[1].refuses)
        columns = ("day", "dataset", "check", "found", "expected")
        table(columns, [_failed(one, verdict) for one, verdict in failed[:_MOST_FAILED]], "Failed checks")
    if len(failed) > _MOST_FAILED:
        say(f"… {len(failed) - _MOST_FAILED:,} more")
    if changes := metric_changes(known.values()):
        columns = ("dataset", "metric", "change", "days compared", "promised")
        table(columns, [_change(change) for change in changes], "Change over the days built so far")


def checks_by_batch(known: Known) -> Mapping[int, Counter[bool]]:
    """Passed and failed verdicts by batch; of days that were built again, only the last build counts."""
    found: dict[int, Counter[bool]] = defaultdict(Counter)
    for one in known.values():
        found[one.attempt].update(verdict.passed for verdict in one.verdicts)
    return found


def days_as_plain(standing: CampaignStanding, known: Known) -> list[dict[str, object]]:
    """Each day of the campaign with its state and why, the hash of its evidence, and its verdicts."""
    why: dict[DatasetDay, list[str]] = defaultdict(list)
    for blocker in standing.blockers:
        why[blocker.dataset, blocker.day].append(blocker.words)
    states, targets = standing.days, standing.campaign.plan.targets
    found: list[dict[str, object]] = []
    for key in sorted((name, day) for name, days in targets.items() for day in days):
        one = known.get(key)
        found.append(
            {
                "dataset": key[0],
                "day": key[1],
                "state": states.get(key) or _state(one),
                "why": why[key],
                "evidence": one.hash if one is not None else "",
                "verdicts": [_plain(verdict) for verdict in one.verdicts] if one is not None else [],
            }
        )
    return found


def _state(evidence: DayEvidence | None) -> str:
    """The state of a day without blockers, for example because the campaign is over."""
    if evidence is None:
        return "missing"
    return "good" if evidence.passed else "failed"


def _plain(verdict: Verdict) -> dict[str, object]:
    names = ("check", "passed", "severity", "found", "expected", "tolerance", "note")
    return {name: getattr(verdict, name) for name in names} | {"refuses": verdict.refuses}


def _failed(evidence: DayEvidence, verdict: Verdict) -> tuple[object, ...]:
    only = " (a warning)" if verdict.severity is Severity.warn else ""
    return (verdict.day, evidence.dataset, f"{verdict.check}{only}", verdict.found, verdict.expected)


def _change(change: MetricChange) -> tuple[object, ...]:
    found = "-" if change.range is None else str(change.range)
    return (change.dataset, change.metric, found, f"{change.days:,}", "; ".join(change.promised) or "-")


_LOOK_SECONDS = 2
_MOST_BATCHES = 20
_AT_WORK = frozenset({CampaignState.planned, CampaignState.canary, CampaignState.running})
_ILL = frozenset({CampaignState.stopped, CampaignState.discarded})


def say_standing(application: Application, standing: CampaignStanding, *, details: bool = False) -> None:
    """Print the status of a campaign and what to do next."""
    campaign, state, known = standing.campaign, standing.state, known_of(application, standing)
    total = sum(len(days) for days in campaign.plan.targets.values())
    over = state not in {*_AT_WORK, CampaignState.paused, CampaignState.stopped}
    say(f"{campaign.id} is {state.value}: {campaign.specification.reason.change}")
    say(f"{total if over else standing.good} of {total} days are good; plan {campaign.plan.fingerprint[:12]}")
    if standing.days:
        table(("dataset", "state", "days"), _by_state(standing), "Days to do")
    if standing.batches:
        checks = checks_by_batch(known)
        rows = [_batch(batch, checks[batch.number]) for batch in standing.batches[-_MOST_BATCHES:]]
        table(_BATCH_COLUMNS, rows, "Batches, newest last")
    say_verdicts(known)
    say(_use(standing))
    if standing.batches:
        say(_against_estimate(application, standing))
    if state in _AT_WORK and not isinstance(standing.decision, Admitted):
        say(f"the gate is closed: {standing.decision.reason}")
    for certificate in standing.certificates.values():
        say(f"certificate {certificate}")
    # What has moved is a refusal, too.
    refused = () if standing.drift else standing.obstacles.refusals
    for moved in filter(None, (standing.drift.partition(";")[0], standing.uncompared, standing.uncertified, *refused)):
        say(f"attention: {moved}")
    for entry in standing.journal[-5:]:
        say(f"  {entry}")
    if details and standing.blockers:
        say(explain_blockers(standing.blockers))
    say(f"next: {next_step(standing, application.catalog.definitions)}")


def standing_as_json(application: Application, standing: CampaignStanding) -> None:
    """Print the same for programs, with the verdicts of every day."""
    known = known_of(application, standing)
    checks = checks_by_batch(known)
    as_json(
        {
            "campaign": standing.campaign.id,
            "state": standing.state.value,
            "phase": standing.campaign.phase.value,
            "unit": standing.campaign.unit,
            "plan": standing.campaign.plan.fingerprint,
            "knobs": standing.campaign.knobs,
            "good": standing.good,
            "days": days_as_plain(standing, known),
            "changes": metric_changes(known.values()),
            "batches": [
                vars(batch) | {"checks": {"passed": checks[batch.number][True], "failed": checks[batch.number][False]}}
                for batch in standing.batches
            ],
            "estimate": {"planned": standing.campaign.plan.estimate, "left": _left(application, standing)},
            "budget": _budget(standing),
            "waits": standing.waits,
            "evidence": standing.evidence,
            "certificates": standing.certificates,
            "uncertified": standing.uncertified,
            "drift": standing.drift,
            "refusals": standing.obstacles.refusals,
            "later": standing.obstacles.later,
            "uncompared": standing.uncompared,
            "gate": "open" if isinstance(standing.decision, Admitted) else standing.decision.reason,
            "journal": standing.journal,
            "next": next_step(standing, application.catalog.definitions),
        }
    )


def follow_campaign(application: Application, services: Services, campaign_id: str) -> None:
    """Show progress until the campaign no longer runs; exit code 1 if it was stopped or discarded."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("days good"),
        TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    seen = 0
    with Progress(*columns, console=console) as progress:
        plan = application.ledger.campaign(campaign_id).plan
        total = sum(len(days) for days in plan.targets.values())
        bar = progress.add_task(campaign_id, total=total, rate="")
        since, first = time.monotonic(), None
        while True:
            standing = services.standings.of(campaign_id, obstacles=False)
            first = standing.good if first is None else first
            minutes = (time.monotonic() - since) / 60
            rate = f"{(standing.good - first) / minutes:.0f} days/min" if minutes and standing.good > first else ""
            progress.update(bar, completed=standing.good, description=standing.state.value, rate=rate)
            for entry in standing.journal[seen:]:
                progress.console.print(f"  {entry}", markup=False)
            seen = len(standing.journal)
            if standing.state not in _AT_WORK:
                break
            time.sleep(_LOOK_SECONDS)
    say_standing(application, services.standings.of(campaign_id))
    if standing.state in _ILL:
        raise typer.Exit(1)


_BATCH_COLUMNS = (
    "batch",
    "dataset",
    "layer",
    "days",
    "state",
    "began (UTC)",
    "seconds",
    "waited",
    "rows",
    "MB read",
    "checks",
)


def _batch(batch: Attempt, checks: Counter[bool]) -> tuple[object, ...]:
    seconds = f"{(batch.ended_at - batch.started_at).total_seconds():.0f}" if batch.ended_at else "-"
    return (
        batch.number, batch.dataset, batch.layer, format_days(batch.days, most=2), batch.state.value,
        f"{batch.started_at:%m-%d %H:%M:%S}", seconds, f"{batch.waited.total_seconds():.0f}",
        f"{batch.rows:,}", f"{batch.bytes_read / 1e6:,.1f}",
        f"{checks[True]:,} of {checks.total():,}" if checks else "-",
    )  # fmt: skip


def _budget(standing: CampaignStanding) -> dict[str, object]:
    """What is used and its limit (None without a limit), in seconds and bytes."""
    limits = standing.campaign.specification.execution.budget
    return {
        "seconds_spent": standing.spent.total_seconds(),
        "seconds_limit": limits.wall_time.total_seconds() if limits.wall_time is not None else None,
        "bytes_today": standing.traffic.bytes_today,
        "bytes_limit_per_day": limits.bytes_read_per_day,
    }


def _by_state(standing: CampaignStanding) -> list[tuple[str, str, str]]:
    grouped: dict[tuple[str, str], list[object]] = {}
    for (name, day), state in standing.days.items():
        grouped.setdefault((name, state), []).append(day)
    return [(name, state, format_days(days)) for (name, state), days in sorted(grouped.items())]  # type: ignore[arg-type]


def _use(standing: CampaignStanding) -> str:
    budget = standing.campaign.specification.execution.budget
    spent = f"{standing.spent.total_seconds() / 60:.1f} min of batch time"
    if budget.wall_time is not None:
        spent += f" of {budget.wall_time.total_seconds() / 60:.0f}"
    read = f"{standing.traffic.bytes_today / 1e6:,.1f} MB read today"
    if budget.bytes_read_per_day is not None:
        read += f" of {budget.bytes_read_per_day / 1e6:,.0f}"
    waited = sum((batch.waited.total_seconds() for batch in standing.batches), 0.0)
    return f"used: {spent}, {read}; {waited:.0f} s waited, {number_of(len(standing.waits), 'run')} gave up at the gate"


def _left(application: Application, standing: CampaignStanding) -> Estimate:
    """The estimate of what is left, from this plan's own batches; a resume with other code freezes another plan."""
    plan = standing.campaign.plan
    own = [batch for batch in standing.batches if batch.started_at >= plan.created_at]
    return application.planner.corrected(plan, own, standing.campaign.knobs.partitions_per_batch)


def _against_estimate(application: Application, standing: CampaignStanding) -> str:
    planned = standing.campaign.plan.estimate
    # Counted as in the plan: batches that land or stage days are not included.
    done = [b for b in standing.batches if b.state is AttemptState.done and b.layer == Layer.shadow]
    price = application.settings.cost_per_hour
    spent = standing.spent.total_seconds()
    text = f"estimated: {_amount(planned.batches, planned.seconds, planned.cost)}; "
    text += f"done: {_amount(len(done), spent, price.of(spent) if price else '')}"
    left = _left(application, standing)
    if not left.batches:
        return text
    return f"{text}; left, as measured: {_amount(left.batches, left.seconds, left.cost)}"


def _amount(batches: int, seconds: float, cost: str) -> str:
    return f"{number_of(batches, 'batch')}, {seconds / 60:.1f} min" + (f", {cost}" if cost else "")


def next_step(standing: CampaignStanding, datasets: Mapping[str, Dataset]) -> str:
    """What to do next, as commands."""
    campaign = standing.campaign
    if standing.drift and standing.state in _REFUSED_BY_DRIFT:
        return _REFUSED_BY_DRIFT[standing.state].format(name=campaign.id, file=shown_path(Path(campaign.file)))
    if standing.obstacles.refusals and standing.state is not CampaignState.stopped:
        return standing.obstacles.remedy or f"correct what it is refused for: {standing.obstacles.refusals[0]}"
    if standing.uncertified:
        failed = any(not one.passed for one in standing.certificates.values())
        return ("fix the model, then: " if failed else "") + certify_command(campaign, standing.certificates)
    approval = needs_approval(campaign, campaign.plan.targets, datasets)
    # After a rollback the evidence has to be approved again.
    if standing.state in {CampaignState.validated, CampaignState.rolled_back} and approval and standing.evidence:
        again = ", to publish it again" if standing.state is CampaignState.rolled_back else ""
        return f"backfill approve {campaign.id} --evidence {standing.evidence}{again}"
    releases = _releases(standing)
    wait = (
        f"; but not now: {standing.obstacles.later}"
        if standing.obstacles.later and standing.state in _PUBLISHABLE
        else ""
    )
    step = _NEXT[standing.state].format(
        name=campaign.id,
        watch="; ".join(f"backfill watch-release {release}" for release in releases),
        undo="; ".join(f"backfill rollback {release} --reason …" for release in releases),
    )
    return f"{step}{wait}"


def _releases(standing: CampaignStanding) -> list[str]:
    made = [entry.detail.get("releases") for entry in standing.journal if entry.action is Action.published]
    return [str(release) for release in made[-1].values()] if made and isinstance(made[-1], dict) else ["<release>"]


_GO_ON = "backfill resume {name}, which plans again from the current state; or restore what has moved"
_REFUSED_BY_DRIFT: Mapping[CampaignState, str] = {
    CampaignState.planned: "backfill plan {file}: what was planned has moved",
    CampaignState.validated: _GO_ON,
    CampaignState.approved: _GO_ON,
}

_PUBLISHABLE = frozenset({CampaignState.validated, CampaignState.approved, CampaignState.rolled_back})

_NEXT: Mapping[CampaignState, str] = {
    CampaignState.planned: "backfill launch {name}",
    CampaignState.canary: "wait, or: backfill pause {name} --reason …",
    CampaignState.running: "wait, or: backfill pause {name} --reason …",
    CampaignState.paused: "backfill resume {name}",
    CampaignState.stopped: "fix the cause, then: backfill resume {name} (or give it up: backfill discard {name})",
    CampaignState.stale: "backfill resume {name}: something that passed days depend on has moved since",
    CampaignState.validated: "backfill publish {name}",
    CampaignState.approved: "backfill publish {name}",
    CampaignState.published: "{watch}, then: backfill sign-off {name} (or undo it: {undo})",
    CampaignState.rolled_back: "backfill publish {name} to release it again, or plan another campaign",
    CampaignState.discarded: "nothing; its days are free",
    CampaignState.closed: "backfill cleanup {name}, once the rollback window has ended",
    CampaignState.cleaned: "nothing; it is over",
}
