"""Planted bugs: where they may be, what they change, and what counts as caught."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import psutil
import pytest

from backfill_assets_tests.mutations import mutations
from backfill_assets_tests.planted_bugs import (
    ROOMS,
    ROOT,
    Bug,
    Copy,
    Result,
    as_markdown,
    caught_by,
    choose,
    is_tidy,
    modules_of,
    try_out,
)


def changed(source: str, kind: str) -> list[str]:
    """The source after each mutation of one kind."""
    return [mutation.applied(source) for mutation in mutations(source) if mutation.kind == kind]


def chosen(room: str, seed: int = 18) -> Bug:
    return choose(room, seed, accepts=lambda _file, _text: True)


def test_there_are_ten_rooms() -> None:
    assert len(ROOMS) == 10


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_exists_and_has_code_to_plant_into(room: str) -> None:
    assert any(mutations(path.read_text(encoding="utf-8")) for path in modules_of(room))


def test_no_module_belongs_to_two_rooms() -> None:
    modules = [set(modules_of(room)) for room in ROOMS]
    assert [one & other for one, other in combinations(modules, 2) if one & other] == []


def test_the_same_seed_chooses_the_same_bug_in_each_room() -> None:
    assert [chosen(room) for room in ROOMS] == [chosen(room) for room in ROOMS]


def test_another_seed_chooses_other_bugs() -> None:
    assert chosen("ledger", seed=1) != chosen("ledger", seed=2)


@pytest.mark.parametrize("room", ROOMS)
def test_a_bug_changes_the_named_lines_of_its_room_only(room: str) -> None:
    bug = chosen(room)
    before, after = bug.source.splitlines(), bug.planted.splitlines()
    first, last = bug.mutation.line - 1, bug.mutation.last
    assert ast.dump(ast.parse(bug.planted)) != ast.dump(ast.parse(bug.source))
    assert before[:first] == after[:first]
    assert before[last:] == after[len(after) - (len(before) - last) :]
    assert before[first:last] != after[first : len(after) - (len(before) - last)]
    assert any(bug.file.startswith(f"{folder}/") for folder in ROOMS[room])


def test_a_bug_that_ruff_would_find_is_not_chosen() -> None:
    refused = []

    def accepts(file: str, text: str) -> bool:
        refused.append(text)
        return len(refused) > 2

    assert choose("words", 18, accepts).planted == refused[2]


def test_text_that_the_formatter_or_the_linter_would_change_is_not_tidy() -> None:
    head = '"""A module."""\n\n'
    assert is_tidy("backfill_assets/core/x.py", f"{head}A = 1\n")
    assert not is_tidy("backfill_assets/core/x.py", f"{head}A = (1)\n")
    assert not is_tidy("backfill_assets/core/x.py", f"{head}import os\n")


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("comparison", "a < b", ["a <= b"]),
        ("comparison", "a >= b", ["a > b"]),
        ("comparison", "(a) == (b)", ["(a) != (b)"]),
        ("comparison", "a in b", ["a not in b"]),
        ("comparison", "a not in b", ["a in b"]),
        ("comparison", "a is  not b", ["a is b"]),
        ("comparison", "a < b <= c", ["a <= b <= c", "a < b < c"]),
        ("comparison", "'ö' < b", ["'ö' <= b"]),
        ("and/or", "a and b and c", ["a or b and c", "a and b or c"]),
        ("and/or", "a or (b)", ["a and (b)"]),
        ("not dropped", "a = not b", ["a = b"]),
        ("condition negated", "a if b else c", ["a if not b else c"]),
        ("condition negated", "if a and b:\n    c", ["if not (a and b):\n    c"]),
        ("condition negated", "[a for a in b if c(a)]", ["[a for a in b if not c(a)]"]),
        ("condition negated", "def f() -> bool:\n    return a.b", ["def f() -> bool:\n    return not a.b"]),
        ("arithmetic", "a + b", ["a - b"]),
        ("arithmetic", "a -= b", ["a += b"]),
        ("set operation", "a & b", ["a | b"]),
        ("set operation", "set(a) - b", ["set(a) & b"]),
        ("number + 1", "a[0]", ["a[1]"]),
        ("number + 1", "f(mode=0o600)", ["f(mode=0o601)"]),
        ("True/False", "f(a=True)", ["f(a=False)"]),
        ("nothing returned", "def f() -> str | None:\n    return a", ["def f() -> str | None:\n    return None"]),
        ("nothing returned", "def f() -> list[int]:\n    return a", ["def f() -> list[int]:\n    return []"]),
        ("call deleted", "if a:\n    f()", ["if a:\n    pass"]),
        ("call deleted", "a = 1\nf(\n    b\n)\nc = 2", ["a = 1\nc = 2"]),
        ("min/max", "min(a)", ["max(a)"]),
        ("any/all", "all(a)", ["any(a)"]),
        ("order", "sorted(a, key=b)", ["sorted(a, key=b, reverse=True)"]),
    ],
)
def test_a_mutation_does_what_its_name_says(kind: str, source: str, expected: list[str]) -> None:
    assert changed(source, kind) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""At most 3, and not 4."""',
        'def f():\n    """1 < 2"""',
        "a: Literal[1] | None",
        "def f(a: Literal[1]) -> int | Literal[2]: ...",
        "Decision = Admitted | Waits[int] | None",
        'f"{a + 1} of {b and c}"',
        'raise ValueError("no", 1, a < b)',
        "context.log.info(a and 1)",
        "_LOGGER.warning(1)",
        "@retry(3)\ndef f(): ...",
        "class A(B, order=True): ...",
        "if TYPE_CHECKING:\n    import a",
        'if __name__ == "__main__":\n    main()',
        "def __repr__(self):\n    return a and 1",
        "assert a < 1",
        "_TIMEOUT = dt.timedelta(hours=1)",
        "a = B(chunk_size=2 * 1024)",
        "def f(poll_seconds=5, *, width=3): ...",
        "a = ConfigDict(frozen=True)",
        'a + "text"',
    ],
)
def test_no_bug_is_planted_where_it_would_change_no_behaviour(source: str) -> None:
    assert mutations(source) == []


@pytest.mark.parametrize(
    ("output", "by"),
    [
        ("...\nFAILED a/test_b.py::test_c[x y] - assert 1 == 2\nFAILED z.py::test_z\n", "a/test_b.py::test_c[x y]"),
        ("ERROR a/test_b.py - ImportError: no\n", "a/test_b.py"),
        (
            "backfill_assets/x.py:3: error: Missing return [return]\n",
            "backfill_assets/x.py:3: error: Missing return [return]",
        ),
        (
            "ImportError while loading conftest 'a/conftest.py'.\n",
            "ImportError while loading conftest 'a/conftest.py'.",
        ),
        ("make: Java was not found. Spark needs Java 17 or newer\n", ""),
        ("Would reformat: backfill_assets/x.py\nmake: *** [Makefile:91: static] Error 1\n", ""),
    ],
)
def test_the_first_failed_test_or_the_message_of_mypy_catches_a_bug(output: str, by: str) -> None:
    assert caught_by(output)[0] == by


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy, not made yet, of a checkout with one module and one test."""
    checkout = tmp_path / "of"
    (checkout / "packages" / "dagster-batched-events").mkdir(parents=True)
    for name, text in {
        "calc.py": "def more(a: int) -> int:\n    return a + 1\n",
        "test_calc.py": "from calc import more\n\ndef test_more():\n    assert more(1) == 2\n",
        "pytest.ini": "[pytest]\n",
        "requirements.lock": "",
        "pyproject.toml": "",
        "packages/dagster-batched-events/pyproject.toml": "",
    }.items():
        (checkout / name).write_text(text)
    (checkout / ".venv").symlink_to(sys.prefix)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (
        ["init", "-q"],
        ["add", "*.py", "*.ini", "*.lock", "*.toml"],
        [*identity, "commit", "-q", "-m", "one"],
    ):
        subprocess.run(["git", *command], cwd=checkout, check=True, capture_output=True)
    return Copy(tmp_path / "copy", checkout)


@pytest.fixture
def bug(copy: Copy) -> Bug:
    source = (copy.of / "calc.py").read_text()
    (mutation,) = (m for m in mutations(source) if m.kind == "arithmetic")
    return Bug("calc", "calc.py", source, mutation)


@pytest.mark.slow  # runs a pytest of its own
def test_a_bug_is_caught_by_a_test_that_passes_without_it(bug: Bug, copy: Copy) -> None:
    result = try_out(bug, copy, [sys.executable, "-m", "pytest", "-q"])
    assert (result.caught, result.by, result.place) == (True, "test_calc.py::test_more", "calc.py:2")
    assert result.diff == "- return a + 1 + return a - 1"
    assert (copy.of / "calc.py").read_text() == bug.source


@pytest.mark.slow  # runs a pytest of its own
def test_a_test_that_fails_without_the_bug_too_does_not_catch_it(bug: Bug, copy: Copy) -> None:
    result = try_out(bug, copy, ["sh", "-c", "echo 'FAILED test_absent.py::test_x - no'; exit 1"])
    assert (result.caught, result.note) == (False, "test_absent.py::test_x fails without the bug, too")


def test_a_command_that_fails_for_an_unknown_reason_does_not_catch_a_bug(bug: Bug, copy: Copy) -> None:
    result = try_out(bug, copy, ["sh", "-c", "echo no Java; exit 2"])
    assert (result.caught, result.note) == (False, "failed otherwise: no Java\n")


def test_a_bug_that_fails_no_test_is_not_caught(bug: Bug, copy: Copy) -> None:
    assert try_out(bug, copy, ["true"]).note == "not caught"


def test_processes_that_a_command_leaves_running_are_ended(copy: Copy) -> None:
    copy.make()
    left = int(copy.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"]).stdout)
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


def test_the_commands_of_a_copy_use_its_own_modules_state_and_temporary_files(copy: Copy) -> None:
    copy.make()
    shown = copy.run(["sh", "-c", "echo $PYTHONPATH $BACKFILL_ASSETS_STATE $TMPDIR; pwd"]).stdout.split()
    modules = f"{copy.checkout}:{copy.checkout}/packages/dagster-batched-events/src"
    assert shown == [modules, f"{copy.checkout}/.state", f"{copy.folder}/t", str(copy.checkout)]


def test_make_finds_the_shared_environment_newer_than_what_a_copy_would_install(copy: Copy) -> None:
    copy.make()
    rule = re.search(r"^\$\(STAMP\): (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert rule is not None
    names = rule[1].replace("$(EVENTS)", "packages/dagster-batched-events").split()
    assert {(copy.checkout / name).stat().st_mtime for name in names} == {0}


def test_a_file_with_changes_that_are_not_committed_gets_no_bug(bug: Bug, copy: Copy) -> None:
    (copy.of / "calc.py").write_text("")
    subprocess.run(
        ["git", "-C", copy.of, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "two"], check=True
    )
    assert "not committed" in try_out(bug, copy, ["false"]).note


def test_the_table_has_a_line_per_bug_whatever_the_change_contains() -> None:
    results = [Result("a", "b.py:1", "set operation", "- a | b + a & b", note="one\ntwo")]
    assert as_markdown(results).splitlines()[2:] == [
        r"| a | b.py:1 | set operation: `- a \| b + a & b` | **one two** | 0 |"
    ]
