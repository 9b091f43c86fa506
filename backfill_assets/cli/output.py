"""How commands talk: tables and lines on standard output, refusals on standard error, JSON where asked."""

from __future__ import annotations

import datetime as dt
import gc
import json
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from backfill_assets.core.canonical import plain
from backfill_assets.core.days import parse_day
from backfill_assets.core.text import visible

_PIPE_WIDTH = 240
"""In a file or a pipe nobody sees the right edge, but a folded identifier cannot be searched for."""

_HEAD, _TAIL = 1_000, 500
_OBJECTS = 500_000
"""So many new objects before the garbage collector looks: a history of ten thousand days makes millions that all stay."""


def collect_rarely() -> None:
    """Let the garbage collector rest while a command makes very many objects; a fifth of the time for big histories."""
    gc.set_threshold(_OBJECTS, 20, 50)


console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
errors = Console(stderr=True, highlight=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table; numbers are aligned to the right."""
    out = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        out.add_column(column, overflow="fold")
    for row in rows:
        out.add_row(*(escape(printable(str(value))) for value in row))
    console.print(out)


def as_json(value: object) -> None:
    """Print domain values as JSON."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))  # noqa: T201  # for programs, not for rich


def say(text: str) -> None:
    """Print a line as it is."""
    console.print(escape(printable(text)), soft_wrap=True)


def chosen_day(moment: dt.datetime) -> dt.date:
    """The day that an option or argument names.

    Raises:
        InvalidDayError: no dataset can have it.
    """
    return parse_day(moment.date().isoformat())


def printable(text: str) -> str:
    """The text with what a terminal would act on written as escapes, line by line: much of it was written by others."""
    return "\n".join(visible(line) for line in text.split("\n"))


def refuse(headline: str, text: str) -> None:
    """Print why a command ends without having done its work, on standard error."""
    shown = "\n".join(_shortened(line) for line in printable(text).split("\n"))
    errors.print(f"[bold red]{headline}:[/] {escape(shown)}", soft_wrap=True)


def _shortened(line: str) -> str:
    """The line without its middle if it is very long: what somebody gave stands early in it, and the remedy at its end."""
    return line if len(line) <= _HEAD + _TAIL else f"{line[:_HEAD]} … {line[-_TAIL:]}"
