"""Prints: which columns cause a difference, and what a certificate says."""

from __future__ import annotations

import pytest

from backfill_assets.campaign.specification import Specification
from backfill_assets.campaign.validation import Certification
from backfill_assets.core.canonical import canonical_json
from backfill_assets.core.certificate import NO_PRINTS, Prints, differing_columns, origin_of
from backfill_assets.core.days import parse_days
from backfill_assets.core.errors import InvalidDayError
from backfill_assets_tests.harness.specifications import specification
from backfill_assets_tests.harness.tables import day


def prints(key: str = "1", amount: str = "2:3", fee: str = "4:5") -> Prints:
    return Prints(1, 1, {"id": key, "amount": amount, "fee": fee}, {})


@pytest.mark.parametrize(
    ("other", "columns"),
    [
        (prints(), ()),
        (prints(amount="9:9"), ("amount",)),
        (prints(amount="2:9"), ("amount",)),  # the same values in other rows
        (prints(key="8", amount="2:9", fee="4:9"), ("id",)),  # other keys move all values to other rows
        (prints(key="8", amount="7:9", fee="4:9"), ("amount", "id")),
        (NO_PRINTS, ("amount", "fee", "id")),
    ],
)
def test_only_the_columns_that_differ_by_themselves_are_named(other: Prints, columns: tuple[str, ...]) -> None:
    assert differing_columns(prints(), other) == differing_columns(other, prints()) == columns


def test_what_a_day_is_built_from_is_its_inputs_alone_without_upstreams() -> None:
    assert origin_of("a", "") == "a"
    assert origin_of("a", "b") != origin_of("a", "c") != "a"


def test_days_are_read_from_lists_and_ranges() -> None:
    assert parse_days("2026-01-03, 2026-01-01..2026-01-02,2026-01-02") == (day(0), day(1), day(2))
    assert parse_days("2026-01-01") == (day(0),)
    assert parse_days("2026-01-01...2026-01-03") == (day(0), day(1), day(2))
    for wrong in (
        "",
        "2026-01-01..",
        "2026-01-01....2026-01-02",
        "2026-01-01...",
        "2026-01-02..2026-01-01",
        "yesterday",
        "2026-01-01,,2026-01-02",
        "1900-01-01..2199-12-31",
        "1900-01-01..1999-12-31,2000-01-01..2099-12-31",
    ):
        with pytest.raises(InvalidDayError, match="--partitions"):
            parse_days(wrong, "--partitions")


def test_a_specification_without_a_certificate_keeps_its_hash_and_one_that_requires_it_is_read_back() -> None:
    plain = specification()
    assert plain.validation.certificate is Certification.none
    assert "certificate" not in plain.to_plain()["validation"]
    required = specification(validation={"certificate": "required"})
    assert required.hash != plain.hash
    assert Specification.from_json(canonical_json(required.to_plain())) == required
    assert specification(validation={"certificate": "none"}).hash == plain.hash
