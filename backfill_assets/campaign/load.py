"""Load specifications with all problems and their lines, and find what has changed in their code or text since the plan."""

from __future__ import annotations

import datetime as dt
import difflib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from backfill_assets.campaign.specification import Specification
from backfill_assets.campaign.state import Campaign
from backfill_assets.campaign.validation import METRIC_CHANGE, ROW_CHANGE, SHORT_SPELLING
from backfill_assets.core.errors import ContractError, DatasetError
from backfill_assets.core.expected_change import Change, row_change
from backfill_assets.core.text import format_duration
from backfill_assets.dataset.checks import metric_names
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.dataset.yaml import (
    MOST_PROBLEMS,
    Document,
    FileProblem,
    KeyPath,
    content_of,
    decoded,
    line_of,
    read_yaml,
    shown_key,
    shown_path,
    validation_problems,
)

_CHANGES = ("validation", METRIC_CHANGE)
_Placed = tuple[KeyPath, int | None, str]


@dataclass(frozen=True)
class LoadedSpecification:
    """A specification, the file that it was read from, its text, and the line of every key."""

    specification: Specification
    file: Path
    text: str
    lines: Mapping[KeyPath, int]

    def problem(self, path: KeyPath, message: str) -> FileProblem:
        """A problem of this file at a key, or at the nearest existing key above it."""
        return FileProblem(self.file, message, line_of(path, self.lines), shown_key(path))


def load_specification(file: Path) -> LoadedSpecification | tuple[FileProblem, ...]:
    """Load one specification, or return all problems of the file itself; `misfits` compares it with the catalog."""
    try:
        text = decoded(content_of(file))
    except DatasetError as error:
        return (FileProblem(file, *error.args),)
    return read_specification(text, file)


def read_specification(text: str, file: Path) -> LoadedSpecification | tuple[FileProblem, ...]:
    """Load a specification from its text; `file` is the place that problems name."""
    try:
        document = read_yaml(text)
    except DatasetError as error:
        return (FileProblem(file, *error.args),)
    placed: list[_Placed] = [(path, line, message) for line, path, message in document.problems]
    specification, lines = None, document.lines
    if isinstance(document.value, dict):
        specification, lines, found = _specification(document)
        placed += found
    else:
        placed.append(((), 1, "the file has no mapping of key: value lines; see docs/backfill-yaml.md"))
    if specification is None or placed:
        reported = sorted(placed, key=lambda problem: problem[1] or 0)[:MOST_PROBLEMS]
        return tuple(FileProblem(file, message, line, shown_key(path)) for path, line, message in reported)
    return LoadedSpecification(specification, file, text, lines)


def scoped(specification: Specification, catalog: Catalog) -> tuple[str, ...]:
    """The datasets that are recomputed and released together: the target and its downstream ones, upstream first.

    Without those whose history begins after the days of the target.
    """
    target, downstream = specification.target.dataset, specification.scope.downstream
    named = downstream if isinstance(downstream, tuple) else ()
    below = catalog.live_downstream_of([target]) if downstream == "all" else named
    return catalog.upstream_first(
        [target, *(name for name in below if not _begins_after(specification, catalog, name))]
    )


def _begins_after(specification: Specification, catalog: Catalog, name: str) -> bool:
    return name in catalog.datasets and catalog.datasets[name].dataset.start > specification.source_range.end


def misfits(
    loaded: LoadedSpecification,
    catalog: Catalog,
    *,
    now: dt.datetime | None = None,
    computes: Collection[str] | None = None,
) -> tuple[FileProblem, ...]:
    """Everything in a specification that does not fit the catalog, in the order of the lines.

    `now` (aware) gives the newest partition of a growing dataset, `computes` the names that `execution.compute` may have; if
    one is not given, it is not checked.
    """
    name = loaded.specification.target.dataset
    try:
        target = catalog.dataset(name).dataset
    except DatasetError as error:
        text = "; ".join(str(error).splitlines())
        return (loaded.problem(("target", "dataset"), f"target.dataset = {name!r}: {text}"),)
    problems = chain(
        _range_problems(loaded, target, now),
        _target_problems(loaded, target),
        _scope_problems(loaded, catalog),
        _change_problems(loaded, catalog),
        _retention_problems(loaded, catalog),
        _compute_problems(loaded, computes) if computes is not None else (),
    )
    return tuple(sorted(islice(problems, MOST_PROBLEMS), key=lambda problem: problem.line or 0))


def _range_problems(loaded: LoadedSpecification, target: Dataset, now: dt.datetime | None) -> Iterator[FileProblem]:
    days, last = loaded.specification.source_range, target.end if now is None else target.newest_to_launch(now)
    for key, day in (("start", days.start), ("end", days.end)):
        where = f"source_range.{key} = {day}"
        if day < target.start:
            text = f"{where}: the history of {target.name} begins on {target.start}; write that day or a later one"
            yield loaded.problem(("source_range", key), text)
        if last is not None and day > last:
            newest = f"the newest partition of {target.name}{target.lag_in_words}"
            text = f"{where}: {newest} is {last}; write that day or an earlier one"
            yield loaded.problem(("source_range", key), text)


def _target_problems(loaded: LoadedSpecification, target: Dataset) -> Iterator[FileProblem]:
    key = loaded.specification.target.partition_key
    if key != target.partition_column:
        text = f"target.partition_key = {key!r}: {target.name} is partitioned by {target.partition_column}; write that"
        yield loaded.problem(("target", "partition_key"), text)


def _scope_problems(loaded: LoadedSpecification, catalog: Catalog) -> Iterator[FileProblem]:
    target, named = loaded.specification.target.dataset, loaded.specification.scope.downstream
    below = catalog.downstream_of([target])
    for i, name in enumerate(named if isinstance(named, tuple) else ()):
        path, where = ("scope", "downstream", i), f"scope.downstream names {name!r}"
        if name not in below:
            known = f"there are: {', '.join(below)}" if below else "nothing is; write none"
            yield loaded.problem(path, f"{where}, which is not built from {target}; {known}")
            continue
        if _begins_after(loaded.specification, catalog, name):
            start = catalog.datasets[name].dataset.start
            yield loaded.problem(path, f"{where}, whose history begins on {start}, after source_range; leave it out")
            continue
        above = {one for one in catalog.upstreams[name] if not _begins_after(loaded.specification, catalog, one)}
        for between in sorted(above & set(below) - set(named)):
            yield loaded.problem(
                path, f"{where}, which is built from {between}; add that, so that it is built again first"
            )


def _change_problems(loaded: LoadedSpecification, catalog: Catalog) -> Iterator[FileProblem]:
    specification = loaded.specification
    target, scope = specification.target.dataset, scoped(specification, catalog)
    for key in (METRIC_CHANGE, ROW_CHANGE):
        for name in specification.validation.datasets(key):
            if name not in scope:
                text = f"validation.{key}.{name}: the scope has no such dataset; it has {', '.join(scope)}"
                yield loaded.problem(("validation", key, name), text)
    for name in scope:
        if name not in catalog.datasets:
            continue
        dataset = catalog.datasets[name].dataset
        for metric in specification.validation.changes(name, target):
            yield from _unknown_problem(loaded, (METRIC_CHANGE, name, metric), metric_names(dataset))
        for column, change in specification.validation.row_changes(name, target).items():
            yield from _unknown_problem(loaded, (ROW_CHANGE, name, column), tuple(dataset.promisable))
            yield from _band_problem(loaded, (ROW_CHANGE, name, column), dataset, change)


def _unknown_problem(
    loaded: LoadedSpecification, place: tuple[str, str, str], known: Sequence[str]
) -> Iterator[FileProblem]:
    key, dataset, subject = place
    if subject in known:
        return
    what = "metric" if key == METRIC_CHANGE else "non-key column"
    close = difflib.get_close_matches(subject, known, n=1)
    hint = f"; did you mean {close[0]}? It has" if close else "; it has"
    path, there = _written(loaded, place), ", ".join(known) or "none"
    yield loaded.problem(path, f"{shown_key(path)}: {dataset} has no {what} {subject!r}{hint} {there}")


def _band_problem(
    loaded: LoadedSpecification, place: tuple[str, str, str], dataset: Dataset, change: Change
) -> Iterator[FileProblem]:
    path, column = _written(loaded, place), place[2]
    if column in dataset.promisable:
        try:
            row_change(column, dataset.promisable[column], change, shown_key(path))
        except ContractError as error:
            yield loaded.problem(path, str(error))


def _written(loaded: LoadedSpecification, place: tuple[str, str, str]) -> KeyPath:
    """The path of an expectation as the file writes it: for the target, the name of the dataset can be left out."""
    key, dataset, subject = place
    target, expected = loaded.specification.target.dataset, getattr(loaded.specification.validation, key)
    flat = dataset == target and isinstance(expected.get(subject), Change)
    return ("validation", key, subject) if flat else ("validation", key, dataset, subject)


def _retention_problems(loaded: LoadedSpecification, catalog: Catalog) -> Iterator[FileProblem]:
    wanted = loaded.specification.rollback.keep_for
    for name in scoped(loaded.specification, catalog):
        kept = catalog.datasets[name].dataset.retention.keep_for if name in catalog.datasets else wanted
        if kept < wanted:
            text = f"rollback.keep_for = {format_duration(wanted)}: {name} keeps releases for {format_duration(kept)}"
            remedy = f"write at most that, or raise retention.keep_for in the dataset.yaml of {name}"
            yield loaded.problem(("rollback", "keep_for"), f"{text}; {remedy}")


def _compute_problems(loaded: LoadedSpecification, computes: Collection[str]) -> Iterator[FileProblem]:
    compute = loaded.specification.execution.compute
    if compute and compute not in computes:
        known = f"one of {', '.join(sorted(computes))}" if computes else "none, because no such variable is set"
        text = (
            f"execution.compute = {compute!r}: BACKFILL_ASSETS_SPARK_URL_{compute.upper()} is not set where this runs"
        )
        yield loaded.problem(("execution", "compute"), f"{text}; set it, or choose {known}")


def _specification(document: Document) -> tuple[Specification | None, Mapping[KeyPath, int], list[_Placed]]:
    value, short, found = _one_spelling(document)
    lines = dict(document.lines)
    lines |= {(*_CHANGES, name): document.lines[path] for name, path in short.items()}
    try:
        # As JSON: strict validation of JSON reads dates and enums from text, but converts nothing else.
        return Specification.model_validate_json(json.dumps(value), strict=True), lines, found
    except ValidationError as error:
        problems = validation_problems(error, Specification, lines)
        return None, lines, [*found, *(_as_spelt(problem, short) for problem in problems)]


def _one_spelling(document: Document) -> tuple[Any, Mapping[str, KeyPath], list[_Placed]]:
    """Move `revenue_delta_expected` under `expected_change`: the new value, the moved keys, the problems."""
    value: Any = document.value
    validation = value.get("validation")
    if not isinstance(validation, dict):
        return value, {}, []
    changes = validation.get("expected_change", {})
    named = {key.removesuffix(SHORT_SPELLING): key for key in validation if _is_short(key)}
    problems: list[_Placed] = []
    if named and not isinstance(changes, dict):
        # Reported here, because the other spelling takes its place and is still validated.
        text = f"{'.'.join(_CHANGES)}: write a mapping from metric to change, or drop it and keep {', '.join(named.values())}"
        problems.append((_CHANGES, document.lines[_CHANGES], text))
        changes = {}
    for name, key in named.items():
        if name in changes:
            text = f"validation.{key}: the change of {name} is also in validation.expected_change; keep one of them"
            problems.append((("validation", key), document.lines["validation", key], text))
    moved = {name: validation[key] for name, key in named.items() if name not in changes}
    rest = {key: entry for key, entry in validation.items() if not _is_short(key)}
    if moved:
        rest["expected_change"] = changes | moved
    paths = {name: ("validation", named[name]) for name in moved}
    return value | {"validation": rest}, paths, problems


def _is_short(key: str) -> bool:
    return key.endswith(SHORT_SPELLING) and key != SHORT_SPELLING


def _as_spelt(problem: _Placed, short: Mapping[str, KeyPath]) -> _Placed:
    """The problem with the key as it is written in the file."""
    path, line, message = problem
    spelt = short.get(str(path[2]), ()) if path[:2] == _CHANGES and len(path) > len(_CHANGES) else ()
    if not spelt:
        return problem
    return (*spelt, *path[3:]), line, message.replace(shown_key(path[:3]), shown_key(spelt), 1)


def drift_of(campaign: Campaign, code: Mapping[str, str]) -> str:
    """What has changed since the plan, in words, or nothing; `code` has the loaded code versions, by dataset.

    If the specification's file is missing, it is not compared, and `uncompared` says so: a deployment does not need it.
    """
    moved = [d.name for d in campaign.plan.datasets if code.get(d.name) != d.code_version]
    if moved:
        return (
            f"the code of {', '.join(moved)} has changed since the plan; "
            f"if this is intended, go on with: backfill resume {campaign.id}; if not, restore the code"
        )
    file = Path(campaign.file)
    if not campaign.file or not file.is_file():
        return ""
    loaded = load_specification(file)
    if isinstance(loaded, tuple):
        return f"the specification can no longer be read: {loaded[0]}; fix or restore the file"
    if loaded.specification.hash != campaign.specification.hash:
        return (
            f"{shown_path(file)} has changed since the plan; "
            f"if this is intended, go on with: backfill resume {campaign.id}; if not, restore the file"
        )
    return ""


def uncompared(campaign: Campaign) -> str:
    """A note that the specification's file is missing, or nothing: without the file, its changes are not noticed."""
    file = Path(campaign.file)
    if not campaign.file or file.is_file():
        return ""
    return f"its file {shown_path(file)} is missing: not compared with the plan"
