"""Idempotency certificates: whether the same inputs give the same rows, however and whenever they are computed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from backfill_assets.core.canonical import digest
from backfill_assets.core.days import format_days
from backfill_assets.core.evidence import DatasetDay, DayEvidence
from backfill_assets.core.measured import Value

AS_BUILT: Final = "as built"
"""The name under which stands what was there before: the shadow of the unit, or what is published."""
INPUT_ROWS: Final = "input rows"
"""Among the settings of a recomputation: that the models saw their rows in another order, from other partitions."""


@dataclass(frozen=True)
class Recomputation:
    """One way in which the days were computed: its name for people, and the engine settings that it differed in."""

    name: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Prints:
    """Order-independent fingerprints of one day of one recomputation.

    `keys` counts distinct keys; `columns` holds a hash per column: of its values, and after a colon, unless it is of the
    key, of its values together with the keys. `sums` are those of the numeric measures as exact text, floats rounded to ten
    places each before they are added up. `fingerprint` is that of `Side.fingerprint`, over all columns.
    """

    rows: int
    keys: int
    columns: Mapping[str, str]
    sums: Mapping[str, str]
    fingerprint: str = ""


NO_PRINTS: Final = Prints(0, 0, {}, {})
"""Of a day without rows."""


def differing_columns(one: Prints, other: Prints) -> tuple[str, ...]:
    """The columns that make two prints differ; a value that only went to another row counts, unless keys differ as well."""
    names = sorted(one.columns.keys() | other.columns.keys())
    found = {name: (one.columns.get(name, ""), other.columns.get(name, "")) for name in names}
    other_values = {name for name, pair in found.items() if len({text.partition(":")[0] for text in pair}) > 1}
    other_rows = {name for name, pair in found.items() if len(set(pair)) > 1}
    of_key = {name for name in other_values if all(":" not in text for text in found[name])}
    return tuple(name for name in names if name in (other_values if of_key else other_rows))


@dataclass(frozen=True)
class Disagreement:
    """A day that came out differently: against which recomputation, in which columns, and some of the rows.

    Each row of `rows` holds its key, and `<column>: old` and `<column>: new` of what differs.
    """

    day: dt.date
    recomputation: str
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Value], ...]


@dataclass(frozen=True)
class Certificate:
    """What recomputing some days of a dataset has shown.

    `unit` is empty for a dataset without a unit; `code` is the dataset's code version, `inputs` by day the digest of what
    it was built from. `prints` are by name of the recomputation, then day. `touched` names tables or days outside of the
    recomputed ones that changed meanwhile; nothing may.
    """

    id: str
    dataset: str
    unit: str
    days: tuple[dt.date, ...]
    code: str
    inputs: Mapping[dt.date, str]
    recomputations: tuple[Recomputation, ...]
    prints: Mapping[str, Mapping[dt.date, Prints]]
    disagreements: tuple[Disagreement, ...]
    touched: tuple[str, ...]
    at: dt.datetime
    by: str

    @property
    def passed(self) -> bool:
        """Whether all recomputations agree and nothing else was touched."""
        return not self.disagreements and not self.touched

    def failed(self, day: dt.date) -> bool:
        """Whether one of its days came out differently, or anything else was touched meanwhile."""
        return bool(self.touched) or any(found.day == day for found in self.disagreements)

    @property
    def first(self) -> str:
        """The name of the recomputation that all others were compared with."""
        return self.recomputations[0].name

    def __str__(self) -> str:
        """One line for people."""
        verdict = "passed" if self.passed else "did not pass"
        columns = sorted({column for found in self.disagreements for column in found.columns})
        problems = []
        if self.disagreements:
            days = format_days(found.day for found in self.disagreements)
            problems.append(f"{', '.join(columns) or 'rows'} of {days} came out differently")
        if self.touched:
            problems.append(f"touched meanwhile: {', '.join(self.touched)}")
        why = f": {'; '.join(problems)}" if problems else ""
        return f"{self.id} of {self.dataset} {format_days(self.days)} {verdict}, by {self.by} at {self.at:%Y-%m-%d %H:%M} UTC{why}"

    @cached_property
    def hash(self) -> str:
        """Digest of all that it says."""
        return digest(self)


def origin_of(inputs: str, upstream: str) -> str:
    """The digest of all that a day is built from, given those of its deliveries and references and of its upstreams."""
    return digest([inputs, upstream]) if upstream else inputs


def standing_certificates(
    certificates: Sequence[Certificate], evidence: Mapping[DatasetDay, DayEvidence]
) -> Mapping[str, Certificate]:
    """Of a unit's certificates, newest first, by dataset the one that counts for its evidence as it is now, passed or not.

    A certificate speaks of a day that was built by the same code, from the same inputs, and has come out with the same
    content. One that failed a day counts until a newer one speaks of that very day. Otherwise the newest that passed counts,
    if it speaks of all of its days, and of one that has rows, where any day has.
    """
    names = sorted({name for name, _ in evidence}) if certificates else []
    found = {
        name: _standing(certificates, {day: e for (n, day), e in evidence.items() if n == name}, name) for name in names
    }
    return {name: one for name, one in found.items() if one is not None}


def _standing(
    certificates: Iterable[Certificate], evidence: Mapping[dt.date, DayEvidence], dataset: str
) -> Certificate | None:
    settled, newest = set[dt.date](), None
    # To prove other days, or days without rows, must be no way around a model that gives other rows each time.
    filled = {day for day, found in evidence.items() if found.measured.shadow.rows}
    for one in (found for found in certificates if found.dataset == dataset):
        spoken = {day for day in one.days if day in evidence and _speaks_of(one, day, evidence[day])}
        if any(one.failed(day) for day in spoken - settled):
            return one
        settled |= spoken
        whole = spoken.issuperset(one.days) and (spoken & filled or not filled)
        newest = one if newest is None and one.passed and whole else newest
    return newest


def _speaks_of(certificate: Certificate, day: dt.date, found: DayEvidence) -> bool:
    if found.basis.code != certificate.code:
        return False
    if origin_of(found.basis.inputs, found.basis.upstream) != certificate.inputs[day]:
        return False
    # Where it came out differently the certificate says so, as long as that is what was compared.
    prints = certificate.prints.get(AS_BUILT, certificate.prints[certificate.first])
    return day in prints and prints[day].fingerprint == found.measured.shadow.fingerprint
