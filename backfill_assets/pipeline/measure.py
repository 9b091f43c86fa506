"""Shadow, published table, staging and neighbours → figures of each day, with one aggregation per side."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - the same

from backfill_assets.core.days import ONE_DAY, Days, day_range
from backfill_assets.core.errors import DatasetError
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.measured import NOTHING, ROW_COUNT, Figures, NullRise, Seam, Side, UpstreamState
from backfill_assets.core.unit import Unit
from backfill_assets.dataset.checks import PERCENTILES, Measure, metric_names
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.ledger.open import Ledger
from backfill_assets.pipeline.fingerprints import fingerprint_columns, fingerprint_of
from backfill_assets.pipeline.frames import Frames
from backfill_assets.pipeline.matches import is_ambiguous, is_checked, is_unmatched, with_matches
from backfill_assets.pipeline.seams import SPAN, Files, null_rises, places, seams
from backfill_assets.pipeline.tables import figures_of, is_true, renamed, types_to_hash, with_declared_columns
from backfill_assets.pipeline.types import is_numeric

_METRIC: Final = "metric:"
_COUNT: Final = "count:"
_PERCENTILES: Final = "percentiles:"
_ROWS: Final = "rows"


@dataclass(frozen=True)
class Sides:
    """What was measured for one day on each side."""

    shadow: Side
    published: Side
    staging: Side


def measure(frames: Frames) -> Mapping[dt.date, Sides]:
    """Measure the shadow of an attempt, what is published and what is staged; a side without rows is `NOTHING`.

    A column missing in the published table has no metrics there, and counts as all null in its fingerprint.

    Raises:
        DatasetError: a rule or a reference check of `dataset.yaml` cannot be evaluated.
        SourceError: nothing is staged, or a reference does not fit what `dataset.yaml` declares.
    """
    if not frames.days:
        return {}
    sides = (_shadow(frames), _published(frames), _staging(frames))
    return {day: Sides(*(side.get(day, NOTHING) for side in sides)) for day in frames.days}


def published_figures(frames: Frames, days: Collection[dt.date]) -> Mapping[dt.date, Figures]:
    """Row counts and sums of what is published, by day, in one grouped pass; days without rows are left out.

    Percentiles and distinct counts, the most expensive figures, are left out.
    """
    if not days or not frames.is_published:
        return {}
    frame = frames.published(days)
    sides = _sides(frames.dataset, (frame, _sums(frame, frames.dataset)))
    return {day: side.metrics for day, side in sides.items()}


def _shadow(frames: Frames) -> dict[dt.date, Side]:
    dataset, frame = frames.dataset, frames.shadow(frames.days)
    check_rules(frame, frames.loaded)
    with renamed(DatasetError, f"{frames.loaded.folder / 'dataset.yaml'}: checks"):
        matched = with_matches(frame, frames)
        columns = [*_metrics(frame, dataset), *_counts(dataset), *fingerprint_columns(dataset.types)]
        distinct = [*_distinct(frame, dataset), _duplicate_keys(dataset)]
        return _sides(dataset, (matched, columns), (frame, distinct))


def _published(frames: Frames) -> dict[dt.date, Side]:
    if not frames.is_published:
        return {}
    dataset, frame = frames.dataset, frames.published(frames.days)
    whole = with_declared_columns(frame, dataset)
    columns = [*_metrics(frame, dataset), *fingerprint_columns(types_to_hash(whole, dataset))]
    return _sides(dataset, (whole, columns), (frame, list(_distinct(frame, dataset))))


def _staging(frames: Frames) -> dict[dt.date, Side]:
    if frames.dataset.source is None:
        return {}
    frame = frames.staging(frames.days)
    return _sides(frames.dataset, (frame, _sums(frame, frames.dataset)))


def figures_by_day(frame: DataFrame, dataset: Dataset) -> Mapping[dt.date, Figures]:
    """The metrics of every day of a frame; those of a missing declared column are null."""
    whole = with_declared_columns(frame, dataset)
    sides = _sides(dataset, (whole, list(_metrics(frame, dataset))), (frame, list(_distinct(frame, dataset))))
    return {day: side.metrics for day, side in sides.items()}


def check_rules(frame: DataFrame, loaded: LoadedDataset) -> None:
    """Refuse a rule that Spark cannot evaluate on the frame; runs no Spark job.

    Raises:
        DatasetError: names the first such rule.
    """
    rules = loaded.dataset.checks.rules
    try:
        _ = frame.select(*(F.expr(rule.sql).cast("boolean") for rule in rules.values())).schema if rules else None
    except PySparkException:
        for name, rule in rules.items():
            key = f"{loaded.folder / 'dataset.yaml'}: checks.rules.{name}.sql"
            with renamed(DatasetError, key):
                _ = frame.select(F.expr(rule.sql).cast("boolean")).schema
        raise


def is_failing(sql: str) -> Column:
    """Whether a row fails a rule; null is a failure."""
    return ~is_true(F.expr(sql).cast("boolean"))


def _sums(frame: DataFrame, dataset: Dataset) -> list[Column]:
    """The metrics that cost almost nothing: row count and sums."""
    summed = {name: Measure() for name, measure in dataset.measures.items() if measure.sum}
    return list(_metrics(frame, dataset.model_copy(update={"measures": summed})))


def _metrics(frame: DataFrame, dataset: Dataset) -> Iterator[Column]:
    yield F.count("*").alias(_METRIC + ROW_COUNT)
    types = {field.name: field.dataType for field in frame.schema.fields}
    for name, measure in dataset.measures.items():
        if name not in types:
            continue
        column = F.col(name)
        if measure.sum and is_numeric(types[name]):
            yield F.sum(summable(column, types[name])).alias(_METRIC + name)
        if measure.percentiles and is_numeric(types[name]):
            yield F.percentile(column, list(PERCENTILES.values())).alias(_PERCENTILES + name)


def _distinct(frame: DataFrame, dataset: Dataset) -> Iterator[Column]:
    for name, measure in dataset.measures.items():
        if measure.distinct and name in frame.columns:
            yield F.count_distinct(F.col(name)).alias(f"{_METRIC}distinct_{name}")


def summable(column: Column, kind: T.DataType) -> Column:
    """A number in a type whose sum is exact, or as precise as a double."""
    if isinstance(kind, T.DecimalType):
        return column
    # Integers are summed exactly and cannot overflow; floats are summed in double precision.
    return column.cast("double" if isinstance(kind, T.FractionalType) else T.DecimalType(38, 0))


def _duplicate_keys(dataset: Dataset) -> Column:
    # In a struct, nulls count as values.
    return (F.count("*") - F.count_distinct(F.struct(*dataset.key))).alias(_COUNT + "duplicate_keys")


def _counts(dataset: Dataset) -> Iterator[Column]:
    for name in dataset.required_columns:
        yield F.count_if(F.col(name).isNull()).alias(f"{_COUNT}nulls:{name}")
    for name, rule in dataset.checks.rules.items():
        yield F.count_if(is_failing(rule.sql)).alias(f"{_COUNT}rule:{name}")
    for name, check in dataset.checks.references.items():
        yield F.count_if(is_checked(check)).alias(f"{_COUNT}checked:{name}")
        yield F.count_if(is_unmatched(name, check)).alias(f"{_COUNT}unmatched:{name}")
        if check.reference in dataset.versioned:
            yield F.count_if(is_ambiguous(name, check)).alias(f"{_COUNT}ambiguous:{name}")


def _sides(dataset: Dataset, *passes: tuple[DataFrame, list[Column]]) -> dict[dt.date, Side]:
    """The results of the passes for each day.

    Distinct values need their own pass: otherwise Spark would shuffle the state of all other aggregates once for each distinct
    value.
    """
    day, found = dataset.partition_column, dict[dt.date, dict[str, Any]]()
    for frame, columns in passes:
        for row in frame.groupBy(day).agg(*columns).collect() if columns else ():
            found.setdefault(row[day], {}).update(row.asDict())
    return {own: _side(values, dataset) for own, values in found.items()}


def _side(values: Mapping[str, Any], dataset: Dataset) -> Side:
    metrics = {k.removeprefix(_METRIC): v for k, v in values.items() if k.startswith(_METRIC)}
    for key in [k for k in values if k.startswith(_PERCENTILES)]:
        found = values[key] or [None] * len(PERCENTILES)
        for prefix, value in zip(PERCENTILES, found, strict=True):
            metrics[f"{prefix}_{key.removeprefix(_PERCENTILES)}"] = value
    figures, floating = figures_of(metrics)
    return Side(
        metrics={name: figures.get(name) for name in metric_names(dataset)},
        floating=floating,
        counts={k.removeprefix(_COUNT): v for k, v in values.items() if k.startswith(_COUNT)},
        fingerprint=fingerprint_of(values) if "fingerprint:rows" in values else "",
    )


def measure_upstreams(frames: Frames) -> Mapping[dt.date, UpstreamState]:
    """Rows of each upstream on each day, and the totals that the day must equal; one pass per upstream.

    Raises:
        DatasetError: a total of `dataset.yaml` cannot be evaluated.
    """
    days = frames.days
    rows: dict[str, dict[dt.date, int]] = {}
    totals: dict[dt.date, dict[str, Decimal | None]] = {day: {} for day in days}
    floating: dict[dt.date, list[str]] = {day: [] for day in days}
    for upstream in frames.upstreams:
        name, partition = upstream.loaded.name, upstream.loaded.dataset.partition_column
        wanted = {m: t for m, t in frames.dataset.checks.reconciliation.totals.items() if t.upstream == name}
        grouped = frames.upstream[name].groupBy(partition)
        with renamed(DatasetError, f"{frames.loaded.folder / 'dataset.yaml'}: checks.reconciliation.totals"):
            columns = [F.expr(total.sql).alias(_METRIC + metric) for metric, total in wanted.items()]
            measured = {row[partition]: row for row in grouped.agg(F.count("*").alias(_ROWS), *columns).collect()}
        rows[name] = {day: int(row[_ROWS]) for day, row in measured.items()}
        for day in days:
            values = {m: measured[day][_METRIC + m] if day in measured else None for m in wanted}
            figures, rounded = figures_of(values)
            totals[day] |= figures
            floating[day] += rounded
    return {day: UpstreamState(rows_on(day, rows), totals[day], tuple(sorted(floating[day]))) for day in days}


def rows_on(day: dt.date, rows: Mapping[str, Mapping[dt.date, int]]) -> Mapping[str, int]:
    """The rows of each upstream on the day itself: days looked back at may have rows even if this day has none."""
    return {name: found.get(day, 0) for name, found in rows.items()}


_SPAN: Final = 28
"""How many days on either side show which steps are usual: four weeks."""

Evidence = Mapping[dt.date, DayEvidence]


@dataclass(frozen=True)
class Around:
    """Steps and risen shares of nulls by day of a batch; `beside` are the attempts that had checked days around it by then."""

    beside: Mapping[dt.date, int]
    seams: Mapping[dt.date, tuple[Seam, ...]]
    null_rises: Mapping[dt.date, tuple[NullRise, ...]]


@dataclass(frozen=True)
class Neighbours:
    """Finds seams and risen shares of nulls between the days of a batch and the days around it."""

    ledger: Ledger
    unit: Unit
    frames: Frames

    def around(self, batch: Mapping[dt.date, Sides], built: Files, published: Files) -> Around:
        """All that the days around the batch say about it; `published` also has a week around the `built` days."""
        # Read once, and first: what is checked from here on makes the answer out of date.
        near = self._evidence(self._near(batch))
        return Around(_checked(near), self._seams(batch, near), self._null_rises(built, published, near))

    def checked_beside(self, batch: Collection[dt.date]) -> Mapping[dt.date, int]:
        """The days around the batch that the unit has checked, with the attempt whose evidence counts."""
        return _checked(self._evidence(self._near(batch)))

    def _near(self, batch: Collection[dt.date]) -> set[dt.date]:
        """The days around the batch on which its steps and shares of nulls depend; steps also need to know the usual ones."""
        days = {day for both in self._touched(batch).values() for day in both}
        return (days | {near for day in batch for near in week_around(day)}) - set(batch)

    def _seams(self, batch: Mapping[dt.date, Sides], near: Evidence) -> Mapping[dt.date, tuple[Seam, ...]]:
        """The steps at those places of the unit that touch the batch, by the day of the batch that is responsible for them.

        Only steps into or out of days whose published content changes are checked; if there are none, no table is read. Days
        that the unit holds count as built; those not built yet are left out. For other days only row counts and sums are
        known, so percentiles and distinct counts have steps only among the unit's days.
        """
        at = self._places(batch, near)
        if not at:
            return {}
        old, new = self._series(at, batch, near)
        found: dict[dt.date, list[Seam]] = {}
        for seam in seams(self.frames.loaded.name, old, new, at):
            found.setdefault(seam.day if seam.day in batch else seam.day - ONE_DAY, []).append(seam)
        return {day: tuple(own) for day, own in found.items()}

    def _null_rises(self, built: Files, published: Files, near: Evidence) -> Mapping[dt.date, tuple[NullRise, ...]]:
        """The columns of the batch's days that are null more often than before.

        Days after the batch that were checked before it could not be compared with it: if one of their columns turns out to be null
        more often, the last day of the batch before it is responsible, with the later day.
        """
        around = {day for own in built for day in week_around(own)}
        beside = {day: e for day, e in near.items() if day in around}
        files = {day: one.shadow_files for day, one in beside.items()}
        columns = sorted(self.frames.dataset.columns.keys() - set(self.frames.dataset.required_columns))
        found = dict(null_rises(columns, built, published, files))
        later = {
            day: files[day] for day, e in beside.items() if e.verdicts and day > min(built) and day not in published
        }
        risen = ((day, one) for day, e in beside.items() if e.compared is not None for one in e.compared.null_rises)
        known = {(one.later or day, one.column) for day, one in risen}
        for day, rises in null_rises(columns, later, published, {**files, **built}).items():
            before = max(own for own in built if own < day)
            found[before] += tuple(replace(one, later=day) for one in rises if (day, one.column) not in known)
        return found

    def _evidence(self, days: Collection[dt.date]) -> Evidence:
        """What the unit has built of these days by the present code and contract: the others are going to be built again."""
        loaded = self.frames.loaded
        held = sorted(set(days) & set(self.unit.targets[loaded.name]))
        found = self.ledger.evidence(self.unit.id, loaded.name, held) if held else {}
        now = (loaded.code_version, self.unit.contract.of(loaded.name).hash)
        return {day: e for (_, day), e in found.items() if (e.basis.code, e.basis.contract) == now}

    def _places(self, batch: Mapping[dt.date, Sides], near: Evidence) -> Days:
        own = self._touched(batch)
        changed = {day for day, sides in batch.items() if _is_changed(sides.published, sides.shadow)}
        # The side of a step that is built last is responsible for it, even if its own content is unchanged.
        changed |= {
            day for day, e in near.items() if e.verdicts and _is_changed(e.measured.published, e.measured.shadow)
        }
        return tuple(place for place, both in own.items() if both & changed)

    def _touched(self, batch: Collection[dt.date]) -> Mapping[dt.date, set[dt.date]]:
        """The places at which the unit may leave a seam and a side is of the batch, with the days of both sides."""
        both = {place: {place, place - ONE_DAY} for place in places(self.unit.targets[self.frames.loaded.name])}
        return {place: sides for place, sides in both.items() if sides & set(batch)}

    def _series(
        self, at: Days, batch: Mapping[dt.date, Sides], near: Evidence
    ) -> tuple[dict[dt.date, Figures], dict[dt.date, Figures]]:
        window = {day for place in at for day in day_range(place - ONE_DAY * _SPAN, place + ONE_DAY * (_SPAN - 1))}
        others = window - set(batch)
        around = published_figures(self.frames, sorted(others - set(self.unit.targets[self.frames.loaded.name])))
        old, new = {**around}, {**around}
        for day, one in {**near, **self._evidence(others - self._near(batch))}.items():
            if one.verdicts and day in others:
                _add(day, one.measured.published, old)
                _add(day, one.measured.shadow, new)
        for day, sides in batch.items():
            _add(day, sides.published, old)
            _add(day, sides.shadow, new)
        return old, new


def _checked(near: Evidence) -> Mapping[dt.date, int]:
    return {day: e.attempt for day, e in near.items() if e.verdicts}


def week_around(day: dt.date) -> Days:
    """The day itself and the days of a week before and after it."""
    return day_range(day - SPAN * ONE_DAY, day + SPAN * ONE_DAY)


def _is_changed(published: Side, shadow: Side) -> bool:
    return published.rows > 0 and published.fingerprint != shadow.fingerprint


def _add(day: dt.date, side: Side, series: dict[dt.date, Figures]) -> None:
    if side.rows:
        series[day] = side.metrics
