"""Run one release or rollback in a process of its own; it kills itself at a named step."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

from backfill_assets_tests.unit.campaigns.world import World


def main(folder: str, what: str, target: str, where: str, first_id: str) -> None:
    """`where` is a step and which occurrence of it is the last, such as `commit:2`; `never:1` lives on."""
    step, number = where.split(":")
    seen: Counter[str] = Counter()

    def checkpoint(name: str) -> None:
        seen[name] += 1
        if (name, seen[name]) == (step, int(number)):
            os.kill(os.getpid(), signal.SIGKILL)

    names = sorted(p.name for p in (Path(folder) / "warehouse" / "published").iterdir())
    world = World(Path(folder), names, int(first_id))
    if what == "publish":
        print(type(world.publisher(checkpoint).release(target)).__name__)
    else:
        print(type(world.rollback(checkpoint).execute(target, "no")).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
