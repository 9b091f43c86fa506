"""Turns a specification into a frozen plan; writes nothing but the plan."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backfill_assets.campaign.load import LoadedSpecification, load_specification, misfits, scoped
from backfill_assets.campaign.plan import (
    SHOWN_DIGITS,
    Cut,
    Estimate,
    Plan,
    PlannedDataset,
    Price,
    Rate,
    batches,
    choose_canaries,
    estimate_left,
    rates_of,
    steps,
)
from backfill_assets.campaign.specification import FirstLayer, Specification
from backfill_assets.campaign.state import Action, Campaign, JournalEntry, Knobs
from backfill_assets.control.figures import NOTHING, FigureReader, Figures, PlanBasis, warnings_of
from backfill_assets.core.canonical import digest, to_json
from backfill_assets.core.days import Days, format_days
from backfill_assets.core.errors import ClaimedDaysError, SpecificationError
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import Attempt, AttemptState
from backfill_assets.dataset.definition import Dataset
from backfill_assets.evidence.basis import BasisNow
from backfill_assets.ledger.open import Ledger
from backfill_assets.storage.disk import write_atomically
from backfill_assets.warehouse import OnWarehouse


def refuse_claimed(ledger: Ledger, campaign: str, targets: Mapping[str, Collection[dt.date]]) -> None:
    """Refuse days, by dataset, that belong to an open unit other than the campaign's own.

    Raises:
        ClaimedDaysError: names the first such unit, its days and the remedy.
    """
    for name, days in targets.items():
        claims = ledger.claims(name, days)
        for owner in sorted(set(claims.values())):
            unit = ledger.unit(owner)
            # A campaign that is planned again after its launch finds the claims of its own unit.
            if unit.campaign != campaign:
                own = format_days(day for day, holder in claims.items() if holder == owner)
                of = f" of campaign {unit.campaign}" if unit.campaign else ""
                raise ClaimedDaysError(
                    f"{name} {own}: claimed by open unit {owner}{of}; publish it (backfill publish {unit.handle}) "
                    f"or give it up (backfill discard {unit.handle}) first"
                )


@dataclass(frozen=True)
class Planner(OnWarehouse):
    """Makes plans from the catalog, the ledger, the table logs and the sizes of source files.

    `price` is the cost of an hour of batch time, if configured; `chunk_days` replaces the days per run that the datasets name.
    """

    basis: BasisNow
    price: Price | None = None
    chunk_days: int | None = None

    def plan(self, specification: Specification, canaries: Days | None = None) -> Plan:
        """The plan of a specification that fits the catalog, by the current state; `canaries` are chosen unless given.

        Rows are the published ones, otherwise the delivered ones; bytes are those of the files that the batches will read.
        The time comes from each dataset's newest finished attempts in the ledger (`rate_of`), or from `ASSUMED` if nothing
        was measured yet.

        Raises:
            ClaimedDaysError: another open unit has claimed some of the days.
            InvalidDayError: days are outside a dataset's history.
            SourceError: the file of a reference is missing.
            SpecificationError: it wants canaries of a dataset that looks back at another one of the campaign.
        """
        targets = self._targets(specification)
        refuse_claimed(self.ledger, specification.backfill_id, targets)
        if specification.execution.canary is not None:
            self._refuse_lookback(tuple(targets))
        figures = self._figures(specification, targets)
        datasets = tuple(self._planned(specification, figures[name], days) for name, days in targets.items())
        canaries = _canaries(specification, figures) if canaries is None else canaries
        estimate = self._estimate(specification, figures, canaries, targets)
        holds = {name: self.ledger.holds(name, days) for name, days in targets.items()}
        survey = PlanBasis(specification, self.catalog, datasets, figures, holds, estimate)
        return Plan(
            campaign=specification.backfill_id,
            specification=specification.hash,
            created_at=self.clock.now(),
            datasets=datasets,
            canaries=canaries,
            steps=steps(specification, datasets, canaries, self._chunk(targets)),
            estimate=estimate,
            warnings=warnings_of(survey),
        )

    def _targets(self, specification: Specification) -> Mapping[str, Days]:
        """The days of each dataset of the scope: those of the target, from the dataset's own `start` on."""
        names, days = scoped(specification, self.catalog), specification.source_range.days
        self.catalog.dataset(specification.target.dataset).dataset.check_days(days)
        return {name: self.catalog.dataset(name).dataset.from_start(days) for name in names}

    def freeze(self, file: Path, computes: Collection[str], state: Path) -> tuple[Campaign, Path]:
        """Plan the specification in a file and freeze the plan; returns the campaign and the file of its plan.

        `computes` are the names of the endpoints that this process knows, `state` is the folder for plans.

        Raises:
            SpecificationError: names every problem of the specification with its line.
            CampaignError: the campaign was launched before.
            ClaimedDaysError: another open unit has claimed some of the days.
            SourceError: the file of a reference is missing.
        """
        specification = self._checked(file, computes)
        plan, now = self.plan(specification), self.clock.now()
        campaign = Campaign(
            specification=specification,
            plan=plan,
            knobs=Knobs(specification.execution.max_concurrency, specification.execution.partitions_per_batch),
            created_at=now,
            # Absolute: processes that read it later, such as the daemon, run in another folder.
            file=str(file.absolute()),
        )
        detail = {"plan": plan.fingerprint, "specification": specification.hash}
        entry = JournalEntry(campaign.id, now, self.identity.name(), Action.planned, "", detail)
        return self.ledger.add_campaign(campaign, entry), write_plan(state, plan)

    def _checked(self, file: Path, computes: Collection[str]) -> Specification:
        loaded = load_specification(file)
        if isinstance(loaded, LoadedSpecification):
            problems = misfits(loaded, self.catalog, now=self.clock.now(), computes=computes)
            if not problems:
                return loaded.specification
        else:
            problems = loaded
        raise SpecificationError("\n".join(str(problem) for problem in problems))

    def inputs(self, name: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """The current inputs of each day as plans record them: deliveries, references and published upstreams.

        Raises:
            SourceError: the file of a reference is missing.
        """
        own = self.basis.inputs(name, days)
        if not self.catalog.dataset(name).dataset.upstream:
            return own
        upstream = self.basis.upstream(name, days, None)
        return {day: digest([own[day], upstream[day]]) for day in own}

    def moved(self, plan: Plan) -> tuple[DatasetDay, ...]:
        """The days whose inputs have changed since the plan was made; they are not refused for that.

        Raises:
            SourceError: the file of a reference is missing.
        """
        found = []
        for planned in plan.datasets:
            now = self.inputs(planned.name, planned.days)
            found += [(planned.name, day) for day in planned.days if now[day] != planned.inputs.get(day)]
        return tuple(found)

    def corrected(self, plan: Plan, attempts: Sequence[Attempt], batch_days: int) -> Estimate:
        """The estimate of what is left of a plan, by the measurements of its own attempts (canary and later ones).

        `batch_days` is the number of days in a batch from now on. A dataset without a finished attempt of this campaign
        keeps the rate of earlier attempts in the ledger.
        """
        names = [dataset.name for dataset in plan.datasets]
        rates = rates_of(names, attempts, self._rates(names))
        left = estimate_left(plan, attempts, rates, self._cut(names, batch_days))
        return self._priced(left)

    def _planned(self, specification: Specification, figures: Figures, days: Days) -> PlannedDataset:
        name, expected = figures.dataset.name, figures.expected.values()
        rows, size = sum(amount.rows for amount in expected), sum(amount.bytes for amount in expected)
        layers = layers_from(specification.scope.from_, figures.dataset)
        return PlannedDataset(name, layers, days, self.basis.code(name), dict(self.inputs(name, days)), rows, size)

    def _figures(self, specification: Specification, targets: Mapping[str, Days]) -> dict[str, Figures]:
        reader = FigureReader(self.warehouse)
        landing, found = specification.scope.from_ is FirstLayer.raw, dict[str, Figures]()
        for name, days in targets.items():
            found[name] = reader.read(name, days, found, landing=landing)
        return found

    def _estimate(
        self,
        specification: Specification,
        figures: Mapping[str, Figures],
        canaries: Days,
        targets: Mapping[str, Days],
    ) -> Estimate:
        cut, chosen = self._cut(figures, specification.execution.partitions_per_batch), frozenset(canaries)
        rates = self._rates(figures)
        rows, size, count, seconds = 0, 0, 0, 0.0
        for name, known in figures.items():
            days = targets[name]
            cuts = (*cut(day for day in days if day in chosen), *cut(day for day in days if day not in chosen))
            its_rows = sum(amount.rows for amount in known.expected.values())
            rows, size = rows + its_rows, size + sum(known.bytes_read(batch) for batch in cuts)
            count, seconds = count + len(cuts), seconds + rates[name].seconds(len(cuts), its_rows)
        return self._priced(Estimate(rows, size, count, round(seconds, 1)))

    def _rates(self, names: Iterable[str]) -> Mapping[str, Rate]:
        return rates_of(names, self.ledger.attempts(state=AttemptState.done), {})

    def _cut(self, names: Iterable[str], batch_days: int) -> Cut:
        chunk = self._chunk(names)
        return lambda days: batches(days, batch_days, chunk)

    def _chunk(self, names: Iterable[str]) -> int:
        return self.chunk_days or min(self.catalog.dataset(name).dataset.chunk_days for name in names)

    def _priced(self, estimate: Estimate) -> Estimate:
        return replace(estimate, cost=self.price.of(estimate.seconds)) if self.price is not None else estimate

    def _refuse_lookback(self, names: Sequence[str]) -> None:
        """Refuse canaries of a dataset that looks back: they would need upstream days that are no canaries."""
        for name in names:
            for above, upstream in self.catalog.dataset(name).dataset.upstream.items():
                if above in names and upstream.lookback_days:
                    raise SpecificationError(
                        f"execution.canary: each day of {name} is also built from the {upstream.lookback_days} days before it of "
                        f"{above}, which this campaign builds as well, so no day can be tried alone; leave canary out, or "
                        "recompute the datasets in two campaigns (scope.downstream: none)"
                    )


def _canaries(specification: Specification, figures: Mapping[str, Figures]) -> Days:
    canary, days = specification.execution.canary, specification.source_range.days
    if canary is None:
        return ()
    # A day that all datasets have tries all of them.
    common = [day for day in days if all(day in known.expected for known in figures.values())] or days
    sizes = {day: sum(known.expected.get(day, NOTHING).bytes for known in figures.values()) for day in common}
    return choose_canaries(common, sizes, canary.partitions)


def layers_from(first: str, dataset: Dataset) -> tuple[Layer, ...]:
    """The layers of a dataset that a campaign builds, from the first one that it has: never published."""
    order = list(Layer)
    return tuple(layer for layer in dataset.built_layers if order.index(layer) >= order.index(Layer(first)))


def write_plan(state: Path, plan: Plan) -> Path:
    """Write a frozen plan below the state folder, completely or not at all; each plan of a campaign has its own file."""
    file = state / "campaigns" / plan.campaign / f"plan-{plan.fingerprint[:SHOWN_DIGITS]}.json"
    write_atomically(file, to_json(plan) + "\n")
    return file
