"""The files of references: their fingerprints by day, and the versions that published days see.

With `as_of: published`, a version is named by the SHA-256 of the file, which is also the fingerprint of each day that was built
with it. A copy of each such version is kept in the folder of the published table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backfill_assets.core.canonical import digest
from backfill_assets.core.content import UNKNOWN_ORIGIN
from backfill_assets.core.days import Days, format_days
from backfill_assets.core.errors import SourceError, StorageError
from backfill_assets.core.release import Manifest
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.references import as_published, seen_alike
from backfill_assets.evidence.contents import Contents, building
from backfill_assets.evidence.versions import fingerprints_of_days
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Copied, Location
from backfill_assets.storage.sources import read_from, require_no_folder
from backfill_assets.warehouse import OnWarehouse

FingerprintsByDay = Mapping[dt.date, Mapping[str, str]]
"""Fingerprints of references by day and name."""
_NONE: Final[FingerprintsByDay] = {}
_SHOWN: Final = 12


@dataclass(frozen=True)
class References(OnWarehouse):
    """The references that each day of a dataset would be built from now."""

    def of(self, name: str, days: Collection[dt.date]) -> FingerprintsByDay:
        """Fingerprints of every reference by day and name; see `reference_fingerprints`."""
        loaded = self.datasets[name]
        published = self._published(name, days) if as_published(loaded.dataset.references) else _NONE
        return reference_fingerprints(loaded, self.layout, days, published)

    def lost(self, name: str) -> Mapping[str, Days]:
        """The versions that published days see and that are nowhere, or damaged: the names of their copies, and the days."""
        loaded, lost = self.datasets[name], dict[str, Days]()
        kept = as_published(loaded.dataset.references)
        active = self.tables[name].active() if kept and self.tables[name].exists() else {}
        published = self._published(name, [day for day, files in active.items() if files]) if active else _NONE
        for one in kept:
            known = _kept(loaded, one, published).keys()
            seen = _versions(loaded, self.layout, one, known, published) if known else {}
            for version, days in _by_version(seen).items():
                if version != UNKNOWN_ORIGIN and not self._is_whole(loaded, one, version, days):
                    file = _copy(loaded, self.layout, one, version).name
                    lost[file] = tuple(sorted({*lost.get(file, ()), *days}))
        return lost

    def _is_whole(self, loaded: LoadedDataset, name: str, version: str, days: Days) -> bool:
        copy = _copy(loaded, self.layout, name, version)
        if copy.is_there():
            return _sha256(copy, name) == version
        try:
            file_of(loaded, self.layout, name, version, days)
        except SourceError:
            return False
        return True

    def _published(self, name: str, days: Collection[dt.date]) -> FingerprintsByDay:
        """The fingerprints that published days were built with; `UNKNOWN_ORIGIN` instead of what is not known."""
        unknown = dict.fromkeys(as_published(self.datasets[name].dataset.references), UNKNOWN_ORIGIN)
        contents = Contents(self.warehouse).supposed_contents(name, days)
        found = {day: one.references for day, one in contents.items() if one.references is not None}
        # Manifests of long histories are big, so they are read only for days without a row, and after another writer.
        if rest := set(days) - found.keys():
            table = self.tables[name]
            active = table.active(rest) if table.exists() else {}
            found |= dict.fromkeys((day for day, files in active.items() if files and day in rest), unknown)
            for day, release in building(self.ledger.releases(name)).items():
                if day in rest:
                    known = None if release is None else self._released(name, day, release)
                    found[day] = unknown if known is None else known
        return found

    def _released(self, name: str, day: dt.date, release: Manifest) -> Mapping[str, str] | None:
        """The fingerprints in the evidence behind a day of a release; None if the ledger does not have that evidence."""
        said = next(swap.evidence for swap in release.days if swap.day == day)
        evidence = self.ledger.evidence(release.unit, name, [day]).get((name, day))
        # Evidence that does not name the parts of its code is from before references were noted.
        is_known = evidence is not None and evidence.hash == said and evidence.parts
        return evidence.references if evidence is not None and is_known else None


def plain_fingerprints(loaded: LoadedDataset, layout: Layout) -> Mapping[str, str]:
    """SHA-256 of every reference file without versions by the name of the reference; needs no Spark.

    Raises:
        SourceError: a file is missing, or disappears during the reading.
    """
    plain = seen_alike(loaded.dataset.references)
    return {name: _sha256(reference_file(loaded, layout, name), name) for name in plain}


def reference_fingerprints(
    loaded: LoadedDataset, layout: Layout, days: Collection[dt.date], published: FingerprintsByDay = _NONE
) -> FingerprintsByDay:
    """Fingerprints of every reference by day and name; of one with `valid`, of the rows of all days that the day reads.

    `published` has those that published days were built with, for references with `as_of: published`.

    Raises:
        SourceError: a file is missing, cannot be read, or disappears during the reading.
    """
    plain, dataset = plain_fingerprints(loaded, layout), loaded.dataset
    kept = as_published(dataset.references)
    found = {day: dict(plain) for day in days}
    for name in kept:
        for day, version in _versions(loaded, layout, name, days, published).items():
            found[day][name] = version
    valid = dataset.versioned - kept
    window = {day: dataset.days_read((day,)) for day in days} if valid else {}
    read = {day for own in window.values() for day in own}
    for name in valid:
        reference = dataset.references[name]
        prints = fingerprints_of_days(reference, reference_file(loaded, layout, name), reference.path, read)
        for day, own in window.items():
            found[day][name] = digest([prints[one] for one in own])
    return found


def _versions(
    loaded: LoadedDataset, layout: Layout, name: str, days: Collection[dt.date], published: FingerprintsByDay
) -> Mapping[dt.date, str]:
    """The version that each day sees: that of `_kept`, otherwise the current one."""
    kept, reference = _kept(loaded, name, published), loaded.dataset.references[name]
    rest = set(days) - kept.keys()
    if reference.valid is not None:
        # Before `as_of: published` was declared, the fingerprint was that of the rows that are valid on the day.
        copied = {
            one for one in {*kept.values()} if one == UNKNOWN_ORIGIN or _copy(loaded, layout, name, one).is_there()
        }
        if unsure := {day for day, version in kept.items() if version not in copied}:
            prints = fingerprints_of_days(reference, reference_file(loaded, layout, name), reference.path, unsure)
            rest |= {day for day in unsure if kept[day] == digest([prints[day]])}
    if rest:
        kept |= dict.fromkeys(rest, _sha256(reference_file(loaded, layout, name), name))
    return kept


def _kept(loaded: LoadedDataset, name: str, published: FingerprintsByDay) -> dict[dt.date, str]:
    """The version of published days that were built with this reference, unless they are renewed.

    What a published day was built with may not be known: no file is called `UNKNOWN_ORIGIN`, so the day is not built.
    """
    renewed = loaded.dataset.references[name].renewed
    return {day: then[name] for day, then in published.items() if day not in renewed and name in then}


def file_of(loaded: LoadedDataset, layout: Layout, name: str, version: str, days: Collection[dt.date]) -> Location:
    """The file with the version of a reference that days see, whose bytes were read to be sure: its copy, or the source.

    Raises:
        SourceError: the version is in neither, or its copy is damaged.
    """
    who = f"{loaded.name} {format_days(days, most=3)}"
    renew = f"let these days take the current version: references.{name}.renew in {loaded.folder / 'dataset.yaml'}"
    if version == UNKNOWN_ORIGIN:
        raise SourceError(
            f"{who}: it is not known with which version of reference {name} these days were published: the table was adopted with "
            f"them, another writer wrote them, or the ledger was restored; {renew}"
        )
    copy = _copy(loaded, layout, name, version)
    if not copy.is_there():
        # Files of this reference had another ending once.
        copy = next(copy.parent.fitting(f"{version}.*"), copy)
    is_there = copy.is_there()
    if is_there and _sha256(copy, name) == version:
        return copy
    source = layout.source(loaded.dataset.references[name].path)
    if source.is_there() and _sha256(source, name) == version:
        return source
    if is_there:
        raise SourceError(
            f"{copy}: its bytes are no longer those of the version of reference {name} that {who} sees; put that file there "
            f"again from a backup, or {renew}"
        )
    raise SourceError(
        f"{copy}: the version of reference {name} that {who} sees is neither there nor in the sources. If the file was replaced "
        f"just now, launch again; otherwise put that file there again from a backup, or {renew}"
    )


def keep_versions(loaded: LoadedDataset, layout: Layout, prints: FingerprintsByDay) -> None:
    """Keep a copy of each version that days with these fingerprints see, if there is none yet.

    Raises:
        SourceError: the file was replaced since its fingerprint was taken, or a version is lost or damaged.
        StorageError: the disk is full, or this user may not write there.
    """
    for name in as_published(loaded.dataset.references):
        for version, days in days_by_version(prints, name).items():
            copy, file = _copy(loaded, layout, name, version), file_of(loaded, layout, name, version, days)
            if file.parent == copy.parent:
                continue
            try:
                with read_from(f"the file of reference {name}"):
                    copy.copy_from(file, Copied(file.size(), version))
            except StorageError:
                if _sha256(file, name) == version:
                    raise
                raise SourceError(
                    f"{file}: was replaced while it was copied; launch again, and put files there by renaming them"
                ) from None


def days_by_version(prints: FingerprintsByDay, name: str) -> Mapping[str, Days]:
    """The days that see each version of a reference."""
    return _by_version({day: own[name] for day, own in prints.items()})


def _by_version(seen: Mapping[dt.date, str]) -> Mapping[str, Days]:
    found: dict[str, list[dt.date]] = {}
    for day, version in sorted(seen.items()):
        found.setdefault(version, []).append(day)
    return {version: tuple(days) for version, days in found.items()}


def shown_version(path: str, version: str) -> str:
    """A version of a file for messages."""
    return f"{path}, version {version[:_SHOWN]}"


def _copy(loaded: LoadedDataset, layout: Layout, name: str, version: str) -> Location:
    """Where the copy of a version is; Spark tells by the end of a path whether a file is compressed."""
    suffix = Path(loaded.dataset.references[name].path).suffix
    return layout.kept_reference(loaded.name, f"{version}{suffix}")


def _sha256(file: Location, name: str) -> str:
    with read_from(f"the file of reference {name}"):
        return file.sha256()


def reference_file(loaded: LoadedDataset, layout: Layout, name: str) -> Location:
    """The file of a reference.

    Raises:
        SourceError: it is not there.
        LayoutError: a link leads out of the sources folder.
    """
    relative = loaded.dataset.references[name].path
    file = layout.source(relative)
    if not file.is_there():
        raise SourceError(
            f"{loaded.name}: the file of reference {name}, {relative}, is not in {layout.sources}; "
            f"put it there, or correct references.{name}.path in dataset.yaml"
        )
    require_no_folder(file, relative)
    return file
