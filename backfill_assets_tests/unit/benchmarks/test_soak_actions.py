"""What a soak does next."""

from __future__ import annotations

import datetime as dt
import random

from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.days import ONE_DAY, day_range
from benchmarks.soak.actions import Act, Fault, Situation, choose, choose_faults, possible

FIRST = dt.date(2024, 1, 1)
STATES = ("planned", "canary", "running", "paused", "stopped", "stale", "validated", "approved", "published")

counts = st.integers(0, 3)
names = st.lists(st.text("abc", min_size=1, max_size=3), max_size=3, unique=True)
situations = st.builds(
    lambda days, live, backfills, campaigns, units, releases, claimed: Situation(
        day_range(FIRST, FIRST + (days - 1) * ONE_DAY) if days else (),
        FIRST + days * ONE_DAY,
        live,
        backfills,
        campaigns,
        units,
        releases,
        frozenset(FIRST + number * ONE_DAY for number in claimed),
    ),
    st.integers(0, 40),
    counts,
    counts,
    st.dictionaries(st.text("c", min_size=1, max_size=3), st.sampled_from(STATES), max_size=2),
    names,
    names,
    st.frozensets(st.integers(0, 40)),
)


@given(situations, st.integers())
def test_only_what_makes_sense_is_chosen_and_the_seed_decides(situation: Situation, seed: int) -> None:
    step = choose(random.Random(seed), situation)  # noqa: S311  # repeatable, not secret
    assert step == choose(random.Random(seed), situation)  # noqa: S311  # repeatable, not secret
    if step is None:
        assert possible(situation) == ()
        return
    assert (step.act, step.target) in {(p.act, p.target) for p in possible(situation)}
    match step.act:
        case Act.live:
            assert step.days == (situation.next_day,)
        case Act.late | Act.again | Act.backfill | Act.campaign:
            assert step.days
            assert set(step.days) <= set(situation.days)
            assert step.days == day_range(step.days[0], step.days[-1])
        case _:
            assert step.target in {*situation.campaigns, *situation.units, *situation.releases}


@given(situations)
def test_a_campaign_is_only_paused_while_it_works_and_only_published_when_it_is_validated(situation: Situation) -> None:
    for step in possible(situation):
        if step.act is Act.pause:
            assert situation.campaigns[step.target] in {"canary", "running"}
        if step.act is Act.publish and step.target not in situation.units:
            assert situation.campaigns[step.target] in {"validated", "approved"}


@given(situations, st.integers())
def test_a_campaign_asks_for_unclaimed_days_and_for_more_than_its_canary(situation: Situation, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # repeatable, not secret
    step = choose(chance, situation)
    if step is not None and step.act is Act.campaign:
        assert len(step.days) > 1
        assert not set(step.days) & set(situation.claimed)


@given(situations)
def test_free_ranges_are_all_unclaimed_days(situation: Situation) -> None:
    free = [day for days in situation.free() for day in days]
    assert free == [day for day in situation.days if day not in situation.claimed]
    assert all(days == day_range(days[0], days[-1]) for days in situation.free())
    assert situation.free(2) == [days for days in situation.free() if len(days) > 1]


def test_most_backfills_ask_for_unclaimed_days_and_some_clash() -> None:
    days = day_range(FIRST, FIRST + 9 * ONE_DAY)
    situation = Situation(days, days[-1], live=2, claimed=days[:5], campaigns={"a": "published"})
    chance = random.Random(1)  # noqa: S311  # repeatable, not secret
    clashes = [bool(set(step.days) & set(days[:5])) for _ in range(200) if (step := choose(chance, situation))]
    assert 0 < sum(clashes) < 50


@given(st.integers())
def test_every_kind_is_drawn_once_so_that_something_alive_is_killed(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # repeatable, not secret
    assert sorted(choose_faults(chance, spare_long_lived=False)) == sorted(Fault)


@given(st.integers(), st.sets(st.sampled_from(Fault)))
def test_what_has_not_been_killed_yet_comes_first(seed: int, met: set[Fault]) -> None:
    chance = random.Random(seed)  # noqa: S311  # repeatable, not secret
    drawn = choose_faults(chance, spare_long_lived=False, met={fault.value for fault in met})
    assert set(drawn[len(Fault) - len(met) :]) == met


def test_the_long_lived_are_spared_while_their_memory_is_judged() -> None:
    chance = random.Random(1)  # noqa: S311  # repeatable, not secret
    drawn = {fault for _ in range(50) for fault in choose_faults(chance, spare_long_lived=True)}
    assert drawn == {Fault.worker, Fault.command}


def test_every_possible_action_is_chosen_sooner_or_later() -> None:
    days = day_range(FIRST, FIRST + 9 * ONE_DAY)
    campaigns = {"a": "running", "b": "stopped", "c": "validated"}
    full = Situation(days, FIRST + 10 * ONE_DAY, campaigns=campaigns, units=("u",), releases=("r",))
    chance = random.Random(1)  # noqa: S311  # repeatable, not secret
    acts = {step.act for _ in range(500) if (step := choose(chance, full))}
    acts |= {step.act for _ in range(50) if (step := choose(chance, Situation(days, days[-1])))}
    killed = Situation(days, days[-1], campaigns={"a": "planned"})
    acts |= {step.act for _ in range(50) if (step := choose(chance, killed))}
    assert acts == set(Act)
    assert {choose_faults(chance, spare_long_lived=False)[0] for _ in range(200)} == set(Fault)


def test_live_days_and_backfills_do_not_pile_up() -> None:
    busy = Situation((FIRST,), FIRST + ONE_DAY, live=2, backfills=1, campaigns={"a": "published"})
    assert choose(random.Random(1), busy) is None  # noqa: S311  # repeatable, not secret
