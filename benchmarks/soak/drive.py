"""The soak itself: acts and faults by the seed until the time is over, then calm, then judgement."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, assert_never

from backfill_assets.core.errors import BackfillError
from benchmarks.soak.actions import Act, Fault, Situation, Step, choose, choose_faults
from benchmarks.soak.found import Found
from benchmarks.soak.judge import judge
from benchmarks.soak.readers import KINDS, at_version
from benchmarks.soak.site import Said, Site
from benchmarks.soak.watch import Meter, Watcher

_PAUSE_SECONDS: Final = (1.0, 5.0)
_FAULT_SECONDS: Final = (20.0, 60.0)
_SETTLE_SECONDS: Final = 900
_LOOK_SECONDS: Final = 3.0
_TRIES: Final = 3
_WORKING: Final = frozenset({"canary", "running"})
_ENDS: Final[Mapping[str, Act]] = {"planned": Act.relaunch, "validated": Act.publish, "approved": Act.publish}
"""Which command finishes a campaign in a state, if not `resume`."""

Say = Callable[[str], None]


class Soak:
    """One soak on a started site; `seed` decides what is tried, the machine decides the outcome."""

    def __init__(self, site: Site, watcher: Watcher, seed: int, say: Say) -> None:
        self._site = site
        self._watcher = watcher
        self._chance = random.Random(f"{seed} acts")  # noqa: S311  # repeatable, not secret
        self._fate = random.Random(f"{seed} faults")  # noqa: S311  # repeatable, not secret
        self._say = say
        self._calm = threading.Event()
        self._campaigns = 0
        self._last: dict[str, str] = {}
        self.found = Found(absent=site.processes.absent)

    def run(self, seconds: float) -> None:
        """Act for so long, let everything finish, and judge; `found` always has the findings so far."""
        meter = Meter(self._site.processes, self._site.root / "samples.jsonl")
        faults = threading.Thread(target=self._inject, args=(seconds,), name="faults", daemon=True)
        for kind in KINDS:
            self._site.processes.start_reader(kind)
        meter.start()
        faults.start()
        try:
            self._act(seconds)
        finally:
            # However it ends: nothing may be started while everything is being stopped.
            self._calm.set()
            faults.join()
            meter.stop()
            self.found.trends = meter.trends()
            self.found.troubles += meter.troubles
        self._say("kills are over; everything is brought to its end")
        began = time.monotonic()
        self._settle()
        self.found.settled_seconds = time.monotonic() - began
        self.found.crashed += self._site.processes.fallen()
        self._site.processes.stop_readers()
        self._say("readers have ended; everything is judged")
        judge(self._site, self.found)
        self.found.ended = True

    def _act(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            situation = self._situation()
            step = choose(self._chance, situation) if situation else None
            if step is not None:
                self._tried(step)
            time.sleep(self._chance.uniform(*_PAUSE_SECONDS))

    def _situation(self) -> Situation | None:
        """The possible targets; None, with a note at the end, if they cannot be read."""
        try:
            return self._watcher.situation()
        except Exception as error:  # noqa: BLE001  # unexpected; the soak continues and reports it
            self.found.troubles.append(f"a look at ledger and Dagster: {type(error).__name__}: {error}")
            return None

    def _tried(self, step: Step) -> None:
        what = f"{step.act.value} {step.target}".strip()
        days = f" {step.days[0]}..{step.days[-1]}" if step.days else ""
        try:
            said = self._do(step)
        except BackfillError as error:
            # Dagster was not running and could not take a launch.
            said = Said(1, errors=str(error))
        except subprocess.TimeoutExpired as error:
            said = Said(1, errors=str(error))
            self.found.crashed.append(f"{what}: {error}")
        self.found.acts[step.act.value] += 1
        if said.code:
            self.found.refused[step.act.value] += 1
            self._last[step.target] = said.last
        if said.crashed:
            self.found.crashed.append(f"{what}: {said.last[:500]}")
            self._say((said.out + said.errors)[-5000:])
        self._say(f"{what}{days}: {said.last[:300] if said.code else 'done'}")

    def _do(self, step: Step) -> Said:
        match step.act:
            case Act.live | Act.late:
                self._deliver(step)
                self._site.launch_live(step.days[0])
            case Act.again:
                self._site.launch_live(step.days[0])
            case Act.backfill:
                self._deliver(step)
                self._site.launch_backfill(step.days)
            case Act.campaign:
                self._deliver(step)
                self._campaigns += 1
                name = f"soak-{self._campaigns:03}"
                planned = self._site.command("plan", self._site.write_specification(name, step.days))
                return planned if planned.code else self._site.command("launch", name)
            case Act.relaunch:
                return self._site.command("launch", step.target)
            case Act.publish:
                return self._site.command("publish", step.target)
            case Act.pause | Act.stop | Act.resume | Act.discard | Act.rollback:
                return self._site.command(step.act.value, step.target, "--reason", "soak")
            case _:
                assert_never(step.act)
        return Said(0)

    def _deliver(self, step: Step) -> None:
        for day in step.days:
            self._site.deliver(day)

    def _inject(self, seconds: float) -> None:
        """Kill until it is calm; in the second half only short-lived processes, so that there is time to judge memory."""
        half = time.monotonic() + seconds / 2
        while not self._calm.wait(self._fate.uniform(*_FAULT_SECONDS)):
            late = time.monotonic() > half
            faults = choose_faults(self._fate, spare_long_lived=late, met=self.found.faults)
            number = self._fate.randrange(1000)
            for fault in faults:
                if killed := self._killed(fault, number):
                    self.found.faults[fault.value] += 1
                    self._say(f"killed: {killed}")
                    break

    def _killed(self, fault: Fault, number: int) -> str:
        try:
            return self._site.processes.kill(fault, number)
        except Exception as error:  # noqa: BLE001  # the kills continue, and the end reports it
            self.found.troubles.append(f"a kill of the {fault.value}: {type(error).__name__}: {error}")
            return ""

    def _settle(self) -> None:
        """One command for everything that is left, as often as needed; commands without success are reported."""
        tried: Counter[str] = Counter()
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            situation = self._situation()
            if situation is None:
                continue
            steps = [s for s in self._endings(situation) if situation.idle or s.act is Act.publish]
            steps = [s for s in steps if tried[f"{s.act} {s.target} {s.days}"] < _TRIES]
            for step in steps[:1]:
                tried[f"{step.act} {step.target} {step.days}"] += 1
                self._tried(step)
            # If a running campaign has no run, the conductor launches the next backfill by itself.
            if not steps and situation.idle and not _WORKING & set(situation.campaigns.values()):
                break
        situation = self._situation()
        if situation is None:
            self.found.left_over = ("nobody could look",)
            return
        left = [f"{name}: {self._last.get(name, 'not tried')}" for name in (*situation.units, *situation.campaigns)]
        self.found.left_over = (*left, *(() if situation.idle else ("runs in Dagster",)))

    def _endings(self, situation: Situation) -> list[Step]:
        steps = []
        for name, state in situation.campaigns.items():
            if state not in _WORKING:
                steps.append(Step(_ENDS.get(state, Act.resume), name))
        steps += [Step(Act.resume, unit) for unit in situation.units]
        shown = at_version(self._site.table).keys()
        late = [day for day in situation.days if day not in shown and day not in self._watcher.held()]
        return steps + [Step(Act.again, days=(day,)) for day in late]
