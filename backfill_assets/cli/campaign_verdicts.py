"""Shows what the checks of a campaign's days have found: failed ones, how far metrics moved, and all of it as JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from backfill_assets.application import Application
from backfill_assets.cli.output import say, table
from backfill_assets.control.standing import Standing
from backfill_assets.core.evidence import DatasetDay, DayEvidence, Severity, Verdict
from backfill_assets.evidence.readiness import DayFault
from backfill_assets.report.records import MetricChange
from backfill_assets.report.series import metric_changes

Known = Mapping[DatasetDay, DayEvidence]
"""The evidence that counts, by dataset and day."""

_MOST_FAILED = 10


def known_of(application: Application, standing: Standing) -> Known:
    """The evidence that counts for a campaign's days."""
    unit = standing.campaign.unit
    return application.ledger.evidence(unit) if unit else {}


def say_verdicts(known: Known) -> None:
    """Print the failed checks, and how far each metric has moved beside what was promised."""
    failed = [(one, verdict) for one in known.values() for verdict in one.verdicts if not verdict.passed]
    if failed:
        # What stops a campaign first.
        failed.sort(key=lambda pair: not pair[1].refuses)
        columns = ("day", "dataset", "check", "found", "expected")
        table(columns, [_failed(one, verdict) for one, verdict in failed[:_MOST_FAILED]], "Failed checks")
    if len(failed) > _MOST_FAILED:
        say(f"… {len(failed) - _MOST_FAILED:,} more")
    if changes := metric_changes(known.values()):
        columns = ("dataset", "metric", "change", "days compared", "promised")
        table(columns, [_change(change) for change in changes], "Change over the days built so far")


def checks_by_batch(known: Known) -> Mapping[int, Counter[bool]]:
    """By batch how many verdicts of its days passed and how many did not; of days built again since only the last."""
    found: dict[int, Counter[bool]] = defaultdict(Counter)
    for one in known.values():
        found[one.attempt].update(verdict.passed for verdict in one.verdicts)
    return found


def days_as_plain(standing: Standing, known: Known) -> list[dict[str, object]]:
    """Each day of the campaign with its state and why, the hash of its evidence, and its verdicts."""
    why: dict[DatasetDay, list[DayFault]] = defaultdict(list)
    for fault in standing.faults:
        why[fault.dataset, fault.day].append(fault)
    faulty, targets = standing.days, standing.campaign.plan.targets
    keys = sorted((name, day) for name, days in targets.items() for day in days)
    return [
        {
            "dataset": key[0],
            "day": key[1],
            "state": faulty.get(key) or _state(known.get(key)),
            "why": [fault.words for fault in why[key]],
            "evidence": known[key].hash if key in known else "",
            "verdicts": [_plain(verdict) for verdict in _verdicts(known.get(key))],
        }
        for key in keys
    ]


def _verdicts(evidence: DayEvidence | None) -> Iterable[Verdict]:
    return evidence.verdicts if evidence is not None else ()


def _state(evidence: DayEvidence | None) -> str:
    """Of a day in which nobody finds a fault, for instance because the campaign is over."""
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
