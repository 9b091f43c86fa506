"""Idempotency certificates: whether the same inputs give the same rows, however and whenever they are computed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from backfill_assets.domain.canonical import digest
from backfill_assets.domain.comparison import Value


@dataclass(frozen=True)
class Recomputation:
    """One way in which the days were computed: its name for people, and the engine settings that it differed in."""

    name: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Prints:
    """Order-independent fingerprints of one day of one recomputation.

    `keys` counts distinct keys; `columns` holds a hash per column, `sums` the sum of each numeric measure as exact text.
    """

    rows: int
    keys: int
    columns: Mapping[str, str]
    sums: Mapping[str, str]


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

    @cached_property
    def hash(self) -> str:
        """Digest of all that it says."""
        return digest(self)
