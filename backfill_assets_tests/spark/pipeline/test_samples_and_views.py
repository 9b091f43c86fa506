from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable
from decimal import Decimal

import pytest

from backfill_assets.core.canonical import canonical_json
from backfill_assets.core.errors import SourceError
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import ReleaseRecord
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.releases_table import ReleasesTable, projection
from backfill_assets.evidence.references import reference_fingerprints
from backfill_assets.pipeline.samples import sample
from backfill_assets.pipeline.views import ensure_views
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.tables import manifest
from backfill_assets_tests.spark.pipeline.kit import D1, D2, NOW, TRIPS, Kit, values


def sampled(kit: Kit, loaded: LoadedDataset, pairs: Iterable[tuple[str, dt.date]]) -> dict[str, object]:
    failed: dict[str, list[dt.date]] = {}
    for check, day in pairs:
        failed.setdefault(check, []).append(day)
    rows = sample(kit.frames(loaded), failed, kit.in_force(loaded))
    json.loads(canonical_json(list(rows.values())))
    return {f"{check} {day}": [dict(r) for r in found] for (check, day), found in rows.items()}


def test_failed_checks_get_up_to_five_of_their_rows_per_day(kit: Kit) -> None:
    loaded = kit.dataset()
    half, one = Decimal("0.50"), Decimal(1)
    rows: list[tuple[object, ...]] = [(D1, i // 2, "z", -float(i), half) for i in range(14)]
    rows += [
        (D1, None, "a", 1.0, one),
        (D1, 99, "a", None, one),
        (D1, 100, "b", math.nan, one),
        (D2, 1, "z", -1.0, half),
    ]
    kit.put_shadow(loaded, kit.rows(*rows))
    checks = (
        "unique_key",
        "not_null",
        "rule_not_negative",
        "reference_known_kind",
        "change_row_count",
        "change_amount",
    )
    found = sampled(kit, loaded, [(check, D1) for check in checks])
    assert set(found) == {f"{check} {D1}" for check in checks[:4]}
    assert found[f"unique_key {D1}"] == [{"day": str(D1), "id": i, "rows": 2} for i in range(5)]
    assert [row["id"] for row in found[f"not_null {D1}"]] == [None, 99]
    negative = found[f"rule_not_negative {D1}"]
    assert len(negative) == 5
    assert negative[0] == {"day": str(D1), "id": 0, "kind": "z", "amount": -1.0, "fee": "0.50"}
    assert {row["kind"] for row in found[f"reference_known_kind {D1}"]} == {"z"}
    assert sampled(kit, loaded, [("rule_not_negative", D2)]) == {
        f"rule_not_negative {D2}": [{"day": str(D2), "id": 1, "kind": "z", "amount": -1.0, "fee": "0.50"}]
    }


def test_corrupt_rows_are_shown_with_their_file_and_so_are_rows_of_another_day(kit: Kit) -> None:
    loaded = kit.dataset(source={**TRIPS["source"], "late_days": 1})  # type: ignore[dict-item]
    kit.deliver(D1, f"{D1},1,a,1,1", f"{D1},x,a,1,1")
    kit.deliver(D2, f"{D2},y,{'a' * 300},1,1", f"{D2 + dt.timedelta(9)},5,a,1,1")
    kit.build(loaded, D1, D2)
    found = sampled(kit, loaded, [("corrupt_rows", D1), ("corrupt_rows", D2)])
    first, late = found[f"corrupt_rows {D1}"]
    assert first == {
        "problem": "unreadable",
        "_delivery_day": str(D1),
        "_source_file": f"trips/{D1}.csv",
        "_corrupt_record": f"{D1},x,a,1,1",
    }
    assert (late["_delivery_day"], len(late["_corrupt_record"])) == (str(D2), 201)
    problems = [(row["problem"], row["_source_file"]) for row in found[f"corrupt_rows {D2}"]]
    assert problems == [("unreadable", f"trips/{D2}.csv"), ("of another day", f"trips/{D2}.csv")]
    stranger = json.loads(found[f"corrupt_rows {D2}"][1]["_corrupt_record"])
    assert stranger == {"day": str(D2 + dt.timedelta(9)), "id": 5}


def test_views_show_the_business_columns_of_published_tables_only(kit: Kit) -> None:
    name = "trips_" + kit.root.name[-20:].lower().replace("-", "_")
    loaded = kit.dataset(name=name)
    other = kit.dataset(name=name + "_other")
    ensure_views(kit.spark, [loaded, other], kit.layout)
    assert not kit.spark.catalog.tableExists(f"published.{name}")
    released = kit.rows((D1, 1, "a", 1.0, Decimal(1)))
    kit.publish(loaded, released.drop("fee"))
    ensure_views(kit.spark, [loaded], kit.layout)
    assert kit.spark.table(f"published.{name}").columns == ["day", "id", "kind", "amount"]
    kit.publish(loaded, released)
    ensure_views(kit.spark, [loaded, other], kit.layout)
    assert values(kit.spark.table(f"published.{name}"), "id", "fee")[0][0] == 1
    assert kit.spark.table(f"published.{name}").columns == list(loaded.dataset.columns)
    kit.spark.sql(f"DROP VIEW published.{name}")


def test_references_have_fingerprints_and_missing_or_misfit_files_are_named(kit: Kit) -> None:
    loaded = kit.dataset()
    assert reference_fingerprints(loaded, kit.layout, [D1]) == {
        D1: {"kinds": (kit.layout.sources / "kinds.csv").sha256()}
    }
    kit.deliver(D1, f"{D1},1,a,1,1")
    kit.put("kinds.csv", "kind,name\na,Alpha\n")
    with pytest.raises(SourceError, match=r"kinds\.csv: its header does not name label"):
        kit.build(loaded, D1)
    (path_of(kit.layout.sources) / "kinds.csv").unlink()
    with pytest.raises(
        SourceError, match=r"the file of reference kinds, kinds\.csv, is not in .*references\.kinds\.path"
    ):
        reference_fingerprints(loaded, kit.layout, [D1])


def test_the_view_data_releases_shows_what_every_release_was(kit: Kit) -> None:
    rows = projection([ReleaseRecord(manifest("r_0002", []), ReleaseState.finalized, 7, NOW)])
    ReleasesTable(kit.layout).write(rows)
    ensure_views(kit.spark, [], kit.layout)
    (row,) = kit.spark.table("published.data_releases").collect()
    assert (row["release"], row["published_at"].replace(tzinfo=dt.UTC), row["version"]) == ("r_0002", NOW, 7)
    assert row["campaign"] is None
    kit.spark.sql("DROP VIEW published.data_releases")
