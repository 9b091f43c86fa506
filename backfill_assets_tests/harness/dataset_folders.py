"""A small, correct dataset folder that each test breaks in its own way."""

from __future__ import annotations

from pathlib import Path

from backfill_assets.dataset.load import load_dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.yaml import FileProblem

YAML = """\
name: trips
partition_column: trip_date
start: 2024-01-01
key: [trip_date, trip]
columns:
  trip_date: {type: date}
  trip: {type: long}
  fare: {type: "decimal(10, 2)", nullable: false}
  city: {type: string}
source:
  format: csv
  path: trips/{day}.csv
  columns:
    trip: long
    fare: decimal(10,2)
    city: string
references:
  cities:
    format: csv
    path: cities.csv
    columns: {city: string}
measures:
  fare: {tolerance: 2%}
checks:
  references:
    cities: {reference: cities, columns: [city], to: [city]}
"""
STAGING = "SELECT DATE'2024-01-01' AS trip_date, trip, fare, city, _lineage FROM raw\n"
FACT = "SELECT trip_date, trip, fare, city FROM staging\n"


def write_dataset(root: Path, name: str = "trips", yaml: str = YAML) -> Path:
    """Write a dataset folder below `root`; returns the folder."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "dataset.yaml").write_text(yaml, encoding="utf-8")
    (folder / "staging.sql").write_text(STAGING, encoding="utf-8")
    (folder / "fact.sql").write_text(FACT, encoding="utf-8")
    return folder


def python_dataset(root: Path, text: str) -> Path:
    """Write a dataset folder whose fact model is this Python; returns the folder."""
    folder = write_dataset(root)
    (folder / "fact.sql").unlink()
    (folder / "fact.py").write_text(text, encoding="utf-8")
    return folder


def loaded(folder: Path) -> LoadedDataset:
    result = load_dataset(folder)
    assert isinstance(result, LoadedDataset), "\n".join(map(str, result))
    return result


def problems(folder: Path) -> tuple[FileProblem, ...]:
    result = load_dataset(folder)
    assert not isinstance(result, LoadedDataset), "the folder was accepted"
    return result


def spoiled(root: Path, old: str, new: str) -> list[str]:
    """Messages about the dataset with one text replaced, each without its folder: `dataset.yaml:3: …`."""
    assert YAML.count(old) == 1, f"{old!r} must stand exactly once in the sample"
    folder = write_dataset(root, yaml=YAML.replace(old, new))
    return [str(problem).removeprefix(f"{folder}/") for problem in problems(folder)]
