"""Figures of days: most tests use days of their own in one batch that was measured in one go."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

import pytest
from pyspark.sql import functions as F  # noqa: N812

from backfill_assets.core.errors import DatasetError
from backfill_assets.core.measured import NOTHING
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.pipeline.fingerprints import fingerprint_columns, fingerprint_of
from backfill_assets.pipeline.measure import Sides, published_figures
from backfill_assets.pipeline.tables import SparkFingerprints
from backfill_assets.settings import Settings
from backfill_assets.spark.session import open_session
from backfill_assets.storage.layout import Layout
from backfill_assets_tests.spark.pipeline.kit import D1, Kit

FIGURES, LARGE, NEIGHBOUR, NO_FEE, COPIED, CHANGED, NOWHERE = (D1 + dt.timedelta(i) for i in range(7))


@dataclass(frozen=True)
class MeasuredDays:
    """Some built days, some of them published, and the measured figures of all."""

    kit: Kit
    loaded: LoadedDataset
    sides: Mapping[dt.date, Sides]


@pytest.fixture(scope="module")
def measured_days(module_kit: Kit) -> MeasuredDays:
    kit, loaded = module_kit, module_kit.dataset()
    # A join with it would add rows.
    kit.put("kinds.csv", "kind,label\na,Alpha\na,Another\nb,Beta\nb,Beta\n,Nothing\n,Nothing\n")
    kit.deliver(
        FIGURES,
        f"{FIGURES},1,a,0.1,0.05",
        f"{FIGURES},1,a,0.2,0.05",
        f"{FIGURES},2,z,-3,",
        f"{FIGURES},3,,4,5.00",
        f"{FIGURES},,b,,1.00",
        f"{FIGURES},,b,,1.00",
    )
    kit.deliver(LARGE, f"{LARGE},2147483647,b,1,1", f"{LARGE},2147483646,b,2,")
    kit.deliver(NEIGHBOUR, f"{NEIGHBOUR},1,a,1,0.5", f"{NEIGHBOUR},2,b,2,")
    kit.deliver(NO_FEE, f"{NO_FEE},1,a,1,")
    for day in (COPIED, CHANGED):
        kit.deliver(day, f"{day},1,a,1,1", f"{day},2,b,2,1")
    kit.build(loaded, FIGURES, LARGE, NEIGHBOUR, NO_FEE, COPIED, CHANGED)
    copy = kit.shadow(loaded).where(F.col("day").isin(NEIGHBOUR, COPIED, CHANGED)).withColumn("unit", F.lit("another"))
    moved = F.expr(f"IF(day = '{CHANGED}' AND id = 2, 2.5, amount)")
    kit.publish(loaded, copy.withColumn("amount", moved))
    return MeasuredDays(kit, loaded, kit.measure(loaded, FIGURES, LARGE, NEIGHBOUR, NO_FEE, COPIED, CHANGED, NOWHERE))


def test_every_figure_of_a_day_comes_out_right(measured_days: MeasuredDays) -> None:
    sides = measured_days.sides
    one = sides[FIGURES].shadow
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
    assert sides[LARGE].shadow.metrics["id"] == 2**32 - 3
    assert sides[LARGE].shadow.counts["unmatched:known_kind"] == 0
    assert sides[NOWHERE].shadow == sides[NOWHERE].published == sides[NOWHERE].staging == NOTHING
    assert sides[FIGURES].published == NOTHING
    staging = sides[FIGURES].staging
    assert (staging.rows, staging.metrics["fee"], staging.metrics["id"]) == (6, Decimal("7.10"), 7)
    assert (staging.fingerprint, staging.counts) == ("", {})


def test_only_row_counts_and_sums_of_neighbouring_days_are_read(measured_days: MeasuredDays) -> None:
    found = published_figures(measured_days.kit.frames(measured_days.loaded), [NEIGHBOUR, NO_FEE])
    known = {name: value for name, value in found[NEIGHBOUR].items() if value is not None}
    assert known == {"row_count": 2, "amount": 3, "fee": Decimal("0.50"), "id": 3}
    assert set(found) == {NEIGHBOUR}


def test_a_sum_of_nulls_only_is_no_figure(measured_days: MeasuredDays) -> None:
    shadow = measured_days.sides[NO_FEE].shadow
    assert (shadow.metrics["fee"], shadow.metrics["amount"]) == (None, Decimal("1.0"))


def test_published_rows_are_measured_by_the_same_rules(measured_days: MeasuredDays) -> None:
    copied, changed = measured_days.sides[COPIED], measured_days.sides[CHANGED]
    assert copied.shadow.fingerprint == copied.published.fingerprint
    assert copied.shadow.metrics == copied.published.metrics
    assert changed.shadow.fingerprint != changed.published.fingerprint
    assert changed.published.metrics["amount"] == Decimal("3.5")


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
    return fingerprint_of(frame.agg(*fingerprint_columns(loaded.dataset.types)).collect()[0])


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


def test_a_rule_that_cannot_be_evaluated_is_refused_by_its_key(measured_days: MeasuredDays) -> None:
    rules = {"fine": {"sql": "amount > 0"}, "broken": {"sql": "amuont > 0"}}
    loaded = measured_days.kit.dataset(checks={"rules": rules})
    with pytest.raises(DatasetError, match=r"dataset\.yaml: checks\.rules\.broken\.sql: .*`amuont` cannot be resolved"):
        measured_days.kit.measure(loaded, NO_FEE)


def test_published_fingerprints_are_read_in_a_session_of_their_own(
    kit: Kit, measured_days: MeasuredDays, spark_settings: Settings
) -> None:
    def of(layout: Layout, *days: dt.date) -> Mapping[dt.date, str]:
        opened = partial(open_session, spark_settings)
        return SparkFingerprints(opened, {"trips": measured_days.loaded}, layout).of("trips", days)

    assert of(kit.layout, D1) == {D1: ""}
    expected = {COPIED: measured_days.sides[COPIED].shadow.fingerprint, NO_FEE: ""}
    assert of(measured_days.kit.layout, COPIED, NO_FEE) == expected
