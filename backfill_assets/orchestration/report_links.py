"""The report of a unit in Dagster's metadata: the sentence of its verdict, and the way to its page."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.core.unit import ReleaseMode, Unit, UnitState
from backfill_assets.orchestration.names import asset_key
from backfill_assets.orchestration.unit_report import never_in_the_way, tell

REPORT_METADATA = "report"
"""Metadata key of the page of a unit's report: its address if somebody serves the folder, otherwise its path."""
REVIEW_METADATA = "review"
"""Metadata key of the verdict's sentence."""

Metadata = Mapping[str, dg.MetadataValue]


def report_metadata(application: Application, unit: Unit, log: logging.Logger, *, again: bool = False) -> Metadata:
    """Write the report of a unit, and say where it is; whatever goes wrong is logged as a warning.

    Where it is told `again` of a release, the page that was written after that stays.
    """
    told = tell(application, unit, log.warning, again=again)
    # As text: reasons and values of rows are in it, which are no Markdown.
    found: dict[str, dg.MetadataValue] = (
        {REVIEW_METADATA: dg.MetadataValue.text(told.sentence)} if told.sentence else {}
    )
    if told.page:
        link = dg.MetadataValue.url(told.address) if told.address else dg.MetadataValue.path(told.page)
        found[REPORT_METADATA] = link
    return found


def report_waiting(context: dg.OpExecutionContext, application: Application, unit: Unit, dataset: str) -> None:
    """Write the report of a unit that waits for somebody, once nothing is lacking, and say so beside its shadow."""
    if unit.mode is not ReleaseMode.manual or unit.state is not UnitState.open:
        return
    with never_in_the_way(unit, context.log.warning):
        # The survey reads all days of the unit, and may measure published files: not after each of many runs.
        if not _all_passed(application, unit) or application.publisher.missing(unit.id):
            return
        metadata = report_metadata(application, unit, context.log)
        if metadata:
            context.log_event(
                dg.AssetObservation(asset_key("shadow", dataset), metadata=metadata, description="ready for review")
            )


def _all_passed(application: Application, unit: Unit) -> bool:
    for name, days in unit.targets.items():
        found = application.ledger.findings(name, dict.fromkeys(days, unit.id))
        if not all(day in found and found[day].passed for day in days):
            return False
    return True
