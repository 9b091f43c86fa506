"""The catalog: dataset folders, read and checked without running anything in them."""

from backfill_assets.dataset.faults import DatasetFault
from backfill_assets.dataset.load import load_dataset, load_folder
from backfill_assets.dataset.loaded import Case, Catalog, Language, Layer, LoadedDataset, Model
from backfill_assets.dataset.schema import dataset_schema

__all__ = [
    "Case",
    "Catalog",
    "DatasetFault",
    "Language",
    "Layer",
    "LoadedDataset",
    "Model",
    "dataset_schema",
    "load_dataset",
    "load_folder",
]
