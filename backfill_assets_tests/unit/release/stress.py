"""Writers and readers of one published table, each in a process of its own, and the model of what readers may see meanwhile."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import multiprocessing
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from backfill_assets.core.errors import ClaimedDaysError, EvidenceError, RollbackError, UnitError
from backfill_assets.delta.opening import is_table, rows_of, table_at
from backfill_assets.ledger.database import LockPace
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.tables import amounts_of, day, layout
from backfill_assets_tests.harness.world import World

DAYS = tuple(day(n) for n in range(6))
STOP = "stop"
COLUMNS = ["day", "amount"]
_MOST_DAYS = 3
_UNDO_SHARE = 0.2
_IDS_PER_WRITER = 1_000_000
_BETWEEN_POLLS = 0.5
"""Seconds; readers that never rest take the cores that the writers need."""
_PACE = LockPace(poll=dt.timedelta(milliseconds=50))
"""Four writers that ask for one lock each few milliseconds spend half of their time on that."""

# Plain forks would copy the threads' locks of the engines; a fork server is a clean process with everything loaded.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])

Seen = Mapping[dt.date, Sequence[int]]


class Model:
    """What readers see after each release, derived only from the writers' intentions and not from the table."""

    def __init__(self) -> None:
        self._now: dict[dt.date, tuple[int, ...]] = {}
        self._before: dict[str, dict[dt.date, tuple[int, ...]]] = {}

    def publish(self, release: str, brought: Seen) -> str:
        """Take the next release and its rows, by day; returns the fingerprint of what readers see from then on."""
        self._before[release] = {d: self._now.get(d, ()) for d in brought}
        self._now |= {d: tuple(amounts) for d, amounts in brought.items()}
        return fingerprint(self._now)

    def undo(self, release: str, undoes: str, days: Iterable[dt.date]) -> str:
        """Take the next rollback, of these days; returns the fingerprint of what readers see from then on."""
        return self.publish(release, {d: self._before[undoes][d] for d in days})


@dataclass(frozen=True)
class Said:
    """What all writers say: rows by unit and day as last built, units by release, and what each rollback undoes."""

    built: Mapping[str, Seen]
    published: Mapping[str, str]
    undone: Mapping[str, str]

    @property
    def releases(self) -> set[str]:
        """Every commit of all writers."""
        return {*self.published, *self.undone}


def fingerprint(seen: Seen) -> str:
    """Equal for equal rows; days without rows count as absent."""
    rows = sorted((str(d), sorted(amounts)) for d, amounts in seen.items() if amounts)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def start_writer(folder: Path, number: int, commits: int, seed: int) -> BaseProcess:
    """A process that publishes, and sometimes rolls back, until it has made so many commits."""
    process = _CONTEXT.Process(target=_write, args=(folder, number, commits, seed))
    process.start()
    return process


def start_reader(folder: Path, number: int) -> BaseProcess:
    """A process that polls the table until the file `stop` appears."""
    process = _CONTEXT.Process(target=_read, args=(folder, number))
    process.start()
    return process


def said(folder: Path) -> Said:
    """What all writers have said."""
    documents = list(_documents(folder, "writer"))
    built = {d["unit"]: {dt.date.fromisoformat(k): v for k, v in d["built"].items()} for d in documents if "built" in d}
    published = [(d["published"], d["unit"]) for d in documents if "published" in d]
    undone = [(d["undone"], d["undoes"]) for d in documents if "undone" in d]
    found = Said(built, dict(published), dict(undone))
    assert len(found.releases) == len(published) + len(undone), "two commits were given one name"
    return found


def polls(folder: Path) -> list[tuple[int, str]]:
    """Each version that a reader saw, with the fingerprint of its rows."""
    return [(d["version"], d["rows"]) for d in _documents(folder, "reader")]


def _documents(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(f"{kind}_*.jsonl")):
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def stress_world(folder: Path, first_id: int = 0) -> World:
    """The world that all processes share, in the machine's time: it orders releases and ends locks for all of them."""
    made = World(folder, first_id=first_id, clock=SystemClock(), pace=_PACE)
    # On a busy machine a writer may wait long for the others: that is no error.
    made.wait = dt.timedelta(minutes=10)
    return made


class _Writer:
    def __init__(self, folder: Path, number: int, seed: int) -> None:
        self.number = number
        self.world = stress_world(folder, (number + 1) * _IDS_PER_WRITER)
        self.random = random.Random(f"{seed} {number}")  # noqa: S311  # repeatable, not secret
        self.path = folder / f"writer_{number}.jsonl"
        self.amount = (number + 1) * _IDS_PER_WRITER
        self.mine: list[str] = []

    def step(self) -> int:
        """Publish or roll back; returns how many commits it made, 0 after an allowed refusal."""
        if self.mine and self.random.random() < _UNDO_SHARE:
            return self._undo(self.mine.pop(self.random.randrange(len(self.mine))))
        days = sorted(self.random.sample(DAYS, self.random.randint(1, _MOST_DAYS)))
        try:
            unit = self.world.open_unit({"sales": days})
        except ClaimedDaysError:
            return 0
        if int(unit.id.removeprefix("u_")) // _IDS_PER_WRITER != self.number + 1:
            return self._publish_for_its_owner(unit.id)
        while True:
            brought = {d: self._amounts() for d in days}
            self._say(unit=unit.id, built={d.isoformat(): amounts for d, amounts in brought.items()})
            self.world.build(unit, "sales", brought)
            # Refused if a release of these days was rolled back since they were built.
            with contextlib.suppress(EvidenceError):
                outcome = self.world.publisher().release(unit.id)
                self.mine.append(outcome.release)
                return self._reported(outcome)

    def _publish_for_its_owner(self, unit: str) -> int:
        """Two publishers of one unit: it may not be built yet, already published, or rolled back.

        After a rollback it claims its days again, which another unit may have claimed meanwhile.
        """
        try:
            return self._reported(self.world.publisher().release(unit))
        except (ClaimedDaysError, EvidenceError, UnitError):
            return 0

    def _reported(self, outcome: Released | AlreadyReleased) -> int:
        if isinstance(outcome, AlreadyReleased):
            return 0
        self._say(published=outcome.release, unit=outcome.unit)
        return 1

    def _undo(self, release: str) -> int:
        try:
            done = self.world.rollback().execute(release, "by chance")
        except RollbackError:
            return 0
        self._say(undone=done.release, undoes=release)
        return 1

    def _amounts(self) -> list[int]:
        # Never none: if a day looked as before by chance, the evidence built on it would be current again.
        count = self.random.randint(1, 3)
        self.amount += count
        return list(range(self.amount - count, self.amount))

    def _say(self, **document: object) -> None:
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(document) + "\n")


def _write(folder: Path, number: int, commits: int, seed: int) -> None:
    writer, made = _Writer(folder, number, seed), 0
    while made < commits:
        made += writer.step()
    writer.world.close()


def _read(folder: Path, number: int) -> None:
    place, last, test = layout(folder).published_path("sales"), -1, multiprocessing.parent_process()
    with (folder / f"reader_{number}.jsonl").open("a", encoding="utf-8") as out:
        # If the test is killed, the reader must not poll for ever.
        while test is not None and test.is_alive() and not (folder / STOP).exists():
            if not is_table(place):
                continue
            version = table_at(place).version()
            assert version >= last, f"the table went back from version {last} to {version}"
            last = version
            out.write(
                json.dumps({"version": version, "rows": fingerprint(amounts_of(rows_of(place, COLUMNS, version)))})
                + "\n"
            )
            time.sleep(_BETWEEN_POLLS)
