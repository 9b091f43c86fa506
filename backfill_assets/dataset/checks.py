"""What `dataset.yaml` may say about checks and measures."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Self

from pydantic import Field, model_validator

from backfill_assets.core.evidence import Severity
from backfill_assets.core.fields import Duration, Name, Part, Percent


class CheckConfig(Part):
    """What every check has: a severity, and whether its failure keeps the unit from being released."""

    severity: Severity = Severity.error
    blocking: bool = True

    @model_validator(mode="after")
    def _a_warning_does_not_block(self) -> Self:
        if self.severity is Severity.warn and self.blocking and "blocking" in self.model_fields_set:
            raise ValueError("severity warn and blocking true contradict each other; drop one")
        return self

    @property
    def blocks(self) -> bool:
        """Whether a failure refuses the release; a warning never does."""
        return self.blocking and self.severity is Severity.error


class ChangeConfig(CheckConfig):
    """How far a metric may move against what is published without a contract."""

    tolerance: Percent = Decimal(0)


class Measure(ChangeConfig):
    """A column whose daily figures are compared with what is published."""

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
            raise ValueError("columns and to must name equally many columns")
        return self


class Rule(CheckConfig):
    """A SQL condition that every row must meet; null counts as a failure."""

    sql: Annotated[str, Field(min_length=1)]
    max_failing: Annotated[int, Field(ge=0)] = 0


class CorruptRows(CheckConfig):
    """How many rows of a day's deliveries may be unreadable or belong to another day."""

    max_rows: Annotated[int, Field(ge=0)] = 0


class Freshness(CheckConfig):
    """How long after the end of its day the newest delivery may come."""

    max_delay: Duration | None = None


class Total(Part):
    """An aggregate over the rows that an upstream has of the same day."""

    upstream: Name
    sql: Annotated[str, Field(min_length=1)]


class Reconciliation(CheckConfig):
    """Metrics of the fact that must equal a total of what it was built from: of staging, or of an upstream."""

    metrics: tuple[Name, ...] | None = Field(
        default=None, description="Compared with staging; row_count unless said otherwise."
    )
    totals: dict[Name, Total] = Field(default_factory=dict, description="Compared with upstreams, by metric.")
    tolerance: Percent = Decimal(0)


class ColumnsChange(CheckConfig):
    """Changes of columns that nobody speaks of; a warning unless said otherwise."""

    severity: Severity = Severity.warn


class Seams(CheckConfig):
    """Steps to neighbouring days that the series never made; a warning unless said otherwise."""

    severity: Severity = Severity.warn


class IdenticalFiles(CheckConfig):
    """Files of equal content under several names whose rows add up, or for several days; a warning unless said otherwise."""

    severity: Severity = Severity.warn


class NullShare(CheckConfig):
    """Columns that are null far more often than they were; a warning unless said otherwise."""

    severity: Severity = Severity.warn
    # In a year of real flights all days stay below 24 points, but the two of a blizzard.
    max_rise: Percent = Field(
        default=Decimal("0.25"),
        description="By how many points the share of nulls of a column may rise, as a percentage.",
    )


class Checks(Part):
    """All checks of a dataset; those not named keep their strict defaults."""

    unique_key: CheckConfig = CheckConfig()
    not_null: CheckConfig = CheckConfig()
    not_empty: CheckConfig = CheckConfig()
    source_present: CheckConfig = CheckConfig()
    upstream_present: CheckConfig = CheckConfig()
    corrupt_rows: CorruptRows = CorruptRows()
    source_freshness: Freshness = Freshness()
    row_count: ChangeConfig = ChangeConfig()
    schema_contract: CheckConfig = CheckConfig()
    keys_change: CheckConfig = CheckConfig()
    same_alone: CheckConfig = CheckConfig()
    rows_change: CheckConfig = CheckConfig()
    columns_change: ColumnsChange = ColumnsChange()
    seams: Seams = Seams()
    identical_files: IdenticalFiles = IdenticalFiles()
    null_share: NullShare = NullShare()
    reconciliation: Reconciliation = Reconciliation()
    references: dict[Name, ReferenceCheck] = Field(default_factory=dict)
    rules: dict[Name, Rule] = Field(default_factory=dict)


PERCENTILES: dict[str, float] = {"p05": 0.05, "p50": 0.5, "p95": 0.95}
"""The percentiles of a measure with `percentiles: true`, by the prefix of their metric's name."""
