"""The road: everything that Spark does with a dataset, from its deliveries to the figures of its shadow."""

from backfill_assets.evidence.contents import PUBLISHED, UpstreamDays
from backfill_assets.evidence.inputs import reference_fingerprints
from backfill_assets.lakehouse.road.recompute import SparkRecomputations
from backfill_assets.pipeline.build import (
    Audit,
    Target,
    build_shadow,
    measure_upstreams,
    require_declared_columns,
    upstream_tables,
)
from backfill_assets.pipeline.cross_checks import built_alone
from backfill_assets.pipeline.differences import Question, RowDifferences, row_differences
from backfill_assets.pipeline.fingerprints import SparkFingerprints
from backfill_assets.pipeline.golden import ShadowDays, golden_counts, golden_samples
from backfill_assets.pipeline.land import land, lost_from_raw, require_raw
from backfill_assets.pipeline.measure import Sides, measure, published_figures
from backfill_assets.pipeline.raw_table import read_again, require_known, rows_in_raw
from backfill_assets.pipeline.run_models import run_model
from backfill_assets.pipeline.samples import sample
from backfill_assets.pipeline.stage import StagedCounts, aggregates_deliveries, held_in_staging, stage, vacuum_staging
from backfill_assets.pipeline.views import SparkConsumers, SparkPreviews, ensure_views
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
