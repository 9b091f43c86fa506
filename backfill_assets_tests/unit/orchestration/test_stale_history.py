"""The sensor that looks once a day for published days, however old, that data made stale."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import dagster as dg
import pytest

from backfill_assets.orchestration import sensors
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import House

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clock_of_the_house")]

D1, D2, D3 = day(1), day(2), day(3)


class Looks:
    """A sensor that is asked again and again, and remembers its cursor."""

    def __init__(self, house: House, instance: dg.DagsterInstance) -> None:
        self.house, self.instance, self.cursor = house, instance, ""

    def look(self) -> tuple[str, list[dg.AssetObservation]]:
        definitions = definitions_of(self.house.application)
        repository = definitions.get_repository_def()
        with dg.build_sensor_context(self.instance, cursor=self.cursor, repository_def=repository) as context:
            data = definitions.resolve_sensor_def("stale_history").evaluate_tick(context)
        self.cursor = data.cursor or ""
        assert not data.run_requests
        found = [event for event in data.asset_events if isinstance(event, dg.AssetObservation)]
        assert len(found) == len(data.asset_events)
        return str(data.skip_message), found


@pytest.fixture
def looks(house: House, instance: dg.DagsterInstance) -> Looks:
    house.released({D1: [1], D2: [2], D3: [3]})
    return Looks(house, instance)


def corrected(house: House, *days: dt.date) -> None:
    folder = house.world.folder / "sources" / "x"
    folder.mkdir(exist_ok=True)
    for date in days:
        Path(folder / f"{date}.csv").write_text("id\n1\n", encoding="utf-8")


def test_it_looks_once_a_day_and_records_what_data_made_stale_however_old_it_is(house: House, looks: Looks) -> None:
    assert looks.look() == ("data made nothing stale, up to dataset totals", [])
    corrected(house, D1, D2)
    assert looks.look() == ("has looked on 2026-03-01; see also: backfill stale", [])
    house.world.clock.advance(dt.timedelta(days=1))
    said, (observation,) = looks.look()
    assert said == f"stale: sales {D1}..{D2}"
    assert observation.asset_key == dg.AssetKey(["sales", "published"])
    assert observation.description == (
        "2 published days would come out differently today, or might, because data changed"
    )
    assert {name: one.value for name, one in observation.metadata.items()} == {
        "stale_days": 2,
        "stale because of source": f"{D1}..{D2}",
        "next": "backfill refresh sales",
        "files not landed": f"x/{D1}.csv, x/{D2}.csv",
    }
    assert looks.look()[1] == []


def test_it_records_once_that_nothing_is_stale_any_more(house: House, looks: Looks) -> None:
    corrected(house, D1)
    (observation,) = looks.look()[1]
    looks.instance.report_runless_asset_event(observation)
    Path(house.world.folder / "sources" / "x" / f"{D1}.csv").unlink()
    house.world.clock.advance(dt.timedelta(days=1))
    said, (over,) = looks.look()
    assert said == "data made nothing stale, up to dataset totals"
    assert over.description == "no published day is stale any more because data changed"
    assert {name: one.value for name, one in over.metadata.items()} == {"stale_days": 0}
    looks.instance.report_runless_asset_event(over)
    house.world.clock.advance(dt.timedelta(days=1))
    assert looks.look()[1] == []


def test_a_change_of_the_code_is_no_change_of_data(house: House, looks: Looks) -> None:
    model = house.world.folder / "datasets" / "sales" / "fact.sql"
    model.write_text("SELECT id, day, 2 * amount AS amount FROM staging", encoding="utf-8")
    assert looks.look() == ("data made nothing stale, up to dataset totals", [])


def test_a_long_look_goes_on_in_the_next_one(house: House, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "_LONGEST_LOOK", -1)
    house.released({D1: [5]}, ("sales",))
    assert looks.look() == ("data made nothing stale, up to dataset sales", [])
    assert looks.look()[0] == f"stale: totals {D1}"
    assert looks.look()[0].startswith("has looked on")


def test_what_cannot_be_compared_is_named_and_hides_no_other_dataset(house: House, looks: Looks) -> None:
    corrected(house, D1)
    (commit, *_) = sorted((house.world.homes["totals"] / "_delta_log").glob("*.json"))
    commit.write_bytes(b"torn")
    said, found = looks.look()
    assert said == f"stale: sales {D1}; totals could not be compared"
    assert [one.asset_key.path for one in found] == [["sales", "published"]]


def test_a_look_that_never_ended_is_not_made_again_and_keeps_nothing_from_the_next_dataset(
    house: House, looks: Looks
) -> None:
    corrected(house, D1)
    house.released({D1: [5]}, ("sales",))
    # What a look does first; its tick was ended by Dagster, so that nobody kept its cursor.
    house.world.ledger.turn("stale_history sales", dt.timedelta(hours=12))
    said, (observation,) = looks.look()
    assert said == f"stale: totals {D1}; not looked at, or less than 12:00:00 ago: sales"
    assert observation.asset_key.path == ["totals", "published"]
    house.world.clock.advance(dt.timedelta(days=1))
    assert looks.look()[0].startswith(f"stale: sales {D1}")
