"""The table `data_releases` says what the ledger says, and never blocks a release."""

from __future__ import annotations

import datetime as dt
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core import canonical
from backfill_assets.core.release import Manifest, ReleaseState
from backfill_assets.core.unit import Unit
from backfill_assets.delta import manifests, releases_table
from backfill_assets.ledger import codec
from backfill_assets.ledger import releases as ledger_releases
from backfill_assets.release.finish import SettlementKind
from backfill_assets_tests.harness.between import Died, dies_at
from backfill_assets_tests.harness.objects import folder_of
from backfill_assets_tests.harness.specifications import DAYS, NAME, specification
from backfill_assets_tests.harness.tables import day, layout
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

BEFORE = {d: [1] for d in DAYS}


def home(campaigns: World) -> Path:
    return folder_of(layout(campaigns.folder).data_releases_path())


def rows(campaigns: World) -> list[dict[str, object]]:
    return sorted(DeltaTable(home(campaigns)).to_pyarrow_table().to_pylist(), key=lambda row: str(row["release"]))


def publish(campaigns: World, amount: int) -> str:
    unit = campaigns.open_unit({"sales": DAYS})
    campaigns.build(unit, "sales", {d: [amount] for d in DAYS})
    return campaigns.campaign_publisher().release(unit.id, reason="by hand").release


def died_on_its_way(campaigns: World) -> Unit:
    """A unit whose release is intended, and not committed."""
    unit = campaigns.open_unit({"sales": DAYS})
    campaigns.build(unit, "sales", {d: [2] for d in DAYS})
    with pytest.raises(Died):
        replace(campaigns.campaign_publisher(), checkpoint=dies_at("intend")).release(unit.id)
    return unit


def test_every_publish_and_rollback_is_in_the_table(campaigns: World) -> None:
    publish(campaigns, 1)
    campaign, unit = campaigns.approved()
    release = campaigns.release("carl").publish(NAME).outcome.release
    campaigns.clock.advance(dt.timedelta(hours=1))
    done = campaigns.campaign_rollback().execute(release, "odd")
    first, second, third = sorted(rows(campaigns), key=lambda row: int(str(row["version"])))
    assert (first["campaign"], first["approved_by"], first["reason"]) == (None, None, "by hand")
    assert second == {
        "dataset": "sales", "release": release, "kind": "publish", "state": "finalized",
        "published_at": dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC), "first_day": DAYS[0], "last_day": DAYS[-1], "days": 3,
        "source_range": "2026-01-01..2026-01-03", "code_version": "c0de", "released_by": "carl",
        "approved_by": "anna as finance-controller", "evidence": campaigns.ledger.release(release).manifest.evidence,
        "campaign": campaign.id, "unit": unit.id, "undoes": None, "reason": "FIN-2841; Correct the tax", "version": 2,
    }  # fmt: skip
    assert (third["release"], third["kind"], third["undoes"], third["campaign"]) == (
        done.release, "rollback", release, NAME,
    )  # fmt: skip


def test_the_table_is_read_with_sql(campaigns: World) -> None:
    release = publish(campaigns, 1)
    data_releases = DeltaTable(home(campaigns)).to_pyarrow_table()
    found = duckdb.sql("SELECT release FROM data_releases WHERE dataset = 'sales' AND days = 3").fetchall()
    assert data_releases.num_rows == 1
    assert found == [(release,)]


def test_writing_the_same_again_makes_no_version(campaigns: World) -> None:
    publish(campaigns, 1)
    version = DeltaTable(home(campaigns)).version()
    assert campaigns.data_releases.refresh() is False
    assert campaigns.reconcile().run() == ()
    assert DeltaTable(home(campaigns)).version() == version


def test_a_table_that_cannot_be_written_fails_no_release(campaigns: World, caplog: pytest.LogCaptureFixture) -> None:
    home(campaigns).parent.mkdir(parents=True)
    home(campaigns).write_text("in the way")
    publish(campaigns, 1)
    assert campaigns.content() == BEFORE
    assert "repair it with: backfill reconcile" in caplog.text
    home(campaigns).unlink()
    (finding,) = campaigns.doctor().examine()
    assert "data_releases is not what the ledger says of 1 releases" in finding.what
    (repair,) = campaigns.reconcile().run()
    assert repair.kind is SettlementKind.projected
    assert campaigns.doctor().examine() == ()


def test_the_doctor_notices_a_table_that_is_behind_or_gone(campaigns: World) -> None:
    publish(campaigns, 1)
    assert campaigns.doctor().examine() == ()
    release = campaigns.released({day(9): [1]})
    assert [release in f.what for f in campaigns.doctor().examine()] == [True]
    shutil.rmtree(home(campaigns))
    assert ["of 2 releases" in f.what for f in campaigns.doctor().examine()] == [True]
    campaigns.reconcile().run()
    assert campaigns.doctor().examine() == ()


def test_an_altered_row_is_found_and_repaired(campaigns: World) -> None:
    release = publish(campaigns, 1)
    DeltaTable(home(campaigns)).update(updates={"reason": "'nothing of the kind'"})
    assert campaigns.data_releases.refresh() is False
    assert [release in f.what for f in campaigns.doctor().examine()] == [True]
    (repair,) = campaigns.reconcile().run()
    assert repair.kind is SettlementKind.projected
    assert [row["reason"] for row in rows(campaigns)] == ["by hand"]
    assert campaigns.doctor().examine() == ()


def test_a_release_reads_no_manifest_of_another_one(campaigns: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = publish(campaigns, 1)
    unit = campaigns.open_unit({"sales": DAYS})
    campaigns.build(unit, "sales", {d: [2] for d in DAYS})
    read: list[str] = []

    def noting(kind: type[object], text: str) -> object:
        found = canonical.from_json(kind, text)
        read.extend([found.release] if isinstance(found, Manifest) else [])
        return found

    for module in (codec, ledger_releases, manifests):
        monkeypatch.setattr(module, "from_json", noting)
    done = campaigns.campaign_publisher().release(unit.id).release
    assert done in read
    assert before not in read


def test_a_release_adds_its_row_and_now_and_then_all_rows_are_written_into_one_file(
    campaigns: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases_table, "_MOST_FILES", 3)
    files = []
    for amount in range(1, 7):
        publish(campaigns, amount)
        files.append(len(DeltaTable(home(campaigns)).file_uris()))
        assert campaigns.doctor().examine() == ()
    assert files == [1, 2, 3, 1, 2, 3]


def test_a_row_that_an_earlier_release_could_not_add_comes_with_the_next(campaigns: World) -> None:
    publish(campaigns, 1)
    # No follow-up: its process died.
    campaigns.released({day(9): [1]})
    assert len(rows(campaigns)) == 1
    publish(campaigns, 2)
    assert len(rows(campaigns)) == 3
    assert campaigns.doctor().examine() == ()


def test_a_row_of_a_release_that_has_gone_on_is_replaced(campaigns: World) -> None:
    publish(campaigns, 1)
    unit = died_on_its_way(campaigns)
    campaigns.data_releases.refresh()
    assert [row["state"] for row in rows(campaigns)] == ["finalized", "intent"]
    done = campaigns.campaign_publisher().release(unit.id)
    found = {row["release"]: row["state"] for row in rows(campaigns)}
    assert found[done.release] == "finalized"
    assert campaigns.doctor().examine() == ()


def test_a_row_that_is_there_twice_is_found_and_goes_with_the_next_release(campaigns: World) -> None:
    release = publish(campaigns, 1)
    # A process that was stopped for longer than its lease goes on, after another one has written its row.
    campaigns.data_releases.table.append(releases_table.projection([campaigns.ledger.release(release)]))
    assert [release in f.what for f in campaigns.doctor().examine()] == [True]
    publish(campaigns, 2)
    assert len(rows(campaigns)) == 2
    assert campaigns.doctor().examine() == ()


def test_releases_that_are_on_their_way_are_left_to_their_own_follow_up(campaigns: World) -> None:
    publish(campaigns, 1)
    unit = died_on_its_way(campaigns)
    campaigns.ledger.intend(replace(campaigns.ledger.releases()[0].manifest, release="r_elsewhere", dataset="orders"))
    done = campaigns.campaign_publisher().release(unit.id)
    assert done.release in {row["release"] for row in rows(campaigns)}
    assert len(rows(campaigns)) == 2
    assert len(DeltaTable(home(campaigns)).file_uris()) == 2


@pytest.mark.parametrize("harm", ["a file is lost", "a file is cut"])
def test_a_table_that_cannot_be_read_is_written_again(campaigns: World, harm: str) -> None:
    publish(campaigns, 1)
    (file,) = home(campaigns).glob("*.parquet")
    file.unlink() if harm == "a file is lost" else file.write_bytes(file.read_bytes()[:50])
    publish(campaigns, 2)
    assert len(rows(campaigns)) == 2
    assert campaigns.doctor().examine() == ()


def test_a_table_with_columns_of_an_earlier_version_is_written_again(campaigns: World) -> None:
    publish(campaigns, 1)
    old = DeltaTable(home(campaigns)).to_pyarrow_table().drop_columns(["undoes"])
    write_deltalake(home(campaigns), old, mode="overwrite", schema_mode="overwrite")
    publish(campaigns, 2)
    assert len(rows(campaigns)) == 2
    assert campaigns.doctor().examine() == ()


def test_releases_of_a_crash_are_in_the_table_after_reconcile(campaigns: World) -> None:
    unit = campaigns.open_unit({"sales": DAYS})
    campaigns.build(unit, "sales", BEFORE)

    with pytest.raises(Died):
        replace(campaigns.campaign_publisher(), checkpoint=dies_at("commit")).release(unit.id)
    assert not home(campaigns).exists()
    campaigns.reconcile().run()
    assert [row["state"] for row in rows(campaigns)] == [ReleaseState.finalized.value]


def test_concurrent_writers_leave_the_newest_rows(campaigns: World, tmp_path: Path) -> None:
    for number in range(4):
        campaigns.released({day(number): [1]})
    worlds = [World(tmp_path, asked=specification()) for _ in range(3)]
    errors: list[Exception] = []

    def refresh(world: World) -> None:
        try:
            world.data_releases.refresh()
        except Exception as error:  # noqa: BLE001  # reported below
            errors.append(error)
        finally:
            world.close()

    threads = [threading.Thread(target=refresh, args=(world,)) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(rows(campaigns)) == 4
