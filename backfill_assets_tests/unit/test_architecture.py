"""The shape of the code: allowed imports, maximum lengths, the form of errors."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import backfill_assets
from backfill_assets.core import errors
from tools.house import MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_A_MODULE, lines_of

PACKAGE = Path(backfill_assets.__file__).parent
DEMO = PACKAGE.parent / "demo"
EVENTS = PACKAGE.parent / "packages" / "dagster-batched-events" / "src"
MAX_PARAMETERS = 7
WORDS_MAY_IMPORT = sys.stdlib_module_names | {"pydantic", "annotated_types"}
BUILTIN_ERRORS = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}

# These rooms access files and folders only through storage: another place for tables is then one module. Not included: the
# ledger, the Spark server and the pages of reports, which have files of their own and no tables.
ROOMS_ON_THE_WAREHOUSE = (
    "control", "core", "delta", "doctor", "evidence", "notices", "pipeline", "proof", "release",
)  # fmt: skip
ON_OTHER_FILES = {
    "control/commands.py": "specifications lie in a checkout",
}
FILE_MODULES = {"fileinput", "glob", "shutil", "tempfile"}
HARMLESS_IN_OS = {"environ", "getpid"}
# Without `exists`, which a published table has as well, and `replace`, which texts have.
PATH_METHODS = {
    "chmod", "glob", "hardlink_to", "is_dir", "is_file", "is_symlink", "iterdir", "lstat", "mkdir", "open", "read_bytes",
    "read_text", "rename", "rglob", "rmdir", "stat", "symlink_to", "touch", "unlink", "walk", "write_bytes", "write_text",
}  # fmt: skip

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[ast.Module], Iterator[str]]


def modules_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def all_modules() -> list[Path]:
    """The modules of all packages of this repository, and of the demo."""
    paths = [*modules_of(PACKAGE), *modules_of(EVENTS), *modules_of(DEMO)]
    assert any(EVENTS in path.parents for path in paths), (
        "the batched events have no modules: this looks in the wrong place"
    )
    return paths


def functions_of(tree: ast.Module) -> Iterator[FunctionNode]:
    return (node for node in ast.walk(tree) if isinstance(node, FunctionNode))


def parameters_of(function: FunctionNode) -> list[ast.arg]:
    listed = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [parameter for parameter in listed if parameter.arg not in {"self", "cls"}]


def impure_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{'.' * node.level}{node.module or ''}"]
        else:
            continue
        for name in names:
            is_own_room = name == "backfill_assets.core" or name.startswith("backfill_assets.core.")
            if not is_own_room and name.split(".")[0] not in WORDS_MAY_IMPORT:
                yield f"line {node.lineno}: imports {name}"


def too_long_functions(tree: ast.Module) -> Iterator[str]:
    for function in functions_of(tree):
        if lines_of(function) > MOST_LINES_OF_A_FUNCTION:
            yield f"line {function.lineno}: {function.name} has {lines_of(function)} lines"


def too_many_parameters(tree: ast.Module) -> Iterator[str]:
    for function in functions_of(tree):
        if len(parameters_of(function)) > MAX_PARAMETERS:
            yield f"line {function.lineno}: {function.name} has {len(parameters_of(function))} parameters"


def missing_annotations(tree: ast.Module) -> Iterator[str]:
    for function in functions_of(tree):
        starred = [arg for arg in (function.args.vararg, function.args.kwarg) if arg is not None]
        bare = [arg.arg for arg in [*parameters_of(function), *starred] if arg.annotation is None]
        if bare:
            yield f"line {function.lineno}: {function.name} does not annotate {', '.join(bare)}"
        if function.returns is None:
            yield f"line {function.lineno}: {function.name} does not annotate what it returns"


def rootless_errors(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if bases & BUILTIN_ERRORS:
                yield f"line {node.lineno}: {node.name} is not a BackfillError of core/errors.py"


def file_operations(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"line {node.lineno}: imports {n.name}" for n in names if n.name in FILE_MODULES)
            case ast.ImportFrom(module="os" | "fileinput" | "glob" | "shutil" | "tempfile"):
                yield f"line {node.lineno}: imports from {node.module}"
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name not in HARMLESS_IN_OS:
                yield f"line {node.lineno}: asks os for {name}"
            case ast.Call(func=ast.Attribute(attr=name)) if name in PATH_METHODS:
                yield f"line {node.lineno}: calls {name}"
            case ast.BinOp(op=ast.Div(), left=ast.Call(func=ast.Attribute(attr=name))) if name.endswith("_path"):
                yield f"line {node.lineno}: goes on from {name}"
            case ast.Attribute(value=ast.Name(id="layout") | ast.Attribute(attr="layout"), attr="warehouse"):
                yield f"line {node.lineno}: goes into the warehouse"
            case _:
                pass


def breaches(rule: Rule, paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE.parent)} {breach}"
        for path in paths
        for breach in rule(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
    ]


def without_migrations(paths: list[Path]) -> list[Path]:
    # A released migration is history: it is never edited again, so no limit applies to it.
    return [path for path in paths if "migrations" not in path.parts]


def test_the_core_imports_only_the_standard_library_and_pydantic() -> None:
    paths = modules_of(PACKAGE / "core")
    assert paths, "there are no modules: this test looks in the wrong place"
    assert breaches(impure_imports, paths) == []


def test_no_module_is_longer_than_the_limit() -> None:
    lengths = {
        str(path.relative_to(PACKAGE.parent)): len(path.read_text(encoding="utf-8").splitlines())
        for path in all_modules()
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_MODULE} == {}


def test_no_function_is_longer_than_the_limit() -> None:
    assert breaches(too_long_functions, without_migrations(all_modules())) == []


def test_no_function_takes_more_parameters_than_the_limit() -> None:
    # A command of the console script has a parameter per option, and only typer calls it.
    paths = [path for path in all_modules() if "cli" not in path.parts]
    assert breaches(too_many_parameters, paths) == []


def test_every_function_is_annotated() -> None:
    assert breaches(missing_annotations, all_modules()) == []


def test_every_error_has_the_one_root() -> None:
    paths = [path for path in [*modules_of(PACKAGE), *modules_of(DEMO)] if path != PACKAGE / "core" / "errors.py"]
    assert breaches(rootless_errors, paths) == []


def test_every_error_says_when_it_is_raised() -> None:
    own = [
        error
        for error in vars(errors).values()
        if inspect.isclass(error)
        and issubclass(error, BaseException)
        and error.__module__ == errors.__name__
        and error is not errors.BackfillError
    ]
    assert own, "no error classes were found: this test looks in the wrong place"
    assert [error.__name__ for error in own if not issubclass(error, errors.BackfillError)] == []
    assert [error.__name__ for error in own if not (error.__doc__ or "").lstrip().startswith("Raised when")] == []


def test_only_storage_works_on_files_of_the_warehouse() -> None:
    paths = [path for room in ROOMS_ON_THE_WAREHOUSE for path in modules_of(PACKAGE / room)]
    found = {path.relative_to(PACKAGE).as_posix() for path in paths if breaches(file_operations, [path])}
    assert found == set(ON_OTHER_FILES), breaches(file_operations, paths)


LONG_BODY = "\n    ".join(["x = 1"] * MOST_LINES_OF_A_FUNCTION)


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (impure_imports, "import pyspark.sql"),
        (impure_imports, "from backfill_assets.ledger import store"),
        (impure_imports, "from . import days"),
        (impure_imports, "def f() -> None:\n    from dagster import asset"),
        (too_long_functions, f"def f() -> None:\n    {LONG_BODY}"),
        (too_many_parameters, "def f(a: int, b: int, c: int, d: int, e: int, f: int, *, g: int, h: int) -> None: ..."),
        (missing_annotations, "def f(a): ..."),
        (missing_annotations, "def f(*args) -> None: ..."),
        (missing_annotations, "async def f(a: int): ..."),
        (rootless_errors, "class Oops(ValueError): ..."),
        (file_operations, "import shutil"),
        (file_operations, "from os import scandir"),
        (file_operations, "os.lstat(path)"),
        (file_operations, "path.read_bytes()"),
        (file_operations, "layout.published_path(name) / folder"),
        (file_operations, "layout.warehouse"),
        (file_operations, "self.layout.warehouse"),
    ],
)
def test_each_rule_notices_a_breach(rule: Rule, source: str) -> None:
    assert list(rule(ast.parse(source)))


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (impure_imports, "import datetime as dt\nfrom pydantic import BaseModel"),
        (impure_imports, "from backfill_assets.core.days import DayRange"),
        (too_long_functions, f'def f() -> None:\n    """One.\n{"more" * 3}\n"""\n    {LONG_BODY[:-10]}'),
        (too_many_parameters, "def f(self, a: int, b: int, c: int, d: int, e: int) -> None: ..."),
        (missing_annotations, "class A:\n    def f(self, a: int) -> None: ..."),
        (rootless_errors, "class Missing(BackfillError): ..."),
        (file_operations, "import os\nos.getpid()\ntext.replace(old, new)\nlayout.published_path(name)"),
        (file_operations, "self.warehouse.layout"),
    ],
)
def test_each_rule_accepts_what_is_right(rule: Rule, source: str) -> None:
    assert list(rule(ast.parse(source))) == []
