"""What a benchmark found: figures as they were measured, and those that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.files import Bytes
from benchmarks.release import ReleaseTimes
from benchmarks.stages import ORCHESTRATION, Span
from benchmarks.usage import Cpu, CpuMeter

BUILD = ("raw", "staging", "shadow")


@dataclass(frozen=True)
class StageCost:
    """Wall seconds of a stage, summed over all runs, and the CPU that was used meanwhile."""

    stage: str
    wall: float
    cpu: Cpu


@dataclass(frozen=True)
class Pass:
    """One pass over a range of days: its wall seconds from launch to end, and the share of its stages.

    `per_run` are the seconds from the end of one run to that of the next; 0 where there is only one.
    """

    name: str
    days: int
    runs: int
    per_run: float
    wall: float
    cpu: Cpu
    stages: tuple[StageCost, ...]

    def share(self, stages: Sequence[str]) -> float:
        """The part of all stages' wall time that these took."""
        return self.seconds(stages) / sum(s.wall for s in self.stages)

    def seconds(self, stages: Sequence[str]) -> float:
        """Wall seconds of some stages."""
        return sum(s.wall for s in self.stages if s.stage in stages)

    @property
    def validation_of_build(self) -> float:
        """Seconds of the checks in parts of those of raw, staging and shadow."""
        return self.seconds(("checks",)) / self.seconds(BUILD)


@dataclass(frozen=True)
class Growth:
    """The pipeline over some number of days, a release of them, and the bytes that were written by layer."""

    pipeline: Pass
    release: ReleaseTimes
    written: Mapping[str, Bytes]


@dataclass(frozen=True)
class Elsewhere:
    """The pipeline and its correction at another place than a folder of this host, and the seconds of a release of all days."""

    name: str
    pipeline: Pass
    correction: Pass
    release: ReleaseTimes


@dataclass(frozen=True)
class Results:
    """All that one benchmark measured.

    `by_the_day` is a sample of runs of one day each; `machine` describes the machine.
    """

    scale: float
    rows: int
    machine: Mapping[str, str]
    floors: tuple[Pass, ...]
    pipeline: Pass
    correction: Pass
    by_the_day: Pass
    first_release: ReleaseTimes
    release: ReleaseTimes
    written: Mapping[str, Bytes]
    growth: tuple[Growth, ...]
    elsewhere: tuple[Elsewhere, ...] = ()

    @property
    def floor_seconds(self) -> float:
        """Mean wall seconds of the floor, which runs before and after the pipeline."""
        return sum(floor.wall for floor in self.floors) / len(self.floors)

    @property
    def times_floor(self) -> float:
        """How many times the floor the pipeline takes."""
        return self.pipeline.wall / self.floor_seconds

    @property
    def sampled(self) -> int:
        """How many runs of one day the extrapolation rests on: the first warms up and is left out."""
        return self.by_the_day.runs - 1

    @property
    def extrapolated_seconds(self) -> float:
        """What a run per day would take for all days of the pipeline, from the sample."""
        return self.by_the_day.per_run * self.pipeline.days

    @property
    def sizes(self) -> tuple[Growth, ...]:
        """The pipeline and its growth by number of days; only the pipeline where no growth was measured."""
        pipeline = Growth(self.pipeline, self.first_release, self.written)
        return tuple(sorted((*self.growth, pipeline), key=lambda size: size.pipeline.days))

    def derived(self) -> Mapping[str, float]:
        """The figures that follow from the others, for `--json`."""
        return {
            "floor_seconds": self.floor_seconds,
            "times_floor": self.times_floor,
            "seconds_per_day": self.pipeline.wall / self.pipeline.days,
            "run_per_day_extrapolated_seconds": self.extrapolated_seconds,
            "run_per_day_sampled": self.sampled,
            "times_faster_than_a_run_per_day": self.extrapolated_seconds / self.pipeline.wall,
            "validation_of_build": self.pipeline.validation_of_build,
            "correction_validation_of_build": self.correction.validation_of_build,
            "validation_share": self.pipeline.share(("checks",)),
            "orchestration_share": self.pipeline.share(ORCHESTRATION),
        }


def pass_of(name: str, days: int, ends: Sequence[float], spans: Sequence[Span], meter: CpuMeter) -> Pass:
    """Sum spans by stage, with the CPU that was used in them; `ends` are the times at which runs ended."""
    stages = []
    for stage in dict.fromkeys(span.stage for span in spans):
        own = [span for span in spans if span.stage == stage]
        cpu = sum((meter.between(span.begin, span.end) for span in own), Cpu())
        stages.append(StageCost(stage, sum(span.seconds for span in own), cpu))
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    per_run = (max(ends) - min(ends)) / (len(ends) - 1) if len(ends) > 1 else 0.0
    return Pass(name, days, len(ends), per_run, end - begin, meter.between(begin, end), tuple(stages))
