"""Finds the work of a live run: days built without all deliveries, and gaps, which are due days never published."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backfill_assets.core.canonical import digest
from backfill_assets.core.days import ONE_DAY, Days, day_range
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import LayoutError, SourceError, StorageError
from backfill_assets.core.release import DataFile, layout_digest
from backfill_assets.core.unit import LateData, Unit, UnitState
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import to_extract
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.sources import OnMissing
from backfill_assets.evidence.contents import published_among
from backfill_assets.evidence.gaps import gaps_of, last_schedule
from backfill_assets.evidence.inputs import Deliveries, force_by_day, origins
from backfill_assets.evidence.known_deliveries import KnownDeliveries, SourceFingerprints, new_files
from backfill_assets.evidence.references import reference_fingerprints
from backfill_assets.storage.sources import SourceFile
from backfill_assets.warehouse import OnWarehouse

_Active = Mapping[dt.date, Sequence[DataFile]]
_NewFiles = Mapping[dt.date, Sequence[SourceFile]]
_Prints = Mapping[dt.date, Mapping[str, str]]
_OVER: Final = frozenset({UnitState.published, UnitState.rolled_back, UnitState.discarded})


@dataclass(frozen=True)
class LateDay:
    """A published day whose deliveries changed since it was built, or a `gap`: a due day without content.

    Deliveries came, or were superseded or withdrawn, for any day of its window. `files` are those that have not landed yet;
    empty if the run of another day has landed all. `deliveries` is a digest of all files behind the day, landed or not, the
    published files, the references of a gap, and the units that have held the day: it changes only if one comes or goes, or a
    claim or hold ends.
    `waits_for` says what keeps a live run from working on the day: a claim of an open unit, or a hold, in any dataset
    of its release group; empty if nothing does. The unit of an earlier live run of the day does not: it is resumed.
    `unjudged` says that all has landed, and the live run that has claimed the day did not come to check it.
    """

    dataset: str
    day: dt.date
    files: tuple[str, ...]
    deliveries: str
    waits_for: str = ""
    gap: bool = False
    unjudged: bool = False


@dataclass(frozen=True)
class LateDeliveries(OnWarehouse):
    """Finds late deliveries and gaps in the days that a dataset watches; reads sources and the ledger, lands nothing."""

    fingerprints: SourceFingerprints | None = None

    def of(self, name: str) -> tuple[LateDay, ...]:
        """The late days and the gaps of one dataset; none of a draft, before its first release, or without a source."""
        loaded = self.datasets[name]
        dataset, table = loaded.dataset, self.tables[name]
        active = table.active() if table.exists() else {}
        published = {day for day, files in active.items() if files}
        if dataset.source is None or dataset.is_draft or not published:
            return ()
        newest = max(published)
        # A file of the first watched day is also for the days that look ahead to it.
        first = newest - (dataset.live.watch_days - 1 + dataset.lookahead_days) * ONE_DAY
        watched = [d for d in day_range(_with_its_month(dataset, first), newest) if d >= dataset.start]
        unpublished = self._unpublished(name, published)
        looked_at = tuple(sorted({*watched, *unpublished}))
        landed = self._known(name, dataset.fact_delivery_days(looked_at))
        known = force_by_day(dataset, landed)
        new = self._new(loaded, dataset.fact_delivery_days(looked_at), landed)
        files = {day: [f for d in dataset.fact_delivery_days((day,)) for f in new.get(d, ())] for day in looked_at}
        # A day that was released without rows has no file either: only `shown` tells it from a gap.
        late = {day for day in looked_at if files[day]} | self._overtaken(dataset, looked_at, known, active)
        # An extract writes the day's own file, and a dataset whose days may be empty needs none; for all others it has to be there.
        may_be_empty = dataset.feed.on_missing is OnMissing.pass_ and not dataset.is_monthly
        runnable = may_be_empty or dataset.extract is not None
        gaps = {day for day in unpublished if runnable or known.get(dataset.due(day)) or new.get(dataset.due(day))}
        shown = published_among(self.ledger, table, name, late | gaps)
        days = tuple(sorted((late & shown) | (gaps - shown)))
        # A published day is stale if a reference changes, not late.
        waits, prints = self._waits(name, days), self._references(loaded, tuple(d for d in days if d not in shown))
        judged = self._judged(dataset, [d for d in gaps - shown if not waits.get(d) and not files[d]], known, prints)
        landed_late = [d for d in late & shown if not waits.get(d) and not files[d]]
        unjudged = self.ledger.claims(name, landed_late).keys() - self._judged(dataset, landed_late, known, {})
        over = self.ledger.units(name, _OVER) if days else ()
        settled = dataset.newest_settled(self.clock.now())
        return tuple(
            LateDay(
                name, d, tuple(f.path for f in files[d]),
                _digest(dataset, d, (known, new), active.get(d, ()), over, prints.get(d), _ahead(dataset, d, settled)),
                waits.get(d, ""), d not in shown, d in unjudged,
            )
            for d in days if d not in judged
        )  # fmt: skip

    def _unpublished(self, name: str, published: Collection[dt.date]) -> Days:
        """Watched days without a file that the daily schedule has already taken, from the first published day on."""
        dataset = self.datasets[name].dataset
        if dataset.end is not None:
            # A closed history has no schedule: backfills complete it.
            return ()
        moment = last_schedule([self.datasets[member].dataset for member in self._group(name)], self.clock.now())
        first = dataset.live_day(moment) - (dataset.live.watch_days - 1) * ONE_DAY
        return tuple(d for d in gaps_of(dataset, published, moment) if d >= _with_its_month(dataset, first))

    def _references(self, loaded: LoadedDataset, days: Days) -> _Prints:
        """The fingerprints of the references of unpublished days; none if they cannot be read: building a day reports it."""
        try:
            return reference_fingerprints(loaded, self.layout, days) if loaded.dataset.references and days else {}
        except (LayoutError, SourceError, StorageError):
            return {}

    def _judged(
        self, dataset: Dataset, gaps: Collection[dt.date], known: Deliveries, references: _Prints
    ) -> set[dt.date]:
        """The days that a live run has built and checked from exactly these deliveries: another run changes nothing.

        Unless a reference has changed since: the version of a day may come after its rows.
        """
        judged, over = set(), dataset.newest_settled(self.clock.now())
        for day, unit in self.ledger.claims(dataset.name, gaps).items():
            found = self.ledger.evidence(unit, dataset.name, [day]).get((dataset.name, day))
            live = self.ledger.unit(unit).live
            if (
                not live
                or found is None
                or not found.verdicts
                or found.deliveries != origins(dataset, day, known, over)
            ):
                continue
            if all(found.references.get(name) == now for name, now in references.get(day, {}).items()):
                judged.add(day)
        return judged

    def moved(self, name: str) -> Days:
        """All published days that were built from other deliveries than those in force now; opens no source file.

        Days without rows count up to the newest one with rows. There are none while a source that is a table cannot be read:
        building a day reports it.
        """
        active, known = self._published(name)
        changed = self._overtaken(self.datasets[name].dataset, _span(active), known, active)
        return tuple(sorted(published_among(self.ledger, self.tables[name], name, changed)))

    def not_landed(self, name: str) -> Mapping[dt.date, Sequence[str]]:
        """The files that a launch would land, by each day that may have rows of them; lists the sources of all days.

        Also those that an extract would write again, because a day was taken before it was over.

        Raises:
            SourceError: it is unclear to which day a file belongs, or the sources cannot be listed.
            LayoutError: a link leads out of the sources folder.
            StorageError: a store fails.
        """
        loaded, now = self.datasets[name], self.clock.now()
        if not loaded.dataset.lands_files:
            return {}
        days = day_range(loaded.dataset.start, max(loaded.dataset.start, loaded.dataset.newest_day(now)))
        window = loaded.dataset.fact_delivery_days(days)
        known = self.ledger.deliveries(name, window)
        new = {day: [file.path for file in files] for day, files in self._new(loaded, window, known).items()}
        for day in to_extract(loaded.dataset, window, known, now):
            new.setdefault(day, [loaded.dataset.landing.template.filled(day)])
        behind = {day: [p for d in loaded.dataset.fact_delivery_days((day,)) for p in new.get(d, ())] for day in days}
        return {day: paths for day, paths in behind.items() if paths}

    def gone(self, name: str) -> Days:
        """The published days whose rows the source table no longer has: they stay, and cannot be built again."""
        dataset = self.datasets[name].dataset
        if dataset.lands_files:
            return ()  # `backfill status` asks for every dataset: spare it a look at all published days
        active, known = self._published(name)
        return tuple(
            sorted(day for day in self._changed(dataset, active, known, active) if _is_gone(dataset, day, known))
        )

    def _published(self, name: str) -> tuple[_Active, Deliveries]:
        """The files of the published days, and the deliveries in force behind them; nothing if they cannot be known."""
        dataset, table = self.datasets[name].dataset, self.tables[name]
        active = {day: files for day, files in table.active().items() if files} if table.exists() else {}
        if dataset.source is None or not active:
            return {}, {}
        try:
            return active, force_by_day(dataset, self._known(name, dataset.fact_delivery_days(_span(active))))
        except (LayoutError, SourceError, StorageError):
            return {}, {}

    def _known(self, name: str, window: Days) -> tuple[Delivery, ...]:
        return KnownDeliveries(self.warehouse, self.fingerprints).of(name, window)

    def _new(self, loaded: LoadedDataset, window: Days, landed: Sequence[Delivery]) -> _NewFiles:
        return new_files(loaded, self.layout, window, landed) if loaded.dataset.lands_files else {}

    def _overtaken(
        self, dataset: Dataset, days: Collection[dt.date], known: Deliveries, active: _Active
    ) -> set[dt.date]:
        """The changed days that can be built again."""
        return {day for day in self._changed(dataset, days, known, active) if not _is_gone(dataset, day, known)}

    def _changed(self, dataset: Dataset, days: Collection[dt.date], known: Deliveries, active: _Active) -> set[dt.date]:
        """Days that were built from other deliveries than those in force now, or from the same in another order.

        It compares deliveries, not times: a landing that began before a release may reach the ledger after it.
        """
        contents = self.ledger.contents(dataset.name, {day: layout_digest(active.get(day, ())) for day in days})
        built = {day: found.deliveries for day, found in contents.items() if found.deliveries is not None}
        over = dataset.newest_settled(self.clock.now())
        return {day for day, own in built.items() if origins(dataset, day, known, over) != own}

    def _waits(self, name: str, days: Days) -> Mapping[dt.date, str]:
        """Why a live run of each day would be refused; a live run works on all datasets of the release group."""
        if not days:
            return {}
        # The late dataset comes last: its own reasons replace those of the other members.
        members = sorted(self._group(name), key=lambda member: member == name)
        passes = all(self.datasets[member].dataset.late_data is LateData.publish for member in members)
        claims = {} if passes else {member: self.ledger.claims(member, days) for member in members}
        joined = self._joined(claims)
        waits: dict[dt.date, str] = {}
        for member, claimed in claims.items():
            of = "" if member == name else f"{member} is "
            waits |= {d: f"{of}claimed by open unit {u}" for d, u in claimed.items() if (d, u) not in joined}
        for member in members:
            of = "" if member == name else f"{member} is "
            waits |= {hold.target[1]: f"{of}on hold: {hold.reason}" for hold in self.ledger.holds(member, days)}
        return waits

    def _group(self, name: str) -> tuple[str, ...]:
        return next(group for group in self.catalog.live_groups if name in group)

    def _joined(self, claims: Mapping[str, Mapping[dt.date, str]]) -> set[tuple[dt.date, str]]:
        """Days with the live units that a live run of the day resumes: a failed one, or one that corrects the day."""
        claimed = {(day, unit) for found in claims.values() for day, unit in found.items()}
        units = {unit: self.ledger.unit(unit) for _, unit in claimed}
        starts = {member: self.datasets[member].dataset.start for member in claims}
        return {
            (day, unit)
            for day, unit in claimed
            if units[unit].live
            and set(units[unit].days) == {(name, day) for name, first in starts.items() if day >= first}
        }


def _span(days: Collection[dt.date]) -> Days:
    return day_range(min(days), max(days)) if days else ()


def _with_its_month(dataset: Dataset, day: dt.date) -> dt.date:
    # A file of a month has all of its days; none may fall out of what is watched before the others.
    return day.replace(day=1) if dataset.is_monthly else day


def _is_gone(dataset: Dataset, day: dt.date, known: Deliveries) -> bool:
    """Whether a source table has no row that a day could be built from: it may keep only its newest days."""
    return not dataset.lands_files and not any(known.get(own) for own in dataset.delivery_days((day,)))


def _ahead(dataset: Dataset, day: dt.date, settled: dt.date) -> Days:
    """The days that a day looks ahead to and that are not over: what a run produces also depends on them."""
    return tuple(d for d in dataset.days_ahead(day) if d > settled)


def _digest(
    dataset: Dataset,
    day: dt.date,
    files: tuple[Deliveries, _NewFiles],
    published: Sequence[DataFile],
    over: Sequence[Unit],
    references: Mapping[str, str] | None,
    ahead: Days,
) -> str:
    """Identifies the state that a run should produce: the files behind a day after the new ones have landed.

    It includes the published files, because the same source files may return after others replaced them.
    """
    known, new = files
    window = dataset.fact_delivery_days((day,))
    behind = {(w, d.path): d.fingerprint for w in window for d in known.get(w, ())}
    behind |= {(w, f.path): f.fingerprint for w in window for f in new.get(w, ())}
    found = sorted((path, content) for (_, path), content in behind.items())
    # A unit that a sensor has given up, or a live run, is no reason to try the same again.
    ended = sorted(
        unit.id
        for unit in over
        if day in unit.targets.get(dataset.name, ())
        and not ((unit.live or unit.catches_up) and unit.state is UnitState.discarded)
    )
    more = [*([dict(references)] if references else []), *([list(ahead)] if ahead else [])]
    return digest([found, layout_digest(published), ended, *more])[:16]
