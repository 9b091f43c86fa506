"""The review of a unit: everything that somebody needs to say yes or no to its release, as plain data."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from enum import StrEnum

from backfill_assets.campaign.plan import Estimate
from backfill_assets.campaign.state import JournalEntry
from backfill_assets.core.canonical import plain
from backfill_assets.core.certificate import Certificate
from backfill_assets.core.expected_change import Change
from backfill_assets.core.measured import GoldenCounts, RowChange, RowCounts, Seam
from backfill_assets.core.unit import Attempt
from backfill_assets.evidence.readiness import Command
from backfill_assets.report.causes import Attribution, Reach
from backfill_assets.report.concerns import Concern


@dataclass(frozen=True)
class MetricChange:
    """How far a metric has moved over `days` days, and what was promised on them, each with where it stands.

    `range` is none where no day had anything to compare with. Its edges are rounded outwards, to 0.0001 %.
    """

    dataset: str
    metric: str
    days: int
    range: Change | None
    promised: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """A metric on one day. Days outside of the unit, `inside` false, have only what is published of them, as `old`.

    `source` is the figure of what the day was built from; `low` and `high` are the band that was expected, none where
    anything goes; `change` is relative (-0.5 is -50 %), none where there is nothing to compare; `passed` is the verdict of
    the metric's check; `live` says that the live pipeline has published the day since the unit was opened.
    """

    day: dt.date
    old: Decimal | None
    new: Decimal | None = None
    source: Decimal | None = None
    low: Decimal | None = None
    high: Decimal | None = None
    change: Decimal | None = None
    passed: bool | None = None
    inside: bool = True
    live: bool = False


@dataclass(frozen=True)
class Series:
    """A metric of a dataset over the days of a unit and its neighbours, in order, with how far it has moved in all.

    `adds_up` says that figures of several days may be added, as those of sums and counts of rows may.
    """

    dataset: str
    metric: str
    change: MetricChange | None
    points: tuple[Point, ...]
    adds_up: bool = False


class Outcome(StrEnum):
    """What the verdict comes to."""

    ready = "ready"
    warning = "ready, with warnings"
    not_ready = "not ready"
    published = "published"
    rolled_back = "rolled back"
    given_up = "given up"


class DayState(StrEnum):
    """How one day of a unit stands, the best first."""

    published = "published"
    passed = "passed"
    warned = "passed with warnings"
    rewritten = "rewritten since"
    rolled_back = "rolled back"
    missing = "not built yet"
    stale = "stale"
    failed = "failed"


@dataclass(frozen=True)
class Judgement:
    """The verdict on a unit: what it comes to, and one sentence that says why."""

    outcome: Outcome
    sentence: str


@dataclass(frozen=True)
class ReviewSubject:
    """What was asked for, by whom and why.

    `specification` holds the fields of a campaign's file as JSON values, `file` is its name without a folder; both are
    empty for a launch without one. `contract` is what was promised to change, as a launch says it. `targets` are days by dataset.
    """

    campaign: str
    opened_by: str
    opened_at: dt.datetime
    by: str
    targets: Mapping[str, tuple[dt.date, ...]]
    contract: tuple[Mapping[str, object], ...]
    specification: Mapping[str, object]
    file: str = ""


@dataclass(frozen=True)
class ReviewedDay:
    """One day of one dataset: its state and why, how many checks passed of how many, and the hash of its evidence."""

    dataset: str
    day: dt.date
    state: DayState
    passed: int
    checks: int
    evidence: str
    why: tuple[str, ...] = ()
    live: bool = False


@dataclass(frozen=True)
class RowTotals:
    """What happened to the rows of a dataset, over the `days` that were compared row by row."""

    dataset: str
    days: int
    counts: RowCounts


@dataclass(frozen=True)
class Largest:
    """The largest changes of a measure of a dataset, up to a hundred, the largest first."""

    dataset: str
    measure: str
    changes: tuple[RowChange, ...]


@dataclass(frozen=True)
class GoldenDay:
    """A day on which a dataset and a golden source do not agree, and by how many rows."""

    day: dt.date
    counts: GoldenCounts


@dataclass(frozen=True)
class Agreement:
    """How a dataset and a golden source agree over the `days` that were compared, and the days on which they do not."""

    dataset: str
    golden: str
    days: int
    counts: GoldenCounts
    mismatches: tuple[GoldenDay, ...]


@dataclass(frozen=True)
class Proof:
    """A certificate that speaks of the evidence, with its verdict and its hash."""

    certificate: Certificate
    hash: str
    passed: bool


@dataclass(frozen=True)
class Effort:
    """What was estimated, none without a plan, and what it took; `waited` are seconds before shut gates."""

    estimate: Estimate | None
    actual: Estimate
    waited: float


@dataclass(frozen=True)
class Made:
    """A release of the unit that is true: who made it when and why, and for a rollback, what it undid."""

    release: str
    kind: str
    dataset: str
    at: dt.datetime
    by: str
    version: int | None
    days: int
    reason: str
    approved_by: str
    undoes: str
    evidence: str


@dataclass(frozen=True)
class Review:
    """The review of a unit at one moment.

    `evidence` is the hash of all its evidence, `pending` that of what waits for an approval (empty if nothing does).
    """

    unit: str
    made_at: dt.datetime
    state: str
    judgement: Judgement
    subject: ReviewSubject
    evidence: str
    pending: str
    concerns: tuple[Concern, ...]
    series: tuple[Series, ...]
    seams: tuple[Seam, ...]
    days: tuple[ReviewedDay, ...]
    rows: tuple[RowTotals, ...]
    largest: tuple[Largest, ...]
    attributions: tuple[Attribution, ...]
    certificates: tuple[Proof, ...]
    golden: tuple[Agreement, ...]
    effort: Effort
    batches: tuple[Attempt, ...]
    journal: tuple[JournalEntry, ...]
    reaches: tuple[Reach, ...]
    releases: tuple[Made, ...]
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        """What people call it: the campaign, otherwise the unit."""
        return self.subject.campaign or self.unit


def as_plain(review: Review) -> dict[str, object]:
    """All of it as JSON values, but for the machines that the batches ran on, since reports are sent around.

    A number that is none is the text `nan`, `inf` or `-inf`.
    """
    found = {field.name: _finite(plain(getattr(review, field.name))) for field in fields(review)}
    batches = [{name: value for name, value in vars(one).items() if name != "worker"} for one in review.batches]
    return found | {"batches": _finite(plain(batches))}


def review_as_json(review: Review) -> str:
    """All of it as JSON text."""
    return json.dumps(as_plain(review), ensure_ascii=False, allow_nan=False)


def _finite(value: object) -> object:
    match value:
        case dict():
            return {key: _finite(one) for key, one in value.items()}
        case list():
            return [_finite(one) for one in value]
        case float() if not math.isfinite(value):
            return str(value)
        case _:
            return value
