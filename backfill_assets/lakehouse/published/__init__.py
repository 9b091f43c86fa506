"""The published table: read, prepared and committed by delta-rs, without a JVM."""

from backfill_assets.lakehouse.published.data_releases import DeltaReleasesTable
from backfill_assets.lakehouse.published.table import PublishedTable

__all__ = ["DeltaReleasesTable", "PublishedTable"]
