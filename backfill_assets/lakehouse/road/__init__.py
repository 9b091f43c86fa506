"""The road: everything that Spark does with a dataset, from its deliveries to the figures of its shadow."""

from backfill_assets.evidence.contents import PUBLISHED, UpstreamDays
from backfill_assets.evidence.inputs import reference_fingerprints
from backfill_assets.lakehouse.road.alone import built_alone
from backfill_assets.lakehouse.road.consumers import SparkConsumers
from backfill_assets.lakehouse.road.fingerprint import SparkFingerprints
from backfill_assets.lakehouse.road.golden import ShadowDays, golden_counts, golden_samples
from backfill_assets.lakehouse.road.measure import Sides, measure, published_figures
from backfill_assets.lakehouse.road.models import run_model
from backfill_assets.lakehouse.road.raw import land, lost_from_raw, require_known, require_raw
from backfill_assets.lakehouse.road.raw_rows import read_again, rows_in_raw
from backfill_assets.lakehouse.road.recompute import SparkRecomputations
from backfill_assets.lakehouse.road.row_differences import Question, RowDifferences, row_differences
from backfill_assets.lakehouse.road.samples import sample
from backfill_assets.lakehouse.road.shadow import Audit, Target, build_shadow
from backfill_assets.lakehouse.road.staging import (
    StagedCounts,
    aggregates_deliveries,
    held_in_staging,
    stage,
    vacuum_staging,
)
from backfill_assets.lakehouse.road.upstream import measure_upstreams, require_declared_columns, upstream_tables
from backfill_assets.lakehouse.road.views import SparkPreviews, ensure_views
from backfill_assets.storage.sources import SourceFile, delivered_sizes, discover, gone_from_sources, require_sources

__all__ = [
    "PUBLISHED",
    "Audit",
    "Question",
    "RowDifferences",
    "ShadowDays",
    "Sides",
    "SourceFile",
    "SparkConsumers",
    "SparkFingerprints",
    "SparkPreviews",
    "SparkRecomputations",
    "StagedCounts",
    "Target",
    "UpstreamDays",
    "aggregates_deliveries",
    "build_shadow",
    "built_alone",
    "delivered_sizes",
    "discover",
    "ensure_views",
    "golden_counts",
    "golden_samples",
    "gone_from_sources",
    "held_in_staging",
    "land",
    "lost_from_raw",
    "measure",
    "measure_upstreams",
    "published_figures",
    "read_again",
    "reference_fingerprints",
    "require_declared_columns",
    "require_known",
    "require_raw",
    "require_sources",
    "row_differences",
    "rows_in_raw",
    "run_model",
    "sample",
    "stage",
    "upstream_tables",
    "vacuum_staging",
]
