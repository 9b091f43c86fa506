"""Everything is lost but the sources' newest files and a backup: what was published is there again, and the next day follows."""

from __future__ import annotations

import shutil

from backfill_assets.application import Application
from backfill_assets.backup.restore import RestoreBackup
from backfill_assets.backup.take import TakeBackup
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets_tests.harness.without_dagster import built, judged, publish
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, Kit, values


def test_the_next_day_follows_on_a_restored_warehouse(kit: Kit) -> None:
    kit.dataset(measures={"fee": {}})
    first = Application(kit.settings)
    kit.deliver(D1, f"{D1},1,a,10,1.00", f"{D1},2,b,20,2.00")
    kit.deliver(D2, f"{D2},3,a,30,3.00")
    publish(first, kit.spark, "trips", (D1, D2))
    kit.deliver(D2, f"{D2},3,a,33,3.00", f"{D2},4,b,40,4.00", hour=5)
    corrected = built(first, kit.spark, "trips", (D2,), {"row_count": "any", "fee": "any"})
    release = first.publisher.release(corrected.id).releases["trips"]
    place = OnDisk(kit.root.parent / f"{kit.root.name}-backups")
    taken = TakeBackup(first.warehouse).take(place)
    assert [table.version >= 0 for table in taken.backup.tables] == [True, True]
    seen = first.ledger.evidence(corrected.id)
    first.ledger.close()

    shutil.rmtree(path_of(kit.layout.warehouse))
    (kit.root / "ledger.db").unlink()
    # The supplier keeps no old files: only raw has the rows of the first two days.
    shutil.rmtree(path_of(kit.layout.sources) / "trips")
    again = Application(kit.settings)
    RestoreBackup(kit.layout, kit.settings.ledger_url, again.clock, again.identity).run(place)
    assert [one.release for one in again.reconcile.run()] == ["data_releases"], "the one table that is written again"
    assert again.ledger.evidence(corrected.id) == seen
    published = path_of(kit.layout.published_path("trips"))
    assert values(kit.table(published), "id", "amount") == [(1, 10.0), (2, 20.0), (3, 33.0), (4, 40.0)]
    assert [str(finding) for finding in again.doctor.examine()] == []

    kit.deliver(D3, f"{D3},5,a,50,5.00")
    # What was landed can be built again from raw alone, and comes out the same.
    evidence = judged(again, built(again, kit.spark, "trips", (D1, D2)), "trips")
    assert [one.passed for one in evidence.values()] == [True, True]
    assert all(one.measured.shadow.fingerprint == one.measured.published.fingerprint for one in evidence.values())
    publish(again, kit.spark, "trips", (D3,))
    again.rollback.execute(release, "the correction was wrong")
    assert values(kit.table(published), "id", "amount") == [(1, 10.0), (2, 20.0), (3, 30.0), (5, 50.0)]
    again.ledger.close()
    shutil.rmtree(path_of(place))
