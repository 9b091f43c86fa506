from __future__ import annotations

import pytest

from backfill_assets.domain.names import number_of


@pytest.mark.parametrize(
    ("count", "what", "text"),
    [
        (1, "day", "1 day"),
        (0, "day", "0 days"),
        (2, "batch", "2 batches"),
        (3, "canary", "3 canaries"),
        (2406, "file", "2,406 files"),
    ],
)
def test_numbers_are_said_as_people_say_them(count: int, what: str, text: str) -> None:
    assert number_of(count, what) == text
