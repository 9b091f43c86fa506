"""The disk is full, or does not let this user write: the command is refused with a message, and continues when there is room."""

from __future__ import annotations

import datetime as dt
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from backfill_assets.core.errors import BackfillError, ReadBackError, StorageError
from backfill_assets.core.release import shadow_of
from backfill_assets.delta.table import PublishedTable
from backfill_assets_tests.full_disk import NO_DISK, TMPFS, full, small_disk
from backfill_assets_tests.harness.tables import layout, on_paths
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.faults.kit import (
    COMMANDS,
    DAYS,
    NEW,
    POINTS,
    assert_one_command_finishes_it,
    ready,
    refusal,
    say,
)

pytestmark = [pytest.mark.faults, pytest.mark.slow]

NOBODY = 65534
Fault = Callable[[], None]


def ill(path: Path) -> None:
    """How a disk refuses to confirm a file."""
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


@pytest.mark.parametrize(("command", "step"), POINTS, ids=lambda value: value)
def test_the_disk_is_full_from_a_step_of_a_release_on(observed: Observed, command: str, step: str) -> None:
    with small_disk() as (folder, kind):
        world = World(folder)
        unit = ready(world, command)
        observed.injected(f"{kind} from {step} of a {command} on")
        if kind != TMPFS:
            observed.weaker(NO_DISK)
        with ExitStack() as until_there_is_room:

            def fill(call: str) -> None:
                if call == step:
                    until_there_is_room.enter_context(full(folder, kind))

            refused = refusal(world, command, unit, fill)
        observed.found(refused or "it went through", *finishes(world, command, unit))
        world.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_disk_does_not_confirm_a_commit(world: World, observed: Observed, command: str) -> None:
    unit = ready(world, command)
    known = set((world.homes["sales"] / "_delta_log").iterdir())

    def fails(path: Path) -> None:
        if path.suffix == ".json" and path not in known:
            ill(path)

    table = world.tables["sales"]
    world.tables["sales"] = PublishedTable(layout(world.folder), world.datasets["sales"], world.clock, on_paths(fails))
    observed.injected(f"an input/output error when the commit of a {command} is brought to the disk")
    with pytest.raises(ReadBackError, match="the disk does not confirm it") as refused:
        say(world, command, unit)
    world.tables["sales"] = table
    observed.found(refused.value, *finishes(world, command, unit))


def test_the_disk_does_not_confirm_a_shadow(world: World, observed: Observed) -> None:
    unit = ready(world, "publish")
    (folder,) = {shadow_of(f.path) for e in world.ledger.evidence(unit, "sales", DAYS).values() for f in e.shadow_files}

    table = PublishedTable(layout(world.folder), world.datasets["sales"], world.clock, on_paths(ill))
    observed.injected("an input/output error when a shadow is brought to the disk")
    with pytest.raises(StorageError, match=r"the disk does not confirm .+; check the disk, and repeat") as refused:
        table.shadow_files(folder, DAYS)
    assert folder in str(refused.value)
    assert world.tables["sales"].shadow_files(folder, DAYS)
    observed.found(refused.value, "read again, its files are there")


def test_the_disk_does_not_confirm_a_new_table(world: World, observed: Observed) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", NEW)
    evidence = world.ledger.evidence(unit.id, "sales", DAYS).values()
    (folder,) = {shadow_of(f.path) for found in evidence for f in found.shadow_files}

    place, dataset = layout(world.folder), world.datasets["sales"]
    observed.injected("an input/output error when the first commit of a published table is brought to the disk")
    with pytest.raises(StorageError, match=r"the disk does not confirm .+; check the disk, and repeat") as refused:
        PublishedTable(place, dataset, world.clock, on_paths(ill)).prepare(folder)
    synced: list[Path] = []
    PublishedTable(place, dataset, world.clock, on_paths(synced.append)).prepare(folder)
    assert world.homes["sales"] / "_delta_log" / f"{0:020}.json" in synced
    observed.found(refused.value, "said again, it is on the disk")


@contextmanager
def folder_of_anybody() -> Iterator[Path]:
    """A folder that another user can reach; pytest's own folders are closed to them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def not_permitted(folder: Path, closed: Path) -> Iterator[None]:
    """Within this block, this process may write everywhere below `folder` except in `closed`; root becomes `nobody` for it."""
    root = os.geteuid() == 0
    if root:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    inside = [closed, *(path for path in closed.iterdir() if path.is_file())] if closed.is_dir() else [closed]
    modes = {path: path.stat().st_mode for path in inside}
    for path in inside:
        path.chmod(0o555 if path.is_dir() else 0o444)
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.mark.parametrize("closed", ["_releases", "_delta_log", "_shadow", "ledger.db"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_publication_or_rollback_has_no_permission_to_a_folder(observed: Observed, command: str, closed: str) -> None:
    with folder_of_anybody() as folder:
        world = World(folder)
        unit = ready(world, command)
        if closed == "ledger.db":
            # SQLite does not reopen files that it already has open.
            world.close()
        path = folder / closed if closed == "ledger.db" else world.homes["sales"] / closed
        if closed == "_shadow":
            path /= f"{unit}/2"
        observed.injected(f"{closed} may not be written to while somebody says {command}")
        with not_permitted(folder, path):
            refused = opened_and_refused(folder, command, unit)
        again = World(folder, first_id=200)
        observed.found(refused or "it went through", *finishes(again, command, unit))
        again.close()
        world.close()


def opened_and_refused(folder: Path, command: str, unit: str) -> BackfillError | None:
    try:
        world = World(folder, first_id=100)
    except BackfillError as error:
        return error
    try:
        return refusal(world, command, unit, lambda _call: None)
    finally:
        world.close()


def finishes(world: World, command: str, unit: str) -> tuple[object, ...]:
    # If the ledger could not be written either, the lock of the failed command expires.
    world.clock.advance(dt.timedelta(minutes=5))
    return assert_one_command_finishes_it(world, command, unit)
