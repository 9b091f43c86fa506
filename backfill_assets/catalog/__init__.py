"""The catalog: dataset folders, read and checked without running anything in them."""

from backfill_assets.catalog.faults import DatasetFault
from backfill_assets.catalog.loaded import Case, Catalog, Language, Layer, LoadedDataset, Model
from backfill_assets.catalog.loading import load_dataset, load_folder
from backfill_assets.catalog.schema import dataset_schema

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
