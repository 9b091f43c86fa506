"""Whatever interrupts whom, readers see a unit of two tables in both or in neither, and the ledger says which."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill_assets.core.errors import BackfillError, LedgerError, ReadBackError
from backfill_assets.core.release import UNDO, ReleaseKind, ReleaseState
from backfill_assets.core.unit import ReleaseRecord, UnitState
from backfill_assets.release.publish import Released
from backfill_assets.warehouse import Warehouse
from backfill_assets_tests.harness.between import Died
from backfill_assets_tests.harness.examples import examples
from backfill_assets_tests.harness.objects import new_folder
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.faults.kit import DAYS, OLD
from backfill_assets_tests.unit.faults.two_tables import BOTH

pytestmark = [pytest.mark.faults, pytest.mark.slow]

CALLS = frozenset(
    {"store_manifest", "restore_manifest", "intend", "intend_undo", "commit", "abandon", "finalize_publication"}
    | {"finalize", "hold", "move", "seal"}
)
"""Every call by which publishing, rolling back, discarding and reconciling change something."""
LEASES_END = dt.timedelta(minutes=5)
MOST_CALLS = 24


class Kind(StrEnum):
    """What a process does."""

    launch = auto()
    build = auto()
    publish = auto()
    roll_back = auto()
    discard = auto()
    reconcile = auto()


class End(StrEnum):
    """What ends a process, or a call of it."""

    dies = auto()
    is_refused = auto()
    arrives_late = auto()
    is_not_answered = auto()


@dataclass(frozen=True)
class Act:
    """What one process does to one of the units; others act before calls of it, and one call, or commit, may be its last."""

    kind: Kind
    unit: int = 0
    at_once: bool = False
    meanwhile: Mapping[int, Act] = field(default_factory=dict)
    stops: tuple[int, End] | None = None


class Play:
    """Processes that act on one warehouse."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, BOTH)
        self.units: list[str] = []
        self.late: list[Callable[[], object]] = []
        self.processes, self.amount = 0, 1
        for name in BOTH:
            self.world.released(OLD, name)
        self.act(Act(Kind.launch))

    def act(self, act: Act) -> None:
        """Another process acts, after all leases of others, unless at once; what it may not do is refused."""
        if not act.at_once:
            self.world.clock.advance(LEASES_END)
        with self._process() as world, suppress(BackfillError, Died):
            self._do(act, world, _Calls(self, act).watched(world))

    @contextmanager
    def _process(self) -> Iterator[World]:
        self.processes += 1
        first = self.world
        with closing(World(first.folder, BOTH, 1000 * self.processes, clock=first.clock)) as world:
            world.wait = dt.timedelta(0)
            yield world

    def _do(self, act: Act, world: World, warehouse: Warehouse) -> None:
        unit = self.units[act.unit % len(self.units)] if self.units else ""
        match act.kind:
            case Kind.launch:
                self.units.append(world.open_unit(dict.fromkeys(BOTH, DAYS)).id)
                self.build(world, self.units[-1])
            case Kind.build if world.ledger.unit(unit).state is UnitState.open:
                self.build(world, unit)
            case Kind.build:
                pass
            case Kind.publish:
                replace(world.publisher(), warehouse=warehouse).release(unit)
            case Kind.roll_back:
                for record in self.newest(unit):
                    replace(world.rollback(), warehouse=warehouse).execute(record.manifest.release, "no")
            case Kind.discard:
                replace(world.reconcile(), warehouse=warehouse).discard(unit, world.wait)
            case Kind.reconcile:
                replace(world.reconcile(), warehouse=warehouse).run()

    def build(self, world: World, unit: str) -> None:
        """Build all days of a unit, each with a number that no other build has."""
        self.amount += 1
        for name in BOTH:
            world.build(world.ledger.unit(unit), name, {d: [self.amount] for d in DAYS})

    def newest(self, unit: str) -> list[ReleaseRecord]:
        """The releases of a unit's last publication that is finalized."""
        publications = [p for p in self.publications(unit) if all(r.state is ReleaseState.finalized for r in p)]
        return list(publications[-1]) if publications else []

    def publications(self, unit: str) -> list[list[ReleaseRecord]]:
        """The releases of each publication of a unit, oldest first."""
        found: dict[dt.datetime, list[ReleaseRecord]] = defaultdict(list)
        for record in self.world.ledger.releases(unit=unit):
            if record.manifest.kind is ReleaseKind.publish:
                found[record.manifest.created_at].append(record)
        return [found[at] for at in sorted(found)]

    def deliver(self) -> None:
        """The store makes the commits whose processes gave them up, where nobody else made that version."""
        while self.late:
            with suppress(BackfillError):
                self.late.pop()()

    def contents(self) -> list[dict[dt.date, list[int]]]:
        return [self.world.content(name) for name in BOTH]


@dataclass
class _Calls:
    """Counts the calls of one process that change something."""

    play: Play
    act: Act
    count: int = 0
    commits: int = 0

    def watched(self, world: World) -> Warehouse:
        plain = world.warehouse()
        tables: Any = {name: _Watched(table, self) for name, table in world.tables.items()}
        ledger: Any = _Watched(plain.ledger, self)
        return replace(plain, ledger=ledger, tables=tables)

    def call(self, name: str, made: Callable[..., object], *args: object, **options: object) -> object:
        self.count += 1
        self.commits += name == "commit"
        if other := self.act.meanwhile.get(self.count):
            self.play.act(other)
        number, end = self.act.stops or (0, End.dies)
        if end is End.arrives_late and number:
            stops = name == "commit" and self.commits == 1 + number % len(BOTH)
        else:
            stops = number == self.count
        if not stops:
            return made(*args, **options)
        match end:
            case End.dies:
                raise Died
            case End.arrives_late:
                self.play.late.append(partial(made, *args, **options))
            case End.is_not_answered:
                made(*args, **options)
                raise ReadBackError("no answer") if name == "commit" else LedgerError("no answer")
            case End.is_refused:
                pass
        raise BackfillError("refused")


class _Watched:
    def __init__(self, port: object, calls: _Calls) -> None:
        self._port, self._calls = port, calls

    def __getattr__(self, name: str) -> object:
        found = getattr(self._port, name)
        return partial(self._calls.call, name, found) if name in CALLS else found


def judge(play: Play) -> None:
    """After a reconciliation: nothing is left to do, each publication counts whole or not at all, and as its unit says."""
    play.world.clock.advance(LEASES_END)
    play.deliver()
    play.world.reconcile().run()
    assert play.world.reconcile().run() == ()
    assert [f for f in play.world.doctor().examine() if f.severity != "info"] == []
    rolled_back = False
    for unit in play.units:
        records = {r.manifest.release: r for r in play.world.ledger.releases(unit=unit)}
        finalized = {release: r.manifest for release, r in records.items() if r.state is ReleaseState.finalized}
        gone = {m.undoes for m in finalized.values() if m.undoes}
        rolled_back |= any(release + UNDO not in finalized for release in gone)
        shown = set[str]()
        for publication in play.publications(unit):
            assert not [r for r in publication if r.state is ReleaseState.intent]
            releases = [r.manifest.release for r in publication]
            # Whether users rolled it back, of one table or of both, is another question.
            counts = {release in finalized and release + UNDO not in finalized for release in releases}
            assert (len(publication), len(counts)) == (len(BOTH), 1), publication
            shown |= finalized.keys() & set(releases) - gone
        assert shown or play.world.ledger.unit(unit).state is not UnitState.published
    if not rolled_back:
        assert play.contents()[0] == play.contents()[1]


def assert_it_goes_on(play: Play) -> None:
    """Each unit that is open can be built and published, and nobody's days are blocked."""
    for unit in play.units:
        if play.world.ledger.unit(unit).state is UnitState.open:
            play.build(play.world, unit)
            assert isinstance(play.world.publisher().release(unit), Released)
            assert play.contents() == [{d: [play.amount] for d in DAYS}] * 2
    judge(play)


LEAVES = st.builds(Act, st.sampled_from(Kind), st.integers(0, 3), st.integers(0, 4).map(lambda n: n == 0))
STOPS = st.none() | st.tuples(st.integers(1, MOST_CALLS), st.sampled_from(End))


def interrupted(inner: st.SearchStrategy[Act]) -> st.SearchStrategy[Act]:
    """Acts that others interrupt, and that may end before their end."""
    working = st.sampled_from([Kind.publish, Kind.publish, Kind.roll_back, Kind.discard, Kind.reconcile])
    others = st.dictionaries(st.integers(1, MOST_CALLS), inner, max_size=2)
    return st.builds(Act, working, st.integers(0, 3), st.just(value=False), others, STOPS)


ACTS = st.lists(st.recursive(LEAVES, interrupted, max_leaves=4), min_size=1, max_size=5)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(ACTS)
def whatever_interrupts_whom(acts: list[Act]) -> None:
    folder = new_folder("any_interruption_")
    play = Play(folder)
    try:
        for act in acts:
            play.act(act)
        judge(play)
        assert_it_goes_on(play)
    finally:
        play.world.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_readers_see_a_unit_whole_or_not_at_all_whatever_interrupts_whom(observed: Observed) -> None:
    observed.injected(
        "processes that publish, roll back, discard and reconcile interrupt each other, die or are not answered"
    )
    whatever_interrupts_whom()
    observed.found("each unit counts in both tables or in neither; open units are published in the end")
