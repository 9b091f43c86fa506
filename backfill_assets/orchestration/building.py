"""Builds the shadow of the days of a unit that lack good evidence, all of a run's at once."""

import datetime as dt
import time
from collections.abc import Collection
from typing import Final

from backfill_assets.application import Application
from backfill_assets.core.days import format_days
from backfill_assets.core.unit import Attempt, AttemptState, Unit, UnitState
from backfill_assets.orchestration.launches import Context, work_tag
from backfill_assets.orchestration.leases import kept_lease

_BETWEEN_STEPS: Final = 10
"""How many leases long the way from the shadow to its checks may take."""
_LOOK_SECONDS: Final = 1.0


def build(
    context: Context, application: Application, name: str, unit: Unit, days: tuple[dt.date, ...]
) -> tuple[dt.date, ...]:
    """Build those of a dataset's days that have no good evidence in the unit; the days that were built.

    Raises:
        ModelError: the fact model fails or returns other columns than declared.
        EvidenceError: an upstream that the unit holds has not passed its checks.
        LeaseLostError: another attempt has taken these days over.
    """
    ledger, lease = application.ledger, application.settings.lease
    # Before the session, which would stand open while another launch is at work.
    attempt = _begun(context, application, unit, name, days)
    if attempt is None:
        context.log.info(f"unit {unit.id}: nothing is left to build of {format_days(days)}")
        return ()
    context.log.info(f"unit {unit.id}: building {format_days(attempt.days)} of {format_days(days)}")
    with kept_lease(ledger, attempt, lease), application.session(work_tag(context, "shadow", name)) as spark:
        application.road.build(spark, unit, attempt)
    # Until the checks begin, Dagster stores an event per day; nobody renews the lease meanwhile.
    ledger.renew(attempt.number, lease * _BETWEEN_STEPS)
    return attempt.days


def _begun(
    context: Context, application: Application, unit: Unit, name: str, days: tuple[dt.date, ...]
) -> Attempt | None:
    """An attempt on the days that lack good evidence, once no other launch is at work on them; `None` if none lacks any.

    Two launches of the same days at once would otherwise take them from each other, and build them twice.
    """
    ledger, told = application.ledger, False
    while True:
        with ledger.lock(f"build:{name}", application.settings.query_timeout):
            if ledger.unit(unit.id).state is not UnitState.open:
                return None
            todo = application.road.days_to_build(unit, name, days)
            if not todo:
                return None
            other = _other_at_work(context, application, unit, name, todo)
            if other is None:
                return ledger.start_attempt(unit.id, name, todo, context.run.run_id, application.settings.lease)
        if not told:
            told = True
            context.log.info(
                f"waiting for run {other.run} (attempt {other.number}) at work on {format_days(other.days)}"
            )
        time.sleep(_LOOK_SECONDS)


def _other_at_work(
    context: Context, application: Application, unit: Unit, name: str, days: Collection[dt.date]
) -> Attempt | None:
    """The living attempt of another launch on any of the days; what a run retries was its own."""
    own, now = {context.run.run_id, context.run.root_run_id, context.run.parent_run_id}, application.clock.now()
    for attempt in application.ledger.attempts(unit.id, AttemptState.running):
        same = attempt.dataset == name and set(attempt.days) & set(days)
        if same and attempt.run not in own and attempt.lease_until > now:
            run = context.instance.get_run_by_id(attempt.run)
            if run is not None and not run.is_finished:
                return attempt
    return None
