"""Deliveries, staged days, attempts and evidence: the contract of `Ledger`."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from backfill_assets.core.delivery import Deed
from backfill_assets.core.errors import LeaseLostError, UnitError
from backfill_assets.core.evidence import DayEvidence, Severity, Verdict
from backfill_assets.core.layers import Layer
from backfill_assets.core.measured import Compared, GoldenCounts
from backfill_assets.core.unit import AttemptState, DayFindings, StagedDay, UnitState, Work
from backfill_assets.ledger.open import Ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.unit.ledger.samples import (
    LEASE,
    NOON,
    SECOND,
    a_delivery,
    a_launch,
    a_unit,
    march,
    some_evidence,
)


@pytest.fixture
def unit(ledger: Ledger) -> str:
    return ledger.assign(a_launch(march(1, 9)), a_unit(march(1, 9))).id


def test_a_delivery_is_recorded_once(ledger: Ledger) -> None:
    first = a_delivery(march(1)[0])
    ledger.add_deliveries([first, a_delivery(march(2)[0], "two.csv")])
    ledger.add_deliveries([replace(first, rows=99), replace(first, fingerprint="e" * 64)])
    ledger.add_deliveries([])
    numbers = [d.order for d in ledger.deliveries("flights", march(1))]
    known = (replace(first, order=numbers[0]), replace(first, fingerprint="e" * 64, order=numbers[1]))
    assert (ledger.deliveries("flights", march(1)), 0 < numbers[0] < numbers[1]) == (known, True)
    assert ledger.deliveries("orders", march(1)) == ()


def test_a_delivery_that_is_read_again_keeps_all_but_its_counts_and_its_reading(ledger: Ledger) -> None:
    ledger.add_deliveries([a_delivery(march(1)[0]), a_delivery(march(1)[0], "two.csv")])
    first, other = ledger.deliveries("flights", march(1))
    again = replace(first, rows=4, corrupt_rows=2, reading="lines 1")
    ledger.change_deliveries([replace(again, size=99), replace(first, fingerprint="e" * 64)], Deed.read)
    ledger.change_deliveries([], Deed.read)
    assert ledger.deliveries("flights", march(1)) == (replace(again, landings=2), other)


def test_deliveries_come_in_order_of_landing_and_only_of_the_days_asked_for(ledger: Ledger) -> None:
    late = replace(a_delivery(march(1)[0], "late.csv"), landed_at=NOON + LEASE)
    days = [a_delivery(day, f"{day}.csv") for day in march(1, 4)]
    ledger.add_deliveries([late, *days])
    found = ledger.deliveries("flights", [*march(1), *march(4)])
    assert [one.path for one in found] == [days[0].path, days[3].path, late.path]
    assert ledger.deliveries("flights", []) == ()


def test_a_staged_day_replaces_what_was_known(ledger: Ledger) -> None:
    old, new = (StagedDay("flights", march(1)[0], digest, "code", n) for n, digest in enumerate(("a", "b")))
    other = StagedDay("flights", march(2)[0], "a", "code")
    ledger.add_staged([old, other])
    ledger.add_staged([new])
    ledger.add_staged([])
    assert ledger.staged("flights", march(1, 3)) == {march(1)[0]: new, march(2)[0]: other}
    assert ledger.staged("flights", []) == {}


def test_an_attempt_runs_with_a_lease_until_it_ends(ledger: Ledger, unit: str, clock: FixedClock) -> None:
    attempt = ledger.start_attempt(unit, "flights", (*march(2), *march(1)), "r_1", LEASE)
    assert (attempt.days, attempt.state) == (march(1, 2), AttemptState.running)
    assert (attempt.started_at, attempt.lease_until) == (NOON, NOON + LEASE)
    clock.advance(30 * SECOND)
    ledger.renew(attempt.number, LEASE)
    [renewed] = ledger.attempts(state=AttemptState.running)
    assert renewed == replace(attempt, lease_until=clock.now() + LEASE)
    ledger.end_attempt(attempt.number, AttemptState.done)
    ledger.end_attempt(attempt.number, AttemptState.failed)
    assert [a.state for a in ledger.attempts(unit)] == [AttemptState.done]
    assert ledger.attempts(state=AttemptState.running) == ()
    assert ledger.attempts("u_other") == ()
    assert [a.number for a in ledger.attempts(run="r_1")] == [attempt.number]
    assert ledger.attempts(run="r_2") == ()


def test_an_ended_attempt_says_when_it_ended_and_what_it_took(ledger: Ledger, unit: str, clock: FixedClock) -> None:
    attempt = ledger.start_attempt(unit, "flights", march(1, 2), "r_1", LEASE)
    assert ledger.attempts() == (attempt,)
    clock.advance(20 * SECOND)
    took = Work(rows=2**40, bytes_read=2**50, waited=dt.timedelta(days=3, microseconds=1))
    ledger.end_attempt(attempt.number, AttemptState.done, took)
    [ended] = ledger.attempts()
    assert ended == replace(attempt, state=AttemptState.done, ended_at=NOON + dt.timedelta(seconds=20), **vars(took))
    clock.advance(20 * SECOND)
    ledger.end_attempt(attempt.number, AttemptState.failed, Work(rows=7))
    assert ledger.attempts() == (ended,)


def test_what_an_attempt_works_on_and_costs_is_known_from_its_start(ledger: Ledger, unit: str) -> None:
    work = Work(bytes_read=2**50, waited=dt.timedelta(seconds=3), layer=Layer.raw)
    attempt = ledger.start_attempt(unit, "flights", march(1), "r_1", LEASE, work)
    assert (attempt.layer, attempt.bytes_read, attempt.waited) == (work.layer, work.bytes_read, work.waited)
    assert ledger.attempts(state=AttemptState.running) == (attempt,)
    ledger.end_attempt(attempt.number, AttemptState.lost)
    [lost] = ledger.attempts()
    assert (lost.state, lost.layer, lost.bytes_read) == (AttemptState.lost, work.layer, work.bytes_read)


def test_an_attempt_ends_in_an_end_state_only(ledger: Ledger, unit: str) -> None:
    attempt = ledger.start_attempt(unit, "flights", march(1), "r_1", LEASE)
    with pytest.raises(UnitError, match="cannot end as running"):
        ledger.end_attempt(attempt.number, AttemptState.running)
    ledger.end_attempt(attempt.number + 7, AttemptState.done)
    assert [a.state for a in ledger.attempts()] == [AttemptState.running]


def test_a_retry_of_a_run_makes_its_older_attempt_lost(ledger: Ledger, unit: str) -> None:
    old = ledger.start_attempt(unit, "flights", march(1, 2), "r_1", LEASE)
    new = ledger.start_attempt(unit, "flights", march(5, 6), "r_1", LEASE)
    assert new.number > old.number
    assert [a.state for a in ledger.attempts(unit)] == [AttemptState.lost, AttemptState.running]
    assert [a.ended_at for a in ledger.attempts(unit)] == [NOON, None]
    with pytest.raises(LeaseLostError, match=rf"attempt {old.number} .* it is lost"):
        ledger.renew(old.number, LEASE)
    with pytest.raises(LeaseLostError, match="it is lost"):
        ledger.add_evidence(old.number, [some_evidence(unit, old.number, march(1)[0])])


def test_attempts_that_a_run_works_on_at_the_same_time_stay_as_they_are(ledger: Ledger, unit: str) -> None:
    dead = ledger.start_attempt(unit, "flights", march(5, 6), "r_1", LEASE).number
    one = ledger.start_attempt(unit, "flights", march(1), "r_1", LEASE).number
    two = ledger.start_attempt(unit, "flights", march(2), "r_1", LEASE, beside=[one]).number
    three = ledger.start_attempt(unit, "flights", (*march(1), *march(3)), "r_1", LEASE, beside=[one, two]).number
    states = {a.number: a.state for a in ledger.attempts(unit)}
    assert states == {
        dead: AttemptState.lost,
        one: AttemptState.lost,
        two: AttemptState.running,
        three: AttemptState.running,
    }


def test_the_newest_attempt_owns_its_days(ledger: Ledger, unit: str) -> None:
    old = ledger.start_attempt(unit, "flights", (*march(1), *march(3)), "r_1", LEASE)
    ledger.start_attempt(unit, "flights", march(2), "r_2", LEASE)
    assert len(ledger.attempts(unit, AttemptState.running)) == 2
    ledger.start_attempt(unit, "flights", march(3, 4), "r_3", LEASE)
    assert [a.run for a in ledger.attempts(unit, AttemptState.running)] == ["r_2", "r_3"]
    with pytest.raises(LeaseLostError, match="it is lost"):
        ledger.add_evidence(old.number, [some_evidence(unit, old.number, march(1)[0])])


def test_an_attempt_on_foreign_days_or_a_unit_that_is_over_is_refused(ledger: Ledger, unit: str) -> None:
    with pytest.raises(UnitError, match="attempt only days of the unit"):
        ledger.start_attempt(unit, "flights", march(9, 10), "r_1", LEASE)
    with pytest.raises(UnitError, match="attempt only days of the unit"):
        ledger.start_attempt(unit, "flights", (), "r_1", LEASE)
    with pytest.raises(UnitError, match="there is no unit"):
        ledger.start_attempt("u_x", "flights", march(1), "r_1", LEASE)
    ledger.move(unit, {UnitState.open}, UnitState.published)
    with pytest.raises(UnitError, match="published, not open"):
        ledger.start_attempt(unit, "flights", march(1), "r_1", LEASE)
    assert ledger.attempts() == ()


def test_attempts_end_with_their_unit(ledger: Ledger, unit: str, clock: FixedClock) -> None:
    attempt = ledger.start_attempt(unit, "flights", march(1), "r_1", LEASE)
    clock.advance(20 * SECOND)
    ledger.move(unit, {UnitState.open}, UnitState.discarded)
    assert ledger.attempts() == (replace(attempt, state=AttemptState.lost, ended_at=clock.now()),)


def test_the_newest_evidence_of_a_day_counts(ledger: Ledger, unit: str) -> None:
    first = ledger.start_attempt(unit, "flights", march(1, 2), "r_1", LEASE).number
    ledger.add_evidence(first, [some_evidence(unit, first, day) for day in march(1, 2)])
    second = ledger.start_attempt(unit, "flights", march(2), "r_2", LEASE).number
    newer = some_evidence(unit, second, march(2)[0], code="new")
    ledger.add_evidence(second, [newer])
    ledger.add_evidence(second, [])
    expected = {("flights", march(1)[0]): some_evidence(unit, first, march(1)[0]), ("flights", march(2)[0]): newer}
    assert ledger.evidence(unit) == expected
    assert ledger.evidence("u_other") == {}


def test_evidence_after_the_lease_is_refused_until_it_is_renewed(ledger: Ledger, unit: str, clock: FixedClock) -> None:
    attempt = ledger.start_attempt(unit, "flights", march(1), "r_1", LEASE)
    evidence = [some_evidence(unit, attempt.number, march(1)[0])]
    clock.advance(LEASE)
    with pytest.raises(LeaseLostError, match="its lease ended at 2026-11-21T12:01:00"):
        ledger.add_evidence(attempt.number, evidence)
    assert ledger.evidence(unit) == {}
    assert ledger.attempts(state=AttemptState.running) == (attempt,)
    ledger.renew(attempt.number, LEASE)
    ledger.add_evidence(attempt.number, evidence)
    assert len(ledger.evidence(unit)) == 1


def test_evidence_of_an_ended_or_unknown_attempt_is_refused(ledger: Ledger, unit: str) -> None:
    attempt = ledger.start_attempt(unit, "flights", march(1), "r_1", LEASE).number
    ledger.end_attempt(attempt, AttemptState.failed)
    with pytest.raises(LeaseLostError, match="it is failed"):
        ledger.add_evidence(attempt, [some_evidence(unit, attempt, march(1)[0])])
    with pytest.raises(LeaseLostError, match="there is no attempt 99"):
        ledger.renew(99, LEASE)


@pytest.mark.parametrize(
    "other", [{"unit": "u_other"}, {"attempt": 99}, {"dataset": "orders"}, {"day": dt.date(2013, 3, 2)}]
)
def test_evidence_that_is_not_the_attempts_own_is_refused(ledger: Ledger, unit: str, other: dict[str, object]) -> None:
    attempt = ledger.start_attempt(unit, "flights", march(1), "r_1", LEASE).number
    own = some_evidence(unit, attempt, march(1)[0])
    with pytest.raises(UnitError, match="does not belong"):
        ledger.add_evidence(attempt, [own, replace(own, **other)])  # type: ignore[arg-type]
    assert ledger.evidence(unit) == {}


def judged(evidence: DayEvidence, **verdicts: tuple[bool, bool]) -> DayEvidence:
    """The evidence with verdicts by check: (passed, blocks)."""
    made = (
        Verdict(name, evidence.day, passed, Severity.error, blocks, "", "")
        for name, (passed, blocks) in verdicts.items()
    )
    return replace(evidence, verdicts=tuple(made))


def test_findings_are_the_few_figures_of_the_evidence_that_counts(ledger: Ledger, unit: str) -> None:
    attempt = ledger.start_attempt(unit, "flights", march(1, 4), "r_1", LEASE)
    one, two, three, four = (some_evidence(unit, attempt.number, day) for day in march(1, 4))
    golden = Compared(golden={"finance": GoldenCounts(1, 2, 3, 100)})
    checked = judged(two, unique_key=(True, True), golden_finance=(False, False), rule_mild=(False, False))
    given = [one, replace(checked, compared=golden), judged(three, unique_key=(False, True)), judged(four)]
    ledger.add_evidence(attempt.number, [judged(one, unique_key=(False, True))])
    ledger.add_evidence(attempt.number, given)
    found = ledger.findings("flights", dict.fromkeys(march(1, 9), unit))
    assert found == {
        one.day: DayFindings(3, 0, passed=True),
        two.day: DayFindings(3, 0, 6, ("rule_mild",), passed=True),
        three.day: DayFindings(3, 0),
        four.day: DayFindings(3, 0),
    }


def test_findings_of_each_day_are_those_of_the_unit_named_for_it(ledger: Ledger, unit: str) -> None:
    other = ledger.assign(a_launch(march(10), "b_2"), a_unit(march(10), "b_2")).id
    for name, days in ((unit, march(1, 2)), (other, march(10))):
        attempt = ledger.start_attempt(name, "flights", days, f"r_{name}", LEASE)
        ledger.add_evidence(attempt.number, [some_evidence(name, attempt.number, day) for day in days])
    asked = {march(1)[0]: unit, march(2)[0]: other, march(10)[0]: other}
    assert set(ledger.findings("flights", asked)) == {march(1)[0], march(10)[0]}
    assert ledger.findings("flights", {}) == {}
    assert ledger.findings("orders", asked) == {}
