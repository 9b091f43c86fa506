from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.sql import functions as F  # noqa: N812

from backfill_assets.domain.errors import DatasetError
from backfill_assets.domain.measurement import NOTHING
from backfill_assets.lakehouse.engine.session import open_session
from backfill_assets.lakehouse.road import SparkFingerprints, published_figures
from backfill_assets.lakehouse.road.fingerprint import fingerprint_columns, fingerprint_of
from backfill_assets.settings import Settings
from backfill_assets_tests.spark.road.kit import D1, D2, D3, Kit


def test_every_figure_of_a_day_comes_out_right(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.deliver(
        D1,
        f"{D1},1,a,0.1,0.05",
        f"{D1},1,a,0.2,0.05",
        f"{D1},2,z,-3,",
        f"{D1},3,,4,5.00",
        f"{D1},,b,,1.00",
        f"{D1},,b,,1.00",
    )
    kit.deliver(D2, f"{D2},2147483647,b,1,1", f"{D2},2147483646,b,2,")
    kit.build(loaded, D1, D2)
    sides = kit.measure(loaded, D1, D2, D3)
    one = sides[D1].shadow
    assert one.counts == {
        "duplicate_keys": 2,
        "nulls:day": 0,
        "nulls:id": 2,
        "nulls:amount": 2,
        "rule:not_negative": 3,
        "rule:fee_below_amount": 4,
        "checked:known_kind": 5,
        "unmatched:known_kind": 1,
    }
    assert abs(one.metrics["amount"] - Decimal("1.3")) < Decimal("1e-12")
    assert (one.metrics["fee"], one.metrics["id"], one.metrics["row_count"]) == (Decimal("7.10"), 7, 6)
    assert (one.metrics["distinct_amount"], one.metrics["distinct_kind"]) == (4, 3)
    assert abs(one.metrics["p50_amount"] - Decimal("0.15")) < Decimal("1e-9")
    assert sides[D2].shadow.metrics["id"] == 2**32 - 3
    assert sides[D2].shadow.counts["unmatched:known_kind"] == 0
    assert sides[D3].shadow == sides[D3].published == sides[D3].staging == NOTHING
    assert sides[D1].published == NOTHING
    staging = sides[D1].staging
    assert (staging.rows, staging.metrics["fee"], staging.metrics["id"]) == (6, Decimal("7.10"), 7)
    assert (staging.fingerprint, staging.counts) == ("", {})


def test_of_neighbouring_days_only_row_counts_and_sums_are_read(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,1,0.5", f"{D1},2,b,2,")
    kit.build(loaded, D1)
    kit.publish(loaded, kit.shadow(loaded))
    found = published_figures(kit.spark, loaded, kit.layout, [D1, D2])
    known = {name: value for name, value in found[D1].items() if value is not None}
    assert known == {"row_count": 2, "amount": 3, "fee": Decimal("0.50"), "id": 3}
    assert set(found) == {D1}


def test_a_sum_of_nulls_only_is_no_figure(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,1,")
    kit.build(loaded, D1)
    shadow = kit.measure(loaded, D1)[D1].shadow
    assert (shadow.metrics["fee"], shadow.metrics["amount"]) == (None, Decimal("1.0"))


def test_what_is_published_is_measured_by_the_same_rules(kit: Kit) -> None:
    loaded = kit.dataset()
    for day in (D1, D2):
        kit.deliver(day, f"{day},1,a,1,1", f"{day},2,b,2,1")
    kit.build(loaded, D1, D2)
    copy = kit.shadow(loaded).withColumn("unit", F.lit("another"))
    kit.publish(loaded, copy.withColumn("amount", F.expr(f"IF(day = '{D2}' AND id = 2, 2.5, amount)")).repartition(2))
    sides = kit.measure(loaded, D1, D2)
    assert sides[D1].shadow.fingerprint == sides[D1].published.fingerprint
    assert sides[D1].shadow.metrics == sides[D1].published.metrics
    assert sides[D2].shadow.fingerprint != sides[D2].published.fingerprint
    assert sides[D2].published.metrics["amount"] == Decimal("3.5")


def test_a_column_that_is_not_published_yet_has_no_metrics_and_counts_as_null(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,1,")
    kit.build(loaded, D1)
    kit.publish(loaded, kit.shadow(loaded).drop("fee", "kind"))
    sides = kit.measure(loaded, D1)[D1]
    assert (sides.published.metrics["fee"], sides.published.metrics["distinct_kind"]) == (None, None)
    assert sides.published.fingerprint != sides.shadow.fingerprint
    kit.publish(loaded, kit.shadow(loaded).drop("fee"))
    assert kit.measure(loaded, D1)[D1].published.fingerprint == sides.shadow.fingerprint


PAIR = "day date, id int, kind string, label string, f float, d double"
FINGERPRINTED = {
    "day": {"type": "date"},
    "id": {"type": "integer"},
    "kind": {"type": "string"},
    "label": {"type": "string"},
    "f": {"type": "float"},
    "d": {"type": "double"},
}


def fingerprint(kit: Kit, *rows: tuple[object, ...]) -> str:
    loaded = kit.dataset(columns=FINGERPRINTED, measures={}, checks={})
    frame = kit.spark.createDataFrame([(D1, *row) for row in rows], PAIR).repartition(3)
    return fingerprint_of(frame.agg(*fingerprint_columns(loaded.dataset)).collect()[0])


def test_the_fingerprint_sees_every_change_of_content_and_no_other(kit: Kit) -> None:
    nan = float("nan")
    first, second = (1, "a", None, 1.5, 2.5), (2, "b", "c", 0.0, nan)
    whole = fingerprint(kit, first, second)
    assert whole.startswith("2:")
    assert fingerprint(kit, second, first) == whole
    assert fingerprint(kit, first, (2, "b", "c", -0.0, -nan)) == whole
    others = [
        fingerprint(kit, (1, None, "a", 1.5, 2.5), second),  # a null that moved to another column
        fingerprint(kit, (1, "b", None, 1.5, 2.5), (2, "a", "c", 0.0, nan)),  # two values swapped
        fingerprint(kit, (1, "a", "", 1.5, 2.5), second),  # an empty text for a null
        fingerprint(kit, first, first, second),
        fingerprint(kit, first, first, second, second),
        fingerprint(kit, first),
        fingerprint(kit, first, (2, "b", "c", None, nan)),  # a null for a zero
    ]
    assert len({whole, *others}) == 8


def test_a_reference_with_duplicate_and_null_keys_adds_no_rows(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.put("kinds.csv", "kind,label\na,Alpha\na,Another\n,Nothing\n")
    kit.deliver(D1, f"{D1},1,a,1,1", f"{D1},2,,1,1", f"{D1},3,b,1,1")
    kit.build(loaded, D1)
    counts = kit.measure(loaded, D1)[D1].shadow.counts
    assert (counts["checked:known_kind"], counts["unmatched:known_kind"]) == (2, 1)
    assert kit.measure(loaded, D1)[D1].shadow.rows == 3


def test_a_rule_that_cannot_be_evaluated_is_refused_by_its_key(kit: Kit) -> None:
    rules = {"fine": {"sql": "amount > 0"}, "broken": {"sql": "amuont > 0"}}
    loaded = kit.dataset(checks={"rules": rules})
    kit.deliver(D1, f"{D1},1,a,1,1")
    kit.build(loaded, D1)
    with pytest.raises(DatasetError, match=r"dataset\.yaml: checks\.rules\.broken\.sql: .*`amuont` cannot be resolved"):
        kit.measure(loaded, D1)


def test_published_fingerprints_are_read_in_a_session_of_their_own(kit: Kit, spark_settings: Settings) -> None:
    loaded = kit.dataset()
    fingerprints = SparkFingerprints(lambda tag: open_session(spark_settings, tag), {"trips": loaded}, kit.layout)
    assert fingerprints.of("trips", [D1]) == {D1: ""}
    kit.deliver(D1, f"{D1},1,a,1,1", f"{D1},2,b,2,1")
    kit.build(loaded, D1)
    kit.publish(loaded, kit.shadow(loaded))
    assert fingerprints.of("trips", [D1, D2]) == {D1: kit.measure(loaded, D1)[D1].shadow.fingerprint, D2: ""}
