"""Files and folders of a file system: finds, reads, hashes, moves and removes them, and writes them atomically."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Self, TypeVar

from backfill_assets.core.errors import LayoutError, StorageError
from backfill_assets.core.release import StoredFile
from backfill_assets.storage.location import WILD, Copied, Copying, Location, State

EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SHOWN = 200
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class OnDisk(Location):
    """A place in a file system."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, relative: str) -> Self:
        return type(self)(self.path / relative)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def parent(self) -> Self:
        return type(self)(self.path.parent)

    @property
    def for_spark(self) -> str:
        return str(self.path)

    @property
    def storage_options(self) -> None:
        return None

    def relative_to(self, home: Location) -> str:
        return self.path.relative_to(path_of(home)).as_posix()

    def below(self, relative: str) -> Self:
        return type(self)(below(self.path, relative))

    def resolved(self) -> Self:
        return type(self)(self.path.resolve())

    def called(self, text: str) -> Self:
        return type(self)(Path(text))

    def target(self) -> Self | None:
        # `resolve` raises RuntimeError for a loop of links.
        return type(self)(Path(os.path.realpath(self.path))) if self.path.is_symlink() else None

    def link_to(self, target: Location) -> None:
        self.path.symlink_to(path_of(target))

    def is_broken_link(self) -> bool:
        return self.path.is_symlink() and not self.path.exists()

    def is_there(self) -> bool:
        return self.path.is_file()

    def is_folder(self) -> bool:
        return self.path.is_dir()

    def listed(self) -> Iterator[Self]:
        try:
            return iter([type(self)(path) for path in self.path.iterdir()])
        except (FileNotFoundError, NotADirectoryError):
            return iter(())

    def glob(self, pattern: str) -> Iterator[Self]:
        if WILD.isdisjoint(pattern):
            # As `Path.glob` does, which opens and asks for much more: a look at thousands of days has one pattern for each.
            return iter([self / pattern] if (self / pattern).exists() else [])
        return map(type(self), self.path.glob(pattern))

    def files(self, home: Location, *, without: str = "", links: bool = False) -> Iterator[StoredFile]:
        above = self.path.relative_to(path_of(home)).as_posix()
        return _files(str(self.path), "" if above == "." else f"{above}/", without=without, links=links)

    def reader(self) -> BinaryIO:
        return self.path.open("rb")

    def state(self) -> State | None:
        return _state(self.path.stat()) if self.path.is_file() else None

    def content(self) -> tuple[State, str]:
        with self.path.open("rb") as file:
            return _state(os.fstat(file.fileno())), hashlib.file_digest(file, "sha256").hexdigest()

    def end(self, most: int = sys.maxsize) -> bytes:
        with self.path.open("rb") as file:
            file.seek(-min(most, self.path.stat().st_size), os.SEEK_END)
            return file.read()

    def each(self, do: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> list[_Answer]:
        return list(map(do, asked))

    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def size(self) -> int:
        return size_of(self.path)

    def stamp(self) -> tuple[object, ...]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return ()
        # The last one also tells a file that was moved away and back.
        return found.st_ino, found.st_mtime_ns, found.st_size, found.st_ctime_ns

    def altered(self, sizes: Mapping[str, int], mark: bytes) -> frozenset[str]:
        # Plain strings: with thousands of files, creating Path objects costs more than the checks.
        home = str(self.path.resolve())
        linked: dict[str, bool] = {"": False}
        return frozenset(
            path
            for path, size in sizes.items()
            if size_of(f"{home}/{path}") != size
            or _is_linked(home, path, linked)
            or not _has_mark(f"{home}/{path}", size, mark)
        )

    def make_folder(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def write(self, text: str) -> None:
        write_atomically(self.path, text)

    def create(self, text: str) -> None:
        _written(self.path, [text.encode()], os.link)

    def copy_from(self, source: Location, expected: Copied | None = None) -> Copied:
        with source.reader() as file:
            _written(self.path, content := Copying(file, source, expected), os.replace)
        return content.copied

    def rename_folder(self, name: str, first: str) -> None:
        del first  # a file system renames all at once
        target = self.path.with_name(name)
        if not target.is_dir():
            self.path.rename(target)
            self.parent.sync()

    def move_to(self, target: Location) -> None:
        self.path.replace(path_of(target))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def remove_folder(self) -> None:
        with suppress(OSError):
            self.path.rmdir()

    def sync(self) -> None:
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _state(status: os.stat_result) -> State:
    return State(status.st_size, EPOCH + dt.timedelta(microseconds=status.st_mtime_ns // 1000))


def path_of(place: Location) -> Path:
    """The path of a place in a file system; raises LayoutError if it is elsewhere."""
    if not isinstance(place, OnDisk):
        raise LayoutError(f"{place} is in an object store, and a folder was expected; name a folder")
    return place.path


def below(root: Path, relative: str) -> Path:
    """Resolve a path that must be below `root`, links followed.

    Raises:
        LayoutError: it is empty, absolute, a loop of links, or leads out of `root`.
    """
    home = root.resolve()
    try:
        path = (home / relative).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise LayoutError(
            f"{relative[:_SHOWN]!r} is no path below {root}: {error}; name a file or a folder there"
        ) from None
    if path == home or not path.is_relative_to(home) or ".." in Path(relative).parts:
        raise LayoutError(
            f"{relative[:_SHOWN]!r} leads out of {root}; name something below that folder, without '..' and without links out of it"
        )
    return path


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically and durably: completely or not at all.

    Raises:
        StorageError: the disk is full, or this user may not write there.
    """
    _written(path, [text.encode()], os.replace)


def _written(path: Path, content: Iterable[bytes], bring: Callable[[Path, Path], None]) -> None:
    """Write a draft and `bring` it to its path; raises FileExistsError if that refuses because of a file there."""
    draft = _draft(path)
    try:
        # If a file has the name of the folder, the draft cannot be opened.
        with suppress(FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
        # What a process of the same number left may be the file itself under a second name.
        draft.unlink(missing_ok=True)
        with draft.open("xb") as out:
            out.writelines(content)
            out.flush()
            os.fsync(out.fileno())
        bring(draft, path)
        OnDisk(path.parent).sync()
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror}); free space there or let this user write, "
            "and repeat the command: it continues where this one stopped"
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink()


def _draft(path: Path) -> Path:
    """The path of a file until it is complete; each thread has its own."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its user may read, from the first byte on."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def size_of(path: str | Path) -> int:
    """The size of a regular file in bytes; -1 if it is missing or a link."""
    try:
        found = os.lstat(path)
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def stored_file(path: Path, home: Path) -> StoredFile:
    """A file with its time and size, its path relative to `home`; raises FileNotFoundError if it is gone."""
    return _stored(path.relative_to(home).as_posix(), path.lstat())


def _stored(path: str, status: os.stat_result) -> StoredFile:
    return StoredFile(path, dt.datetime.fromtimestamp(status.st_mtime, dt.UTC), status.st_size)


def _files(folder: str, above: str, *, without: str, links: bool) -> Iterator[StoredFile]:
    """The files below a folder, by paths that begin with `above`; as text, because there are many."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == without:
                continue
            # A running process may have finished and renamed it.
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(entry.path, f"{above}{entry.name}/", without="", links=links)
                elif entry.is_file(follow_symlinks=False) or (links and not entry.is_dir()):
                    yield _stored(above + entry.name, entry.stat(follow_symlinks=False))


def _is_linked(home: str, path: str, known: dict[str, bool]) -> bool:
    """Whether a folder on the way to a file is a link; each folder is checked once."""
    folder = path.rpartition("/")[0]
    if folder not in known:
        known[folder] = os.path.islink(f"{home}/{folder}") or _is_linked(home, folder, known)  # noqa: PTH114 - see `altered`
    return known[folder]


def _has_mark(path: str, size: int, mark: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        length = len(mark)
        return os.pread(descriptor, length, 0) == mark == os.pread(descriptor, length, max(size - length, 0))
    except OSError:
        return False
    finally:
        os.close(descriptor)
