"""What a live run has to do: days that were not built from all that was delivered, and gaps: due days that were never published."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backfill_assets.core.canonical import digest
from backfill_assets.core.days import ONE_DAY, day_range
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.release import DataFile, layout_digest
from backfill_assets.core.unit import LateData, Unit, UnitState
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import heads
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.sources import OnMissing
from backfill_assets.evidence.basis import published_among
from backfill_assets.evidence.inputs import Deliveries, force_by_day, origins
from backfill_assets.storage.files import SourceFile, discover
from backfill_assets.warehouse import OnWarehouse


def gaps_of(dataset: Dataset, days: Collection[dt.date], now: dt.datetime) -> tuple[dt.date, ...]:
    """The due days that are missing among these published days, from the first one on.

    Where the history grows, up to the newest day that the daily pipeline takes at an aware moment; otherwise up to the newest
    published one: how far a closed history is to be filled, nobody has said.
    """
    if not days:
        return ()
    newest = max(days) if dataset.end is not None else max(*days, dataset.live_day(now))
    return tuple(sorted(set(day_range(min(days), newest)) - set(days)))


Days = tuple[dt.date, ...]
_Active = Mapping[dt.date, Sequence[DataFile]]
_NewFiles = Mapping[dt.date, Sequence[SourceFile]]
_OVER: Final = frozenset({UnitState.published, UnitState.rolled_back, UnitState.discarded})
_PATIENCE: Final = dt.timedelta(minutes=10)
"""For so long after `live.at` a day is left to the daily schedule."""


@dataclass(frozen=True)
class LateDay:
    """A published day that was built from other deliveries than those that count now, or a `gap`: a due day without content.

    Some deliveries came, or were superseded or withdrawn. `files` are those that have not landed yet; none if another day's
    run has landed all. `deliveries` is a digest of all files behind the day, landed or not, of what is published, and of the
    units that have held it: it stays the same until something else comes or goes, or until a claim or a hold has ended.
    `waits_for` says what keeps a live run from working on the day: an open unit's claim, or a hold, in any dataset of its
    release group; empty if nothing does. The unit of an earlier live run of the same day does not: another one goes on with it.
    """

    dataset: str
    day: dt.date
    files: tuple[str, ...]
    deliveries: str
    waits_for: str = ""
    gap: bool = False


@dataclass(frozen=True)
class LateDeliveries(OnWarehouse):
    """Looks for late deliveries and gaps in the days that a dataset watches; reads files and the ledger, lands nothing."""

    def of(self, name: str) -> tuple[LateDay, ...]:
        """The late days and the gaps of one dataset; none before its first release, and none without a source."""
        loaded = self.datasets[name]
        dataset, table = loaded.dataset, self.tables[name]
        active = table.active() if table.exists() else {}
        published = {day for day, files in active.items() if files}
        if dataset.source is None or not published:
            return ()
        newest = max(published)
        watched = [d for d in day_range(newest - (dataset.live.watch_days - 1) * ONE_DAY, newest) if d >= dataset.start]
        unpublished = self._unpublished(name, published)
        looked_at = tuple(sorted({*watched, *unpublished}))
        landed = self.ledger.deliveries(name, dataset.fact_delivery_days(looked_at))
        known = force_by_day(dataset, landed)
        new = self._new(loaded, dataset.fact_delivery_days(looked_at), landed)
        files = {day: [f for d in dataset.fact_delivery_days((day,)) for f in new.get(d, ())] for day in looked_at}
        late = {day for day in watched if files[day]} | self._overtaken(dataset, watched, known, active)
        # What may be empty lacks nothing; of all others the file of the day itself has to be there.
        empty = dataset.landing.on_missing is OnMissing.pass_
        gaps = {day for day in unpublished if empty or known.get(day) or new.get(day)}
        shown = published_among(self.ledger, table, name, late | gaps)
        days = tuple(sorted((late & shown) | (gaps - shown)))
        waits = self._waits(name, days)
        judged = self._judged(dataset, [d for d in gaps - shown if not waits.get(d) and not files[d]], known)
        over = self.ledger.units(name, _OVER) if days else ()
        return tuple(
            LateDay(
                name, d, tuple(f.path for f in files[d]), _digest(dataset, d, (known, new), active.get(d, ()), over),
                waits.get(d, ""), d not in shown,
            )
            for d in days if d not in judged
        )  # fmt: skip

    def _unpublished(self, name: str, published: Collection[dt.date]) -> Days:
        """The days without a file that the daily schedule has taken: from the first published day on, as far back as is watched."""
        dataset = self.datasets[name].dataset
        if dataset.end is not None:
            # A closed history has no schedule: it is for backfills to complete it.
            return ()
        at = dt.time.fromisoformat(max(self.datasets[member].dataset.live.at for member in self._group(name)))
        moment = (self.clock.now() - _PATIENCE).astimezone(dataset.zone)
        moment -= ONE_DAY if moment.time() < at else dt.timedelta(0)
        newest = dataset.live_day(moment)
        return tuple(d for d in gaps_of(dataset, published, moment) if d > newest - dataset.live.watch_days * ONE_DAY)

    def _judged(self, dataset: Dataset, gaps: Collection[dt.date], known: Deliveries) -> set[dt.date]:
        """The gaps that a live run has built and checked from just these deliveries: the same again would bring nothing else."""
        judged = set()
        for day, unit in self.ledger.claims(dataset.name, gaps).items():
            found = self.ledger.evidence(unit, dataset.name, [day]).get((dataset.name, day))
            live = self.ledger.unit(unit).live
            if live and found is not None and found.verdicts and found.deliveries == origins(dataset, day, known):
                judged.add(day)
        return judged

    def moved(self, name: str) -> Days:
        """All published days that were built from other deliveries than those that have landed and count now; opens no file."""
        dataset, table = self.datasets[name].dataset, self.tables[name]
        active = table.active() if table.exists() else {}
        published = sorted(day for day, files in active.items() if files)
        if dataset.source is None or not published:
            return ()
        known = force_by_day(dataset, self.ledger.deliveries(name, dataset.fact_delivery_days(tuple(published))))
        return tuple(sorted(self._overtaken(dataset, published, known, active)))

    def _new(self, loaded: LoadedDataset, window: Days, landed: Sequence[Delivery]) -> _NewFiles:
        # What lies at a path counts: content that was landed once and superseded since comes anew.
        last = {place: one.fingerprint for place, one in heads(landed).items()}
        new: dict[dt.date, list[SourceFile]] = {}
        # Of two contents of one size and time of change the newer one is taken for what lies there.
        found = discover(loaded, self.layout, window, sorted(landed, key=lambda one: one.order))
        for file in found:
            if last.get((file.day, file.path)) != file.fingerprint:
                new.setdefault(file.day, []).append(file)
        return new

    def _overtaken(
        self, dataset: Dataset, days: Collection[dt.date], known: Deliveries, active: _Active
    ) -> set[dt.date]:
        """Days that were built from other deliveries, or from others as the newest, than those that have landed and count now.

        Told by the deliveries themselves: a landing that began before a release may reach the ledger after it.
        """
        contents = self.ledger.contents(dataset.name, {day: layout_digest(active.get(day, ())) for day in days})
        built = {day: found.deliveries for day, found in contents.items() if found.deliveries is not None}
        return {day for day, own in built.items() if origins(dataset, day, known) != own}

    def _waits(self, name: str, days: Days) -> Mapping[dt.date, str]:
        """What a live run of each day would be refused for: it works on all datasets of the release group."""
        if not days:
            return {}
        # The late dataset last: what is said of it counts before what is said of others.
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
        return next(group for group in self.catalog.groups if name in group)

    def _joined(self, claims: Mapping[str, Mapping[dt.date, str]]) -> set[tuple[dt.date, str]]:
        """Days with the live units that a live run of the day goes on with: one that failed, and whatever corrects it."""
        claimed = {(day, unit) for found in claims.values() for day, unit in found.items()}
        units = {unit: self.ledger.unit(unit) for _, unit in claimed}
        return {
            (day, unit)
            for day, unit in claimed
            if units[unit].live and set(units[unit].days) == {(member, day) for member in claims}
        }


def _digest(
    dataset: Dataset,
    day: dt.date,
    files: tuple[Deliveries, _NewFiles],
    published: Sequence[DataFile],
    over: Sequence[Unit],
) -> str:
    """Names the state that a run is to bring: the files behind a day once the new ones have landed.

    Together with what is published: the same files may be behind a day again after others were.
    """
    known, new = files
    window = dataset.fact_delivery_days((day,))
    behind = {(w, d.path): d.fingerprint for w in window for d in known.get(w, ())}
    behind |= {(w, f.path): f.fingerprint for w in window for f in new.get(w, ())}
    found = sorted((path, content) for (_, path), content in behind.items())
    # A live unit that somebody has given up is no reason to try the same again.
    ended = sorted(
        unit.id
        for unit in over
        if day in unit.targets.get(dataset.name, ()) and not (unit.live and unit.state is UnitState.discarded)
    )
    return digest([found, layout_digest(published), ended])[:16]
