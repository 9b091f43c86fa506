"""How commands talk: tables and lines on standard output, refusals on standard error, JSON where asked."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from backfill_assets.domain.canonical import plain

_PIPE_WIDTH = 240
"""In a file or a pipe nobody sees the right edge, but a folded identifier cannot be searched for."""

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
        out.add_row(*(escape(str(value)) for value in row))
    console.print(out)


def as_json(value: object) -> None:
    """Print domain values as JSON."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))  # noqa: T201  # for programs, not for rich


def say(text: str) -> None:
    """Print a line as it is."""
    console.print(escape(text), soft_wrap=True)
