"""Shows in Dagster which published days their upstream has left behind: the check `upstream_current`."""

import contextlib
import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence

import dagster as dg
from sqlalchemy.exc import IntegrityError

from backfill_assets.application import Application
from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.evidence.contents import published_among
from backfill_assets.orchestration.names import asset_key, days_of, last_materializations, partitions_of
from backfill_assets.release.publish import AlreadyReleased, Released

CHECK = "upstream_current"


def upstream_current(loaded: LoadedDataset, application: Application) -> dg.AssetChecksDefinition:
    """Warns of published days that were built from other upstream content than what is published now."""
    dataset = loaded.dataset
    spec = dg.AssetCheckSpec(
        name=CHECK,
        asset=asset_key("published", dataset.name),
        description=f"Built from what is published of {', '.join(dataset.upstream)}; if not: backfill refresh",
        blocking=False,
        partitions_def=partitions_of(dataset),
    )

    @dg.multi_asset_check(specs=[spec], name=f"{CHECK}__{dataset.name}", can_subset=False)
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
        days = days_of(context.op_execution_context.partition_keys)
        yield from _evaluations(context.instance, application, dataset.name, days)
        yield dg.Output(None, output_name=spec.get_python_identifier())

    return check


def report_outdated(
    instance: dg.DagsterInstance,
    application: Application,
    outcomes: Sequence[Released | AlreadyReleased],
    own: Collection[DatasetDay],
) -> None:
    """Tell Dagster how the published days downstream of a release stand now.

    The releasing step's `own` days are left out: a step of the check follows it.
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
    """Tell Dagster how the published days stand that changed, or are built from days that changed."""
    built = {name for name in changed if application.dataset(name).upstream}
    for name in sorted(built | set(application.catalog.downstream_of(changed))):
        days = [day for day in _behind(application, name, changed) if (name, day) not in but]
        for evaluation in _evaluations(instance, application, name, days):
            # Dagster's own storages take one result outside of runs per check and partition, and refuse the next.
            with contextlib.suppress(IntegrityError):
                instance.report_runless_asset_event(evaluation)


def _behind(application: Application, name: str, changed: Mapping[str, Collection[dt.date]]) -> tuple[dt.date, ...]:
    """The published days of a dataset that are built from days that changed, directly or through others."""
    reach = sum(u.lookback_days for u in application.dataset(name).upstream.values())
    touched = {day + i * ONE_DAY for days in changed.values() for day in days for i in range(reach + 1)}
    return tuple(sorted(published_among(application.ledger, application.tables[name], name, touched)))


def _evaluations(
    instance: dg.DagsterInstance, application: Application, name: str, days: Sequence[dt.date]
) -> Iterator[dg.AssetCheckEvaluation]:
    if not days:
        return
    outdated = application.outdated.of(name, days)
    targets = last_materializations(instance, asset_key("published", name), days)
    upstream, left_behind = ", ".join(outdated.upstream), frozenset(outdated.days) - frozenset(outdated.references)
    for day in days:
        behind = day in left_behind
        yield dg.AssetCheckEvaluation(
            asset_key=asset_key("published", name),
            check_name=CHECK,
            passed=not behind,
            partition=day.isoformat(),
            severity=dg.AssetCheckSeverity.WARN,
            blocking=False,
            description=f"{upstream} was released anew since; run: backfill refresh {name}" if behind else "up to date",
            metadata={"upstream": dg.MetadataValue.text(upstream)},
            target_materialization_data=targets.get(day),
        )
