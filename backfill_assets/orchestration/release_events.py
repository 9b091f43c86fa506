"""Reports evidence, releases, rollbacks and stale days to Dagster."""

import contextlib
import datetime as dt
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import dagster as dg

from backfill_assets.application import Application, errors_as_warnings, report_unit
from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.evidence import DatasetDay, DayEvidence, Severity, Verdict
from backfill_assets.core.layers import Layer
from backfill_assets.core.measured import DayMeasurement
from backfill_assets.core.release import Manifest, ReleaseKind
from backfill_assets.core.unit import ReleaseMode, Unit, UnitState
from backfill_assets.dataset.checks import CHANGE
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.evidence.contents import published_among
from backfill_assets.evidence.stale import StaleCause
from backfill_assets.ledger.database import IntegrityError
from backfill_assets.orchestration.names import (
    asset_key,
    days_of,
    last_materializations,
    opened_instance,
    partitions_of,
)
from backfill_assets.release.adopt import Adopted
from backfill_assets.release.finish import unit_or_none
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets.release.rollback import RolledBack
from backfill_assets.report.metrics import DatasetMetrics
from backfill_assets.report.series import relative
from dagster_batched_events import batched_events

CHECK = "upstream_current"


def upstream_current(loaded: LoadedDataset, application: Application) -> dg.AssetChecksDefinition:
    """Warns about published days that were not built from the upstream content that is published now."""
    dataset = loaded.dataset
    spec = dg.AssetCheckSpec(
        name=CHECK,
        asset=asset_key(Layer.published, dataset.name),
        description=f"Built from the published version of {', '.join(dataset.upstream)}; if not: backfill refresh",
        blocking=False,
        partitions_def=partitions_of(dataset, application.catalog),
    )

    @dg.multi_asset_check(specs=[spec], name=f"{CHECK}__{dataset.name}", can_subset=False)
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
        days = dataset.from_start(days_of(context.op_execution_context.partition_keys))
        yield from _evaluations(context.instance, application, dataset.name, days)
        yield dg.Output(None, output_name=spec.get_python_identifier())

    return check


def report_stale(
    instance: dg.DagsterInstance,
    application: Application,
    outcomes: Sequence[Released | AlreadyReleased],
    own: Collection[DatasetDay],
) -> None:
    """Report to Dagster whether the published days downstream of a release are still current.

    The releasing step's `own` days are left out: its check step follows.
    """
    for outcome in outcomes:
        if isinstance(outcome, Released):
            report_downstream(instance, application, outcome.days, but=own)


def report_downstream(
    instance: dg.DagsterInstance,
    application: Application,
    changed: Mapping[str, Collection[dt.date]],
    but: Collection[DatasetDay] = (),
) -> None:
    """Report to Dagster whether the published days that changed, or are built from changed days, are current."""
    built = {name for name in changed if application.dataset(name).upstream}
    for name in sorted(built | set(application.catalog.downstream_of(changed))):
        days = [day for day in _behind(application, name, changed) if (name, day) not in but]
        for evaluation in _evaluations(instance, application, name, days):
            # Outside of runs, Dagster's storages accept only one result per check and partition, and refuse the next.
            with contextlib.suppress(IntegrityError):
                instance.report_runless_asset_event(evaluation)


def _behind(application: Application, name: str, changed: Mapping[str, Collection[dt.date]]) -> tuple[dt.date, ...]:
    """The published days of a dataset that are built from changed days, directly or through others."""
    reach = sum(u.lookback_days for u in application.dataset(name).upstream.values())
    touched = {day + i * ONE_DAY for days in changed.values() for day in days for i in range(reach + 1)}
    return tuple(sorted(published_among(application.ledger, application.tables[name], name, touched)))


def _evaluations(
    instance: dg.DagsterInstance, application: Application, name: str, days: Sequence[dt.date]
) -> Iterator[dg.AssetCheckEvaluation]:
    if not days:
        return
    stale = application.staleness.of(name, {StaleCause.upstream}, days)
    targets = last_materializations(instance, asset_key(Layer.published, name), days)
    upstream = ", ".join(application.dataset(name).upstream)
    for day in days:
        behind = day in stale.causes
        said = f"{upstream} has a newer release; run: backfill refresh {name}" if behind else "up to date"
        yield dg.AssetCheckEvaluation(
            asset_key=asset_key(Layer.published, name),
            check_name=CHECK,
            passed=not behind and not stale.problems,
            partition=day.isoformat(),
            severity=dg.AssetCheckSeverity.WARN,
            blocking=False,
            description="; ".join(stale.problems) or said,
            metadata={"upstream": dg.MetadataValue.text(upstream)},
            target_materialization_data=targets.get(day),
        )


REPORT_METADATA = "report"
"""Metadata key of the page of a unit's report: its address if the folder is served, otherwise its path."""
REVIEW_METADATA = "review"
"""Metadata key of the verdict's sentence."""

Metadata = Mapping[str, dg.MetadataValue]


def report_metadata(application: Application, unit: Unit, log: logging.Logger, *, again: bool = False) -> Metadata:
    """Write the report of a unit and return where it is; any error is logged as a warning.

    If a release is reported `again`, a page that was written after it stays.
    """
    report = report_unit(application, unit, log.warning, again=again)
    # As text: it contains reasons and row values, which are not Markdown.
    found: dict[str, dg.MetadataValue] = (
        {REVIEW_METADATA: dg.MetadataValue.text(report.sentence)} if report.sentence else {}
    )
    if report.page:
        link = dg.MetadataValue.url(report.address) if report.address else dg.MetadataValue.path(report.page)
        found[REPORT_METADATA] = link
    return found


def report_waiting(context: dg.OpExecutionContext, application: Application, unit: Unit, dataset: str) -> None:
    """Write the report of a unit that waits for a manual release, once it is complete; note it on its shadow."""
    if unit.mode is not ReleaseMode.manual or unit.state is not UnitState.open:
        return
    with errors_as_warnings(unit, context.log.warning):
        # The survey reads all days of the unit and may measure published files: too much after each of many runs.
        if not _all_passed(application, unit) or application.publisher.blockers(unit.id):
            return
        metadata = report_metadata(application, unit, context.log)
        if metadata:
            context.log_event(
                dg.AssetObservation(asset_key(Layer.shadow, dataset), metadata=metadata, description="ready for review")
            )


def _all_passed(application: Application, unit: Unit) -> bool:
    for name, days in unit.targets.items():
        found = application.ledger.findings(name, dict.fromkeys(days, unit.id))
        if not all(day in found and found[day].passed for day in days):
            return False
    return True


def release_figures(
    application: Application, outcomes: Iterable[Released | AlreadyReleased], log: logging.Logger
) -> Mapping[DatasetDay, Metadata]:
    """The metrics of every dataset right after its release, for the newest day of that release.

    One point per release: they describe the complete dataset, not single days. But a live release counts duplicates and
    mismatches only of its own days, so as not to read the evidence of the complete history every day. None for a
    release that an earlier run has made.

    Any error is logged as a warning: no release fails because its metrics cannot be taken.
    """
    try:
        return {
            (name, max(days)): figures(application.metrics.of(name, days if unit.live else None))
            for outcome in outcomes
            if isinstance(outcome, Released)
            for unit in (application.ledger.unit(outcome.unit),)
            for name, days in outcome.days.items()
            if days
        }
    except Exception as error:  # noqa: BLE001  # see above
        log.warning(f"the metrics could not be taken ({error!r}); try: backfill metrics")
        return {}


def figures(found: DatasetMetrics) -> Metadata:
    """The metrics of a dataset as metadata; figures without a value are left out."""
    mark, seconds = found.watermark, found.seconds_per_partition
    numbers = {
        "duplicate_keys_per_1000_rows": found.duplicate_keys_per_1000_rows,
        "mismatches": found.mismatches,
        "watermark_lag_days": mark.lag_days,
        "watermark_lag_hours": mark.lag_hours,
        "seconds_per_partition_p50": seconds.p50 if seconds else None,
        "seconds_per_partition_p95": seconds.p95 if seconds else None,
    }
    entries: dict[str, dg.MetadataValue] = {
        name: dg.MetadataValue.int(value) if isinstance(value, int) else dg.MetadataValue.float(value)
        for name, value in numbers.items()
        if value is not None
    }
    return entries if mark.newest is None else entries | {"watermark": dg.MetadataValue.text(mark.newest.isoformat())}


RELEASE_METADATA = "release"

LAUNCH_METADATA = "launch"
"""Metadata key that says which backfill or run released a partition."""


@dataclass(frozen=True)
class ReleaseMetadata:
    """Metadata of releases for Dagster: the same on all days of a release, and a dataset's metrics on some days."""

    releases: Mapping[str, Metadata]
    figures: Mapping[DatasetDay, Metadata]

    def of(self, release: str, day: DatasetDay) -> Metadata:
        """The metadata of one partition."""
        return {**self.releases[release], **self.figures.get(day, {})}


def released_events(
    outcomes: Sequence[Released | AlreadyReleased], metadata: ReleaseMetadata, but: Collection[DatasetDay] = frozenset()
) -> Iterator[dg.AssetMaterialization]:
    """Materializations of every released partition, in all datasets of the units, except those in `but`."""
    for outcome in outcomes:
        for name, days in outcome.days.items():
            for day in days:
                if (name, day) not in but:
                    yield dg.AssetMaterialization(
                        asset_key(Layer.published, name),
                        partition=day.isoformat(),
                        metadata=metadata.of(outcome.release, (name, day)),
                    )


def changed_events(
    application: Application, manifest: Manifest, days: Iterable[dt.date], log: logging.Logger, *, again: bool = False
) -> Iterator[dg.AssetMaterialization]:
    """Materializations of days of a rollback, whose rows have changed so that downstream assets are due, or of a baseline.

    If a rollback is reported `again`, the page of the unit's report stays.
    """
    metadata: dict[str, dg.MetadataValue] = {
        RELEASE_METADATA: dg.MetadataValue.text(manifest.release),
        "reason": dg.MetadataValue.text(manifest.reason),
    }
    description = "adopted as it was"
    if manifest.kind is ReleaseKind.rollback:
        description = "rolled back"
        metadata |= {"undoes": dg.MetadataValue.text(manifest.undoes), "unit": dg.MetadataValue.text(manifest.unit)}
        if unit := unit_or_none(application.ledger, manifest.unit):
            metadata |= report_metadata(application, unit, log, again=again)
    key = asset_key(Layer.published, manifest.dataset)
    for day in days:
        yield dg.AssetMaterialization(key, partition=day.isoformat(), metadata=metadata, description=description)


def release_metadata(
    application: Application, outcomes: Sequence[Released | AlreadyReleased], launch: str, log: logging.Logger
) -> ReleaseMetadata:
    """The metadata of each release for Dagster: unit, evidence, launch, report, and the metrics of its datasets."""
    releases = {
        outcome.release: {
            RELEASE_METADATA: dg.MetadataValue.text(outcome.release),
            "unit": dg.MetadataValue.text(outcome.unit),
            "evidence": dg.MetadataValue.text(outcome.evidence),
            LAUNCH_METADATA: dg.MetadataValue.text(launch),
            **report_metadata(
                application, application.ledger.unit(outcome.unit), log, again=isinstance(outcome, AlreadyReleased)
            ),
        }
        for outcome in outcomes
    }
    return ReleaseMetadata(releases, release_figures(application, outcomes, log))


_log = logging.getLogger(__name__)


def report_outside_runs(application: Application, done: Released | AlreadyReleased | RolledBack | Adopted) -> bool:
    """Report the materializations of a release, a rollback or a baseline; False if no Dagster instance is configured."""
    if not os.environ.get("DAGSTER_HOME"):
        return False
    changed: Mapping[str, Collection[dt.date]]
    if isinstance(done, RolledBack | Adopted):
        manifest = application.ledger.release(done.release).manifest
        events, changed = changed_events(application, manifest, done.days, _log), {done.dataset: done.days}
    else:
        metadata = release_metadata(application, [done], "backfill publish", _log)
        events, changed = released_events([done], metadata), done.days
    with opened_instance() as instance, batched_events(instance):
        for event in events:
            instance.report_runless_asset_event(event)
        report_downstream(instance, application, changed)
    return True


def evaluations(
    instance: dg.DagsterInstance, name: str, evidence: Sequence[DayEvidence]
) -> Iterator[dg.AssetCheckEvaluation]:
    """One result per check and day, each naming the materialization that it judged; refused days last."""
    key = asset_key(Layer.shadow, name)
    targets = last_materializations(instance, key, [e.day for e in evidence])
    with batched_events(instance):
        # Refused days last: Dagster shows the newest result as the state of the whole check.
        for day in sorted(evidence, key=lambda e: (not e.passed, e.day)):
            for verdict in day.verdicts:
                yield dg.AssetCheckEvaluation(
                    asset_key=key,
                    check_name=verdict.check,
                    passed=verdict.passed,
                    partition=day.day.isoformat(),
                    severity=_severity(verdict),
                    blocking=verdict.blocks,
                    description=f"expected {verdict.expected}, found {verdict.found}"
                    + (f" ({verdict.note})" if verdict.note else ""),
                    metadata=_metadata(verdict, day),
                    target_materialization_data=targets.get(day.day),
                )


def _severity(verdict: Verdict) -> dg.AssetCheckSeverity:
    return dg.AssetCheckSeverity.ERROR if verdict.severity is Severity.error else dg.AssetCheckSeverity.WARN


def _metadata(verdict: Verdict, day: DayEvidence) -> dict[str, dg.MetadataValue]:
    metadata: dict[str, dg.MetadataValue] = {
        "expected": dg.MetadataValue.text(verdict.expected),
        "found": dg.MetadataValue.text(verdict.found),
        "unit": dg.MetadataValue.text(day.unit),
        "evidence": dg.MetadataValue.text(day.hash),
        **_numbers(verdict, day.measured),
    }
    if verdict.tolerance:
        metadata["tolerance"] = dg.MetadataValue.text(verdict.tolerance)
    if verdict.note:
        metadata["note"] = dg.MetadataValue.text(verdict.note)
    if verdict.sample:
        metadata["sample"] = dg.MetadataValue.table(
            [dg.TableRecord({k: _cell(v) for k, v in r.items()}) for r in verdict.sample]
        )
    return metadata


def _numbers(verdict: Verdict, measured: DayMeasurement) -> dict[str, dg.MetadataValue]:
    """The figures of a metric's change as numbers, which Dagster draws over days; the texts beside them are exact."""
    metric = verdict.check.removeprefix(CHANGE)
    if metric == verdict.check:
        return {}
    old, new = measured.published.metrics.get(metric), measured.shadow.metrics.get(metric)
    share = relative(old, new)
    numbers = {"published_figure": old, "found_figure": new, "change_percent": None if share is None else share * 100}
    # Dagster's JSON has no number for infinity or NaN.
    return {key: dg.MetadataValue.float(float(n)) for key, n in numbers.items() if n is not None and isfinite(n)}


def _cell(value: object) -> str | int | float | bool | None:
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
