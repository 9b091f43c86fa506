"""Takes a batch of days through all steps: land, stage, build the shadow, measure, judge."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from backfill_assets.core.days import Days, format_days
from backfill_assets.core.errors import EvidenceError, SourceError, UnitError
from backfill_assets.core.evidence import Basis, DayEvidence
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.layers import Layer
from backfill_assets.core.measured import NOTHING, Alone, Compared, DayMeasurement, SourceState, UpstreamState
from backfill_assets.core.release import layout_digest
from backfill_assets.core.unit import LOCK_WAIT, Attempt, StagedDay, Unit
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import in_force
from backfill_assets.dataset.parts import code_parts
from backfill_assets.dataset.references import seen_alike
from backfill_assets.evidence.basis import Behind, CurrentBasis
from backfill_assets.evidence.inputs import awaited_in, by_delivery_day, source_state, week_before
from backfill_assets.evidence.readiness import Readiness
from backfill_assets.evidence.references import FingerprintsByDay, keep_versions
from backfill_assets.evidence.relaunches import UpstreamPlaces, absent_before
from backfill_assets.pipeline.build import Audit, build_shadow, built_alone
from backfill_assets.pipeline.differences import Question, row_differences
from backfill_assets.pipeline.frames import Frames, require_declared_columns, waited_for
from backfill_assets.pipeline.golden import golden_counts, golden_samples
from backfill_assets.pipeline.judge import judge
from backfill_assets.pipeline.judge_rows import days_to_build_alone, schema_change
from backfill_assets.pipeline.land import Landing
from backfill_assets.pipeline.measure import Around, Neighbours, Sides, measure, measure_upstreams, week_around
from backfill_assets.pipeline.samples import Samples, columns_behind, failed_days, sample
from backfill_assets.pipeline.stage import aggregates_deliveries, held_in_staging, rows_in_staging, stage
from backfill_assets.pipeline.tables import writing
from backfill_assets.storage.sources import gone_from_sources

_TRIES: Final = 3


@dataclass(frozen=True)
class Pipeline(Landing):
    """All steps of a batch of days before its release; each step is idempotent."""

    basis: CurrentBasis

    @property
    def sources(self) -> UpstreamPlaces:
        """The places that upstream days are read from."""
        return UpstreamPlaces(self.warehouse)

    def stage(self, spark: SparkSession, name: str, days: Days, *, live: bool = False) -> Mapping[dt.date, int]:
        """Stage the days whose deliveries, references or code changed since they were staged; returns rows per staged day.

        If deliveries have to be extracted again for that, those of a `live` run are first.

        Raises:
            ModelError: the staging model fails or returns other columns than it must.
            SourceError: raw has fewer rows than were landed, has lost what counts now, or has what the ledger does not know;
                or references keep changing.
        """
        if not days:
            return {}
        # Checked even if nothing is stale: deliveries that this ledger does not know make no day stale.
        self.require_known(name, days)
        stale = self.days_to_stage(name, days)
        if not stale:
            return {}
        loaded = self.datasets[name]
        if self.outdated_readings(name, loaded.dataset.delivery_days(stale)):
            self.land_what_is_there(spark, name, stale, live=live)
        with writing(spark, self.ledger, Layer.staging, name):
            # Decided when nobody else writes: another driver may have staged these days during the wait.
            stale = self.days_to_stage(name, stale)
            if not stale:
                return {}
            for _ in range(_TRIES):
                given = self._plain_stamps(name)
                (inputs, force), code = self.basis.to_stage(name, stale), loaded.code_version
                self.require_raw(name, stale, force)
                counts = stage(spark, loaded, self.layout, stale, force)
                # Counted before it was read: a commit that somebody writes over in between takes rows away.
                self.require_raw(name, stale, force)
                if self._plain_stamps(name) == given:
                    break
            else:
                raise SourceError(
                    f"{name} {format_days(stale)}: a reference file changed {_TRIES} times while these days were staged; "
                    "put the complete file there by renaming it, and launch again"
                )
            self.ledger.add_staged(
                StagedDay(name, day, inputs[day], code, found.outside_rows, found.place, found.files)
                for day, found in counts.items()
            )
        return {day: found.rows for day, found in counts.items()}

    def _plain_stamps(self, name: str) -> Mapping[str, tuple[object, ...]]:
        """The stamps of the references that a staging model sees."""
        dataset, stamps = self.datasets[name].dataset, self.basis.reference_stamps(name)
        return {one: stamps[one] for one in seen_alike(dataset.references)}

    def days_to_stage(self, name: str, days: Days) -> Days:
        """The days that are not staged from their current deliveries, references and code, or whose files were replaced."""
        if not days:
            return ()
        loaded = self.datasets[name]
        inputs, staged = self.basis.staged_inputs(name, days), self.ledger.staged(name, days)
        held = held_in_staging(loaded, self.layout, staged.values())
        now = {day: (inputs[day], loaded.code_version, held.get(day)) for day in days}
        good = {day for day, one in staged.items() if (one.inputs, one.code, one.files) == now[day]}
        return tuple(day for day in days if day not in good)

    @property
    def readiness(self) -> Readiness:
        """Tells what days still need before their release; the release itself uses the same answer."""
        return Readiness(self.warehouse, self.basis.fingerprints, self.basis)

    def days_to_build(self, unit: Unit, name: str, days: Days) -> Days:
        """The days that cannot be released as they are; all other days need no work."""
        return tuple(sorted({blocker.day for blocker in self.readiness.blockers(unit, name, days)}))

    def is_current(self, unit: Unit, name: str, days: Days) -> bool:
        """Whether readers see what a unit has released of these days, and a new build would change nothing.

        Raises:
            SourceError: a file fits two days, or is a link to nothing.
            LayoutError: a link leads out of the sources folder.
        """
        if self.days_to_land(name, days):
            return False
        return self.readiness.is_current(unit, name, days)

    def build(self, spark: SparkSession, unit: Unit, attempt: Attempt) -> None:
        """Build the shadow of an attempt's days and store its basis as evidence without verdicts.

        Raises:
            ModelError: the fact model fails or returns other columns than declared.
            EvidenceError: an upstream that the unit holds has not passed its checks, references keep changing, or other launches
                keep staging the same days or writing days of an upstream.
            SourceError: upstream days were built without a column that is declared now.
            LeaseLostError: another attempt has taken these days over.
        """
        name, days = attempt.dataset, attempt.days
        loaded = self.datasets[name]
        outdated = self.outdated_readings(name, loaded.dataset.fact_delivery_days(days))
        if outdated or (loaded.dataset.has_own_window and self.days_to_land(name, days)):
            # A launch of the shadow alone: the other days of a window must have all their files, and be the same in every batch.
            self.land_what_is_there(spark, name, days, live=unit.live)
        for _ in range(_TRIES):
            files, given = self.basis.source_files(name, days), self.basis.reference_stamps(name)
            window = self.datasets[name].dataset.with_window(days)
            read = window if loaded.staging is not None else ()
            wanted = self.basis.staged_inputs(name, read)
            versions = {above: self.tables[above].version() for above in loaded.dataset.upstream}
            # Read before staging: a change meanwhile leaves stale evidence, never evidence that is too fresh.
            behind, upstream = self.basis.behind(name, days), self.basis.upstream(name, days, unit)
            prints = {day: one.references for day, one in behind.items()}
            keep_versions(loaded, self.layout, prints)
            self.stage(spark, name, read, live=unit.live)
            staged = self._staged_by_this_code(name, read)
            frames = self._frames(spark, unit, attempt, prints)
            # Checked after the digest of the upstream: a rollback to other files in between makes the evidence stale.
            require_declared_columns(self.layout, frames.upstreams)
            provisional = frozenset(day for day, one in behind.items() if awaited_in(one.deliveries))
            build_shadow(frames, Audit(self.clock.now(), unit.id, loaded.code_version, provisional))
            # File names never repeat: the same files before and after were not replaced in between.
            good = staged.keys() == set(read) and self._staged_by_this_code(name, read, wanted) == staged
            # A release that is rolled back meanwhile makes nothing stale, but its rows may have been read.
            moved = self._upstream_written(name, days, versions) or self.basis.upstream(name, days, unit) != upstream
            # What went and came back may be missing in what was read in between: rows of a source table, a reference file.
            still = self.basis.source_files(name, days) == files and self.basis.reference_stamps(name) == given
            # At `live.at` a window may grow, and what was built has no row of the new day.
            still = still and self.datasets[name].dataset.with_window(days) == window
            if good and not moved and still:
                break
        else:
            what = "an upstream, source or reference" if good else "staging"
            raise EvidenceError(
                f"{name} {format_days(days)}: {what} changed {_TRIES} times while its shadow was built; "
                "let other launches of these days end, and launch again"
            )
        contract = unit.contract.of(name).hash
        bases = {day: Basis(behind[day].inputs, loaded.code_version, contract, "", upstream[day]) for day in days}
        parts = self.ledger.add_code(name, code_parts(loaded))
        self.ledger.add_evidence(attempt.number, self._unjudged(attempt, bases, behind, parts))

    def _unjudged(
        self, attempt: Attempt, bases: Mapping[dt.date, Basis], behind: Mapping[dt.date, Behind], parts: str
    ) -> list[DayEvidence]:
        """The evidence of an attempt's shadow: its files and its basis, without verdicts."""
        files = self.tables[attempt.dataset].shadow_files(attempt.folder, attempt.days)
        at = self.clock.now()
        return [
            DayEvidence(
                attempt.unit, attempt.number, attempt.dataset, day, basis, tuple(files.get(day, ())),
                DayMeasurement(day, NOTHING, NOTHING, NOTHING, SourceState()), (), at,
                deliveries=behind[day].deliveries, references=behind[day].references, parts=parts,
            )
            for day, basis in bases.items()
        ]  # fmt: skip

    def _frames(self, spark: SparkSession, unit: Unit, attempt: Attempt, prints: FingerprintsByDay) -> Frames:
        name, days = attempt.dataset, attempt.days
        upstreams = self.sources.of(unit, name, days)
        return Frames(spark, self.datasets[name], self.layout, attempt.folder, days, upstreams, prints)

    def _upstream_written(self, name: str, days: Days, versions: Mapping[str, int]) -> bool:
        """Whether upstream days of these days had other files in any table version since the given `versions`."""
        for above, before in versions.items():
            table, read = self.tables[above], self.datasets[name].dataset.upstream_days(above, days)
            if (newest := table.version()) == before:
                continue
            seen = [table.at(version) if version >= 0 else {} for version in range(before, newest + 1)]
            if len({tuple(layout_digest(found.get(day, ())) for day in read) for found in seen}) > 1:
                return True
        return False

    def _staged_by_this_code(
        self, name: str, days: Days, inputs: Mapping[dt.date, str] | None = None
    ) -> Mapping[dt.date, str]:
        """Digest of the staged files by day; days that are not as this code last staged them are left out.

        Days staged from other `inputs` are left out as well: a delivery may have been withdrawn and restored in between.
        """
        loaded, staged = self.datasets[name], self.ledger.staged(name, days)
        held = held_in_staging(loaded, self.layout, staged.values())
        return {
            d: one.files
            for d, one in staged.items()
            if (one.code, one.files) == (loaded.code_version, held.get(d))
            and (inputs is None or one.inputs == inputs[d])
        }

    def validate(self, spark: SparkSession, unit: Unit, attempt: Attempt) -> tuple[DayEvidence, ...]:
        """Measure, compare and judge an attempt's days, and store evidence and comparisons, whether checks pass or not.

        Measuring takes one pass per side, comparing takes one join of the changed days. At an edge of the unit, or where a month
        begins, one more pass reads the days around them. All of it is done again if another launch stages the same meanwhile, or a
        reference or golden file changes; the shadow is built again if references have changed since.

        Raises:
            UnitError: the attempt has no shadow yet.
            EvidenceError: the days were staged by other code or from other deliveries meanwhile, or something keeps changing.
            LeaseLostError: another attempt has taken these days over.
        """
        name, days = attempt.dataset, attempt.days
        loaded = self.datasets[name]
        for _ in range(_TRIES):
            given, pending = self.basis.reference_stamps(name), self._pending(unit, attempt)
            if self._references_moved(name, pending):
                self.build(spark, unit, attempt)
                pending = self._pending(unit, attempt)
            before = self._staged_from(name, days)
            if done := self._validated(spark, unit, attempt, pending, given):
                return done
            now = self._staged_from(name, days)
            other_code = any(code != loaded.code_version for _, code in now.values())
            if other_code or (now != before and not self._references_moved(name, pending)):
                what = "other code" if other_code else "a launch with other deliveries"
                raise EvidenceError(
                    f"{name} {format_days(days)}: {what} has staged these days while they were checked; let it end, launch again"
                )
        raise EvidenceError(
            f"{name} {format_days(days)}: staging, a reference or a golden file changed {_TRIES} times while these days were "
            "checked; let other launches of them end, and launch again"
        )

    def _staged_from(self, name: str, days: Days) -> Mapping[dt.date, tuple[str, str]]:
        """The inputs and the code that days were staged from; none for a dataset without staging."""
        own = days if self.datasets[name].staging is not None else ()
        return {day: (one.inputs, one.code) for day, one in self.ledger.staged(name, own).items()}

    def _references_moved(self, name: str, pending: Mapping[dt.date, DayEvidence]) -> bool:
        """Whether days were built beside other references or golden sources than those that the checks would read."""
        dataset = self.datasets[name].dataset
        if not dataset.references and not dataset.golden:
            return False
        now = self.basis.behind(name, pending)
        return any(one.references != now[day].references for day, one in pending.items())

    def _validated(
        self, spark: SparkSession, unit: Unit, attempt: Attempt, pending: Mapping[dt.date, DayEvidence],
        given: Mapping[str, tuple[object, ...]],
    ) -> tuple[DayEvidence, ...]:  # fmt: skip
        """`validate` without repetition; returns and stores nothing if the days were staged, or files are not as `given`."""
        name, days = attempt.dataset, attempt.days
        loaded = self.datasets[name]
        own = days if loaded.staging is not None else ()
        staged = self._staged_by_this_code(name, own)
        # The layout is read before the figures: a write in between leaves stale evidence, never evidence that is too fresh.
        active = self.tables[name].active({near for day in days for near in week_around(day)})
        frames = self._frames(spark, unit, attempt, {day: one.references for day, one in pending.items()})
        sides = measure(frames)
        upstreams = self._upstreams(frames)
        golden = golden_counts(frames)
        alone = self._alone(frames, unit, attempt, sides)
        source, contract = self._source(spark, name, days), unit.contract.of(name)
        schema = schema_change(loaded.dataset, self.tables[name].types())
        neighbours = Neighbours(self.ledger, unit, frames)
        files = {day: one.shadow_files for day, one in pending.items()}
        around = neighbours.around(sides, files, active)
        came, went = self.basis.added_and_dropped(name, [day for day in days if sides[day].published.rows])
        question = Question(frames, attempt.number, sides, contract, came, went)
        with row_differences(question) as rows:
            moved = self.basis.upstream_moved(name, {day: pending[day].basis.upstream for day in question.replaced})
            waited = waited_for(frames, self.basis, question.replaced)
            evidence = []
            for day in days:
                side, counts = sides[day], rows.counts.get(day)
                measured = DayMeasurement(day, side.shadow, side.published, side.staging, source[day], upstreams[day])
                final = bool(waited.get(day, frozenset()) - awaited_in(pending[day].deliveries))
                alike = Compared(counts, schema, golden[day], (), day in moved, (), alone, final)
                compared = replace(_with(around, day, alike), corrected=bool(came.get(day) or went.get(day)))
                published = layout_digest(active.get(day, ()))
                basis = replace(pending[day].basis, published=published, contract=contract.hash)
                verdicts = judge(loaded.dataset, measured, contract, compared)
                judged = replace(pending[day], basis=basis, measured=measured, verdicts=verdicts)
                evidence.append(replace(judged, compared=compared))
            samples = rows.sample(columns_behind(loaded.dataset, contract, evidence))
        other_staged = len(staged) < len(own) or self._staged_by_this_code(name, own) != staged
        if other_staged or self.basis.reference_stamps(name) != given:
            return ()
        if failed := failed_days(evidence):
            samples |= golden_samples(frames, failed)
            samples |= sample(frames, failed, self.basis.in_force(name, days))
        done = tuple(_with_samples(one, samples) for one in evidence)
        self.ledger.add_comparisons(attempt.number, rows.comparisons)
        while not self._stored(attempt, done, neighbours, around):
            around = neighbours.around(sides, files, active)
            done = tuple(_judged_again(loaded.dataset, one, contract, around) for one in done)
        return done

    def _stored(self, attempt: Attempt, done: Sequence[DayEvidence], neighbours: Neighbours, around: Around) -> bool:
        """Store evidence, unless days around the batch were checked meanwhile: of two batches, the second is responsible."""
        alone = set(neighbours.unit.targets[attempt.dataset]) <= set(attempt.days)
        with nullcontext() if alone else self.ledger.lock(f"checks:{attempt.dataset}", LOCK_WAIT):
            if neighbours.checked_beside(attempt.days) != around.beside:
                return False
            self.ledger.add_evidence(attempt.number, done)
        return True

    def _upstreams(self, frames: Frames) -> Mapping[dt.date, UpstreamState]:
        measured = measure_upstreams(frames)
        absent = absent_before(self.ledger, self.tables, frames.dataset, frames.days, frames.upstreams)
        return {day: replace(one, absent=absent[day]) for day, one in measured.items()}

    def _alone(self, frames: Frames, unit: Unit, attempt: Attempt, sides: Mapping[dt.date, Sides]) -> tuple[Alone, ...]:
        """Some days of an attempt, also built alone for the check `same_alone`."""
        chosen = days_to_build_alone(frames.dataset, attempt.days, f"{unit.id} {attempt.number}", frames.prints)
        return built_alone(frames, {day: self.sources.of(unit, attempt.dataset, (day,)) for day in chosen}, sides)

    def _source(self, spark: SparkSession, name: str, days: Days) -> Mapping[dt.date, SourceState]:
        loaded = self.datasets[name]
        dataset = loaded.dataset
        window = set(dataset.fact_delivery_days(days))
        near = window.union(*map(week_before, days))
        force = in_force(dataset, self.basis.known(name, near))
        files = [d for d in force if d.day in window] if dataset.lands_files else []
        deliveries, gone = by_delivery_day(force), gone_from_sources(self.layout, files)
        staged = self.ledger.staged(name, dataset.with_window(days))
        rows = rows_in_staging(loaded, self.layout, staged.values()) if dataset.is_monthly else {}
        over = dataset.newest_settled(self.clock.now())
        found = {day: source_state(dataset, day, deliveries, staged, over, gone, rows) for day in days}
        if any(one.identical for one in found.values()) and aggregates_deliveries(spark, loaded):
            return {day: replace(one, aggregated=True) for day, one in found.items()}
        return found

    def _pending(self, unit: Unit, attempt: Attempt) -> Mapping[dt.date, DayEvidence]:
        stored = self.ledger.evidence(unit.id, attempt.dataset, attempt.days)
        mine = {d: stored.get((attempt.dataset, d)) for d in attempt.days}
        built = {d: e for d, e in mine.items() if e is not None and e.attempt == attempt.number and not e.altered}
        if len(built) < len(attempt.days):
            raise UnitError(
                f"unit {unit.id}: attempt {attempt.number} has no shadow of {attempt.dataset} to check; "
                f"materialize {attempt.dataset}/shadow for these days together with its checks"
            )
        return built


def _with(around: Around, day: dt.date, compared: Compared) -> Compared:
    return replace(compared, seams=around.seams.get(day, ()), null_rises=around.null_rises.get(day, ()))


def _judged_again(dataset: Dataset, one: DayEvidence, contract: Contract, around: Around) -> DayEvidence:
    """The evidence of a day by what is around it now; its samples stay."""
    compared = _with(around, one.day, one.compared or Compared())
    samples = {(v.check, v.day): v.sample for v in one.verdicts}
    judged = replace(one, compared=compared, verdicts=judge(dataset, one.measured, contract, compared))
    return _with_samples(judged, samples)


def _with_samples(one: DayEvidence, samples: Samples) -> DayEvidence:
    return replace(one, verdicts=tuple(replace(v, sample=samples.get((v.check, v.day), ())) for v in one.verdicts))
