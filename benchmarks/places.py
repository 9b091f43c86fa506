"""The same pipeline elsewhere than in a folder of this host: with its tables in a bucket, and with Spark as a cluster."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.cluster import SparkCluster
from benchmarks.installation import CORRECTION, DATASET, Installation
from benchmarks.release import time_release
from benchmarks.results import Elsewhere, Pass, pass_of
from benchmarks.stages import runs_of, spans_of
from benchmarks.usage import CpuMeter

_MOST_SECONDS: Final = 7200


@dataclass(frozen=True)
class Place:
    """Where a pipeline is measured: its name, its warehouse, and how many workers its cluster has (0: an embedded server)."""

    name: str
    warehouse: str
    workers: int


def places_of(store: str, workers: int) -> tuple[Place, ...]:
    """The places to measure: with a `store`, a bucket; with `workers`, also the bucket and a cluster of so many."""
    bucket = Place("tables in a bucket", f"{store}/bench_{os.getpid()}", 0)
    cluster = Place(f"the same, Spark on {workers} workers", f"{store}/bench_{os.getpid()}_on_workers", workers)
    return () if not store else (bucket, cluster) if workers else (bucket,)


def measure_place(place: Place, root: Path, sources: Path, days: Sequence[dt.date], chunk: int | None) -> Elsewhere:
    """Build, correct and release the days in a new installation, once to warm up and once to measure.

    Raises:
        BenchmarkError: something fails.
    """
    installation = Installation(root, sources, {"BACKFILL_ASSETS_WAREHOUSE": place.warehouse})
    warm = f"{DATASET}_warm"
    for name in (warm, DATASET):
        installation.add_dataset(name, chunk)
    cluster = SparkCluster(root / "spark", "2g") if place.workers else None
    try:
        if cluster is not None:
            installation.use_spark(cluster.start(installation.settings, place.workers))
        installation.start()
        spark = cluster.roots() if cluster is not None else [installation.spark]

        def built(dataset: str, expected: Mapping[str, str] | None = None) -> Pass:
            meter = CpuMeter(spark, installation.daemon)
            return measured_pass(installation, meter, dataset, place.name, days, expected)

        built(warm)
        pipeline = built(DATASET)
        installation.correct(DATASET)
        correction = built(DATASET, CORRECTION)
        found = Elsewhere(place.name, pipeline, correction, time_release(installation.application, DATASET))
    finally:
        try:
            installation.stop()
        finally:
            if cluster is not None:
                cluster.stop()
    installation.settings.warehouse.remove_folder()
    shutil.rmtree(root, ignore_errors=True)
    return found


def measured_pass(
    installation: Installation, meter: CpuMeter, dataset: str, name: str, days: Sequence[dt.date],
    expected: Mapping[str, str] | None = None,
) -> Pass:  # fmt: skip
    """Launch a native backfill of all layers, and account for its time."""
    with meter.running():
        launched = time.time()
        backfill = installation.backfill(dataset, days, _MOST_SECONDS, expected)
        ended = time.time()
    with installation.instance() as instance:
        runs = runs_of(instance, backfill)
    return pass_of(name, len(days), [run.end for run in runs], spans_of(runs, launched, ended), meter)
