"""Load dataset folders into a catalog: everything is checked, nothing runs, one bad folder never hides the others."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from backfill_assets.core.errors import DatasetError, InvalidNameError
from backfill_assets.core.text import NAME_PATTERN, checked_name
from backfill_assets.dataset.checks import CHANGE, checks_of, metric_names
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.extracts import SCRIPT
from backfill_assets.dataset.loaded import (
    FILE,
    Case,
    Catalog,
    LoadedDataset,
    Model,
    ModelLayer,
    code_version,
    cycle_in,
    differences,
    groups_apart,
    normal,
    project_version,
    upstream_first,
    upstreams_of,
)
from backfill_assets.dataset.models import find_model, sql_problems
from backfill_assets.dataset.yaml import (
    MOST_PROBLEMS,
    Document,
    FileProblem,
    KeyPath,
    content_of,
    decoded,
    read_yaml,
    shown_key,
    shown_path,
    validation_problems,
)

_STATE = re.compile(rb"^state:[ \t]*(?:draft|live)[ \t]*(?:#[^\n]*)?(?:\n|\Z)", re.MULTILINE)
"""The line of dataset.yaml that is no code."""


def linked(datasets: Mapping[str, LoadedDataset]) -> tuple[dict[str, LoadedDataset], tuple[FileProblem, ...]]:
    """The datasets whose upstreams all exist and fit, and the problems of the others.

    If a dataset is refused, everything that is built from it is refused too.
    """
    good, problems = dict(datasets), list[FileProblem]()
    while found := [*_cycle(good), *(problem for loaded in good.values() for problem in _problems(loaded, good))]:
        problems += found
        for problem in found:
            good.pop(problem.dataset, None)
    return _beside_each_other(good), tuple(problems)


def _beside_each_other(datasets: Mapping[str, LoadedDataset]) -> dict[str, LoadedDataset]:
    """The datasets, each of which knows when its upstreams begin, and how long its release group waits."""
    definitions = {name: loaded.dataset for name, loaded in datasets.items()}
    reach: dict[str, int] = {}
    for name in upstream_first(definitions, upstreams_of(definitions)):
        # A draft is built from what is live, which its own group does not have.
        one = definitions[name]
        reach[name] = max([one.waiting_days, *(reach[above] for above in one.upstream)])
    groups = {name: group for group in groups_apart(definitions) for name in group}
    lags = {name: max(map(reach.__getitem__, group)) for name, group in groups.items()}
    times = {name: max(definitions[member].live.at for member in group) for name, group in groups.items()}
    return {
        name: replace(
            loaded,
            dataset=loaded.dataset.linked(
                {n: definitions[n].start for n in loaded.dataset.upstream}, lags[name], times[name]
            ),
        )
        for name, loaded in datasets.items()
    }


def _cycle(datasets: Mapping[str, LoadedDataset]) -> Iterator[FileProblem]:
    known = {name: [u for u in loaded.dataset.upstream if u in datasets] for name, loaded in datasets.items()}
    cycle = cycle_in(known)
    for name in sorted(set(cycle)):
        text = f"the upstreams form a cycle: {' → '.join(reversed(cycle))}; break it"
        yield _problem(datasets[name], "upstream", text)


def _problems(loaded: LoadedDataset, datasets: Mapping[str, LoadedDataset]) -> Iterator[FileProblem]:
    if loaded.dataset.extract is not None:
        path = loaded.dataset.landing.path
        for name, other in datasets.items():
            if name != loaded.name and other.dataset.lands_files and other.dataset.landing.path == path:
                text = (
                    f"source.path {path!r} is that of {name}, too, whose files the extract would replace; leave it out"
                )
                yield _problem(loaded, "source.path", text)
    above = [datasets[name].dataset for name in loaded.dataset.upstream if name in datasets]
    for upstream in above:
        yield from _upstream_problems(loaded, upstream)
    for name in loaded.dataset.upstream:
        if name not in datasets:
            known = ", ".join(sorted(datasets)) or "none"
            text = f"upstream {name!r} is not loaded; correct its name or its folder. Loaded: {known}"
            yield _problem(loaded, f"upstream.{name}", text)
    first = min((upstream.start for upstream in above), default=loaded.dataset.start)
    if loaded.dataset.source is None and loaded.dataset.start < first:
        text = f"start {loaded.dataset.start}: it is built only from upstream, which begins on {first}; write that or a later day"
        yield _problem(loaded, "start", text)


def _upstream_problems(loaded: LoadedDataset, upstream: Dataset) -> Iterator[FileProblem]:
    name = upstream.name
    if upstream.provisional is not None:
        text = (
            f"upstream {name} publishes provisional days, and no mark goes on to what is built from them; build from its source, "
            f"or drop provisional in {name}"
        )
        yield _problem(loaded, f"upstream.{name}", text)
    if upstream.is_draft and not loaded.dataset.is_draft:
        text = f"upstream {name} is a draft, which no live run builds; write state: draft here, too, or drop it there"
        yield _problem(loaded, f"upstream.{name}", text)
    for key, text in differences(loaded.dataset, upstream):
        yield _problem(loaded, key, f"{text}; datasets that are released together must agree")
    for check_name, check in loaded.dataset.checks.references.items():
        if check.reference == name and (missing := [c for c in check.to if c not in upstream.columns]):
            key = f"checks.references.{check_name}"
            text = f"{key}: {name} has no column {missing[0]!r}; it has {', '.join(upstream.columns)}"
            yield _problem(loaded, key, text)


def _problem(loaded: LoadedDataset, key: str, text: str) -> FileProblem:
    return FileProblem(loaded.folder / FILE, text, None, key, loaded.name)


def load_folder(folder: Path) -> Catalog:
    """Load every dataset folder below `folder`; folders whose names begin with `.` or `_` are skipped.

    Raises:
        DatasetError: `folder` itself cannot be listed.
    """
    try:
        found = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._")
    except OSError as error:
        raise DatasetError(
            f"{shown_path(folder)}: the folder of datasets cannot be read ({error.strerror}); "
            "create it or set BACKFILL_ASSETS_DATASETS to another"
        ) from error
    datasets: dict[str, LoadedDataset] = {}
    problems: list[FileProblem] = []
    for path in found:
        result = load_dataset(path)
        if isinstance(result, LoadedDataset):
            datasets[path.name] = result
        else:
            problems += (replace(problem, dataset=path.name) for problem in result)
    datasets, link_problems = linked(datasets)
    return Catalog(datasets, (*problems, *link_problems))


def load_dataset(folder: Path) -> LoadedDataset | tuple[FileProblem, ...]:
    """Load one dataset folder, or return all its problems."""
    try:
        return _loaded(folder)
    except OSError as error:
        text = f"cannot be read ({error.strerror}: {error.filename}); let this user read the folder, or move it away"
        return (FileProblem(folder, text),)


def _loaded(folder: Path) -> LoadedDataset | tuple[FileProblem, ...]:
    file = folder / FILE
    if not file.is_file():
        return (FileProblem(folder, f"the folder has no {FILE}; write one, or move the folder away"),)
    try:
        content = content_of(file)
        document = read_yaml(decoded(content))
    except DatasetError as error:
        return (FileProblem(file, *error.args),)
    dataset, problems = _dataset(document, file)
    if not isinstance(document.value, dict):
        return tuple(problems[:MOST_PROBLEMS])
    models, model_problems = _models(folder, document.value)
    problems += model_problems
    if dataset is None or problems or ModelLayer.fact not in models:
        return tuple(problems[:MOST_PROBLEMS])
    try:
        code = _code_files(folder, content) | _hashed(models.values())
        dataset = _with_code(dataset, code)
    except DatasetError as error:
        return (FileProblem(folder, str(error.args[0])),)
    version = code_version(code, project_version())
    return LoadedDataset(
        dataset, folder, models.get(ModelLayer.staging), models[ModelLayer.fact], version, _cases(folder)
    )


def _dataset(document: Document, file: Path) -> tuple[Dataset | None, list[FileProblem]]:
    placed: list[tuple[KeyPath, int | None, str]] = [(path, line, text) for line, path, text in document.problems]
    dataset: Dataset | None = None
    if isinstance(document.value, dict):
        try:
            # As JSON: strict validation of JSON reads dates and enums from text, but converts nothing else.
            value = _with_defaults(document.value, file.parent.name)
            dataset = Dataset.model_validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            placed += validation_problems(error, Dataset, document.lines)
        found = [*_naming_problems(document.value.get("name"), file.parent.name)]
        if dataset is not None:
            found += (*_collisions(dataset), *_consumer_problems(dataset), *_golden_problems(dataset))
            found += _query_problems(dataset)
        placed += ((path, document.lines.get(path), text) for path, text in found)
    else:
        placed.append(((), 1, "the file has no mapping of key: value lines; see docs/dataset-yaml.md"))
    return dataset, [FileProblem(file, text, line, shown_key(path)) for path, line, text in placed]


def _with_defaults(value: dict[str, object], name: str) -> dict[str, object]:
    """The document with the keys that an extract may leave out: only here the dataset's name is known."""
    source = value.get("source")
    if not isinstance(source, dict) or "extract" not in source:
        return value
    return {**value, "source": {"format": "parquet", "path": f"extracts/{name}/{{day}}.parquet", **source}}


def _naming_problems(name: object, folder: str) -> Iterator[tuple[KeyPath, str]]:
    try:
        checked_name(folder, "the folder's name")
    except InvalidNameError as error:
        yield ("name",), str(error)
        return
    if isinstance(name, str) and name != folder and NAME_PATTERN.fullmatch(name):
        yield ("name",), f"name = {name!r}: the folder is called {folder!r}; give both the same name"


def _collisions(dataset: Dataset) -> Iterator[tuple[KeyPath, str]]:
    metrics = [name for name, n in Counter(metric_names(dataset)).items() if n > 1]
    for name in metrics:
        yield ("measures",), f"measures: two metrics are called {name!r}; rename a measure"
    reported = {CHANGE + name for name in metrics}
    for name, n in Counter(c.name for c in checks_of(dataset)).items():
        if n > 1 and name not in reported:
            yield ("checks",), f"checks: two checks are called {name!r}; rename one or name it only once"


def _consumer_problems(dataset: Dataset) -> Iterator[tuple[KeyPath, str]]:
    for name, consumer in dataset.consumers.items():
        for _, text in sql_problems(consumer.sql, "a consumer's query"):
            yield ("consumers", name, "sql"), f"consumers.{name}.sql: {text}"
    # The view always shows the newest version, even if a query is meant for an older one.
    view = re.compile(rf"\bpublished`?\s*\.\s*`?{dataset.name}\b", re.IGNORECASE)
    for name, consumer in dataset.consumers.items():
        if found := view.search(consumer.sql):
            text = f"it reads the view {found[0]}; write {dataset.name} alone, which can also be an older version of the table"
            yield ("consumers", name, "sql"), f"consumers.{name}.sql: {text}"


def _golden_problems(dataset: Dataset) -> Iterator[tuple[KeyPath, str]]:
    for name, golden in dataset.golden.items():
        for key, query in (("sql", golden.sql), ("ours", golden.ours)):
            for _, text in sql_problems(query, "a golden source's query") if query is not None else ():
                yield ("golden", name, key), f"golden.{name}.{key}: {text}"


def _query_problems(dataset: Dataset) -> Iterator[tuple[KeyPath, str]]:
    extract = dataset.extract
    if extract is not None and extract.query is not None:
        for _, text in sql_problems(extract.query, "an extract's query"):
            yield ("source", "extract", "query"), f"source.extract.query: {text}"


def _with_code(dataset: Dataset, code: Mapping[str, bytes]) -> Dataset:
    """The dataset whose extract knows the text of its Python file: that text runs, whatever is on disk by then.

    Raises:
        DatasetError: there is no such file, or it is not UTF-8; `args` begin with the message.
    """
    if dataset.extract is None:
        return dataset
    script = ""
    if dataset.extract.file is not None:
        if SCRIPT not in code:
            raise DatasetError(
                f"source.extract.file: there is no {SCRIPT}; write one with def extract(day), or name a database"
            )
        try:
            script = decoded(normal(code[SCRIPT]))
        except DatasetError as error:
            raise DatasetError(f"{SCRIPT}: {error.args[0]}") from error
    extract = dataset.extract.with_code(script, dataset.time_zone)
    return dataset.model_copy(update={"source": dataset.landing.model_copy(update={"extract": extract})})


def _names_under(value: dict[str, object], key: str) -> tuple[str, ...]:
    part = value.get(key)
    return tuple(part) if isinstance(part, dict) else ()


def _has_versions(references: object, name: str) -> bool:
    one = references.get(name) if isinstance(references, dict) else None
    return isinstance(one, dict) and one.get("valid") is not None


def _models(folder: Path, value: dict[str, object]) -> tuple[dict[ModelLayer, Model], list[FileProblem]]:
    references, upstreams = _names_under(value, "references"), _names_under(value, "upstream")
    # Without either, the contract is refused anyway; a missing staging model is then reported too.
    staged = "source" in value or not upstreams
    # Nothing builds a staged day alone: a model that forgets the day of a version would not be found.
    plain = [name for name in references if not _has_versions(value["references"], name)]
    tables = {
        ModelLayer.staging: ("raw", *plain),
        ModelLayer.fact: (*(("staging",) if staged else ()), *upstreams, *references),
    }
    models: dict[ModelLayer, Model] = {}
    problems: list[FileProblem] = []
    for layer in ModelLayer if staged else (ModelLayer.fact,):
        result = find_model(folder, layer, tables[layer])
        if isinstance(result, Model):
            models[layer] = result
        else:
            problems += result
    return models, problems


def _code_files(folder: Path, content: bytes) -> dict[str, bytes]:
    # Whether live runs build it says nothing about its rows: what a draft has built stays when it becomes live.
    files = {FILE: re.sub(_STATE, b"", normal(content))}
    for path in sorted(folder.iterdir()):
        if path.suffix in {".sql", ".py"} and path.is_file():
            try:
                files[path.name] = content_of(path)
            except DatasetError as error:
                raise DatasetError(f"{path.name}: {error.args[0]}", None) from error
    return files


def _hashed(models: Collection[Model]) -> dict[str, bytes]:
    """The code that runs, exactly as it was read, by name; names of modules never equal those of files.

    Each layer runs the text that it has read, so a deployment during loading cannot run code that is not hashed.
    """
    return {model.path.name: model.text.encode() for model in models} | {
        f"{model.layer} imports {name}": module.content
        for model in models
        for name, module in model.modules.items()
        if module.file is not None
    }


def _cases(folder: Path) -> tuple[Case, ...]:
    cases = folder / "cases"
    if not cases.is_dir():
        return ()
    found = sorted(path for path in cases.iterdir() if path.is_dir() and path.name[0] not in "._")
    return tuple(Case(path.name, path) for path in found)
