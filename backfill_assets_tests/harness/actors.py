"""Who and what a world needs beyond ledger and tables: names, people, a basis, a scheduler, readers' previews."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable
from pyarrow import parquet

from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.errors import EngineError
from backfill_assets.core.unit import Unit
from backfill_assets.delta.reading import add_actions
from backfill_assets.evidence.basis import Behind, CurrentBasis
from backfill_assets.evidence.contents import ContentFingerprints
from backfill_assets_tests.harness.specifications import NAME
from backfill_assets_tests.harness.tables import content, fingerprint

CHECKS = ("unique_key", "change_row_count")


class CountedIds:
    """Names that count up; `start` keeps two processes apart."""

    def __init__(self, start: int = 0) -> None:
        self._numbers = itertools.count(start + 1)

    def new(self, prefix: str) -> str:
        return f"{prefix}_{next(self._numbers):04}"


@dataclass(frozen=True)
class User:
    """Always the same user."""

    called: str = "ada"

    def name(self) -> str:
        return self.called


@dataclass
class SetBasis:
    """A basis that tests set: code by dataset, inputs by dataset and day."""

    codes: dict[str, str] = field(default_factory=dict)
    changed: dict[tuple[str, dt.date], str] = field(default_factory=dict)
    fingerprints: ContentFingerprints | None = None

    def inputs(self, name: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        return {d: self.changed.get((name, d), "as delivered") for d in days}

    def behind(self, name: str, days: Collection[dt.date]) -> Mapping[dt.date, Behind]:
        return {d: Behind(inputs) for d, inputs in self.inputs(name, days).items()}

    def upstream(self, name: str, days: Collection[dt.date], unit: Unit | None = None) -> Mapping[dt.date, str]:  # noqa: ARG002  # none has one
        return dict.fromkeys(days, "")

    def code(self, name: str) -> str:
        return self.codes.get(name, "c0de")

    def checks(self, name: str) -> tuple[str, ...]:  # noqa: ARG002  # every dataset has the same
        return CHECKS


class TwoChecks(CurrentBasis):
    """The real basis, with the two checks that have verdicts in a world."""

    def checks(self, dataset: str) -> tuple[str, ...]:  # noqa: ARG002
        return CHECKS


@dataclass
class TableFingerprints:
    """Fingerprints of what delta-rs reads from the published tables, and from `sources`, which have the columns day and id."""

    homes: Mapping[str, Path]
    asked: list[tuple[str, tuple[dt.date, ...]]] = field(default_factory=list)
    sources: dict[str, Path] = field(default_factory=dict)

    def of(self, name: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        self.asked.append((name, tuple(sorted(days))))
        found = content(self.homes[name])
        return {d: fingerprint(found.get(d, ())) for d in days}

    def of_source(self, name: str, days: Collection[dt.date], version: int) -> Mapping[dt.date, str]:
        self.asked.append((name, tuple(sorted(days))))
        home, found = self.sources[name], dict[str, list[int]]()
        for add in add_actions(DeltaTable(home, version=version), "path", "partition"):
            with parquet.ParquetFile(home / add["path"]) as file:
                found.setdefault(str(add["partition"]["day"]), []).extend(file.read(["id"])["id"].to_pylist())
        prints = {day: f"{len(own)}:{fingerprint(own)}" for day, own in found.items() if own}
        return {day: prints.get(str(day), "") for day in days}


class Post:
    """Takes every notice and keeps it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def send(self, webhook: str, text: str) -> None:
        self.sent.append((webhook, text))


class Previews:
    """Previews by dataset, with what they were made of; `broken` stands for a Spark that cannot be reached."""

    def __init__(self) -> None:
        self.views: dict[str, tuple[str, tuple[dt.date, ...], dict[str, tuple[dt.date, ...]]]] = {}
        self.broken = False

    def show(self, dataset: str, unit: str, days: Sequence[dt.date], shadows: Mapping[str, Sequence[dt.date]]) -> str:
        self.views[dataset] = (unit, tuple(days), {folder: tuple(own) for folder, own in shadows.items()})
        return f"preview.{dataset}"

    def shown(self) -> Mapping[str, str]:
        return {dataset: unit for dataset, (unit, _, _) in self.views.items()}

    def drop(self, datasets: Sequence[str]) -> None:
        if self.broken:
            raise EngineError("no Spark")
        for dataset in datasets:
            self.views.pop(dataset, None)


@dataclass
class Scheduler:
    """Backfills that run when a test says so, and live runs that run until a test ends them."""

    requests: list[BackfillRequest] = field(default_factory=list)
    at_work: list[str] = field(default_factory=list)
    live: tuple[str, ...] = ()
    failed_of: str = ""
    failed_run: str = "run_9"

    def launch(self, request: BackfillRequest) -> str:
        self.requests.append(request)
        self.at_work.append(f"b{len(self.requests)}")
        return self.at_work[-1]

    def active(self, campaign: str) -> tuple[str, ...]:
        assert campaign == NAME
        return tuple(self.at_work)

    def cancel(self, campaign: str) -> int:
        assert campaign == NAME
        gone, self.at_work = len(self.at_work), []
        return gone

    def failure(self, campaign: str, but: Collection[str] = ()) -> str:
        assert campaign == NAME
        return "" if self.failed_run in but else self.failed_of
