"""An event log that tests control; it passes the contract tests of Dagster's event log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from backfill_assets.doctor.findings import EventLog, RunAtWork


@dataclass
class KeptEvents(EventLog):
    """Runs by id, launches, and the newest materialization by dataset and day."""

    runs: dict[str, RunAtWork] = field(default_factory=dict)
    launches: set[str] = field(default_factory=set)
    said: dict[tuple[str, dt.date], str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    datasets: dict[str, str] = field(default_factory=dict)

    def at_work(self) -> tuple[RunAtWork, ...]:
        return tuple(sorted(self.runs.values(), key=lambda run: run.started_at))

    def known(self, launches: Collection[str]) -> frozenset[str]:
        return frozenset(launches) & (self.launches | self.runs.keys() | self.failed.keys())

    def fail(self, run: str, why: str) -> bool:
        if self.runs.pop(run, None) is None:
            return False
        self.failed[run] = why
        return True

    def reported(self, dataset: str) -> Mapping[dt.date, str]:
        return {day: release for (name, day), release in self.said.items() if name == dataset}

    def report(self, release: str, days: Collection[dt.date]) -> None:
        self.said |= {(self.datasets[release], day): release for day in days}

    def note(self, dataset: str, text: str) -> None:
        self.notes.append((dataset, text))
