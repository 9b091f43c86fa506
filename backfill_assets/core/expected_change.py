"""The expected-change contract: per metric and days, what must change by how much."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

from backfill_assets.core.canonical import digest
from backfill_assets.core.days import checked_range, day_range, parse_day
from backfill_assets.core.errors import ContractError, InvalidDayError
from backfill_assets.core.types import is_numeric

_NUMBER = r"([+-]?\d{1,9}(?:\.\d{1,9})?)\s*%"
_EXACT = re.compile(_NUMBER, re.ASCII)
_BAND = re.compile(rf"{_NUMBER}\s*(?:to|\.\.)\s*{_NUMBER}", re.ASCII)
_SHOWN = 60
_Subject = tuple[str, str]
ADDED, REMOVED = "added", "removed"
KEY_CHANGES = (ADDED, REMOVED)
"""The names that a contract uses for rows that are added and removed by key."""
OF_ROWS = "rows"
"""Stands for the type of a column where rows are counted."""
ROUNDING = Decimal("1e-9")
"""Relative slack for the rounding of floating-point sums; not a tolerance that can be widened."""
LONGEST_TAG = 2_500
"""In bytes, of a contract as a run tag: Postgres indexes at most 2.7 kB of a tag with its key."""
_DIGITS = 100
"""Enough for a figure of 38 digits times a share of 18; Python's default of 28 would round it."""


@dataclass(frozen=True)
class Change:
    """A closed band for the relative change of a metric, as fractions: -0.5 is -50 %."""

    low: Decimal
    high: Decimal

    def __str__(self) -> str:
        if self == ANY:
            return "any"
        if self.low == self.high == 0:
            return "unchanged"
        low, high = (f"{value * 100:+.9f}".rstrip("0").rstrip(".") + "%" for value in (self.low, self.high))
        return low if self.low == self.high else f"{low} to {high}"

    def allows(self, old: Decimal | None, new: Decimal | None, *, floating: bool = False) -> bool:
        """Whether `new` lies in the band around `old`; nothing (no row, or only nulls) equals only nothing.

        `floating` says that one of them is a sum of floating-point numbers: such sums may differ by `ROUNDING`. Exact figures
        have no slack; if a share of one falls between two such figures, both are allowed: half of 5 rows are 2 or 3.
        A figure that is not finite is in no band except `any`: it says nothing about the rows behind it.

        The relative change is new/old - 1, also for a negative `old`: a sum that was doubled is halved by -50 %,
        whatever its sign.
        """
        if self == ANY:
            return True
        if old is None or new is None:
            return old is new and self.low <= 0 <= self.high
        if not (old.is_finite() and new.is_finite()):
            return False
        with localcontext(prec=_DIGITS):
            low, high = self._edges(old)
            if floating:
                slack = ROUNDING * max(abs(old), abs(new))
                return low - slack <= new <= high + slack
            if self.low == self.high:
                digit = Decimal(1).scaleb(min(_exponent(old), _exponent(new)))
                low, high = low.quantize(digit, ROUND_FLOOR), high.quantize(digit, ROUND_CEILING)
            return low <= new <= high

    def edges(self, old: Decimal | None) -> tuple[Decimal, Decimal] | None:
        """The lowest and the highest figure that it allows; None if it allows any figure, or `old` is missing or not finite."""
        if self == ANY or old is None or not old.is_finite():
            return None
        with localcontext(prec=_DIGITS):
            return self._edges(old)

    def _edges(self, old: Decimal) -> tuple[Decimal, Decimal]:
        one, other = old + old * self.low, old + old * self.high
        return min(one, other), max(one, other)


def _exponent(figure: Decimal) -> int:
    """The exponent of the last digit of a finite figure: -2 for 4.50."""
    exponent = figure.as_tuple().exponent
    return min(exponent, 0) if isinstance(exponent, int) else 0


UNCHANGED = Change(Decimal(0), Decimal(0))
ANY = Change(Decimal("-Infinity"), Decimal("Infinity"))
"""Any change, also from nothing or zero: for a metric that is new."""


def parse_change(text: object, where: str) -> Change:
    """Read `unchanged`, `any`, `-50%`, `-1.5% to -0.8%` or `-1.5%..-0.8%`.

    Raises:
        ContractError: the text is anything else, or the band is reversed.
    """
    value = str(text).strip()
    if value in {"unchanged", "any"}:
        return UNCHANGED if value == "unchanged" else ANY
    if match := _EXACT.fullmatch(value):
        edge = Decimal(match[1]) / 100
        return Change(edge, edge)
    match = _BAND.fullmatch(value)
    if match is None:
        shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
        raise ContractError(f"{where}: {shown!r} is not a change; write unchanged, any, -50% or '-1.5% to -0.8%'")
    low, high = Decimal(match[1]) / 100, Decimal(match[2]) / 100
    if low > high:
        raise ContractError(f"{where}: the band {value!r} is reversed; write the lower edge first")
    return Change(low, high)


@dataclass(frozen=True)
class Clause:
    """Changes expected on some days of a dataset; no days means every day of the unit, no dataset every dataset of it.

    `metrics` are about figures of the entire day, `rows` are by column about each row that both sides have, and about rows
    added and removed by key (`KEY_CHANGES`).
    """

    days: tuple[dt.date, ...]
    metrics: Mapping[str, Change]
    dataset: str = ""
    rows: Mapping[str, Change] = field(default_factory=dict)


@dataclass(frozen=True)
class Contract:
    """All clauses of a launch; empty means that the dataset's own tolerances apply everywhere."""

    clauses: tuple[Clause, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.clauses)

    def expected(self, metric: str, day: dt.date) -> Change | None:
        """The change that the contract names for a metric on a day; if None, the dataset's tolerance applies."""
        return next((c.metrics[metric] for c in self.clauses if metric in c.metrics and _holds(c, day)), None)

    def expected_rows(self, day: dt.date) -> Mapping[str, Change]:
        """How far a row's value may move on a day, by column; columns that the contract does not name are left out."""
        found: dict[str, Change] = {}
        for clause in self.clauses:
            if _holds(clause, day):
                found = {**clause.rows, **found}
        return found

    def of(self, dataset: str) -> Contract:
        """What the contract says about one dataset."""
        return Contract(tuple(clause for clause in self.clauses if clause.dataset in {"", dataset}))

    def updated(self, newer: Contract, replaced: Collection[str]) -> Contract:
        """This contract with its clauses about some datasets replaced by those of the newer one, even if it has none.

        Clauses of no dataset, which are about all, are replaced if `replaced` holds the empty name.
        """
        return Contract((*(c for c in self.clauses if c.dataset not in replaced), *newer.clauses))

    @property
    def hash(self) -> str:
        """Digest that evidence is bound to."""
        return digest(self.to_plain())

    def to_plain(self) -> list[dict[str, object]]:
        """The contract in the form that `parse_contract` reads, bands rounded to nine digits: the ledger keeps the exact ones."""
        return [
            {
                **({"dataset": c.dataset} if c.dataset else {}),
                # No key means every day; an empty list is refused, because it could mean no day.
                **({"days": [str(d) for d in c.days]} if c.days else {}),
                "metrics": _texts(c.metrics),
                # Only if there are any: contracts from before rows could be promised keep their hashes.
                **({"rows": _texts(c.rows)} if c.rows else {}),
            }
            for c in self.clauses
        ]


def parse_contract(
    value: object,
    metrics: Iterable[str],
    where: str = "expected_change",
    dataset: str = "",
    columns: Mapping[str, str] | None = None,
) -> Contract:
    """Read a contract of one dataset from launch config or YAML.

    It is a mapping metric → change, a mapping {metrics, rows}, or a list of {days, metrics, rows}. `columns` gives the types
    of the columns that `rows` may name.

    Raises:
        ContractError: unknown metric or column, unreadable change or days, or a metric or column named twice for one day.
    """
    if value in (None, {}, []):
        return Contract()
    entries = value if isinstance(value, list) else [value if _is_whole(value) else {"metrics": value}]
    known = tuple(metrics)
    clauses: list[Clause] = []
    taken: dict[_Subject, dict[dt.date | None, int]] = {}
    for i, entry in enumerate(entries):
        clause = _clause(entry, known, columns or {}, f"{where}[{i}]")
        _refuse_overlap(clause, i, taken, where)
        clauses.append(replace(clause, dataset=dataset))
    return Contract(tuple(clauses))


def row_change(column: str, kind: str, text: object, where: str) -> Change:
    """Read how far each row's value of a column may move, in the spellings of `parse_change`; only numbers have bands.

    Raises:
        ContractError: the text is not a change, or it is a band of a column without numbers.
    """
    change = parse_change(text, where)
    if kind == OF_ROWS:
        if change != ANY and change.low < 0:
            raise ContractError(
                f"{where}: rows {column} are counted, and cannot be fewer than zero; write {column}: 5% or 0% to 5%"
            )
        return change
    if change not in (ANY, UNCHANGED) and not is_numeric(kind):
        raise ContractError(f"{where}: a {kind} such as {column} cannot change by a percentage; write any or unchanged")
    return change


def _is_whole(value: object) -> bool:
    # A metric may be called `rows`, but its change is not a mapping.
    return isinstance(value, Mapping) and any(isinstance(value.get(key), Mapping) for key in ("metrics", "rows"))


def _clause(entry: object, metrics: Sequence[str], columns: Mapping[str, str], where: str) -> Clause:
    keys = {"days", "metrics", "rows"}
    if not isinstance(entry, Mapping) or not set(entry) <= keys or not (entry.get("metrics") or entry.get("rows")):
        raise ContractError(f"{where}: write a mapping with metrics, rows or both, and days unless it is for every day")
    named = _named(entry, "metrics", "metric to change, such as row_count: -50%", where)
    promised = _named(entry, "rows", "column to change of each row, such as revenue: -8% to 0%", where)
    if unknown := sorted(str(m) for m in named if m not in metrics):
        raise ContractError(
            f"{where}.metrics: unknown metric {unknown[0][:_SHOWN]!r}; this dataset has {', '.join(metrics)}"
        )
    if unknown := sorted(str(c) for c in promised if c not in columns):
        has = f"outside its key this dataset has {', '.join(columns)}"
        raise ContractError(f"{where}.rows: unknown column {unknown[0][:_SHOWN]!r}; {has}")
    changes = {str(m): parse_change(text, f"{where}.metrics.{m}") for m, text in named.items()}
    rows = {str(c): row_change(str(c), columns[c], text, f"{where}.rows.{c}") for c, text in promised.items()}
    days = _days(entry["days"], f"{where}.days") if "days" in entry else ()
    return Clause(days, changes, rows=rows)


def _named(entry: Mapping[str, object], key: str, what: str, where: str) -> Mapping[str, object]:
    found = entry.get(key) or {}
    if not isinstance(found, Mapping):
        raise ContractError(f"{where}.{key}: write a mapping from {what}")
    return found


def _texts(changes: Mapping[str, Change]) -> dict[str, str]:
    return {name: str(change) for name, change in sorted(changes.items())}


def _holds(clause: Clause, day: dt.date) -> bool:
    return not clause.days or day in clause.days


def _days(value: object, where: str) -> tuple[dt.date, ...]:
    if value in (None, []):
        raise ContractError(
            f"{where}: names no day; name the days, or leave `days` out to mean every day of the launch"
        )
    try:
        if isinstance(value, Mapping) and set(value) == {"start", "end"}:
            first, last = parse_day(str(value["start"])), parse_day(str(value["end"]))
            checked_range(first, last)
            days = day_range(first, last)
        elif isinstance(value, list):
            days = tuple(sorted({parse_day(str(d)) for d in value}))
        else:
            raise ContractError(f"{where}: write a list of ISO dates or {{start: …, end: …}}")
    except InvalidDayError as error:
        raise ContractError(f"{where}: {error}") from error
    return days


def _refuse_overlap(clause: Clause, at: int, taken: dict[_Subject, dict[dt.date | None, int]], where: str) -> None:
    """Note which clause covers what on each day, `None` for every day; each clause is checked once."""
    for subject in (*(("metrics", m) for m in sorted(clause.metrics)), *(("rows", c) for c in sorted(clause.rows))):
        known, days = taken.setdefault(subject, {}), clause.days or (None,)
        before = [known[day] for day in (*days, None) if day in known] if clause.days else list(known.values())
        if before:
            raise ContractError(
                f"{where}[{at}]: {subject[1]} is already expected on these days by {where}[{min(before)}]; name it once"
            )
        known.update(dict.fromkeys(days, at))
