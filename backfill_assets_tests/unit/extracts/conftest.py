from __future__ import annotations

from backfill_assets_tests.unit.extracts.kit import cluster, shop

__all__ = ["cluster", "shop"]
