"""Finding and checking models without running them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from backfill_assets.core.errors import DatasetError
from backfill_assets.core.text import hidden_in
from backfill_assets.dataset.imports import ForeignImport, imports_of
from backfill_assets.dataset.loaded import Language, Model, ModelLayer, normal
from backfill_assets.dataset.yaml import content_of, decoded

# What is never closed goes on to the end: the engine refuses it, and looking for its end again and again takes for ever.
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
# Python takes longer to parse; what needs more room goes into modules that the model imports.
_LONGEST_OF = {Language.sql: _LONGEST, Language.python: 64 * 1024}
_WRITES = {"INSERT", "MERGE", "UPDATE", "DELETE"}


@dataclass(frozen=True)
class ModelFault:
    """What is wrong with a model: its file (or the dataset's folder), the line if any, and what to do."""

    file: Path
    message: str
    line: int | None = None


def find_model(folder: Path, layer: ModelLayer, tables: Collection[str]) -> Model | tuple[ModelFault, ...]:
    """The model of a layer, or what is wrong with it; `tables` are the names that it may ask for."""
    candidates = [(folder / f"{layer}.{language}", language) for language in Language]
    present = [(path, language) for path, language in candidates if path.is_file()]
    if not present:
        return (ModelFault(folder, f"there is no {layer} model; write {layer}.sql or {layer}.py"),)
    if len(present) > 1:
        return (ModelFault(folder, f"{layer}.sql and {layer}.py are both there; remove one"),)
    path, language = present[0]
    try:
        text = decoded(content_of(path, _LONGEST_OF[language]))
    except DatasetError as error:
        message, line = error.args
        return (ModelFault(path, message, line),)
    if hidden := hidden_in(text):
        at, name = hidden
        message = f"this line holds {name}, which one cannot see; remove it"
        return (ModelFault(path, message, text.count("\n", 0, at) + 1),)
    # As it is hashed: a line end in the text of a query is data.
    text = normal(text.encode()).decode()
    if language is Language.sql:
        faults = tuple(ModelFault(path, message, line) for line, message in sql_faults(text))
        return faults or Model(layer, path, language, text)
    return _python_model(Model(layer, path, language, text), tables)


def sql_tokens(text: str) -> Iterator[str]:
    """The tokens of a text in SQL without comments: words, strings and quoted names with their quotes, signs."""
    return (match[0] for match in _SQL_TOKEN.finditer(text) if match.lastgroup != "skip")


def has_nested_comment(text: str) -> bool:
    """Whether a comment stands inside another one, which Spark knows and these tokens do not."""
    return any(match[0].startswith("/*") and "/*" in match[0][2:] for match in _SQL_TOKEN.finditer(text))


def sql_faults(text: str, what: str = "a model") -> tuple[tuple[int, str], ...]:
    """What keeps a text from being one SELECT, as (line, message) that calls it `what`; the engine has the last word."""
    if len(text) > _LONGEST:
        return ((1, f"the text is longer than {_LONGEST // 1024} KiB; {what} is some pages at most"),)
    words: list[tuple[str, int]] = []
    ended, depth, line, counted = 0, 0, 1, 0
    for match in _SQL_TOKEN.finditer(text):
        # Behind the semicolon not even a comment: engines cut one semicolon off the very end and no more.
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


def _python_model(model: Model, tables: Collection[str]) -> Model | tuple[ModelFault, ...]:
    try:
        tree = ast.parse(model.text, filename=str(model.path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        return (ModelFault(model.path, f"this is no Python: {getattr(error, 'msg', error)}", line),)
    try:
        imports = imports_of(tree, model.path)
    except DatasetError as error:
        return (ModelFault(model.path, str(error.args[0])),)
    faults = [_import_fault(found) for found in imports.foreign]
    function = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == model.layer), None)
    if function is None:
        text = f"there is no function {model.layer}; write def {model.layer}({', '.join(sorted(tables))})"
        return (*faults, ModelFault(model.path, text))
    arguments = function.args
    parameters = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    unknown = [name for name in parameters if name not in tables]
    known = ", ".join(sorted(tables))
    faults += [
        ModelFault(model.path, f"{model.layer} asks for the table {name!r}; there are: {known}", function.lineno)
        for name in unknown
    ]
    if arguments.vararg or arguments.kwarg:
        text = f"{model.layer} takes * or **; name the tables that it wants: {known}"
        faults.append(ModelFault(model.path, text, function.lineno))
    if not parameters and not faults:
        faults.append(
            ModelFault(model.path, f"{model.layer} asks for no table; name some of: {known}", function.lineno)
        )
    return tuple(faults) or replace(model, parameters=parameters, modules=imports.modules)


def _import_fault(found: ForeignImport) -> ModelFault:
    """An import outside the code version: what it brings could change without any evidence becoming stale."""
    return ModelFault(found.file, f"imports {found.name}; {found.why}", found.line)
