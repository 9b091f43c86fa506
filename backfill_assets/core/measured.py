"""What was measured and compared of one day, on each side; verdicts are made from it without a second look at the data."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

ROW_COUNT = "row_count"
"""The one metric that every dataset has."""

Figures = Mapping[str, Decimal | None]
"""Figures by name; null where nothing could be summed (no row, or only nulls)."""


@dataclass(frozen=True)
class SourceDay:
    """What was delivered for a day that another one looks back at: its rows, and those unreadable or of another day."""

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

    `deliveries`, their `rows`, and when the newest came (`delivered_at`) are of the day's own delivery day: a file of a later
    day, which `late_days` reads as well, does not stand in for one that is missing. `corrupt_rows` and `outside_rows` are of all
    `rows_read`, those of later days included. `faulty_before` are the days looked back at without a row, or with bad ones.
    `identical` are files of equal content among all that the day reads, and among those of the week before that equal one of
    the day's own; `aggregated` says that the staging model may have made one row of theirs. `gone` are the paths of those that
    were not among the sources any more: raw stands for them.
    """

    deliveries: int = 0
    rows: int = 0
    corrupt_rows: int = 0
    outside_rows: int = 0
    delivered_at: dt.datetime | None = None
    rows_read: int = 0
    faulty_before: tuple[SourceDay, ...] = ()
    identical: tuple[SameContent, ...] = ()
    aggregated: bool = False
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class UpstreamState:
    """What the upstreams hold for a day: their rows on the day itself, and the totals to compare with.

    `floating` names the totals that are floating-point numbers, in order of name. `absent` are, by upstream, the days that the
    day looks back at and that neither its unit holds nor readers see; a day that was released without a row is none of them.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    totals: Figures = field(default_factory=dict)
    floating: tuple[str, ...] = ()
    absent: Mapping[str, tuple[dt.date, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Side:
    """One side (shadow, published or staging) of one day.

    `metrics` are comparable between sides (see `metric_names`), `floating` names those of them that are floating-point numbers,
    in order of name; `counts` are rows that break a rule, by
    `duplicate_keys`, `nulls:<column>`, `rule:<name>`, `unmatched:<check>`, `checked:<check>`;
    `fingerprint` is an order-independent hash over the business columns, empty for no rows.
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
"""A side without a row."""


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
    """The step of a metric from the day before to `day`, as it was and as it would be.

    Steps are new day less day before; scores are robust z-scores of the steps among those that the series usually makes,
    none where the step cannot be told. `introduced` says that the step is unusual now and was not before.
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
    """A column of a day whose share of nulls has risen, from `before` to `share`, both fractions."""

    column: str
    share: Decimal
    before: Decimal


DELIVERY_FILE = "delivery file"
"""The dimension that every dataset with a source has: the file that the newest delivery of a row's key came with."""

Value = str | int | float | bool | None
"""A plain JSON value; days, times and decimals are text."""


@dataclass(frozen=True)
class RowCounts:
    """Rows of one day by what happens to them, matched by key.

    `columns` counts, of the changed rows, those in which each column differs (beyond its own tolerance); columns without
    a difference lack. `beyond` counts by column the rows whose change lies outside of what the contract promises of rows.
    Of the rows added and removed, `explained_added` and `explained_removed` have keys that came with a delivery that the published
    day was not built from.
    """

    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0
    columns: Mapping[str, int] = field(default_factory=dict)
    beyond: Mapping[str, int] = field(default_factory=dict)
    explained_added: int = 0
    explained_removed: int = 0

    @property
    def differing(self) -> int:
        """Rows that are added, removed or changed."""
        return self.added + self.removed + self.changed


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
    """A day of a batch that was built alone as well: its rows in the batch, and the rows in which the two differ."""

    day: dt.date
    rows: int
    differing: int


@dataclass(frozen=True)
class Compared:
    """What verdicts need to know of comparisons of one day; a part is absent where there was nothing to compare.

    `rows` is absent where nothing is published of the day yet, `seams` has the steps to neighbouring days that the day has
    to answer for. `upstream_moved` says that its upstreams hold something else than what the published day was built from.
    `null_rises` are columns that are null more often than before, `alone` the days of its batch, not only itself, that were
    built alone as well.
    """

    rows: RowCounts | None = None
    schema: SchemaChange = SchemaChange()
    golden: Mapping[str, GoldenCounts] = field(default_factory=dict)
    seams: tuple[Seam, ...] = ()
    upstream_moved: bool = False
    null_rises: tuple[NullRise, ...] = ()
    alone: tuple[Alone, ...] = ()


@dataclass(frozen=True)
class RowChange:
    """A measure's value in one row on both sides; `old` is none for an added row or a null, `new` for a removed one."""

    measure: str
    day: dt.date
    key: Mapping[str, Value]
    old: Decimal | None
    new: Decimal | None

    @property
    def delta(self) -> Decimal:
        """New less old; what is not there counts as nothing."""
        return (self.new or Decimal(0)) - (self.old or Decimal(0))


@dataclass(frozen=True)
class Share:
    """What one value of one dimension has to do with a day's difference.

    `rows` are its differing rows, `of` all its rows on that day (on the side that has more of them, a row that changed its
    value counting for the new one). By measure, `moved` adds up the absolute differences of its rows.
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
    its rows (on the side that has more), so that what `shares` leaves out can be told. `attempt` is the attempt that was
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
