"""Does a long-lived process grow? Least squares over what it used, after a warm-up and in each half. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.soak.actions import Fault

WARM_UP: Final = 1 / 3
"""The share of a process's time that is not judged: caches fill, and a JVM takes its heap."""
LEAST_SECONDS: Final = 300
"""A shorter time after the warm-up is not judged."""
_GROWTH: Final = 0.15
_SLACK_BYTES: Final = 30_000_000
_SLACK_FILES: Final = 10
_SHOW_RUNS: Final = frozenset({Fault.daemon.value, Fault.webserver.value})
_RUNS_KEPT_OPEN: Final = 16 * 3
"""A process that reads runs keeps the databases of the newest sixteen open, three files each (dagster_batched_events/sqlite.py)."""


@dataclass(frozen=True)
class Sample:
    """What a process used at a moment: seconds since the start of the soak, bytes of memory, open files."""

    at: float
    rss: int
    files: int


@dataclass(frozen=True)
class Trend:
    """The longest-living process of a role: seconds observed, means, and growth per minute."""

    role: str
    seconds: float
    mean_rss: float
    rss_per_minute: float
    mean_files: float
    files_per_minute: float

    @property
    def judged(self) -> bool:
        """Whether it was observed long enough for a judgement."""
        return self.seconds >= LEAST_SECONDS

    @property
    def flat(self) -> bool:
        """Whether, over the observed time, it grew by no more than 15 % and a little."""
        minutes = self.seconds / 60
        kept = _RUNS_KEPT_OPEN if self.role in _SHOW_RUNS else 0
        memory = self.rss_per_minute * minutes <= self.mean_rss * _GROWTH + _SLACK_BYTES
        return memory and self.files_per_minute * minutes <= self.mean_files * _GROWTH + _SLACK_FILES + kept


def trend_of(role: str, samples: Sequence[Sample]) -> Trend:
    """The trend of one process; `samples` in order of time, at least one."""
    begin, end = samples[0].at, samples[-1].at
    warm = [s for s in samples if s.at >= begin + (end - begin) * WARM_UP]
    times = [s.at for s in warm]
    rss, files = [float(s.rss) for s in warm], [float(s.files) for s in warm]
    mean_rss, mean_files = sum(rss) / len(rss), sum(files) / len(files)
    seconds = times[-1] - times[0]
    return Trend(role, seconds, mean_rss, _growth(times, rss), mean_files, _growth(times, files))


def _growth(times: Sequence[float], used: Sequence[float]) -> float:
    """Growth per minute: the least of all the time and its halves, because what grows once, such as by a library, does not leak."""
    half = len(times) // 2
    return 60 * min(
        slope(times[part], used[part]) for part in (slice(None), slice(half), slice(half, None)) if times[part]
    )


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The slope of the least-squares line; 0 where all xs are the same."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
