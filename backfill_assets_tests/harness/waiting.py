"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


def wait_for(condition: Callable[[], object], what: str, seconds: float = 90, every: float = 0.2) -> None:
    """Return as soon as the condition holds, which is looked at every so many seconds; fail the test if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(every)
