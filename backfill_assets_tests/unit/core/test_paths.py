"""What a source's pattern finds: a path fits it exactly where a landing would have found the file."""

from __future__ import annotations

import datetime as dt
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.core.fields import checked_pattern, days_of, fits

DAY, OTHER = dt.date(2024, 1, 1), dt.date(2024, 1, 2)
_NAMES = ["a", "ab", "b", "[a]", "x.csv", f"{DAY}", f"{DAY}.csv", f"{DAY}-a.csv", f"{OTHER}.csv", f"{DAY}_{OTHER}.csv"]
_SHAPES = ["a", "*", "?", "?b", "[ab]", "[!a]", "[[]a]", "[a]", "*.csv", "{day}", "{day}*", "{day}?a.csv", "*{day}.csv"]
_paths = st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3).map("/".join)
_parts = st.lists(st.sampled_from(_SHAPES), max_size=2)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Patterns that a dataset may have; one that ends with `**` finds no file before Python 3.13, and any file since."""
    deep = ["**"] if draw(st.booleans()) else []
    return "/".join([*draw(_parts), *deep, *draw(_parts), draw(st.sampled_from([s for s in _SHAPES if "{" in s]))])


def _files(root: Path, paths: set[str]) -> set[str]:
    """Files at the paths, leaving out any path that would be a folder of another."""
    wanted = {path for path in paths if not any(PurePosixPath(path) in PurePosixPath(p).parents for p in paths)}
    for path in wanted:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return wanted


@settings(deadline=None)
@given(patterns(), st.sets(_paths, max_size=12))
def test_a_path_fits_a_pattern_exactly_where_glob_finds_the_file(pattern: str, paths: set[str]) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        files = _files(root, paths)
        globbed = (path for path in root.glob(pattern.replace("{day}", f"{DAY}")) if path.is_file())
        found = {path.relative_to(root).as_posix() for path in globbed}
        assert {path for path in files if fits(checked_pattern(pattern), DAY, path)} == found
        assert {path for path in files if DAY in days_of(pattern, path)} == found


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("x/{day}/*.csv", "x/2024-01-01/a.csv", "x/2024-01-01/a/b.csv"),
        ("x/{day}/orders*.csv", "x/2024-01-01/orders-1.csv", "x/2024-01-01/returns.csv"),
        ("x/{day}*", "x/2024-01-01.csv", "x/2024-01-02.csv"),
        ("x/[!y]{day}.csv", "x/z2024-01-01.csv", "x//2024-01-01.csv"),
        ("**/{day}.csv", "2024-01-01.csv", "2024-01-01.csv/a"),
        ("a/**/{day}.csv", "a/b/c/2024-01-01.csv", "b/a/2024-01-01.csv"),
        ("./x//{day}.CSV", "x/2024-01-01.CSV", "x/2024-01-01.csv"),
        ("{day}/{day}_[ab].csv", "2024-01-01/2024-01-01_a.csv", "2024-01-01/2024-01-02_a.csv"),
    ],
)
def test_a_star_ends_at_a_slash_and_two_stars_match_any_folders(pattern: str, inside: str, outside: str) -> None:
    assert (fits(pattern, DAY, inside), fits(pattern, DAY, outside)) == (True, False)


def test_the_days_of_a_file_are_all_that_its_pattern_finds_it_for() -> None:
    assert days_of("x/*{day}*", f"x/{OTHER}_{DAY}.csv") == (DAY, OTHER)
    assert days_of("x/{day}*", f"x/{OTHER}_{DAY}.csv") == (OTHER,)
    assert days_of("x/*{day}", "x/12024-02-30") == days_of("x/{day}", "x/\u0662024-01-01") == ()
    assert days_of("*{day}*", "2024-01-012024-01-02") == (DAY, OTHER)
