"""A loaded dataset folder, the catalog of all datasets, and which dataset is built from which."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from operator import attrgetter
from pathlib import Path

from backfill_assets.core.canonical import digest
from backfill_assets.core.errors import DatasetError
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.yaml import FileProblem

Upstreams = Mapping[str, Collection[str]]
"""For each dataset, the datasets that it is built from."""

SHARED = ("time_zone", "end", "end_offset", "chunk_days", "publication", "live.catch_up")
"""What the members of a release group must have in common: where their days end, their chunks, who releases them and catches up."""


def upstreams_of(datasets: Mapping[str, Dataset]) -> Upstreams:
    """The upstreams of each dataset, in the order of dataset.yaml."""
    return {name: tuple(dataset.upstream) for name, dataset in datasets.items()}


def upstream_first(names: Iterable[str], upstreams: Upstreams) -> tuple[str, ...]:
    """The names, each after everything that it is built from; names of equal rank in alphabetical order.

    The graph must have no cycle (`cycle_in`).
    """
    sorter: TopologicalSorter[str] = TopologicalSorter(upstreams)
    sorter.prepare()
    ranked: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        ranked += ready
        sorter.done(*ready)
    rank = {name: i for i, name in enumerate(ranked)}
    return tuple(sorted(set(names), key=lambda name: (rank.get(name, -1), name)))


def cycle_in(upstreams: Upstreams) -> tuple[str, ...]:
    """One cycle, its first member repeated at its end; empty if there is none."""
    try:
        TopologicalSorter(upstreams).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return tuple(found)
    return ()


def release_groups(upstreams: Upstreams) -> tuple[tuple[str, ...], ...]:
    """The connected sets of datasets, each upstream first; a dataset that stands alone is a group of its own."""
    neighbours: dict[str, set[str]] = {name: set() for name in upstreams}
    for name, above in upstreams.items():
        for other in above:
            neighbours[name].add(other)
            neighbours.setdefault(other, set()).add(name)
    groups, left = [], sorted(neighbours)
    while left:
        members, edge = {left[0]}, {left[0]}
        while edge:
            edge = {other for name in edge for other in neighbours[name]} - members
            members |= edge
        groups.append(upstream_first(members, upstreams))
        left = [name for name in left if name not in members]
    return tuple(groups)


def groups_apart(datasets: Mapping[str, Dataset]) -> tuple[tuple[str, ...], ...]:
    """The release groups as if nothing connected what is live with drafts."""
    draft = {name: dataset.is_draft for name, dataset in datasets.items()}
    alike = {name: [one for one in dataset.upstream if draft[one] is draft[name]] for name, dataset in datasets.items()}
    return release_groups(alike)


def downstream_of(names: Iterable[str], upstreams: Upstreams) -> tuple[str, ...]:
    """Everything that is built from one of these datasets, directly or not, upstream first; without these themselves."""
    asked = set(names)
    found, edge = set(asked), set(asked)
    while edge:
        edge = {name for name, above in upstreams.items() if edge & set(above)} - found
        found |= edge
    return upstream_first(found - asked, upstreams)


def differences(dataset: Dataset, upstream: Dataset) -> tuple[tuple[str, str], ...]:
    """The keys that a dataset must share with an upstream but does not: (key, what each of them says)."""
    return tuple(
        (key, f"{key} is {_shown(dataset, key)}, but {_shown(upstream, key)} in {upstream.name}")
        for key in SHARED
        if attrgetter(key)(dataset) != attrgetter(key)(upstream)
    )


def _shown(dataset: Dataset, key: str) -> str:
    value = attrgetter(key)(dataset)
    return "not set" if value is None else str(value)


FILE = "dataset.yaml"
"""The file that makes a folder a dataset."""


class ModelLayer(StrEnum):
    """The two steps of the pipeline that a dataset describes with a model."""

    staging = "staging"
    fact = "fact"


class Language(StrEnum):
    """What a model is written in; the value is the file's suffix without its dot."""

    sql = "sql"
    python = "py"


@dataclass(frozen=True)
class ModuleSource:
    """A module of the project as it was read: its file and content, and the folders of a package.

    A namespace package has no file and no content.
    """

    file: Path | None
    content: bytes
    folders: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Model:
    """A staging or fact model: its file, its language, its text and the tables it asks for.

    `parameters` are the tables that a Python model's function takes, in order; SQL has none: it sees all tables. `modules`
    are the project's modules that a Python model imports, directly or not, by name. Text and modules are hashed, and nothing
    else runs.
    """

    layer: ModelLayer
    path: Path
    language: Language
    text: str
    parameters: tuple[str, ...] = ()
    modules: Mapping[str, ModuleSource] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A golden case: a folder of input files and of the rows expected from them."""

    name: str
    folder: Path


@dataclass(frozen=True)
class LoadedDataset:
    """A dataset folder without problems.

    `staging` is None if the dataset is built only from upstream; `code_version` is 16 hex digits over dataset.yaml, the
    folder's code, the project's modules that it imports, and the version of this project.
    """

    dataset: Dataset
    folder: Path
    staging: Model | None
    fact: Model
    code_version: str
    cases: tuple[Case, ...] = ()

    @property
    def name(self) -> str:
        """The dataset's name, which is also the folder's."""
        return self.dataset.name

    def seen_at(self, now: dt.datetime) -> LoadedDataset:
        """The same, with a dataset as it is seen at an aware moment."""
        dataset = self.dataset.seen_at(now)
        return self if dataset is self.dataset else replace(self, dataset=dataset)

    @property
    def staging_model(self) -> Model:
        """The staging model of a dataset that has a source.

        Raises:
            DatasetError: it is built only from upstream.
        """
        if self.staging is None:
            raise DatasetError(f"{self.name} has no staging: it is built from {', '.join(self.dataset.upstream)}")
        return self.staging


@dataclass(frozen=True)
class Catalog:
    """All usable datasets of a folder, by name, and the problems of the others."""

    datasets: Mapping[str, LoadedDataset]
    problems: tuple[FileProblem, ...] = ()

    def seen_at(self, now: Callable[[], dt.datetime]) -> Mapping[str, LoadedDataset]:
        """The usable datasets as they are seen now; only windows that may await days depend on the moment, which is aware."""
        if not self._has_provisional:
            return self.datasets
        moment = now()
        return {name: loaded.seen_at(moment) for name, loaded in self.datasets.items()}

    @cached_property
    def _has_provisional(self) -> bool:
        return any(loaded.dataset.provisional is not None for loaded in self.datasets.values())

    def dataset(self, name: str) -> LoadedDataset:
        """The dataset of that name.

        Raises:
            DatasetError: there is none, or its folder has problems, which are named.
        """
        if name in self.datasets:
            return self.datasets[name]
        own = [str(problem) for problem in self.problems if problem.dataset == name]
        if own:
            raise DatasetError("\n".join([f"dataset {name} cannot be used:", *own]))
        known = ", ".join(sorted(self.datasets)) or "none"
        raise DatasetError(f"there is no dataset {name!r}; choose one of: {known}")

    def require_all(self) -> None:
        """Refuse a folder with any problem, for callers that need the complete catalog.

        Raises:
            DatasetError: names every problem.
        """
        if self.problems:
            raise DatasetError("\n".join(str(problem) for problem in self.problems))

    @property
    def definitions(self) -> Mapping[str, Dataset]:
        """The contract in the `dataset.yaml` of each dataset."""
        return {name: loaded.dataset for name, loaded in self.datasets.items()}

    @property
    def code(self) -> Mapping[str, str]:
        """The code version of each dataset."""
        return {name: loaded.code_version for name, loaded in self.datasets.items()}

    @cached_property
    def upstreams(self) -> Upstreams:
        """For each dataset, the datasets that it is built from."""
        return upstreams_of(self.definitions)

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The release groups: datasets that are connected by upstreams, each upstream first."""
        return release_groups(self.upstreams)

    @cached_property
    def live_groups(self) -> tuple[tuple[str, ...], ...]:
        """The release groups that live runs build and catch-up fills: without drafts, which can connect datasets, too."""
        return tuple(group for group in self.groups_apart if not self.datasets[group[0]].dataset.is_draft)

    @cached_property
    def groups_apart(self) -> tuple[tuple[str, ...], ...]:
        """The release groups as if nothing connected what is live with drafts."""
        return groups_apart(self.definitions)

    def groups_of(self, built: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """The release groups of a launch: drafts connect them only if it builds some."""
        return self.groups if any(self.datasets[name].dataset.is_draft for name in built) else self.groups_apart

    @cached_property
    def first_partitions(self) -> Mapping[str, dt.date]:
        """The earliest `start` in the release group of each dataset: Dagster launches only equal partitions together."""
        starts = {name: loaded.dataset.start for name, loaded in self.datasets.items()}
        return {name: min(starts[member] for member in group) for group in self.groups for name in group}

    def upstream_first(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names, each after everything that it is built from; unknown names come first."""
        return upstream_first(names, self.upstreams)

    def downstream_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Everything that is built from one of these datasets, upstream first."""
        return downstream_of(names, self.upstreams)

    def live_downstream_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Everything that is live and built from one of these datasets, upstream first."""
        return tuple(name for name in self.downstream_of(names) if not self.datasets[name].dataset.is_draft)


DIGITS = 16
"""Hex digits of a code version."""


@cache
def project_version() -> str:
    """The installed version of this project; `unknown` if it is not installed."""
    try:
        return metadata.version("backfill-assets")
    except metadata.PackageNotFoundError:
        return "unknown"


def code_version(files: Mapping[str, bytes], project: str) -> str:
    """16 hex digits over files by name and the project's version; line endings do not count.

    So a release accepts evidence from a checkout with other line endings.
    """
    contents = {name: hashlib.sha256(normal(content)).hexdigest() for name, content in files.items()}
    return digest([contents, project])[:DIGITS]


def normal(content: bytes) -> bytes:
    """A file as it is hashed: without a byte order mark, and with Unix line endings."""
    return content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
