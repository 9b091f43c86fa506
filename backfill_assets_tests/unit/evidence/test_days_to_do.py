"""Which days the road still has to land and to stage: what is there already, from what is delivered now, is left out."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from backfill_assets.core.delivery import Deed
from backfill_assets.core.errors import SourceError
from backfill_assets.core.unit import StagedDay
from backfill_assets.dataset.sources import reading_of
from backfill_assets.delta.reading import digests_by_day
from backfill_assets.pipeline.batch import Road
from backfill_assets.storage.files import discover
from backfill_assets_tests.harness.tables import day, layout, rows_of
from backfill_assets_tests.unit.evidence.test_late_deliveries import Desk

D1, D2, D3 = (day(i) for i in range(1, 4))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    for date in (D1, D2):
        desk.deliver(date)
    yield desk
    desk.world.close()


def road(desk: Desk) -> Road:
    return Road(desk.warehouse, desk.basis)


def test_days_are_to_be_landed_until_all_files_behind_them_have_landed(desk: Desk) -> None:
    assert road(desk).days_to_land("sales", (D1, D2, D3)) == (D1, D2)
    desk.land(D1)
    assert road(desk).days_to_land("sales", (D1, D2, D3)) == (D2,)
    desk.land(D2)
    assert road(desk).days_to_land("sales", (D1, D2, D3)) == ()
    desk.deliver(D1, "id\n2\n")
    assert road(desk).days_to_land("sales", (D1, D2, D3)) == (D1,)


def test_a_corrected_file_of_the_same_size_and_time_of_change_is_to_be_landed(desk: Desk) -> None:
    """A campaign passed over it: it took the file for what had landed."""
    desk.land(D1, D2)
    desk.written -= 1  # as its first content has it
    desk.deliver(D2, "id\n9\n")
    assert road(desk).days_to_land("sales", (D1, D2)) == (D2,)


def stage(desk: Desk) -> Path:
    """Stage both days, as rows that nobody reads."""
    place = layout(desk.folder).staging_path("sales") / "a"
    write_deltalake(place, rows_of({D1: [1], D2: [2]}), partition_by=["day"])
    inputs, code = desk.basis.staged_inputs("sales", (D1, D2)), desk.loaded["sales"].code_version
    files = digests_by_day(place, "day", (D1, D2))
    desk.world.ledger.add_staged(StagedDay("sales", d, inputs[d], code, 0, "a", files[d]) for d in (D1, D2))
    return place


def test_days_that_somebody_else_has_staged_or_a_backup_has_brought_back_are_staged_again(desk: Desk) -> None:
    desk.land(D1, D2)
    place = stage(desk)
    write_deltalake(place, rows_of({D2: [3]}), mode="overwrite", predicate=f"day = '{D2}'")
    assert road(desk).days_to_stage("sales", (D1, D2)) == (D2,)
    shutil.rmtree(place)
    assert road(desk).days_to_stage("sales", (D1, D2)) == (D1, D2)


def test_days_of_which_raw_has_lost_rows_are_to_be_landed_again(desk: Desk) -> None:
    desk.land(D1, D2)
    known = desk.world.ledger.deliveries("sales", (D1, D2))
    home = layout(desk.folder).raw_path("sales")
    desk.deliver(D3)
    (file,) = discover(desk.loaded["sales"], layout(desk.folder), (D3,))
    landed = replace(
        known[0], day=D3, path=file.path, fingerprint=file.fingerprint, delivered_at=file.delivered_at, rows=2
    )
    desk.world.ledger.add_deliveries([landed])
    assert road(desk).days_to_land("sales", (D1, D2, D3)) == (D3,)
    write_deltalake(home, pa.table({"_delivery_day": [D3] * 2, "id": [1, 2]}), partition_by=["_delivery_day"])
    assert road(desk).days_to_land("sales", (D1, D2, D3)) == ()


def test_days_are_to_be_staged_again_when_deliveries_or_code_have_moved(desk: Desk) -> None:
    desk.land(D1, D2)
    assert road(desk).days_to_stage("sales", (D1, D2)) == (D1, D2)
    stage(desk)
    assert road(desk).days_to_stage("sales", (D1, D2)) == ()
    desk.deliver(D2, "id\n2\n")
    desk.land(D2)
    assert road(desk).days_to_stage("sales", (D1, D2)) == (D2,)
    desk.loaded["sales"] = replace(desk.loaded["sales"], code_version="n3w")
    assert road(desk).days_to_stage("sales", (D1, D2)) == (D1, D2)


def test_a_mistyped_path_of_the_sources_is_no_success_that_landed_nothing(desk: Desk) -> None:
    sources = layout(desk.folder).sources
    desk.land(D1, D2)
    road(desk).require_sources("sales")
    sources.rename(desk.folder / "elsewhere")
    desk.world.released({D1: [1]})
    with pytest.raises(SourceError, match="sources: there is no such folder, so nothing of sales can be landed"):
        road(desk).require_sources("sales")
    sources.mkdir()
    (sources / f"{D1}.csv").write_text("id\n1\n", encoding="utf-8")
    match = rf"no file fits x/\{{day}}.csv on any day, although sales was landed before, such as from x/{D1}.csv"
    with pytest.raises(SourceError, match=match):
        road(desk).require_sources("sales")
    # Who looks for late days finds those that are late without any file.
    assert desk.days() == []


def test_sources_that_are_emptied_once_they_have_landed_are_none_that_are_mistyped(desk: Desk) -> None:
    desk.land(D1, D2)
    for file in layout(desk.folder).sources.rglob("*.csv"):
        file.unlink()
    with pytest.raises(SourceError, match=r"set source\.removed_after_landing: true there"):
        road(desk).require_sources("sales")
    loaded = desk.loaded["sales"]
    emptied = loaded.dataset.landing.model_copy(update={"removed_after_landing": True})
    desk.loaded["sales"] = replace(loaded, dataset=loaded.dataset.model_copy(update={"source": emptied}))
    road(desk).require_sources("sales")
    # To say so is no other reading of what has landed.
    assert road(desk).days_to_land("sales", (D1, D2)) == ()
    assert reading_of(emptied) == reading_of(loaded.dataset.landing)
    shutil.rmtree(layout(desk.folder).sources)
    with pytest.raises(SourceError, match="there is no such folder"):
        road(desk).require_sources("sales")


def test_before_the_first_delivery_an_empty_sources_folder_is_none_that_is_mistyped(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    layout(desk.folder).sources.mkdir()
    road(desk).require_sources("sales")
    # Of files that were removed day by day one may be left.
    desk.deliver(D1)
    desk.land(D1, D2)
    desk.deliver(D3)
    (layout(desk.folder).sources / "x" / f"{D1}.csv").unlink()
    road(desk).require_sources("sales")
    desk.world.close()


def test_a_day_with_files_of_a_path_that_was_corrected_since_is_not_staged(desk: Desk) -> None:
    """They went on counting beside those of the new path, and the launch said that nothing had changed."""
    desk.land(D1, D2)
    source = desk.loaded["sales"].dataset.landing.model_copy(update={"path": "y/{day}.csv"})
    desk.says(source=source)
    right = layout(desk.folder).sources / "y" / f"{D1}.csv"
    right.parent.mkdir()
    right.write_text("id\n2\n", encoding="utf-8")
    desk.land(D1, D2)

    def require(*days: dt.date) -> None:
        road(desk).require_raw("sales", days, desk.basis.to_stage("sales", days)[1])

    # Of the files of this test nobody has counted the rows: without one they stand in nobody's way.
    require(D1, D2)
    (wrong, _) = desk.world.ledger.deliveries("sales", (D1,))
    desk.world.ledger.change_deliveries([replace(wrong, rows=1)], Deed.read)
    raw = pa.table({"_delivery_day": [D1], "id": [1]})
    write_deltalake(layout(desk.folder).raw_path("sales"), raw, partition_by=["_delivery_day"])
    require(D2)
    remedy = f"take it out: backfill withdraw sales x/{D1}.csv --reason TEXT, or set source.path in dataset.yaml back"
    with pytest.raises(SourceError, match=rf"sales {D1}: x/{D1}\.csv landed under another source\.path .*{remedy}"):
        require(D1, D2)
    known = desk.world.ledger.deliveries("sales", (D1,))
    desk.world.ledger.change_deliveries(
        [d for d in known if d.path[0] == "x"], Deed.withdrawn, "ada", "of another shop"
    )
    require(D1, D2)
