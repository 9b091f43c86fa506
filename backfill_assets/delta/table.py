"""The published table; only release commits change it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import CommitProperties

from backfill_assets.core.errors import PreconditionError, ReadBackError, StorageError, TableMovedError, TimeTravelError
from backfill_assets.core.release import (
    EXTRA,
    SHADOW,
    DataFile,
    Manifest,
    ReleaseKind,
    StoredFile,
    TableCommit,
    foreign_commits,
    identities,
    shadow_of,
)
from backfill_assets.dataset.definition import Dataset
from backfill_assets.delta import commit, manifests, opening, reading, schema, shadows
from backfill_assets.delta.commit import in_doubt, refused, write
from backfill_assets.delta.opening import error_text
from backfill_assets.delta.reading import SCHEMA_COMMIT, FilesByDay, active_files, commits_of, shadow_files
from backfill_assets.delta.schema import Types
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location, Sync, overlap, sync
from backfill_assets.system import Clock

_CHECKPOINTS: Final = {"delta.checkpointInterval": "10"}
"""Opening a table reads all commits since its checkpoint, and delta-rs would make one every hundred commits."""


class PublishedTable:
    """The port `PublishedTable` for one dataset, on a Delta table below the warehouse."""

    def __init__(self, layout: Layout, dataset: Dataset, clock: Clock, sync: Sync = sync) -> None:
        self._layout = layout
        self._dataset = dataset
        self._clock = clock
        self._sync = sync
        self._last: tuple[DeltaTable, FilesByDay] | None = None
        self._looked: Location | None = None
        self._newest = opening.Newest()

    @property
    def _root(self) -> Location:
        return self._looked or self._look()

    def _look(self) -> Location:
        """Where the table is now: it may be adopted, or given back, while this process runs."""
        root = self._layout.published_path(self._dataset.name)
        # In a bucket, each look is a request; while a table lies in the warehouse, none is adopted under its name.
        kept = root.storage_options is not None and overlap(root, self._layout.warehouse) and opening.is_table(root)
        self._looked = root if kept else None
        return root

    @property
    def adopted(self) -> bool:
        """Whether it was there before this project, and stays where it was."""
        return self._layout.is_adopted(self._dataset.name)

    @property
    def keep_for(self) -> dt.timedelta:
        """How long a release stays restorable."""
        return self._dataset.retention.keep_for

    @property
    def _kept(self) -> dt.timedelta:
        return self._dataset.retention.keep_for + EXTRA

    def exists(self) -> bool:
        """Whether the table has been created."""
        return opening.is_table(self._root)

    def version(self) -> int:
        """The newest version; -1 while there is no table."""
        return self._open(self._newest.of).version() if self.exists() else -1

    def types(self) -> Types:
        """The types of the table's columns, in table order; empty while there is no table."""
        return schema.table_types(self._open(self._newest.of)) if self.exists() else {}

    def active(self, days: Collection[dt.date] | None = None) -> FilesByDay:
        """The files that readers see at the newest version, by day."""
        found = self._files_of(self._open(self._newest.of)) if self.exists() else {}
        return dict(found) if days is None else {day: found[day] for day in sorted(found.keys() & set(days))}

    def at(self, version: int) -> FilesByDay:
        """The files that a reader of an older version opens, by day.

        Raises:
            TimeTravelError: the log does not reach back to that version.
        """
        try:
            table = opening.table_at(self._root, version)
        except DeltaError as error:
            raise TimeTravelError(
                f"{self._root}: its log no longer has version {version} ({error_text(error)}); read the newest version, "
                "which has all days"
            ) from error
        return active_files(table, self._root, self._dataset)

    def shadow_files(self, folder: str, days: Collection[dt.date]) -> FilesByDay:
        """The files of a shadow, sealed or not, after a sync to the disk; paths are relative to the published table.

        Raises:
            PreconditionError: the shadow's log is damaged, or it uses features that cannot be published.
            StorageError: the disk does not confirm the shadow.
        """
        read = reading.read_shadow(self._root / shadows.shadow_folder(folder))
        found = {} if read is None else shadow_files(read, folder, self._dataset, days)
        # Evidence will name these files: a power cut must not lose or zero them while the evidence survives.
        shadows.sync_shadow(self._root, folder, (f.path for day in found.values() for f in day), self._sync)
        return found

    def keep_long_enough(self) -> None:
        """Raise the table's retention if a VACUUM could remove its log or deleted files within `retention.keep_for`."""
        with opening.reached(self._root):
            commit.keep_long_enough(self._open(), self._kept)

    def prepare(self, shadow_folder: str) -> None:
        """Create the table as dataset.yaml declares it, or add its missing columns; the shadow's columns must match.

        Raises the retention of a table if a VACUUM could remove its log or deleted files within `retention.keep_for`.
        An empty shadow (days without data) has no log, so there is nothing to compare.

        Raises:
            PreconditionError: shadow, declaration and table differ in other ways, or the table has its own rules; names
                column or rule, expected, found.
            StorageError: the disk does not confirm the commit.
        """
        self._look()
        declared = schema.declared_types(self._dataset)
        self._require_shadow(shadow_folder, declared)
        with opening.reached(self._root):
            self._prepare(declared)

    def _prepare(self, declared: Types) -> None:
        if not self.exists():
            self._create(declared)
            shadows.sync_commits(self._root, -1, self._sync)
            return
        table = self._open()
        commit.require_plain_table(self._root, self._dataset, table)
        found = schema.without_dropped(schema.table_types(table), self._dataset)
        new = {name: kind for name, kind in declared.items() if name not in found}
        remedy = (
            "A column of a published table keeps its type: publish under a new dataset name, or list a column that is "
            "no longer filled in dropped_columns of dataset.yaml"
        )
        schema.require_same(f"published table {self._root}", declared, {**found, **new}, remedy)
        if new:
            table.alter.add_columns(
                list(schema.delta_schema(new).fields),
                commit_properties=CommitProperties(custom_metadata={SCHEMA_COMMIT: "columns"}),
            )
        commit.keep_long_enough(table, self._kept)
        # Also if nothing is new: the disk may not have confirmed the newest commit.
        shadows.sync_commits(self._root, table.version() - 1, self._sync)

    def commit(self, manifest: Manifest, base_version: int) -> int:
        """Verify every precondition and commit the manifest on `base_version`; returns the new version.

        If the release is already in the log, it only syncs it to the disk and returns its version.

        Raises:
            TableMovedError: the table is no longer at `base_version`.
            StorageError: the disk is full, or the log's folder is not writable.
            PreconditionError: a precondition fails; says what was expected and what was found.
            ReadBackError: after the commit, the table does not match the manifest or cannot be read or confirmed.
        """
        # Known before: a place that cannot be looked up after the commit must not make it look like a failed one.
        root = self._look()
        if (known := self.committed(manifest.release)) is not None:
            # The process that committed it may have died before the sync.
            self._keep(root, manifest, known - 1)
            return known
        if not self.exists():
            raise PreconditionError(f"release {manifest.release}: there is no table at {root}; prepare it first")
        with opening.reached(self._root):
            table = self._open()
            before = self._files_of(table)
            self._verify(manifest, table, before, base_version)
        try:
            write(table, manifest, self._dataset, self._clock.now())
        except (DeltaError, OSError) as error:
            # A hook after the commit may also have failed: only the log knows whether it is committed.
            with in_doubt(manifest):
                known = self.committed(manifest.release)
            if known is None:
                self._require_version(self.version(), base_version)
                raise refused(manifest, root, error) from error
        self._keep(root, manifest, base_version)
        with in_doubt(manifest):
            self._read_back(manifest, base_version + 1, before)
        return base_version + 1

    def verify(self, manifest: Manifest, base_version: int) -> None:
        """Refuse a manifest that `commit` would refuse, with the same errors; commits nothing."""
        self._look()
        with opening.reached(self._root):
            table = self._open()
            self._verify(manifest, table, self._files_of(table), base_version)

    def committed(self, release: str) -> int | None:
        """The version in which a release was committed, or None; survives the clean-up of the log."""
        return self.committed_among((release,)).get(release)

    def committed_among(self, releases: Iterable[str]) -> Mapping[str, int]:
        """The versions in which those of these releases were committed that were; opens the table once."""
        # The transaction identifier has the version: a commit on a compared base can only become the next one.
        # Asks the log's files, which a clean-up removes: a table that was opened earlier would not find them.
        with opening.reached(self._root):
            version_of = self._open().transaction_version if self.exists() else lambda _: None
            return {release: version for release in releases if (version := version_of(release)) is not None}

    def manifest_at(self, version: int, release: str) -> str:
        """The hash of a release's manifest in the commit of this version; empty if it left the log; raises like `commit_info`."""
        info = opening.commit_info(self._root, version)
        return str(info.get("manifest") or "") if info.get("release") == release else ""

    def set_aside_torn(self) -> bool:
        """Set the newest commit aside if a power cut left it incomplete and unreadable; returns whether it did."""
        aside = self._layout.aside_path(f"published/{self._dataset.name}")
        return shadows.set_aside_torn(self._root, aside, self._sync)

    def missing_files(self, wanted: Iterable[DataFile]) -> tuple[DataFile, ...]:
        """The files that are missing on disk or have another size."""
        return shadows.missing(self._root, wanted)

    def unreleasable(self, wanted: Iterable[DataFile]) -> tuple[DataFile, ...]:
        """The shadow files that are missing, or whose log cannot be read: a release needs both."""
        files = tuple(wanted)
        lost = set(self.missing_files(files))
        damaged = {one for one in {shadow_of(f.path) for f in files} if not reading.is_readable(self._root / one)}
        return tuple(f for f in files if f in lost or shadow_of(f.path) in damaged)

    def removed_since(self, moment: dt.datetime) -> frozenset[str]:
        """Paths of the files that left the table at `moment` or later, as far back as its log goes."""
        if self.exists():
            self._open()  # refuses a log that lacks a commit
        edge = int(moment.timestamp() * 1000)
        return frozenset(
            removed["path"]
            for _, file in opening.commits(self._root / opening.LOG)
            for removed in opening.actions(file, "remove")
            # Without a time it is unknown how long readers had: keep the file.
            if removed.get("deletionTimestamp") is None or removed["deletionTimestamp"] >= edge
        )

    def history(self, most: int | None = None) -> tuple[TableCommit, ...]:
        """The commits that the table's log still has, newest first; all, or at most `most`."""
        with opening.reached(self._root):
            return commits_of(self._open(), most) if self.exists() else ()

    def foreign(self) -> tuple[TableCommit, ...]:
        """The commits of other writers since the newest baseline of an adopted table, newest first; empty for other tables."""
        return foreign_commits(self.history()) if self.adopted else ()

    def store_manifest(self, manifest: Manifest) -> None:
        """Write the manifest of a new release beside the table; raises like `manifests.store`."""
        manifests.store(self._root, manifest)

    def restore_manifest(self, manifest: Manifest) -> None:
        """Write a manifest again, in place of a damaged one or of one that nothing was committed with."""
        manifests.restore(self._root, manifest)

    def manifests(self) -> tuple[Manifest, ...]:
        """All manifests stored beside the table, by name; raises like `manifests.read`."""
        return tuple(manifests.read(place) for place in manifests.stored(self._root))

    def seal(self, folder: str) -> None:
        """Rename a shadow's log, so that engines do not see the folder as a table; is safe to repeat.

        Raises:
            StorageError: the folder is not writable.
        """
        shadow = self._root / shadows.shadow_folder(folder)
        try:
            (shadow / opening.LOG).rename_folder(reading.SEALED, opening.commit_name(0))
        except FileNotFoundError:
            return  # the shadow is empty, or another process has just sealed it
        except OSError as error:
            raise StorageError(
                f"{shadow / opening.LOG} cannot be renamed ({error.strerror}), which is the last step of its release: "
                "readers already see it; let this user write there, and repeat the command"
            ) from error

    def stored_files(self) -> tuple[StoredFile, ...]:
        """Every regular file under `_shadow/`, logs included; links are neither listed nor followed."""
        top = self._root / SHADOW
        return tuple(sorted(top.files(self._root), key=lambda file: file.path)) if top.is_folder() else ()

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files under `_shadow/` and the folders that become empty; ignores files that are already gone.

        Raises:
            PreconditionError: a path is elsewhere or goes through a link; then nothing is deleted.
        """
        shadows.delete(self._root, paths)

    def _files_of(self, table: DeltaTable) -> FilesByDay:
        last = self._last
        # Not by its version: after a restore, the same version may have other files.
        if last is None or last[0] is not table:
            self._last = last = table, active_files(table, self._root, self._dataset)
        return last[1]

    def _open(self, how: Callable[[Location], DeltaTable] = opening.table_at) -> DeltaTable:
        try:
            return how(self._root)
        except DeltaError as error:
            raise PreconditionError(
                f"{self._root}: its Delta log cannot be read ({error_text(error)}); if a power cut left a release's commit "
                "incomplete, run: backfill reconcile, which sets it aside; otherwise see: backfill doctor"
            ) from error

    def _create(self, declared: Types) -> None:
        self._root.make_folder()
        DeltaTable.create(
            str(self._root),
            schema.delta_schema(declared),
            mode="error",
            partition_by=[self._dataset.partition_column],
            configuration={**commit.kept_too_short({}, self._kept), **_CHECKPOINTS},
            storage_options=self._root.storage_options,
            commit_properties=CommitProperties(custom_metadata={SCHEMA_COMMIT: "create"}),
        )

    def _require_shadow(self, folder: str, declared: Types) -> None:
        found = reading.read_shadow(self._root / shadows.shadow_folder(folder))
        if found is None:
            return
        features = (*(found.protocol.get("readerFeatures") or ()), *(found.protocol.get("writerFeatures") or ()))
        commit.require_plain(f"shadow {folder}", features, found.configuration)
        commit.require_partitioning(f"shadow {folder}", self._dataset, found.partition_columns)
        remedy = "Build these days again with the dataset as it is now"
        schema.require_same(f"shadow {folder}", declared, schema.types_of(found.fields.values()), remedy)

    def _require_version(self, found: int, expected: int) -> None:
        if found != expected:
            # On a network drive, asking for a commit that is not there yet can hide it for a while; opening lists all.
            self._newest = opening.Newest()
            raise TableMovedError(
                f"{self._root}: expected version {expected}, found {found}: another writer committed in between; "
                "check everything again on the new version"
            )

    def _verify(self, manifest: Manifest, table: DeltaTable, active: FilesByDay, base_version: int) -> None:
        self._require_version(table.version(), base_version)
        commit.require_own_dataset(manifest, self._dataset.name)
        commit.require_files_of_their_day(manifest)
        commit.require_plain_table(self._root, self._dataset, table)
        if manifest.kind is ReleaseKind.baseline:
            commit.require_named_files(manifest, active)
            return
        commit.require_each_day_once(manifest)
        if manifest.kind is ReleaseKind.publish:
            # A rollback restores files of this same table; only new files can have another schema.
            commit.require_files_of_the_unit(manifest)
            for folder in sorted({shadow_of(f.path) for f in manifest.added}):
                self._require_written(folder, schema.without_dropped(schema.table_types(table), self._dataset))
        else:
            commit.require_rules_as_before(manifest, table, self._root)
        commit.require_exactly_the_active_files(manifest, active)
        commit.require_new_files(manifest, active)
        commit.require_files_on_disk(manifest, self._root)

    def _require_written(self, folder: str, published: Types) -> None:
        if reading.shadow_log_folder(self._root / shadows.shadow_folder(folder)) is None:
            raise PreconditionError(f"shadow {folder}: expected its log, found none; build these days again")
        self._require_shadow(folder, published)

    def _keep(self, root: Location, manifest: Manifest, base_version: int) -> None:
        # The ledger will record the commit: a power cut must not lose it while the ledger survives.
        try:
            shadows.sync_commits(root, base_version, self._sync)
        except StorageError as error:
            raise ReadBackError(
                f"release {manifest.release}: it is committed, but the disk does not confirm it ({error.__cause__}); "
                f"check the disk of {root}, and run: backfill reconcile"
            ) from error

    def _read_back(self, manifest: Manifest, version: int, before: FilesByDay) -> None:
        table = opening.table_at(self._root, version)
        found = identities(self._files_of(table))
        wanted = identities(before) - {f.identity for f in manifest.removed} | {f.identity for f in manifest.added}
        if found != wanted:
            lost, strange = sorted(wanted - found)[:5], sorted(found - wanted)[:5]
            raise ReadBackError(
                f"release {manifest.release}: version {version} of {self._root} is not what was committed: missing "
                f"files: {lost}; unexpected: {strange}; undo it: backfill rollback {manifest.release} --reason '…'"
            )
