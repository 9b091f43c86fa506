"""What a soak has done and found, and whether every promise was kept. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.soak.actions import Fault
from benchmarks.soak.trend import Trend


@dataclass
class Found:
    """What a soak has found; every list of broken promises is empty in a good one.

    `acts`, `refused` and `faults` count by what was done or killed, `polls` and `away` the polls of each reader that saw
    something and those that found no Spark server; `repaired` is what the doctor has found and repaired. `absent` are processes
    that the installation does not have.
    """

    absent: frozenset[Fault] = frozenset()

    acts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    polls: Counter[str] = field(default_factory=Counter)
    away: Counter[str] = field(default_factory=Counter)
    crashed: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    reader_errors: list[str] = field(default_factory=list)
    lost: Sequence[str] = ()
    mixed: Sequence[str] = ()
    repaired: Sequence[str] = ()
    disagreements: Sequence[str] = ()
    left_over: Sequence[str] = ()
    trends: Sequence[Trend] = ()
    days: int = 0
    deliveries: int = 0
    rows: int = 0
    versions: int = 0
    publications: int = 0
    rollbacks: int = 0
    settled_seconds: float = 0.0
    ended: bool = False

    @property
    def growing(self) -> tuple[str, ...]:
        """Processes that lived long enough to be judged and grew."""
        return tuple(trend.role for trend in self.trends if trend.judged and not trend.flat)

    @property
    def idle(self) -> tuple[str, ...]:
        """What has not happened at all, so that nothing could break."""
        happened = {"publication": self.publications, "kill": self.faults.total()}
        if self.faults.total() > 2 * len(Fault):
            happened |= {f"kill of a {f.value}": self.faults[f.value] for f in Fault if f not in self.absent}
        looks = {f"look of the reader {kind}": count for kind, count in self.polls.items()}
        return tuple(f"no {what}" for what, count in {**happened, **looks}.items() if not count)

    @property
    def promises(self) -> Mapping[str, Sequence[str]]:
        """The findings that break a promise, by promise."""
        return {
            "rows lost": self.lost,
            "mixed reads": self.mixed,
            "errors of readers": self.reader_errors,
            "what crashed or hung": self.crashed,
            "ledger, Delta log, files and Dagster disagree": self.disagreements,
            "left over at the end": self.left_over,
            "processes that grow": self.growing,
            "troubles of the soak itself": self.troubles,
            "what never happened": self.idle,
        }

    @property
    def kept(self) -> bool:
        """Whether the soak finished and every promise was kept."""
        return self.ended and not any(self.promises.values())
