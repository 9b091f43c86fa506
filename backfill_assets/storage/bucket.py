"""Objects of a bucket, as files and folders: there are no empty folders, and whatever is there is durable."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, Self, TypeVar, cast

import obstore
from obstore.exceptions import AlreadyExistsError

from backfill_assets.core.canonical import canonical_json
from backfill_assets.core.errors import LayoutError, StorageError
from backfill_assets.core.release import StoredFile
from backfill_assets.storage.location import CHUNK, WILD, Copied, Location, State, local_copy
from backfill_assets.storage.object_store import Bucket, asking, reached

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

_AT_ONCE: Final = 16  # requests in flight to a store: more do not make it answer faster
_SHOWN: Final = 200
_LINK: Final = "link"
_LONGEST_LINK: Final = 4096
"""Bytes; a key has at most 1,024."""

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")
_Folder = TypeVar("_Folder", bound="InBucket")


@dataclass(frozen=True)
class InBucket(Location):
    """A place in a bucket; `key` has no slash at its ends."""

    bucket: Bucket
    key: str
    seen: State | None = field(default=None, compare=False, repr=False)
    """Its state when it was listed."""

    def __str__(self) -> str:
        return f"{self.bucket.url}/{self.key}" if self.key else self.bucket.url

    def __truediv__(self, relative: str) -> Self:
        return self._with(f"{self.key}/{relative}" if self.key else relative)

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        return self._with(self.key.rpartition("/")[0])

    @property
    def for_spark(self) -> str:
        return f"s3a://{str(self).removeprefix('s3://')}"

    @property
    def storage_options(self) -> dict[str, str]:
        return dict(self.bucket.options)

    def relative_to(self, home: Location) -> str:
        above = f"{home}/"
        if not str(self).startswith(above):
            raise ValueError(f"{self} is not below {home}")
        return str(self).removeprefix(above)

    def below(self, relative: str) -> Self:
        parts = PurePosixPath(relative).parts
        if not parts or not relative.isprintable() or {"/", "//", ".."} & set(parts):
            raise LayoutError(f"{relative[:_SHOWN]!r} is no path below {self}; name a file or a folder there")
        return self / "/".join(parts)

    def resolved(self) -> Self:
        return self

    def called(self, text: str) -> Self:
        name, _, key = text.removeprefix("s3://").partition("/")
        return type(self)(self.bucket.beside(name), key)

    def target(self) -> Self | None:
        try:
            with asking(self):
                found = obstore.get(self.bucket.store, self.key)
                known = json.loads(bytes(found.bytes())) if found.meta["size"] <= _LONGEST_LINK else None
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(known, dict) or list(known) != [_LINK]:
            return None
        return self.called(str(known[_LINK]))

    def link_to(self, target: Location) -> None:
        """An object that names the place: stores have no links, and only `target` follows this one."""
        if not isinstance(target, InBucket):
            raise LayoutError(f"{target} is no place in a bucket, and no link of {self.bucket.url} leads there")
        if self.is_folder():
            raise FileExistsError(f"{self} exists")
        self.create(canonical_json({_LINK: str(target)}))

    def is_broken_link(self) -> bool:
        return False

    def each(self, do: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> list[_Answer]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(do, asked))

    def is_there(self) -> bool:
        return self.size() >= 0

    def is_folder(self) -> bool:
        return next(self._below(), None) is not None

    def listed(self) -> Iterator[Self]:
        with asking(self):
            found = obstore.list_with_delimiter(self.bucket.store, prefix=f"{self.key}/" if self.key else None)
        yield from (self._with(key.rstrip("/")) for key in found["common_prefixes"])
        yield from (self._with(one["path"]) for one in found["objects"] if one["path"] != self.key)

    def glob(self, pattern: str) -> Iterator[Self]:
        shape = PurePosixPath(pattern).parts
        spelled = "/".join(takewhile(WILD.isdisjoint, shape[:-1]))
        for place, one in _objects(self / spelled if spelled else self):
            if _fits(place.relative_to(self).split("/"), shape) and _is_file(place, one):
                yield replace(place, seen=_state(one))

    def files(self, home: Location, *, without: str = "", links: bool = False) -> Iterator[StoredFile]:
        del links  # as a file, a link is one like others
        left_out = f"{self.key}/{without}/"
        for place, file in self._below():
            if not without or not place.key.startswith(left_out):
                yield StoredFile(place.relative_to(home), file["last_modified"], file["size"])

    def reader(self) -> BinaryIO:
        size, tag = self._head()
        if size < 0:
            raise FileNotFoundError(f"{self} is gone")
        return cast("BinaryIO", io.BufferedReader(_Ranges(self, size, tag), CHUNK))

    def state(self) -> State | None:
        if self.seen is None:
            with suppress(FileNotFoundError), asking(self):
                return _state(self.bucket.store.head(self.key))
        return self.seen

    def content(self) -> tuple[State, str]:
        digest = hashlib.sha256()
        with asking(self):
            found = obstore.get(self.bucket.store, self.key)
            for chunk in found.stream():
                digest.update(chunk)
        return _state(found.meta), digest.hexdigest()

    def end(self, most: int = sys.maxsize) -> bytes:
        size = self.size()
        if size < 0:
            raise FileNotFoundError(f"{self} is gone")
        if not size:
            return b""
        start = max(0, size - most)
        with asking(self):
            return bytes(obstore.get_range(self.bucket.store, self.key, start=start, end=size))

    def text(self) -> str:
        return self._bytes().decode("utf-8")

    def size(self) -> int:
        return self._head()[0]

    def stamp(self) -> tuple[object, ...]:
        with asking(self):
            try:
                found = self.bucket.store.head(self.key)
            except FileNotFoundError:
                return ()
        # The tag may only be a hash of the content: the time tells an object that was put back.
        return found["e_tag"], found["size"], found["last_modified"], found.get("version")

    def altered(self, sizes: Mapping[str, int], mark: bytes) -> frozenset[str]:
        sound = self.each(lambda item: _has_mark(self / item[0], item[1], mark), sizes.items())
        return frozenset(path for path, fine in zip(sizes, sound, strict=True) if not fine)

    def make_folder(self) -> None:
        pass

    def write(self, text: str) -> None:
        self._put(text.encode(), "overwrite")

    def create(self, text: str) -> None:
        self._put(text.encode(), "create")

    def copy_from(self, source: Location, expected: Copied | None = None) -> Copied:
        with local_copy(source, expected) as (local, copied), asking(self):
            obstore.put(self.bucket.store, self.key, local, max_concurrency=2)
        return copied

    def rename_folder(self, name: str, first: str) -> None:
        target, names = self.parent / name, [file.path for file in self.files(self)]
        complete = (target / first).is_there()
        if not names and not complete:
            raise FileNotFoundError(f"{self} is gone")
        if complete:
            # An earlier call was cut off; but what somebody has written since then is not of this folder.
            equal = self.each(lambda one: _are_equal(self / one, target / one), names)
            names = [one for one, same in zip(names, equal, strict=True) if same]
        begin, rest = [one for one in names if one == first], [one for one in names if one != first]
        if not complete:
            for part in (rest, begin):
                self.each(lambda one: _copied(self / one, target / one), part)
        for part in (begin, rest):
            self.each(lambda one: (self / one).remove(), part)

    def move_to(self, target: Location) -> None:
        _copied(self, target)
        self.remove()

    def remove(self) -> None:
        with suppress(FileNotFoundError), asking(self):
            obstore.delete(self.bucket.store, self.key)

    def remove_folder(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def _with(self, key: str) -> Self:
        return type(self)(self.bucket, key)

    def _below(self) -> Iterator[tuple[Self, ObjectMeta]]:
        """All files below a folder, each with what the store says of it."""
        return ((place, one) for place, one in _objects(self) if _is_file(place, one))

    def _bytes(self) -> bytes:
        with asking(self):
            return bytes(obstore.get(self.bucket.store, self.key).bytes())

    def _head(self) -> tuple[int, str]:
        """Size and tag; -1 and nothing if there is no such object."""
        with asking(self):
            try:
                found = self.bucket.store.head(self.key)
            except FileNotFoundError:
                return -1, ""
        return found["size"], found["e_tag"] or ""

    def _put(self, content: bytes, mode: Literal["create", "overwrite"]) -> None:
        with asking(self):
            try:
                obstore.put(self.bucket.store, self.key, content, mode=mode)
            except AlreadyExistsError as error:
                raise FileExistsError(f"{self} exists") from error


class _Ranges(io.RawIOBase):
    """The bytes of one version of an object, at any position."""

    def __init__(self, place: InBucket, size: int, tag: str) -> None:
        self._place = place
        self._size = size
        self._tag = tag
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        end = min(self._size, self._at + len(buffer))
        if self._at >= end:
            return 0
        asked: GetOptions = {"range": (self._at, end)}
        if self._tag:
            asked["if_match"] = self._tag
        with asking(self._place):
            found = bytes(obstore.get(self._place.bucket.store, self._place.key, options=asked).bytes())
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def _objects(folder: _Folder) -> Iterator[tuple[_Folder, ObjectMeta]]:
    """All objects below a folder, also those by which Hadoop marks folders."""
    with asking(folder):
        for chunk in obstore.list(folder.bucket.store, prefix=f"{folder.key}/" if folder.key else None):
            for one in chunk:
                if one["path"] != folder.key:
                    yield replace(folder, key=one["path"], seen=None), one


def _is_file(place: InBucket, one: ObjectMeta) -> bool:
    # The listing leaves the slash at the end of a mark out: under the rest of its name there is nothing.
    return bool(one["size"]) or place.is_there()


def _state(one: ObjectMeta) -> State:
    # Some stores list milliseconds, and say whole seconds of a single object.
    return State(one["size"], one["last_modified"].replace(microsecond=0))


def _fits(parts: Sequence[str], shape: Sequence[str]) -> bool:
    """Whether a path fits a glob pattern, part by part; `**` is there at most once, for any number of folders."""
    if "**" in shape:
        front = shape.index("**")
        back = len(shape) - front - 1
        if len(parts) < front + back:
            return False
        parts, shape = [*parts[:front], *parts[len(parts) - back :]], [*shape[:front], *shape[front + 1 :]]
    return len(parts) == len(shape) and all(map(fnmatchcase, parts, shape))


def bucket_of(url: str, environ: Mapping[str, str] = os.environ) -> InBucket:
    """The place that `s3://bucket/prefix` names; raises like `reached`."""
    name, _, key = url.removeprefix("s3://").partition("/")
    return InBucket(reached(name, environ), key.strip("/"))


def _are_equal(one: InBucket, other: InBucket) -> bool:
    with suppress(FileNotFoundError):
        return one.size() == other.size() and one.end() == other.end()
    return False


def _has_mark(place: InBucket, size: int, mark: bytes) -> bool:
    if place.size() != size or size < len(mark):
        return False
    with suppress(FileNotFoundError), asking(place):
        starts, lengths = (0, size - len(mark)), (len(mark), len(mark))
        ends = obstore.get_ranges(place.bucket.store, place.key, starts=starts, lengths=lengths)
        return all(bytes(end) == mark for end in ends)
    return False


def _copied(place: InBucket, target: Location) -> None:
    """Let the store copy an object, and see that it did: the original is removed next."""
    if not isinstance(target, InBucket) or target.bucket != place.bucket:
        raise LayoutError(f"{target} is not in the bucket of {place}; name a place there")
    with asking(place):
        obstore.copy(place.bucket.store, place.key, target.key)
    # Gone: somebody else has seen that it was copied.
    if not _are_equal(place, target) and place.is_there():
        raise StorageError(f"{target}: the store said that it copied {place}, and it did not; {place} is still there")
