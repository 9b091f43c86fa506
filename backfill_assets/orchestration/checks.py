"""The checks of a dataset on its shadow: one op that reports the results of the shadow step, per check and day."""

import datetime as dt
from collections.abc import Collection, Iterator, Sequence

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.core.days import format_days, grouped_by_text
from backfill_assets.core.errors import EvidenceError
from backfill_assets.core.evidence import DayEvidence, Verdict
from backfill_assets.core.layers import Layer
from backfill_assets.core.text import in_words
from backfill_assets.core.unit import Unit, UnitState
from backfill_assets.dataset.checks import checks_of
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.orchestration.batches import wait_for_others
from backfill_assets.orchestration.launches import target_of, unit_of
from backfill_assets.orchestration.names import FAILED_DAYS, asset_key, days_of, partitions_of
from backfill_assets.orchestration.release_events import evaluations, report_waiting

_SHOWN = 20


def shadow_checks(loaded: LoadedDataset, application: Application) -> dg.AssetChecksDefinition:
    """All checks of a dataset, reported together."""
    dataset = loaded.dataset
    specs = [
        dg.AssetCheckSpec(
            name=check.name,
            asset=asset_key(Layer.shadow, dataset.name),
            description=check.description,
            blocking=check.blocks,
            partitions_def=partitions_of(dataset, application.catalog),
        )
        for check in checks_of(dataset)
    ]

    @dg.multi_asset_check(
        specs=specs,
        name=f"checks__{dataset.name}",
        description=f"Reports the check results of the shadow step for every day of {dataset.name}; measures nothing.",
        can_subset=False,
        pool=f"dataset_{dataset.name}",
    )
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
        if days := dataset.from_start(days_of(context.op_execution_context.partition_keys)):
            yield from _reported(context, application, loaded, days)
        for check in specs:
            yield dg.Output(None, output_name=check.get_python_identifier())

    return checks


def _reported(
    context: dg.AssetCheckExecutionContext, application: Application, loaded: LoadedDataset, days: tuple[dt.date, ...]
) -> Iterator[dg.AssetCheckEvaluation]:
    """The results of these days.

    Raises:
        dagster.Failure: days have failed blocking checks.
        EvidenceError: days have not been built.
    """
    name, unit = loaded.dataset.name, _unit(context, application, loaded, days)
    if unit.state is UnitState.open:
        wait_for_others(context, application, unit, name, days)
    evidence = _evidence(application, unit, name, days)
    yield from evaluations(context.instance, name, evidence)
    refusals = [v for e in evidence for v in e.verdicts if v.refuses]
    if refusals:
        by_hand = again(application, unit, {v.day for v in refusals})
        raise _failure(unit, name, len(days), refusals, how_to_go_on(unit, by_hand))
    report_waiting(context.op_execution_context, application, unit, name)


def _unit(
    context: dg.AssetCheckExecutionContext, application: Application, loaded: LoadedDataset, days: Sequence[dt.date]
) -> Unit:
    """The unit of the launch; a launch of checks alone opens none and shows the open unit of these days."""
    name = loaded.dataset.name
    if target_of(context, application, name).shadow:
        return unit_of(context, application, loaded.dataset)
    owners = sorted(set(application.ledger.claims(name, days).values()))
    if len(owners) != 1:
        raise EvidenceError(
            f"{name}/shadow {format_days(days)}: no single open unit holds these days, so there is nothing to check; "
            f"materialize {name}/shadow for them together with its checks"
        )
    return application.ledger.unit(owners[0])


def _evidence(application: Application, unit: Unit, name: str, days: tuple[dt.date, ...]) -> tuple[DayEvidence, ...]:
    """The evidence of the shadow step for these days; builds and measures nothing, however often it is repeated."""
    stored = application.ledger.evidence(unit.id, name, days)
    if missing := [day for day in days if (name, day) not in stored or not stored[name, day].verdicts]:
        raise EvidenceError(
            f"{name}/shadow {format_days(missing)} has not been built in unit {unit.id}; "
            f"materialize {name}/shadow for these days together with its checks"
        )
    return tuple(stored[name, day] for day in days)


def again(application: Application, unit: Unit, days: Collection[dt.date]) -> str:
    """What to materialize again for some days: all datasets of the unit, because one is built from another."""
    names = application.catalog.upstream_first(unit.targets)
    what = "; ".join(f"{in_words(application.dataset(name).launched_layers)} of {name}" for name in names)
    return f"{what} for {format_days(days)}"


def how_to_go_on(unit: Unit, by_hand: str) -> str:
    """What to do once checks have failed; `by_hand` is what to materialize if no campaign does it."""
    if unit.catches_up:
        return (
            "Correct the cause: the sensor catch_up builds these days again when their files, their upstream or the code have "
            "changed. Until then it leaves them out"
        )
    again = f"Correct the cause, then relaunch only what is missing, with:\n    backfill resume {unit.handle}\n"
    if unit.campaign:
        return f"{again}(if the change is intended, declare it in the specification: validation.expected_change)"
    return (
        f"{again}or in the UI: materialize {by_hand}. If the change is intended, see: backfill status {unit.id}. "
        "('Retry failed' in the UI would launch only the release, which refuses days without passing evidence.)"
    )


def _failure(unit: Unit, name: str, asked: int, refusals: Sequence[Verdict], then: str) -> dg.Failure:
    failed = sorted({v.day for v in refusals})
    listed = grouped_by_text((v.day, str(v)) for v in refusals)
    if len(listed) > _SHOWN:
        listed[_SHOWN:] = [f"… and {len(listed) - _SHOWN} more"]
    headline = (
        f"{len(failed)} of {asked} days of {name} failed blocking checks ({format_days(failed)}); "
        f"nothing of unit {unit.id} is published."
    )
    days_text = dg.MetadataValue.text(format_days(failed, most=99))
    metadata = {"unit": dg.MetadataValue.text(unit.id), FAILED_DAYS: days_text}
    return dg.Failure("\n".join([headline, *listed, then]), metadata=metadata, allow_retries=False)
