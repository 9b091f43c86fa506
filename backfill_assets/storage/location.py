"""Where files lie: one interface for folders and buckets, `Location`, with all that tables need of either."""

from __future__ import annotations

import datetime as dt
import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile
from typing import BinaryIO, Final, Self, TypeVar

from backfill_assets.core.errors import StorageError
from backfill_assets.core.release import StoredFile

WILD: Final = frozenset("*?[")
_PATTERN: Final = frozenset("[]{}*?\\")

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")
Sync = Callable[["Location"], None]
"""Makes a file, or the names in a folder, durable; once it returns, a power cut does not damage it."""


def sync(place: Location) -> None:
    """Make a file, or the names in a folder, durable; raises OSError if the disk refuses."""
    place.sync()


@dataclass(frozen=True)
class State:
    """Size of a file in bytes, and the time of its last change; where it is in a bucket, in whole seconds."""

    size: int
    at: dt.datetime


class Location(ABC):
    """A file, a folder, or a place where neither is yet.

    `str()` of it is what delta-rs opens. Places of one warehouse can be compared and sorted. All methods raise FileNotFoundError
    if a file is gone, OSError if the file system fails, and StorageError if the store does.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of its path."""

    @property
    def suffix(self) -> str:
        """What its name ends in, from the last dot on, in lower case."""
        return PurePosixPath(self.name).suffix.lower()

    @property
    @abstractmethod
    def parent(self) -> Self:
        """The folder that it is in."""

    @property
    @abstractmethod
    def storage_options(self) -> dict[str, str] | None:
        """What delta-rs needs to open it, besides its path."""

    @property
    @abstractmethod
    def for_spark(self) -> str:
        """Its path as Spark wants it."""

    @property
    def escaped_for_spark(self) -> str:
        """The same for Spark's readers: characters that they would take for a pattern are escaped."""
        return "".join("\\" + c if c in _PATTERN else c for c in self.for_spark)

    @abstractmethod
    def __str__(self) -> str: ...

    def __lt__(self, other: Location) -> bool:
        return str(self) < str(other)

    @abstractmethod
    def __truediv__(self, relative: str) -> Self:
        """The place with this path below it; nothing is checked."""

    @abstractmethod
    def relative_to(self, home: Location) -> str:
        """Its path below `home`, with slashes; raises ValueError if it is elsewhere."""

    @abstractmethod
    def below(self, relative: str) -> Self:
        """The place below this one that a path leads to, links followed.

        Raises:
            LayoutError: the path is empty, absolute, a loop of links, or leads out of this folder.
        """

    @abstractmethod
    def resolved(self) -> Self:
        """The same place, links followed."""

    @abstractmethod
    def called(self, text: str) -> Self:
        """The place whose `str()` this is, in the same file system or store."""

    @abstractmethod
    def target(self) -> Self | None:
        """Where a link leads; None if it is no link."""

    @abstractmethod
    def link_to(self, target: Location) -> None:
        """Make a link to a place; raises FileExistsError if anything is here, and LayoutError if no link leads there."""

    @abstractmethod
    def is_broken_link(self) -> bool:
        """Whether it is a link to nothing, or one of a loop of links."""

    @abstractmethod
    def each(self, do: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> list[_Answer]:
        """What `do` answers for each, in order; where each answer is a request to a store, several at a time."""

    @abstractmethod
    def is_there(self) -> bool:
        """Whether there is a file; a folder is none."""

    @abstractmethod
    def is_folder(self) -> bool:
        """Whether there is a folder; in a bucket it has at least one file below it."""

    def exists(self) -> bool:
        """Whether there is a file or a folder."""
        return self.is_there() or self.is_folder()

    @abstractmethod
    def listed(self) -> Iterator[Self]:
        """The direct entries of a folder, in no order; none if there is no folder."""

    def fitting(self, pattern: str) -> Iterator[Self]:
        """The places below a folder that fit a glob pattern without `**`, in no order; none if there is no folder.

        Unlike `Path.glob`, it raises what keeps it from looking: a log that cannot be listed is not an empty one.
        """
        part, _, rest = pattern.partition("/")
        if WILD.isdisjoint(part):
            found = [self / part] if rest or (self / part).exists() else []
        else:
            found = [place for place in self.listed() if fnmatchcase(place.name, part)]
        for place in found:
            yield from place.fitting(rest) if rest else (place,)

    @abstractmethod
    def glob(self, pattern: str) -> Iterator[Self]:
        """What fits a glob pattern below a folder, as `Path.glob` finds it; a bucket has only files."""

    @abstractmethod
    def files(self, home: Location, *, without: str = "", links: bool = False) -> Iterator[StoredFile]:
        """Every regular file below a folder, its path relative to `home`; links are not followed.

        `without` is an entry of the folder that is left out with everything below it; `links` lists everything but folders.
        """

    @abstractmethod
    def reader(self) -> BinaryIO:
        """An open file, for reading at any position."""

    @abstractmethod
    def state(self) -> State | None:
        """Size and time of last change of a file, links followed; None if there is no file.

        For what `glob` found in a bucket, it is that of the listing.
        """

    @abstractmethod
    def content(self) -> tuple[State, str]:
        """The state of a file and the SHA-256 of its bytes, as 64 hex digits; both of one version of it."""

    def sha256(self) -> str:
        """SHA-256 of a file's bytes, as 64 hex digits."""
        return self.content()[1]

    @abstractmethod
    def end(self, most: int = sys.maxsize) -> bytes:
        """The last bytes of a file, at most `most` of them."""

    @abstractmethod
    def text(self) -> str:
        """The text of a file."""

    @abstractmethod
    def size(self) -> int:
        """The size of a regular file in bytes; -1 if it is missing or a link."""

    @abstractmethod
    def stamp(self) -> tuple[object, ...]:
        """Distinguishes a file from any other that was ever at its path; empty if there is none."""

    @abstractmethod
    def altered(self, sizes: Mapping[str, int], mark: bytes) -> frozenset[str]:
        """The paths below a folder without a regular file of the given size that begins and ends with `mark`.

        A file behind a link counts as missing. Only both ends are read; a disk that lost content can still know the size.
        """

    @abstractmethod
    def make_folder(self) -> None:
        """Create a folder and its parents; does nothing if it exists."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Write a file atomically and durably: completely or not at all.

        Raises:
            StorageError: the disk is full, or this user may not write there.
        """

    @abstractmethod
    def create(self, text: str) -> None:
        """The same for a file that is not there yet.

        Raises:
            FileExistsError: there is one; or a store says so, because the answer to a first try was lost.
            StorageError: the disk is full, or this user may not write there.
        """

    @abstractmethod
    def copy_from(self, source: Location, expected: Copied | None = None) -> Copied:
        """Write a file with the bytes of another place, atomically and durably; a file that is there is replaced.

        Raises:
            FileNotFoundError: the source is gone.
            StorageError: the disk is full, or this user may not write there; the source cannot be read, or its bytes are not
                those that are `expected`, and nothing is written.
        """

    @abstractmethod
    def rename_folder(self, name: str, first: str) -> None:
        """Give a folder another name; does nothing if there is a complete folder of that name already.

        A folder is complete if it has its file `first`: a bucket can only copy the files, that one last, and then remove the old
        ones, that one first. A call that was interrupted can be repeated.

        Raises:
            FileNotFoundError: there is no folder of either name.
        """

    @abstractmethod
    def move_to(self, target: Location) -> None:
        """Give a file another path; a file that is there is replaced."""

    @abstractmethod
    def remove(self) -> None:
        """Remove a file; does nothing if it is gone."""

    @abstractmethod
    def remove_folder(self) -> None:
        """Remove a folder that is empty; one that is gone, or has files of others, is left as it is."""

    @abstractmethod
    def sync(self) -> None:
        """Make a file, or the names in a folder, durable; what is in a bucket is."""


CHUNK: Final = 1 << 20
"""Bytes that are read of a file at a time."""


@dataclass(frozen=True)
class Copied:
    """What was copied: the number of bytes, and their SHA-256 as 64 hex digits."""

    size: int
    sha256: str


class Copying:
    """The bytes of an open file, in parts of `CHUNK` bytes, counted and hashed as they are read; `place` is for messages.

    Raises:
        StorageError: the disk fails, the file was replaced or deleted meanwhile, or its bytes are not those `expected`.
    """

    def __init__(self, file: BinaryIO, place: Location, expected: Copied | None) -> None:
        self._file = file
        self._place = place
        self._expected = expected
        self._size = 0
        self._digest = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        try:
            while part := self._file.read(CHUNK):
                self._size += len(part)
                self._digest.update(part)
                yield part
        except OSError as error:
            raise StorageError(
                f"{self._place} cannot be read ({error}); look at its disk, and repeat the command"
            ) from error
        if self._expected not in (None, self.copied):
            raise StorageError(f"{self._place} is damaged: its bytes are not those that were saved there")

    @property
    def copied(self) -> Copied:
        """What was read so far."""
        return Copied(self._size, self._digest.hexdigest())


@contextmanager
def local_copy(source: Location, expected: Copied | None) -> Iterator[tuple[Path, Copied]]:
    """A file on the local disk, and what was copied; raises like `Location.copy_from`.

    While the library of a store sends what Python reads, Python cannot ask it for another file.
    """
    with source.reader() as file, NamedTemporaryFile() as local:
        local.writelines(content := Copying(file, source, expected))
        local.flush()
        yield Path(local.name), content.copied


def overlap(one: Location, other: Location) -> bool:
    """Whether two places, links followed, are the same or one is in the other."""
    ends = [f"{str(place).rstrip('/')}/" for place in (one, other)]
    return ends[0].startswith(ends[1]) or ends[1].startswith(ends[0])


def parents_up_to(place: Location, root: Location) -> Iterator[Location]:
    """The folders that a place is in, innermost first, up to and with `root`; raises ValueError if it is not below that."""
    for _ in range(place.relative_to(root).count("/") + 1):
        place = place.parent
        yield place


def remove_all(root: Location, files: Iterable[Location], folders: Collection[Location] = ()) -> None:
    """Remove files below `root`, then the folders that are empty; what is already gone is ignored."""
    root.each(lambda file: file.remove(), files)
    for folder in sorted(folders, key=lambda folder: str(folder).count("/"), reverse=True):
        folder.remove_folder()


def move_into(aside: Location, places: Iterable[Location], bring: Sync) -> None:
    """Move files of one folder into another, in this order and durably; missing files are ignored.

    If the name is taken there, the file gets a number after its name.
    """
    touched: set[Location] = set()
    for place in places:
        if place.exists():
            aside.make_folder()
            place.move_to(_free(aside, place.name))
            touched |= {aside, place.parent}
    for folder in sorted(touched, key=lambda folder: folder != aside):
        bring(folder)


def _free(aside: Location, name: str) -> Location:
    number, free = 0, aside / name
    while free.exists():
        number += 1
        free = aside / f"{name}.{number}"
    return free
