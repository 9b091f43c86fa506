"""Run one release or rollback in a separate process, which kills itself at a named step."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

from backfill_assets_tests.harness.world import World

EXIT_CODES = {"Released": 0, "RolledBack": 0, "AlreadyReleased": 10}

# Plain forks would copy the threads' locks of the engines; a fork server is a clean process with everything loaded.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


def start(world: World, what: str, target: str, where: str = "never:1", first_id: int = 1000) -> BaseProcess:
    """`where` is a step and its last occurrence, such as `commit:2`; `never:1` survives."""
    arguments = (world.folder, world.described, (what, target), where, first_id)
    process = _CONTEXT.Process(target=_run, args=arguments)
    process.start()
    return process


def _run(folder: Path, names: tuple[str, ...], task: tuple[str, str], where: str, first_id: int) -> None:
    what, target = task
    step, number = where.split(":")
    seen: Counter[str] = Counter()

    def checkpoint(name: str) -> None:
        seen[name] += 1
        if (name, seen[name]) == (step, int(number)):
            os.kill(os.getpid(), signal.SIGKILL)

    world = World(folder, names, first_id)
    if what == "publish":
        outcome: object = world.publisher(checkpoint).release(target)
    else:
        outcome = world.rollback(checkpoint).execute(target, "no")
    sys.exit(EXIT_CODES[type(outcome).__name__])
