"""Find and check models, and the modules of the project that they import, without running them.

An import counts anywhere in a file, also in a function. Modules that code loads by a name that it computes at run time cannot
be seen: such code is refused, here by the name of the loading module and otherwise by `running`.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final

from backfill_assets.core.errors import DatasetError
from backfill_assets.core.text import hidden_in
from backfill_assets.dataset.loaded import Language, Model, ModelLayer, ModuleSource, normal
from backfill_assets.dataset.yaml import FileProblem, content_of, decoded

OWN: Final = __name__.partition(".")[0]
_LONGEST_NAME: Final = 200
"""Of a module; file systems allow no longer names."""
_BLOCKS: Final = ("body", "handlers", "orelse", "finalbody", "cases")
"""Attributes in which statements hold other statements, in the order of `ast`."""
GIVEN: Final = sys.stdlib_module_names | {"pyspark"}
"""What a model may import in addition to modules of its project."""
_BY_NAME: Final = frozenset({"imp", "importlib", "pkgutil", "runpy", "zipimport"})
_MAY: Final = "a model may import pyspark, the standard library and modules of its own project"
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_LIBRARY: Final = Path(sysconfig.get_path("stdlib")).resolve()


@dataclass(frozen=True)
class _Module:
    """A module or package on disk; a namespace package has no file."""

    name: str
    file: Path | None
    folders: tuple[Path, ...]

    @property
    def package(self) -> str:
        """The package that its relative imports start from."""
        return self.name if self.folders else self.name.rpartition(".")[0]

    def read(self) -> ModuleSource:
        return ModuleSource(self.file, _content(self.file) if self.file is not None else b"", self.folders)


@dataclass(frozen=True)
class Imports:
    """What a model imports, directly or through others: the project's modules by name.

    `foreign` are forbidden imports: their code could change without any evidence becoming stale.
    """

    modules: Mapping[str, ModuleSource]
    foreign: tuple[FileProblem, ...]


def imports_of(tree: ast.Module, file: Path) -> Imports:
    """Follow the imports of a model through all `.py` files outside the standard library and installed packages.

    The parent packages of a module count too, since importing the module runs them. Modules of backfill_assets are followed
    wherever it is installed; what they import from other packages is covered by its version.

    Raises:
        DatasetError: a module cannot be read; `args` are the message and no line.
    """
    modules: dict[str, ModuleSource] = {}
    foreign: list[FileProblem] = []
    left = [_Reading(tree, file, None, complete=True)]
    seen: set[tuple[str, bool]] = set()
    chains: dict[str, tuple[_Module, ...]] = {}
    while left:
        reading = left.pop()
        for line, name, sure in _names(reading):
            if name not in chains:
                chains[name] = _chain(name)
            chain = chains[name]
            if not _is_project(chain):
                if sure and (why := reading.refusal(name)):
                    foreign.append(FileProblem(reading.file, f"imports {name}; {why}", line))
                continue
            for module in chain:
                complete = module is chain[-1]
                if module.name not in modules:
                    modules[module.name] = module.read()
                if module.file is not None and (module.name, complete) not in seen:
                    seen.add((module.name, complete))
                    left.append(_Reading(_parsed(modules[module.name].content), module.file, module, complete))
    return Imports(modules, tuple(foreign))


@dataclass(frozen=True)
class _Reading:
    """A file to read: a model, which has no `home`, or a module.

    A package that runs only because a module below it is imported is not read `complete`: its functions are not called.
    """

    tree: ast.Module
    file: Path
    home: _Module | None
    complete: bool

    def refusal(self, name: str) -> str | None:
        """Why the file must not import that name; None if it may."""
        own = self.home is not None and self.home.name.partition(".")[0] == OWN
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names and (file := _shadow(top)):
            return f"{file} of the project has the name of a module of the standard library; rename it"
        if not own and top in _BY_NAME and not name.startswith("importlib.metadata"):
            return "it loads modules and files by names that the code version cannot know; write import statements"
        return None if own or top in GIVEN else _MAY

    def statements(self) -> Iterator[ast.AST]:
        """All statements that may run, including those in blocks; an expression cannot contain an import."""
        left: list[ast.AST] = [self.tree]
        while left:
            node = left.pop()
            yield node
            if self.complete or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                left += (inner for block in _BLOCKS for inner in getattr(node, block, ()))


def _names(reading: _Reading) -> Iterator[tuple[int, str, bool]]:
    """Line and full name of each import, and whether it must be a module: `from package import name` may name another thing."""
    for node in reading.statements():
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, True) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, reading.home)
            yield node.lineno, base, True
            yield from ((node.lineno, f"{base}.{alias.name}", False) for alias in node.names if alias.name != "*")


def _base(node: ast.ImportFrom, home: _Module | None) -> str:
    if not node.level or home is None:
        return "." * node.level + (node.module or "")
    parts = home.package.split(".")
    above = ".".join(parts[: len(parts) - node.level + 1])
    return f"{above}.{node.module}" if node.module else above


def _chain(name: str) -> tuple[_Module, ...]:
    """The module of that name after its parent packages; empty if one of them is not found as a file or folder."""
    first, *others = name.split(".")
    found = _top(first) if first not in GIVEN else None
    chain: list[_Module] = []
    while found is not None:
        chain.append(found)
        if not others:
            return tuple(chain)
        found = _below(found, others.pop(0))
    return ()


def _shadow(name: str) -> Path | None:
    """The project's file that Python imports, or has imported, in place of a module of the standard library."""
    found = _top(name)
    taken = getattr(sys.modules.get(name), "__file__", None)
    files = [found.file if found is not None else None, Path(taken) if taken else None]
    return next((file for file in files if file is not None and not is_installed(str(file))), None)


def _top(name: str) -> _Module | None:
    spec = _spec(name) if name else None
    if spec is None or not (spec.origin is None or spec.origin.endswith(".py")):
        return None
    folders = tuple(Path(folder) for folder in spec.submodule_search_locations or ())
    return _Module(name, Path(spec.origin) if spec.origin else None, folders) if spec.origin or folders else None


def _spec(name: str) -> ModuleSpec | None:
    """What a new process would find, whatever this one has imported."""
    for finder in sys.meta_path:
        try:
            if spec := finder.find_spec(name, None):
                return spec
        except (ImportError, ValueError, AttributeError):  # a broken finder, or one that cannot answer
            continue
    return None


def _below(package: _Module, part: str) -> _Module | None:
    """Find a part of a package without Python's own finders, which import every package on the way."""
    name = f"{package.name}.{part}"
    if len(part) > _LONGEST_NAME:
        return None
    for folder in package.folders:
        if (folder / part / "__init__.py").is_file():
            return _Module(name, folder / part / "__init__.py", (folder / part,))
        if (folder / f"{part}.py").is_file():
            return _Module(name, folder / f"{part}.py", ())
    folders = tuple(folder / part for folder in package.folders if (folder / part).is_dir())
    return _Module(name, None, folders) if folders else None


def _is_project(chain: tuple[_Module, ...]) -> bool:
    if not chain:
        return False
    top = chain[0]
    if top.name == OWN:
        return True
    return not any(is_installed(str(place)) for place in (top.file, *top.folders) if place is not None)


@lru_cache(maxsize=4096)
def is_installed(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package, and not to the project."""
    return in_library(file) or not _INSTALLED.isdisjoint(Path(file).resolve().parts)


@lru_cache(maxsize=4096)
def in_library(file: str) -> bool:
    """Whether a file belongs to the standard library."""
    place = Path(file).resolve()
    return place.is_relative_to(_LIBRARY) and _INSTALLED.isdisjoint(place.parts)


def _content(file: Path) -> bytes:
    try:
        return content_of(file)
    except DatasetError as error:
        raise DatasetError(f"imports {file}: {error.args[0]}", None) from error


def _parsed(content: bytes) -> ast.Module:
    try:
        return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])  # its text still counts; running the model reports the error


# An unclosed string or comment extends to the end: the engine refuses it, and searching for its end repeatedly is very slow.
_SQL_TOKEN = re.compile(
    r"""
    (?P<skip>\s+ | --(?:\\\n|[^\r\n])* | /\*.*?(?:\*/|\Z))
    | (?P<text>[rR]'[^']*(?:'|\Z) | [rR]"[^"]*(?:"|\Z)
      | '(?:[^'\\]|\\.|\\\Z)*(?:'|\Z) | "(?:[^"\\]|\\.|\\\Z)*(?:"|\Z) | `[^`]*(?:`|\Z))
    | (?P<word>[A-Za-z_]\w*)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SHOWN = 40
_LONGEST = 256 * 1024
# Python takes longer to parse; longer code goes into modules that the model imports.
_LONGEST_OF = {Language.sql: _LONGEST, Language.python: 64 * 1024}
_WRITES = {"INSERT", "MERGE", "UPDATE", "DELETE"}


def find_model(folder: Path, layer: ModelLayer, tables: Collection[str]) -> Model | tuple[FileProblem, ...]:
    """The model of a layer, or its problems; `tables` are the names that it may ask for."""
    candidates = [(folder / f"{layer}.{language}", language) for language in Language]
    present = [(path, language) for path, language in candidates if path.is_file()]
    if not present:
        return (FileProblem(folder, f"there is no {layer} model; write {layer}.sql or {layer}.py"),)
    if len(present) > 1:
        return (FileProblem(folder, f"{layer}.sql and {layer}.py are both there; remove one"),)
    path, language = present[0]
    try:
        text = decoded(content_of(path, _LONGEST_OF[language]))
    except DatasetError as error:
        return (FileProblem(path, *error.args),)
    if hidden := hidden_in(text):
        at, name = hidden
        message = f"this line contains the invisible character {name}; remove it"
        return (FileProblem(path, message, text.count("\n", 0, at) + 1),)
    # As it is hashed: a line ending in the text of a query is data.
    text = normal(text.encode()).decode()
    if language is Language.sql:
        problems = tuple(FileProblem(path, message, line) for line, message in sql_problems(text))
        return problems or Model(layer, path, language, text)
    return _python_model(Model(layer, path, language, text), tables)


def sql_tokens(text: str) -> Iterator[str]:
    """The tokens of a text in SQL without comments: words, strings and quoted names with their quotes, signs."""
    return (match[0] for match in _SQL_TOKEN.finditer(text) if match.lastgroup != "skip")


def without_comments(text: str) -> str:
    """A text in SQL with one space in place of each run of comments and white space."""
    pieces: list[str] = []
    for match in _SQL_TOKEN.finditer(text):
        if match.lastgroup != "skip":
            pieces.append(match[0])
        elif pieces and pieces[-1] != " ":
            pieces.append(" ")
    return "".join(pieces).rstrip()


def has_nested_comment(text: str) -> bool:
    """Whether a comment is nested in another one, which Spark supports and these tokens do not."""
    return any(match[0].startswith("/*") and "/*" in match[0][2:] for match in _SQL_TOKEN.finditer(text))


def sql_problems(text: str, what: str = "a model") -> tuple[tuple[int, str], ...]:
    """Why a text is not one SELECT, as (line, message); messages call it `what`. The engine has the last word."""
    if len(text) > _LONGEST:
        return ((1, f"the text is longer than {_LONGEST // 1024} KiB; {what} has a few pages at most"),)
    words: list[tuple[str, int]] = []
    ended, depth, line, counted = 0, 0, 1, 0
    for match in _SQL_TOKEN.finditer(text):
        # Not even a comment may follow the semicolon: engines remove one semicolon at the very end, and no more.
        if match[0].isspace() or (match.lastgroup == "skip" and not ended):
            continue
        line, counted = line + text.count("\n", counted, match.start()), match.start()
        if ended:
            return ((line, f"something follows the semicolon; {what} is one SELECT"),)
        piece = match[0]
        ended = line if piece == ";" else 0
        depth += (piece == "(") - (piece == ")")
        if (depth == 0 and piece != ")") or not words or words[-1][0] == "(":
            words.append((piece.upper(), line))
    if not words:
        return ((1, "the file is empty; write one SELECT"),)
    first, line = next(((w, n) for w, n in words if w != "("), words[0])
    if first not in {"SELECT", "WITH"}:
        return ((line, f"the statement begins with {first[:_SHOWN]!r}; {what} is one SELECT (or WITH … SELECT)"),)
    writing = [(line, f"the statement contains {w}; {what} only reads") for w, line in words if w in _WRITES]
    return tuple(writing[:1]) if first == "WITH" else ()


def _python_model(model: Model, tables: Collection[str]) -> Model | tuple[FileProblem, ...]:
    try:
        tree = ast.parse(model.text, filename=str(model.path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        return (FileProblem(model.path, f"this is not valid Python: {getattr(error, 'msg', error)}", line),)
    try:
        imports = imports_of(tree, model.path)
    except DatasetError as error:
        return (FileProblem(model.path, str(error.args[0])),)
    problems = [*imports.foreign]
    function = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == model.layer), None)
    if function is None:
        text = f"there is no function {model.layer}; write def {model.layer}({', '.join(sorted(tables))})"
        return (*problems, FileProblem(model.path, text))
    arguments = function.args
    parameters = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    unknown = [name for name in parameters if name not in tables]
    known = ", ".join(sorted(tables))
    problems += [
        FileProblem(model.path, f"{model.layer} asks for the table {name!r}; there are: {known}", function.lineno)
        for name in unknown
    ]
    if arguments.vararg or arguments.kwarg:
        text = f"{model.layer} takes * or **; name the tables that it wants: {known}"
        problems.append(FileProblem(model.path, text, function.lineno))
    if not parameters and not problems:
        problems.append(
            FileProblem(model.path, f"{model.layer} asks for no table; name some of: {known}", function.lineno)
        )
    return tuple(problems) or replace(model, parameters=parameters, modules=imports.modules)
