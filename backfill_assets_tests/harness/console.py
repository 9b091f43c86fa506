"""The console script, called within this process."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

Run = Callable[..., Result]
"""Calls `backfill` with these words; a refusal is raised as it is."""
