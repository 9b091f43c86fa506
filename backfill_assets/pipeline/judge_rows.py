"""Compared rows → verdicts: added and removed keys, promises, golden sources, days built alone."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Final

from backfill_assets.campaign.validation import METRIC_CHANGE, ROW_CHANGE
from backfill_assets.core.canonical import digest
from backfill_assets.core.days import format_days
from backfill_assets.core.evidence import CheckOutcome
from backfill_assets.core.expected_change import ADDED, ANY, KEY_CHANGES, REMOVED, UNCHANGED, Change, Clause, Contract
from backfill_assets.core.fields import format_percent
from backfill_assets.core.measured import Alone, Compared, DayMeasurement, RowCounts, SchemaChange
from backfill_assets.core.text import number_of
from backfill_assets.dataset.checks import measure_of, metric_names
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.references import as_published, seen_by_day
from backfill_assets.dataset.sources import Golden

_NO_PRINTS: Final[Mapping[dt.date, Mapping[str, str]]] = {}
_MOST_VERSIONS: Final = 5
FIRST_ROWS: Final = "first load of the day: nothing is published to compare with"
_REMEDY = (
    "the fact model uses days that another launch would not read; let it use for each day only the days that it "
    "looks back at or ahead to, such as by a window RANGE BETWEEN INTERVAL … PRECEDING AND …"
)


def days_to_build_alone(
    dataset: Dataset, days: Sequence[dt.date], seed: str, prints: Mapping[dt.date, Mapping[str, str]] = _NO_PRINTS
) -> tuple[dt.date, ...]:
    """The last day of a batch, which has most days before it, and one drawn by the seed; none if no day sees another.

    Where days look ahead, also the first one, which has most days after it. A model that forgets the day of a reference of which
    each day sees rows of its own sees those of all days of the batch: so also a day of each version (`prints`), of five at most,
    those that the fewest days see.
    """
    if not (dataset.has_window or seen_by_day(dataset.references)) or len(days) <= 1:
        return ()
    *others, last = sorted(days)
    drawn = others[int(digest([seed, *map(str, others)])[:12], 16) % len(others)]
    first = others[:1] if dataset.lookahead_days else []
    kept = sorted(as_published(dataset.references))
    versions = {day: [prints[day][name] for name in kept] for day in days} if kept else {}
    counts = Counter(map(tuple, versions.values()))
    rare = {tuple(versions[day]): day for day in versions}
    few = [rare[version] for version in sorted(rare, key=lambda one: (counts[one], one))[:_MOST_VERSIONS]]
    return tuple(sorted({*first, *few, drawn, last}))


def judge_alone(alone: Sequence[Alone]) -> CheckOutcome:
    """Fail all days of a batch if one of them differs when built alone: the days not built alone are no safer."""
    expected = "each day alone as in its batch"
    apart = [one for one in alone if one.differing]
    if apart:
        found = "; ".join(
            f"{one.day}: {one.differing} of {number_of(one.rows, 'row')} differ when built alone" for one in apart
        )
        return CheckOutcome(False, expected, found, note=_REMEDY)
    built = format_days(one.day for one in alone)
    return CheckOutcome(True, expected, f"the same on {built}" if alone else "a batch of one day")


def schema_change(dataset: Dataset, published: Mapping[str, str]) -> SchemaChange:
    """How the declared columns differ from the `published` ones (type by name); no published columns mean no table."""
    if not published:
        return SchemaChange()
    declared = dataset.types
    ignored = {*dataset.audit_columns, *dataset.dropped_columns}
    return SchemaChange(
        added={name: kind for name, kind in declared.items() if name not in published},
        removed={n: kind for n, kind in published.items() if n not in declared and n not in ignored},
        retyped={
            name: f"{published[name]} → {kind}" for name, kind in declared.items() if published.get(name, kind) != kind
        },
    )


@dataclass(frozen=True)
class Promises:
    """What a launch's contract and the dataset itself promise about one day and its rows.

    `finalizing` is what the dataset promises of a day that is published as provisional, where the `launch` says nothing.
    """

    dataset: Dataset
    day: dt.date
    launch: Contract
    finalizing: Contract = field(default_factory=Contract)

    @cached_property
    def contract(self) -> Contract:
        """All that is promised: the launch comes first."""
        return Contract((*self.launch.clauses, *self.finalizing.clauses))

    @cached_property
    def columns(self) -> Mapping[str, Change]:
        """How far values may move in rows that both sides have, by column.

        The contract's promises about rows apply. In addition, a summed measure whose total must not move (neither the contract
        nor a blocking tolerance of the dataset allows it) may not move in any row: a correct total can hide wrong rows. If the
        contract promises rows, which always blocks, the dataset's tolerances add columns only if `change_rows` itself blocks.
        """
        dataset, day, contract = self.dataset, self.day, self.contract
        named = {c: change for c, change in contract.expected_rows(day).items() if c in dataset.compared}
        pinned = {m for m in dataset.measures if contract.expected(m, day) == UNCHANGED}
        if dataset.checks.change_rows.blocks or not named:
            pinned |= {m for m in dataset.measures if contract.expected(m, day) is None and _must_stay(m, dataset)}
        exact = {m: UNCHANGED for m in dataset.compared if m in pinned and m not in named and dataset.measures[m].sum}
        return named | exact

    @cached_property
    def keys(self) -> Mapping[str, Change]:
        """What the contract promises about added and removed keys, as shares of the published rows."""
        promises = self.contract.expected_rows(self.day)
        return {name: promises[name] for name in KEY_CHANGES if name in promises and name not in self.dataset.columns}

    def broken(self, rows: RowCounts) -> Mapping[str, int]:
        """The number of rows that break a promise, by column."""
        counted = {c: rows.columns if change == UNCHANGED else rows.beyond for c, change in self.columns.items()}
        return {c: counts[c] for c, counts in counted.items() if self.columns[c] != ANY and counts.get(c)}

    def unnamed(self, rows: RowCounts) -> Mapping[str, int]:
        """The number of changed rows of each column without a promise; a measure's tolerance is about its total only."""
        promised = (m for m in metric_names(self.dataset) if self.contract.expected(m, self.day) is not None)
        mentioned = {*self.columns, *(measure_of(m, self.dataset) for m in promised)}
        return {c: n for c, n in rows.columns.items() if n and c not in mentioned}


def promises_of(dataset: Dataset, day: dt.date, launch: Contract, compared: Compared | None) -> Promises:
    """What applies on a day: a launch's contract, and after it what finalizing may change, if the published day is provisional.

    Then columns that `may_change` move freely, with their metrics, and all others stay; unless deliveries of the day itself came or
    went, which are judged like any late delivery.
    """
    asked = dataset.provisional
    if asked is None or compared is None or not compared.finalizes:
        return Promises(dataset, day, launch)
    # Not the row count, which is of no column.
    metrics = {metric: measure_of(metric, dataset) for metric in metric_names(dataset)[1:]}
    named = {m for metric, m in metrics.items() if launch.expected(metric, day) is not None}
    named |= launch.expected_rows(day).keys()
    free = {metric: ANY for metric, m in metrics.items() if m in asked.may_change and m not in named}
    others = () if compared.corrected else dataset.compared
    rows = dict.fromkeys(others, UNCHANGED) | dict.fromkeys(asked.may_change, ANY)
    promised = Clause((day,), free, rows={name: change for name, change in rows.items() if name not in named})
    return Promises(dataset, day, launch, Contract((promised,)))


def judge_rows(m: DayMeasurement, promises: Promises, rows: RowCounts | None) -> CheckOutcome:
    """Judge the promises about single rows."""
    expected = _promise(promises.columns)
    if rows is None or not m.published.rows:
        return _not_compared(expected, m)
    return _of_columns(expected, promises, promises.broken(rows), rows)


def judge_columns(m: DayMeasurement, promises: Promises, rows: RowCounts | None) -> CheckOutcome:
    """Judge the columns without a promise."""
    expected = "no change in columns without a promise"
    if rows is None or not m.published.rows:
        return _not_compared(expected, m)
    return _of_columns(expected, promises, promises.unnamed(rows), rows)


def _not_compared(expected: str, m: DayMeasurement) -> CheckOutcome:
    if not m.published.rows:
        return CheckOutcome(True, expected, "no row", note=FIRST_ROWS)
    return CheckOutcome(False, expected, "rows that were not compared", note="the key has another type now")


def _of_columns(expected: str, promises: Promises, bad: Mapping[str, int], rows: RowCounts) -> CheckOutcome:
    dataset = promises.dataset
    tolerances = {name: dataset.columns[name].tolerance for name in dataset.compared}
    slack = ", ".join(f"{tolerance.normalize():f} in {c}" for c, tolerance in tolerances.items() if tolerance)
    return CheckOutcome(not bad, expected, _found(bad, rows), slack, _remedy(bad, promises))


def judge_nulls(dataset: Dataset, compared: Compared) -> CheckOutcome:
    """Judge whether columns are null far more often than before."""
    limit = dataset.checks.null_share.max_rise
    risen = [one for one in compared.null_rises if one.share - one.before > limit]
    found = ", ".join(f"{o.place} {format_percent(o.share)} (was {format_percent(o.before)})" for o in risen)
    return CheckOutcome(
        not risen, "no column that is null far more often", found or "none", f"{format_percent(limit)} points"
    )


def judge_golden(name: str, golden: Golden, compared: Compared) -> CheckOutcome:
    """Judge a day by its comparison with a golden source."""
    slack = [f"{number_of(golden.max_mismatches, 'row')}"] if golden.max_mismatches else []
    slack += [f"{c.tolerance.normalize():f} in {column}" for column, c in golden.columns.items() if c.tolerance]
    expected = f"every row as in {name}"
    counts = compared.golden.get(name)
    if counts is None:
        return CheckOutcome(False, expected, "rows that were not compared", ", ".join(slack))
    kinds = {
        "missing here": counts.missing_here,
        "missing there": counts.missing_there,
        "different": counts.different,
    }
    mismatched = ", ".join(f"{rows:,} {kind}" for kind, rows in kinds.items() if rows)
    agree = f"{number_of(counts.equal, 'row')} that agree{'s' if counts.equal == 1 else ''}"
    note = "" if counts.mismatches or counts.equal else "neither side has a row of the day"
    passed = counts.mismatches <= golden.max_mismatches
    return CheckOutcome(passed, expected, f"{mismatched}; {agree}" if mismatched else agree, ", ".join(slack), note)


def judge_keys(m: DayMeasurement, promises: Promises, rows: RowCounts | None) -> CheckOutcome:
    """Judge whether some rows were added and others removed, beyond what is explained, promised or tolerated.

    The row count judges how many more were added than removed, or removed than added. A promise for one side excuses nothing
    on the other.
    """
    dataset, promised, published = promises.dataset, promises.keys, m.published.rows
    expected = _promise_of_keys(promised)
    if rows is None or not published:
        return _not_compared(expected, m)
    counts = {ADDED: (rows.added, rows.explained_added), REMOVED: (rows.removed, rows.explained_removed)}
    open_rows = {name: count - explained for name, (count, explained) in counts.items()}
    limit = int(dataset.checks.row_count.tolerance * published)
    if promised:
        kept = [
            promised[name].allows(Decimal(published), Decimal(published + count))
            if name in promised
            else open_rows[name] <= limit
            for name, (count, _) in counts.items()
        ]
        passed = all(kept)
    else:
        # Each side is compared with all rows of the other: explained rows do not excuse unexplained ones.
        passed = min(open_rows[ADDED], rows.removed) <= limit and min(open_rows[REMOVED], rows.added) <= limit
    explained = rows.explained_added + rows.explained_removed
    of = f", {explained} of them with keys of deliveries that came or went" if explained else ""
    found = f"{rows.added} added and {rows.removed} removed of {number_of(published, 'row')}{of}"
    remedy = (
        f"if it is meant, promise it: rows: {{{ADDED}: …, {REMOVED}: …}} in the expected change, or {ROW_CHANGE}: "
        f"{{{ADDED}: …, {REMOVED}: …}} in a specification"
    )
    if all(name in dataset.columns for name in KEY_CHANGES):
        remedy = "to allow it, raise checks.row_count.tolerance or let checks.change_keys warn: added and removed are columns"
    return CheckOutcome(passed, expected, found, number_of(limit, "row") if limit else "", "" if passed else remedy)


def _promise_of_keys(promises: Mapping[str, Change]) -> str:
    if promises:
        others = [f"no unexplained row {name}" for name in KEY_CHANGES if name not in promises]
        return ", ".join([*(f"rows {name}: {change}" for name, change in promises.items()), *others])
    return "no row removed while another is added, unless deliveries that came or went have their keys"


def _must_stay(measure: str, dataset: Dataset) -> bool:
    config = dataset.measures[measure]
    return config.blocks and not config.tolerance


def judge_schema(dataset: Dataset, schema: SchemaChange) -> CheckOutcome:
    """Judge whether every published column stays as it is."""
    parts = [f"adds {name} ({kind})" for name, kind in schema.added.items()]
    parts += [f"removes {name} ({kind})" for name, kind in schema.removed.items()]
    parts += [f"changes {name} ({kinds})" for name, kinds in schema.retyped.items()]
    refused = bool(schema.removed or schema.retyped)
    remedy = (
        "columns of a published table keep their types: leave the column as it was, publish under a new dataset name, "
        "or, if it is no longer filled, list it in dropped_columns of dataset.yaml"
    )
    but = f" but {', '.join(dataset.dropped_columns)}" if dataset.dropped_columns else ""
    expected = f"every column of the published table{but}, with its type"
    return CheckOutcome(not refused, expected, "; ".join(parts) or "all of them", note=remedy if refused else "")


def _promise(promises: Mapping[str, Change]) -> str:
    by_band: dict[Change, list[str]] = {}
    for column, change in promises.items():
        if change != ANY:
            by_band.setdefault(change, []).append(column)
    texts = (f"{', '.join(columns)} {change}" for change, columns in by_band.items())
    return "; ".join(f"{text} in every row" for text in texts) or "no promise about single rows"


def _found(bad: Mapping[str, int], rows: RowCounts) -> str:
    both = f"{rows.changed + rows.unchanged} rows that both sides have"
    if not bad:
        return f"no change of that kind in {both}"
    return f"{', '.join(f'{column} changed in {n}' for column, n in bad.items())} of {both}"


def _remedy(bad: Mapping[str, int], promises: Promises) -> str:
    """What to declare: a sum that may change frees its rows, unless the contract says something about these rows."""
    if not bad:
        return ""
    name = next(iter(bad))
    asked, finalizing = promises.dataset.provisional, promises.finalizing.expected_rows(promises.day)
    if asked is not None and finalizing.get(name) == UNCHANGED:
        free = f"finalizing it may change only {', '.join(asked.may_change)} (provisional.may_change)"
        return f"the published day is provisional, and {free}; {_promised(name)}"
    column, measure = f"{{{name}: …}}", promises.dataset.measures.get(name)
    if measure is None or not measure.sum or name in promises.contract.expected_rows(promises.day):
        return _promised(name)
    return (
        f"if it is meant, promise it in the expected change: metrics: {column}, or rows: {column} if only rows may change and "
        f"their sum must not; in a specification: {METRIC_CHANGE} or {ROW_CHANGE}"
    )


def _promised(name: str) -> str:
    column = f"{{{name}: …}}"
    return f"if it is meant, promise it: rows: {column} in the expected change, or {ROW_CHANGE}: {column} in a specification"
