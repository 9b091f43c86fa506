"""Row differences of many days at once: each test uses days of its own in two queries of the same tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from backfill_assets.core.expected_change import Contract, parse_contract
from backfill_assets.core.measured import (
    DELIVERY_FILE,
    Compared,
    DayComparison,
    DayMeasurement,
    RowChange,
    RowCounts,
    Share,
    SourceState,
)
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.pipeline.differences import Question, RowDifferences, row_differences
from backfill_assets.pipeline.judge import judge
from backfill_assets.pipeline.measure import Sides
from backfill_assets.report.causes import attribute
from backfill_assets_tests.spark.pipeline.kit import D1, D2, FOLDER, Kit

ATTEMPT = 7
ROWS = ("1,a,10,1.00", "2,a,20,2.00", "3,b,30,3.00", "4,,40,")

# A query returns the hundred largest changes; these days fit, because few of their rows differ.
FEW = (
    MIXED, SAME, UNPUBLISHED, TWICE_PUBLISHED, TWICE_BUILT, ONCE, PROMISED, UNPROMISED, CANCELLING, LARGEST, TWO_FILES,
) = tuple(D1 + dt.timedelta(i) for i in range(11))  # fmt: skip
VANISHED = D1 + dt.timedelta(11)
"""The day that is published but not in the shadow."""
MANY = (
    NULLS, UNEVEN, WRONG, SCATTERED, *ROUNDED,
) = tuple(D1 + dt.timedelta(i) for i in range(12, 22))  # fmt: skip

BANDS = {"-8%": 4, "-8% to 0%": 4, "-9% to -7%": 3}
"""The promise for the rows of two days each, and how many rows of the second day break it."""
# Prices in cents and 8 % less, rounded; on the second day some are a cent off, or are no longer prices.
LESS = {i: (Decimal(i) * 92 / 100).quantize(Decimal(1)) for i in range(1, 501)}
OFF = {9: Decimal(10), 100: Decimal(101), 200: Decimal(182), 300: Decimal(0)}

# The published side: the shadow without some rows, with other values in some columns, and with some additional rows.
WITHOUT = {
    MIXED: "id = 1",
    UNPUBLISHED: "true",
    TWICE_BUILT: "id IN (1, 3)",
    LARGEST: "id = 5",
    UNEVEN: "id = 3",
}
COLUMNS: Mapping[str, Mapping[dt.date, str]] = {
    "amount": {
        MIXED: "IF(id = 2, 21, amount)",
        # 10 → 10, 20 → 22, 30 → 27, 40 → nothing.
        **dict.fromkeys(
            (PROMISED, UNPROMISED), "CASE id WHEN 2 THEN 20 / 1.1 WHEN 3 THEN 30 / 0.9 WHEN 4 THEN NULL ELSE amount END"
        ),
        CANCELLING: "amount + CASE id WHEN 1 THEN -5 WHEN 2 THEN 5 ELSE 0 END",
        LARGEST: "IF(id IN (3, 4), amount - id, amount)",
        TWO_FILES: "amount + 1",
        NULLS: "IF(kind = 'b' OR kind IS NULL, amount + 1, amount)",
        WRONG: "IF(kind = 'right', amount, amount * 2)",
        SCATTERED: "amount * 2",
    },
    "kind": {
        MIXED: "IF(id IN (2, 4), 'c', kind)",
        **dict.fromkeys((PROMISED, UNPROMISED), "IF(id = 1, 'z', kind)"),
        NULLS: "coalesce(kind, 'old')",
        UNEVEN: "IF(id = 4, 'c', kind)",
    },
    "id": {MIXED: "IF(id = 3, 9, id)"},
    "fee": {WRONG: "IF(kind = 'slight', 9, fee)", **dict.fromkeys(ROUNDED, "id / 100")},
}
MORE: Mapping[str, Mapping[str, str]] = {
    f"day = '{TWICE_PUBLISHED}' AND id = 1": {},
    f"day = '{ONCE}' AND id = 1": {"day": f"DATE'{TWICE_BUILT}'"},
    f"day = '{SAME}'": {"day": f"DATE'{VANISHED}'"},
    f"day = '{LARGEST}' AND id = 1": {"id": "9", "kind": "'gone'"},
    f"day = '{UNEVEN}' AND kind = 'a'": {"id": "id + 10"},
}


@dataclass(frozen=True)
class ComparedDays:
    """The built and published rows of all days; `by_file` and `by_kind` differ only in their dimensions."""

    kit: Kit
    by_file: LoadedDataset
    by_kind: LoadedDataset
    measured: Mapping[dt.date, Sides]

    def question(self, loaded: LoadedDataset, *days: dt.date, contract: Contract, folder: str = FOLDER) -> Question:
        frames = self.kit.frames(loaded, *days, folder=folder)
        return Question(frames, ATTEMPT, {day: self.measured[day] for day in days}, contract)

    def promised(self, *rows: tuple[tuple[dt.date, ...], Mapping[str, str]]) -> Contract:
        promises = [{"days": [str(day) for day in days], "rows": dict(bands)} for days, bands in rows]
        return parse_contract(promises, [], columns=self.by_file.dataset.promisable)


def delivered(kit: Kit) -> None:
    """The same four rows on each day, except for days whose test needs others."""
    days = dict.fromkeys((*FEW[:9], NULLS, UNEVEN), ROWS)
    days[TWICE_BUILT] = (*ROWS, ROWS[0])
    days[WRONG] = (
        *(f"{i},wrong{i:02},100,1" for i in range(20)),
        *(f"{i},right,100,1" for i in range(20, 40)),
        "40,slight,1,1",
    )
    days[SCATTERED] = tuple(f"{i},k{i},1,1" for i in range(150))
    for i, day in enumerate(ROUNDED):
        days[day] = tuple(f"{n},a,1,{cents / 100}" for n, cents in (OFF if i % 2 else LESS).items())
    for day, rows in days.items():
        kit.deliver(day, *(f"{day},{row}" for row in rows))
    kit.deliver(LARGEST, f"{LARGEST},1,a,10,1.00", f"{LARGEST},2,a,20,2.00", part="_first")
    kit.deliver(LARGEST, f"{LARGEST},3,b,30,3.00", f"{LARGEST},4,,40,", f"{LARGEST},5,b,5,0.50", part="_second")
    kit.deliver(TWO_FILES, f"{TWO_FILES},1,a,10,1", part="_z")
    kit.deliver(TWO_FILES, f"{TWO_FILES},1,a,10,1", part="_a", hour=5)


def by_day(column: str, own: Mapping[dt.date, str]) -> str:
    """SQL that gives each of these days its own value, and all other days the value of the column."""
    cases = " ".join(f"WHEN DATE'{day}' THEN {sql}" for day, sql in own.items())
    return f"CASE day {cases} ELSE {column} END"


def with_columns(frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Some columns replaced by SQL, in the types that they have."""
    fields = {field.name: field.dataType for field in frame.schema.fields}
    return frame.select(*(F.expr(columns.get(name, name)).cast(kind).alias(name) for name, kind in fields.items()))


@pytest.fixture(scope="module")
def compared_days(module_kit: Kit) -> ComparedDays:
    kit = module_kit
    by_kind = kit.dataset(deduplicate="none", dimensions=["kind", "id"])
    by_file = kit.dataset(deduplicate="none")
    delivered(kit)
    kit.build(by_file, *FEW, *MANY)
    shadow = kit.shadow(by_file)
    published = with_columns(
        shadow.where(f"NOT {by_day('false', WITHOUT)}"), {name: by_day(name, own) for name, own in COLUMNS.items()}
    )
    for where, columns in MORE.items():
        published = published.unionByName(with_columns(shadow.where(where), columns))
    kit.publish(by_file, published)
    return ComparedDays(kit, by_file, by_kind, kit.measure(by_file, *FEW, VANISHED, *MANY))


@pytest.fixture(scope="module")
def few(compared_days: ComparedDays) -> Iterator[RowDifferences]:
    """The differences of the days with few of them, by delivery file."""
    contract = compared_days.promised(((PROMISED,), {"amount": "-11% to 5%", "kind": "unchanged"}))
    question = compared_days.question(compared_days.by_file, *FEW, VANISHED, contract=contract)
    with row_differences(question) as found:
        yield found


@pytest.fixture(scope="module")
def many(compared_days: ComparedDays) -> Iterator[RowDifferences]:
    """The differences of the other days, by kind, id and delivery file."""
    contract = compared_days.promised(*((ROUNDED[2 * i : 2 * i + 2], {"fee": band}) for i, band in enumerate(BANDS)))
    question = compared_days.question(compared_days.by_kind, *MANY, contract=contract)
    with row_differences(question) as found:
        yield found


def counts(found: RowDifferences, *days: dt.date) -> Mapping[dt.date, RowCounts]:
    return {day: found.counts[day] for day in days if day in found.counts}


def comparisons(found: RowDifferences, *days: dt.date) -> tuple[DayComparison, ...]:
    return tuple(one for one in found.comparisons if one.day in days)


def compared(found: RowDifferences, day: dt.date) -> DayComparison:
    (one,) = comparisons(found, day)
    return one


def test_rows_are_counted_by_what_happens_to_them(few: RowDifferences) -> None:
    # The third day is not published: there is nothing to compare.
    assert counts(few, MIXED, SAME, UNPUBLISHED) == {
        MIXED: RowCounts(added=2, removed=1, changed=2, columns={"kind": 2, "amount": 1}),
        SAME: RowCounts(unchanged=4),
    }


def test_a_day_that_vanishes_is_removed_completely(few: RowDifferences) -> None:
    assert counts(few, UNPUBLISHED, VANISHED) == {VANISHED: RowCounts(removed=4)}


def test_no_rows_are_read_where_nothing_moved(compared_days: ComparedDays) -> None:
    loaded, nowhere = compared_days.by_file, "_shadow/nowhere"
    question = compared_days.question(loaded, SAME, UNPUBLISHED, contract=Contract(), folder=nowhere)
    with row_differences(question) as found:
        assert (found.counts, found.comparisons) == ({SAME: RowCounts(unchanged=4)}, ())
        assert found.sample({("change_rows", "amount"): (SAME,)}) == {}


def test_days_with_duplicate_keys_are_matched_row_by_row(few: RowDifferences) -> None:
    # The first day has duplicates where it is published, the second in the shadow, the third nowhere.
    days = (TWICE_PUBLISHED, TWICE_BUILT, ONCE)
    assert counts(few, *days) == {
        TWICE_PUBLISHED: RowCounts(removed=1, unchanged=4),
        TWICE_BUILT: RowCounts(added=2, unchanged=3),
        ONCE: RowCounts(unchanged=4),
    }
    moved = {one.day: one.moved["amount"] for one in comparisons(few, *days)}
    assert moved == {TWICE_PUBLISHED: 10, TWICE_BUILT: 40}


def test_columns_that_were_added_or_retyped_are_not_compared_and_tolerances_are_kept(kit: Kit) -> None:
    columns = {
        "day": {"type": "date"},
        "id": {"type": "integer"},
        "kind": {"type": "string"},
        "amount": {"type": "double", "tolerance": 0.5},
        "fee": {"type": "decimal(12,2)"},
    }
    loaded = kit.dataset(columns=columns)
    for day in (D1, D2):
        kit.deliver(day, *(f"{day},{row}" for row in ROWS))
    kit.stage(loaded, D1, D2)
    kit.put_shadow(loaded, kit.staged(loaded).select("day", "id", "kind", "amount", "fee"))
    shadow = kit.shadow(loaded).drop("kind").withColumn("fee", F.expr("cast(fee AS decimal(20,2)) + 1"))
    kit.publish(loaded, shadow.withColumn("amount", F.expr(f"amount + IF(day = '{D1}', 0.5, 0.75)")))
    question = Question(kit.frames(loaded, D1, D2), ATTEMPT, kit.measure(loaded, D1, D2), Contract())
    with row_differences(question) as found:
        assert found.counts == {D1: RowCounts(unchanged=4), D2: RowCounts(changed=4, columns={"amount": 4})}
    kit.publish(loaded, shadow.withColumn("id", F.col("id").cast("long")))
    question = Question(kit.frames(loaded, D1, D2), ATTEMPT, kit.measure(loaded, D1, D2), Contract())
    with row_differences(question) as found:
        assert (found.counts, found.comparisons) == ({}, ())


def test_rows_beyond_a_promise_are_counted_on_its_days_and_shown_first(few: RowDifferences) -> None:
    columns = {"amount": 3, "kind": 1}
    assert counts(few, PROMISED, UNPROMISED) == {
        PROMISED: RowCounts(changed=4, columns=columns, beyond={"amount": 2, "kind": 1}),
        UNPROMISED: RowCounts(changed=4, columns=columns),
    }
    wanted = {
        ("change_rows", "amount"): (PROMISED,),
        ("change_rows", "kind"): (PROMISED,),
        ("change_columns", "amount"): (UNPROMISED,),
    }
    samples = few.sample(wanted)
    assert samples["change_rows", PROMISED] == (
        {"day": str(PROMISED), "id": 4, "column": "amount", "old": None, "new": "40.0"},
        {"day": str(PROMISED), "id": 2, "column": "amount", "old": "18.181818", "new": "20.0"},
        {"day": str(PROMISED), "id": 1, "column": "kind", "old": "z", "new": "a"},
    )
    assert [row["id"] for row in samples["change_columns", UNPROMISED]] == [4, 3, 2]
    assert set(samples) == {("change_rows", PROMISED), ("change_columns", UNPROMISED)}


def test_a_band_of_rows_allows_for_the_rounding_of_amounts_but_not_for_more(many: RowDifferences) -> None:
    for i, (band, beyond) in enumerate(BANDS.items()):
        less, off = ROUNDED[2 * i : 2 * i + 2]
        assert many.counts[less].columns["fee"] == sum(n != cents for n, cents in LESS.items())
        assert (many.counts[less].beyond, many.counts[off].beyond) == ({}, {"fee": beyond}), band


def test_errors_that_cancel_out_in_a_sum_are_caught_row_by_row(
    compared_days: ComparedDays, few: RowDifferences
) -> None:
    sides = compared_days.measured[CANCELLING]
    measured = DayMeasurement(CANCELLING, sides.shadow, sides.published, sides.staging, SourceState())
    verdicts = judge(compared_days.by_file.dataset, measured, Contract(), Compared(few.counts[CANCELLING]))
    failed = {v.check: v for v in verdicts if v.refuses}
    assert "change_amount" not in failed
    assert failed["change_rows"].found == "amount changed in 2 of 4 rows that both sides have"


def test_the_largest_changes_and_shares_of_a_day_name_rows_and_values(few: RowDifferences) -> None:
    one = compared(few, LARGEST)
    assert (one.dataset, one.day, one.attempt, one.rows, one.of) == ("trips", LARGEST, ATTEMPT, 4, 5)
    assert one.moved == {"amount": 22, "fee": Decimal("1.50"), "id": 14}
    amounts = [change for change in one.largest if change.measure == "amount"]
    assert amounts == [
        RowChange("amount", LARGEST, {"id": 9}, Decimal("10.0"), None),
        RowChange("amount", LARGEST, {"id": 5}, None, Decimal("5.0")),
        RowChange("amount", LARGEST, {"id": 4}, Decimal("36.0"), Decimal("40.0")),
        RowChange("amount", LARGEST, {"id": 3}, Decimal("27.0"), Decimal("30.0")),
    ]
    assert [(c.key["id"], c.delta) for c in one.largest if c.measure == "fee"] == [(9, -1), (5, Decimal("0.5"))]
    shares = {(s.dimension, s.value): s for s in one.shares}
    # `kind` is a measure of its own here, so only the delivery file distinguishes rows.
    assert {dimension for dimension, _ in shares} == {DELIVERY_FILE}
    (second, none) = sorted(shares.values(), key=lambda s: -s.rows)
    assert second.value.endswith(f"{LARGEST}_second.csv")
    assert second == Share(DELIVERY_FILE, second.value, 3, 3, {"amount": 12, "fee": Decimal("0.50"), "id": 5})
    assert (none.value, none.rows, none.of, none.moved["amount"]) == ("(not delivered)", 1, 1, 10)


def test_values_of_dimensions_are_distinguished_and_null_is_a_value(many: RowDifferences) -> None:
    one = compared(many, NULLS)
    kinds = [(s.value, s.rows, s.of, s.moved["amount"]) for s in one.shares if s.dimension == "kind"]
    # If a row changed its value, the new one counts; the published side has no such row.
    assert kinds == [("(null)", 1, 1, 1), ("b", 1, 1, 1)]
    assert [s.value for s in one.shares if s.dimension == "id"] == ["3", "4"]


def test_shares_of_values_count_the_rows_of_the_side_that_has_more(many: RowDifferences) -> None:
    # Kind a loses two rows and keeps two unchanged, b is new, and c is only on the published side.
    kinds = {s.value: (s.rows, s.of) for s in compared(many, UNEVEN).shares if s.dimension == "kind"}
    assert kinds == {"a": (2, 4), "b": (1, 1)}


def test_shares_keep_every_value_that_makes_up_a_percent_of_a_days_move(many: RowDifferences) -> None:
    one = compared(many, WRONG)
    # The last one moves the amount by less than a percent, but nothing else moves the fee.
    assert {s.value for s in one.shares if s.dimension == "kind"} == {f"wrong{i:02}" for i in range(20)} | {"slight"}
    (amount,) = [found for found in attribute([one]) if found.measure == "amount"]
    cause = next(c for c in amount.causes if c.dimension == "kind")
    assert (len(cause.values), round(cause.explained, 2)) == (19, 0.95)


def test_shares_of_many_values_that_move_next_to_nothing_each_are_not_kept(many: RowDifferences) -> None:
    assert [s.dimension for s in compared(many, SCATTERED).shares] == [DELIVERY_FILE]


def test_shares_of_delivery_files_go_by_the_newest_delivery_and_not_by_the_name(few: RowDifferences) -> None:
    (share,) = compared(few, TWO_FILES).shares
    assert share.value.endswith(f"{TWO_FILES}_a.csv")
