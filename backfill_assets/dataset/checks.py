"""The checks of a dataset: their kinds, their keys in `dataset.yaml`, and their list; metrics and their bands."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import Field, model_validator

from backfill_assets.core.evidence import Severity
from backfill_assets.core.expected_change import Change, Contract
from backfill_assets.core.fields import Duration, Name, Part, Percent
from backfill_assets.core.measured import ROW_COUNT
from backfill_assets.core.text import format_duration
from backfill_assets.core.unit import IDENTICAL_FILES

if TYPE_CHECKING:
    from backfill_assets.dataset.definition import Dataset


class Level(StrEnum):
    """How deep a check looks, in the order in which a reviewer wants to see failures."""

    structural = "structural"
    aggregate = "aggregate"
    row = "row"
    golden = "golden"
    certificate = "certificate"


class CheckKind(Enum):
    """The kinds of checks, each with its level; each has its own judge."""

    unique_key = "unique_key", Level.structural
    not_null = "not_null", Level.structural
    not_empty = "not_empty", Level.structural
    source_present = "source_present", Level.structural
    upstream_present = "upstream_present", Level.structural
    corrupt_rows = "corrupt_rows", Level.structural
    source_freshness = "source_freshness", Level.structural
    identical = "identical", Level.structural
    alone = "alone", Level.structural
    change = "change", Level.aggregate
    schema = "schema", Level.structural
    keys = "keys", Level.structural
    rows = "rows", Level.row
    columns = "columns", Level.row
    seams = "seams", Level.aggregate
    nulls = "nulls", Level.structural
    reconciliation = "reconciliation", Level.aggregate
    upstream_total = "upstream_total", Level.aggregate
    reference = "reference", Level.structural
    rule = "rule", Level.structural
    golden = "golden", Level.golden

    @property
    def level(self) -> Level:
        """How deep the checks of this kind look."""
        return self.value[1]


@dataclass(frozen=True)
class Check:
    """One check of a dataset: its name in Dagster, its kind, and the metric or rule that it is about."""

    name: str
    kind: CheckKind
    subject: str
    severity: Severity
    blocks: bool
    description: str

    @property
    def level(self) -> Level:
        """How deep it looks; every check that counts rows is structural."""
        return Level.structural if self.subject == ROW_COUNT else self.kind.level


class CheckConfig(Part):
    """The settings of every check: its severity, and whether its failure blocks the release of the unit."""

    severity: Severity = Severity.error
    blocking: bool = True

    @model_validator(mode="after")
    def _a_warning_does_not_block(self) -> Self:
        if self.severity is Severity.warn and self.blocking and "blocking" in self.model_fields_set:
            raise ValueError("severity warn and blocking true contradict each other; drop one")
        return self

    @property
    def blocks(self) -> bool:
        """Whether a failure blocks the release; a warning never does."""
        return self.blocking and self.severity is Severity.error


class ChangeConfig(CheckConfig):
    """How far a metric may differ from the published one without a contract."""

    tolerance: Percent = Decimal(0)


class Measure(ChangeConfig):
    """A column whose daily figures are compared with the published ones."""

    sum: bool = True
    distinct: bool = False
    percentiles: bool = Field(default=False, description="Compare p05, p50 and p95 as well.")


class ReferenceCheck(CheckConfig):
    """Rows whose `columns` are set must have a match in a reference table."""

    reference: Name
    columns: tuple[Name, ...] = Field(min_length=1)
    to: tuple[Name, ...] = Field(min_length=1)
    max_unmatched: Percent = Decimal(0)

    @model_validator(mode="after")
    def _same_width(self) -> Self:
        if len(self.columns) != len(self.to):
            raise ValueError("columns and to must name the same number of columns")
        return self


class Rule(CheckConfig):
    """A SQL condition that every row must meet; null counts as a failure."""

    sql: Annotated[str, Field(min_length=1)]
    max_failing: Annotated[int, Field(ge=0)] = 0


class CorruptRows(CheckConfig):
    """How many rows of a day's deliveries may be unreadable or belong to another day."""

    max_rows: Annotated[int, Field(ge=0)] = 0


class Freshness(CheckConfig):
    """How long after the end of its day the newest delivery may arrive."""

    max_delay: Duration | None = None


class Total(Part):
    """An aggregate over an upstream's rows of the same day."""

    upstream: Name
    sql: Annotated[str, Field(min_length=1)]


class Reconciliation(CheckConfig):
    """Metrics of the fact that must equal a total of its input: of staging, or of an upstream."""

    metrics: tuple[Name, ...] | None = Field(default=None, description="Compared with staging; by default row_count.")
    totals: dict[Name, Total] = Field(default_factory=dict, description="Compared with upstreams, by metric.")
    tolerance: Percent = Decimal(0)


class ChangeColumns(CheckConfig):
    """Changes of columns that no expectation covers; a warning by default."""

    severity: Severity = Severity.warn


class Seams(CheckConfig):
    """Unusual steps to neighbouring days; a warning by default."""

    severity: Severity = Severity.warn


class IdenticalFiles(CheckConfig):
    """Files of equal content under several names whose rows add up, or for several days; a warning by default."""

    severity: Severity = Severity.warn


class NullShare(CheckConfig):
    """Columns that are null far more often than before; a warning by default."""

    severity: Severity = Severity.warn
    # In a year of real flights, all days stay below 24 points except the two of a blizzard.
    max_rise: Percent = Field(
        default=Decimal("0.25"),
        description="How far a column's share of nulls may rise, in percentage points, such as 25%.",
    )


class Checks(Part):
    """All checks of a dataset; checks that are not named keep their strict defaults."""

    unique_key: CheckConfig = CheckConfig()
    not_null: CheckConfig = CheckConfig()
    not_empty: CheckConfig = CheckConfig()
    source_present: CheckConfig = CheckConfig()
    upstream_present: CheckConfig = CheckConfig()
    corrupt_rows: CorruptRows = CorruptRows()
    source_freshness: Freshness = Freshness()
    row_count: ChangeConfig = ChangeConfig()
    schema_contract: CheckConfig = CheckConfig()
    change_keys: CheckConfig = CheckConfig()
    same_alone: CheckConfig = CheckConfig()
    change_rows: CheckConfig = CheckConfig()
    change_columns: ChangeColumns = ChangeColumns()
    seams: Seams = Seams()
    identical_files: IdenticalFiles = IdenticalFiles()
    null_share: NullShare = NullShare()
    reconciliation: Reconciliation = Reconciliation()
    references: dict[Name, ReferenceCheck] = Field(default_factory=dict)
    rules: dict[Name, Rule] = Field(default_factory=dict)


PERCENTILES: dict[str, float] = {"p05": 0.05, "p50": 0.5, "p95": 0.95}
"""The percentiles of a measure with `percentiles: true`, by the prefix of their metric's name."""


def metric_names(dataset: Dataset) -> tuple[str, ...]:
    """The names of all metrics: `row_count`, and per measure `<measure>`, `distinct_<measure>`, `p50_<measure>`."""
    names = [ROW_COUNT]
    for name, measure in dataset.measures.items():
        names += [name] if measure.sum else []
        names += [f"distinct_{name}"] if measure.distinct else []
        names += [f"{p}_{name}" for p in PERCENTILES] if measure.percentiles else []
    return tuple(names)


def measure_of(metric: str, dataset: Dataset) -> str:
    """The measure that a metric such as `distinct_tail_number` or `p50_delay` belongs to."""
    if metric in dataset.measures and dataset.measures[metric].sum:
        return metric
    for prefix in ("distinct", *PERCENTILES):
        if metric.startswith(prefix + "_") and metric.removeprefix(prefix + "_") in dataset.measures:
            return metric.removeprefix(prefix + "_")
    return metric


def tolerance_of(metric: str, dataset: Dataset) -> Decimal:
    """How far a metric may move as a fraction, where no contract names it."""
    config: ChangeConfig = dataset.checks.row_count
    if metric != ROW_COUNT:
        config = dataset.measures[measure_of(metric, dataset)]
    return config.tolerance


@dataclass(frozen=True)
class Band:
    """How far a metric may move on a day, and whether a contract or the dataset's own tolerance says so."""

    change: Change
    promised: bool


def band_of(metric: str, dataset: Dataset, day: dt.date, contract: Contract) -> Band:
    """The band in force for a metric on a day; the contract wins over the dataset's tolerance."""
    expected, tolerance = contract.expected(metric, day), tolerance_of(metric, dataset)
    return Band(Change(-tolerance, tolerance), promised=False) if expected is None else Band(expected, promised=True)


CHANGE: Final = "change_"
"""The beginning of the name of a check of a metric's change; the metric's name follows."""


def golden_check(name: str) -> str:
    """The name of the check that compares with a golden source."""
    return f"golden_{name}"


def checks_of(dataset: Dataset) -> tuple[Check, ...]:
    """Every check of a dataset, in the order in which they are shown; the names are unique."""
    return (*_checks_of_origin(dataset), *_checks_of_change(dataset), *_checks_by_name(dataset))


def _checks_of_origin(dataset: Dataset) -> Iterator[Check]:
    c = dataset.checks
    yield _check("unique_key", CheckKind.unique_key, c.unique_key, f"({', '.join(dataset.key)}) is unique")
    yield _check("not_null", CheckKind.not_null, c.not_null, f"no null in {', '.join(dataset.required_columns)}")
    yield _check("not_empty", CheckKind.not_empty, c.not_empty, "a day that is built from rows has some")
    if dataset.source is not None:
        also = ", also for the other days of its window" if dataset.has_own_window else ""
        yield _check("source_present", CheckKind.source_present, c.source_present, f"something was delivered{also}")
        text = "every delivered row is readable and of its day"
        yield _check("corrupt_rows", CheckKind.corrupt_rows, c.corrupt_rows, text)
        text = "no file was delivered under several names and counted more than once, or again for a later day"
        yield _check(IDENTICAL_FILES, CheckKind.identical, c.identical_files, text)
        if c.source_freshness.max_delay is not None:
            text = f"delivered within {format_duration(c.source_freshness.max_delay)} of the day's end"
            yield _check("source_freshness", CheckKind.source_freshness, c.source_freshness, text)
    if dataset.upstream:
        text = f"{', '.join(dataset.upstream)} has rows to build the day from"
        yield _check("upstream_present", CheckKind.upstream_present, c.upstream_present, text)
    if dataset.has_window or any(one.by_day for one in dataset.references.values()):
        text = "a day has the same rows whether it is built alone or in a batch"
        yield _check("same_alone", CheckKind.alone, c.same_alone, text)


def _checks_of_change(dataset: Dataset) -> Iterator[Check]:
    c = dataset.checks
    yield _check(CHANGE + ROW_COUNT, CheckKind.change, c.row_count, "row count against what is published", ROW_COUNT)
    for m in metric_names(dataset)[1:]:
        config = dataset.measures[measure_of(m, dataset)]
        yield _check(CHANGE + m, CheckKind.change, config, f"{m} against what is published", m)
    text = "columns are kept or added, never changed"
    yield _check("schema_contract", CheckKind.schema, c.schema_contract, text)
    text = "no row is replaced by another one without an explanation"
    yield _check("change_keys", CheckKind.keys, c.change_keys, text)
    text = "every row that stays keeps the values that must not change, and moves no further than promised"
    yield _check("change_rows", CheckKind.rows, c.change_rows, text)
    yield _check("change_columns", CheckKind.columns, c.change_columns, "no other column changes unannounced")
    yield _check("seams", CheckKind.seams, c.seams, "no new unusual step to a neighbouring day")
    yield _check("null_share", CheckKind.nulls, c.null_share, "no column is null far more often than before")


def _checks_by_name(dataset: Dataset) -> Iterator[Check]:
    c = dataset.checks
    for m in dataset.reconciled:
        yield _check(f"reconcile_{m}", CheckKind.reconciliation, c.reconciliation, f"{m} equals that of staging", m)
    for m, t in c.reconciliation.totals.items():
        text = f"{m} equals {t.sql} of {t.upstream}"
        yield _check(f"reconcile_{m}", CheckKind.upstream_total, c.reconciliation, text, m)
    for n, r in c.references.items():
        yield _check(f"reference_{n}", CheckKind.reference, r, f"{', '.join(r.columns)} is known in {r.reference}", n)
    for n, rule in c.rules.items():
        yield _check(f"rule_{n}", CheckKind.rule, rule, rule.sql, n)
    for n, g in dataset.golden.items():
        yield _check(golden_check(n), CheckKind.golden, g, g.description or f"agrees with {n} by {', '.join(g.key)}", n)


def _check(name: str, kind: CheckKind, config: CheckConfig, text: str, subject: str = "") -> Check:
    return Check(name, kind, subject, config.severity, config.blocks, text)
