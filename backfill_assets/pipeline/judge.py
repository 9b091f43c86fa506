"""From measurements to verdicts: one judge per kind of check."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final, assert_never

from backfill_assets.core.days import format_days
from backfill_assets.core.evidence import CheckOutcome, Severity, Verdict
from backfill_assets.core.expected_change import ANY, Change, Contract
from backfill_assets.core.fields import format_percent
from backfill_assets.core.measured import ROW_COUNT, Compared, DayMeasurement, Figures
from backfill_assets.core.text import format_duration, number_of
from backfill_assets.dataset.checks import Check, CheckKind, band_of, checks_of, measure_of
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.reading import Deduplicate
from backfill_assets.dataset.sources import OnMissing
from backfill_assets.pipeline.judge_rows import (
    FIRST_ROWS,
    Promises,
    judge_alone,
    judge_columns,
    judge_golden,
    judge_keys,
    judge_nulls,
    judge_rows,
    judge_schema,
    promises_of,
)
from backfill_assets.pipeline.seams import judge_seams

_NO_NUMBER: Final = "NaN hides the rows behind it: let the model write a number or null instead"


def judge(dataset: Dataset, measured: DayMeasurement, contract: Contract, compared: Compared) -> tuple[Verdict, ...]:
    """Judge one day by all checks; samples are added later, by the code that reads rows.

    A change that the contract promises always blocks; other failures have the dataset's severity, but see `_in_force`.
    """
    verdicts, promises = [], promises_of(dataset, measured.day, contract, compared)
    for declared in checks_of(dataset):
        check = _in_force(declared, promises, compared)
        f = _outcome(check, measured, promises, compared)
        verdict = Verdict(
            check.name, measured.day, f.passed, check.severity, check.blocks, f.expected, f.found, f.tolerance, f.note
        )
        verdicts.append(verdict)
    return tuple(verdicts)


def _in_force(check: Check, promises: Promises, compared: Compared) -> Check:
    """The check with the severity that it has on this day."""
    if _is_promised(check, promises):
        return replace(check, severity=Severity.error, blocks=True)
    if check.kind is CheckKind.keys and compared.upstream_moved:
        # It is unknown which keys the changed upstream explains: the check warns and does not block.
        return replace(check, severity=Severity.warn, blocks=False)
    return check


def _is_promised(check: Check, promises: Promises) -> bool:
    contract, day = promises.contract, promises.day
    match check.kind:
        case CheckKind.change:
            return contract.expected(check.subject, day) is not None
        case CheckKind.rows:
            return bool(contract.expected_rows(day).keys() & promises.dataset.compared.keys())
        case CheckKind.keys:
            return bool(promises.keys)
        case _:
            return False


def _outcome(check: Check, m: DayMeasurement, promises: Promises, compared: Compared) -> CheckOutcome:  # noqa: C901, PLR0912  # one case per kind
    dataset, contract = promises.dataset, promises.contract
    match check.kind:
        case CheckKind.unique_key:
            return _none_of(m.shadow.counts.get("duplicate_keys", 0), "duplicate keys")
        case CheckKind.not_null:
            return _not_null(dataset, m)
        case CheckKind.not_empty:
            return _not_empty(dataset, m, contract)
        case CheckKind.source_present:
            return _source_present(dataset, m)
        case CheckKind.upstream_present:
            return _upstream_present(dataset, m)
        case CheckKind.corrupt_rows:
            return _corrupt_rows(dataset, m)
        case CheckKind.source_freshness:
            return _freshness(dataset, m)
        case CheckKind.identical:
            return _identical_files(dataset, m)
        case CheckKind.alone:
            return judge_alone(compared.alone)
        case CheckKind.change:
            return _change(check.subject, m, promises, compared)
        case CheckKind.schema:
            return judge_schema(dataset, compared.schema)
        case CheckKind.keys:
            return judge_keys(m, promises, compared.rows)
        case CheckKind.rows:
            return judge_rows(m, promises, compared.rows)
        case CheckKind.columns:
            return judge_columns(m, promises, compared.rows)
        case CheckKind.seams:
            return judge_seams(compared.seams)
        case CheckKind.nulls:
            return judge_nulls(dataset, compared)
        case CheckKind.reconciliation | CheckKind.upstream_total:
            return _reconciliation(check, dataset, m)
        case CheckKind.reference:
            return _reference(check.subject, dataset, m)
        case CheckKind.rule:
            limit = dataset.checks.rules[check.subject].max_failing
            return _none_of(m.shadow.counts.get(f"rule:{check.subject}", 0), "failing rows", limit)
        case CheckKind.golden:
            return judge_golden(check.subject, dataset.golden[check.subject], compared)
        case _:
            assert_never(check.kind)


def _none_of(count: int, what: str, limit: int = 0) -> CheckOutcome:
    tolerance = f"{limit} {what}" if limit else ""
    found = f"{count} {what if count != 1 else what.removesuffix('s')}"
    return CheckOutcome(count <= limit, f"no {what}", found, tolerance)


def _not_null(dataset: Dataset, m: DayMeasurement) -> CheckOutcome:
    nulls = {c: m.shadow.counts.get(f"nulls:{c}", 0) for c in dataset.required_columns}
    bad = {c: n for c, n in nulls.items() if n}
    return CheckOutcome(not bad, "no nulls", ", ".join(f"{n} in {c}" for c, n in bad.items()) or "no nulls")


def _not_empty(dataset: Dataset, m: DayMeasurement, contract: Contract) -> CheckOutcome:
    # If the source itself has no row, `source_present` reports it; likewise `upstream_present`.
    begun = dataset.upstream_on(m.day)
    asked = [name for name, upstream in begun.items() if upstream.on_missing is OnMissing.fail] or begun
    rows = m.source.rows if dataset.source else min((m.upstream.rows.get(name, 0) for name in asked), default=0)
    found = number_of(m.shadow.rows, "row")
    if m.shadow.rows or not rows:
        return CheckOutcome(True, "a row", found)
    # Emptying a published day is a change, which a contract may promise; a new day without rows is not.
    promised = bool(m.published.rows) and contract.expected(ROW_COUNT, m.day) is not None
    note = f"none of {number_of(rows, 'row')} is left; if such days are right: checks.not_empty: {{severity: warn}}"
    return CheckOutcome(
        promised, "a row", found, note=f"{note}; the launch's contract names row_count" if promised else note
    )


def _source_present(dataset: Dataset, m: DayMeasurement) -> CheckOutcome:
    source, may_be_empty = m.source, dataset.feed.on_missing is OnMissing.pass_
    may_come = _may_still_come(dataset, m)
    absent = [one.day for one in source.faulty_beside if not one.rows and one.day not in source.awaited]
    beside = [f"none for {_beside(absent, m.day)}"] if absent else []
    beside += [f"none yet for {_beside(source.awaited, m.day)}"] if source.awaited else []
    provisional = dataset.provisional is not None
    complete = (may_be_empty or not absent) and (provisional or not source.awaited)
    tolerated = complete and may_be_empty and not may_come
    found = f"{source.deliveries} deliveries{'' if source.rows else ' without a row'}" if source.deliveries else "none"
    notes = []
    if source.rows:
        found = ", ".join((found, *beside))
    else:
        notes = [*_without_rows(dataset, m, passes=tolerated), *beside]
    if source.awaited and provisional:
        notes.append(f"the day is provisional until {format_days(source.awaited, most=3)} is over and has landed")
    elif source.awaited:
        notes.append(f"launch the day again when {format_days(source.awaited, most=3)} is over")
    notes += [_source_gone(source.gone)] if source.gone else []
    passed = complete if source.rows else tolerated
    return CheckOutcome(passed, "a delivery", found, note="; ".join(notes))


def _without_rows(dataset: Dataset, m: DayMeasurement, *, passes: bool) -> list[str]:
    notes = [
        "no source data; the dataset lets such days pass" if passes else "no source data was delivered for the day"
    ]
    if dataset.feed.on_missing is OnMissing.pass_ and _may_still_come(dataset, m):
        notes.append(
            "on_missing: pass needs a file of the month that was last changed after the day; if times of change say nothing about "
            "your files: checks.source_present: {severity: warn}"
        )
    if m.source.rows_read and not (dataset.is_monthly and m.source.deliveries):
        notes.append(f"files of later days, with {number_of(m.source.rows_read, 'row')}, do not replace its own")
    return notes


def _may_still_come(dataset: Dataset, m: DayMeasurement) -> bool:
    """Whether rows of the day may still come, because no file of its month was written after it."""
    newest = m.source.delivered_at
    return dataset.is_monthly and (newest is None or newest < dataset.end_of(m.day))


def _beside(days: Iterable[dt.date], day: dt.date) -> str:
    """Other days of the window of a day, and on which side of it they are."""
    before, after = [d for d in days if d < day], [d for d in days if d > day]
    texts = [f"{format_days(before, most=3)}, which the day looks back at"] if before else []
    texts += [f"{format_days(after, most=3)}, which the day looks ahead to"] if after else []
    return " and ".join(texts)


def _source_gone(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"source gone: {paths[0]}{more}; its rows are read from raw"


def _upstream_present(dataset: Dataset, m: DayMeasurement) -> CheckOutcome:
    begun = dataset.upstream_on(m.day)
    empty = [name for name in begun if not m.upstream.rows.get(name)]
    absent = {name: format_days(days, most=3) for name, days in m.upstream.absent.items()}
    refused = [name for name in (*empty, *absent) if dataset.upstream[name].on_missing is OnMissing.fail]
    found = [f"{m.upstream.rows.get(name, 0)} of {name}" for name in begun]
    found += [f"none of {name}, whose history begins later" for name in dataset.upstream if name not in begun]
    found += [f"none of {name} for {days}, which the day looks back at" for name, days in absent.items()]
    notes = [f"nothing of {', '.join(empty)} is published or in this unit"] if empty else []
    notes += [
        f"{name} of {days} is neither published nor in this unit: launch it for these days as well"
        for name, days in absent.items()
    ]
    return CheckOutcome(not refused, "rows of every upstream", ", ".join(found), note="; ".join(notes))


def _corrupt_rows(dataset: Dataset, m: DayMeasurement) -> CheckOutcome:
    limit = dataset.checks.corrupt_rows.max_rows
    bad = m.source.corrupt_rows + m.source.outside_rows
    found = f"{m.source.corrupt_rows} unreadable, {m.source.outside_rows} of another day, of {m.source.rows_read} rows"
    # The limit is per day, also for the other days of its window.
    beside = [one for one in m.source.faulty_beside if one.bad_rows > limit]
    if beside:
        rows = number_of(sum(one.bad_rows for one in beside), "such row")
        found += f"; {rows} of {_beside([one.day for one in beside], m.day)}"
    return CheckOutcome(bad <= limit and not beside, "no such rows", found, f"{limit} rows" if limit else "")


def _identical_files(dataset: Dataset, m: DayMeasurement) -> CheckOutcome:
    # A staging model that adds up by key leaves one row: there is no older one to replace.
    adds_up = dataset.staging.deduplicate is Deduplicate.none or m.source.aggregated
    # Delivered for another day, the same rows may count as rows of that day: no key shows it.
    several = {day for one in m.source.identical if len(one.days) > 1 for day in one.days}
    bad = [one for one in m.source.identical if adds_up or len(one.days) > 1]
    found = "; ".join(" = ".join(one.paths) for one in bad or m.source.identical) or "none"
    note = "for each key the rows of the newest delivery are kept" if m.source.identical and not bad else ""
    if bad:
        counted = (
            "the staging model aggregates: they may be counted together"
            if m.source.aggregated
            else "each of them is counted"
        )
        note = f"delivered for several days: {format_days(several)}" if several else counted
    return CheckOutcome(not bad, "no file that was delivered twice", found, note=note)


def _freshness(dataset: Dataset, m: DayMeasurement) -> CheckOutcome:
    limit = dataset.checks.source_freshness.max_delay or dt.timedelta(0)
    expected = f"within {format_duration(limit)} of the {'month' if dataset.is_monthly else 'day'}'s end"
    if m.source.delivered_at is None:
        return CheckOutcome(dataset.landing.on_missing is OnMissing.pass_, expected, "nothing was delivered")
    delay = m.source.delivered_at - dataset.end_of(dataset.due(m.day))
    hours = delay.total_seconds() / 3600
    return CheckOutcome(delay <= limit, expected, f"{hours:.1f} h after it", format_duration(limit))


def _change(metric: str, m: DayMeasurement, promises: Promises, compared: Compared) -> CheckOutcome:
    dataset = promises.dataset
    in_force = band_of(metric, dataset, m.day, promises.contract)
    band, promised = in_force.change, in_force.promised
    origin = "the launch's contract" if promised else "the dataset's tolerance"
    if promises.finalizing.expected(metric, m.day) is not None:
        origin = "the published day is provisional, and finalizing it may change this (provisional.may_change)"
    found = _figure(m.shadow.metrics.get(metric))
    if not m.published.rows and not m.shadow.rows:
        # A share of nothing is nothing: a day without rows keeps any promise.
        return CheckOutcome(True, str(band), found, note="the day had no row and has none")
    if not m.published.rows and not promised:
        return CheckOutcome(True, str(ANY), found, note=FIRST_ROWS)
    if measure_of(metric, dataset) in compared.schema.added and not promised:
        return CheckOutcome(True, str(ANY), found, note="the column is new: nothing of it is published to compare with")
    old, new = m.published.metrics.get(metric), m.shadow.metrics.get(metric)
    allowed = band.allows(old, new, floating=metric in {*m.published.floating, *m.shadow.floating})
    note = f"{origin}; {_NO_NUMBER}" if not allowed and _is_no_number(old, new) else origin
    return CheckOutcome(allowed, str(band), _delta(old, new), "" if promised else format_percent(band.high), note)


def _reference(name: str, dataset: Dataset, m: DayMeasurement) -> CheckOutcome:
    check, counts = dataset.checks.references[name], m.shadow.counts
    bad, twice, of = (counts.get(f"{what}:{name}", 0) for what in ("unmatched", "ambiguous", "checked"))
    share = Decimal(bad) / of if of else Decimal(0)
    several = f", {twice} with more than one version" if twice else ""
    found = f"{bad} of {of} without a match ({share * 100:.2f}%){several}"
    expected = "every row has one version" if check.reference in dataset.versioned else "every row has a match"
    slack = format_percent(check.max_unmatched) if check.max_unmatched else ""
    return CheckOutcome(share <= check.max_unmatched and not twice, expected, found, slack)


def _reconciliation(check: Check, dataset: Dataset, m: DayMeasurement) -> CheckOutcome:
    """Compare with the total of an upstream, or with that of staging."""
    metric, config = check.subject, dataset.checks.reconciliation
    if check.kind is CheckKind.upstream_total:
        where, totals, floating = config.totals[metric].upstream, _upstream_totals(m), m.upstream.floating
    else:
        where, totals, floating = "staging", m.staging.metrics, m.staging.floating
    old, new, tolerance = totals.get(metric), m.shadow.metrics.get(metric), config.tolerance
    passed = Change(-tolerance, tolerance).allows(old, new, floating=metric in {*floating, *m.shadow.floating})
    expected = f"{_figure(old)} as in {where}"
    note = _NO_NUMBER if not passed and _is_no_number(old, new) else ""
    return CheckOutcome(passed, expected, _figure(new), format_percent(tolerance) if tolerance else "", note)


def _upstream_totals(m: DayMeasurement) -> Figures:
    # A day without rows has no group, but its row count is 0; its other totals are missing.
    totals = m.upstream.totals
    return {**totals, ROW_COUNT: totals.get(ROW_COUNT) or Decimal(0)}


def _is_no_number(*figures: Decimal | None) -> bool:
    return any(one is not None and not one.is_finite() for one in figures)


def _figure(value: Decimal | None) -> str:
    if value is None:
        return "nothing"
    return f"{value.normalize():f}" if value.is_finite() else str(value)


def _delta(old: Decimal | None, new: Decimal | None) -> str:
    text = f"{_figure(old)} → {_figure(new)}"
    if old is None or new is None or not old or not old.is_finite() or not new.is_finite():
        return text
    return f"{text} ({(new - old) / old * 100:+.4f}%)"
