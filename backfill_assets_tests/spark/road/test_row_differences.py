from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal

from pyspark.sql import functions as F  # noqa: N812

from backfill_assets.catalog import LoadedDataset
from backfill_assets.domain.attribution import attribute
from backfill_assets.domain.comparison import DELIVERY_FILE, Compared, DayComparison, RowChange, RowCounts, Share
from backfill_assets.domain.contract import Contract, parse_contract
from backfill_assets.domain.judge import judge
from backfill_assets.domain.measurement import DayMeasurement, SourceState
from backfill_assets.lakehouse.road import Question, RowDifferences, row_differences
from backfill_assets_tests.spark.road.kit import D1, D2, D3, FOLDER, Kit

ATTEMPT = 7
ROWS = ("1,a,10,1.00", "2,a,20,2.00", "3,b,30,3.00", "4,,40,")


def built(kit: Kit, *days: dt.date, **changes: object) -> LoadedDataset:
    """The dataset with the same four rows on each day, in the shadow."""
    loaded = kit.dataset(**changes)  # type: ignore[arg-type]
    for day in days:
        kit.deliver(day, *(f"{day},{row}" for row in ROWS))
    kit.build(loaded, *days)
    return loaded


def published(kit: Kit, loaded: LoadedDataset, **columns: str) -> None:
    """Publish the shadow with some columns replaced by SQL."""
    frame = kit.shadow(loaded)
    kit.publish(
        loaded,
        frame.withColumns({name: F.expr(sql).cast(frame.schema[name].dataType) for name, sql in columns.items()}),
    )


@contextmanager
def differences(
    kit: Kit, loaded: LoadedDataset, *days: dt.date, contract: Contract | None = None
) -> Iterator[RowDifferences]:
    question = Question(FOLDER, ATTEMPT, kit.measure(loaded, *days), contract or Contract())
    with row_differences(kit.spark, loaded, kit.layout, question) as found:
        yield found


def counted(
    kit: Kit, loaded: LoadedDataset, *days: dt.date, contract: Contract | None = None
) -> Mapping[dt.date, RowCounts]:
    with differences(kit, loaded, *days, contract=contract) as found:
        return found.counts


def compared(kit: Kit, loaded: LoadedDataset, day: dt.date) -> DayComparison:
    with differences(kit, loaded, day) as found:
        (one,) = found.comparisons
    return one


def test_rows_are_counted_by_what_happens_to_them(kit: Kit) -> None:
    loaded = built(kit, D1, D2, D3)
    kit.publish(
        loaded,
        kit.shadow(loaded)
        .where(f"day <> '{D3}' AND NOT (day = '{D1}' AND id = 1)")
        .withColumn("amount", F.expr(f"IF(day = '{D1}' AND id = 2, 21, amount)"))
        .withColumn("kind", F.expr(f"IF(day = '{D1}' AND id IN (2, 4), 'c', kind)"))
        .withColumn("id", F.expr(f"IF(day = '{D1}' AND id = 3, 9, id)")),
    )
    counts = counted(kit, loaded, D1, D2, D3)
    # Nothing is published of the third day: there is nothing to compare.
    assert counts == {
        D1: RowCounts(added=2, removed=1, changed=2, columns={"kind": 2, "amount": 1}),
        D2: RowCounts(unchanged=4),
    }


def test_a_day_that_vanishes_is_removed_whole(kit: Kit) -> None:
    loaded = built(kit, D1)
    kit.publish(loaded, kit.shadow(loaded).withColumn("day", F.lit(D2)))
    one = counted(kit, loaded, D1, D2)
    assert one == {D2: RowCounts(removed=4)}


def test_no_rows_are_looked_at_where_nothing_moved(kit: Kit) -> None:
    loaded = built(kit, D1, D2)
    kit.publish(loaded, kit.shadow(loaded).where(f"day = '{D1}'"))
    measured = kit.measure(loaded, D1, D2)
    question = Question("_shadow/nowhere", ATTEMPT, measured, Contract())
    with row_differences(kit.spark, loaded, kit.layout, question) as found:
        assert (found.counts, found.comparisons) == ({D1: RowCounts(unchanged=4)}, ())
        assert found.sample({("rows_change", "amount"): (D1,)}) == {}


def test_days_with_duplicate_keys_are_matched_row_by_row(kit: Kit) -> None:
    loaded = built(kit, D1, D2, D3)
    shadow = kit.shadow(loaded)
    twice = shadow.where(f"day = '{D1}' AND id = 1")
    # The first day has duplicates where it is published, the second in the shadow, the third nowhere.
    kit.publish(loaded, shadow.where(f"NOT (day = '{D2}' AND id = 3)").unionByName(twice))
    kit.deliver(D2, *(f"{D2},{row}" for row in (*ROWS, ROWS[0])), hour=1)
    kit.build(loaded, D2)
    with differences(kit, loaded, D1, D2, D3) as found:
        assert found.counts == {
            D1: RowCounts(removed=1, unchanged=4),
            D2: RowCounts(added=2, unchanged=3),
            D3: RowCounts(unchanged=4),
        }
        assert {one.day: one.moved["amount"] for one in found.comparisons} == {D1: 10, D2: 40}


def test_columns_that_were_added_or_retyped_are_not_compared_and_tolerances_are_kept(kit: Kit) -> None:
    columns = {
        "day": {"type": "date"},
        "id": {"type": "integer"},
        "kind": {"type": "string"},
        "amount": {"type": "double", "tolerance": 0.5},
        "fee": {"type": "decimal(12,2)"},
    }
    loaded = built(kit, D1, D2, columns=columns)
    shadow = kit.shadow(loaded).drop("kind").withColumn("fee", F.expr("cast(fee AS decimal(20,2)) + 1"))
    kit.publish(loaded, shadow.withColumn("amount", F.expr(f"amount + IF(day = '{D1}', 0.5, 0.75)")))
    assert counted(kit, loaded, D1, D2) == {
        D1: RowCounts(unchanged=4),
        D2: RowCounts(changed=4, columns={"amount": 4}),
    }
    kit.publish(loaded, shadow.withColumn("id", F.col("id").cast("long")))
    with differences(kit, loaded, D1, D2) as found:
        assert (found.counts, found.comparisons) == ({}, ())


def test_rows_beyond_a_promise_are_counted_on_its_days_and_shown_first(kit: Kit) -> None:
    loaded = built(kit, D1, D2)
    # 10 → 10, 20 → 22, 30 → 27, 40 → nothing.
    published(
        kit,
        loaded,
        amount="CASE id WHEN 2 THEN 20 / 1.1 WHEN 3 THEN 30 / 0.9 WHEN 4 THEN NULL ELSE amount END",
        kind="IF(id = 1, 'z', kind)",
    )
    contract = parse_contract(
        [{"days": [str(D1)], "rows": {"amount": "-11% to 5%", "kind": "unchanged"}}],
        [],
        columns=loaded.dataset.compared,
    )
    with differences(kit, loaded, D1, D2, contract=contract) as found:
        columns = {"amount": 3, "kind": 1}
        assert found.counts[D1] == RowCounts(changed=4, columns=columns, beyond={"amount": 2, "kind": 1})
        assert found.counts[D2] == RowCounts(changed=4, columns=columns)
        wanted = {("rows_change", "amount"): (D1,), ("rows_change", "kind"): (D1,), ("columns_change", "amount"): (D2,)}
        samples = found.sample(wanted)
    assert samples["rows_change", D1] == (
        {"day": str(D1), "id": 4, "column": "amount", "old": None, "new": "40.0"},
        {"day": str(D1), "id": 2, "column": "amount", "old": "18.181818", "new": "20.0"},
        {"day": str(D1), "id": 1, "column": "kind", "old": "z", "new": "a"},
    )
    assert [row["id"] for row in samples["columns_change", D2]] == [4, 3, 2]
    assert set(samples) == {("rows_change", D1), ("columns_change", D2)}


def test_a_band_of_rows_allows_for_the_rounding_of_amounts_but_not_for_more(kit: Kit) -> None:
    columns = {"day": {"type": "date"}, "id": {"type": "integer"}, "fee": {"type": "decimal(12,2)"}}
    measures = {"fee": {}}
    loaded = kit.dataset(fact="SELECT day, id, fee FROM staging", columns=columns, measures=measures, checks={})
    # Prices in cents and what they are at 8 % less, rounded; on the second day some are a cent off, or no prices any more.
    less = {i: (Decimal(i) * 92 / 100).quantize(Decimal(1)) for i in range(1, 501)}
    off = {9: 10, 100: 101, 200: 182, 300: 0}
    for day, cents in ((D1, less), (D2, {i: off[i] for i in off})):
        kit.deliver(day, *(f"{day},{i},a,1,{Decimal(c) / 100}" for i, c in cents.items()))
    kit.build(loaded, D1, D2)
    published(kit, loaded, fee="id / 100")
    for band, beyond in (("-8%", 4), ("-8% to 0%", 4), ("-9% to -7%", 3)):
        contract = parse_contract({"rows": {"fee": band}}, [], columns=loaded.dataset.compared)
        counts = counted(kit, loaded, D1, D2, contract=contract)
        assert counts[D1].columns["fee"] == sum(i != c for i, c in less.items())
        assert (counts[D1].beyond, counts[D2].beyond) == ({}, {"fee": beyond}), band


def test_errors_that_cancel_out_in_a_sum_are_caught_row_by_row(kit: Kit) -> None:
    loaded = built(kit, D1)
    published(kit, loaded, amount="amount + CASE id WHEN 1 THEN -5 WHEN 2 THEN 5 ELSE 0 END")
    sides = kit.measure(loaded, D1)[D1]
    measured = DayMeasurement(D1, sides.shadow, sides.published, sides.staging, SourceState())
    with differences(kit, loaded, D1) as found:
        compared = Compared(found.counts[D1])
    failed = {v.check: v for v in judge(loaded.dataset, measured, Contract(), compared) if v.refuses}
    assert "amount_change" not in failed
    assert failed["rows_change"].found == "amount changed in 2 of 4 rows that both sides have"


def test_the_largest_changes_and_shares_of_a_day_name_rows_and_values(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,10,1.00", f"{D1},2,a,20,2.00", part="_first")
    kit.deliver(D1, f"{D1},3,b,30,3.00", f"{D1},4,,40,", f"{D1},5,b,5,0.50", part="_second")
    kit.build(loaded, D1)
    shadow = kit.shadow(loaded)
    gone = shadow.where("id = 1").withColumn("id", F.lit(9)).withColumn("kind", F.lit("gone"))
    kit.publish(
        loaded,
        shadow.where("id <> 5").unionByName(gone).withColumn("amount", F.expr("IF(id IN (3, 4), amount - id, amount)")),
    )
    one = compared(kit, loaded, D1)
    assert (one.dataset, one.day, one.attempt, one.rows, one.of) == ("trips", D1, ATTEMPT, 4, 5)
    assert one.moved == {"amount": 22, "fee": Decimal("1.50"), "id": 14}
    amounts = [change for change in one.largest if change.measure == "amount"]
    assert amounts == [
        RowChange("amount", D1, {"id": 9}, Decimal("10.0"), None),
        RowChange("amount", D1, {"id": 5}, None, Decimal("5.0")),
        RowChange("amount", D1, {"id": 4}, Decimal("36.0"), Decimal("40.0")),
        RowChange("amount", D1, {"id": 3}, Decimal("27.0"), Decimal("30.0")),
    ]
    assert [(c.key["id"], c.delta) for c in one.largest if c.measure == "fee"] == [(9, -1), (5, Decimal("0.5"))]
    shares = {(s.dimension, s.value): s for s in one.shares}
    # `kind` is a measure of its own here, so the delivery file alone tells rows apart.
    assert {dimension for dimension, _ in shares} == {DELIVERY_FILE}
    (second, none) = sorted(shares.values(), key=lambda s: -s.rows)
    assert second.value.endswith(f"{D1}_second.csv")
    assert second == Share(DELIVERY_FILE, second.value, 3, 3, {"amount": 12, "fee": Decimal("0.50"), "id": 5})
    assert (none.value, none.rows, none.of, none.moved["amount"]) == ("(not delivered)", 1, 1, 10)


def test_values_of_dimensions_are_told_apart_with_null_as_a_value(kit: Kit) -> None:
    loaded = built(kit, D1, dimensions=["kind", "id"])
    published(kit, loaded, amount="IF(kind = 'b' OR kind IS NULL, amount + 1, amount)", kind="coalesce(kind, 'old')")
    one = compared(kit, loaded, D1)
    kinds = [(s.value, s.rows, s.of, s.moved["amount"]) for s in one.shares if s.dimension == "kind"]
    # Of a row that changed its value the new one counts; the published side has none of it.
    assert kinds == [("(null)", 1, 1, 1), ("b", 1, 1, 1)]
    assert [s.value for s in one.shares if s.dimension == "id"] == ["3", "4"]


def test_shares_of_values_count_the_rows_of_the_side_that_has_more(kit: Kit) -> None:
    loaded = built(kit, D1, dimensions=["kind"])
    shadow = kit.shadow(loaded)
    more = shadow.where("kind = 'a'").withColumn("id", F.col("id") + 10)
    # Of kind a two rows go and two stay as they are, b comes, and c is on the published side alone.
    kit.publish(loaded, shadow.where("id <> 3").unionByName(more).withColumn("kind", F.expr("IF(id = 4, 'c', kind)")))
    kinds = {s.value: (s.rows, s.of) for s in compared(kit, loaded, D1).shares if s.dimension == "kind"}
    assert kinds == {"a": (2, 4), "b": (1, 1)}


def test_shares_keep_every_value_that_makes_up_a_percent_of_a_days_move(kit: Kit) -> None:
    loaded = kit.dataset(dimensions=["kind"], checks={})
    wrong = [f"{D1},{i},wrong{i:02},100,1" for i in range(20)]
    kit.deliver(D1, *wrong, *(f"{D1},{i},right,100,1" for i in range(20, 40)), f"{D1},40,slight,1,1")
    kit.build(loaded, D1)
    published(kit, loaded, amount="IF(kind = 'right', amount, amount * 2)", fee="IF(kind = 'slight', 9, fee)")
    one = compared(kit, loaded, D1)
    # By amount the last one moves less than a percent, but nothing else moves the fee.
    assert {s.value for s in one.shares if s.dimension == "kind"} == {f"wrong{i:02}" for i in range(20)} | {"slight"}
    (amount,) = [found for found in attribute([one]) if found.measure == "amount"]
    cause = next(c for c in amount.causes if c.dimension == "kind")
    assert (len(cause.values), round(cause.explained, 2)) == (19, 0.95)


def test_shares_of_many_values_that_move_next_to_nothing_each_are_not_kept(kit: Kit) -> None:
    loaded = kit.dataset(dimensions=["kind"], checks={})
    kit.deliver(D1, *(f"{D1},{i},k{i},1,1" for i in range(150)))
    kit.build(loaded, D1)
    published(kit, loaded, amount="amount * 2")
    assert [s.dimension for s in compared(kit, loaded, D1).shares] == [DELIVERY_FILE]


def test_shares_of_delivery_files_go_by_the_newest_delivery_and_not_by_the_name(kit: Kit) -> None:
    loaded = kit.dataset(add_up=True, checks={})
    kit.deliver(D1, f"{D1},1,a,10,1", part="_z")
    kit.deliver(D1, f"{D1},1,a,10,1", part="_a", hour=5)
    kit.build(loaded, D1)
    published(kit, loaded, amount="amount + 1")
    (share,) = compared(kit, loaded, D1).shares
    assert share.value.endswith(f"{D1}_a.csv")
