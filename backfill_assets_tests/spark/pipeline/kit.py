"""A small dataset in a temporary folder, and the single steps of its pipeline."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.core.delivery import Delivery
from backfill_assets.dataset.deliveries import in_force, in_order, received
from backfill_assets.dataset.load import load_dataset
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.evidence.basis import UpstreamDays
from backfill_assets.pipeline.build import Audit, build_shadow
from backfill_assets.pipeline.frames import Frames
from backfill_assets.pipeline.land import land
from backfill_assets.pipeline.measure import Sides, measure
from backfill_assets.pipeline.raw_table import read_raw
from backfill_assets.pipeline.stage import StagedCounts, stage
from backfill_assets.settings import Settings
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.sources import discover
from backfill_assets_tests.spark.workplace import settings_of

D1, D2, D3, D4 = (dt.date(2024, 2, 28) + dt.timedelta(i) for i in range(4))
DAYS = (D1, D2, D3, D4)
NOW = dt.datetime(2024, 3, 5, 6, 7, 8, 123456, tzinfo=dt.UTC)
FOLDER = "_shadow/u_1/1"

TRIPS: dict[str, object] = {
    "name": "trips",
    "partition_column": "day",
    "start": D1.isoformat(),
    "key": ["day", "id"],
    "columns": {
        "day": {"type": "date"},
        "id": {"type": "integer"},
        "kind": {"type": "string"},
        "amount": {"type": "double", "nullable": False},
        "fee": {"type": "decimal(12,2)"},
    },
    "source": {
        "format": "csv",
        "path": "trips/{day}*",
        "columns": {"day": "date", "id": "integer", "kind": "string", "amount": "double", "fee": "decimal(12,2)"},
    },
    "staging": {"deduplicate": "latest_delivery"},
    "references": {"kinds": {"format": "csv", "path": "kinds.csv", "columns": {"kind": "string", "label": "string"}}},
    "measures": {
        "amount": {"distinct": True, "percentiles": True},
        "fee": {},
        "id": {},
        "kind": {"sum": False, "distinct": True},
    },
    "checks": {
        "references": {"known_kind": {"reference": "kinds", "columns": ["kind"], "to": ["kind"]}},
        "rules": {"not_negative": {"sql": "amount >= 0"}, "fee_below_amount": {"sql": "fee <= amount"}},
    },
}
STAGING = "SELECT day, id, kind, amount, fee, _lineage FROM raw"
FACT = "SELECT day, id, kind, amount, fee FROM staging"


@dataclass(frozen=True)
class Kit:
    """One warehouse and one sources folder, both empty at first except for the reference `kinds`."""

    spark: SparkSession
    root: Path
    book: dict[str, tuple[Delivery, ...]] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return Layout(OnDisk(self.root / "warehouse"), OnDisk(self.root / "sources"))

    @property
    def settings(self) -> Settings:
        """Settings of an application over these folders."""
        return settings_of(self.root)

    def dataset(
        self, staging: str = STAGING, fact: str = FACT, suffix: str = "sql", *, deduplicate: str = "", **changes: object
    ) -> LoadedDataset:
        document = {**TRIPS, **changes, **({"staging": {"deduplicate": deduplicate}} if deduplicate else {})}
        folder = self.root / "datasets" / str(document["name"])
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        (folder / "dataset.yaml").write_text(json.dumps(document))
        (folder / f"staging.{suffix}").write_text(staging)
        (folder / f"fact.{suffix}").write_text(fact)
        self.put("kinds.csv", "kind,label\na,Alpha\nb,Beta\n")
        loaded = load_dataset(folder)
        assert isinstance(loaded, LoadedDataset), loaded
        return loaded

    def derived(self, fact: str, **document: object) -> LoadedDataset:
        """The dataset `totals`, which is built from others."""
        folder = self.root / "datasets" / "totals"
        folder.mkdir(parents=True, exist_ok=True)
        said = {"name": "totals", "partition_column": "day", "start": str(D1), **document}
        (folder / "dataset.yaml").write_text(json.dumps(said))
        (folder / "fact.sql").write_text(fact)
        loaded = load_dataset(folder)
        assert isinstance(loaded, LoadedDataset), loaded
        return loaded

    def put(self, name: str, content: str | bytes, hour: int = 0) -> Path:
        path = path_of(self.layout.sources) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        moment = (dt.datetime(2024, 3, 1, tzinfo=dt.UTC) + dt.timedelta(hours=hour)).timestamp()
        os.utime(path, (moment, moment))
        return path

    def deliver(self, day: dt.date, *rows: str, part: str = "", hour: int = 0) -> Path:
        lines = ["day,id,kind,amount,fee", *rows]
        return self.put(f"trips/{day}{part}.csv", "\n".join(lines) + "\n", hour)

    def land(self, loaded: LoadedDataset, *days: dt.date) -> tuple[Delivery, ...]:
        """Land the files that are there, and keep what a ledger would: `book` has all deliveries with their numbers."""
        files = discover(loaded, self.layout, loaded.dataset.delivery_days(days))
        known = self.book.get(loaded.name, ())
        landed = land(self.spark, loaded, self.layout, files, NOW, {d.content: d.rows for d in known})
        changed = received(known, in_order(loaded.dataset, landed))
        now = {d.content: d for d in (*known, *changed)}
        self.book[loaded.name] = tuple(now.values())
        return landed

    def in_force(self, loaded: LoadedDataset) -> tuple[Delivery, ...]:
        return in_force(loaded.dataset, self.book.get(loaded.name, ()))

    def stage(self, loaded: LoadedDataset, *days: dt.date) -> Mapping[dt.date, StagedCounts]:
        self.land(loaded, *days)
        return stage(self.spark, loaded, self.layout, days, self.in_force(loaded))

    def build(self, loaded: LoadedDataset, *days: dt.date, folder: str = FOLDER) -> None:
        self.stage(loaded, *loaded.dataset.with_window(days))
        audit = Audit(NOW, "u_1", loaded.code_version)
        build_shadow(self.frames(loaded, *days, folder=folder), audit)

    def frames(
        self, loaded: LoadedDataset, *days: dt.date, folder: str = FOLDER, upstreams: Sequence[UpstreamDays] = ()
    ) -> Frames:
        return Frames(self.spark, loaded, self.layout, folder, days, upstreams)

    def measure(self, loaded: LoadedDataset, *days: dt.date, folder: str = FOLDER) -> Mapping[dt.date, Sides]:
        return measure(self.frames(loaded, *days, folder=folder))

    def table(self, path: Path) -> DataFrame:
        return self.spark.read.format("delta").load(str(path))

    def raw(self, loaded: LoadedDataset) -> DataFrame:
        return read_raw(self.spark, loaded, self.layout, [D1 + dt.timedelta(i) for i in range(30)])

    def staging_folder(self, loaded: LoadedDataset) -> Path:
        (folder,) = path_of(self.layout.staging_path(loaded.name)).iterdir()
        return folder

    def staged(self, loaded: LoadedDataset) -> DataFrame:
        return self.table(self.staging_folder(loaded))

    def shadow_folder(self, loaded: LoadedDataset, folder: str = FOLDER) -> Path:
        return path_of(self.layout.published_path(loaded.name)) / folder

    def shadow(self, loaded: LoadedDataset, folder: str = FOLDER) -> DataFrame:
        return self.table(self.shadow_folder(loaded, folder))

    def rows(self, *rows: Sequence[object]) -> DataFrame:
        """What a shadow of `trips` with these rows would have; building one takes seconds."""
        columns = "day date, id int, kind string, amount double, fee decimal(12,2)"
        audit = "recalculated_at timestamp, unit string, code_version string"
        return self.spark.createDataFrame([(*row, NOW, "u_0", "c") for row in rows], f"{columns}, {audit}")

    def publish(self, loaded: LoadedDataset, frame: DataFrame) -> None:
        """Stand in for a release: what readers see is this frame."""
        _write(frame, path_of(self.layout.published_path(loaded.name)))

    def put_shadow(self, loaded: LoadedDataset, frame: DataFrame, folder: str = FOLDER) -> None:
        """Stand in for a build: the shadow has these rows, and neither raw nor staging has any."""
        _write(frame, self.shadow_folder(loaded, folder))


@dataclass(frozen=True)
class Prepared:
    """A dataset that a module's tests only read, and where it is."""

    kit: Kit
    loaded: LoadedDataset


def _write(frame: DataFrame, path: Path) -> None:
    """Replace a table, without Spark, which would take a second for it."""
    write_deltalake(path, frame.toArrow(), partition_by=["day"], mode="overwrite", schema_mode="overwrite")


def values(frame: DataFrame, *columns: str) -> list[tuple[object, ...]]:
    """Sorted rows of some columns, nulls last."""
    rows = [tuple(row) for row in frame.select(*columns).collect()]
    return sorted(rows, key=lambda row: [(value is None, str(value)) for value in row])


def commits(path: Path) -> int:
    """Number of commits of a Delta table."""
    return len(list((path / "_delta_log").glob("*.json")))
