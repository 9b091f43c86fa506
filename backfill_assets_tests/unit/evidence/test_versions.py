"""Which days depend on which rows of a reference with validity, by their fingerprints."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.days import day_range
from backfill_assets.core.errors import SourceError
from backfill_assets.dataset.references import Reference
from backfill_assets.evidence.versions import fingerprints_of_days
from backfill_assets.storage.disk import OnDisk

FIRST = dt.date(2024, 1, 1)
DAYS = day_range(FIRST, FIRST + dt.timedelta(9))
Row = tuple[str, str, int, int | None]
"""A product, its cost, and the numbers of the first day and of the day after the last one."""
COLUMNS = {"product": "string", "cost": "decimal(9,2)", "since": "date", "until": "date"}


def reference(kind: str = "csv", **more: object) -> Reference:
    said = {"path": f"costs.{kind}", "format": kind, "columns": COLUMNS, "valid": ["since", "until"], **more}
    return Reference.model_validate(said)


def day(number: int | None) -> dt.date | None:
    return None if number is None else FIRST + dt.timedelta(number)


def written(folder: Path, rows: Sequence[Row], kind: str = "csv") -> Path:
    """A file with these rows."""
    file = folder / f"costs.{kind}"
    named = [dict(zip(COLUMNS, (p, c, day(since), day(until)), strict=True)) for p, c, since, until in rows]
    if kind == "csv":
        lines = [",".join("" if cell is None else str(cell) for cell in row.values()) for row in named]
        file.write_text("\n".join([",".join(COLUMNS), *lines, ""]))
    elif kind == "jsonl":
        file.write_text("".join(json.dumps(row, default=str) + "\n" for row in named))
    else:
        types = [pa.string(), pa.string(), pa.date32(), pa.date32()]
        schema = pa.schema(list(zip(COLUMNS, types, strict=True)))
        pq.write_table(pa.Table.from_pylist(named, schema), file)
    return file


def prints(file: Path, of: Reference | None = None) -> Mapping[dt.date, str]:
    return fingerprints_of_days(of or reference(), OnDisk(file), file.name, DAYS)


def moved(before: Mapping[dt.date, str], after: Mapping[dt.date, str]) -> list[int]:
    """The numbers of the days that depend on the difference."""
    return [number for number, one in enumerate(DAYS) if before[one] != after[one]]


SOME: list[Row] = [("tea", "1.00", 0, 4), ("tea", "1.50", 4, None), ("milk", "0.80", -9, None)]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_changed_cost_moves_exactly_the_days_on_which_it_is_valid(tmp_path: Path, kind: str) -> None:
    of = reference(kind)
    before = prints(written(tmp_path, SOME, kind), of)
    # A version ends and another one begins: the days before see the same rows.
    ended = [*SOME[:1], ("tea", "1.50", 4, 7), ("tea", "1.60", 7, None), *SOME[2:]]
    assert moved(before, prints(written(tmp_path, ended, kind), of)) == [7, 8, 9]
    corrected = [("tea", "1.10", 0, 4), *SOME[1:]]
    assert moved(before, prints(written(tmp_path, corrected, kind), of)) == [0, 1, 2, 3]
    assert moved(before, prints(written(tmp_path, SOME[:-1], kind), of)) == list(range(10))
    assert moved(before, prints(written(tmp_path, [*SOME, SOME[0]], kind), of)) == [0, 1, 2, 3]
    assert moved(before, prints(written(tmp_path, [*SOME, ("old", "9", -9, 0)], kind), of)) == []
    assert moved(before, prints(written(tmp_path, SOME[::-1], kind), of)) == []


rows = st.lists(
    st.tuples(
        st.sampled_from(["tea", "milk"]), st.sampled_from(["1.00", "2.00"]), st.integers(-2, 10),
        st.none() | st.integers(-2, 12),
    ),
    max_size=6,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@given(rows, rows)
def test_two_files_agree_on_a_day_if_and_only_if_the_rows_valid_on_it_do(
    tmp_path_factory: pytest.TempPathFactory, kind: str, one: list[Row], other: list[Row]
) -> None:
    def valid(number: int, found: list[Row]) -> list[tuple[str, str]]:
        return sorted((p, c) for p, c, since, until in found if since <= number and (until is None or number < until))

    folder, of = tmp_path_factory.mktemp("versions"), reference(kind)
    before, after = (prints(written(folder, found, kind), of) for found in (one, other))
    assert moved(before, after) == [n for n in range(10) if valid(n, one) != valid(n, other)]


@pytest.mark.parametrize(
    "line",
    [
        "tea,1.00,soon,", "tea,1.00,2024-01-05", "tea,1.00,,", 'te"a,1.00,2024-01-05,', "tea,1.00,2024-02-30,",
        "\udcff,1,2024-01-05,",
    ],
)  # fmt: skip
def test_every_day_depends_on_a_line_whose_days_are_not_certain(tmp_path: Path, line: str) -> None:
    before = prints(file := written(tmp_path, SOME))
    file.write_bytes(file.read_bytes() + f"{line}\n".encode(errors="surrogateescape"))
    assert moved(before, prints(file)) == list(range(10))


def test_a_quoted_null_may_be_null_or_a_date_and_counts_for_all_days(tmp_path: Path) -> None:
    file, of = tmp_path / "costs.csv", reference(csv={"null_value": "1900-01-01"})
    head = "product,cost,since,until\n"
    file.write_text(f"{head}tea,1.00,2024-01-05,1900-01-01\n")
    before = prints(file, of)
    file.write_text(f"{head}tea,2.00,2024-01-05,1900-01-01\n")
    assert moved(before, prints(file, of)) == [4, 5, 6, 7, 8, 9]
    file.write_text(f'{head}tea,1.00,2024-01-05,"1900-01-01"\n')
    before = prints(file, of)
    file.write_text(f'{head}tea,2.00,2024-01-05,"1900-01-01"\n')
    assert moved(before, prints(file, of)) == list(range(10))


def test_quotes_separators_and_line_ends_hide_no_day(tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"

    def of(text: str) -> Mapping[dt.date, str]:
        file.write_text(text, newline="")
        return prints(file)

    head = "product,cost,since,until\n"
    before = of(head + '"tea, ""green""",1.00,2024-01-05,\n')
    assert moved(before, of(head + '"tea, ""black""",1.00,2024-01-05,\n')) == [4, 5, 6, 7, 8, 9]
    assert moved(before, of(head + '"tea, ""green""",1.00,"2024-01-05",\n')) == []
    assert moved(before, of(head + '"tea, ""green""",1.00,2024-01-05T00:00:00,\n')) == []
    assert moved(before, of(head.replace("\n", "\r\n") + '\r\n"tea, ""green""",1.00,2024-01-05,\r\n\r\n')) == []
    assert moved(before, of("cost,product,since,until\n" + '"tea, ""green""",1.00,2024-01-05,\n')) == list(range(10))


def test_numbers_and_texts_of_json_are_different_and_keep_their_digits(tmp_path: Path) -> None:
    file = tmp_path / "costs.jsonl"

    def of(cost: str) -> Mapping[dt.date, str]:
        file.write_text(f'{{"product": "tea", "cost": {cost}, "since": "2024-01-03", "until": null}}\n')
        return prints(file, reference("jsonl"))

    days = list(range(2, 10))
    for one, other in (
        ("1.10", "1.1"), ("1", '"1"'), ('{"a": 1}', '[["a", 1]]'), ("null", '"None"'), ("1", '"number 1"'),
        ("[1]", '["1"]'),
    ):  # fmt: skip
        assert moved(of(one), of(other)) == days, (one, other)


def test_other_formats_of_text_are_read_as_they_are_declared(tmp_path: Path) -> None:
    bare = {"csv": {"header": False, "delimiter": "||", "null_value": "-"}, "path": "costs.csv.gz"}
    file = tmp_path / "costs.csv.gz"
    file.write_bytes(gzip.compress(b"tea||1.00||2024-01-03||-\n"))
    before = prints(file, reference(**bare))
    file.write_bytes(gzip.compress(b"tea||1.00||2024-01-03||2024-01-08\n"))
    assert moved(before, prints(file, reference(**bare))) == [7, 8, 9]
    renamed = reference(columns={**COLUMNS, "since": {"from": "Valid From", "type": "date"}})
    # A cell without anything is null, and one with empty quotes is an empty text.
    file.write_bytes(gzip.compress(b"||1.00||2024-01-03||\n"))
    before = prints(file, reference(**bare))
    file.write_bytes(gzip.compress(b'""||1.00||2024-01-03||\n'))
    assert moved(before, prints(file, reference(**bare))) == [2, 3, 4, 5, 6, 7, 8, 9]
    other = tmp_path / "costs.csv"
    other.write_text("product,cost,valid from,until\ntea,1.00,2024-01-03,\n")
    before = prints(other, renamed)
    other.write_text("product,cost,valid from,until\ntea,1.00,2024-01-04,\n")
    assert moved(before, prints(other, renamed)) == [2]


def test_a_long_line_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"
    columns = {"since": "date", "until": "date", "product": "string"}

    def of(product: str) -> Mapping[dt.date, str]:
        file.write_text(f"since,until,product\n2024-01-03,2024-01-05,{product}\n")
        return prints(file, reference(columns=columns))

    long = "x" * (1 << 20)
    assert moved(of(long + " " * 10), of(long + " " * 11)) == [2, 3]
    assert moved(of(long), of(f"{long},")) == list(range(10))


def test_a_file_that_is_no_reference_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "costs.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(SourceError, match=r"costs\.parquet: cannot be read: .*; deliver it again"):
        prints(tmp_path / "costs.parquet", reference("parquet"))
    pq.write_table(pa.table({"product": ["tea"], "cost": ["1"], "since": [FIRST]}), tmp_path / "costs.parquet")
    with pytest.raises(SourceError, match=r"costs\.parquet: its header does not name until"):
        prints(tmp_path / "costs.parquet", reference("parquet"))
    far = pa.array([4_000_000], pa.int32()).cast(pa.date32())
    pq.write_table(
        pa.table({"product": ["tea"], "cost": ["1"], "since": far, "until": far}), tmp_path / "costs.parquet"
    )
    with pytest.raises(SourceError, match=r"costs\.parquet: cannot be read: .*; deliver it again"):
        prints(tmp_path / "costs.parquet", reference("parquet"))
    (tmp_path / "costs.csv").write_text("product,cost,since\n")
    with pytest.raises(SourceError, match=r"costs\.csv: its header does not name until"):
        prints(tmp_path / "costs.csv")
    with pytest.raises(SourceError, match=r"gone\.csv: cannot be read"):
        prints(tmp_path / "gone.csv")
    plain = reference(valid=None)
    with pytest.raises(TypeError, match="valid on all days"):
        assert plain.limits
