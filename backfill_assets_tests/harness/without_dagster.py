"""Builds and publishes days within this process, as the runs of a backfill do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from pyspark.sql import SparkSession

from backfill_assets.application import Application
from backfill_assets.domain.contract import parse_contract
from backfill_assets.domain.measurement import metric_names
from backfill_assets.domain.units import Launch, ReleaseMode, Unit
from backfill_assets.domain.work import AttemptState

_LEASE = dt.timedelta(minutes=10)


def built(
    application: Application, spark: SparkSession, name: str, days: Sequence[dt.date], expected: object = None
) -> Unit:
    """Land, build and judge the days of a dataset in a unit of their own, which stays open."""
    dataset = application.dataset(name)
    contract = parse_contract(expected, metric_names(dataset), dataset=name, columns=dataset.compared)
    unit_id, at = application.ids.new("u"), application.clock.now()
    launch = Launch({name: frozenset(days)}, f"launch_{unit_id}")
    proposal = Unit(unit_id, launch.opened_by, at, "ada", {name: tuple(days)}, ReleaseMode.manual, contract)
    unit = application.ledger.assign(launch, proposal)
    application.road.land(spark, name, tuple(days))
    attempt = application.ledger.start_attempt(unit.id, name, days, unit.id, _LEASE)
    application.road.build(spark, unit, attempt)
    application.road.validate(spark, unit, attempt)
    application.ledger.end_attempt(attempt.number, AttemptState.done)
    return unit


def publish(application: Application, spark: SparkSession, name: str, days: Sequence[dt.date]) -> None:
    """Readers see the days of a dataset as its models make them now."""
    application.publisher.release(built(application, spark, name, days).id)
