"""A house of two datasets as users have it: folders, settings, an application; days are built without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from backfill_assets.application import Application
from backfill_assets.core.unit import Unit
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets.orchestration.launches import BACKFILL_TAG
from backfill_assets_tests.harness.specifications import specification
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.harness.world import World

_DATASET = """\
name: {name}
partition_column: day
start: 2026-01-01
end: 2026-01-10
key: [id]
publication: {publication}
columns: {{id: {{type: long}}, day: {{type: date}}, amount: {{type: long}}}}
measures: {{amount: {{}}}}
{origin}
"""
BOTH = ("sales", "totals")
D1 = day(1)


class House:
    """`sales`, and `totals` built from it; an application that is opened by the environment is this one."""

    def __init__(
        self, folder: Path, environ: pytest.MonkeyPatch, *, lookback: int = 0, publication: str = "auto"
    ) -> None:
        origins = {
            "sales": 'source: {format: csv, path: "x/{day}.csv", columns: {id: long}}',
            "totals": f"upstream: {{sales: {{lookback_days: {lookback}}}}}",
        }
        for name, origin in origins.items():
            home = folder / "datasets" / name
            home.mkdir(parents=True)
            (home / "dataset.yaml").write_text(_DATASET.format(name=name, publication=publication, origin=origin))
            (home / "fact.sql").write_text(f"SELECT id, day, amount FROM {'staging' if name == 'sales' else 'sales'}")
        (folder / "sources").mkdir()
        (folder / "datasets" / "sales" / "staging.sql").write_text("SELECT id, day, amount, _lineage FROM raw")
        self.world = World(folder, ("sales", "totals<sales"), asked=specification())
        settings = {
            "STATE": folder / "state", "WAREHOUSE": folder / "warehouse", "SOURCES": folder / "sources",
            "DATASETS": folder / "datasets", "LEDGER_URL": f"sqlite:///{folder / 'ledger.db'}",
        }  # fmt: skip
        for name, value in settings.items():
            environ.setenv(f"BACKFILL_ASSETS_{name}", str(value))
        environ.delenv("DAGSTER_HOME", raising=False)
        self.application = Application.from_env()
        self.application.catalog.require_all()
        self.world.basis = self.application.basis

    def settle(self, name: str, *, start: str = "2026-01-01", source: str = "") -> None:
        """Another dataset, which is connected to no other; applications that are opened from now on have it."""
        home = self.world.folder / "datasets" / name
        home.mkdir()
        source = source or f'{{format: csv, path: "{name}/{{day}}.csv", columns: {{id: long}}}}'
        origin = f"source: {source}"
        text = _DATASET.format(name=name, publication="auto", origin=origin).replace("2026-01-01", start)
        (home / "dataset.yaml").write_text(text)
        (home / "fact.sql").write_text("SELECT id, day, amount FROM staging")
        (home / "staging.sql").write_text("SELECT id, day, amount, _lineage FROM raw")

    def rewrite(self, name: str, old: str, new: str) -> None:
        """Change the dataset.yaml of a dataset, and open the application again."""
        file = self.world.folder / "datasets" / name / "dataset.yaml"
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")
        self.application = Application.from_env()
        self.application.catalog.require_all()
        self.world.basis = self.application.basis

    def unit(self, data: Mapping[dt.date, Sequence[int]], names: Sequence[str] = BOTH) -> Unit:
        """An open unit with passing evidence for everything."""
        unit = self.world.open_unit(dict.fromkeys(names, tuple(data)))
        for name in names:
            self.world.build(unit, name, data)
        return unit

    def released(self, data: Mapping[dt.date, Sequence[int]], names: Sequence[str] = BOTH) -> Unit:
        unit = self.unit(data, names)
        self.world.publisher().release(unit.id)
        return unit

    def close(self) -> None:
        self.world.close()
        self.application.ledger.close()  # type: ignore[attr-defined]


def materialize(
    house: House, *assets: str, partition: dt.date = D1, tags: Mapping[str, str] | None = None, ended: str = ""
) -> str:
    """The error of a run of these assets; empty if it succeeds. `ended` is a backfill with another run that succeeded."""
    job = definitions_of(house.application).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        if ended:
            create_run_for_test(instance, status=dg.DagsterRunStatus.SUCCESS, tags={BACKFILL_TAG: ended})
        done = job.execute_in_process(
            partition_key=str(partition),
            asset_selection=[dg.AssetKey(asset.split("/")) for asset in assets],
            instance=instance,
            raise_on_error=False,
            tags=tags,
        )
        failures = [event.step_failure_data.error for event in done.get_step_failure_events()]
    return "\n".join(str(error.cause or error) for error in failures if error is not None)
