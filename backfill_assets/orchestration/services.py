"""The use cases that need a Dagster instance besides the application."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.control.catch_up import CatchingUp
from backfill_assets.control.commands import Control
from backfill_assets.control.conductor import Conductor, Gatekeeper
from backfill_assets.control.standing import Standings
from backfill_assets.core.unit import UNIT_TAG
from backfill_assets.orchestration.backfills import WEBSERVER, DagsterBackfills, live_days, live_runs


@dataclass(frozen=True)
class Services:
    """The use cases for operators, for the sensors that launch, and for the runs of a campaign."""

    control: Control
    conductor: Conductor
    catching_up: CatchingUp
    gatekeeper: Gatekeeper
    standings: Standings


def services_of(application: Application, instance: dg.DagsterInstance, webserver: str = "") -> Services:
    """The use cases for an application and an instance; backfills are launched through `webserver`, if given."""
    gatekeeper = Gatekeeper(application.warehouse, partial(live_runs, instance))
    backfills = DagsterBackfills(instance, webserver or os.environ.get(WEBSERVER, ""))
    of_units = replace(backfills, tag=UNIT_TAG)
    catching_up = CatchingUp(application.warehouse, application.publisher, partial(live_days, instance), of_units)
    notify = application.notifier.notify
    conductor = Conductor(application.warehouse, application.publisher, gatekeeper, backfills, notify)
    control = Control(application.warehouse, conductor, application.planner.plan, notify)
    standings = Standings(
        application.warehouse,
        application.publisher,
        gatekeeper,
        application.guard.obstacles,
        application.settings.roles or None,
    )
    return Services(control, conductor, catching_up, gatekeeper, standings)
