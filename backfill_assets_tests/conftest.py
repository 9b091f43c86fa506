"""Fixtures and rules that all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

from backfill_assets_tests import skips, told

# How long an example takes says more about the machine than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_configure(config: pytest.Config) -> None:
    for plugin in (skips, told):
        config.pluginmanager.register(plugin)
