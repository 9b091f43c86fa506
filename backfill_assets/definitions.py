"""What Dagster loads: the definitions of all datasets."""

from __future__ import annotations

from backfill_assets import build_definitions

defs = build_definitions()
