"""The definitions that Dagster loads: those of all datasets, and a report that reads one of them."""

from __future__ import annotations

import os

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.consumers.carrier_report import carrier_report
from backfill_assets.environment import require_one_environment
from backfill_assets.orchestration.definitions import definitions_of

require_one_environment(os.environ)
_application = Application.from_env()
_report = carrier_report(_application.settings.state / "carrier_report")
_consumers = [_report] if "flights" in _application.datasets else []

defs = dg.Definitions.merge(definitions_of(_application), dg.Definitions(assets=_consumers))
