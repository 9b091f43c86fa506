"""Rows of an extract as Parquet: every value comes back as it was, or is refused with its row and column."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill_assets.core.errors import SourceError
from backfill_assets.dataset.sources import Source
from backfill_assets.extracts.rows import BATCH, have_same_rows, write_rows
from backfill_assets.pipeline.formats import require_columns
from backfill_assets.storage.disk import OnDisk
from backfill_assets_tests.harness.examples import examples
from backfill_assets_tests.unit.hostile.watch import observed, showable

ZONES = st.timezones()
NAIVE = dt.datetime.fromisoformat("2024-01-01")
NEXT_TO_FIRST, NEXT_TO_LAST = dt.datetime.fromisoformat("0002-01-01"), dt.datetime.fromisoformat("9998-01-01")
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "boolean": st.booleans(),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "date": st.dates(),
    "timestamp": st.datetimes(NEXT_TO_FIRST, NEXT_TO_LAST, timezones=ZONES),
    "decimal(9,2)": st.decimals(-9_999_999, 9_999_999, places=2),
    "decimal(38,10)": st.decimals(-(10**27), 10**27, places=10),
}
COLUMNS = {f"c{number}": kind for number, kind in enumerate(VALUES)}
ROWS = st.lists(st.tuples(*(st.none() | values for values in VALUES.values())), max_size=30)
ANY = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.decimals() | st.text() | st.binary() | st.dates()
    | st.datetimes(timezones=st.none() | ZONES) | st.times() | st.timedeltas() | st.uuids() | st.lists(st.integers())
)  # fmt: skip
QUIET = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def source(columns: Mapping[str, object], **more: object) -> Source:
    said = {"format": "parquet", "path": "x/{day}.parquet", "columns": columns, **more}
    return Source.model_validate(said)


def read(file: Path) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in pq.read_table(file).to_pylist()]


def in_utc(value: object) -> object:
    """The same instant; Python finds a local time that a clock change skips unequal to it."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value


@QUIET
@given(ROWS)
def test_all_types_and_null_come_back_exactly_and_fit_the_declared_columns(
    tmp_path: Path, rows: list[tuple[Any, ...]]
) -> None:
    declared, file = source(COLUMNS), tmp_path / "rows.parquet"
    write_rows(file, declared, list(COLUMNS), [rows] if rows else [])
    require_columns(OnDisk(file), "rows.parquet", declared)
    assert read(file) == [tuple(map(in_utc, row)) for row in rows]
    # As an instant in UTC: equal times of two zones can differ in what they are.
    assert all(at is None or at.utcoffset() == dt.timedelta(0) for *_, at, _, _ in read(file))
    again = tmp_path / "again.parquet"
    write_rows(again, declared, list(COLUMNS), [rows] if rows else [])
    assert again.read_bytes() == file.read_bytes()
    assert have_same_rows(file, again)


@settings(QUIET, max_examples=examples(600))
@given(st.sampled_from(list(VALUES)), ANY)
def test_any_value_comes_back_or_is_refused_with_its_row_and_column(tmp_path: Path, kind: str, value: object) -> None:
    file = tmp_path / "rows.parquet"
    try:
        write_rows(file, source({"c": kind}), ["c"], [[(value,)]])
    except SourceError as error:
        assert "column c: " in str(error)  # noqa: PT017 - most values are refused, and none needs to be
        return
    ((found,),) = read(file)
    if isinstance(value, (int, float)) and kind == "float":
        value = struct.unpack("f", struct.pack("f", value))[0]
    assert found == in_utc(value) or (isinstance(value, float) and math.isnan(value))
    assert not isinstance(value, bool) or kind == "boolean"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", 1), ("string", b"abc"), ("string", "\ud800"), ("boolean", 1), ("integer", True), ("integer", 1.0),
        ("integer", 2**31), ("long", 2**63), ("long", Decimal(1)), ("float", 0.1234567891234), ("float", 1e300),
        ("double", 2**53 + 1), ("double", 10**400), ("double", Decimal(1)), ("date", NAIVE),
        ("date", "2024-01-01"), ("timestamp", NAIVE), ("timestamp", dt.date(2024, 1, 1)),
        ("decimal(9,2)", Decimal("1.005")), ("decimal(9,2)", Decimal("12345678.00")), ("decimal(9,2)", Decimal("NaN")),
        ("decimal(9,2)", Decimal("Infinity")), ("decimal(9,2)", 1.5), ("decimal(9,2)", True),
    ],
)  # fmt: skip
def test_a_value_that_would_lose_something_is_refused(tmp_path: Path, kind: str, value: object) -> None:
    with pytest.raises(SourceError, match="column c: "):
        write_rows(tmp_path / "rows.parquet", source({"c": kind}), ["c"], [[(value,)]])


class Nowhere(dt.tzinfo):
    """A time zone without a place: its times are as naive as those without any."""

    def utcoffset(self, _: dt.datetime | None) -> None:
        return None


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("decimal(9,2)", 10**5000, "a very large int is no decimal(9,2) (it has more digits)"),
        ("double", -(10**5000), "a very large int is no double"),
        ("string", 10**5000, "a very large int is no string (it is a int)"),
        ("long", 10**5000, "a value is no long"),
        ("decimal(9,2)", Decimal("1E+999999"), "1E+999999') is no decimal(9,2)"),
        ("decimal(9,2)", Decimal("1E-999999"), "1E-999999') is no decimal(9,2)"),
        ("decimal(9,2)", Decimal("sNaN"), "it is not finite"),
        ("long", "9" * 100_000, "\u2026 is no long"),
        ("long", "\x1b]0;x\x07\u202e\ud800", r"'\x1b]0;x\x07\u202e\ud800' is no long"),
        ("timestamp", NAIVE.replace(tzinfo=Nowhere()), "it has no time zone"),
        ("timestamp", dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=12))), "date value out of range"),
        ("timestamp", dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=14))), "date value out of range"),
    ],
    ids=range(12),
)  # fmt: skip
def test_a_huge_or_odd_value_is_refused_with_its_column_in_a_short_text(
    tmp_path: Path, kind: str, value: object, shown: str
) -> None:
    with pytest.raises(SourceError, match="column c: ") as refused:
        write_rows(tmp_path / "rows.parquet", source({"c": kind}), ["c"], [[(value,)]])
    assert shown in observed(refused.value)
    showable(str(refused.value))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("float", 0.1), ("float", 3.4028235e38), ("float", math.inf), ("double", 5), ("decimal(9,2)", Decimal("1.500")),
        ("decimal(9,2)", 7), ("decimal(9,2)", Decimal("1E+3")),
    ],
)  # fmt: skip
def test_a_value_that_only_looks_different_is_taken(tmp_path: Path, kind: str, value: object) -> None:
    write_rows(tmp_path / "rows.parquet", source({"c": kind}), ["c"], [[(value,)]])
    ((found,),) = read(tmp_path / "rows.parquet")
    assert found == (struct.unpack("f", struct.pack("f", value))[0] if kind == "float" else value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["id", "Invoice No"], "it is missing at; expected exactly id, Invoice No, at, note"),
        (["id", "invoice_no", "at"], "it is missing Invoice No"),
        (["id", "invoice no", "at", "price"], "it has undeclared columns, price"),
        (["id", "INVOICE NO", "at", "At"], "it names twice at"),
    ],
)
def test_columns_that_are_not_those_declared_are_refused_by_name(
    tmp_path: Path, names: list[str], message: str
) -> None:
    columns = {"id": "long", "no": {"from": "Invoice No", "type": "string"}, "at": "date", "note": "string"}
    with pytest.raises(SourceError, match=message):
        write_rows(tmp_path / "rows.parquet", source(columns, optional=["note"]), names, [])


def test_columns_are_found_in_any_order_and_case_and_optional_ones_may_be_missing(tmp_path: Path) -> None:
    columns = {"id": "long", "no": {"from": "Invoice No", "type": "string"}, "note": "string"}
    declared, file = source(columns, optional=["note"]), tmp_path / "rows.parquet"
    write_rows(file, declared, ["INVOICE NO", "Id"], [[("a", 1)]])
    require_columns(OnDisk(file), "rows.parquet", declared)
    assert pq.read_table(file).to_pylist() == [{"id": 1, "invoice no": "a"}]


def test_files_differ_if_one_row_of_a_later_batch_differs_or_moves(tmp_path: Path) -> None:
    numbers = list(range(BATCH + 5))

    def written(name: str, values: list[int]) -> Path:
        cut = [[(value,) for value in values[n : n + BATCH]] for n in range(0, len(values), BATCH)]
        write_rows(tmp_path / name, source({"c": "long"}), ["c"], cut)
        return tmp_path / name

    one = written("one", numbers)
    assert have_same_rows(one, written("same", numbers))
    assert not have_same_rows(one, written("more", [*numbers, 0]))
    assert not have_same_rows(one, written("other", [*numbers[:-1], 0]))
    assert not have_same_rows(one, written("moved", [*numbers[:-2], numbers[-1], numbers[-2]]))
    (tmp_path / "torn").write_bytes(one.read_bytes()[:-9])
    assert not have_same_rows(tmp_path / "torn", one)
