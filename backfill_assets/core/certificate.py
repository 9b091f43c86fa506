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
"""The name of the days as they were before: the shadow of the unit, or the published days."""
INPUT_ROWS: Final = "input rows"
"""Setting of a recomputation: the models saw their rows in another order, from other partitions."""


@dataclass(frozen=True)
class Recomputation:
    """One way in which the days were computed: its name for people, and the engine settings that differed."""

    name: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Prints:
    """Order-independent fingerprints of one day of one recomputation.

    `keys` counts distinct keys; `columns` holds a hash per column: of its values and, after a colon, except for key columns,
    of its values together with the keys. `sums` are the sums of numeric measures as exact text; floats are rounded to ten
    places before they are added up. `fingerprint` is the same as `Side.fingerprint`, over all columns.
    """

    rows: int
    keys: int
    columns: Mapping[str, str]
    sums: Mapping[str, str]
    fingerprint: str = ""


NO_PRINTS: Final = Prints(0, 0, {}, {})
"""The prints of a day without rows."""


def differing_columns(one: Prints, other: Prints) -> tuple[str, ...]:
    """The columns that make two prints differ; a value that only moved to another row counts, unless keys differ too."""
    names = sorted(one.columns.keys() | other.columns.keys())
    found = {name: (one.columns.get(name, ""), other.columns.get(name, "")) for name in names}
    other_values = {name for name, pair in found.items() if len({text.partition(":")[0] for text in pair}) > 1}
    other_rows = {name for name, pair in found.items() if len(set(pair)) > 1}
    of_key = {name for name in other_values if all(":" not in text for text in found[name])}
    return tuple(name for name in names if name in (other_values if of_key else other_rows))


@dataclass(frozen=True)
class Disagreement:
    """A day that came out differently: against which recomputation, in which columns, and some of the rows.

    Each row of `rows` holds its key, and `<column>: old` and `<column>: new` of each column that differs.
    """

    day: dt.date
    recomputation: str
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Value], ...]


@dataclass(frozen=True)
class Certificate:
    """The result of recomputing some days of a dataset.

    `unit` is empty for a dataset without a unit; `code` is the dataset's code version, `inputs` has by day the digest of
    what it was built from. `prints` are by name of the recomputation, then day. `touched` names other tables or days that
    changed meanwhile; none may.
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
        """Whether this day came out differently, or anything else was touched meanwhile."""
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
        """Digest of its content."""
        return digest(self)


def origin_of(inputs: str, upstream: str) -> str:
    """The digest of everything that a day is built from: its deliveries and references, and its upstreams."""
    return digest([inputs, upstream]) if upstream else inputs


def standing_certificates(
    certificates: Sequence[Certificate], evidence: Mapping[DatasetDay, DayEvidence]
) -> Mapping[str, Certificate]:
    """By dataset, the certificate that counts for the current evidence, passed or not; `certificates` has the newest first.

    A certificate covers a day that was built by the same code from the same inputs and has the same content. A certificate
    that failed a day counts until a newer one covers that day. Otherwise the newest certificate that passed counts, if it
    covers all of its days and one of them has rows (unless no day has rows).
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
    # Proving other days, or days without rows, must not hide a model that gives other rows each time.
    filled = {day for day, found in evidence.items() if found.measured.shadow.rows}
    for one in (found for found in certificates if found.dataset == dataset):
        covered = {day for day in one.days if day in evidence and _covers(one, day, evidence[day])}
        if any(one.failed(day) for day in covered - settled):
            return one
        settled |= covered
        complete = covered.issuperset(one.days) and (covered & filled or not filled)
        newest = one if newest is None and one.passed and complete else newest
    return newest


def _covers(certificate: Certificate, day: dt.date, found: DayEvidence) -> bool:
    if found.basis.code != certificate.code:
        return False
    if origin_of(found.basis.inputs, found.basis.upstream) != certificate.inputs[day]:
        return False
    # A difference is recorded in the certificate itself; it only has to be about the content of this evidence.
    prints = certificate.prints.get(AS_BUILT, certificate.prints[certificate.first])
    return day in prints and prints[day].fingerprint == found.measured.shadow.fingerprint
