"""The report of a unit, written anew whenever a step has changed what it says; knows nothing of Dagster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backfill_assets.application import Application
from backfill_assets.core.unit import Unit

if TYPE_CHECKING:
    from backfill_assets.report.page import Reports


@dataclass(frozen=True)
class Told:
    """What is said of a unit: the sentence of its verdict, the path of its page, and its address if somebody serves it."""

    sentence: str = ""
    page: str = ""
    address: str = ""


def tell(application: Application, unit: Unit, warn: Callable[[str], object], *, again: bool = False) -> Told:
    """Write the report of a unit, and say where it is; of a live unit of one day only the sentence, there are too many.

    Where a release is told `again`, the page that was written after it stays.
    """
    sentence = page = address = ""
    with never_in_the_way(unit, warn):
        review = application.reviews.of(unit.id)
        sentence = review.judgement.sentence
        if not unit.live or len(unit.days) > 1:
            reports = reports_of(application)
            written = (reports.written_since(review) if again else None) or reports.write(review)
            page, address = str(written), reports.address(written)
    return Told(sentence, page, address)


def reports_of(application: Application) -> Reports:
    """The folder of reports that the settings name."""
    # Altair and the scripts of the charts take longer to load than most steps to run.
    from backfill_assets.report.page import Reports  # noqa: PLC0415

    return Reports(application.settings.reports, application.settings.reports_url)


@contextmanager
def never_in_the_way(unit: Unit, warn: Callable[[str], object]) -> Iterator[None]:
    """Whatever goes wrong within is a warning: no run, release or command fails because nobody can read about it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # see above
        warn(f"unit {unit.id}: its report could not be written ({error!r}); try: backfill report {unit.id}")
