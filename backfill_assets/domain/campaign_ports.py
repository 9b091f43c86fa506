"""Ports of campaigns: the live runs that they yield to, the backfills that they launch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


class LiveRuns(Protocol):
    """The live pipeline, seen from a backfill that yields to it."""

    def active(self) -> tuple[str, ...]:
        """Ids of the live runs that are at work or in the queue."""
        ...


@dataclass(frozen=True)
class BackfillRequest:
    """A native backfill to be launched: layers by dataset over some days, with title, description and run tags."""

    layers: Mapping[str, tuple[str, ...]]
    days: tuple[dt.date, ...]
    title: str
    description: str
    tags: Mapping[str, str]


class Backfills(Protocol):
    """The scheduler's native backfills, of one campaign at a time."""

    def launch(self, request: BackfillRequest) -> str:
        """Launch a backfill; its id."""
        ...

    def active(self, campaign: str) -> tuple[str, ...]:
        """Ids of the campaign's backfills that are not over."""
        ...

    def cancel(self, campaign: str) -> int:
        """Cancel what is left of the campaign's backfills, queued runs included; how many backfills that were."""
        ...

    def failure(self, campaign: str, but: Collection[str] = ()) -> str:
        """What the newest backfill of the campaign failed of, in words; empty unless it is over and a run of it failed.

        Runs in `but` are left out: they gave up before a shut gate.
        """
        ...
