"""The certificate of idempotency: computes sampled days again in several ways and names every difference."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from backfill_assets.campaign.execution import Execution
from backfill_assets.core.certificate import (
    AS_BUILT,
    INPUT_ROWS,
    Certificate,
    Disagreement,
    Prints,
    Recomputation,
    differing_columns,
    origin_of,
)
from backfill_assets.core.days import Days, format_days
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import ProofError
from backfill_assets.core.measured import Value
from backfill_assets.core.release import SHADOW, ReleaseState, layout_digest
from backfill_assets.core.unit import StagedDay
from backfill_assets.delta.table import PublishedTable
from backfill_assets.evidence.basis import PUBLISHED, BasisNow
from backfill_assets.evidence.contents import effective
from backfill_assets.evidence.inputs import reference_stamps
from backfill_assets.proof.subjects import RecomputedDays, Sampled, Subjects
from backfill_assets.warehouse import OnWarehouse


class Recomputations(Protocol):
    """Computes days again in scratch shadows, and fingerprints the results."""

    def recompute(self, sampled: Sampled, folder: str, how: Recomputation) -> None:
        """Compute the days from raw and upstream, including staging, into a folder below the published table.

        Raises `ModelError` or `SourceError` if they cannot be computed.
        """
        ...

    def prints(self, dataset: str, days: Collection[dt.date], place: str) -> Mapping[dt.date, Prints]:
        """The prints of the days in a shadow's folder, or of the published rows if `place` is empty."""
        ...

    def rows(
        self, dataset: str, days: Collection[dt.date], places: tuple[str, str]
    ) -> Mapping[dt.date, tuple[Mapping[str, Value], ...]]:
        """Some rows in which two places differ, by day, as in `Disagreement`; `old` is the value in the first place."""
        ...

    def layouts(self, dataset: str) -> Mapping[str, Mapping[dt.date, str]]:
        """Digests of the current files of raw and staging in their Delta logs, by table and then day."""
        ...


_Layouts = Mapping[dt.date, str]


@dataclass(frozen=True)
class TablesAround:
    """The layouts of a dataset's tables by day at one moment, and what the ledger knew about them."""

    published: _Layouts
    layouts: Mapping[str, _Layouts]
    releases: frozenset[str]
    deliveries: frozenset[Delivery]
    staged: Mapping[dt.date, StagedDay]


@dataclass(frozen=True)
class Watch(OnWarehouse):
    """Finds changes of a dataset's tables during a recomputation, without releases, landings and stagings by others."""

    def look(self, name: str, recomputations: Recomputations) -> TablesAround:
        """The current layouts and ledger entries."""
        # The ledger first: what is written between the two reads is in neither, and is looked up later.
        releases = {n for n, head in self.ledger.heads().items() if head.state is ReleaseState.finalized}
        layouts = recomputations.layouts(name)
        days = tuple({day for table, found in layouts.items() if table != "raw" for day in found})
        return TablesAround(
            self._published(name),
            layouts,
            frozenset(releases),
            frozenset(self.ledger.deliveries(name, tuple(layouts.get("raw", {})))),
            self.ledger.staged(name, days),
        )

    def touched(self, name: str, before: TablesAround, recomputations: Recomputations) -> tuple[str, ...]:
        """Tables and days that changed since, without a release, landing or staging by another process."""
        found = list(self._moved(name, before, recomputations))
        return tuple(f"{table} {format_days(days)}" for table, days in found if days)

    def _moved(
        self, name: str, before: TablesAround, recomputations: Recomputations
    ) -> Iterator[tuple[str, frozenset[dt.date]]]:
        now, layouts = self._published(name), recomputations.layouts(name)
        moved = _changed(before.published, now)
        yield "published", moved - self._released(name, before) if moved else moved
        for table in sorted(before.layouts.keys() | layouts.keys()):
            moved = _changed(before.layouts.get(table, {}), layouts.get(table, {}))
            if not moved:
                continue
            yield table, moved - (self._landed if table == "raw" else self._staged)(name, before, moved)

    def _published(self, name: str) -> _Layouts:
        return {day: layout_digest(files) for day, files in self.tables[name].active().items()}

    def _released(self, name: str, before: TablesAround) -> frozenset[dt.date]:
        since = (r.manifest for r in self.ledger.releases(name) if r.manifest.release not in before.releases)
        return frozenset(swap.day for manifest in since for swap in manifest.days)

    def _landed(self, name: str, before: TablesAround, days: frozenset[dt.date]) -> frozenset[dt.date]:
        return frozenset(d.day for d in self.ledger.deliveries(name, tuple(days)) if d not in before.deliveries)

    def _staged(self, name: str, before: TablesAround, days: frozenset[dt.date]) -> frozenset[dt.date]:
        now = self.ledger.staged(name, tuple(days))
        return frozenset(day for day, staged in now.items() if staged != before.staged.get(day))


def _changed(before: _Layouts, now: _Layouts) -> frozenset[dt.date]:
    return frozenset(day for day in before.keys() | now.keys() if before.get(day) != now.get(day))


_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_SETTINGS: Final = {"spark.sql.adaptive.enabled": "false", "spark.sql.autoBroadcastJoinThreshold": "-1"}

AllPrints = dict[str, Mapping[dt.date, Prints]]


@dataclass(frozen=True)
class _Shown:
    """A day as it was built before: the place of its rows, and their recorded fingerprint."""

    place: str
    fingerprint: str


@dataclass(frozen=True)
class Prover(OnWarehouse):
    """Issues certificates; writes only certificates and scratch shadows, which it removes.

    `recomputing` gives the engine with the execution settings of a campaign.
    """

    basis: BasisNow
    recomputing: Callable[[Execution | None], Recomputations]

    def prove(self, target: str, days: Days = ()) -> tuple[Certificate, ...]:
        """Certify a campaign, a unit or a dataset: one certificate for each of its datasets, passed or not.

        Raises:
            UnitError: there is no campaign, dataset or unit of that name.
            ProofError: nothing can be recomputed, or the inputs changed meanwhile.
            InvalidDayError: a day is outside a dataset's history.
            EvidenceError: an upstream day of the unit has not passed its checks.
            ModelError: a model fails.
        """
        return tuple(self._certified(subject) for subject in Subjects(self.warehouse).of(target, days))

    def _certified(self, subject: RecomputedDays) -> Certificate:
        name, certificate = subject.dataset, self.ids.new("p")
        scratch = f"{SHADOW}/{certificate}"
        engine, watch = self.recomputing(subject.execution), Watch(self.warehouse)
        before, inputs, given = watch.look(name, engine), self._inputs(subject), self._references(name)
        ways = ways_for(subject.execution)
        try:
            prints, disagreements = self._recomputed(subject, engine, scratch, ways, inputs)
        finally:
            remove_scratch(self.tables[name], scratch)
        if moved := [day for day, found in self._inputs(subject).items() if found != inputs[day]]:
            raise ProofError(
                f"{name} {format_days(moved)}: deliveries, references or upstreams changed while the days were recomputed; "
                "prove them again"
            )
        if self._references(name) != given:
            raise ProofError(f"{name}: a reference file was replaced while the days were recomputed; prove them again")
        issued = Certificate(
            id=certificate,
            dataset=name,
            unit=subject.unit.id if subject.unit is not None else "",
            days=subject.days,
            code=self.basis.code(name),
            inputs=inputs,
            recomputations=(*ways, *([Recomputation(AS_BUILT, {})] if AS_BUILT in prints else [])),
            prints=prints,
            disagreements=disagreements,
            touched=watch.touched(name, before, engine),
            at=self.clock.now(),
            by=self.identity.name(),
        )
        self.ledger.add_certificate(issued)
        return issued

    def _recomputed(
        self,
        subject: RecomputedDays,
        engine: Recomputations,
        scratch: str,
        ways: Sequence[Recomputation],
        inputs: Mapping[dt.date, str],
    ) -> tuple[AllPrints, tuple[Disagreement, ...]]:
        sampled, prints = Subjects(self.warehouse).sampled(subject), AllPrints()
        for number, way in enumerate(ways, 1):
            engine.recompute(sampled, f"{scratch}/{number}", way)
            prints[way.name] = engine.prints(sampled.dataset, sampled.days, f"{scratch}/{number}")
        places = {way.name: dict.fromkeys(sampled.days, f"{scratch}/{n}") for n, way in enumerate(ways, 1)}
        if shown := self._as_built(subject, inputs):
            places[AS_BUILT] = {day: found.place for day, found in shown.items()}
            prints[AS_BUILT] = _shown_prints(engine, sampled.dataset, shown)
        return prints, tuple(_disagreements(engine, sampled.dataset, prints, places))

    def _inputs(self, subject: RecomputedDays) -> Mapping[dt.date, str]:
        name, days = subject.dataset, subject.days
        inputs, upstream = self.basis.inputs(name, days), self.basis.upstream(name, days, subject.open_unit)
        return {day: origin_of(inputs[day], upstream[day]) for day in days}

    def _references(self, name: str) -> Mapping[str, tuple[object, ...]]:
        return reference_stamps(self.datasets[name], self.layout)

    def _as_built(self, subject: RecomputedDays, inputs: Mapping[dt.date, str]) -> Mapping[dt.date, _Shown]:
        """The places of the days as they were built before, by the same code from the same inputs."""
        name, days, unit = subject.dataset, subject.days, subject.open_unit
        code = self.basis.code(name)
        if unit is None:
            return self._published(name, days, inputs)
        evidence = self.ledger.evidence(unit.id, name, days)
        return {
            day: _Shown(e.folder, e.measured.shadow.fingerprint)
            for (_, day), e in evidence.items()
            if e.verdicts and (e.basis.code, origin_of(e.basis.inputs, e.basis.upstream)) == (code, inputs[day])
        }

    def _published(self, name: str, days: Days, inputs: Mapping[dt.date, str]) -> Mapping[dt.date, _Shown]:
        active = {day: files for day, files in self.tables[name].active(days).items() if files}
        contents = self.ledger.contents(name, {day: layout_digest(files) for day, files in active.items()})
        standing = effective(self.ledger.releases(name)) if contents else {}
        same = {day for day in contents if day in standing and standing[day].code_version == self.basis.code(name)}
        return {
            day: _Shown(PUBLISHED, content.fingerprint)
            for day, content in contents.items()
            if day in same and content.inputs and origin_of(content.inputs, content.upstream) == inputs[day]
        }


def remove_scratch(table: PublishedTable, folder: str) -> None:
    """Remove the scratch shadows in a folder below a published table."""
    table.delete(file.path for file in table.stored_files() if file.path.startswith(f"{folder}/"))


def ways_for(execution: Execution | None) -> tuple[Recomputation, ...]:
    """The ways in which days are computed: as configured, again, and on an engine with other settings."""
    configured = dict(execution.spark) if execution is not None else {}
    partitions = "7" if configured.get(_PARTITIONS) != "7" else "11"
    other = {**configured, **_SETTINGS, _PARTITIONS: partitions, INPUT_ROWS: "in another order"}
    return (
        Recomputation("as configured", configured),
        Recomputation("again", configured),
        Recomputation("another engine", other),
    )


def _shown_prints(engine: Recomputations, name: str, shown: Mapping[dt.date, _Shown]) -> Mapping[dt.date, Prints]:
    found: dict[dt.date, Prints] = {}
    for place in sorted({one.place for one in shown.values()}):
        own = tuple(day for day, one in shown.items() if one.place == place)
        found |= engine.prints(name, own, place)
    # Compare with the recorded fingerprint, even if the files have changed since.
    return {day: replace(prints, fingerprint=shown[day].fingerprint) for day, prints in found.items()}


def _disagreements(
    engine: Recomputations, name: str, prints: AllPrints, places: Mapping[str, Mapping[dt.date, str]]
) -> Iterator[Disagreement]:
    first, *others = prints
    for other in others:
        days = tuple(day for day, found in prints[other].items() if found != prints[first][day])
        pairs = {(places[first][day], places[other][day]) for day in days}
        rows: dict[dt.date, tuple[Mapping[str, Value], ...]] = {}
        for pair in sorted(pairs):
            own = tuple(day for day in days if places[other][day] == pair[1])
            rows |= engine.rows(name, own, pair)
        for day in days:
            columns = differing_columns(prints[first][day], prints[other][day])
            yield Disagreement(day, other, columns, rows.get(day, ()))
