"""Which days the road still has to land and to stage: what is there already, from what is delivered now, is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backfill_assets.campaigns.building.road import Road
from backfill_assets.domain.work import StagedDay
from backfill_assets.lakehouse.road import raw
from backfill_assets_tests.harness.tables import day, layout
from backfill_assets_tests.unit.campaigns.test_late_deliveries import Desk

D1, D2, D3 = (day(i) for i in range(1, 4))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    for date in (D1, D2):
        desk.deliver(date)
    yield desk
    desk.world.close()


def road(desk: Desk) -> Road:
    return Road(desk.world.ledger, desk.loaded, desk.world.tables, layout(desk.folder), desk.basis, desk.world.clock)


def test_days_are_to_be_landed_until_all_files_behind_them_have_landed(desk: Desk) -> None:
    assert road(desk).days_to_land("sales", (D1, D2, D3)) == (D1, D2)
    desk.land(D1)
    assert road(desk).days_to_land("sales", (D1, D2, D3)) == (D2,)
    desk.land(D2)
    assert road(desk).days_to_land("sales", (D1, D2, D3)) == ()
    desk.deliver(D1, "id\n2\n")
    assert road(desk).days_to_land("sales", (D1, D2, D3)) == (D1,)


def test_to_see_that_a_file_has_landed_it_is_not_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.land(D1, D2)
    monkeypatch.delattr(raw, "sha256_of")
    assert road(desk).days_to_land("sales", (D1, D2)) == ()


def test_days_are_to_be_staged_again_when_deliveries_or_code_have_moved(desk: Desk) -> None:
    desk.land(D1, D2)
    assert road(desk).days_to_stage("sales", (D1, D2)) == (D1, D2)
    inputs = desk.basis.staged_inputs("sales", (D1, D2))
    code = desk.loaded["sales"].code_version
    desk.world.ledger.add_staged(StagedDay("sales", d, inputs[d], code) for d in (D1, D2))
    assert road(desk).days_to_stage("sales", (D1, D2)) == ()
    desk.deliver(D2, "id\n2\n")
    desk.land(D2)
    assert road(desk).days_to_stage("sales", (D1, D2)) == (D2,)
    desk.loaded["sales"] = replace(desk.loaded["sales"], code_version="n3w")
    assert road(desk).days_to_stage("sales", (D1, D2)) == (D1, D2)
