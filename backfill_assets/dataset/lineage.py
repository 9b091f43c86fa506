"""How datasets depend on each other: which go first, which are released together, and what they must share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from backfill_assets.dataset.definition import Dataset

Upstreams = Mapping[str, Collection[str]]
"""For each dataset those that it is built from."""

SHARED = ("time_zone", "start", "end", "end_offset", "chunk_days", "publication")
"""What the members of a release group must have in common: their days, their chunks, and who releases them."""


def upstreams_of(datasets: Mapping[str, Dataset]) -> Upstreams:
    """The upstreams of each dataset, in the order of dataset.yaml."""
    return {name: tuple(dataset.upstream) for name, dataset in datasets.items()}


def upstream_first(names: Iterable[str], upstreams: Upstreams) -> tuple[str, ...]:
    """The names in an order in which each comes after all that it is built from; names of one rank in alphabetical order.

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


def downstream_of(names: Iterable[str], upstreams: Upstreams) -> tuple[str, ...]:
    """Everything that is built from one of these datasets, directly or not, upstream first; not these themselves."""
    asked = set(names)
    found, edge = set(asked), set(asked)
    while edge:
        edge = {name for name, above in upstreams.items() if edge & set(above)} - found
        found |= edge
    return upstream_first(found - asked, upstreams)


def differences(dataset: Dataset, upstream: Dataset) -> tuple[tuple[str, str], ...]:
    """What a dataset and one that it is built from must share and do not: (key, what each of them says)."""
    return tuple(
        (key, f"{key} is {_shown(dataset, key)}, but {_shown(upstream, key)} in {upstream.name}")
        for key in SHARED
        if getattr(dataset, key) != getattr(upstream, key)
    )


def _shown(dataset: Dataset, key: str) -> str:
    value = getattr(dataset, key)
    return "not set" if value is None else str(value)
