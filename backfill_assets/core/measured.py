"""What was measured and compared for one day, on each side; verdicts are made from it without reading the data again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

ROW_COUNT = "row_count"
"""The one metric that every dataset has."""

Figures = Mapping[str, Decimal | None]
"""Figures by name; None if there was nothing to sum (no row, or only nulls)."""


@dataclass(frozen=True)
class SourceDay:
    """What was delivered for a day that another day reads as well: its rows, and those unreadable or of another day."""

    day: dt.date
    rows: int
    bad_rows: int


@dataclass(frozen=True)
class SameContent:
    """Files with rows and with the same bytes under several names, and the delivery days that they came for."""

    paths: tuple[str, ...]
    days: tuple[dt.date, ...]


@dataclass(frozen=True)
class SourceState:
    """What was delivered for a business day.

    `deliveries`, their `rows`, and when the newest arrived (`delivered_at`) are about the day's own delivery day: a file of a
    later day, which `late_days` also reads, does not replace a missing one. If files have whole months, `rows` are those that
    were staged for the day. `corrupt_rows` and `outside_rows` are of all `rows_read`, including those of later days.
    `faulty_beside` are the other days of its window that have no row, or bad ones; `awaited` those that it looks ahead to and
    that are not over yet, or have not landed. `identical` are files of equal content among all that the day reads, and files of the
    week before that equal one of the day's own or of a day that it looks ahead to; `aggregated` says that the staging model may
    have merged their rows. `gone` are the paths of files that were no longer among the sources: raw was read instead.
    """

    deliveries: int = 0
    rows: int = 0
    corrupt_rows: int = 0
    outside_rows: int = 0
    delivered_at: dt.datetime | None = None
    rows_read: int = 0
    faulty_beside: tuple[SourceDay, ...] = ()
    awaited: tuple[dt.date, ...] = ()
    identical: tuple[SameContent, ...] = ()
    aggregated: bool = False
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class UpstreamState:
    """What the upstreams hold for a day: their rows on the day itself, and the totals to compare with.

    `floating` names the totals that are floating-point numbers, in order of name. `absent` are, by upstream, the days that the
    day looks back at and that are neither in its unit nor published; a day that was released without a row is not absent.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    totals: Figures = field(default_factory=dict)
    floating: tuple[str, ...] = ()
    absent: Mapping[str, tuple[dt.date, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Side:
    """One side (shadow, published or staging) of one day.

    `metrics` are comparable between sides (see `metric_names`), `floating` names those of them that are floating-point numbers,
    in order of name; `counts` are rows that break a rule, by `duplicate_keys`, `nulls:<column>`, `rule:<name>`,
    `unmatched:<check>`, `checked:<check>`; `fingerprint` is an order-independent hash over the business columns, empty for
    no rows.
    """

    metrics: Figures = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""
    floating: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.metrics.get(ROW_COUNT) or 0)


NOTHING = Side(metrics={ROW_COUNT: Decimal(0)})
"""A side without rows."""


@dataclass(frozen=True)
class DayMeasurement:
    """All that was measured for one day."""

    day: dt.date
    shadow: Side
    published: Side
    staging: Side
    source: SourceState
    upstream: UpstreamState = UpstreamState()


@dataclass(frozen=True)
class Seam:
    """The step of a metric from the day before to `day`, as published and as it would be.

    A step is the new day minus the day before; scores are robust z-scores of the steps among the series' usual ones, None if
    the step is unknown. `introduced` says that the step is unusual now and was not before.
    """

    dataset: str
    metric: str
    day: dt.date
    old_step: Decimal | None
    new_step: Decimal | None
    old_score: float | None
    new_score: float | None
    introduced: bool


@dataclass(frozen=True)
class NullRise:
    """A column of a day whose share of nulls has risen, from `before` to `share`, both fractions.

    `later` is the day whose share it is, if that is one after the judged day that was checked before it.
    """

    column: str
    share: Decimal
    before: Decimal
    later: dt.date | None = None

    @property
    def place(self) -> str:
        """The column, and the day if it is a later one."""
        return self.column if self.later is None else f"{self.column} on {self.later}"


DELIVERY_FILE = "delivery file"
"""The dimension that every dataset with a source has: the file that the newest delivery of a row's key came with."""

Value = str | int | float | bool | None
"""A plain JSON value; days, times and decimals are text."""


@dataclass(frozen=True)
class RowCounts:
    """Rows of one day by what happens to them, matched by key.

    `columns` counts by column the changed rows in which it differs (beyond its own tolerance); columns without a difference
    are left out; `parts` does so for the leaves of those with parts, such as `items.element.price`. `beyond` counts by column
    the rows whose change is outside of what the contract promises about rows.
    `explained_added` and `explained_removed` count the added and removed rows whose keys came with a delivery that the
    published day was not built from, or went with one that no longer counts.
    """

    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0
    columns: Mapping[str, int] = field(default_factory=dict)
    beyond: Mapping[str, int] = field(default_factory=dict)
    explained_added: int = 0
    explained_removed: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def differing(self) -> int:
        """Rows that are added, removed or changed."""
        return self.added + self.removed + self.changed

    def parts_of(self, column: str) -> tuple[tuple[str, int], ...]:
        """The differing leaves of a column, each with its number of rows."""
        return tuple((path, rows) for path, rows in self.parts.items() if path.startswith(f"{column}."))


@dataclass(frozen=True)
class SchemaChange:
    """How the columns of a shadow differ from those of the published table; types by column, as `old → new` if retyped."""

    added: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)
    retyped: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GoldenCounts:
    """How a day agrees with a golden source, by rows of the grain that both are brought to."""

    missing_here: int = 0
    missing_there: int = 0
    different: int = 0
    equal: int = 0

    @property
    def mismatches(self) -> int:
        """Rows that the two do not agree on."""
        return self.missing_here + self.missing_there + self.different


@dataclass(frozen=True)
class Alone:
    """A day of a batch that was also built alone: its rows in the batch, and the rows in which the two differ."""

    day: dt.date
    rows: int
    differing: int


@dataclass(frozen=True)
class Compared:
    """What verdicts need to know about the comparisons of one day; a part is absent if there was nothing to compare.

    `rows` is None if nothing of the day is published yet; `seams` has the steps to neighbouring days that the day is
    responsible for. `upstream_moved` says that its upstreams differ from those that the published day was built from. `null_rises`
    are columns that are null more often than before; `alone` are all days of its batch, not only itself, that were also
    built alone. `finalizes` says that the published day awaited days that it no longer awaits, `corrected` that its own
    deliveries are others now.
    """

    rows: RowCounts | None = None
    schema: SchemaChange = SchemaChange()
    golden: Mapping[str, GoldenCounts] = field(default_factory=dict)
    seams: tuple[Seam, ...] = ()
    upstream_moved: bool = False
    null_rises: tuple[NullRise, ...] = ()
    alone: tuple[Alone, ...] = ()
    finalizes: bool = False
    corrected: bool = False


@dataclass(frozen=True)
class RowChange:
    """A measure's value in one row on both sides; `old` is None for an added row or a null, `new` for a removed one."""

    measure: str
    day: dt.date
    key: Mapping[str, Value]
    old: Decimal | None
    new: Decimal | None

    @property
    def delta(self) -> Decimal:
        """New minus old; a missing value counts as zero."""
        return (self.new or Decimal(0)) - (self.old or Decimal(0))


@dataclass(frozen=True)
class Share:
    """The share of one value of one dimension in a day's difference.

    `rows` are its differing rows, `of` all its rows on that day (on the side that has more of them; a row that changed its
    value counts for the new one). By measure, `moved` adds up the absolute differences of its rows.
    """

    dimension: str
    value: str
    rows: int
    of: int
    moved: Mapping[str, Decimal]


@dataclass(frozen=True)
class DayComparison:
    """The rows behind a day's difference: the largest changes of each measure, and the shares of dimensions' values.

    `moved` adds up the absolute differences of all rows by measure, `rows` counts the day's differing rows and `of` all
    its rows (on the side that has more), so that what `shares` leaves out is known. `attempt` is the attempt that was
    compared.
    """

    dataset: str
    day: dt.date
    attempt: int
    rows: int
    of: int
    moved: Mapping[str, Decimal]
    largest: tuple[RowChange, ...] = ()
    shares: tuple[Share, ...] = ()
