"""Time, ids and identity as ports."""

from __future__ import annotations

import datetime as dt
from typing import Protocol


class Clock(Protocol):
    """Time as a port."""

    def now(self) -> dt.datetime:
        """The present moment, aware, in UTC."""
        ...


class Ids(Protocol):
    """Identifiers as a port."""

    def new(self, prefix: str) -> str:
        """A fresh identifier that sorts by time and is a safe name, such as `u_20261121_101500_3f9a2c`."""
        ...


class Identity(Protocol):
    """Who is at work."""

    def name(self) -> str:
        """The user's name as the configured source gives it."""
        ...
