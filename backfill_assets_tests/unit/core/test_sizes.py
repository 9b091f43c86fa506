"""Sizes in bytes, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.text import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500GB", 500 * 10**9),
        (" 1.5 TB ", 15 * 10**11),
        ("512MiB", 512 * 2**20),
        ("1KiB", 1024),
        ("7B", 7),
        ("0GB", 0),
        (0, 0),
        ("1000PB", 10**18),
    ],
)
def test_a_size_is_read_with_its_unit(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("value", [500, "500", "GB", "-1GB", "1gb", "1e3GB", True, None, 0.5])
def test_a_size_without_a_unit_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="with its unit, such as 500GB"):
        parse_size(value)


def test_a_size_beyond_all_disks_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 1000PB"):
        parse_size("1001PB")


@given(st.integers(0, 10**18))
def test_a_size_is_read_back_from_its_text(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"), [(500 * 10**9, "500GB"), (512 * 2**20, "512MiB"), (1500, "1500B"), (0, "0B")]
)
def test_a_size_is_shown_in_the_largest_unit_without_a_fraction(size: int, text: str) -> None:
    assert format_size(size) == text
