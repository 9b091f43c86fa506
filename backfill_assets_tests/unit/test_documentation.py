"""The documents name only existing commands, options and targets, and leave out no command."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from backfill_assets.cli.app import app
from backfill_assets.core.expected_change import parse_contract
from backfill_assets.dataset.yaml import read_yaml

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for folder in (ROOT, ROOT / "docs", ROOT / "docs" / "adr", ROOT / "backfills", *(ROOT / "packages").iterdir())
    for path in folder.glob("*.md")
)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4}(\S.*)$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


@cache
def root_command() -> TyperGroup:
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    return command


def code_of(text: str) -> Iterator[str]:
    """Every line of code in a document: of blocks, and between backticks."""
    for block in _FENCE.findall(text):
        # The output of a command may name others in its sentences.
        yield from (line.removeprefix("$ ") for line in block.splitlines())
    rest = _FENCE.sub("", text).replace("\\|", "|")  # in a table a bar is written so
    yield from _SPAN.findall(rest)
    yield from _INDENTED.findall(rest)


def commands_in(text: str) -> set[tuple[str, ...]]:
    """The words of every `backfill …` that begins a line of code, without a comment behind it."""
    return {tuple(line.split(" #")[0].split()[1:]) for line in code_of(text) if line.startswith("backfill ")}


def unknown_part_of(words: tuple[str, ...]) -> list[str]:
    """The part of a command that does not exist."""
    command: Any = root_command()
    rest = list(words)
    while isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
        names = rest.pop(0).split("|")
        unknown = [name for name in names if name not in command.commands and name != "…"]
        if unknown or names == ["…"]:
            return [f"no command {name!r} in backfill {' '.join(words)}" for name in unknown]
        command = command.commands[names[0]]
    options = {o for parameter in command.params for o in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    named = [word.strip("[]").split("=")[0] for word in rest if re.fullmatch(r"\[?--[a-z-]+(=.*)?\]?", word)]
    return [f"no option {name} of backfill {' '.join(words)}" for name in named if name not in options]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_document_names_only_commands_and_options_that_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert [fault for words in sorted(commands_in(text)) for fault in unknown_part_of(words)] == []


def test_every_command_is_in_the_readme() -> None:
    words = commands_in((ROOT / "README.md").read_text(encoding="utf-8"))
    named = {name for first, *_ in words for name in first.split("|")}
    assert set(root_command().commands) - named == set()


def test_the_help_of_a_command_shows_only_examples_that_exist() -> None:
    texts = [command.help or "" for command in root_command().commands.values()]
    examples = [line for text in texts for line in text.splitlines() if line.startswith("backfill ")]
    assert any("--expect " in line for line in examples)
    assert [fault for line in examples for fault in unknown_part_of(tuple(line.split()[1:]))] == []


def test_the_declaration_that_the_help_of_run_shows_can_be_read() -> None:
    text = (root_command().commands["run"].help or "").partition("must change:\n\n")[2]
    (clause,) = parse_contract(read_yaml(text).value, ("row_count", "amount")).clauses
    assert clause.days == (dt.date(2024, 3, 2), dt.date(2024, 3, 3))
    assert str(clause.metrics["amount"]) == "-51% to -49%"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_document_links_only_to_files_that_are_there(document: Path) -> None:
    links = _LINK.findall(_FENCE.sub("", document.read_text(encoding="utf-8")))
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_document_names_only_targets_of_the_makefile(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    lines = code_of(document.read_text(encoding="utf-8"))
    assert {m[1] for line in lines if (m := re.match(r"make ([a-z][a-z-]*)", line))} - targets == set()


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("`backfill status`", 0),
        ("`backfill stats`", 1),
        ("say `backfill hold lift DATASET …` now", 0),
        ("say `backfill hold raise`", 1),
        ("    backfill resume UNIT --watch   # comment --wach", 0),
        ("    backfill resume UNIT --wach", 1),
        ("```console\n$ backfill publish X --dry-run\n```", 0),
        ("```console\n$ backfill publish X --dry-rum\n```", 1),
        ("a backfill of days", 0),
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str, faults: int) -> None:
    found = [fault for words in commands_in(text + "\n") for fault in unknown_part_of(words)]
    assert len(found) == faults
