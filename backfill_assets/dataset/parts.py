"""What a code version consists of: digests of its parts, so that an edited comment or description makes no history stale."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

from backfill_assets.core.canonical import digest
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import DIGITS, Language, LoadedDataset, Model, normal
from backfill_assets.dataset.models import has_nested_comment, without_comments
from backfill_assets.dataset.reading import reading_of
from backfill_assets.dataset.sources import ReferenceFile, Source
from backfill_assets.dataset.table_source import TableSource

RULES: Final = 1
"""Increase it whenever the same models make other rows, so that all published days become stale."""


class CodePart(StrEnum):
    """A part of a dataset's code that decides which rows a day has, or which of its checks pass."""

    code = "code"
    reading = "reading"
    columns = "columns"
    checks = "checks"
    contract = "contract"


PART_OF: Final[Mapping[str, CodePart | None]] = {
    "name": None,
    "description": None,
    "owner": None,
    "partition_column": CodePart.columns,
    "time_zone": CodePart.contract,
    "start": None,
    "end": None,
    "end_offset": None,
    "key": CodePart.contract,
    "columns": CodePart.columns,
    "dropped_columns": CodePart.columns,
    "source": CodePart.reading,
    # Its content tells, and also which days of it are read.
    "upstream": None,
    "staging": CodePart.contract,
    "references": CodePart.contract,
    "measures": CodePart.checks,
    "dimensions": None,
    "checks": CodePart.checks,
    "golden": CodePart.checks,
    "chunk_days": None,
    "lookback_days": CodePart.contract,
    "lookahead_days": CodePart.contract,
    # Only days that wait for others are judged by it, and these are stale when they no longer wait.
    "provisional": None,
    "publication": None,
    "state": None,
    "late_data": None,
    "audit": CodePart.columns,
    "live": None,
    "retention": None,
    "consumers": None,
}
"""The part that each key of `dataset.yaml` belongs to; None for keys that change neither rows nor verdicts."""


def code_parts(loaded: LoadedDataset) -> Mapping[str, str]:
    """A digest (16 hex digits) of each part of a dataset's code, without comments and descriptions.

    What its deliveries, references, golden sources and upstreams contain is no part of it.
    """
    dataset = loaded.dataset
    said = _without_descriptions(dataset)
    found: dict[CodePart, dict[str, object]] = {part: {} for part in CodePart}
    for key, part in PART_OF.items():
        if part is not None and said[key] is not None:
            found[part][key] = said[key]
    found[CodePart.checks]["promises"] = list(_promises(dataset))
    found[CodePart.contract]["late_days"] = 0 if dataset.source is None else dataset.source.late_days
    models = [model for model in (loaded.staging, loaded.fact) if model is not None]
    found[CodePart.code] = {"rules": RULES, "models": [_model(model) for model in models]}
    return {part: digest(value)[:DIGITS] for part, value in found.items()}


def _without_descriptions(dataset: Dataset) -> dict[str, Any]:
    """The keys of `dataset.yaml` by name, with what matters of those that also have descriptions, paths or promises."""
    # A key that is left out is one with its default: a key that a later version adds makes no history stale.
    said = dict.fromkeys(PART_OF) | dataset.model_dump(
        mode="json", exclude={"columns", "source", "references", "golden"}, exclude_defaults=True
    )
    said["columns"] = {name: [column.type, column.nullable] for name, column in dataset.columns.items()}
    said["references"] = {name: _file(one) for name, one in dataset.references.items()}
    said["golden"] = {
        name: [
            one.model_dump(mode="json", exclude={"description", "file"}, exclude_defaults=True),
            one.file and _file(one.file),
        ]
        for name, one in dataset.golden.items()
    }
    match dataset.source:
        case TableSource() as table:
            said["source"] = [table.reading, list(table.columns)]
        case Source() as source:
            # A model may take all columns in their order.
            said["source"] = [reading_of(source), list(source.columns)]
        case None:
            said["source"] = ""
    return said


def _file(reference: ReferenceFile) -> list[object]:
    """How a file is read, wherever it is; the order of its columns says what a value without a header belongs to."""
    # Which days are renewed shows in their fingerprints.
    said = reference.model_dump(mode="json", exclude={"path", "renew"}, exclude_defaults=True)
    return [said, list(reference.columns)]


def _promises(dataset: Dataset) -> Iterator[list[str]]:
    """What checks need besides `checks`: how far values may differ, and what happens without a delivery or an upstream."""
    yield from ([name, str(column.tolerance)] for name, column in sorted(dataset.columns.items()) if column.tolerance)
    yield ["source", "" if dataset.source is None else dataset.source.on_missing.value]
    yield from ([name, above.on_missing.value] for name, above in sorted(dataset.upstream.items()))


def _model(model: Model) -> list[object]:
    modules = {name: _python(normal(source.content)) for name, source in model.modules.items() if source.file}
    content = normal(model.text.encode())
    text = _sql(content.decode()) if model.language is Language.sql else _python(content)
    return [model.layer.value, model.language.value, text, modules]


_HINT: Final = "/*+"
_CODING: Final = re.compile(rb"^[ \t\f]*#.*?coding[:=]", re.MULTILINE)
_LAYOUT: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


def _sql(text: str) -> str:
    """A text in SQL without comments; the whole text if it has a hint, or comments that are hard to tell."""
    return text if _HINT in text or has_nested_comment(text) else without_comments(text)


def _python(content: bytes) -> str:
    """A text in Python without comments and without lines that have nothing else; the whole text if it cannot be taken apart."""
    text = content.decode("utf-8", errors="backslashreplace")
    # The first lines may name the encoding, and a backslash joins a line with the next one: then every line counts.
    if _CODING.search(b"\n".join(content.split(b"\n", 2)[:2])) or "\\\n" in text:
        return text
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return text
    lines, used = text.split("\n"), set[int]()
    for token in tokens:
        row, column = token.start
        if token.type == tokenize.COMMENT:
            lines[row - 1] = lines[row - 1][:column].rstrip()
        elif token.type not in _LAYOUT:
            used.update(range(row, token.end[0] + 1))
    return "\n".join(line for row, line in enumerate(lines, 1) if row in used)
