"""Folders of datasets become a catalog: everything is checked, nothing runs, one bad folder never hides the others."""

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
    project_version,
)
from backfill_assets.dataset.models import find_model, sql_faults
from backfill_assets.dataset.yaml import (
    MOST_FAULTS,
    Document,
    FileFault,
    KeyPath,
    content_of,
    decoded,
    read_yaml,
    shown_key,
    shown_path,
    validation_faults,
)


def linked(datasets: Mapping[str, LoadedDataset]) -> tuple[dict[str, LoadedDataset], tuple[FileFault, ...]]:
    """The datasets whose upstreams are all there and fit, and what is wrong with the others.

    A dataset that is refused takes with it everything that is built from it.
    """
    good, faults = dict(datasets), list[FileFault]()
    while found := [*_cycle(good), *(fault for loaded in good.values() for fault in _faults(loaded, good))]:
        faults += found
        for fault in found:
            good.pop(fault.dataset, None)
    return good, tuple(faults)


def _cycle(datasets: Mapping[str, LoadedDataset]) -> Iterator[FileFault]:
    known = {name: [u for u in loaded.dataset.upstream if u in datasets] for name, loaded in datasets.items()}
    cycle = cycle_in(known)
    for name in sorted(set(cycle)):
        text = f"the upstreams go round in a circle: {' → '.join(reversed(cycle))}; break it"
        yield _fault(datasets[name], "upstream", text)


def _faults(loaded: LoadedDataset, datasets: Mapping[str, LoadedDataset]) -> Iterator[FileFault]:
    for name in loaded.dataset.upstream:
        if name not in datasets:
            known = ", ".join(sorted(datasets)) or "none"
            text = f"upstream {name!r} is not loaded; correct its name or its folder. Loaded: {known}"
            yield _fault(loaded, f"upstream.{name}", text)
            continue
        for key, text in differences(loaded.dataset, datasets[name].dataset):
            yield _fault(loaded, key, f"{text}; datasets that are released together must agree")


def _fault(loaded: LoadedDataset, key: str, text: str) -> FileFault:
    return FileFault(loaded.folder / FILE, text, None, key, loaded.name)


def load_folder(folder: Path) -> Catalog:
    """Load every dataset folder below `folder`; folders whose names begin with `.` or `_` are left alone.

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
    faults: list[FileFault] = []
    for path in found:
        result = load_dataset(path)
        if isinstance(result, LoadedDataset):
            datasets[path.name] = result
        else:
            faults += (replace(fault, dataset=path.name) for fault in result)
    datasets, link_faults = linked(datasets)
    return Catalog(datasets, (*faults, *link_faults))


def load_dataset(folder: Path) -> LoadedDataset | tuple[FileFault, ...]:
    """Load one dataset folder, or say everything that is wrong with it."""
    try:
        return _loaded(folder)
    except OSError as error:
        text = f"cannot be read ({error.strerror}: {error.filename}); let this user read the folder, or move it away"
        return (FileFault(folder, text),)


def _loaded(folder: Path) -> LoadedDataset | tuple[FileFault, ...]:
    file = folder / FILE
    if not file.is_file():
        return (FileFault(folder, f"the folder has no {FILE}; write one, or move the folder away"),)
    try:
        content = content_of(file)
        document = read_yaml(decoded(content))
    except DatasetError as error:
        return (FileFault(file, *error.args),)
    dataset, faults = _dataset(document, file)
    if not isinstance(document.value, dict):
        return tuple(faults[:MOST_FAULTS])
    models, model_faults = _models(folder, document.value)
    faults += model_faults
    if dataset is None or faults or ModelLayer.fact not in models:
        return tuple(faults[:MOST_FAULTS])
    try:
        code = _code_files(folder, content) | _hashed(models.values())
    except DatasetError as error:
        return (FileFault(folder, str(error.args[0])),)
    version = code_version(code, project_version())
    return LoadedDataset(
        dataset, folder, models.get(ModelLayer.staging), models[ModelLayer.fact], version, _cases(folder)
    )


def _dataset(document: Document, file: Path) -> tuple[Dataset | None, list[FileFault]]:
    placed: list[tuple[KeyPath, int | None, str]] = [(path, line, text) for line, path, text in document.faults]
    dataset: Dataset | None = None
    if isinstance(document.value, dict):
        try:
            # As JSON, because strict validation of JSON takes dates and enums from text, but nothing else.
            dataset = Dataset.model_validate_json(json.dumps(document.value), strict=True)
        except ValidationError as error:
            placed += validation_faults(error, Dataset, document.lines)
        found = [*_naming_faults(document.value.get("name"), file.parent.name)]
        if dataset is not None:
            found += (*_collisions(dataset), *_consumer_faults(dataset), *_golden_faults(dataset))
        placed += ((path, document.lines.get(path), text) for path, text in found)
    else:
        placed.append(((), 1, "the file has no mapping of key: value lines; see docs/dataset-yaml.md"))
    return dataset, [FileFault(file, text, line, shown_key(path)) for path, line, text in placed]


def _naming_faults(name: object, folder: str) -> Iterator[tuple[KeyPath, str]]:
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
    told = {CHANGE + name for name in metrics}
    for name, n in Counter(c.name for c in checks_of(dataset)).items():
        if n > 1 and name not in told:
            yield ("checks",), f"checks: two checks are called {name!r}; rename one or name it only once"


def _consumer_faults(dataset: Dataset) -> Iterator[tuple[KeyPath, str]]:
    for name, consumer in dataset.consumers.items():
        for _, text in sql_faults(consumer.sql, "a consumer's query"):
            yield ("consumers", name, "sql"), f"consumers.{name}.sql: {text}"
    # The view always shows the newest version, whichever one is asked about.
    view = re.compile(rf"\bpublished`?\s*\.\s*`?{dataset.name}\b", re.IGNORECASE)
    for name, consumer in dataset.consumers.items():
        if found := view.search(consumer.sql):
            text = f"it names the view {found[0]}; write {dataset.name} alone, which can be the table as it was"
            yield ("consumers", name, "sql"), f"consumers.{name}.sql: {text}"


def _golden_faults(dataset: Dataset) -> Iterator[tuple[KeyPath, str]]:
    for name, golden in dataset.golden.items():
        for key, query in (("sql", golden.sql), ("ours", golden.ours)):
            for _, text in sql_faults(query, "a golden source's query") if query is not None else ():
                yield ("golden", name, key), f"golden.{name}.{key}: {text}"


def _names_under(value: dict[str, object], key: str) -> tuple[str, ...]:
    part = value.get(key)
    return tuple(part) if isinstance(part, dict) else ()


def _models(folder: Path, value: dict[str, object]) -> tuple[dict[ModelLayer, Model], list[FileFault]]:
    references, upstreams = _names_under(value, "references"), _names_under(value, "upstream")
    # Without either, the contract is refused anyway; a missing staging model is then worth a word as well.
    staged = "source" in value or not upstreams
    tables = {ModelLayer.staging: ("raw",), ModelLayer.fact: (*(("staging",) if staged else ()), *upstreams)}
    models: dict[ModelLayer, Model] = {}
    faults: list[FileFault] = []
    for layer in ModelLayer if staged else (ModelLayer.fact,):
        result = find_model(folder, layer, (*tables[layer], *references))
        if isinstance(result, Model):
            models[layer] = result
        else:
            faults += result
    return models, faults


def _code_files(folder: Path, content: bytes) -> dict[str, bytes]:
    files = {FILE: content}
    for path in sorted(folder.iterdir()):
        if path.suffix in {".sql", ".py"} and path.is_file():
            try:
                files[path.name] = content_of(path)
            except DatasetError as error:
                raise DatasetError(f"{path.name}: {error.args[0]}", None) from error
    return files


def _hashed(models: Collection[Model]) -> dict[str, bytes]:
    """What runs, as it was read to be run, under its name; modules have names that no file has.

    Whatever is deployed while a folder is loaded, no text runs that does not count: each layer has read its own.
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
