"""Takes a backup: of the ledger and the tables at one moment, while runs go on."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from backfill_assets.backup.folder import Backup, BackupFolder, SavedFiles, SavedTable, is_data, sizes_in
from backfill_assets.core.days import format_days
from backfill_assets.core.errors import BackupError, LockHeldError, PreconditionError, StorageError
from backfill_assets.core.layers import Layer
from backfill_assets.core.release import SHADOW, restorable_until, shadow_of
from backfill_assets.core.text import is_name, number_of
from backfill_assets.core.unit import AttemptState, UnitState
from backfill_assets.delta.opening import LOG, is_table, newest_commit
from backfill_assets.delta.reading import SEALED, sealed_path, sizes_at
from backfill_assets.evidence.references import References
from backfill_assets.ledger.copies import save
from backfill_assets.ledger.open import Ledger, open_ledger
from backfill_assets.release.adopt import require_sole_writer
from backfill_assets.release.finish import WAIT, Checkpoint, no_checkpoint, publish_locks, require_tables
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.layout import OWNER, REFERENCES, RELEASES, SET_ASIDE
from backfill_assets.storage.location import Copied, Location, overlap
from backfill_assets.storage.owner import require_owner
from backfill_assets.warehouse import OnWarehouse

SAVED: Final = (Layer.raw, Layer.published)
"""Layers in a backup. Raw is the only copy of the deliveries, published of what readers saw; staging is built from raw."""
_NO_WAIT: Final = dt.timedelta(0)
_PAUSE: Final = 0.5
"""Seconds between two attempts to find nothing at work."""
_OF_A_VERSION: Final = re.compile(r"(\d{20})\.[^#]+")
"""A file of a version in a log; `#` is in the names of files that are being written."""
_HINT: Final = "_last_checkpoint"
_LOCK: Final = "backup"


@dataclass(frozen=True)
class Taken:
    """A backup that was made: how many files were new to its folder, their size in bytes, and the backups that went for it."""

    backup: Backup
    new: int
    size: int
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Moment:
    """What was there at the moment: the tables, and the size of each of their files by place and path."""

    at: dt.datetime
    tables: tuple[SavedTable, ...]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class TakeBackup(OnWarehouse):
    """Takes backups of a warehouse and its ledger; waits at most `wait` until no landing and no release is at work."""

    wait: dt.timedelta = WAIT
    checkpoint: Checkpoint = no_checkpoint

    def take(self, root: Location, keep: int = 0) -> Taken:
        """Copy the ledger, and raw and published tables, as they are at one moment, to a folder of backups.

        What the folder has already is not copied again. Afterwards, only the newest `keep` backups stay; all if that is 0.

        Raises:
            BackupError: the folder is not one of this ledger's backups, landings or releases are at work all the time, or a file
                that is needed is lost or changes.
            DatasetError: a dataset whose table is adopted cannot be loaded.
            LayoutError: the warehouse belongs to another ledger, or an adopted table cannot be reached.
            LedgerError: another backup is being made.
            PreconditionError: the log of a table is damaged, or an adopted table has commits of another writer.
            StorageError: a place cannot be read or written.
        """
        require_owner(self.layout, self.ledger)
        self._require_apart(root)
        folder = BackupFolder(root)
        with self.ledger.lock(_LOCK, _NO_WAIT), TemporaryDirectory() as scratch:
            folder.claim(self.ledger.id, self.ledger.name, self.layout.warehouse)
            self._require_versions(folder.known())
            file, name = Path(scratch) / "ledger.db", self.ids.new("b")
            with ExitStack() as reading:
                with self._at_rest():
                    # The ledger first: what it knows of files is written after they are.
                    frozen = reading.enter_context(self.ledger.frozen())
                    moment = self._moment()
                save(frozen, file)
            self.checkpoint("moment")
            ledger = folder.ledger(name).copy_from(OnDisk(file))
            with closing(open_ledger(f"sqlite:///{file}", self.clock)) as then:
                chosen, needed = self._chosen(moment, then)
            known = folder.known()
            saved = SavedFiles(self._copied(folder, chosen, known), ledger)
            self._require_all(needed, saved)
            folder.require_whole(name, saved)
            size = sum(one.size for one in saved.files.values())
            made = Backup(name, moment.at, self.identity.name(), moment.tables, len(saved.files), size)
            folder.complete(made, saved)
            if folder.owner() == self.ledger.id:  # a restore may have taken it meanwhile
                folder.hand_over(self.ledger.id, self.ledger.name, self.layout.warehouse)
            removed = folder.keep(keep, name) if keep else ()
        there = {one.sha256 for one in known.values()}
        new = {one.sha256: one.size for one in saved.files.values() if one.sha256 not in there}
        return Taken(made, len(new), sum(new.values()), removed)

    def _require_versions(self, known: Collection[str]) -> None:
        """Refuse to back up a table that has lost a version of a reference that a backup has: soon none would have it any more."""
        for name in self.datasets:
            for file, days in References(self.warehouse).lost(name).items():
                place = f"{Layer.published}/{name}/{REFERENCES}/{file}"
                # Its files may have had another ending.
                version = place.removesuffix(Path(file).suffix)
                is_saved = any(path.startswith(version) for path in known)
                if is_saved or self.layout.kept_reference(name, file).is_there():
                    raise BackupError(
                        f"{place}: the version of a reference that {name} {format_days(days, most=3)} sees is lost or altered. No "
                        "backup is made; see: backfill doctor"
                    )

    def _require_apart(self, root: Location) -> None:
        tables = [self.layout.published_path(name) for name in self.definitions if self.layout.is_adopted(name)]
        for place in (self.layout.warehouse, self.layout.sources, *tables):
            if overlap(root.resolved(), place.resolved()):
                raise BackupError(f"{root} and {place} are in one another; name another folder for backups")

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Hold off landings and releases: between a commit and its record in the ledger, the two do not agree."""
        deadline = time.monotonic() + self.wait.total_seconds()
        while True:
            with ExitStack() as stack:
                try:
                    self._hold_all(stack)
                except LockHeldError as error:
                    if time.monotonic() >= deadline:
                        raise BackupError(
                            f"landings or releases were at work all the time ({error}); make the backup when there are fewer"
                        ) from error
                else:
                    yield
                    return
            time.sleep(_PAUSE)

    def _hold_all(self, stack: ExitStack) -> None:
        # Nobody is kept waiting by a backup that waits itself.
        for name in self._names(Layer.raw):
            stack.enter_context(self.ledger.driver(f"{Layer.raw}/{name}", self.ids.new(_LOCK), _NO_WAIT))
        stack.enter_context(publish_locks(self.ledger, self._names(Layer.published), _NO_WAIT))

    def _names(self, layer: Layer) -> Sequence[str]:
        """The datasets that are loaded, and those whose folder is there although they are not."""
        stored = {place.name for place in (self.layout.warehouse / layer).listed() if is_name(place.name)}
        return sorted({*stored, *self.definitions, *(self.layout.adopted() if layer == Layer.published else ())})

    def _moment(self) -> _Moment:
        tables, sizes = list[SavedTable](), dict[str, int]()
        for layer in SAVED:
            for name in self._names(layer):
                place = f"{layer}/{name}"
                home = self.layout.at(place)
                newest = newest_commit(home)
                if newest < 0 and is_table(home):
                    raise PreconditionError(f"{home}: its log has no commit, only a checkpoint; see: backfill doctor")
                tables.append(SavedTable(place, newest))
                sizes |= {f"{place}/{path}": size for path, size in sizes_in(home).items() if _is_saved(path)}
                if layer is Layer.published and self.layout.is_adopted(name):
                    # Last, because no lock holds its other writers off.
                    require_tables(self.tables, [name])
                    require_sole_writer(name, self.tables[name], self.ledger.releases(name))
        return _Moment(self.clock.now(), tuple(tables), sizes)

    def _chosen(self, moment: _Moment, then: Ledger) -> tuple[Mapping[str, int], frozenset[str]]:
        """The files to copy, with their sizes, and those that a restored warehouse cannot do without, by the ledger of `then`."""
        chosen, needed = dict[str, int](), set[str]()
        attempts = then.attempts()
        running = {one.folder for one in attempts if one.state is AttemptState.running}
        stored: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for path, size in moment.sizes.items():
            place = _place_of(path)
            stored[place][path.removeprefix(f"{place}/")] = size
        for table in moment.tables:
            layer, _, name = table.place.partition("/")
            own = stored[table.place]
            active = sizes_at(self.layout.at(table.place), table.version) if table.version >= 0 else {}
            _require_sizes(table, active, own)
            named = active.keys() | (self._named(then, name, moment.at) if layer == Layer.published else set())
            # What a running attempt has written so far belongs to nobody after a restore.
            shadows = ({one.folder for one in attempts if one.dataset == name} | set(map(shadow_of, named))) - running
            mine = {path: size for path, size in own.items() if path in named or _is_kept(path, shadows)}
            chosen |= {f"{table.place}/{path}": size for path, size in mine.items()}
            always = {path for path in own if path.startswith((f"{LOG}/", f"{REFERENCES}/"))}
            needed |= {f"{table.place}/{path}" for path in always | (named & own.keys())}
        return chosen, frozenset(needed)

    def _named(self, then: Ledger, name: str, at: dt.datetime) -> set[str]:
        """Files that open units may still publish, and that rollbacks within their windows put back."""
        found = set[str]()
        running = {one.number for one in then.attempts(state=AttemptState.running)}
        for unit in then.units(name, {UnitState.open}):
            evidence = (one for one in then.evidence(unit.id, name).values() if one.attempt not in running)
            found |= {file.path for one in evidence for file in one.shadow_files}
        dataset = self.definitions.get(name)
        for record in then.releases(name):
            is_over = (
                dataset is not None
                and record.since is not None
                and restorable_until(record.since, dataset.retention.keep_for) <= at
            )
            if not is_over:
                found |= {file.path for file in (*record.manifest.added, *record.manifest.removed)}
        return found

    def _copied(
        self, folder: BackupFolder, chosen: Mapping[str, int], known: Mapping[str, Copied]
    ) -> Mapping[str, Copied]:
        """Store what the folder does not have; returns all files that are there as they were at the moment."""
        homes = {place: self.layout.at(place) for place in {_place_of(path) for path in chosen}}
        stored = {one.sha256 for one in known.values()}

        def copy(path: str) -> Copied | None:
            if is_data(path) and path in known and known[path].size == chosen[path]:
                return known[path]
            place = _place_of(path)
            try:
                found = _stored(folder, homes[place] / path.removeprefix(f"{place}/"), stored)
            except FileNotFoundError:
                sealed = sealed_path(path) or path
                try:  # a release may have sealed the shadow meanwhile
                    found = _stored(folder, homes[place] / sealed.removeprefix(f"{place}/"), stored)
                except FileNotFoundError:
                    return None
            return found if found is not None and found.size == chosen[path] else None

        asked = sorted(chosen)
        busy = self.layout.warehouse if self.layout.warehouse.storage_options is not None else folder.root
        answers = zip(asked, busy.each(copy, asked), strict=True)
        return {path: one for path, one in answers if one is not None}

    def _require_all(self, needed: frozenset[str], saved: SavedFiles) -> None:
        if lost := sorted(needed - saved.files.keys()):
            raise BackupError(
                f"{number_of(len(lost), 'file')} that readers or a rollback need changed or went while being copied, such as "
                f"{lost[0]}. The backup does not count: repeat the backup"
            )


def _require_sizes(table: SavedTable, active: Mapping[str, int], own: Mapping[str, int]) -> None:
    """Refuse to back up a table that has lost what readers see: soon no backup would have it any more."""
    if lost := sorted(path for path, size in active.items() if own.get(path) != size):
        raise BackupError(
            f"{table.place}, version {table.version}: {lost[0]} should have {active[lost[0]]:,} bytes and has "
            f"{own.get(lost[0], 0):,}; {number_of(len(lost), 'file')} that readers see are like that. No backup is made; see: "
            "backfill doctor"
        )


def _is_kept(path: str, shadows: Collection[str]) -> bool:
    """Whether a file that nobody names belongs to a table: log, manifests, references, and shadows of attempts that have ended."""
    return path.startswith((f"{LOG}/", f"{RELEASES}/", f"{REFERENCES}/")) or (
        path.startswith(f"{SHADOW}/") and shadow_of(path) in shadows
    )


def _place_of(path: str) -> str:
    return "/".join(path.split("/")[:2])


def _stored(folder: BackupFolder, source: Location, stored: set[str]) -> Copied | None:
    """Store a file, unless its bytes are stored; None if it is changing. Raises FileNotFoundError if it is gone."""
    state, digest = source.content()
    found = Copied(state.size, digest)
    if digest not in stored:
        try:
            folder.file(found).copy_from(source, found)
        except StorageError:
            if source.content()[1] != digest:
                return None
            raise
        stored.add(digest)
    return found


def _is_saved(path: str) -> bool:
    """Whether a file is a table's own, and complete: no draft, checksum of Hadoop, mark, or commit that was set aside."""
    *folders, name = path.split("/")
    if path == OWNER or path.startswith(f"{SET_ASIDE}/") or name == _HINT or name.startswith("."):
        return False
    return folders[-1:] not in ([LOG], [SEALED]) or _OF_A_VERSION.fullmatch(name) is not None
