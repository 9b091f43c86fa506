"""Purged deliveries are gone from raw and later from the disk; nothing else is, and nothing that counts can be purged."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from backfill_assets.application import Application
from backfill_assets.core.errors import ArgumentError, SourceError
from backfill_assets.dataset.deliveries import standings
from backfill_assets.pipeline import purge as purging
from backfill_assets.pipeline.deliveries import Chosen
from backfill_assets.pipeline.parse import LINE
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.without_dagster import publish
from backfill_assets_tests.spark.pipeline.kit import D1, D2, Kit

TORN = "part-torn.parquet"
WRONG, RIGHT = f"trips/{D1}-wrong.csv", f"trips/{D1}.csv"


@pytest.fixture
def application(kit: Kit) -> Application:
    """Two files of a day are published; then one of them is withdrawn."""
    kit.dataset(key=["day", "id"], measures={}, checks={"row_count": {"tolerance": "100%"}})
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    kit.deliver(D1, f"{D1},2,b,77,1.00", part="-wrong")
    kit.deliver(D2, f"{D2},3,a,10,1.00")
    application = Application(kit.settings)
    publish(application, kit.spark, "trips", (D1, D2))
    return application


def home(application: Application) -> Path:
    return path_of(application.layout.raw_path("trips"))


def in_raw(application: Application) -> list[str]:
    """The file of each row that readers of raw find."""
    return sorted(DeltaTable(str(home(application))).to_pyarrow_table().column("_source_file").to_pylist())


def on_disk(application: Application, text: str) -> list[str]:
    """The data files of raw with a line that has this text, whatever version they belong to."""
    files = (
        file for file in home(application).rglob("*.parquet") if "_delta_log" not in file.parts and file.name != TORN
    )
    lines = {file: str(parquet.ParquetFile(file).read(columns=[LINE]).column(LINE).to_pylist()) for file in files}
    return [str(file.relative_to(home(application))) for file, found in lines.items() if text in found]


def withdrawn(kit: Kit, application: Application) -> None:
    """The wrong file no longer counts, is not among the sources, and no published day is built from it."""
    application.delivery_commands.withdraw("trips", Chosen(WRONG), "of another shop")
    (path_of(kit.layout.sources) / WRONG).unlink()
    publish(application, kit.spark, "trips", (D1,))


def test_what_counts_is_published_or_could_land_again_is_not_purged(kit: Kit, application: Application) -> None:
    purge, before = purging.Purge(application.pipeline), in_raw(application)

    def refused(error: type[Exception], why: str, chosen: Chosen = Chosen(WRONG)) -> None:  # noqa: B008
        with pytest.raises(error, match=why):
            purge.execute(kit.spark, "trips", chosen, "a customer asked for it")
        assert in_raw(application) == before

    refused(
        ArgumentError, r"nothing that fits trips/.*-wrong\.csv has landed and does not count; 1 file of it in force"
    )
    application.delivery_commands.withdraw("trips", Chosen(WRONG), "of another shop")
    refused(SourceError, r"-wrong\.csv: still among the sources")
    (path_of(kit.layout.sources) / WRONG).unlink()
    refused(SourceError, rf"trips {D1}: published as built from what is to be purged.*backfill refresh trips")
    publish(application, kit.spark, "trips", (D1,))
    refused(ArgumentError, "nothing that fits", Chosen(RIGHT))
    with pytest.raises(ArgumentError, match="say why"):
        purge.execute(kit.spark, "trips", Chosen(WRONG), " ")
    plan = purge.plan("trips", Chosen(WRONG))
    assert ([one.path for one in plan.deliveries], plan.rows) == ([WRONG], 1)
    with pytest.raises(ArgumentError, match="nothing that fits"):
        purge.plan("trips", Chosen(), before=D1)
    assert purge.plan("trips", Chosen(), before=D2) == plan
    assert in_raw(application) == before


def test_what_is_purged_is_gone_from_raw_then_from_the_disk_and_no_day_becomes_stale(
    kit: Kit, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    withdrawn(kit, application)
    inputs, staged = application.basis.inputs("trips", (D1, D2)), application.basis.staged_inputs("trips", (D1, D2))
    done = purging.Purge(application.pipeline).execute(kit.spark, "trips", Chosen(WRONG), "a customer asked for it")
    assert ([one.path for one in done.deliveries], done.rows) == ([WRONG], 1)
    assert in_raw(application) == [RIGHT, f"trips/{D2}.csv"]
    assert application.basis.inputs("trips", (D1, D2)) == inputs
    assert application.basis.staged_inputs("trips", (D1, D2)) == staged
    assert application.pipeline.days_to_land("trips", (D1, D2)) == ()
    known = application.ledger.deliveries("trips", (D1,))
    journal = application.ledger.delivery_journal("trips", (D1,))
    shown = {one.delivery.path: one.why for one in standings(application.dataset("trips"), known, journal)}
    assert shown[WRONG].startswith("purged by")
    assert "a customer asked for it" in shown[WRONG]
    assert [finding.what for finding in application.doctor.examine()] == []
    with pytest.raises(SourceError, match="raw no longer has its rows"):
        application.delivery_commands.restore("trips", Chosen(WRONG), "a mistake")

    assert len(on_disk(application, "77")) == 1
    assert purging.Purge(application.pipeline).old_files("trips") == ()
    monkeypatch.setattr(purging, "_KEPT", 0)
    old = purging.Purge(application.pipeline).old_files("trips")
    assert list(old) == on_disk(application, "77")
    assert purging.Purge(application.pipeline).sweep("trips") == len(old)
    assert (on_disk(application, "77"), purging.Purge(application.pipeline).old_files("trips")) == ([], ())
    assert in_raw(application) == [RIGHT, f"trips/{D2}.csv"]
    publish(application, kit.spark, "trips", (D1, D2))
    # The same bytes that come again land again, and still do not count.
    kit.deliver(D1, f"{D1},2,b,77,1.00", part="-wrong")
    application.pipeline.land(kit.spark, "trips", (D1,))
    assert WRONG in in_raw(application)
    assert application.basis.inputs("trips", (D1, D2)) == inputs
    (path_of(kit.layout.sources) / WRONG).unlink()
    assert purging.Purge(application.pipeline).execute(kit.spark, "trips", Chosen(WRONG), "once more").rows == 1


def test_a_purge_that_dies_before_it_deletes_the_rows_is_finished_by_the_same_command(
    kit: Kit, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    withdrawn(kit, application)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(purging, "delete_from_raw", dies)
        with pytest.raises(KeyboardInterrupt):
            purging.Purge(application.pipeline).execute(kit.spark, "trips", Chosen(WRONG), "a customer asked for it")
    assert WRONG in in_raw(application)
    # Meanwhile the day is landed, built and published as if the rows were gone.
    kit.deliver(D1, f"{D1},4,a,10,1.00", part="-late")
    publish(application, kit.spark, "trips", (D1,))
    assert (
        purging.Purge(application.pipeline).execute(kit.spark, "trips", Chosen(WRONG), "a customer asked for it").rows
        == 1
    )
    assert in_raw(application) == [f"trips/{D1}-late.csv", RIGHT, f"trips/{D2}.csv"]
    assert [finding.what for finding in application.doctor.examine()] == []


def test_the_older_content_of_a_corrected_file_is_purged_and_the_newest_stays(
    kit: Kit, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.deliver(D1, f"{D1},2,b,5,1.00", part="-wrong")
    publish(application, kit.spark, "trips", (D1,))
    assert len(in_raw(application)) == 4
    done = purging.Purge(application.pipeline).execute(kit.spark, "trips", Chosen(WRONG), "a customer asked for it")
    assert (done.rows, len(in_raw(application))) == (1, 3)
    # Files of raw that nobody purged stay, whatever their age: after a restore, one may be the only copy of a delivery.
    (other,) = home(application).glob(f"*{D2}/*.parquet")
    stray = other.with_name("part-of-nobody.parquet")
    stray.write_bytes(other.read_bytes())
    (home(application) / on_disk(application, "77")[0]).with_name(TORN).write_bytes(b"PAR1 torn")
    beside = (home(application) / on_disk(application, "77")[0]).with_name("part-unknown.parquet")
    rows = parquet.read_table(home(application) / on_disk(application, "77")[0], partitioning=None)
    strange = rows.set_column(rows.column_names.index("_fingerprint"), "_fingerprint", [["f" * 64] * len(rows)])
    parquet.write_table(strange, beside)
    monkeypatch.setattr(purging, "_KEPT", 0)
    old = purging.Purge(application.pipeline).old_files("trips")
    assert purging.Purge(application.pipeline).sweep("trips") == len(old)
    assert stray.exists()
    assert on_disk(application, "77") == [str(beside.relative_to(home(application)))]
    publish(application, kit.spark, "trips", (D1, D2))


def test_what_lies_before_the_start_is_purged_and_stays_published(kit: Kit, application: Application) -> None:
    kit.dataset(start=str(D2), key=["day", "id"], measures={}, checks={})
    later = Application(kit.settings)
    published, before = later.tables["trips"].active(), later.basis.inputs("trips", (D2,))
    with pytest.raises(ArgumentError, match="nothing that fits --before"):
        purging.Purge(application.pipeline).plan("trips", Chosen(), before=D2)
    assert purging.Purge(later.pipeline).execute(kit.spark, "trips", Chosen(), "kept for a while", before=D2).rows == 2
    assert in_raw(later) == [f"trips/{D2}.csv"]
    (place,) = path_of(kit.layout.staging_path("trips")).iterdir()
    assert set(DeltaTable(str(place)).to_pyarrow_table().column("day").to_pylist()) == {D2}
    with pytest.raises(
        ArgumentError, match=rf"nothing that fits trips/{D2}\.csv has landed and does not count; 1 file"
    ):
        purging.Purge(later.pipeline).plan("trips", Chosen(f"trips/{D2}.csv"))
    assert (later.tables["trips"].active(), later.basis.inputs("trips", (D2,))) == (published, before)
    publish(later, kit.spark, "trips", (D2,))
    assert [finding.what for finding in later.doctor.examine()] == []
    # The history begins earlier again: its files land, and nobody has said that they count.
    application.pipeline.land(kit.spark, "trips", (D1,))
    with pytest.raises(SourceError, match="would count, and was purged"):
        application.pipeline.stage(kit.spark, "trips", (D1,))


def test_a_superseded_content_that_is_purged_and_comes_again_waits_for_a_decision(
    kit: Kit, application: Application
) -> None:
    kit.deliver(D1, f"{D1},2,b,5,1.00", part="-wrong")
    publish(application, kit.spark, "trips", (D1,))
    purge, commands = purging.Purge(application.pipeline), application.delivery_commands
    assert purge.execute(kit.spark, "trips", Chosen(WRONG), "a customer asked for it").rows == 1
    assert purge.execute(kit.spark, "trips", Chosen(WRONG), "a customer asked for it").deliveries == ()
    publish(application, kit.spark, "trips", (D1,))
    kit.deliver(D1, f"{D1},2,b,77,1.00", part="-wrong")
    application.pipeline.land(kit.spark, "trips", (D1,))
    # Neither of the two contents counts: without the file the day would be smaller, and every check might pass.
    assert [one.path for one in application.basis.in_force("trips", (D1,))] == [RIGHT]
    with pytest.raises(
        SourceError, match=rf"{WRONG} \(.*\) would count, and was purged; deliver other content.*--undo"
    ):
        application.pipeline.stage(kit.spark, "trips", (D1,))
    commands.restore("trips", Chosen(WRONG), "it was right")
    assert application.pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 2}
    commands.withdraw("trips", Chosen(WRONG), "it was wrong after all")
    assert application.pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 1}
    # The right file takes its place again, and undoing a withdrawal by mistake does not ask for what was purged.
    kit.deliver(D1, f"{D1},2,b,5,1.00", part="-wrong")
    application.pipeline.land(kit.spark, "trips", (D1,))
    purge.execute(kit.spark, "trips", Chosen(WRONG), "a customer asked for it")
    commands.withdraw("trips", Chosen(WRONG), "a mistake")
    commands.restore("trips", Chosen(WRONG), "it was right")
    assert {one.path for one in application.basis.in_force("trips", (D1,))} == {WRONG, RIGHT}


def test_staging_keeps_no_row_of_what_was_purged(kit: Kit, application: Application) -> None:
    """Neither of days that are not staged again, nor in the table of columns that were staged before."""
    staged = path_of(kit.layout.staging_path("trips"))

    def amounts() -> list[list[int]]:
        tables = (DeltaTable(str(place)).to_pyarrow_table() for place in sorted(staged.iterdir()))
        return [sorted(int(one) for one in table.column("amount").to_pylist()) for table in tables]

    assert amounts() == [[10, 10, 77]]
    application.delivery_commands.withdraw("trips", Chosen(WRONG), "of another shop")
    (path_of(kit.layout.sources) / WRONG).unlink()
    kit.dataset(
        "SELECT day, id, kind, amount, fee, 1 AS more, _lineage FROM raw",
        key=["day", "id"], measures={}, checks={"row_count": {"tolerance": "100%"}},
    )  # fmt: skip
    changed = Application(kit.settings)
    publish(changed, kit.spark, "trips", (D1, D2))
    assert sorted(amounts()) == [[10, 10], [10, 10, 77]]
    purging.Purge(changed.pipeline).execute(kit.spark, "trips", Chosen(WRONG), "a customer asked for it")
    assert sorted(amounts()) == [[], [10, 10]]
    publish(changed, kit.spark, "trips", (D1, D2))
    assert ["with columns of an earlier staging model" in one.what for one in changed.doctor.examine()] == [True]


def test_a_delivery_that_counts_again_since_somebody_looked_is_not_purged(kit: Kit, application: Application) -> None:
    withdrawn(kit, application)
    purge = purging.Purge(application.pipeline)
    plan = purge.plan("trips", Chosen(WRONG))
    application.delivery_commands.restore("trips", Chosen(WRONG), "it was right")

    class Late(purging.Purge):
        def plan(self, *_: object) -> purging.Purged:  # type: ignore[override]
            return plan

    done = Late(purge.pipeline).execute(kit.spark, "trips", Chosen(WRONG), "a customer asked for it")
    assert (done.deliveries, done.rows, [one.path for one in done.kept]) == ((), 0, [WRONG])
    assert WRONG in in_raw(application)
