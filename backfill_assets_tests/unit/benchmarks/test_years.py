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
    # It is refused if the doctor finds anything; Dagster and another ledger are none of its business.
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("BACKFILL_ASSETS_LEDGER_URL", f"sqlite:///{tmp_path}/another.db")
    found = years.measure_years(tmp_path, 4, 2, lambda _: None)
    assert not (tmp_path / "another.db").exists()
    assert set(found) == {
        "publish a day of each dataset",
        "backfill status",
        "backfill releases",
        "backfill metrics",
        "backfill doctor",
        "backfill stale",
        "write data_releases whole",
        "sweep",
        "look for late deliveries",
        "nightly look for stale days",
    }
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
        for place in (application.layout.published_path(name), application.layout.raw_path(name)):
            log = sorted((Path(str(place)) / "_delta_log").glob("*.json"))
            dates = [dt.datetime.fromtimestamp(file.stat().st_mtime, dt.UTC).date() for file in log[-4:-1]]
            assert dates == [day + dt.timedelta(days=1) for day in days[:3]]
        assert application.late_deliveries.of(name) == ()
        assert application.staleness.of(name, look=True).days == ()
    assert application.doctor.examine() == ()
    assert len(application.data_releases.table.read() or ()) == 8
