"""CPU time of the Spark server and of Dagster's runs, sampled, so that it is known for any stretch of time."""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

_SAMPLE_SECONDS: Final = 0.25


@dataclass(frozen=True)
class Cpu:
    """CPU seconds, user and system."""

    spark: float = 0.0
    workers: float = 0.0

    def __add__(self, other: Cpu) -> Cpu:
        return Cpu(self.spark + other.spark, self.workers + other.workers)

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.spark - other.spark, self.workers - other.workers)


class CpuMeter:
    """Samples process trees within its block: those of Spark, and the workers below Dagster's daemon."""

    def __init__(self, spark: Sequence[psutil.Process], workers: psutil.Process) -> None:
        self._spark = spark
        self._workers = workers
        self._times: list[float] = []
        self._samples: list[Cpu] = []
        self._ended = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[CpuMeter]:
        """Sample until the block ends."""
        self._sample()
        thread = threading.Thread(target=self._run, name="cpu-meter", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()
            self._sample()

    def between(self, begin: float, end: float) -> Cpu:
        """The CPU time used between two times, in seconds since 1970; exact to a quarter of a second."""
        return self._at(end) - self._at(begin)

    def _run(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        cpu = Cpu(sum(map(_tree_seconds, self._spark)), _tree_seconds(self._workers))
        self._times.append(time.time())
        self._samples.append(cpu)

    def _at(self, moment: float) -> Cpu:
        after = bisect.bisect_left(self._times, moment)
        if after == 0 or after == len(self._times):
            return self._samples[min(after, len(self._samples) - 1)]
        before = after - 1
        part = (moment - self._times[before]) / (self._times[after] - self._times[before])
        one, two = self._samples[before], self._samples[after]
        return Cpu(one.spark + part * (two.spark - one.spark), one.workers + part * (two.workers - one.workers))


def _tree_seconds(root: psutil.Process) -> float:
    """CPU time of a process, of all below it, and of those below it that have ended."""
    seconds = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                # When a child has ended, its use counts for its parent: nothing is lost or counted twice.
                seconds += times.user + times.system + times.children_user + times.children_system
    return seconds
