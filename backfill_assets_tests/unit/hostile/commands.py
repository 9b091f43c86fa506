"""The console script in this process, and every command and option that it has."""

from __future__ import annotations

import gc
import io
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import click
import typer

from backfill_assets.cli.app import app, main

NEEDS_SPARK = frozenset({"spark start", "spark stop", "sql"})
"""Commands that would start or stop a server before they check their arguments, or that take none."""


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


@contextmanager
def _as_a_program(words: Sequence[str]) -> Iterator[None]:
    before, handler, threshold = (sys.argv, sys.stdin), signal.getsignal(signal.SIGTERM), gc.get_threshold()
    # No user is at the terminal to answer.
    sys.argv, sys.stdin = ["backfill", *words], io.StringIO()
    try:
        yield
    finally:
        sys.argv, sys.stdin = before
        signal.signal(signal.SIGTERM, handler)
        gc.set_threshold(*threshold)


def run(*words: str) -> Said:
    """Run the console script as a shell does."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with _as_a_program(words), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return Said(code, out.getvalue(), err.getvalue())


def commands() -> dict[str, list[click.Parameter]]:
    """Every command by its name, with its parameters."""
    found: dict[str, list[click.Parameter]] = {}

    def walk(group: Any, path: tuple[str, ...]) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                walk(command, (*path, name))
            else:
                found[" ".join((*path, name))] = command.params

    walk(typer.main.get_command(app), ())
    return {name: params for name, params in found.items() if name not in NEEDS_SPARK}
