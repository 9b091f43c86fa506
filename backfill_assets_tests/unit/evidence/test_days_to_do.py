"""Which days the pipeline still has to land and to stage: days that are up to date with the deliveries are left out."""

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
from backfill_assets.dataset.reading import reading_of
from backfill_assets.delta.reading import digests_by_day
from backfill_assets.pipeline.batch import Pipeline
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.sources import discover
from backfill_assets_tests.harness.objects import folder_of
from backfill_assets_tests.harness.tables import day, layout, rows_of, write_raw
from backfill_assets_tests.unit.evidence.test_late_deliveries import Inbox

D1, D2, D3 = (day(i) for i in range(1, 4))


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    inbox = Inbox(tmp_path)
    for date in (D1, D2):
        inbox.deliver(date)
    yield inbox
    inbox.world.close()


def pipeline(inbox: Inbox) -> Pipeline:
    return Pipeline(inbox.warehouse, inbox.basis)


def test_days_are_to_be_landed_until_all_files_behind_them_have_landed(inbox: Inbox) -> None:
    assert pipeline(inbox).days_to_land("sales", (D1, D2, D3)) == (D1, D2)
    inbox.land(D1)
    assert pipeline(inbox).days_to_land("sales", (D1, D2, D3)) == (D2,)
    inbox.land(D2)
    assert pipeline(inbox).days_to_land("sales", (D1, D2, D3)) == ()
    inbox.deliver(D1, "id\n2\n")
    assert pipeline(inbox).days_to_land("sales", (D1, D2, D3)) == (D1,)


def test_a_corrected_file_of_the_same_size_and_time_of_change_is_to_be_landed(inbox: Inbox) -> None:
    """A campaign skipped it: it took the file for the one that had landed."""
    inbox.land(D1, D2)
    inbox.written -= 1  # the time of its first content
    inbox.deliver(D2, "id\n9\n")
    assert pipeline(inbox).days_to_land("sales", (D1, D2)) == (D2,)


def stage(inbox: Inbox) -> Path:
    """Stage both days, as rows that are never read."""
    place = folder_of(layout(inbox.folder).staging_path("sales")) / "a"
    write_deltalake(place, rows_of({D1: [1], D2: [2]}), partition_by=["day"])
    inputs, code = inbox.basis.staged_inputs("sales", (D1, D2)), inbox.loaded["sales"].code_version
    files = digests_by_day(OnDisk(place), "day", (D1, D2))
    inbox.world.ledger.add_staged(StagedDay("sales", d, inputs[d], code, 0, "a", files[d]) for d in (D1, D2))
    return place


def test_days_that_another_writer_staged_or_a_backup_restored_are_staged_again(inbox: Inbox) -> None:
    inbox.land(D1, D2)
    place = stage(inbox)
    write_deltalake(place, rows_of({D2: [3]}), mode="overwrite", predicate=f"day = '{D2}'")
    assert pipeline(inbox).days_to_stage("sales", (D1, D2)) == (D2,)
    shutil.rmtree(place)
    assert pipeline(inbox).days_to_stage("sales", (D1, D2)) == (D1, D2)


def test_days_with_rows_that_raw_has_lost_are_to_be_landed_again(inbox: Inbox) -> None:
    inbox.land(D1, D2)
    known = inbox.world.ledger.deliveries("sales", (D1, D2))
    home = folder_of(layout(inbox.folder).raw_path("sales"))
    inbox.deliver(D3)
    (file,) = discover(inbox.loaded["sales"], layout(inbox.folder), (D3,))
    landed = replace(
        known[0], day=D3, path=file.path, fingerprint=file.fingerprint, delivered_at=file.delivered_at, rows=2
    )
    inbox.world.ledger.add_deliveries([landed])
    assert pipeline(inbox).days_to_land("sales", (D1, D2, D3)) == (D3,)
    write_deltalake(home, pa.table({"_delivery_day": [D3] * 2, "id": [1, 2]}), partition_by=["_delivery_day"])
    assert pipeline(inbox).days_to_land("sales", (D1, D2, D3)) == ()


def test_a_delivery_that_an_older_ledger_does_not_know_is_refused_also_if_a_purged_one_had_as_many_rows(
    inbox: Inbox,
) -> None:
    """The totals of the day agree, and it was built without the correction."""
    inbox.deliver(D3)
    inbox.land(D3)
    (kept,) = inbox.world.ledger.deliveries("sales", [D3])
    out = replace(kept, path=f"x/{D3}-till2.csv", fingerprint="a" * 64, rows=1)
    inbox.world.ledger.change_deliveries([replace(kept, rows=5)], Deed.read)
    inbox.world.ledger.add_deliveries([out])
    home = folder_of(layout(inbox.folder).raw_path("sales"))
    write_raw(home, {kept.content: 5, (D3, out.path, "b" * 64): 1})
    inbox.world.ledger.change_deliveries([out], Deed.withdrawn, "ada", "wrong")
    with pytest.raises(
        SourceError, match=r"raw has rows of x/.*-till2\.csv \(bbbbbbbb\) that the ledger does not know"
    ):
        pipeline(inbox).require_known("sales", (D3,))
    # What the ledger knows is no reason to refuse: these rows are those that landed.
    shutil.rmtree(home)
    write_raw(home, {kept.content: 5, out.content: 1})
    pipeline(inbox).require_known("sales", (D3,))


def test_days_are_to_be_staged_again_when_deliveries_or_code_have_moved(inbox: Inbox) -> None:
    inbox.land(D1, D2)
    assert pipeline(inbox).days_to_stage("sales", (D1, D2)) == (D1, D2)
    stage(inbox)
    assert pipeline(inbox).days_to_stage("sales", (D1, D2)) == ()
    inbox.deliver(D2, "id\n2\n")
    inbox.land(D2)
    assert pipeline(inbox).days_to_stage("sales", (D1, D2)) == (D2,)
    inbox.loaded["sales"] = replace(inbox.loaded["sales"], code_version="n3w")
    assert pipeline(inbox).days_to_stage("sales", (D1, D2)) == (D1, D2)


def test_a_mistyped_path_of_the_sources_is_no_success_that_landed_nothing(inbox: Inbox) -> None:
    sources = path_of(layout(inbox.folder).sources)
    inbox.land(D1, D2)
    pipeline(inbox).require_sources("sales")
    sources.rename(inbox.folder / "elsewhere")
    inbox.world.released({D1: [1]})
    with pytest.raises(SourceError, match="sources: there is no such folder, so nothing of sales can be landed"):
        pipeline(inbox).require_sources("sales")
    sources.mkdir()
    (sources / f"{D1}.csv").write_text("id\n1\n", encoding="utf-8")
    match = rf"no file fits x/\{{day}}.csv on any day, although sales was landed before, such as from x/{D1}.csv"
    with pytest.raises(SourceError, match=match):
        pipeline(inbox).require_sources("sales")
    # The search for late days also finds those that are late without any file.
    assert inbox.days() == []


def test_sources_that_are_emptied_after_landing_are_not_called_mistyped(inbox: Inbox) -> None:
    inbox.land(D1, D2)
    for file in path_of(layout(inbox.folder).sources).rglob("*.csv"):
        file.unlink()
    with pytest.raises(SourceError, match=r"set source\.removed_after_landing: true there"):
        pipeline(inbox).require_sources("sales")
    loaded = inbox.loaded["sales"]
    emptied = loaded.dataset.landing.model_copy(update={"removed_after_landing": True})
    inbox.loaded["sales"] = replace(loaded, dataset=loaded.dataset.model_copy(update={"source": emptied}))
    pipeline(inbox).require_sources("sales")
    # Declaring this is no other reading of the landed files.
    assert pipeline(inbox).days_to_land("sales", (D1, D2)) == ()
    assert reading_of(emptied) == reading_of(loaded.dataset.landing)
    shutil.rmtree(path_of(layout(inbox.folder).sources))
    with pytest.raises(SourceError, match="there is no such folder"):
        pipeline(inbox).require_sources("sales")


def test_an_empty_sources_folder_before_the_first_delivery_is_not_called_mistyped(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    path_of(layout(inbox.folder).sources).mkdir()
    pipeline(inbox).require_sources("sales")
    # If files are removed day by day, one may be left.
    inbox.deliver(D1)
    inbox.land(D1, D2)
    inbox.deliver(D3)
    (path_of(layout(inbox.folder).sources) / "x" / f"{D1}.csv").unlink()
    pipeline(inbox).require_sources("sales")
    inbox.world.close()


def test_a_day_with_a_file_that_was_compressed_since_is_not_staged(inbox: Inbox) -> None:
    source = inbox.loaded["sales"].dataset.landing.model_copy(update={"path": "x/{day}*"})
    inbox.says(source=source)
    inbox.land(D1, D2)
    plain = path_of(layout(inbox.folder).sources) / "x" / f"{D1}.csv"
    plain.rename(plain.with_name(f"{D1}.csv.gz"))
    inbox.land(D1, D2)
    known = inbox.world.ledger.deliveries("sales", (D1,))
    inbox.world.ledger.change_deliveries([replace(one, rows=1) for one in known], Deed.read)
    with pytest.raises(
        SourceError, match=rf"x/{D1}\.csv and x/{D1}\.csv\.gz are one file, .*withdraw sales x/{D1}.csv"
    ):
        pipeline(inbox).require_raw("sales", (D1,), inbox.basis.to_stage("sales", (D1,))[1])


def test_a_day_with_files_of_a_path_that_was_corrected_since_is_not_staged(inbox: Inbox) -> None:
    """They continued to count beside those of the new path, and the launch said that nothing had changed."""
    inbox.land(D1, D2)
    source = inbox.loaded["sales"].dataset.landing.model_copy(update={"path": "y/{day}.csv"})
    inbox.says(source=source)
    right = path_of(layout(inbox.folder).sources) / "y" / f"{D1}.csv"
    right.parent.mkdir()
    right.write_text("id\n2\n", encoding="utf-8")
    inbox.land(D1, D2)

    def require(*days: dt.date) -> None:
        pipeline(inbox).require_raw("sales", days, inbox.basis.to_stage("sales", days)[1])

    # The rows of this test's files are not counted: without a count they block nothing.
    require(D1, D2)
    (wrong, _) = inbox.world.ledger.deliveries("sales", (D1,))
    inbox.world.ledger.change_deliveries([replace(wrong, rows=1)], Deed.read)
    raw = pa.table({"_delivery_day": [D1], "id": [1]})
    write_deltalake(folder_of(layout(inbox.folder).raw_path("sales")), raw, partition_by=["_delivery_day"])
    require(D2)
    remedy = f"take it out: backfill withdraw sales x/{D1}.csv --reason TEXT, or set source.path in dataset.yaml back"
    with pytest.raises(SourceError, match=rf"sales {D1}: x/{D1}\.csv landed under another source\.path .*{remedy}"):
        require(D1, D2)
    known = inbox.world.ledger.deliveries("sales", (D1,))
    inbox.world.ledger.change_deliveries(
        [d for d in known if d.path[0] == "x"], Deed.withdrawn, "ada", "of another shop"
    )
    require(D1, D2)
