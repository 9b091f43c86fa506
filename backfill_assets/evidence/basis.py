"""What the evidence of a day is based on now: its inputs and its upstream days."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from backfill_assets.core.canonical import digest
from backfill_assets.core.content import UNKNOWN_ORIGIN, Content
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.release import layout_digest
from backfill_assets.core.unit import Unit
from backfill_assets.dataset.checks import checks_of
from backfill_assets.dataset.consistency import IS_PROVISIONAL
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.reading import HeldDay
from backfill_assets.evidence.contents import ContentFingerprints, Contents
from backfill_assets.evidence.inputs import (
    Deliveries,
    awaited_in,
    by_delivery_day,
    deliveries_of,
    fact_inputs,
    force_by_day,
    golden_fingerprints,
    names_ever,
    origins,
    origins_ever,
    reference_stamps,
    staged_inputs,
)
from backfill_assets.evidence.known_deliveries import KnownDeliveries
from backfill_assets.evidence.references import References, plain_fingerprints
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location
from backfill_assets.warehouse import OnWarehouse

PUBLISHED: Final = ""
"""The place of days that are read from the published table. All other places are shadow folders."""


def table_of_place(layout: Layout, name: str, place: str) -> Location:
    """The folder of the table that days at a place are read from."""
    return layout.published_path(name) if place == PUBLISHED else layout.shadow_path(name, place)


@dataclass(frozen=True)
class UpstreamDays:
    """Days of an upstream by place: the folder of a shadow below its published table, or `PUBLISHED`."""

    loaded: LoadedDataset
    places: Mapping[str, tuple[dt.date, ...]]


@dataclass(frozen=True)
class Behind:
    """What a day is built from besides its upstream, and the digest of it all.

    `deliveries` are named as by `origins`, and `names` gives all that each of them ever had, in the same order: it has another one
    after it was read again; few days ask for them. `references` are the fingerprints of references and golden sources by name.
    """

    inputs: str
    deliveries: tuple[str, ...] = ()
    references: Mapping[str, str] = field(default_factory=dict)
    names: Callable[[], tuple[frozenset[str], ...]] = tuple

    def has_other_files(self, deliveries: Sequence[str]) -> bool:
        """Whether a delivery came, went or changed its place since a day was built from these, whatever was read again."""
        names = self.names()
        return len(deliveries) != len(names) or any(one not in own for one, own in zip(deliveries, names, strict=True))


class BasisNow(Protocol):
    """What new evidence would be based on now."""

    def inputs(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Digest of the inputs that each day would be built from now."""
        ...

    def upstream(self, dataset: str, days: Collection[dt.date], unit: Unit | None) -> Mapping[dt.date, str]:
        """Digest of the upstream contents that each day would be built from now; empty without upstreams.

        Upstream days that the unit holds count as the unit built them, all others as they are published.
        """
        ...

    def code(self, dataset: str) -> str:
        """The current code version of the dataset."""
        ...

    def checks(self, dataset: str) -> tuple[str, ...]:
        """Names of the checks whose verdicts a release requires."""
        ...


_ByDay = Mapping[dt.date, tuple[Delivery, ...]]
_ContentsOf = Callable[[str, tuple[dt.date, ...]], Mapping[dt.date, str]]


@dataclass(frozen=True)
class CurrentBasis(OnWarehouse):
    """The port `BasisNow` on the loaded datasets, the known deliveries, the reference files and the tables."""

    fingerprints: ContentFingerprints | None = None

    def inputs(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Digest of the inputs that the fact of each day would be built from now."""
        return self._digests(dataset, days, window=True)

    def staged_inputs(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Digest of the inputs that each staged day would be built from now."""
        return self._digests(dataset, days, window=False)

    def to_stage(self, dataset: str, days: Collection[dt.date]) -> tuple[Mapping[dt.date, str], tuple[Delivery, ...]]:
        """The inputs of staged days in one read of the deliveries: digests as `staged_inputs`, deliveries in force."""
        known = self._known(dataset, self.datasets[dataset].dataset.delivery_days(tuple(sorted(days))))
        return self._digests_of(dataset, days, known, window=False), tuple(d for own in known.values() for d in own)

    def known(self, dataset: str, window: Collection[dt.date]) -> tuple[Delivery, ...]:
        """All known deliveries of some delivery days; see `KnownDeliveries`."""
        return self._deliveries.of(dataset, window)

    def source_files(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, HeldDay]:
        """The files behind these days in a source table; see `KnownDeliveries`."""
        return self._deliveries.files(dataset, self.datasets[dataset].dataset.fact_delivery_days(tuple(days)))

    def in_force(self, dataset: str, days: Collection[dt.date]) -> tuple[Delivery, ...]:
        """The deliveries in force behind the facts of these days."""
        window = self.datasets[dataset].dataset.fact_delivery_days(tuple(days))
        return tuple(d for own in self._known(dataset, window).values() for d in own)

    def behind(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, Behind]:
        """What the fact of each day would be built from now, in one read."""
        found = self.datasets[dataset].dataset
        known = self._known(dataset, found.fact_delivery_days(tuple(sorted(days))))
        references, over = self._references(dataset, days), found.newest_settled(self.clock.now())
        return {
            day: Behind(
                fact_inputs(found, day, known, references[day], over), origins(found, day, known, over), references[day],
                partial(names_ever, found, day, known, over),
            )
            for day in days
        }  # fmt: skip

    def reference_stamps(self, dataset: str) -> Mapping[str, tuple[object, ...]]:
        """What tells each reference and golden file from any other that was ever at its path."""
        return reference_stamps(self.datasets[dataset], self.layout)

    def added_and_dropped(self, dataset: str, days: Collection[dt.date]) -> tuple[_ByDay, _ByDay]:
        """By day: deliveries in force that are missing in its published content, and those in it that no longer count.

        Leaves out days of unknown origin, and deliveries of the other days of a window: they have no row of the day.
        """
        found = self.datasets[dataset].dataset
        if found.source is None or not days:
            return {}, {}
        # Another writer, such as a compaction, may have written the files: this finds out which content they have.
        self._published.of(dataset, days)
        contents = self._known_contents(dataset, days)
        built = {day: set(one.deliveries) for day, one in contents.items() if one.deliveries is not None}
        known = self.known(dataset, found.delivery_days(tuple(days)))
        force, all_known = force_by_day(found, known), by_delivery_day(known)
        now = {day: deliveries_of(found, day, force) for day in built}
        came = {day: tuple(d for d in now[day] if not origins_ever(d) & own) for day, own in built.items()}
        went = {
            day: tuple(d for d in deliveries_of(found, day, all_known) if origins_ever(d) & own and d not in now[day])
            for day, own in built.items()
        }
        return came, went

    def upstream(self, dataset: str, days: Collection[dt.date], unit: Unit | None = None) -> Mapping[dt.date, str]:
        """Digest of the upstream contents that each day would be built from now; empty without upstreams.

        It covers content, not files: compacting an upstream, or building it again with an equal result, is no change.
        """
        return self._upstream(dataset, days, lambda name, wanted: self._contents(name, wanted, unit))

    def upstream_moved(self, dataset: str, built: Mapping[dt.date, str]) -> frozenset[dt.date]:
        """The days whose published content was built from upstream content with other digests than these."""
        if not self.datasets[dataset].dataset.upstream or not built:
            return frozenset()
        contents = self._known_contents(dataset, built)
        known = {day: one.upstream for day, one in contents.items() if one.upstream != UNKNOWN_ORIGIN}
        return frozenset(day for day, upstream in known.items() if upstream != built[day])

    def provisional(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, frozenset[str]]:
        """The days that are published as provisional, with the names of those that they awaited when they were built."""
        if IS_PROVISIONAL not in self.tables[dataset].types():
            return {}
        contents = self._published.supposed_contents(dataset, days)
        return {day: names for day, one in contents.items() if (names := awaited_in(one.deliveries or ()))}

    def of_unknown_origin(self, dataset: str, days: Collection[dt.date]) -> tuple[dt.date, ...]:
        """The days of which only their published rows can tell whether they are provisional; none where no days are."""
        if self.datasets[dataset].dataset.provisional is None or IS_PROVISIONAL not in self.tables[dataset].types():
            return ()
        contents = self._published.supposed_contents(dataset, days)
        return tuple(day for day in days if day not in contents or contents[day].deliveries is None)

    def _known_contents(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, Content]:
        active = self.tables[dataset].active(days)
        return self.ledger.contents(dataset, {d: layout_digest(files) for d, files in active.items() if files})

    def supposed_upstream(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """As `upstream` for published days, without reading rows, for quick checks; see `Contents.supposed`."""
        return self._upstream(dataset, days, self._published.supposed)

    def _upstream(self, dataset: str, days: Collection[dt.date], contents_of: _ContentsOf) -> Mapping[dt.date, str]:
        found = self.datasets[dataset].dataset
        if not found.upstream:
            return dict.fromkeys(days, "")
        contents = {name: contents_of(name, found.upstream_days(name, tuple(days))) for name in found.upstream}
        return {day: _upstream_digest(found, day, contents) for day in days}

    def code(self, dataset: str) -> str:
        """The code version that is loaded."""
        return self.datasets[dataset].code_version

    def checks(self, dataset: str) -> tuple[str, ...]:
        """Names of the checks whose verdicts a release requires."""
        return tuple(check.name for check in checks_of(self.datasets[dataset].dataset))

    def _contents(self, name: str, days: tuple[dt.date, ...], unit: Unit | None) -> Mapping[dt.date, str]:
        held = frozenset(unit.targets.get(name, ())) if unit is not None else frozenset()
        own = tuple(day for day in days if day in held)
        built = self.ledger.evidence(unit.id, name, own) if unit is not None and own else {}
        contents = dict.fromkeys(own, "not built yet")
        # Evidence without verdicts has no fingerprint yet: days built from it would have to be built again.
        contents |= {day: e.measured.shadow.fingerprint for (_, day), e in built.items() if e.verdicts}
        return contents | self._published.of(name, tuple(day for day in days if day not in held))

    @property
    def _published(self) -> Contents:
        return Contents(self.warehouse, self.fingerprints)

    @property
    def _deliveries(self) -> KnownDeliveries:
        return KnownDeliveries(self.warehouse, self.fingerprints)

    def _digests(self, name: str, days: Collection[dt.date], *, window: bool) -> Mapping[dt.date, str]:
        dataset, wanted = self.datasets[name].dataset, tuple(sorted(days))
        known = self._known(name, dataset.fact_delivery_days(wanted) if window else dataset.delivery_days(wanted))
        return self._digests_of(name, days, known, window=window)

    def _digests_of(
        self, name: str, days: Collection[dt.date], known: Deliveries, *, window: bool
    ) -> Mapping[dt.date, str]:
        loaded, wanted = self.datasets[name], tuple(sorted(days))
        dataset = loaded.dataset
        if not window:
            # Staged rows depend neither on golden sources nor on versions.
            references = plain_fingerprints(loaded, self.layout)
            return {day: staged_inputs(dataset, day, known, references) for day in wanted}
        behind = self._references(name, wanted)
        over = dataset.newest_settled(self.clock.now())
        return {day: fact_inputs(dataset, day, known, behind[day], over) for day in wanted}

    def _references(self, name: str, days: Collection[dt.date]) -> Mapping[dt.date, Mapping[str, str]]:
        """The fingerprints of the references and golden sources of each day, by name."""
        loaded = self.datasets[name]
        references = References(self.warehouse).of(name, days)
        golden = golden_fingerprints(loaded, self.layout, days)
        return {day: {**references[day], **golden[day]} for day in days}

    def _known(self, name: str, window: Collection[dt.date]) -> Deliveries:
        return force_by_day(self.datasets[name].dataset, self.known(name, window))


def _upstream_digest(dataset: Dataset, day: dt.date, contents: Mapping[str, Mapping[dt.date, str]]) -> str:
    return digest(
        [[name, [contents[name][d] for d in dataset.upstream_days(name, (day,))]] for name in dataset.upstream]
    )
