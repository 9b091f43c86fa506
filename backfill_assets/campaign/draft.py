"""Drafts: the first version of a specification, with comments on optional keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

import yaml

from backfill_assets.campaign.specification import FirstLayer
from backfill_assets.core.text import format_duration
from backfill_assets.dataset.checks import metric_names
from backfill_assets.dataset.loaded import Catalog

_CANARIES = 3
_KEEP_FOR = dt.timedelta(days=30)
_TEXT = """\
# yaml-language-server: $schema=../docs/backfill.schema.json
# docs/backfill-yaml.md explains every key. Before the review, run: backfill validate {file}
backfill_id: {backfill_id}
owner: {owner}
source_range: {{start: {start}, end: {end}}} # both days included: {count} in all
target: {{dataset: {dataset}, partition_key: {partition_key}}}
reason:
  issue: {issue}
  change: {change}
scope:
  from: {begins} # raw | staging | shadow: the first layer that is run again
  downstream: {downstream} # none | all | a list{below}
time_zone: {time_zone} # of all windows below

execution:
  partitions_per_batch: 7 # days in one Spark pass; days whose checks passed are never computed again
  max_concurrency: 1
  pause_during_live_pipeline: true
  # min_progress: 1 batch per hour # a floor for when the live pipeline is always busy
  # blackout_windows: ["07:00-09:30"] # no batch starts in these windows
{canary}
  # query_timeout: 30m
  # budget: {{bytes_read_per_day: 500GB, wall_time: 6h}}
  on_failure: stop
  # compute: backfill # the Spark of BACKFILL_ASSETS_SPARK_URL_BACKFILL, for this campaign only

validation:
  # Metrics that are not named here keep the tolerances of their dataset.yaml.
  # {dataset} has: {metrics}
{expected}

approval: {{required: true, by: {by}, not_owner: {not_owner}}}
# publish_window: ["22:00-05:00"]
rollback: {{keep_for: {keep_for}}}
# notify: {{webhook: env:BACKFILL_WEBHOOK, on: [launched, stopped, validated, published, rolled_back]}}
"""


class Mistake(StrEnum):
    """Where a mistake was made, which decides what has to run again."""

    ingestion = "ingestion"
    transformation = "transformation"
    reference = "reference"

    @property
    def first_layer(self) -> FirstLayer:
        """The first layer that the mistake reached; both models may have read a wrong reference."""
        match self:
            case Mistake.ingestion:
                return FirstLayer.raw
            case Mistake.transformation | Mistake.reference:
                return FirstLayer.staging
            case _:
                assert_never(self)


@dataclass(frozen=True)
class Draft:
    """The input of a draft; `downstream` is none, all, or datasets separated by commas, `expected` is by metric.

    Without `begins`, the draft begins at the dataset's first layer.
    """

    backfill_id: str
    dataset: str
    start: dt.date
    end: dt.date
    change: str
    owner: str
    approvers: tuple[str, ...]
    issue: str = ""
    begins: str = ""
    downstream: str = "all"
    expected: Mapping[str, str] = field(default_factory=dict)


def draft_text(draft: Draft, catalog: Catalog, file: str) -> str:
    """The YAML of a draft for `file`.

    Raises:
        DatasetError: there is no such dataset.
    """
    target, below = catalog.dataset(draft.dataset).dataset, catalog.live_downstream_of([draft.dataset])
    count = (draft.end - draft.start).days + 1
    kept = [catalog.datasets[name].dataset.retention.keep_for for name in (draft.dataset, *below)]
    names = [name.strip() for name in draft.downstream.split(",")]
    return _TEXT.format(
        file=file,
        backfill_id=_scalar(draft.backfill_id),
        owner=_scalar(draft.owner),
        start=draft.start,
        end=draft.end,
        count=count,
        dataset=draft.dataset,
        partition_key=target.partition_column,
        issue=_scalar(draft.issue),
        change=_scalar(draft.change),
        begins=_scalar(draft.begins or target.built_layers[0].value),
        downstream=_scalar(names[0]) if names[0] in {"none", "all"} else _listed(names),
        below=f": {', '.join(below)}" if below else "; nothing is built from this dataset yet",
        time_zone=_scalar(target.time_zone),
        canary=_canary(count),
        metrics=", ".join(metric_names(target)),
        expected=_expected(draft.expected),
        by=_listed(draft.approvers),
        not_owner="false" if set(draft.approvers) == {draft.owner} else "true",
        keep_for=format_duration(min(_KEEP_FOR, *kept)),
    )


def _canary(days: int) -> str:
    if days == 1:
        return "  # canary: {partitions: 1} # days that run first; a range of one day has none to spare"
    return f"  canary: {{partitions: {min(_CANARIES, days - 1)}}} # the days that run first: oldest, newest, largest, month edges"


def _expected(changes: Mapping[str, str]) -> str:
    if not changes:
        return '  # expected_change: {row_count: unchanged} # unchanged | any | -50% | "-1.5% to -0.8%"\n  expected_change: {}'
    lines = (f"    {_scalar(metric)}: {_scalar(change)}" for metric, change in changes.items())
    return "\n".join(["  expected_change:", *lines])


def _listed(values: tuple[str, ...] | list[str]) -> str:
    return f"[{', '.join(_scalar(value) for value in values)}]"


def _scalar(text: str) -> str:
    """The text as YAML on one line, in quotes where it needs them."""
    dumped: str = yaml.safe_dump([text], default_flow_style=True, allow_unicode=True, width=10**6)
    return dumped.strip().removeprefix("[").removesuffix("]")
