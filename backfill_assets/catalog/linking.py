"""Linking loaded datasets: whoever is built from another one must find it, share its days, and never itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from backfill_assets.catalog.faults import DatasetFault
from backfill_assets.catalog.loaded import FILE, LoadedDataset
from backfill_assets.domain.lineage import cycle_in, differences


def linked(datasets: Mapping[str, LoadedDataset]) -> tuple[dict[str, LoadedDataset], tuple[DatasetFault, ...]]:
    """The datasets whose upstreams are all there and fit, and what is wrong with the others.

    A dataset that is refused takes with it everything that is built from it.
    """
    good, faults = dict(datasets), list[DatasetFault]()
    while found := [*_cycle(good), *(fault for loaded in good.values() for fault in _faults(loaded, good))]:
        faults += found
        for fault in found:
            good.pop(fault.dataset, None)
    return good, tuple(faults)


def _cycle(datasets: Mapping[str, LoadedDataset]) -> Iterator[DatasetFault]:
    known = {name: [u for u in loaded.dataset.upstream if u in datasets] for name, loaded in datasets.items()}
    cycle = cycle_in(known)
    for name in sorted(set(cycle)):
        text = f"the upstreams go round in a circle: {' → '.join(reversed(cycle))}; break it"
        yield _fault(datasets[name], "upstream", text)


def _faults(loaded: LoadedDataset, datasets: Mapping[str, LoadedDataset]) -> Iterator[DatasetFault]:
    for name in loaded.dataset.upstream:
        if name not in datasets:
            known = ", ".join(sorted(datasets)) or "none"
            text = f"upstream {name!r} is not loaded; correct its name or its folder. Loaded: {known}"
            yield _fault(loaded, f"upstream.{name}", text)
            continue
        for key, text in differences(loaded.dataset, datasets[name].dataset):
            yield _fault(loaded, key, f"{text}; datasets that are released together must agree")


def _fault(loaded: LoadedDataset, key: str, text: str) -> DatasetFault:
    return DatasetFault(loaded.name, loaded.folder / FILE, text, None, key)
