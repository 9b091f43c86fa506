"""Text files as lines, and the columns that their headlines name, without Spark."""

from __future__ import annotations

import codecs
import csv as csv_module
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final, Protocol, cast

import pyarrow as pa

from backfill_assets.core.errors import SourceError
from backfill_assets.core.text import in_one_line, shortened, visible
from backfill_assets.dataset.sources import Files

OPTIONAL: Final = ", where source.optional (a reference has its own) lists columns that some files do not have"
"""The end of an error about a missing column."""
BLANK: Final = bytes(range(0x21))
"""The bytes that a blank line consists of."""
_LONGEST_HEADER: Final = 1 << 20
_MOST_COLUMNS: Final = 10_000
_SHOWN: Final = 50
SHOWN_CHARACTERS: Final = 1_000
"""How much of the columns of a file an error shows."""
_SEPARATOR: Final = "\x1f"


class Readable(Protocol):
    """A file, wherever it is: a location, or its content in memory."""

    @property
    def suffix(self) -> str:
        """The end of its name, such as `.gz`."""
        ...

    def reader(self) -> BinaryIO:
        """The open file, for reading at any position."""
        ...


def headline(file: Readable, shown: str) -> bytes:
    """The bytes of the first line of a text file that is not blank; empty if there is none.

    Raises:
        SourceError: the line does not end within the first MiB, or the file cannot be read.
    """
    with lines_in(file, shown) as lines:
        return _first_line(lines, shown)


def columns_of(line: bytes, shown: str, declared: Files) -> tuple[str, ...]:
    """What a headline calls the columns, in order and in lower case.

    Raises:
        SourceError: declared columns are missing or named twice, or the line is no headline.
    """
    if not line:
        # A failed export leaves such a file: a complete file without rows still has its header.
        raise SourceError(
            f"{shown}: it has no header, so it is incomplete; deliver it again (a file without rows is a header alone). If it only "
            "marks that other files are complete, exclude it by a narrower source.path in dataset.yaml"
        )
    options = declared.csv
    delimiter = options.delimiter.replace("\\t", "\t")
    text = line.decode(declared.encoding, "replace").replace(delimiter, _SEPARATOR)
    try:
        row = next(csv_module.reader([text], delimiter=_SEPARATOR, quotechar=options.quote), [])
    except csv_module.Error as error:
        raise SourceError(f"{shown}: its header cannot be read: {in_one_line(error)}; deliver it again") from error
    if len(row) > _MOST_COLUMNS:
        raise SourceError(
            f"{shown}: its header names {len(row):,} columns, at most {_MOST_COLUMNS:,} are read; deliver it again"
        )
    names = tuple(name.replace(_SEPARATOR, delimiter).strip().lower() for name in row)
    require_names(names, shown, declared)
    return names


@contextmanager
def readable(shown: str) -> Iterator[None]:
    """Refuse a file that turns out to be gone, cut or damaged while it is read."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{shown}: cannot be read: {in_one_line(error)}; deliver it again") from error


@contextmanager
def opened_text(file: Readable) -> Iterator[BinaryIO]:
    """The content of a text file, decompressed if its name says that it is compressed."""
    with file.reader() as content:
        match file.suffix:
            case ".gz":
                with gzip.open(content) as text:
                    yield cast("BinaryIO", text)
            case ".zst":
                with pa.CompressedInputStream(content, "zstd") as text:
                    yield cast("BinaryIO", text)
            case _:
                yield content


@contextmanager
def lines_in(file: Readable, shown: str, longest: int = _LONGEST_HEADER) -> Iterator[Iterator[bytes]]:
    """The lines of a text file as Spark splits them, compressed or not, without a byte order mark."""
    with readable(shown), opened_text(file) as content:
        # Every byte is a character in this encoding, so all bytes are kept.
        text = io.TextIOWrapper(content, encoding="latin-1")
        read = iter(lambda: text.readline(longest).encode("latin-1"), b"")
        first = next(read, b"").removeprefix(codecs.BOM_UTF8)
        yield itertools.chain([first], read)


def _first_line(lines: Iterator[bytes], shown: str) -> bytes:
    """The first line that is not blank, or nothing; a file that begins with 1 MiB of blanks is refused."""
    length = 0
    for line in lines:
        length += len(line)
        if length >= _LONGEST_HEADER:
            raise SourceError(f"{shown}: its header does not end within {_LONGEST_HEADER >> 20} MiB; deliver it again")
        if line.strip(BLANK):
            return line.rstrip(b"\n")
    return b""


def require_names(found: tuple[str, ...], shown: str, declared: Files) -> None:
    """Refuse a file with these columns, in lower case, if declared ones are missing or named twice; errors call it `shown`."""
    own = declared.headers
    # A column that has its own name there is missing even if it is optional: it would be null although the file has it.
    wanted = {*declared.required, *(name for name in declared.columns if name in found)}
    missing = [declared.shown(name) for name in declared.columns if name in wanted and own[name] not in found]
    twice = [declared.shown(name) for name in declared.columns if found.count(own[name]) > 1]
    if missing or twice:
        what = f"does not name {', '.join(missing)}" if missing else f"names {', '.join(twice)} twice"
        raise SourceError(
            f"{shown}: its header {what}; expected {expected(declared)}; found {listed(found)}. "
            f"Deliver it with these columns, or correct columns in dataset.yaml{OPTIONAL if missing else ''}"
        )


def expected(declared: Files) -> str:
    """The declared columns as files call them, for errors."""
    return ", ".join(map(declared.shown, declared.columns))


def listed(found: tuple[str, ...]) -> str:
    """The columns of a file, for errors: not too many, and without invisible characters."""
    text = visible(", ".join(found[:_SHOWN]))
    return shortened(text, SHOWN_CHARACTERS) + (f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else "")
