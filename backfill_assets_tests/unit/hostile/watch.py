"""What every refusal must be: early, in words that a terminal may show, and without a trace on disk."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from backfill_assets.core.errors import BackfillError

LONGEST_LINE = 4_000
_LARGE = 1 << 24
_MOST_READ = 1 << 23
_LONGEST = 5.0
_COUNTED = Path("/proc/self/io")
_LEDGER = ("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.lock")


@contextmanager
def little_read() -> Iterator[None]:
    """This process reads no more than some files of the largest allowed size, and is done within seconds.

    Input that is made to be slow takes minutes. The seconds are CPU time of this thread."""
    before, began = _read_so_far(), time.thread_time()
    yield
    took = time.thread_time() - began
    assert _read_so_far() - before <= _MOST_READ
    assert took < _LONGEST, f"{took:.2f} s of the processor"


def _read_so_far() -> int:
    # Linux counts the bytes of every read; other systems have no such file, and there nothing is asserted.
    return int(_COUNTED.read_text().split()[1]) if _COUNTED.exists() else 0


def calls_of(work: Callable[[], object]) -> int:
    """How many functions a piece of work calls, those written in C included."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@contextmanager
def nothing_written(folder: Path) -> Iterator[None]:
    """No file below the folder appears, disappears or changes, and no row of a ledger in it."""
    before = state_of(folder)
    yield
    assert state_of(folder) == before


def observed(error: BackfillError | str) -> str:
    """The message of a refusal, after a check of its form."""
    text = str(error)
    assert text.strip()
    for line in text.splitlines():
        assert len(line) <= LONGEST_LINE, line[:200]
    return text


# The remedy, or the allowed values.
_REMEDY = re.compile(
    r"\b(write|use|name|remove|drop|give|add|choose|shorten|deliver|correct|see|keep|put|let|set|make|save|move|take|say|rename|quote|"
    r"there are|it has|is one|only|may|at most|more than|longer than|larger than|deeper than|must|should|this is not?)\b",
    re.IGNORECASE,
)  # fmt: skip
_OF_A_WHOLE_FILE = re.compile(
    r"the file |name one|such a file|this is not?|the folder|is missing|there is no|rename|encod|UTF-8"
)


def helpful(text: str, file: str, *, line: bool = True) -> None:
    """A refusal of a file says where, by line unless it is about the entire file, and what to write instead."""
    place = re.match(rf"{re.escape(file)}.*?(:\d+)?: ", text)
    assert place, text
    said = text[place.end() :]
    assert place[1] or not line or _OF_A_WHOLE_FILE.search(said), text
    assert _REMEDY.search(said), text


def showable(text: str) -> None:
    """Nothing in a text would be acted on by a terminal, or hide something."""
    bad = {character for character in text if not character.isprintable() and character not in "\n\u200c\u200d"}
    assert not bad, ascii(bad)


def state_of(folder: Path) -> Mapping[str, str]:
    """Every file by its content, and a ledger by its rows."""
    files = {
        str(path.relative_to(folder)): _content(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in _LEDGER
    }
    rows = {str(path): _rows(path) for path in folder.rglob("ledger.db")}
    return files | rows


def _content(path: Path) -> str:
    status = path.stat()
    if status.st_size > _LARGE:
        return f"{status.st_size} {status.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _rows(ledger: Path) -> str:
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        return hashlib.sha256("\n".join(connection.iterdump()).encode()).hexdigest()
