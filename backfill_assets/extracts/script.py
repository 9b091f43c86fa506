"""Runs the Python file of an extract in a process of its own: it may hang, crash or print, and the worker goes on.

The process runs the text that was hashed when the dataset was loaded, and ends when its parent ends.
"""

from __future__ import annotations

import datetime as dt
import errno
import itertools
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from backfill_assets.core.errors import SourceError
from backfill_assets.core.text import format_duration, in_one_line, shortened, visible, without_secrets
from backfill_assets.dataset.extracts import SCRIPT, Extract
from backfill_assets.dataset.sources import Source
from backfill_assets.extracts.rows import BATCH, is_complete, write_rows

_DONE, _REFUSED, _NO_ROOM = 4, 3, 5
"""The exit codes of a process that has written all rows; or, in place of rows, why there are none; or not even that."""
_LONGEST: Final = 2000


def extract_script(source: Source, extract: Extract, day: dt.date, file: Path) -> None:
    """Write the rows that `extract(day)` of the file returns.

    Raises:
        SourceError: it fails, crashes or takes too long, or its rows do not fit the columns.
        OSError: the disk is full.
    """
    plain = source.model_dump(mode="json", by_alias=True)
    asked = json.dumps({"source": plain, "script": extract.script, "day": day.isoformat(), "file": str(file)})
    # The process finds what this one finds, wherever it was started.
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    with subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, env=environ, text=True) as child:
        try:
            if child.stdin is not None:
                with suppress(BrokenPipeError):
                    child.stdin.write(f"{asked}\n")
                    child.stdin.flush()
            code = child.wait(extract.timeout.total_seconds())
        except subprocess.TimeoutExpired:
            limit = format_duration(extract.timeout)
            raise SourceError(
                f"{SCRIPT} takes longer than its timeout, {limit}; make it faster, or set a longer one"
            ) from None
        finally:
            child.kill()
    if code == _REFUSED:
        # A file that ends its process with this very code has written no text.
        with file.open(encoding="utf-8", errors="replace") as why:
            raise SourceError(shortened(visible(why.read(_LONGEST)), _LONGEST))
    if code == _NO_ROOM:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    # A script that ends its process with the code of success leaves a file without its end.
    if code != _DONE or not is_complete(file):
        raise SourceError(f"{SCRIPT}: its process has ended with exit code {code}; see the run's output")


def _rows_of(source: Source, returned: Any) -> Iterator[list[tuple[object, ...]]]:
    """The rows in batches, their values in the order of the columns."""
    headers = dict.fromkeys(source.headers.values())
    required = {source.headers[name] for name in source.required}
    if not isinstance(returned, Iterable) or isinstance(returned, (str, bytes, Mapping)):
        raise SourceError(
            f"{SCRIPT}: extract returned a {type(returned).__name__}; return rows, each a mapping of its values"
        )
    numbered = enumerate(returned, 1)
    while batch := list(itertools.islice(numbered, BATCH)):
        rows = []
        for number, row in batch:
            if not isinstance(row, Mapping):
                raise SourceError(
                    f"{SCRIPT}: row {number} is a {type(row).__name__}; return a mapping of column to value"
                )
            values = {str(name).lower(): value for name, value in row.items()}
            if not required <= values.keys() <= headers.keys() or len(values) < len(row):
                names = ", ".join(map(source.shown, source.columns))
                raise SourceError(
                    f"{SCRIPT}: row {number} has {shortened(', '.join(map(str, row)), 200)}; expected exactly {names}, each once, "
                    "as columns in dataset.yaml"
                )
            rows.append(tuple(values.get(header) for header in headers))
        yield rows


def _run(asked: Mapping[str, Any]) -> None:
    source = Source.model_validate(asked["source"])
    module = sys.modules["extract"] = ModuleType("extract")
    exec(compile(asked["script"], SCRIPT, "exec", dont_inherit=True), vars(module))  # noqa: S102 - that is what the file is for
    if not callable(extract := getattr(module, "extract", None)):
        raise SourceError(f"{SCRIPT}: there is no function extract; write def extract(day)")
    returned = extract(dt.date.fromisoformat(asked["day"]))
    write_rows(Path(asked["file"]), source, list(source.headers.values()), _rows_of(source, returned))


def _why(error: BaseException) -> str:
    if isinstance(error, SourceError):
        return visible(str(error))
    own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == SCRIPT]
    place = f"{SCRIPT}, line {own[-1]}" if own else SCRIPT
    # Not the whole traceback: messages of libraries quote addresses with tokens.
    return f"{place}: {type(error).__name__}: {in_one_line(error)}"


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> int:
    """Run what the parent asks for in the first line of the standard input; the exit code."""
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        _run(asked)
    except BaseException as error:  # noqa: BLE001 - also sys.exit: what was written until then looks complete
        try:
            Path(asked["file"]).write_text(shortened(without_secrets(_why(error)), _LONGEST), encoding="utf-8")
        except OSError:
            return _NO_ROOM
        return _REFUSED
    return _DONE


if __name__ == "__main__":
    sys.exit(main())
