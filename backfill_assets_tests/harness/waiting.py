"""Waiting for another process or thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import pytest

from benchmarks.processes import comes_true

PATIENCE: Final = float(os.environ.get("BACKFILL_ASSETS_TEST_PATIENCE", "1"))
"""Factor for all time limits of waiting: at night complete installations share two cores with the long stress test."""


def wait_for(
    condition: Callable[[], object],
    what: str,
    seconds: float = 90,
    every: float = 0.2,
    instead: Callable[[], object] = str,
) -> None:
    """Return as soon as the condition holds, which is checked every so many seconds.

    If it never holds, the test fails and shows what is found `instead`.
    """
    seconds *= PATIENCE
    if not comes_true(condition, seconds, every):
        pytest.fail(f"not within {seconds} s: {what}. {instead()}")
