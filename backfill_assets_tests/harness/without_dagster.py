"""Builds and publishes days within this process, as the runs of a backfill do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from backfill_assets.application import Application
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.expected_change import Contract, parse_contract
from backfill_assets.core.unit import AttemptState, Launch, ReleaseMode, Unit
from backfill_assets.dataset.checks import metric_names
from backfill_assets.dataset.loaded import upstream_first

_LEASE = dt.timedelta(minutes=10)


def opened(
    application: Application, targets: Mapping[str, Sequence[dt.date]], contract: Contract | None = None
) -> Unit:
    """A unit over some days of each dataset, with nothing built yet."""
    unit_id, days = application.ids.new("u"), {name: tuple(own) for name, own in targets.items()}
    launch = Launch({name: frozenset(own) for name, own in days.items()}, f"launch_{unit_id}")
    proposal = Unit(
        unit_id,
        launch.opened_by,
        application.clock.now(),
        "ada",
        days,
        ReleaseMode.manual,
        contract or Contract(),
    )
    return application.ledger.assign(launch, proposal)


def build(application: Application, spark: SparkSession, unit: Unit) -> None:
    """Land, build and judge all days of a unit, for the first time or again; derived datasets come after their upstreams."""
    for name in upstream_first(unit.targets, application.catalog.upstreams):
        days = unit.targets[name]
        if application.datasets[name].dataset.lands_files:
            application.pipeline.land(spark, name, days)
        attempt = application.ledger.start_attempt(unit.id, name, days, unit.id, _LEASE)
        application.pipeline.build(spark, unit, attempt)
        application.pipeline.validate(spark, unit, attempt)
        application.ledger.end_attempt(attempt.number, AttemptState.done)


def built(
    application: Application, spark: SparkSession, name: str, days: Sequence[dt.date], expected: object = None
) -> Unit:
    """Land, build and judge the days of a dataset in a unit of their own, which stays open."""
    dataset = application.dataset(name)
    contract = parse_contract(expected, metric_names(dataset), dataset=name, columns=dataset.promisable)
    unit = opened(application, {name: days}, contract)
    build(application, spark, unit)
    return unit


def judged(application: Application, unit: Unit, name: str) -> dict[dt.date, DayEvidence]:
    """The evidence of a unit's days in a dataset."""
    return {day: one for (_, day), one in application.ledger.evidence(unit.id, name).items()}


def publish(application: Application, spark: SparkSession, name: str, days: Sequence[dt.date]) -> None:
    """Readers see the days of a dataset as its models make them now."""
    application.publisher.release(built(application, spark, name, days).id)
