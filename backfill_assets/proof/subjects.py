"""Subjects: the days to recompute of each dataset of a campaign, a unit or a dataset."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from backfill_assets.campaign.execution import Execution
from backfill_assets.campaign.plan import choose_canaries
from backfill_assets.core.days import Days, format_days
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import ProofError
from backfill_assets.core.unit import Unit, UnitState
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import in_force
from backfill_assets.dataset.references import as_published
from backfill_assets.evidence.inputs import force_by_day
from backfill_assets.evidence.known_deliveries import KnownDeliveries
from backfill_assets.evidence.references import FingerprintsByDay, References
from backfill_assets.evidence.relaunches import UpstreamPlaces
from backfill_assets.warehouse import OnWarehouse

SAMPLED: Final = 3
"""The number of days that are recomputed by default."""


@dataclass(frozen=True)
class RecomputedDays:
    """Days of one dataset; with the unit, if there is one, and the execution settings of its campaign."""

    dataset: str
    days: Days
    unit: Unit | None = None
    execution: Execution | None = None

    @property
    def open_unit(self) -> Unit | None:
        """The unit while it is open: its shadows are not published yet."""
        return self.unit if self.unit is not None and self.unit.state is UnitState.open else None


@dataclass(frozen=True)
class Sampled:
    """Days of a dataset to recompute; `upstream` has the days to read by upstream dataset and place.

    A place is a shadow's folder below the published table, or empty for the published rows. `deliveries` are those in force;
    `references` are their fingerprints by day and name, if published days see the versions that they were published with.
    """

    dataset: str
    days: tuple[dt.date, ...]
    upstream: Mapping[str, Mapping[str, tuple[dt.date, ...]]] = field(default_factory=dict)
    deliveries: tuple[Delivery, ...] = ()
    references: FingerprintsByDay = field(default_factory=dict)


@dataclass(frozen=True)
class Subjects(OnWarehouse):
    """Finds the subjects for a name."""

    def of_dataset(self, name: str) -> RecomputedDays:
        """The subject of a dataset, even if a campaign or unit has the same name; raises the same errors as `of`."""
        return self._sampled(RecomputedDays(name, self._published(name)), name, ())

    def of(self, target: str, days: Days = ()) -> tuple[RecomputedDays, ...]:
        """The subjects of a campaign, a unit or a dataset, upstream first; by default, up to three days of each.

        These are the oldest, the newest and the largest of the built days, or for a dataset, of the published days.

        Raises:
            UnitError: there is no campaign, dataset or unit of that name.
            ProofError: a day does not belong to the unit, or nothing was built or delivered that could be recomputed.
            InvalidDayError: a day is outside a dataset's history.
        """
        found = tuple(self._all(target))
        return tuple(self._sampled(subject, target, days) for subject in found)

    def sampled(self, subject: RecomputedDays) -> Sampled:
        """The days of a subject, with the upstream days and the deliveries that they are recomputed from."""
        name, dataset = subject.dataset, self.definitions[subject.dataset]
        found = UpstreamPlaces(self.warehouse).of(subject.open_unit, name, subject.days)
        known = KnownDeliveries(self.warehouse).of(name, dataset.fact_delivery_days(subject.days))
        references = References(self.warehouse).of(name, subject.days) if as_published(dataset.references) else {}
        places = {days.loaded.name: days.places for days in found}
        return Sampled(name, subject.days, places, in_force(dataset, known), references)

    def _all(self, target: str) -> Iterator[RecomputedDays]:
        campaign = next((c for c in self.ledger.campaigns() if c.id == target), None)
        if campaign is None and target in self.datasets:
            yield RecomputedDays(target, self._published(target))
            return
        unit: Unit | None = None
        if campaign is None:
            unit = self.ledger.unit(target)
            campaign = self.ledger.campaign_of(unit.id)
        elif campaign.unit:
            unit = self.ledger.unit(campaign.unit)
        execution = campaign.specification.execution if campaign is not None else None
        targets = unit.targets if unit is not None else campaign.plan.targets if campaign is not None else {}
        for name in self.catalog.upstream_first(targets):
            if name not in self.datasets:
                raise ProofError(f"dataset {name!r} is not loaded; put its folder back, or repair its dataset.yaml")
            yield RecomputedDays(name, tuple(targets[name]), unit, execution)

    def _published(self, name: str) -> Days:
        return tuple(day for day, files in self.tables[name].active().items() if files)

    def _sampled(self, subject: RecomputedDays, target: str, days: Days) -> RecomputedDays:
        name, dataset = subject.dataset, self.definitions[subject.dataset]
        dataset.check_days(days)
        if subject.unit is not None and (strangers := set(days) - set(subject.days)):
            raise ProofError(
                f"{target} does not hold {name} {format_days(strangers)}; name some of {format_days(subject.days)}"
            )
        sizes = self._sizes(subject)
        candidates = self._delivered(dataset, days or tuple(sizes) or subject.days)
        if not candidates:
            raise ProofError(
                f"{target}: nothing of {name} can be recomputed: nothing was delivered or published for "
                f"{format_days(days) if days else 'any day'}. Materialize {name}/raw first, or name other days with --partitions"
            )
        chosen = days or choose_canaries(candidates, sizes, SAMPLED)
        return RecomputedDays(name, tuple(sorted(chosen)), subject.unit, subject.execution)

    def _sizes(self, subject: RecomputedDays) -> Mapping[dt.date, int]:
        """Rows of the days that the open unit has built, or else bytes of the published days."""
        if subject.open_unit is not None:
            evidence = self.ledger.evidence(subject.open_unit.id, subject.dataset)
            return {day: e.measured.shadow.rows for (_, day), e in evidence.items() if e.verdicts}
        active = self.tables[subject.dataset].active(subject.days)
        return {day: sum(f.size for f in files) for day, files in active.items() if files}

    def _delivered(self, dataset: Dataset, days: Days) -> Days:
        """The days with a delivery; all days if the dataset has no source."""
        if dataset.source is None or not days:
            return days
        landed = force_by_day(dataset, KnownDeliveries(self.warehouse).of(dataset.name, dataset.delivery_days(days)))
        return tuple(day for day in days if not landed.keys().isdisjoint(dataset.delivery_days((day,))))
