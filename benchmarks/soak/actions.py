"""The next step of a soak: a seed chooses among the steps that make sense now. Pure."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from backfill_assets.core.days import ONE_DAY

_MOST_DAYS: Final = 12
_LEAST_CAMPAIGN: Final = 2
"""One day for the canary, and one for the rest."""
_CLASHING: Final = 0.2
"""The share of backfills that may ask for claimed days, and are then refused."""


class Act(StrEnum):
    """The acts of operators and the world."""

    live = "a new day arrives"
    late = "a day is delivered again"
    again = "a day is run again"
    backfill = "a backfill is launched"
    campaign = "a campaign is launched"
    relaunch = "a launch is given again"
    pause = "pause"
    stop = "stop"
    resume = "resume"
    publish = "publish"
    discard = "discard"
    rollback = "rollback"


class Fault(StrEnum):
    """The processes that are killed with SIGKILL."""

    worker = "run worker"
    spark = "Spark server"
    executor = "Spark executor"
    command = "backfill command"
    daemon = "Dagster daemon"
    webserver = "Dagster webserver"
    reader = "reader"


_WEIGHTS: Final[Mapping[Act, int]] = {
    Act.live: 8,
    Act.late: 2,
    Act.again: 1,
    Act.backfill: 3,
    Act.campaign: 4,
    Act.relaunch: 4,
    Act.pause: 1,
    Act.stop: 1,
    Act.resume: 4,
    Act.publish: 4,
    Act.discard: 1,
    Act.rollback: 2,
}
_FAULTS: Final[Mapping[Fault, int]] = {
    Fault.worker: 4,
    Fault.command: 2,
    Fault.reader: 2,
    Fault.spark: 1,
    Fault.executor: 1,
    Fault.daemon: 1,
    Fault.webserver: 1,
}
_SHORT_LIVED: Final = frozenset({Fault.worker, Fault.command})
_OF_STATE: Final[Mapping[str, tuple[Act, ...]]] = {
    "planned": (Act.relaunch, Act.discard),
    "canary": (Act.pause, Act.stop),
    "running": (Act.pause, Act.stop),
    "paused": (Act.resume, Act.stop),
    "stopped": (Act.resume, Act.discard),
    "stale": (Act.resume,),
    "validated": (Act.publish,),
    "approved": (Act.publish,),
}
"""The sensible acts on a campaign in a state; a planned campaign is one with a killed launch."""


@dataclass(frozen=True)
class Situation:
    """The possible targets: days delivered so far in order, running work, campaigns' states, units left, releases.

    `claimed` are days of open units, `units` open units whose launch is over, `releases` those that may be rolled back.
    `idle` says that Dagster has nothing to do.
    """

    days: Sequence[dt.date]
    next_day: dt.date
    live: int = 0
    backfills: int = 0
    campaigns: Mapping[str, str] = field(default_factory=dict)
    units: Sequence[str] = ()
    releases: Sequence[str] = ()
    claimed: Collection[dt.date] = frozenset()
    idle: bool = False

    def free(self, least: int = 1) -> list[tuple[dt.date, ...]]:
        """The longest ranges of unclaimed days, of at least so many days."""
        found: list[tuple[dt.date, ...]] = []
        for day in (day for day in self.days if day not in self.claimed):
            if found and found[-1][-1] + ONE_DAY == day:
                found[-1] = (*found[-1], day)
            else:
                found.append((day,))
        return [days for days in found if len(days) >= least]


@dataclass(frozen=True)
class Step:
    """One thing to do: on days, or on a campaign, unit or release."""

    act: Act
    target: str = ""
    days: tuple[dt.date, ...] = ()


def possible(situation: Situation) -> tuple[Step, ...]:
    """Every kind of step that makes sense, on every target; those on days come without days."""
    found = []
    if situation.live < 2:  # noqa: PLR2004  # one at work and one in the queue
        found.append(Step(Act.live, days=(situation.next_day,)))
        found += [Step(Act.late), Step(Act.again)] if situation.days else []
    if situation.days and situation.backfills < 1:
        found.append(Step(Act.backfill))
    if not situation.campaigns and situation.free(_LEAST_CAMPAIGN):
        found.append(Step(Act.campaign))
    for name, state in situation.campaigns.items():
        found += [Step(act, name) for act in _OF_STATE.get(state, ())]
    found += [Step(act, unit) for unit in situation.units for act in (Act.resume, Act.publish, Act.discard)]
    return (*found, *(Step(Act.rollback, release) for release in situation.releases))


def choose(chance: random.Random, situation: Situation) -> Step | None:
    """One of the possible steps, the kinds by their weights; None if there is nothing to do."""
    steps = possible(situation)
    if not steps:
        return None
    acts = [act for act in Act if any(step.act is act for step in steps)]
    (act,) = chance.choices(acts, [_WEIGHTS[act] for act in acts])
    step = chance.choice([step for step in steps if step.act is act])
    match act:
        case Act.late | Act.again:
            return Step(act, days=(chance.choice(situation.days),))
        case Act.backfill:
            free = situation.free()
            clashing = not free or chance.random() < _CLASHING
            return Step(act, days=_range(chance, situation.days if clashing else chance.choice(free)))
        case Act.campaign:
            return Step(act, days=_range(chance, chance.choice(situation.free(_LEAST_CAMPAIGN)), _LEAST_CAMPAIGN))
        case _:
            return step


def choose_faults(
    chance: random.Random, *, spare_long_lived: bool, met: Collection[str] = frozenset()
) -> tuple[Fault, ...]:
    """What is killed next: the first of these with a living process, drawn by their weights.

    Faults that were not `met` yet come before the others, so a short soak also sees every fault.
    """
    left = [fault for fault in _FAULTS if not spare_long_lived or fault in _SHORT_LIVED]
    drawn = []
    while left:
        (fault,) = chance.choices(left, [_FAULTS[fault] for fault in left])
        left.remove(fault)
        drawn.append(fault)
    return tuple(sorted(drawn, key=lambda fault: fault.value in met))


def _range(chance: random.Random, days: Sequence[dt.date], least: int = 1) -> tuple[dt.date, ...]:
    first = chance.randrange(len(days) - least + 1)
    return tuple(days[first : first + chance.randint(least, _MOST_DAYS)])
