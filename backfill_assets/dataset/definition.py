"""The dataset contract: the keys of `dataset.yaml`, validated together."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from typing import Annotated, Self
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from backfill_assets.core.days import ONE_DAY, day_range, last_of_month
from backfill_assets.core.errors import DatasetError, InvalidDayError, MisfitError
from backfill_assets.core.expected_change import KEY_CHANGES, OF_ROWS
from backfill_assets.core.fields import Day, Distance, Name, Part, TimeZone
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import LateData
from backfill_assets.dataset.checks import Checks, Measure
from backfill_assets.dataset.consistency import AUDIT_COLUMNS, IS_PROVISIONAL, golden_misfits, misfits
from backfill_assets.dataset.extracts import Extract
from backfill_assets.dataset.reading import Staging
from backfill_assets.dataset.references import Reference
from backfill_assets.dataset.releasing import AuditTrail, DatasetState, Live, Provisional, Publication, Retention
from backfill_assets.dataset.sources import ColumnType, Consumer, Golden, Source, Upstream
from backfill_assets.dataset.table_source import TableSource, of_its_kind


class Column(Part):
    """One business column of the published table."""

    type: ColumnType
    nullable: bool = True
    description: str = ""
    tolerance: Distance = Field(
        default=Decimal(0), description="How far two numbers may differ and still be equal, row by row; 0 is exact."
    )


class Dataset(Part):
    """A daily-partitioned table and everything the pipeline needs to know about it."""

    name: Name
    description: str = ""
    owner: str = ""
    partition_column: Name
    time_zone: TimeZone = "UTC"
    start: Day = Field(description="First day of the history. Datasets of a release group may begin on different days.")
    end: Day | None = Field(default=None, description="Last day of a closed history; by default it grows daily.")
    end_offset: Annotated[int, Field(ge=-366, le=366)] = Field(
        default=0, description="Days to add to the newest partition; 1 makes today's partition launchable."
    )
    key: tuple[Name, ...] = Field(min_length=1)
    columns: dict[Name, Column] = Field(min_length=1)
    dropped_columns: tuple[Name, ...] = Field(
        default=(), description="Old columns of the published table that are no longer filled."
    )
    source: Annotated[Source | TableSource | None, BeforeValidator(of_its_kind)] = Field(
        default=None, description="Files, or a Delta table. Leave it out if the dataset is built only from upstream."
    )
    upstream: dict[Name, Upstream] = Field(default_factory=dict)
    staging: Staging = Staging()
    references: dict[Name, Reference] = Field(default_factory=dict)
    measures: dict[Name, Measure] = Field(default_factory=dict)
    dimensions: tuple[Name, ...] | None = Field(
        default=None,
        description="Columns by whose values differences are grouped; by default, strings and booleans that are not measures.",
    )
    checks: Checks = Checks()
    golden: dict[Name, Golden] = Field(
        default_factory=dict, description="Tables that the dataset must agree with, row by row, by name."
    )
    chunk_days: Annotated[int, Field(ge=1, le=10_000)] = 31
    lookback_days: Annotated[int, Field(ge=0, le=366)] = 0
    lookahead_days: Annotated[int, Field(ge=0, le=366)] = Field(
        default=0,
        description="Later days that the fact model needs; a day is published when they have landed, or before, as provisional.",
    )
    provisional: Provisional | None = Field(
        default=None,
        description="Publish a day before the days that it looks ahead to have landed, marked in the audit column is_provisional.",
    )
    publication: Publication = Publication.auto
    state: DatasetState = Field(
        default=DatasetState.live,
        description="draft keeps a new dataset out of live runs, catch-up and what is built downstream by itself; only `backfill "
        "publish` releases it.",
    )
    late_data: LateData = LateData.hold
    audit: AuditTrail = Field(
        default=AuditTrail.columns,
        description="columns adds recalculated_at, unit and code_version to each row of the published table; ledger leaves "
        "the table as it is, and only `backfill history` and `data_releases` say which unit wrote a day.",
    )
    live: Live = Live()
    retention: Retention = Retention()
    consumers: dict[Name, Consumer] = Field(
        default_factory=dict, description="Who reads the table, each with a query that is watched after releases."
    )

    _upstream_starts: Mapping[str, dt.date] = PrivateAttr(default_factory=dict)
    _lag_days: int = PrivateAttr(default=0)
    _at: str = PrivateAttr(default="")
    _through: dt.date | None = PrivateAttr(default=None)

    def linked(self, starts: Mapping[str, dt.date], lag_days: int = 0, at: str = "") -> Self:
        """The dataset that knows on which day the history of each upstream begins, how many days its group lags, and when it runs.

        Other upstreams begin on its own `start`; without `at`, it runs at its own `live.at`.
        """
        found = self.model_copy()
        found._upstream_starts, found._lag_days, found._at = dict(starts), lag_days, at  # noqa: SLF001 - of this very class
        return found

    def seen_at(self, now: dt.datetime) -> Self:
        """The dataset whose windows end before the days that are awaited at an aware moment, if days are published before these."""
        if self.provisional is None:
            return self
        found = self.model_copy()
        found._through = self.newest_settled(now)  # noqa: SLF001 - of this very class
        return found

    @model_validator(mode="after")
    def _refers_to_declared_things(self) -> Self:
        problems = (*misfits(self), *golden_misfits(self))
        if problems:
            raise MisfitError(problems)
        return self

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of the business day."""
        return ZoneInfo(self.time_zone)

    @property
    def feed(self) -> Source | TableSource:
        """The source of a dataset that has one: files or a table.

        Raises:
            DatasetError: it is built only from upstream.
        """
        if self.source is None:
            raise DatasetError(f"{self.name} has no source of its own; it is built from {', '.join(self.upstream)}")
        return self.source

    @property
    def landing(self) -> Source:
        """The source of a dataset whose files land in raw.

        Raises:
            DatasetError: it is built only from upstream, or reads a table.
        """
        if isinstance(self.feed, TableSource):
            raise DatasetError(
                f"{self.name} reads its days from the table {self.feed.table}, so nothing lands that could be withdrawn or read "
                f"again: correct the rows there, then: backfill refresh {self.name}"
            )
        return self.feed

    @property
    def extract(self) -> Extract | None:
        """What writes the files of its source, if they are not delivered."""
        return self.source.extract if isinstance(self.source, Source) else None

    @property
    def lands_files(self) -> bool:
        """Whether files of it land in raw."""
        return isinstance(self.source, Source)

    @property
    def types(self) -> dict[str, str]:
        """The type of each published column."""
        return {name: column.type for name, column in self.columns.items()}

    @property
    def built_layers(self) -> tuple[Layer, ...]:
        """The layers up to the shadow: no raw without files, and only the shadow if it is built only from upstream."""
        raw = (Layer.raw,) if self.lands_files else ()
        return (*raw, Layer.staging, Layer.shadow) if self.source else (Layer.shadow,)

    @property
    def is_draft(self) -> bool:
        """Whether it is prepared beside what is live."""
        return self.state is DatasetState.draft

    @property
    def is_released_by_runs(self) -> bool:
        """Whether the runs that complete a unit release it; otherwise a person does."""
        return self.publication is Publication.auto and not self.is_draft

    @property
    def launched_layers(self) -> tuple[Layer, ...]:
        """The layers that can be launched: those that it has, but not published if only a person releases it."""
        return (*self.built_layers, Layer.published) if self.is_released_by_runs else self.built_layers

    @property
    def audit_columns(self) -> Mapping[str, str]:
        """The columns, with their types, that a shadow adds to every row."""
        if self.audit is not AuditTrail.columns:
            return {}
        return AUDIT_COLUMNS if self.provisional is None else {**AUDIT_COLUMNS, IS_PROVISIONAL: "boolean"}

    def shown(self, there: Collection[str]) -> dict[str, str]:
        """The columns, with their types, that readers of views see of a table that has those that are `there`."""
        # Also if no days are provisional any more: the last ones may still wait.
        is_marked = IS_PROVISIONAL in {*self.audit_columns, *there} and IS_PROVISIONAL not in self.dropped_columns
        return self.types | {IS_PROVISIONAL: "boolean"} if is_marked else self.types

    @property
    def waiting_days(self) -> int:
        """For how many days after its own a day cannot be published: it may be before those that it looks ahead to."""
        return self.lookahead_days if self.provisional is None else 0

    @property
    def compared(self) -> dict[str, str]:
        """The types of the columns that are compared row by row: all except those that rows are matched by."""
        match = {self.partition_column, *self.key}
        return {name: kind for name, kind in self.types.items() if name not in match}

    @property
    def promisable(self) -> dict[str, str]:
        """What a contract may promise about rows, with its type: each compared column, and rows added and removed by key.

        A column that is called `added` or `removed` takes precedence over the rows.
        """
        return self.compared | {name: OF_ROWS for name in KEY_CHANGES if name not in self.columns}

    @property
    def dimension_columns(self) -> tuple[str, ...]:
        """The columns by whose values differences are grouped."""
        if self.dimensions is not None:
            return self.dimensions
        plain = ("string", "boolean")
        return tuple(name for name, c in self.columns.items() if c.type in plain and name not in self.measures)

    @property
    def reconciled(self) -> tuple[str, ...]:
        """The metrics whose staging total must equal the fact's."""
        declared = self.checks.reconciliation.metrics
        if declared is not None:
            return declared
        return () if self.source is None else ("row_count",)

    def upstream_days(self, upstream: str, days: tuple[dt.date, ...]) -> tuple[dt.date, ...]:
        """The days of an upstream that these days are built from; none before its history begins."""
        back, start = dt.timedelta(days=self.upstream[upstream].lookback_days), self._start_of(upstream)
        return tuple(sorted({d for day in days if day >= start for d in day_range(max(day - back, start), day)}))

    def upstream_on(self, day: dt.date) -> Mapping[str, Upstream]:
        """The upstreams whose history has begun on a day."""
        return {name: one for name, one in self.upstream.items() if day >= self._start_of(name)}

    def _start_of(self, upstream: str) -> dt.date:
        return self._upstream_starts.get(upstream, self.start)

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Columns that must not be null: the key, the partition column and columns declared as not nullable."""
        declared = [name for name, column in self.columns.items() if not column.nullable]
        return tuple(dict.fromkeys([*self.key, self.partition_column, *declared]))

    def enforces(self, sql: str) -> bool:
        """Whether a blocking check refuses each row that does not meet a condition: a rule with its text, or NOT NULL."""
        rules = {rule.sql.strip() for rule in self.checks.rules.values() if rule.blocks and not rule.max_failing}
        required = self.required_columns if self.checks.not_null.blocks else ()
        return sql.strip() in rules | {f"{column} IS NOT NULL" for column in required}

    def newest_day(self, now: dt.datetime) -> dt.date:
        """The newest partition at an aware moment; a day before `start` while there is no partition."""
        newest = now.astimezone(self.zone).date() + (self.end_offset - 1) * ONE_DAY
        return newest if self.end is None else min(newest, self.end)

    @property
    def lag_days(self) -> int:
        """How many days after its own a day is published: as many as a dataset of its release group waits for."""
        return self._lag_days

    def newest_over(self, now: dt.datetime) -> dt.date:
        """The newest partition at an aware moment that is over: `end_offset` may make today one as well."""
        return min(self.live_day(now) + self.lag_days * ONE_DAY, self.end or dt.date.max)

    def newest_settled(self, now: dt.datetime) -> dt.date:
        """The newest day that is over at an aware moment; where days may be provisional, its daily run has begun as well."""
        local = now.astimezone(self.zone)
        begins = dt.datetime.combine(local.date(), dt.time.fromisoformat(self._at or self.live.at), self.zone)
        # A day before by the clock on the wall, however many hours it had.
        return self.newest_over(local - ONE_DAY if self.provisional is not None and now < begins else now)

    def newest_due(self, now: dt.datetime) -> dt.date:
        """The newest day at an aware moment that is over, and after it all days that its release group waits for."""
        over = self.newest_over(now)
        return over if over == self.end else over - self.lag_days * ONE_DAY

    def newest_to_launch(self, now: dt.datetime) -> dt.date:
        """The newest partition at an aware moment that can be published."""
        return self.newest_due(now) if self.lag_days else self.newest_day(now)

    @property
    def lag_in_words(self) -> str:
        """What its newest day waits for, after the words `the newest partition of NAME`; empty if for nothing."""
        days = f"the {self.lag_days} days after it are" if self.lag_days > 1 else "the day after it is"
        return f" that can be published when {days} over (lookahead_days)" if self.lag_days else ""

    def live_day(self, moment: dt.datetime) -> dt.date:
        """The partition of the daily pipeline at an aware moment: yesterday, or as much before it as `end_offset` and lag say."""
        return moment.astimezone(self.zone).date() + (min(0, self.end_offset) - 1 - self.lag_days) * ONE_DAY

    def end_of(self, day: dt.date) -> dt.datetime:
        """The moment at which a day is over in the dataset's time zone."""
        return dt.datetime.combine(day + ONE_DAY, dt.time(), self.zone)

    def from_start(self, days: Iterable[dt.date]) -> tuple[dt.date, ...]:
        """The days of a launch that belong to its history: another dataset of its release group may begin before it."""
        return tuple(day for day in days if day >= self.start)

    def check_days(self, days: tuple[dt.date, ...]) -> None:
        """Refuse days outside the dataset's history.

        Raises:
            InvalidDayError: a day is before `start` or after `end`.
        """
        outside = [d for d in days if d < self.start or (self.end is not None and d > self.end)]
        if outside:
            raise InvalidDayError(
                f"{outside[0]} is outside the history of {self.name} ({self.start}..{self.end or ''}); "
                "choose other days, or change start/end in its dataset.yaml"
            )

    def delivery_days(self, days: tuple[dt.date, ...]) -> tuple[dt.date, ...]:
        """The delivery days that may hold rows of these business days; none without a source."""
        if self.source is None:
            return ()
        late = dt.timedelta(days=self.source.late_days)
        read = {d for day in days for d in day_range(day, day + late)} if late else set(days)
        return tuple(sorted({last_of_month(day) for day in read} if self.is_monthly else read))

    @property
    def is_monthly(self) -> bool:
        """Whether a file has the days of a whole month."""
        return isinstance(self.source, Source) and self.source.template.is_monthly

    def due(self, day: dt.date) -> dt.date:
        """The delivery day that must bring a business day: the day itself, or the last day of its month."""
        return last_of_month(day) if self.is_monthly else day

    def first_brought_by(self, delivery_day: dt.date) -> dt.date:
        """The first business day of which a delivery day may hold rows, also one before the history."""
        first = delivery_day.replace(day=1) if self.is_monthly else delivery_day
        return first - dt.timedelta(days=self.feed.late_days)

    def brought_by(self, delivery_day: dt.date) -> tuple[dt.date, ...]:
        """The business days of which a delivery day may hold rows, as far as the history goes."""
        last = min(delivery_day, self.end or delivery_day)
        return day_range(max(self.start, self.first_brought_by(delivery_day)), last)

    def fact_delivery_days(self, days: tuple[dt.date, ...]) -> tuple[dt.date, ...]:
        """The delivery days behind the facts of these business days, including all days of their windows."""
        return self.delivery_days(self.with_window(days))

    @property
    def has_window(self) -> bool:
        """Whether a day is built from other days as well, of its own source or of an upstream."""
        return bool(self.most_lookback_days or self.lookahead_days)

    @property
    def has_own_window(self) -> bool:
        """Whether a day is built from other days of its own source as well."""
        return bool(self.lookback_days or self.lookahead_days)

    @property
    def versioned(self) -> frozenset[str]:
        """The references whose rows are valid on some days only."""
        return frozenset(name for name, one in self.references.items() if one.valid is not None)

    @property
    def most_lookback_days(self) -> int:
        """How many days before its own a day is built from at most, of its own source or of an upstream."""
        return max([self.lookback_days, *(one.lookback_days for one in self.upstream.values())])

    def days_ahead(self, day: dt.date) -> tuple[dt.date, ...]:
        """The later days that a day looks ahead to, whether they are over or not."""
        return day_range(day + ONE_DAY, min(day + self.lookahead_days * ONE_DAY, max(day, self.end or dt.date.max)))

    def days_read(self, days: tuple[dt.date, ...]) -> tuple[dt.date, ...]:
        """The days, and all other days of the own source and of upstreams that they are built from."""
        above = (day for name in self.upstream for day in self.upstream_days(name, days))
        return tuple(sorted({*self.with_window(days), *above}))

    def with_window(self, days: tuple[dt.date, ...]) -> tuple[dt.date, ...]:
        """The days, plus those of the source that the model needs around them; none outside the history, or awaited (`seen_at`)."""
        if not self.has_own_window:
            return tuple(sorted({day for day in days if day >= self.start}))
        back, ahead = self.lookback_days * ONE_DAY, self.lookahead_days * ONE_DAY
        # A published day may be after the end, if that was set to an earlier day since.
        last = min(self.end or dt.date.max, self._through or dt.date.max)
        reach = {
            day: (max(day - back, self.start), min(day + ahead, max(day, last))) for day in days if day >= self.start
        }
        return tuple(sorted({d for first, final in reach.values() for d in day_range(first, final)}))
