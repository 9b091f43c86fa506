"""The benchmark of years of daily releases releases each day of each dataset, and measures what people and sensors do with them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from deltalake import DeltaTable

from backfill_assets.application import Application
from backfill_assets.settings import Settings
from benchmarks import years


@pytest.mark.slow
def test_each_day_is_released_in_its_time_and_everything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(years, "MONTH", 2)
    said: list[str] = []
    found = years.measure_years(tmp_path, 4, 2, said.append)
    assert set(found) == {
        "publish a day of each dataset",
        "backfill status",
        "backfill releases",
        "backfill metrics",
        "backfill doctor",
        "backfill stale",
        "sweep",
        "look for late deliveries",
        "nightly look for stale days",
    }
    assert all(month > 0 and more > 0 for month, more in found.values())
    assert said
    places = {name: str(tmp_path / "years" / name) for name in ("state", "sources", "datasets")}
    application = Application(Settings.from_env({f"BACKFILL_ASSETS_{name.upper()}": at for name, at in places.items()}))
    for name in ("daily_01", "daily_02"):
        records = application.ledger.releases(name)
        days = [swap.day for record in reversed(records) for swap in record.manifest.days]
        assert days == sorted(days)
        assert len(days) == 4
        assert [
            record.manifest.created_at.date() - day for record, day in zip(records[1:], days[-2::-1], strict=True)
        ] == [dt.timedelta(days=1)] * 3
        assert DeltaTable(str(application.layout.published_path(name))).version() == 4
        log = sorted((tmp_path / "years/state/warehouse/published" / name / "_delta_log").glob("*.json"))
        assert dt.datetime.fromtimestamp(log[1].stat().st_mtime, dt.UTC).date() == days[0] + dt.timedelta(days=1)
