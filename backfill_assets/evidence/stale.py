"""Finds published days that would come out differently if they were built today, or might, and why."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

from backfill_assets.core.content import UNKNOWN_ORIGIN, Content, KeptDay
from backfill_assets.core.days import Days, day_range
from backfill_assets.core.errors import BackfillError
from backfill_assets.core.release import layout_digest
from backfill_assets.dataset.parts import CodePart, code_parts
from backfill_assets.delta.opening import DeltaError
from backfill_assets.evidence.basis import CurrentBasis
from backfill_assets.evidence.contents import Contents, published_among
from backfill_assets.evidence.inputs import GOLDEN
from backfill_assets.evidence.late_deliveries import LateDeliveries
from backfill_assets.warehouse import OnWarehouse

_EMPTY: Final = layout_digest(())


class StaleCause(StrEnum):
    """Why a published day would come out differently today, or might."""

    source = "source"
    reading = "reading"
    code = "code"
    columns = "columns"
    checks = "checks"
    reference = "reference"
    upstream = "upstream"
    contract = "contract"

    @property
    def words(self) -> str:
        """The same in a sentence."""
        return _WORDS[self]


_WORDS: Final[Mapping[StaleCause, str]] = {
    StaleCause.source: "deliveries came, changed or were withdrawn",
    StaleCause.reading: "the source is read differently",
    StaleCause.code: "the models changed",
    StaleCause.columns: "the declared columns changed",
    StaleCause.checks: "checks or golden sources changed: the rows stay, verdicts may not",
    StaleCause.reference: "a reference file changed",
    StaleCause.upstream: "upstreams, or their content, changed",
    StaleCause.contract: "key, time zone, deduplication, references or the days that are read changed",
}
ALL: Final = frozenset(StaleCause)
DATA: Final = frozenset({StaleCause.source, StaleCause.reference, StaleCause.upstream})
"""Causes that come with data. All others are decisions of people, who also say how far back they reach."""
_OF_INPUTS: Final = frozenset({StaleCause.reading, StaleCause.contract, StaleCause.reference, StaleCause.checks})
"""What explains other inputs, besides other deliveries."""
_FAILURES: Final = (BackfillError, DeltaError, OSError)


@dataclass(frozen=True)
class StaleDays:
    """Published days of a dataset that would come out differently today, or might, with the causes of each.

    `files` are those that a launch would land, by day. `gone` are published days that a source table no longer has: they cannot be
    built again. `unknown` are published days of which it is not known which code built them: other writers wrote them, or an older
    version of this project. `kept` are days that would be stale for more causes if nobody had said that they stay as they are.
    `contents` say what is known of the stale days. `problems` say what could not be compared.
    """

    dataset: str
    causes: Mapping[dt.date, frozenset[StaleCause]] = field(default_factory=dict)
    files: Mapping[dt.date, Sequence[str]] = field(default_factory=dict)
    gone: Days = ()
    unknown: Days = ()
    kept: Mapping[dt.date, KeptDay] = field(default_factory=dict)
    contents: Mapping[dt.date, Content] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @cached_property
    def days(self) -> Days:
        """All stale days."""
        return tuple(sorted(self.causes))

    @cached_property
    def by_cause(self) -> Mapping[StaleCause, Days]:
        """The stale days of each cause that there is."""
        found = {cause: tuple(day for day in self.days if cause in self.causes[day]) for cause in StaleCause}
        return {cause: days for cause, days in found.items() if days}

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of `files`, each once."""
        return tuple(sorted({path for paths in self.files.values() for path in paths}))

    @property
    def refreshable(self) -> Days:
        """The stale days that can be built again."""
        return tuple(day for day in self.days if day not in self.gone)


_Causes = dict[dt.date, set[StaleCause]]


@dataclass(frozen=True)
class Staleness(OnWarehouse):
    """Compares what published days were built from with what they would be built from now.

    It reads no rows, except those of a source table whose files were not measured yet.
    """

    basis: CurrentBasis

    def of(
        self, name: str, among: Collection[StaleCause] = ALL, days: Sequence[dt.date] | None = None, *, look: bool = False
    ) -> StaleDays:  # fmt: skip
        """The stale days of one dataset, for causes `among` these, among `days` or all that are published.

        With `look`, it lists the sources of all days, and says which days are gone from a source table; without, files count that
        have landed. An upstream whose files another writer wrote counts as changed if its number of rows differs. Days outside
        the history that `dataset.yaml` declares are left out.
        """
        try:
            return self._of(name, frozenset(among), days, look=look)
        except _FAILURES as error:
            # One table that cannot be read must not hide all others.
            return StaleDays(name, problems=(str(error),))

    def all(
        self, names: Iterable[str] | None = None, among: Collection[StaleCause] = ALL, *, look: bool = False
    ) -> tuple[StaleDays, ...]:
        """The stale days of every dataset that has any, or that cannot be compared; by default among all datasets."""
        found = (self.of(name, among, look=look) for name in (self.datasets if names is None else names))
        return tuple(one for one in found if one.days or one.problems)

    def _of(self, name: str, among: frozenset[StaleCause], days: Sequence[dt.date] | None, *, look: bool) -> StaleDays:
        table = self.tables[name]
        if not table.exists():
            return StaleDays(name)
        filled = {day for day, files in table.active(days).items() if files}
        history = self._history(name, filled) if days is None else days
        dataset = self.datasets[name].dataset
        last = dataset.end or dt.date.max
        asked = frozenset(day for day in history if dataset.start <= day <= last)
        empty = dict.fromkeys((day for day in asked if day not in filled), _EMPTY)
        known = Contents(self.warehouse).supposed_contents(name, asked & filled)
        built = {**self.ledger.contents(name, empty), **known}
        problems, unknown = list[str](), set[dt.date]()
        # Each release asks for the upstream alone, and need not wait for the rest.
        if look or among != {StaleCause.upstream}:
            codes = self.ledger.codes(name)
            unknown = {day for day in asked if (day in filled or day in built) and _parts(built.get(day)) not in codes}
        causes = self._compared(name, built, among, problems)
        kept = self._kept(name, causes, built, among, problems)
        files = self._not_landed(name, problems) if look and StaleCause.source in among else {}
        for day in files:
            causes.setdefault(day, set()).add(StaleCause.source)
        wanted = {day: frozenset(own & among) for day, own in causes.items() if own & among and day in asked}
        # An attempt that was never released may also have built a day without rows.
        shown = filled | published_among(self.ledger, table, name, (wanted.keys() | unknown) - filled)
        stale = [day for day in sorted(wanted) if day in shown]
        return StaleDays(
            name,
            {day: wanted[day] for day in stale},
            {day: found for day, found in files.items() if day in shown},
            tuple(day for day in self._late.gone(name) if day in asked) if look else (),
            tuple(sorted(unknown & shown)),
            {day: kept[day] for day in sorted(kept)},
            {day: built[day] for day in stale if day in built},
            tuple(dict.fromkeys(problems)),
        )

    def _compared(
        self, name: str, built: Mapping[dt.date, Content], among: frozenset[StaleCause], problems: list[str]
    ) -> _Causes:
        """Why days that were built so would come out differently; what keeps it from comparing them is added to `problems`."""
        causes = _Causes()
        if among != {StaleCause.upstream}:
            self._by_code(name, built, causes)
        if StaleCause.upstream in among:
            self._by_upstream(name, built, causes)
        if {StaleCause.source, StaleCause.reference, StaleCause.checks} & among:
            problems += self._by_inputs(name, built, causes)
        return causes

    def _kept(
        self, name: str, causes: _Causes, built: Mapping[dt.date, Content], among: frozenset[StaleCause], problems: list[str]
    ) -> Mapping[dt.date, KeptDay]:  # fmt: skip
        """The words that make a difference; removes the `causes` that they end.

        Of a day that somebody keeps, what has changed since the word counts: as if it had been built then.
        """
        suspects = {day: built[day] for day, own in causes.items() if own & among and day in built}
        words = {one.day: one for one in reversed(self.ledger.kept_days(name, suspects))} if suspects else {}
        contents = {d: one.content for d, one in words.items() if one.content and one.about == suspects[d].origin}
        since = self._compared(name, contents, among, problems) if contents else {}
        kept = {}
        for day in contents:
            # Back at the code by which it was built, a day needs no word.
            if not causes[day] <= since.get(day, set()):
                causes[day], kept[day] = since.get(day, set()), words[day]
        return kept

    @property
    def _late(self) -> LateDeliveries:
        return LateDeliveries(self.warehouse, self.basis.fingerprints)

    def _by_code(self, name: str, built: Mapping[dt.date, Content], causes: _Causes) -> None:
        """The days that were built by code with another part."""
        now = code_parts(self.datasets[name])
        changed = {
            parts: {StaleCause(part.value) for part in CodePart if digests.get(part) != now[part]}
            for parts, digests in self.ledger.codes(name).items()
        }
        for day, one in built.items():
            if found := changed.get(_parts(one)):
                causes.setdefault(day, set()).update(found)

    def _by_upstream(self, name: str, built: Mapping[dt.date, Content], causes: _Causes) -> None:
        """The days that were built from other content of upstreams, or from other days of them."""
        if self.datasets[name].dataset.upstream:
            now = self.basis.supposed_upstream(name, tuple(built))
            for day, one in built.items():
                if one.upstream not in {now[day], UNKNOWN_ORIGIN}:
                    causes.setdefault(day, set()).add(StaleCause.upstream)

    def _by_inputs(self, name: str, built: Mapping[dt.date, Content], causes: _Causes) -> Iterator[str]:
        """The days whose deliveries, references or golden sources changed; yields what keeps it from comparing them."""
        known = {day: one for day, one in built.items() if one.inputs is not None and one.deliveries is not None}
        if not known:
            return
        try:
            now = self.basis.behind(name, known)
        except _FAILURES as error:
            yield str(error)
            for day in self._late.moved(name):
                causes.setdefault(day, set()).add(StaleCause.source)
            return
        dataset = self.datasets[name].dataset
        gone = frozenset(() if dataset.lands_files else self._late.gone(name))
        for day, one in known.items():
            if one.inputs == now[day].inputs:
                continue
            own = causes.setdefault(day, set())
            own |= set(_changed_references(one.references, now[day].references))
            if dataset.source is None or day in gone:
                continue
            # A source that is read differently lands files again, which have other names then.
            reread = bool(own & {StaleCause.reading, StaleCause.contract})
            other = now[day].has_other_files(one.deliveries or ()) if reread else one.deliveries != now[day].deliveries
            # If nothing else explains it, the times or the order of the same deliveries changed.
            if other or not own & _OF_INPUTS:
                own.add(StaleCause.source)

    def _not_landed(self, name: str, problems: list[str]) -> Mapping[dt.date, Sequence[str]]:
        try:
            return self._late.not_landed(name)
        except _FAILURES as error:
            problems.append(str(error))
            return {}

    def _history(self, name: str, filled: Collection[dt.date]) -> Days:
        """The days that may have been released without rows: up to the newest day of the dataset or an upstream."""
        dataset = self.datasets[name].dataset
        tables = (self.tables[above] for above in dataset.upstream)
        newest = (max(table.active(), default=dataset.start) for table in tables if table.exists())
        today = dataset.newest_day(self.clock.now())
        return day_range(dataset.start, max([*newest, *filled, today], default=dataset.start))


def _parts(content: Content | None) -> str:
    return (content.parts if content is not None else None) or ""


def _changed_references(then: Mapping[str, str] | None, now: Mapping[str, str]) -> Iterator[StaleCause]:
    """What kind of reference has another fingerprint; which there are is declared, and no change of data."""
    for name in (then or {}).keys() & now.keys():
        if (then or {})[name] != now[name]:
            yield StaleCause.checks if name.startswith(GOLDEN) else StaleCause.reference
