"""Late deliveries: source files that published days were not built from, landed or not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from backfill_assets.campaigns.building.standing import published_among
from backfill_assets.catalog import LoadedDataset
from backfill_assets.domain.canonical import digest
from backfill_assets.domain.dataset import Dataset, LateData
from backfill_assets.domain.days import ONE_DAY, day_range
from backfill_assets.domain.deliveries import heads
from backfill_assets.domain.inputs import Deliveries, force_by_day, origins
from backfill_assets.domain.lineage import release_groups, upstreams_of
from backfill_assets.domain.ports import Ledger, PublishedTable
from backfill_assets.domain.release import DataFile, layout_digest
from backfill_assets.domain.work import Delivery
from backfill_assets.lakehouse.layout import Layout
from backfill_assets.lakehouse.road import SourceFile, discover

Days = tuple[dt.date, ...]
_Active = Mapping[dt.date, Sequence[DataFile]]
_NewFiles = Mapping[dt.date, Sequence[SourceFile]]


@dataclass(frozen=True)
class LateDay:
    """A published day that was built from other deliveries than those that count now: some came, or were superseded or withdrawn.

    `files` are those that have not landed yet; none if another day's run has landed all. `deliveries` is a digest of all
    files behind the day, landed or not, and of what is published: equal as long as nothing else comes or goes.
    `waits_for` says what keeps a live run from working on the day: an open unit's claim, or a hold, in any dataset of its
    release group; empty if nothing does. The unit of an earlier live run of the same day does not: another one goes on with it.
    """

    dataset: str
    day: dt.date
    files: tuple[str, ...]
    deliveries: str
    waits_for: str = ""


@dataclass(frozen=True)
class LateDeliveries:
    """Looks for late deliveries in the days that a dataset watches; reads files and the ledger, lands nothing."""

    ledger: Ledger
    datasets: Mapping[str, LoadedDataset]
    tables: Mapping[str, PublishedTable]
    layout: Layout

    def of(self, name: str) -> tuple[LateDay, ...]:
        """The late days of one dataset; none before its first release, and none without a source."""
        loaded = self.datasets[name]
        dataset, table = loaded.dataset, self.tables[name]
        active = table.active() if table.exists() else {}
        published = {day for day, files in active.items() if files}
        if dataset.source is None or not published:
            return ()
        newest = max(published)
        watched = [d for d in day_range(newest - (dataset.live.watch_days - 1) * ONE_DAY, newest) if d >= dataset.start]
        landed = self.ledger.deliveries(name, dataset.fact_delivery_days(tuple(watched)))
        known = force_by_day(dataset, landed)
        new = self._new(loaded, dataset.fact_delivery_days(tuple(watched)), landed)
        files = {day: [f for d in dataset.fact_delivery_days((day,)) for f in new.get(d, ())] for day in watched}
        late = {day for day, found in files.items() if found} | self._overtaken(dataset, watched, known, active)
        days = tuple(sorted(published_among(self.ledger, table, name, late)))
        waits = self._waits(name, days)
        return tuple(
            LateDay(
                name,
                d,
                tuple(f.path for f in files[d]),
                _digest(dataset, d, known, new, active.get(d, ())),
                waits.get(d, ""),
            )
            for d in days
        )

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
        for file in discover(loaded, self.layout, window, sorted(landed, key=lambda one: one.order)):
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
        groups = release_groups(upstreams_of({n: loaded.dataset for n, loaded in self.datasets.items()}))
        # The late dataset last: what is said of it counts before what is said of others.
        members = sorted(next(group for group in groups if name in group), key=lambda member: member == name)
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

    def _joined(self, claims: Mapping[str, Mapping[dt.date, str]]) -> set[tuple[dt.date, str]]:
        """Days with the live units that a live run of the day goes on with: one that failed, and whatever corrects it."""
        claimed = {(day, unit) for found in claims.values() for day, unit in found.items()}
        units = {unit: self.ledger.unit(unit) for _, unit in claimed}
        return {
            (day, unit)
            for day, unit in claimed
            if units[unit].live and set(units[unit].days) == {(member, day) for member in claims}
        }


def _digest(dataset: Dataset, day: dt.date, known: Deliveries, new: _NewFiles, files: Sequence[DataFile]) -> str:
    """Names the state that a run is to bring: the files behind a day once the new ones have landed.

    Together with what is published: the same files may be behind a day again after others were.
    """
    window = dataset.fact_delivery_days((day,))
    behind = {(w, d.path): d.fingerprint for w in window for d in known.get(w, ())}
    behind |= {(w, f.path): f.fingerprint for w in window for f in new.get(w, ())}
    return digest([sorted((path, found) for (_, path), found in behind.items()), layout_digest(files)])[:16]
