"""One command of a campaign in a separate process, which kills itself right before a chosen call that changes something."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from backfill_assets.control.conductor import BackfillRequest
from backfill_assets_tests.harness.actors import Scheduler
from backfill_assets_tests.harness.between import between
from backfill_assets_tests.harness.specifications import NAME, specification, with_canaries
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.unit.release import crash

LEDGER = (
    "add_campaign", "change_campaign", "note", "approve", "assign", "set_contract", "move", "intend", "finalize",
    "finalize_publication", "intend_undo", "abandon", "hold",
)  # fmt: skip
TABLE = ("prepare", "store_manifest", "commit", "seal")
SCHEDULER = ("launch", "cancel")

_CONTEXT = multiprocessing.get_context("forkserver")
# pyarrow loads pandas with its first table, which would happen in each process.
_CONTEXT.set_forkserver_preload([__name__, crash.__name__, "pandas"])


class KeptScheduler(Scheduler):
    """A scheduler that outlives the launching process, as Dagster does."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file = folder / "scheduler.pickle"

    def launch(self, request: BackfillRequest) -> str:
        self.look()
        backfill = super().launch(request)
        self.keep()
        return backfill

    def active(self, campaign: str) -> tuple[str, ...]:
        self.look()
        return super().active(campaign)

    def cancel(self, campaign: str) -> int:
        self.look()
        gone = super().cancel(campaign)
        self.keep()
        return gone

    def look(self) -> None:
        """Read what other processes have launched."""
        if self._file.exists():
            self.requests, self.at_work = pickle.loads(self._file.read_bytes())  # noqa: S301  # written by `keep`

    def keep(self) -> None:
        """Store it for other processes."""
        self._file.write_bytes(pickle.dumps((self.requests, self.at_work)))


@dataclass(frozen=True)
class Order:
    """What to do where, and before which of its changes to die (counted from 1; it lives if there are fewer)."""

    folder: Path
    command: str
    now: dt.datetime
    at: int = 0
    target: str = ""
    names: tuple[str, ...] = ("sales",)
    code: str = "c0de"

    @property
    def first_id(self) -> int:
        return 1000 * (self.at + 1)


COMMANDS: Mapping[str, Callable[[World, str], object]] = {
    "launch": lambda world, _: world.control.launch(NAME),
    "resume": lambda world, _: world.control.resume(NAME, "mended"),
    "pause": lambda world, _: world.control.pause(NAME, "month end"),
    "conduct": lambda world, _: world.conduct(),
    "approve": lambda world, evidence: world.approving().approve(NAME, evidence),
    "publish": lambda world, _: world.release().publish(NAME),
    "rollback": lambda world, release: world.campaign_rollback().execute(release, "odd"),
}


def world_of(order: Order) -> World:
    """The world of an order, as a separate process sees it."""
    asked = specification() if order.command in {"approve", "publish", "rollback"} else with_canaries()
    scheduler = KeptScheduler(order.folder)
    scheduler.look()
    world = World(order.folder, order.names, order.first_id, scheduler=scheduler, asked=asked)
    world.basis.codes["sales"] = order.code
    world.clock.advance(order.now - world.clock.now())
    return world


def died(order: Order) -> str:
    """Carry out an order in a separate process; returns the call before which it died, empty if it finished."""
    process = _CONTEXT.Process(target=_run, args=(order,))
    process.start()
    process.join(120)
    assert process.exitcode in {0, -signal.SIGKILL}, process.exitcode
    return _last_words(order).read_text() if process.exitcode else ""


def _run(order: Order) -> None:
    seen = 0

    def step(call: str) -> None:
        nonlocal seen
        seen += 1
        if seen == order.at:
            _last_words(order).write_text(call)
            os.kill(os.getpid(), signal.SIGKILL)

    world = world_of(order)
    world.ledger = between(world.ledger, LEDGER, before=step)
    world.scheduler = between(world.scheduler, SCHEDULER, before=step)
    world.tables = {name: between(table, TABLE, before=step) for name, table in world.tables.items()}
    projected = between(world.data_releases.table, ("append", "write"), before=step)
    world.data_releases = replace(world.data_releases, table=projected)
    COMMANDS[order.command](world, order.target)


def _last_words(order: Order) -> Path:
    return order.folder / "last_words"
