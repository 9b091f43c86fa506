"""New files for days that are published already: found, or said what they wait for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from backfill_assets.campaigns.late_deliveries import LateDeliveries
from backfill_assets.catalog import Language, Layer, LoadedDataset, Model
from backfill_assets.domain.dataset import LateData, Live
from backfill_assets.domain.work import Delivery, Hold
from backfill_assets.lakehouse.road import discover
from backfill_assets_tests.unit.campaigns.world import World
from backfill_assets_tests.unit.published.tables import day, layout

D1, D2, D3, D4 = (day(i) for i in range(1, 5))


@dataclass(frozen=True)
class Desk:
    """Where files arrive."""

    world: World
    folder: Path
    late_data: LateData = LateData.hold
    watch_days: int = 30

    @property
    def loaded(self) -> LoadedDataset:
        live = Live(watch_days=self.watch_days)
        dataset = self.world.datasets["sales"].model_copy(update={"late_data": self.late_data, "live": live})
        model = Model(Layer.fact, self.folder / "fact.sql", Language.sql, "")
        return LoadedDataset(dataset, self.folder, model, model, "c0de")

    @property
    def late(self) -> LateDeliveries:
        return LateDeliveries(self.world.ledger, {"sales": self.loaded}, self.world.tables, layout(self.folder))

    def deliver(self, date: dt.date, content: str = "id\n1\n") -> None:
        file = layout(self.folder).sources / "x" / f"{date}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")

    def land(self, *days: dt.date) -> None:
        files = discover(self.loaded, layout(self.folder), days)
        now = self.world.clock.now()
        self.world.ledger.add_deliveries(
            Delivery("sales", f.day, f.path, f.fingerprint, 5, now, now, 1, 0) for f in files
        )


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    world = World(tmp_path)
    desk = Desk(world, tmp_path)
    for date in (D1, D2, D3):
        desk.deliver(date)
    desk.land(D1, D2, D3)
    world.released({D1: [1], D2: [2], D3: [3]})
    yield desk
    world.close()


def test_nothing_is_late_when_all_that_was_delivered_has_landed(desk: Desk) -> None:
    assert desk.late.of("sales") == ()


def test_a_new_file_for_a_published_day_is_late_and_the_next_day_is_not(desk: Desk) -> None:
    desk.deliver(D2, "id\n2\n")
    desk.deliver(D4)
    (late,) = desk.late.of("sales")
    assert (late.day, late.files, late.waits_for) == (D2, (f"x/{D2}.csv",), "")
    again = desk.late.of("sales")[0]
    assert again.deliveries == late.deliveries
    desk.deliver(D2, "id\n3\n")
    assert desk.late.of("sales")[0].deliveries != late.deliveries
    desk.land(D2)
    assert desk.late.of("sales") == ()


def test_a_day_waits_for_the_open_unit_that_has_claimed_it(desk: Desk) -> None:
    desk.deliver(D2, "id\n2\n")
    unit = desk.world.open_unit({"sales": [D2]})
    assert desk.late.of("sales")[0].waits_for == f"claimed by open unit {unit.id}"
    passing = Desk(desk.world, desk.folder, LateData.publish)
    assert passing.late.of("sales")[0].waits_for == ""


def test_a_day_on_hold_waits_whatever_the_dataset_says(desk: Desk) -> None:
    desk.deliver(D2, "id\n2\n")
    desk.world.ledger.hold([Hold(("sales", D2), "rolled back", "ada", desk.world.clock.now())])
    for late_data in LateData:
        waits = Desk(desk.world, desk.folder, late_data).late.of("sales")[0].waits_for
        assert waits == "on hold: rolled back"


def test_only_the_watched_days_are_looked_at(desk: Desk) -> None:
    desk.deliver(D1, "id\n2\n")
    desk.deliver(D3, "id\n2\n")
    assert [late.day for late in Desk(desk.world, desk.folder, watch_days=2).late.of("sales")] == [D3]
    assert [late.day for late in Desk(desk.world, desk.folder, watch_days=3).late.of("sales")] == [D1, D3]


def test_before_the_first_release_nothing_is_late(tmp_path: Path) -> None:
    world = World(tmp_path)
    desk = Desk(world, tmp_path)
    desk.deliver(D1)
    assert desk.late.of("sales") == ()
    world.close()
