"""Fixtures and rules that all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

from backfill_assets_tests import nightly, observed, skips
from backfill_assets_tests.harness import shared

# How long an example takes says more about the machine than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_configure(config: pytest.Config) -> None:
    """Make the rules plugins of this run."""
    for plugin in (nightly, shared, skips, observed):
        config.pluginmanager.register(plugin)
