"""What a source's path finds: a path fits it exactly where a landing would have found the file, and has one day."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backfill_assets.core.days import EARLIEST, LATEST, last_of_month
from backfill_assets.core.path_template import PathTemplate, checked_template

DAY, OTHER, MONTH = dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(2024, 1, 31)
_NAMES = [
    "a", "ab", "b", "[a]", "x.csv", f"{DAY}", f"{DAY}.csv", f"{DAY}-a.csv", f"{OTHER}.csv", f"{DAY}_{OTHER}.csv", "20240101",
    "20240101.csv", "202401011.csv", "120240101", "202401", "202402", "2024",
    "01", "02", "0101", "01-01", "2024-01", "01.01.2024", "dt=2024-01-01",
]  # fmt: skip
_SHAPES = ["a", "*", "?", "?b", "[ab]", "[!a]", "[[]a]", "[a]", "*.csv", "2024", "01", "[]a]"]
_DAYS = [
    ["{day}"], ["{day}*"], ["{day}?a.csv"], ["*{day}.csv"], ["dt={day}"], ["{yyyymmdd}"], ["{yyyymmdd}*.csv"],
    ["{yyyymmdd}[0-9].csv"], ["*{yyyymmdd}"], ["{yyyy}", "{mm}", "{dd}"], ["{yyyy}", "{mm}{dd}"], ["{yyyy}-{mm}", "*", "{dd}*"],
    ["{dd}.{mm}.{yyyy}"], ["*{mm}*", "*{dd}*", "{yyyy}"], ["{yyyy}", "{mm}*{dd}"], ["{yyyymm}"], ["{yyyymm}*"], ["{yyyy}-{mm}"],
    ["{yyyy}", "{mm}", "*.csv"],
]  # fmt: skip
_paths = st.lists(st.sampled_from(_NAMES), min_size=1, max_size=4).map("/".join)
_parts = st.lists(st.sampled_from(_SHAPES), max_size=2)


@st.composite
def templates(draw: st.DrawFn) -> PathTemplate:
    """Paths that a dataset may have; one that ends with `**` finds no file before Python 3.13, and any file since."""
    deep = ["**"] if draw(st.booleans()) else []
    text = "/".join([*draw(_parts), *deep, *draw(_parts), *draw(st.sampled_from(_DAYS))])
    return PathTemplate(checked_template(text))


def _files(root: Path, paths: set[str]) -> set[str]:
    """Files at the paths, leaving out any path that would be a folder of another."""
    wanted = {path for path in paths if not any(PurePosixPath(path) in PurePosixPath(p).parents for p in paths)}
    for path in wanted:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return wanted


@settings(deadline=None)
@given(templates(), st.sets(_paths, max_size=12))
def test_a_path_fits_a_template_exactly_where_glob_finds_the_file(template: PathTemplate, paths: set[str]) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        files = _files(root, paths)
        day = MONTH if template.is_monthly else DAY
        found = {p.relative_to(root).as_posix() for p in root.glob(template.filled(day)) if p.is_file()}
        assert {path for path in files if template.fits(day, path)} == found
        ever = {p.relative_to(root).as_posix() for p in root.glob(template.of_any_day) if p.is_file()}
        assert {path for path in files if template.days_of(path)} <= ever


_texts = st.text("az09_-. ", max_size=4)


@st.composite
def filled(draw: st.DrawFn) -> tuple[PathTemplate, dt.date, str]:
    """A template, a day, and a path that the template finds for it: each wildcard is replaced by what it may stand for."""
    spelled = draw(
        st.sampled_from([["{day}"], ["{yyyymmdd}"], ["{yyyy}", "{mm}", "{dd}"], ["{yyyymm}"], ["{yyyy}", "{mm}"]])
    )
    fields = draw(st.permutations(spelled))
    between = st.sampled_from(["", "/", "-", "a", "7", "*", "?", "/*/", "_*", "*.", "[0-9]", "[!a]", "/x/", "/**/"])
    pieces = [draw(between) for _ in range(len(fields) + 1)]
    text = "".join(itertools.chain.from_iterable(zip(pieces, [*fields, ""], strict=True)))
    try:
        template = PathTemplate(checked_template(PurePosixPath(f"in/{text}").as_posix()))
    except ValueError:
        assume(False)
    day = draw(st.dates(EARLIEST, LATEST))
    day = last_of_month(day) if template.is_monthly else day
    path = template.filled(day)
    for wild, stands in {
        "/**/": st.sampled_from(["/", "/k/"]),
        "[0-9]": st.sampled_from("09"),
        "[!a]": st.sampled_from("b5"),
    }.items():
        while wild in path:
            path = path.replace(wild, draw(stands), 1)
    while "*" in path:
        path = path.replace("*", draw(_texts), 1)
    while "?" in path:
        path = path.replace("?", draw(st.sampled_from("az09_")), 1)
    assume("" not in path.split("/") and "." not in path.split("/") and ".." not in path.split("/"))
    return template, day, path


@settings(deadline=None, max_examples=400)
@given(filled())
def test_the_day_of_a_path_is_the_day_that_its_template_was_filled_with_or_it_is_refused(
    case: tuple[PathTemplate, dt.date, str],
) -> None:
    template, day, path = case
    assert day in template.days_of(path)
    if not template.doubt(path):
        assert template.days_of(path) == (day,)


@settings(deadline=None, max_examples=400)
@given(filled(), st.dates(EARLIEST, LATEST))
def test_no_file_is_landed_for_two_days(case: tuple[PathTemplate, dt.date, str], other: dt.date) -> None:
    template, day, path = case
    assume((other.year, other.month) != (day.year, day.month) if template.is_monthly else other != day)
    assert (
        template.doubt(path)
        or not PurePosixPath(f"/{path}").match(f"/{template.filled(other)}")
        or "**" in template.text
    )


@pytest.mark.parametrize(
    ("template", "inside", "outside"),
    [
        ("x/{day}/*.csv", "x/2024-01-01/a.csv", "x/2024-01-01/a/b.csv"),
        ("x/{day}/orders*.csv", "x/2024-01-01/orders-1.csv", "x/2024-01-01/returns.csv"),
        ("x/{day}*", "x/2024-01-01.csv", "x/2024-01-02.csv"),
        ("x/[!y]{day}.csv", "x/z2024-01-01.csv", "x//2024-01-01.csv"),
        ("**/{day}.csv", "2024-01-01.csv", "2024-01-01.csv/a"),
        ("a/**/{day}.csv", "a/b/c/2024-01-01.csv", "b/a/2024-01-01.csv"),
        ("a/{yyyy}/**/{mm}{dd}.csv", "a/2024/b/c/0101.csv", "a/2024/b/0102.csv"),
        ("./x//{day}.CSV", "x/2024-01-01.CSV", "x/2024-01-01.csv"),
        ("{day}/x_[ab].csv", "2024-01-01/x_a.csv", "2024-01-01/x_c.csv"),
        ("x/{yyyy}/{mm}/{dd}/*.csv", "x/2024/01/01/a.csv", "x/2024/1/1/a.csv"),
        ("x/year={yyyy}/month={mm}/day={dd}/*", "x/year=2024/month=01/day=01/a", "x/year=2024/month=01/day=1/a"),
        ("x/dt={day}/*.parquet", "x/dt=2024-01-01/a.parquet", "x/dt=2024-01-01T00/a.parquet"),
        ("orders-{yyyymmdd}*.csv.gz", "orders-20240101-b.csv.gz", "orders-20240101-b.csv"),
        ("x/{dd}.{mm}.{yyyy}.csv", "x/01.01.2024.csv", "x/2024.01.01.csv"),
        ("x/{yyyy}/{mm}{dd}.csv", "x/2024/0101.csv", "x/2024/01/01.csv"),
        ("x/{yyyymmdd}.csv", "x/20240101.csv", "x/2024-01-01.csv"),
    ],
)
def test_a_star_ends_at_a_slash_and_two_stars_match_any_folders(template: str, inside: str, outside: str) -> None:
    found = PathTemplate(checked_template(template))
    assert (found.fits(DAY, inside), found.fits(DAY, outside)) == (True, False)
    assert found.doubt(inside) == ""


@pytest.mark.parametrize(
    ("template", "inside", "outside"),
    [
        ("x/{yyyymm}.csv", "x/202401.csv", "x/202413.csv"),
        ("x/{yyyy}-{mm}.csv", "x/2024-01.csv", "x/2024-01-01.csv"),
        ("x/{yyyy}/{mm}/*.csv", "x/2024/01/01.csv", "x/2024/1/01.csv"),
        ("{mm}_{yyyy}.csv", "01_2024.csv", "31_2024.csv"),
        ("x-{yyyymm}[0-9][0-9].csv", "x-20240109.csv", "x-202401.csv"),
    ],
)
def test_a_file_of_a_month_belongs_to_its_last_day(template: str, inside: str, outside: str) -> None:
    found = PathTemplate(checked_template(template))
    assert found.is_monthly
    assert (found.days_of(inside), found.doubt(inside)) == ((MONTH,), "")
    assert found.days_of(outside) == ()
    assert found.filled(MONTH) == found.filled(DAY)


def test_a_digit_beside_the_month_may_be_a_day() -> None:
    found = PathTemplate(checked_template("orders-{yyyymm}*.csv"))
    assert "another digit stands beside the month 2024-01" in found.doubt("orders-20240109.csv")
    assert found.doubt("orders-202401_b.csv") == ""


def days_of(template: str, path: str) -> tuple[dt.date, ...]:
    return PathTemplate(checked_template(template)).days_of(path)


def test_the_days_of_a_file_are_all_that_its_template_finds_it_for() -> None:
    assert days_of("x/*{day}*", f"x/{OTHER}_{DAY}.csv") == (DAY, OTHER)
    assert days_of("x/{day}*", f"x/{OTHER}_{DAY}.csv") == (OTHER,)
    assert days_of("x/*{day}", "x/12024-02-30") == days_of("x/{day}", "x/\u0662024-01-01") == ()
    assert days_of("*{day}*", "2024-01-012024-01-02") == (DAY, OTHER)
    assert days_of("*{yyyymmdd}*", "a20240101-20240102") == (DAY, OTHER)
    assert days_of("*_{mm}_*_{dd}_{yyyy}", "a_01_02_03_04_2024") == (dt.date(2024, 1, 4), dt.date(2024, 2, 4))
    # No history has these days.
    assert (
        days_of("{day}", "1899-12-31")
        == days_of("{yyyymmdd}", "22000101")
        == days_of("{yyyy}{mm}{dd}", "18991231")
        == ()
    )


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("orders-{yyyymmdd}*.csv", "orders-202401011.csv"),
        ("orders-{yyyymmdd}*.csv", "orders-20240101123000.csv"),
        ("orders-{yyyymmdd}?.csv", "orders-202401011.csv"),
        ("orders-{yyyymmdd}[!a].csv", "orders-202401011.csv"),
        ("orders-{yyyymmdd}*", "orders-20240101\u0661.csv"),
        ("*{yyyymmdd}.csv", "120240101.csv"),
        ("{day}*.csv", "2024-01-011.csv"),
        ("*{day}.csv", "12024-01-01.csv"),
        ("[!a]{day}.csv", "12024-01-01.csv"),
        ("{yyyy}/{mm}/{dd}*.csv", "2024/01/011.csv"),
        ("{yyyy}*/{mm}/{dd}.csv", "20245/01/01.csv"),
        ("{yyyy}*{mm}*{dd}", "20240101"),
    ],
)
def test_no_wildcard_takes_a_digit_beside_the_day(template: str, path: str) -> None:
    found = PathTemplate(checked_template(template))
    assert found.fits(DAY, path)
    assert "another digit stands beside the day 2024-01-01" in found.doubt(path)


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("orders-{yyyymmdd}[0-9].csv", "orders-202401011.csv"),
        ("orders-{yyyymmdd}[0-9][0-9][0-9][0-9]*.csv", "orders-202401011230-b.csv"),
        ("till1{yyyymmdd}.csv", "till120240101.csv"),
        ("{yyyymmdd}_*.csv", "20240101_1.csv"),
        ("{yyyymmdd}*.csv", "20240101.csv"),
        ("1/{day}/1*", "1/2024-01-01/11"),
    ],
)
def test_digits_that_are_spelled_out_may_stand_beside_the_day(template: str, path: str) -> None:
    found = PathTemplate(checked_template(template))
    assert (found.days_of(path), found.doubt(path)) == ((DAY,), "")


@pytest.mark.parametrize(
    ("template", "path"),
    [("{yyyy}/{mm}/{dd}/*.csv", "2024/31/12/a.csv"), ("x-{mm}{dd}{yyyy}.csv", "x-31122024.csv")],
)
def test_a_month_above_twelve_is_taken_for_a_day(template: str, path: str) -> None:
    found = PathTemplate(checked_template(template))
    assert found.days_of(path) == ()
    assert found.doubt(path).startswith("{mm} finds 31 and {dd} finds 12, which is no day; put them in the other order")
    # A month of a summary or of no calendar is simply not found.
    assert found.doubt(path.replace("31", "00", 1)) == found.doubt(path.replace("12", "32", 1)) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "trips.csv",
            r"it does not contain the delivery day; write \{day\} \(2024-01-31\), \{yyyymmdd\} \(20240131\), or",
        ),
        ("{day}/{hour}.csv", r"\{hour\} is unknown; write the delivery day as \{day\}"),
        ("{yyyy-mm-dd}.csv", r"\{yyyy-mm-dd\} is unknown"),
        ("{YYYYMMDD}.csv", r"\{YYYYMMDD\} is unknown"),
        ("{}.csv", r"\{\} is unknown"),
        ("{" + "x" * 150 + "}", "x…} is unknown"),
        ("{day}/a{b.csv", "a brace stands alone"),
        ("{{day}}.csv", "a brace stands alone"),
        ("{day}/{day}.csv", r"\{day\} occurs 2 times; keep one, and write \* for the others"),
        ("{yyyy}/{mm}/{dd}/{dd}.csv", r"\{dd\} occurs 2 times"),
        ("{yyyy}/{dd}.csv", r"\{yyyy\}, \{dd\}: this is not one whole day, or month, in one spelling; write \{day\}"),
        ("{yyyy}/*.csv", r"\{yyyy\}: this is not one whole day, or month"),
        ("{day}/{yyyymmdd}.csv", r"\{day\}, \{yyyymmdd\}: this is not one whole day, or month, in one spelling"),
        ("{yyyymm}/{day}.csv", r"\{yyyymm\}, \{day\}: this is not one whole day"),
        ("{yyyymm}/{yyyy}/{mm}.csv", "this is not one whole day"),
        ("{yyyy}/{mm}/{dd}/{day}.csv", "this is not one whole day, or month, in one spelling"),
        ("[{day}].csv", "the day is in brackets"),
        ("[]{day}].csv", "the day is in brackets"),
        ("[!]a{dd}]{mm}{yyyy}.csv", "the day is in brackets"),
        ("{day}**", "stands for folders"),
        ("**/x/**/{day}", "only once"),
    ],
)
def test_a_path_names_one_whole_day_in_one_spelling(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_template(text)


def test_a_name_full_of_digits_takes_no_time() -> None:
    found = PathTemplate(checked_template("*{yyyy}*{mm}*{dd}*"))
    for name in ("2012" * 50, "9" * 200, "31" * 100):
        found.doubt(name)
