from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal

from hypothesis import assume, given
from hypothesis import strategies as st

from backfill_assets.core.measured import DayComparison, Share
from backfill_assets.report.causes import Attribution, attribute

DIMENSIONS = ("store", "department", "brand", "category", "delivery file")
DAY = dt.date(2017, 3, 1)

Receipt = Mapping[str, str]
Change = Callable[[Receipt, float], float]


def receipts(seed: int, days: int, rows: int) -> list[tuple[dt.date, Receipt, float]]:
    """Rows of a shop with some skew: a few stores and departments have most of them, a category is of one department."""
    chance = random.Random(seed)  # noqa: S311 - made-up data
    made = []
    for i in range(days * rows):
        category = min(int(chance.paretovariate(0.7)), 60)
        store = min(int(chance.paretovariate(0.9)), 30)
        day = DAY + dt.timedelta(i % days)
        values = {
            "store": f"s{store}",
            "department": f"d{category % 4}",
            "brand": chance.choice(("national", "private")),
            "category": f"c{category}",
            "delivery file": f"{day}-{chance.randrange(4)}.csv",
            "country": "here",
        }
        made.append((day, values, round(chance.lognormvariate(1, 0.6), 2)))
    return made


def compared(made: Iterable[tuple[dt.date, Receipt, float]], change: Change) -> list[DayComparison]:
    """What a comparison of rows would find if each amount were changed like this."""
    by_day: dict[dt.date, list[tuple[Receipt, Decimal]]] = {}
    for day, values, amount in made:
        delta = Decimal(str(round(change({**values, "day": str(day)}, amount), 4)))
        by_day.setdefault(day, []).append((values, delta))
    return [comparison(day, rows) for day, rows in by_day.items() if any(delta for _, delta in rows)]


def comparison(day: dt.date, rows: Sequence[tuple[Receipt, Decimal]], measure: str = "revenue") -> DayComparison:
    found: dict[tuple[str, str], list[Decimal]] = {}
    for values, delta in rows:
        for one in values.items():
            found.setdefault(one, []).append(delta)
    shares = tuple(
        Share(
            dimension, value, sum(map(bool, deltas)), len(deltas),
            {measure: sum(map(abs, deltas), Decimal(0))},
        )
        for (dimension, value), deltas in found.items()
        if any(deltas)
    )  # fmt: skip
    moved = sum((abs(delta) for _, delta in rows), Decimal(0))
    return DayComparison(
        "sales", day, 1, sum(bool(delta) for _, delta in rows), len(rows), {measure: moved}, shares=shares
    )


def the_one(found: tuple[Attribution, ...]) -> Attribution:
    (attribution,) = found
    return attribution


@given(seed=st.integers(0, 10_000), of=st.sampled_from(DIMENSIONS), kind=st.sampled_from(("tax", "sign", "double")))
def test_the_planted_cause_comes_first_among_six_dimensions(seed: int, of: str, kind: str) -> None:
    made = receipts(seed, days=3, rows=60)
    culprit = random.Random(seed).choice(made)[1][of]  # noqa: S311 - made-up data

    def change(values: Receipt, amount: float) -> float:
        return {"tax": -0.1, "sign": -2.0, "double": 1.0}[kind] * amount if values[of] == culprit else 0.0

    assume(
        sum(values[of] == culprit for _, values, _ in made) > 10
    )  # by chance, fewer rows have more than that in common
    first = the_one(attribute(compared(made, change))).causes[0]
    assert (first.dimension, first.values, first.explained) == (of, (culprit,), 1)


def test_a_cause_is_found_behind_a_correction_of_every_row() -> None:
    made = receipts(1, days=5, rows=400)

    def change(values: Receipt, amount: float) -> float:
        return amount * (-2 if values["store"] == "s3" else -0.01)

    found = the_one(attribute(compared(made, change)))
    assert (found.causes[0].dimension, found.causes[0].values) == ("store", ("s3",))
    assert 0.85 < found.causes[0].explained < 1
    assert found.unexplained == 1 - found.causes[0].explained


def test_one_store_comes_before_the_baskets_that_were_bought_in_it() -> None:
    rows = [
        ({"basket": f"b{i}", "store": "big" if i < 40 else "small"}, Decimal(i % 7 + 1 if i < 40 else 0))
        for i in range(100)
    ]
    assert the_one(attribute([comparison(DAY, rows)])).causes[0].dimension == "store"


def test_errors_that_cancel_out_in_the_sum_are_attributed() -> None:
    rows = [({"store": f"s{i % 10}", "till": str(i % 3)}, Decimal(0)) for i in range(98)]
    rows += [({"store": "s7", "till": "1"}, Decimal(5)), ({"store": "s7", "till": "2"}, Decimal(-5))]
    found = the_one(attribute([comparison(DAY, rows)]))
    assert (found.moved, found.causes[0].values) == (10, ("s7",))


def test_a_dimension_that_every_row_has_in_common_comes_last() -> None:
    made = receipts(2, days=3, rows=100)
    for change in (lambda v, a: a if v["store"] == "s1" else 0, lambda _, a: a * -0.01):
        causes = the_one(attribute(compared(made, change))).causes
        assert (causes[-1].dimension, causes[-1].explained, causes[-1].of_rows) == ("country", 1, 1)


def test_the_sentence_names_measure_dimension_values_and_shares() -> None:
    def said(*rows: tuple[str, str]) -> str:
        return str(the_one(attribute([comparison(DAY, [({"department": of}, Decimal(moved)) for of, moved in rows])])))

    rest = [("DAIRY", "0")] * 18
    assert said(("GROCERY", "97"), ("DAIRY", "3"), *rest) == (
        "97 % of the revenue change is in department GROCERY, which has 5 % of the rows"
    )
    assert said(("A", "9"), ("B", "8"), *rest) == (
        "100 % of the revenue change is in department A and B, which have 10 % of the rows"
    )
    assert said(*((name, "9") for name in "ABCDE"), *rest * 3) == (
        "100 % of the revenue change is in department A, B, C and 2 more, which have 8 % of the rows"
    )
    assert said(("A", "9995"), ("DAIRY", "5"), *rest * 30).startswith("over 99 % of")
    assert said(("A", "9"), *rest * 30).endswith("has under 1 % of the rows")
    assert said(("A", "1"), ("B", "1")) == ("the revenue change is spread over the rows; no dimension explains it")


def test_measures_and_datasets_are_distinguished_and_unmoved_ones_are_left_out() -> None:
    rows = [({"store": "s1"}, Decimal(1)), ({"store": "s2"}, Decimal(0))]
    still = comparison(DAY, [({"store": "s1"}, Decimal(0))], "tax")
    other = DayComparison("costs", DAY, 1, 1, 2, {"cost": Decimal(3)})
    found = attribute([comparison(DAY, rows), comparison(DAY, rows, "items"), still, other])
    assert [(one.dataset, one.measure) for one in found] == [
        ("costs", "cost"),
        ("sales", "items"),
        ("sales", "revenue"),
    ]
    assert (found[0].causes, found[0].unexplained) == ((), 1)
    assert "no dimension" in str(found[0])
    assert attribute([]) == ()


FIGURES = st.decimals(allow_nan=True, allow_infinity=True) | st.decimals(0, 1000, places=2)
SHARES = st.builds(
    Share,
    st.sampled_from(DIMENSIONS),
    st.sampled_from("abcd"),
    st.integers(0, 50),
    st.integers(0, 50),
    st.fixed_dictionaries({"revenue": FIGURES}),
)
COMPARISONS = st.builds(
    DayComparison,
    st.just("sales"),
    st.dates(DAY, DAY + dt.timedelta(3)),
    st.just(1),
    st.integers(0, 50),
    st.integers(0, 50),
    st.fixed_dictionaries({"revenue": FIGURES}),
    st.just(()),
    st.lists(SHARES, max_size=6).map(tuple),
)


@given(st.lists(COMPARISONS, max_size=4, unique_by=lambda c: c.day), st.randoms(use_true_random=False))
def test_shares_lie_between_0_and_1_and_the_order_of_the_days_does_not_matter(
    comparisons: list[DayComparison], chance: random.Random
) -> None:
    found = attribute(comparisons)
    for one in found:
        assert one.moved.is_finite()
        assert 0 <= one.unexplained <= 1
        assert all(0 <= cause.explained <= 1 and 0 <= cause.of_rows <= 1 for cause in one.causes)
        assert str(one)
    chance.shuffle(comparisons)
    assert attribute(comparisons) == found
