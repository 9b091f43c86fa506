from __future__ import annotations

import pytest

from backfill_assets.core.text import hidden_in, in_one_line, may_hold_secret, number_of, visible


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
def test_numbers_are_written_as_people_write_them(count: int, what: str, text: str) -> None:
    assert number_of(count, what) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ab\u202ec", (2, "U+202E (RIGHT-TO-LEFT OVERRIDE)")),
        ("a\rb", (1, "U+000D (a control character)")),
        ("a\u2028b", (1, "U+2028 (LINE SEPARATOR)")),
        ("a\r\nb\tc", None),
        ("\u06a9\u062a\u0627\u0628\u200c\u0647\u0627 \U0001f468\u200d\U0001f4bb", None),
    ],
)
def test_invisible_characters_are_found_and_joiners_of_letters_are_left(
    text: str, found: tuple[int, str] | None
) -> None:
    assert hidden_in(text) == found


def test_text_of_others_is_shown_with_escapes() -> None:
    assert visible("caf\u00e9 \x1b[2J\u202e\udcff\n") == "caf\u00e9 \\x1b[2J\\u202e\\udcff\\n"
    assert in_one_line(ValueError("a\n  b\x0e" + "c" * 1_000)) == "a b\\x0e" + "c" * 293


@pytest.mark.parametrize(
    "text", ["https://x/y", "sc://h:1/;token=x", "postgresql+psycopg2://a:b@c/d", "ftp://me:x@h", "s3://b?k=v"]
)
def test_urls_that_may_carry_secrets_are_known(text: str) -> None:
    assert may_hold_secret(text)
    assert not may_hold_secret(text.replace("://", ":"))


def test_the_url_of_a_bucket_is_no_secret() -> None:
    assert not may_hold_secret("s3://bucket/lake")
