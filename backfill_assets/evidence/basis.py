"""What the evidence of a day is based on now: its inputs, its upstream days, and the published content."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from backfill_assets.core.canonical import digest
from backfill_assets.core.content import UNKNOWN_ORIGIN, Content
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.release import DataFile, Manifest, ReleaseKind, ReleaseState, layout_digest
from backfill_assets.core.unit import ReleaseRecord, Unit
from backfill_assets.dataset.checks import checks_of
from backfill_assets.dataset.consistency import IS_PROVISIONAL
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.reading import HeldDay
from backfill_assets.delta.table import PublishedTable
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
    plain_fingerprints,
    reference_fingerprints,
    reference_stamps,
    staged_inputs,
)
from backfill_assets.evidence.known_deliveries import KnownDeliveries, SourceFingerprints
from backfill_assets.ledger.open import Ledger
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location
from backfill_assets.warehouse import OnWarehouse


def effective(records: Sequence[ReleaseRecord]) -> Mapping[dt.date, Manifest]:
    """The release that each day should show: the newest one that has not been rolled back for that day.

    `records` are all releases of one dataset, newest first.
    """
    stacks: dict[dt.date, list[Manifest]] = {}
    for record in reversed(records):
        manifest = record.manifest
        if record.state is not ReleaseState.finalized:
            continue
        for swap in manifest.days:
            stack = stacks.setdefault(swap.day, [])
            names = [below.release for below in stack]
            if manifest.kind is not ReleaseKind.rollback:
                stack.append(manifest)
            elif manifest.undoes in names:
                # The rollback also removes all releases on top of the undone one.
                del stack[names.index(manifest.undoes) :]
    return {day: stack[-1] for day, stack in stacks.items() if stack}


def published_among(
    ledger: Ledger, table: PublishedTable, dataset: str, days: Collection[dt.date]
) -> frozenset[dt.date]:
    """The days that are published: readers see rows of them, or a release states that they have none."""
    active = table.active(days) if days and table.exists() else {}
    filled = frozenset(day for day, files in active.items() if files)
    rest = frozenset(days) - filled
    # Manifests of long histories are big, so they are read only for days without a file.
    return filled | (rest & effective(ledger.releases(dataset)).keys() if rest else frozenset())


class ContentFingerprints(SourceFingerprints, Protocol):
    """Reads content when the layout of files changed: only changed content makes evidence stale."""

    def of(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Order-independent fingerprints of the published days, as in `Side.fingerprint`."""
        ...


_Files = Mapping[dt.date, tuple[DataFile, ...]]


@dataclass(frozen=True)
class Contents(OnWarehouse):
    """Finds the content of published days; it is empty for a day without files.

    Without `fingerprints`, no rows are read: files that were never measured equal only themselves.
    """

    fingerprints: ContentFingerprints | None = None

    def of(self, name: str, days: Collection[dt.date]) -> dict[dt.date, str]:
        """The actual contents; files that were never measured are read once, and the result is stored."""
        known, unknown = self._known_and_unknown(name, days)
        if unknown and self.fingerprints is not None:
            known |= self._measured(name, unknown, self.fingerprints)
        return _by_day(days, known, unknown)

    def supposed(self, name: str, days: Collection[dt.date]) -> dict[dt.date, str]:
        """The same without reading rows: unmeasured files count as the released content if they have as many rows."""
        known, unknown = self._known_and_unknown(name, days)
        return _by_day(days, known | self._alike(name, unknown), unknown)

    def supposed_contents(self, name: str, days: Collection[dt.date]) -> dict[dt.date, Content]:
        """The same with what they were built from; days of which nothing is known are left out."""
        known, unknown = self._known_and_unknown(name, days)
        return known | self._alike(name, unknown)

    def _alike(self, name: str, unknown: _Files) -> dict[dt.date, Content]:
        released = self._released(name, unknown)
        alike = {day: files for day, files in released.items() if _rows(files) == _rows(unknown[day]) is not None}
        return self._known(name, alike)

    def _known_and_unknown(self, name: str, days: Collection[dt.date]) -> tuple[dict[dt.date, Content], _Files]:
        """The known contents, and the files of days that were never measured."""
        active = self._active(name, days)
        known = self._known(name, active)
        return known, {day: files for day, files in active.items() if day not in known}

    def _measured(self, name: str, unknown: _Files, fingerprints: ContentFingerprints) -> dict[dt.date, Content]:
        before = self._known(name, self._released(name, unknown))
        found = fingerprints.of(name, tuple(unknown))
        # List the files again after the reading: if they changed, it is unknown which ones were read.
        still = self._active(name, unknown)
        measured = {
            day: before[day]
            if day in before and before[day].fingerprint == found[day]
            else Content(found[day], UNKNOWN_ORIGIN)
            for day, files in unknown.items()
            if layout_digest(still.get(day, ())) == layout_digest(files)
        }
        self.ledger.add_contents(name, {day: (layout_digest(unknown[day]), c) for day, c in measured.items()})
        return measured

    def _active(self, name: str, days: Collection[dt.date]) -> _Files:
        table = self.tables[name]
        active = table.active(days) if days and table.exists() else {}
        return {day: files for day, files in active.items() if files}

    def _known(self, name: str, files: _Files) -> dict[dt.date, Content]:
        return dict(self.ledger.contents(name, {day: layout_digest(own) for day, own in files.items()}))

    def _released(self, name: str, days: Collection[dt.date]) -> _Files:
        """The files that the release behind each of these days added."""
        if not days:
            return {}
        standing = effective(self.ledger.releases(name))
        wanted = {release.release: release for day in days if (release := standing.get(day)) is not None}
        return {
            swap.day: swap.add
            for release in wanted.values()
            for swap in release.days
            if swap.day in days and standing[swap.day] is release and swap.add
        }


def _rows(files: Collection[DataFile]) -> int | None:
    counts = [file.rows for file in files]
    return None if None in counts else sum(count or 0 for count in counts)


def _by_day(days: Collection[dt.date], known: Mapping[dt.date, Content], unknown: _Files) -> dict[dt.date, str]:
    unlike_all = {day: f"files {layout_digest(files)}" for day, files in unknown.items()}
    return dict.fromkeys(days, "") | unlike_all | {day: content.fingerprint for day, content in known.items()}


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
        references = reference_fingerprints(loaded, self.layout, days)
        golden = golden_fingerprints(loaded, self.layout, days)
        return {day: {**references[day], **golden[day]} for day in days}

    def _known(self, name: str, window: Collection[dt.date]) -> Deliveries:
        return force_by_day(self.datasets[name].dataset, self.known(name, window))


def _upstream_digest(dataset: Dataset, day: dt.date, contents: Mapping[str, Mapping[dt.date, str]]) -> str:
    return digest(
        [[name, [contents[name][d] for d in dataset.upstream_days(name, (day,))]] for name in dataset.upstream]
    )
