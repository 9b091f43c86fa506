"""Units over several datasets, and the contents that distinguish moved files from changed rows."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from backfill_assets.core.content import UNKNOWN_ORIGIN, Content, KeptDay
from backfill_assets.core.errors import ClaimedDaysError, HeldDaysError
from backfill_assets.core.release import DataFile, layout_digest
from backfill_assets.core.unit import Hold, Launch
from backfill_assets.ledger.open import Ledger
from backfill_assets_tests.unit.ledger.samples import LEASE, NOON, a_launch, a_unit, march, some_evidence

BOTH = {"flights": march(1, 2), "capacity": march(1, 2)}


def _launch(targets: dict[str, tuple[dt.date, ...]], by: str, *, live: bool = False) -> Launch:
    return Launch({name: frozenset(days) for name, days in targets.items()}, by, live=live)


def test_a_launch_of_two_datasets_claims_the_days_of_both(ledger: Ledger) -> None:
    unit = ledger.assign(_launch(BOTH, "b_1"), a_unit((), targets=BOTH))
    assert ledger.claims("flights", march(1, 9)) == dict.fromkeys(march(1, 2), unit.id)
    assert ledger.claims("capacity", march(1, 9)) == dict.fromkeys(march(1, 2), unit.id)


def test_a_launch_of_one_of_the_datasets_continues_the_unit(ledger: Ledger) -> None:
    unit = ledger.assign(_launch(BOTH, "b_1"), a_unit((), targets=BOTH))
    assert ledger.assign(a_launch(march(2), "b_2"), a_unit(march(2), "b_2")).id == unit.id


def test_a_launch_with_one_claimed_dataset_is_refused_before_anything_is_opened(ledger: Ledger) -> None:
    unit = ledger.assign(a_launch(march(1, 2)), a_unit(march(1, 2)))
    with pytest.raises(ClaimedDaysError, match=rf"{unit.id} \(flights 2013-03-01.*not claimed: capacity 2013-03-01"):
        ledger.assign(_launch(BOTH, "b_2"), a_unit((), "b_2", targets=BOTH))
    assert [u.id for u in ledger.units()] == [unit.id]


def test_a_live_run_waits_if_any_of_its_datasets_is_on_hold(ledger: Ledger) -> None:
    ledger.hold([Hold(("capacity", march(1)[0]), "rejected", "ada", NOON)])
    with pytest.raises(HeldDaysError, match="capacity 2013-03-01"):
        ledger.assign(_launch(BOTH, "r_1", live=True), a_unit((), "r_1", targets=BOTH, live=True))


def test_the_content_of_every_measured_layout_stays_known(ledger: Ledger) -> None:
    (date,) = march(1)
    unit = ledger.assign(a_launch((date,)), a_unit((date,)))
    layouts = []
    for number, fingerprint in ((1, "one"), (2, "two")):
        attempt = ledger.start_attempt(unit.id, "flights", (date,), f"run_{number}", LEASE)
        evidence = some_evidence(unit.id, attempt.number, date)
        files = (DataFile(f"{number}.parquet", 1, date, 0),)
        shadow = replace(evidence.measured.shadow, fingerprint=fingerprint)
        basis = replace(evidence.basis, upstream=f"from {fingerprint}")
        measured = replace(evidence.measured, shadow=shadow)
        deliveries = tuple(f"d{i}" for i in range(number))
        built = replace(evidence, shadow_files=files, measured=measured, basis=basis, deliveries=deliveries)
        built = replace(built, references={"cities": fingerprint}, parts=f"p{number}")
        ledger.add_evidence(attempt.number, [built])
        layouts.append(layout_digest(files))
    assert ledger.contents("flights", {date: layouts[0]}) == {
        date: Content("one", "from one", "i", ("d0",), {"cities": "one"}, "p1")
    }
    assert ledger.contents("flights", {date: layouts[1]}) == {
        date: Content("two", "from two", "i", ("d0", "d1"), {"cities": "two"}, "p2")
    }
    assert ledger.contents("flights", {date: "of somebody else"}) == {}
    assert ledger.contents("orders", {date: layouts[0]}) == {}
    assert ledger.contents("flights", {}) == {}


def test_measurements_of_foreign_files_are_stored_and_replace_no_known_content(
    ledger: Ledger,
) -> None:
    first, second = march(1, 2)
    known = Content("one", "from one", "i", ("d0",), {"cities": "one"}, "c")
    ledger.add_contents("flights", {first: ("moved", known), second: ("x", Content("two", ""))})
    ledger.add_contents("flights", {first: ("moved", Content("other", UNKNOWN_ORIGIN))})
    found = ledger.contents("flights", {first: "moved", second: "x"})
    assert found == {first: known, second: Content("two", "", None)}
    ledger.add_contents("flights", {})


def test_the_parts_of_code_are_kept_once_by_what_they_are(ledger: Ledger) -> None:
    assert ledger.codes("flights") == {}
    first = ledger.add_code("flights", {"code": "d1", "checks": "d2"})
    assert ledger.add_code("flights", {"checks": "d2", "code": "d1"}) == first
    second = ledger.add_code("flights", {"code": "d3"})
    ledger.add_code("orders", {"code": "d4"})
    assert ledger.codes("flights") == {first: {"code": "d1", "checks": "d2"}, second: {"code": "d3"}}


def test_what_is_said_about_keeping_days_stays_newest_first(ledger: Ledger) -> None:
    first, second, third = march(1, 3)
    content = Content("one", "from one", "i", ("d0", "d1"), {"cities": "one"}, "c")
    words = [KeptDay("flights", day, "a", content, ("checks", "code"), "ada", NOON, "so") for day in (first, third)]
    ledger.keep(words)
    taken_back = KeptDay("flights", first, "", None, (), "ben", NOON, "not so")
    ledger.keep([taken_back])
    ledger.keep([replace(words[0], dataset="orders")])
    ledger.keep([])
    assert ledger.kept_days("flights") == (taken_back, words[1], words[0])
    assert ledger.kept_days("flights", [first, second]) == (taken_back, words[0])
    assert ledger.kept_days("flights", [second]) == ledger.kept_days("flights", []) == ()


def test_evidence_may_be_asked_for_by_dataset_and_days(ledger: Ledger) -> None:
    days = march(1, 3)
    unit = ledger.assign(a_launch(days), a_unit(days))
    attempt = ledger.start_attempt(unit.id, "flights", days, "run_1", LEASE)
    ledger.add_evidence(attempt.number, [some_evidence(unit.id, attempt.number, date) for date in days])
    assert {day for _, day in ledger.evidence(unit.id)} == set(days)
    assert set(ledger.evidence(unit.id, "flights", (days[0], days[2]))) == {("flights", days[0]), ("flights", days[2])}
    assert ledger.evidence(unit.id, "orders") == {}
    assert ledger.evidence(unit.id, "flights", ()) == {}
