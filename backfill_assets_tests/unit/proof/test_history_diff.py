"""The comment of a pull request: exactly the figures, rows and columns that a change of models would change."""

from __future__ import annotations

from decimal import Decimal

from backfill_assets.core.measured import RowChange, RowCounts, SchemaChange
from backfill_assets.proof.history_diff import DatasetDiff, HistoryDiff, as_markdown
from backfill_assets.proof.recompute import DayDifference
from backfill_assets_tests.harness.tables import day

SAME = DayDifference(
    day(0),
    {"row_count": Decimal(3), "tax": Decimal("1.50")},
    {"row_count": Decimal(3), "tax": Decimal("1.5")},
    RowCounts(unchanged=3),
)
MOVED = DayDifference(
    day(1),
    {"row_count": Decimal(1200), "tax": Decimal("2000.00"), "p50_tax": None},
    {"row_count": Decimal(1200), "tax": Decimal("1000.00"), "p50_tax": None},
    RowCounts(0, 0, 2, 1198, {"tax": 2}),
)


def change(number: int, measure: str = "tax", key: str = "A") -> RowChange:
    return RowChange(measure, day(1), {"shop": key, "id": number}, Decimal(2 * number), Decimal(number))


def markdown(*found: DatasetDiff, same: tuple[str, ...] = ()) -> str:
    return as_markdown(HistoryDiff("my-branch", "0123456789abcdef", found, same))


def test_a_change_that_changes_nothing_says_so_in_one_line() -> None:
    text = markdown(DatasetDiff("sales", (SAME,)), same=("orders", "stocks"))
    assert "**Nothing changes.**" in text
    assert "### `sales`: 1 day, unchanged" in text
    assert "Same code as the published days: `orders` and `stocks`." in text
    assert "|" not in text


def test_metrics_rows_and_columns_that_change_are_shown_in_tables() -> None:
    found = DatasetDiff("sales", (SAME, MOVED), (change(1), change(500)), followers=("totals",))
    lines = markdown(found).splitlines()
    assert "### `sales`: 1 of 2 days changed" in lines
    assert "Changed columns: `tax` (2 rows)." in lines
    assert "| 2026-01-02 | 0 | 0 | 2 | 1,198 |" in lines
    assert "| `tax` | 2026-01-02 | 2,000 | 1,000 | -1,000 | -50.00 |" in lines
    assert "| `tax` | 2026-01-01 | 1.5 | 1.5 | 0 | - |" in lines
    assert "Unchanged on all days: `row_count`, `p50_tax`." in lines
    rows = [line for line in lines if "shop A" in line]
    assert rows == [
        "| 2026-01-02 | shop A, id 500 | 1,000 | 500 | -500 |",
        "| 2026-01-02 | shop A, id 1 | 2 | 1 | -1 |",
    ]
    assert "Datasets built from it, not computed here: `totals`." in lines
    assert "Nothing changes" not in markdown(found)


def test_text_in_rows_and_names_does_not_reach_the_terminal_as_a_command() -> None:
    rows = DatasetDiff("sales", (MOVED,), (change(1, key="\x1b[2J\u202eA"),))
    text = as_markdown(
        HistoryDiff("my\x9bbranch", "0" * 40, (rows, DatasetDiff("orders", problem="no \x1b]0;x\n\u202ey")))
    )
    assert "shop &#92;x1b&#91;2J&#92;u202eA, id 1" in text
    assert "no \\x1b]0;x\n\\u202ey\n```" in text
    assert all(character.isprintable() or character == "\n" for character in text)


def test_only_the_ten_rows_that_move_a_measure_most_are_shown() -> None:
    text = markdown(DatasetDiff("sales", (MOVED,), tuple(change(n) for n in range(1, 31))))
    assert text.count("shop A") == 10
    assert "id 30 |" in text
    assert "id 20 |" not in text


def test_columns_that_come_go_or_change_their_type_are_named_even_if_no_row_differs() -> None:
    schema = SchemaChange({"vat": "double"}, {"old": "string"}, {"id": "integer → long"})
    text = markdown(DatasetDiff("sales", (SAME,), schema=schema))
    assert "New columns: `vat` (double)." in text
    assert "Columns gone: `old` (string)." in text
    assert "Columns of another type: `id` (integer → long)." in text
    assert "Nothing changes" not in text


def test_a_model_that_fails_is_reported_with_its_message() -> None:
    text = markdown(DatasetDiff("sales", problem="fact.sql: line 3: no such column ```x```"))
    assert "### `sales`: could not be computed" in text
    assert text.count("```") == 2
    assert "Nothing changes" not in text


def test_values_of_rows_cannot_break_out_of_the_table_or_mention_a_user() -> None:
    text = markdown(DatasetDiff("sales", (MOVED,), (change(1, key="a|b\n@anna <img> `x`"),)))
    (row,) = [line for line in text.splitlines() if "shop" in line]
    assert "a\\|b @\u200banna &lt;img> 'x'" in row


def test_figures_that_are_no_numbers_are_shown_and_compared_as_they_are() -> None:
    odd = {"tax": Decimal("NaN"), "net": None, "zero": Decimal(0)}
    same = DayDifference(day(0), odd, odd, None)
    assert "Nothing changes" in markdown(DatasetDiff("sales", (same,)))
    other = DayDifference(day(0), odd, {"tax": Decimal("NaN"), "net": Decimal("0.1"), "zero": Decimal("1e-6")}, None)
    lines = markdown(DatasetDiff("sales", (other,))).splitlines()
    assert "| `net` | 2026-01-01 | - | 0.1 | - | - |" in lines
    assert "| `zero` | 2026-01-01 | 0 | 0.000001 | +0.000001 | - |" in lines


def test_a_comment_is_never_longer_than_github_takes() -> None:
    rows = tuple(change(n, f"m{m}", key="x" * 200) for m in range(60) for n in range(1, 11))
    text = markdown(DatasetDiff("sales", (MOVED,), rows))
    assert len(text) < 65_536
    assert text.endswith("name fewer days or datasets.\n")


def test_links_and_images_in_values_stay_text_also_after_a_backslash() -> None:
    text = markdown(DatasetDiff("sales", (MOVED,), (change(1, key="![a](http://x.org) \\\\|"),)))
    (row,) = [line for line in text.splitlines() if "shop" in line]
    assert "shop &#33;&#91;a&#93;(http://x.org) &#92;&#92;\\|" in row


def test_changed_datasets_without_one_of_the_days_are_not_reported_as_no_change() -> None:
    days = {"sales": (day(9),), "orders": (day(8),)}
    text = as_markdown(HistoryDiff("b", "0" * 16, (DatasetDiff("orders", (SAME,)),), not_compared=days))
    assert "Nothing changes" not in text
    assert "`sales` changed, but was not compared: nothing of it is published on 2026-01-10." in text
    assert "`orders` was compared without some days: nothing of it is published on 2026-01-09." in text
