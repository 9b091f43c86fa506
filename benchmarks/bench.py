"""The benchmark itself: floor, pipeline, correction, release, a run per day, growth, floor again."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from backfill_assets.core.days import ONE_DAY, day_range
from backfill_assets.orchestration.daemon import BACKFILL_INTERVAL_SECONDS, STOCK_INTERVAL_SECONDS
from benchmarks.files import layers_of
from benchmarks.floor import run_floor
from benchmarks.installation import CORRECTION, DATASET, Installation
from benchmarks.places import measure_place, measured_pass, places_of
from benchmarks.release import time_release
from benchmarks.results import Growth, Pass, Results, pass_of
from benchmarks.usage import CpuMeter
from demo.orders import FIRST, LAST, generate_orders, land_orders

START: Final = dt.date(1995, 1, 1)
"""First day of the pipeline; the sample of a run per day comes right after its last."""
GROWTH: Final = (50, len(day_range(FIRST, LAST)))
_BY_THE_DAY: Final = f"{DATASET}_by_the_day"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What to measure: scale factor, days of the pipeline, days per run (none: as the dataset says), days run one by one.

    The first of these only warms up, so there must be at least two. With a `store`, an empty place in a bucket, the same days also
    have their tables there; with `workers`, Spark is then a cluster of so many as well.
    """

    scale: float = 1.0
    days: int = 550
    chunk: int | None = None
    sample: int = 4
    growth: bool = False
    store: str = ""
    workers: int = 0


def run_benchmark(folder: Path, options: Options, say: Say) -> Results:
    """Measure everything in a new installation below `folder`; generated input stays there for the next run.

    Raises:
        BenchmarkError: something fails.
        SourceError: the generator of the input is missing.
    """
    days = day_range(START, START + (options.days - 1) * ONE_DAY)
    sources = folder / f"sources_{options.scale:g}"
    say(f"TPC-H at scale factor {options.scale:g}: {len(days)} days {days[0]}..{days[-1]}")
    first, last = (FIRST, LAST) if options.growth else (days[0], days[-1] + options.sample * ONE_DAY)
    land_orders(sources, generate_orders(folder, options.scale), first, last)
    root = folder / f"run_{os.getpid()}"
    shutil.rmtree(root, ignore_errors=True)
    installation = Installation(root, sources)
    installation.add_dataset(DATASET, options.chunk)
    installation.add_dataset(_BY_THE_DAY, 1)
    for size in GROWTH if options.growth else ():
        installation.add_dataset(f"{DATASET}_{size}", options.chunk)
    try:
        say("starting the Spark server and Dagster")
        installation.start()
        results = _Bench(installation, options, days, say).run()
    finally:
        installation.stop()
    shutil.rmtree(root, ignore_errors=True)
    elsewhere = []
    for place in places_of(options.store, options.workers):
        say(f"{place.name}: {len(days)} days, twice")
        elsewhere.append(measure_place(place, root, sources, days, options.chunk))
    return replace(results, elsewhere=tuple(elsewhere))


@dataclass(frozen=True)
class _Bench:
    installation: Installation
    options: Options
    days: Sequence[dt.date]
    say: Say

    def run(self) -> Results:
        # Complete: a server that is still compiling its code to machine code would flatter later stages.
        self._floor("warm-up", self.days)
        before = self._floor("floor, before", self.days)
        pipeline = self._pipeline(DATASET, "pipeline", self.days)
        application = self.installation.application
        written = layers_of(application.layout, DATASET)
        first_release = time_release(application, DATASET)
        self.installation.correct(DATASET)
        correction = self._pipeline(DATASET, "correction", self.days, CORRECTION)
        release = time_release(self.installation.application, DATASET)
        rows = sum(d.rows for d in application.ledger.deliveries(DATASET, self.days))
        last = self.days[-1]
        by_the_day = self._pipeline(
            _BY_THE_DAY, "a run per day", day_range(last + ONE_DAY, last + self.options.sample * ONE_DAY)
        )
        growth = [self._growth(size) for size in GROWTH] if self.options.growth else []
        after = self._floor("floor, after", self.days)
        return Results(
            scale=self.options.scale,
            rows=rows,
            machine=machine(),
            floors=(before, after),
            pipeline=pipeline,
            correction=correction,
            by_the_day=by_the_day,
            first_release=first_release,
            release=release,
            written=written,
            growth=tuple(growth),
        )

    def _floor(self, name: str, days: Sequence[dt.date]) -> Pass:
        self.say(f"{name}: {len(days)} days")
        application = self.installation.application
        target = self.installation.root / "floor"
        with self._meter().running() as meter, application.session("floor") as spark:
            spans = run_floor(spark, application.datasets[DATASET], application.layout, days, target)
        shutil.rmtree(target)
        return pass_of(name, len(days), [spans[-1].end], spans, meter)

    def _pipeline(
        self, dataset: str, name: str, days: Sequence[dt.date], expected: Mapping[str, str] | None = None
    ) -> Pass:
        self.say(f"{name}: {len(days)} days")
        return measured_pass(self.installation, self._meter(), dataset, name, days, expected)

    def _growth(self, size: int) -> Growth:
        first = FIRST if size == len(day_range(FIRST, LAST)) else START
        name = f"{DATASET}_{size}"
        pipeline = self._pipeline(name, f"{size} days", day_range(first, first + (size - 1) * ONE_DAY))
        application = self.installation.application
        written = layers_of(application.layout, name)
        return Growth(pipeline, time_release(application, name), written)

    def _meter(self) -> CpuMeter:
        return CpuMeter([self.installation.spark], self.installation.daemon)


def machine() -> Mapping[str, str]:
    """The machine of the benchmark, and how its installation differs from a plain `dagster dev`."""
    versions = {name: importlib.metadata.version(name) for name in ("dagster", "pyspark", "delta-spark", "deltalake")}
    return {
        "cores": str(psutil.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": platform.platform(),
        "python": platform.python_version(),
        **versions,
        "daemon": f"looks for backfills every {BACKFILL_INTERVAL_SECONDS} s ({STOCK_INTERVAL_SECONDS} s in `make dev`)",
    }
