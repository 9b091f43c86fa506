"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


def wait_for(
    condition: Callable[[], object],
    what: str,
    seconds: float = 90,
    every: float = 0.2,
    instead: Callable[[], object] = str,
) -> None:
    """Return as soon as the condition holds, which is looked at every so many seconds.

    If it never does, the test fails and shows what is found `instead`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}. {instead()}")
        time.sleep(every)
