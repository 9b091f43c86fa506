"""Objects of a bucket, as files and folders: there are no links, no empty folders, and whatever is there is durable."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from io import BytesIO
from typing import BinaryIO, Final, Self

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from backfill_assets.core.errors import LayoutError, StorageError
from backfill_assets.core.release import StoredFile
from backfill_assets.storage.location import Location

_AT_ONCE: Final = 16
"""Requests in flight: more do not make a store answer faster."""
_REGION: Final = "us-east-1"
"""Where S3-compatible stores without regions say they are."""
_WILD: Final = frozenset("*?[")
_SHOWN: Final = 200


@dataclass(frozen=True)
class Bucket:
    """A bucket of an S3-compatible store; keys and address come from the cloud's standard environment."""

    url: str
    store: S3Store = field(compare=False)
    options: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class InBucket(Location):
    """A place in a bucket; `key` has no slash at its ends."""

    bucket: Bucket
    key: str

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
        parts = relative.split("/")
        if not relative.isprintable() or any(part in {"", ".", ".."} for part in parts):
            raise LayoutError(f"{relative[:_SHOWN]!r} is no path below {self}; name a file or a folder there")
        return self / relative

    def resolved(self) -> Self:
        return self

    def is_link(self) -> bool:
        return False

    def is_there(self) -> bool:
        return self.size() >= 0

    def is_folder(self) -> bool:
        with _asking(self):
            first = next(iter(obstore.list(self.bucket.store, prefix=f"{self.key}/", chunk_size=1)), None)
        return bool(first)

    def listed(self) -> Iterator[Self]:
        with _asking(self):
            found = obstore.list_with_delimiter(self.bucket.store, prefix=f"{self.key}/" if self.key else None)
        yield from (self._with(key.rstrip("/")) for key in found["common_prefixes"])
        yield from (self._with(one["path"]) for one in found["objects"])

    def fitting(self, pattern: str) -> Iterator[Self]:
        part, _, rest = pattern.partition("/")
        if _WILD.isdisjoint(part):
            found = [self / part] if rest or (self / part).is_there() or (self / part).is_folder() else []
        else:
            found = [place for place in self.listed() if fnmatchcase(place.name, part)]
        for place in found:
            yield from place.fitting(rest) if rest else (place,)

    def files(self, home: Location, *, without: str = "", links: bool = False) -> Iterator[StoredFile]:
        del links  # there are none
        left_out = f"{self.key}/{without}/" if without else None
        with _asking(self):
            for chunk in obstore.list(self.bucket.store, prefix=f"{self.key}/"):
                for one in chunk:
                    if left_out is None or not one["path"].startswith(left_out):
                        path = self._with(one["path"]).relative_to(home)
                        yield StoredFile(path, one["last_modified"], one["size"])

    def reader(self) -> BinaryIO:
        return BytesIO(self._bytes())

    def end(self, most: int = sys.maxsize) -> bytes:
        size = self.size()
        if size < 0:
            raise FileNotFoundError(f"{self} is gone")
        if not size:
            return b""
        start = max(0, size - most)
        with _asking(self):
            return bytes(obstore.get_range(self.bucket.store, self.key, start=start, end=size))

    def text(self) -> str:
        return self._bytes().decode("utf-8")

    def size(self) -> int:
        return self._head()[0]

    def stamp(self) -> tuple[object, ...]:
        size, tag = self._head()
        return (tag, size) if size >= 0 else ()

    def altered(self, sizes: Mapping[str, int], mark: bytes) -> frozenset[str]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            sound = pool.map(lambda item: _has_mark(self / item[0], item[1], mark), sizes.items())
            return frozenset(path for path, fine in zip(sizes, sound, strict=True) if not fine)

    def make_folder(self) -> None:
        pass

    def write(self, text: str) -> None:
        self._put(text.encode(), replace=True)

    def create(self, text: str) -> None:
        self._put(text.encode(), replace=False)

    def rename_folder(self, name: str) -> None:
        target = self.parent / name
        names = sorted((file.path for file in self.files(self)), reverse=True)
        if not names and not target.is_folder():
            raise FileNotFoundError(f"{self} is gone")
        # What is left after an interrupted call; a folder that somebody began since then must not replace it.
        if names and not (target / names[-1]).is_there():
            for one in names:
                _copy(self / one, target / one)
        for one in names:
            (self / one).remove()

    def move_to(self, target: Location) -> None:
        _copy(self, target)
        self.remove()

    def remove(self) -> None:
        with _asking(self), suppress(FileNotFoundError):
            obstore.delete(self.bucket.store, self.key)

    def remove_folder(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def _with(self, key: str) -> Self:
        return type(self)(self.bucket, key)

    def _bytes(self) -> bytes:
        with _asking(self):
            return bytes(obstore.get(self.bucket.store, self.key).bytes())

    def _head(self) -> tuple[int, str]:
        """Size and tag; -1 and nothing if there is no such object."""
        with _asking(self):
            try:
                found = self.bucket.store.head(self.key)
            except FileNotFoundError:
                return -1, ""
        return found["size"], found["e_tag"] or ""

    def _put(self, content: bytes, *, replace: bool) -> None:
        with _asking(self):
            obstore.put(self.bucket.store, self.key, content, mode="overwrite" if replace else "create")


def bucket_of(url: str, environ: Mapping[str, str]) -> InBucket:
    """The place that `s3://bucket/prefix` names; address and region come from AWS_ENDPOINT_URL and AWS_REGION."""
    name, _, key = url.removeprefix("s3://").partition("/")
    endpoint = environ.get("AWS_ENDPOINT_URL", "")
    insecure = endpoint.startswith("http://")
    options = {"AWS_REGION": environ.get("AWS_REGION", _REGION)}
    if endpoint:
        options |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(insecure).lower()}
    store = S3Store(name, client_options={"allow_http": insecure}, region=options["AWS_REGION"])
    return InBucket(Bucket(f"s3://{name}", store, options), key.strip("/"))


def _has_mark(place: InBucket, size: int, mark: bytes) -> bool:
    if place.size() != size or size < len(mark):
        return False
    with _asking(place):
        starts, lengths = (0, size - len(mark)), (len(mark), len(mark))
        ends = obstore.get_ranges(place.bucket.store, place.key, starts=starts, lengths=lengths)
    return all(bytes(end) == mark for end in ends)


def _copy(place: InBucket, target: Location) -> None:
    if not isinstance(target, InBucket) or target.bucket != place.bucket:
        raise LayoutError(f"{target} is not in the bucket of {place}; name a place there")
    with _asking(place):
        obstore.copy(place.bucket.store, place.key, target.key)


@contextmanager
def _asking(place: InBucket) -> Iterator[None]:
    """Turn the errors of the store into ours; its library has tried again by then, with pauses that grow and differ.

    Raises:
        FileNotFoundError: there is no such object.
        FileExistsError: there is one already.
        StorageError: the store refuses, does not answer, or has no such bucket.
    """
    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" not in str(error):
            raise
        raise StorageError(
            f"{place}: there is no such bucket; create it, or correct its name and AWS_ENDPOINT_URL"
        ) from error
    except AlreadyExistsError as error:
        raise FileExistsError(f"{place} exists") from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise StorageError(
            f"{place}: the store refuses access ({_said(error)}); look at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
            "AWS_SESSION_TOKEN, which may have expired, and at the rights of their user"
        ) from error
    except BaseError as error:
        raise StorageError(
            f"{place}: the store does not do what it is asked ({_said(error)}); look at AWS_ENDPOINT_URL and "
            "AWS_REGION, and repeat the command: it continues where this one stopped"
        ) from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:_SHOWN]
