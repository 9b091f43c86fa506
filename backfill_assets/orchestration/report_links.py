"""The report of a unit in Dagster's metadata: the sentence of its verdict, and the way to its page."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import dagster as dg

from backfill_assets.application import Application
from backfill_assets.domain.units import ReleaseMode, Unit, UnitState
from backfill_assets.orchestration.names import asset_key

REPORT_METADATA = "report"
"""Metadata key of the page of a unit's report: its address if somebody serves the folder, otherwise its path."""
REVIEW_METADATA = "review"
"""Metadata key of the verdict's sentence."""

Metadata = Mapping[str, dg.MetadataValue]


def report_metadata(application: Application, unit: Unit, log: logging.Logger, *, again: bool = False) -> Metadata:
    """Write the report of a unit, and say where it is; of a live unit of one day only the sentence, there are too many.

    Where it is told `again` of a release, the page that was written after that stays.
    Whatever goes wrong is logged as a warning: no run and no release fails because nobody can read about it.
    """
    found: dict[str, dg.MetadataValue] = {}
    try:
        review = application.reviews.of(unit.id)
        found[REVIEW_METADATA] = dg.MetadataValue.md(review.judgement.sentence)
        if not unit.live or len(unit.days) > 1:
            # Altair and the scripts of the charts take longer to load than most steps to run.
            from backfill_assets.reports.writing import Reports  # noqa: PLC0415

            reports = Reports(application.settings.reports, application.settings.reports_url)
            page = (reports.written_since(review) if again else None) or reports.write(review)
            address = reports.address(page)
            found[REPORT_METADATA] = dg.MetadataValue.url(address) if address else dg.MetadataValue.path(str(page))
    except Exception as error:  # noqa: BLE001  # see above
        log.warning(f"unit {unit.id}: its report could not be written ({error!r}); try: backfill report {unit.id}")
    return found


def report_waiting(context: dg.OpExecutionContext, application: Application, unit: Unit, dataset: str) -> None:
    """Write the report of a unit that waits for somebody, once nothing is lacking, and say so beside its shadow."""
    if (
        unit.mode is not ReleaseMode.manual
        or unit.state is not UnitState.open
        or application.publisher.missing(unit.id)
    ):
        return
    metadata = report_metadata(application, unit, context.log)
    if metadata:
        context.log_event(
            dg.AssetObservation(asset_key("shadow", dataset), metadata=metadata, description="ready for review")
        )
