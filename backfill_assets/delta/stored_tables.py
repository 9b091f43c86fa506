"""Reads all tables as files, for the doctor."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyarrow import parquet

from backfill_assets.core.errors import LayoutError, PreconditionError, StorageError
from backfill_assets.core.layers import Layer
from backfill_assets.core.release import SHADOW, StoredFile
from backfill_assets.delta import manifests, opening, shadows
from backfill_assets.delta.opening import LOG, commits, error_text, is_table, table_at
from backfill_assets.delta.reading import add_actions
from backfill_assets.storage.layout import REFERENCES, RELEASES, Layout
from backfill_assets.storage.location import Location, remove_all, sync


@dataclass(frozen=True)
class DamagedCommit:
    """A commit file that is damaged; `problem` says how."""

    version: int
    problem: str


@dataclass(frozen=True)
class LostFile:
    """A data file of the newest version that is missing (`found` is -1) or has another size; sizes in bytes."""

    path: str
    size: int
    found: int


@dataclass(frozen=True)
class StoredTable:
    """The files of a Delta table on disk, even if its log cannot be read.

    `place` is its folder, relative to the warehouse; `layer` and `dataset` say whose it is. `version` is that of the
    newest commit file, -1 without any; `gaps` are versions missing between others; `problem` says why the newest
    version cannot be read. `lost` are lost files of that version (empty for published tables). `rows` counts the rows
    of raw by delivery day in the newest undamaged version. `temporary` are files of unfinished writes; `orphans` are
    data files that no commit names. `manifests` are the releases whose manifest beside the table cannot be read.
    `set_aside` are versions that a repair took out of the log; `torn_checkpoints` have an unneeded unreadable checkpoint.
    """

    place: str
    layer: str
    dataset: str
    version: int = -1
    written_at: dt.datetime | None = None
    damaged: tuple[DamagedCommit, ...] = ()
    gaps: tuple[int, ...] = ()
    problem: str = ""
    lost: tuple[LostFile, ...] = ()
    rows: Mapping[dt.date, int] = field(default_factory=dict)
    temporary: tuple[StoredFile, ...] = ()
    orphans: tuple[StoredFile, ...] = ()
    manifests: tuple[str, ...] = ()
    set_aside: tuple[int, ...] = ()
    torn_checkpoints: tuple[int, ...] = ()

    @property
    def readable(self) -> bool:
        """Whether its log can be read and compared."""
        return not (self.damaged or self.gaps or self.problem)


_TEMPORARY: Final = (
    re.compile(r"\..+\.tmp"),  # Spark writes a commit or a checkpoint under this name and then renames it
    re.compile(r"_commit_.+\.json\.tmp"),  # delta-rs does the same
    re.compile(r".+#\d+"),  # so does its object store with any file
)
_DRAFT: Final = re.compile(r"\..+\.\d+")
"""The name of a manifest until it is complete."""
_TAIL: Final = 65_536
_HIDDEN: Final = ("_", ".")


@dataclass(frozen=True)
class StoredTables:
    """All Delta tables of the warehouse, read as files, so that an unreadable log does not hide them."""

    layout: Layout

    def look(self) -> tuple[StoredTable, ...]:
        """Every table of raw, staging and published, and `data_releases`, by place."""
        return tuple(self._look_or_problem(*found) for found in self.layout.tables(LOG))

    def set_aside(self, place: str, version: int) -> None:
        """Move the newest commit of a table, with its checksums, below `_set_aside/` if it is damaged.

        Does nothing if it is gone, or if another process has replaced it with a complete one.

        Raises:
            PreconditionError: it is not the newest, or a checkpoint has its content.
        """
        folder = self.layout.at(place) / LOG
        found = dict(commits(folder))
        newest = max(found, default=-1)
        if newest > version or shadows.checkpoint_files(folder, version):
            raise PreconditionError(
                f"{folder}: expected commit {version} to be the newest and without checkpoint, found commits up to "
                f"{newest}; restore the log from a backup"
            )
        if version not in found or _damage(found[version]):
            shadows.set_aside(folder, version, self.layout.aside_path(place), sync)

    def set_aside_checkpoint(self, place: str, version: int) -> None:
        """Move the checkpoint of a version below `_set_aside/` if it cannot be read and the commits have all of it."""
        folder = self.layout.at(place) / LOG
        if version in _torn_checkpoints(folder, [found for found, _ in commits(folder)]):
            shadows.set_aside_checkpoint(folder, version, self.layout.aside_path(place), sync)

    def remove(self, place: str, paths: Iterable[str]) -> None:
        """Delete files below a table's folder; ignores files that are already gone.

        Raises:
            PreconditionError: a path is a commit, or goes through a link; then nothing is deleted.
            LayoutError: a path leads out of the folder; then nothing is deleted.
        """
        root = self.layout.at(place)
        targets = [(path, root / path) for path in paths]
        for path, target in targets:
            if root.below(path) != target or re.fullmatch(r"\d{20}\..+", target.name):
                raise PreconditionError(f"{path!r} is not an unfinished file below {root}; nothing was removed")
        remove_all(root, [target for _, target in targets])

    def _look_or_problem(self, place: str, layer: str, dataset: str, root: Location) -> StoredTable:
        try:
            return self._look(place, layer, dataset, root)
        except (LayoutError, OSError, StorageError, ValueError) as error:
            # A line before the last one of an old commit, which a checkpoint covers, may be damaged.
            return StoredTable(place, layer, dataset, problem=str(error))

    def _look(self, place: str, layer: str, dataset: str, root: Location) -> StoredTable:
        log = commits(root / LOG)
        versions = [version for version, _ in log]
        damaged = tuple(DamagedCommit(v, found) for v, commit in log if (found := _damage(commit)))
        sound = [version for version in versions if version not in {commit.version for commit in damaged}]
        problem, active = _active(root)
        stored = root.files(root, without=SHADOW, links=True)
        files = {file.path: file for file in sorted(stored, key=lambda file: file.path)}
        newest = files.get(f"{LOG}/{log[-1][1].name}") if log else None
        adopted = layer == Layer.published and self.layout.is_adopted(dataset)
        return StoredTable(
            place=place,
            layer=layer,
            dataset=dataset,
            version=versions[-1] if versions else -1,
            written_at=newest.modified if newest else None,
            damaged=damaged,
            gaps=tuple(sorted(set(range(versions[0], versions[-1])) - set(versions))) if versions else (),
            problem=problem,
            # The doctor compares the files of published tables with their releases instead.
            lost=tuple(_lost(root, active)) if layer != Layer.published else (),
            rows=_rows(root, sound[-1]) if layer == Layer.raw and sound else {},
            # In the folder of an adopted table, other files are not ours: only those in the log and the manifests are.
            temporary=tuple(
                file
                for path, file in files.items()
                if (not adopted or path.startswith((f"{LOG}/", f"{RELEASES}/", f"{REFERENCES}/")))
                and _is_temporary(path, files)
            ),
            orphans=() if problem or damaged or adopted else tuple(_orphans(files.values(), active, log)),
            manifests=tuple(_unreadable(root)),
            torn_checkpoints=_torn_checkpoints(root / LOG, versions) if problem else (),
            set_aside=tuple(sorted({int(f.name[:20]) for f in self.layout.aside_path(place).fitting("[0-9]*.json*")})),
        )


def _torn_checkpoints(folder: Location, versions: Sequence[int]) -> tuple[int, ...]:
    """Versions with an unreadable checkpoint, if the commits reach back to the first one or a complete checkpoint."""
    intact: dict[int, bool] = {}
    for path in folder.fitting("[0-9]*.checkpoint*.parquet"):
        version = int(path.name.partition(".")[0])
        intact[version] = intact.get(version, True) and _is_parquet(path)
    torn = tuple(sorted(version for version, sound in intact.items() if not sound))
    last = max((version for version, sound in intact.items() if sound), default=-1)
    return torn if torn and versions and set(range(last + 1, versions[-1] + 1)) <= set(versions) else ()


def _is_parquet(path: Location) -> bool:
    try:
        with path.reader() as file:
            parquet.read_metadata(file)
    except (pa.ArrowException, OSError):
        return False
    return True


def _active(root: Location) -> tuple[str, Mapping[str, int]]:
    """Why the newest version cannot be read, and the size of each of its files; both empty if there is no version."""
    if not is_table(root):
        return "", {}
    try:
        table = table_at(root)
        return "", {add["path"]: add["size_bytes"] for add in add_actions(table, "path", "size_bytes")}
    except DeltaError as error:
        return error_text(error), {}


def _rows(root: Location, version: int) -> Mapping[dt.date, int]:
    counts: dict[dt.date, int] = {}
    try:
        found = add_actions(table_at(root, version), "num_records", "partition")
    except DeltaError:
        return counts  # the newest version is unreadable too, and its `problem` says why
    for add in found:
        for day in (add["partition"] or {}).values():
            if isinstance(day, dt.date):
                counts[day] = counts.get(day, 0) + (add["num_records"] or 0)
    return counts


def _orphans(
    files: Iterable[StoredFile], active: Mapping[str, int], commits: Sequence[tuple[int, Location]]
) -> Iterator[StoredFile]:
    unread = [f for f in files if _is_data(f.path) and f.path not in active]
    # After a clean-up of commits, a file that left the table long ago looks like an orphan; VACUUM deletes it.
    if unread and commits and commits[0][0] == 0:
        kinds = ("add", "remove")
        named = {action["path"] for _, commit in commits for kind in kinds for action in opening.actions(commit, kind)}
        yield from (file for file in unread if file.path not in named)


def _damage(commit: Location) -> str:
    # Read only the end: commits of long histories are big, and a cut shows at the end.
    tail = commit.end(_TAIL).rstrip()
    if not tail:
        return "is empty"
    if b"\n" not in tail:
        tail = commit.end().rstrip()
    try:
        json.loads(tail.rpartition(b"\n")[2])
    except ValueError:
        return "is cut off in the middle of a line"
    return ""


def _lost(root: Location, active: Mapping[str, int]) -> Iterator[LostFile]:
    for path, size in sorted(active.items()):
        if (found := (root / path).size()) != size:
            yield LostFile(path, size, found)


def _is_temporary(path: str, files: Collection[str]) -> bool:
    folder, slash, name = path.rpartition("/")
    if name.startswith(".") and name.endswith(".crc"):
        # Hadoop's checksum of a file: it is a leftover if that file is gone.
        return f"{folder}{slash}{name[1:-4]}" not in files
    if path.startswith((f"{RELEASES}/", f"{REFERENCES}/")):
        return bool(_DRAFT.fullmatch(name))
    return any(pattern.fullmatch(name) for pattern in _TEMPORARY)


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and not any(part.startswith(_HIDDEN) for part in path.split("/"))


def _unreadable(root: Location) -> Iterator[str]:
    for path in manifests.stored(root):
        try:
            manifests.read(path)
        except PreconditionError:
            yield path.name.removesuffix(".json")
