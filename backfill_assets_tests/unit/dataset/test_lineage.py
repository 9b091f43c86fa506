"""Datasets that depend on each other: their order, their groups, what they must share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.dataset.loaded import (
    Upstreams,
    cycle_in,
    differences,
    downstream_of,
    release_groups,
    upstream_first,
)
from backfill_assets_tests.harness.judged import dataset

SHOP: Upstreams = {
    "daily_sales": ("order_items",),
    "order_items": (),
    "flights": (),
    "weekly": ("daily_sales", "order_items"),
}


def test_each_dataset_comes_after_what_it_is_built_from() -> None:
    assert upstream_first(["weekly", "daily_sales", "order_items"], SHOP) == ("order_items", "daily_sales", "weekly")
    assert upstream_first(["weekly", "order_items"], SHOP) == ("order_items", "weekly")


def test_connected_datasets_are_one_release_group() -> None:
    assert release_groups(SHOP) == (("order_items", "daily_sales", "weekly"), ("flights",))


def test_everything_downstream_is_found_and_nothing_else() -> None:
    assert downstream_of(["order_items"], SHOP) == ("daily_sales", "weekly")
    assert downstream_of(["daily_sales"], SHOP) == ("weekly",)
    assert downstream_of(["flights", "weekly"], SHOP) == ()


def test_a_cycle_is_found_with_its_members() -> None:
    assert cycle_in(SHOP) == ()
    assert set(cycle_in({"a": ("b",), "b": ("c",), "c": ("a",), "d": ("a",)})) == {"a", "b", "c"}


def test_what_must_be_shared_and_is_not_is_named_on_both_sides() -> None:
    here, there = dataset(name="totals", chunk_days=7), dataset(time_zone="UTC")
    assert differences(here, there) == (
        ("time_zone", "time_zone is Europe/Berlin, but UTC in trips"),
        ("chunk_days", "chunk_days is 7, but 31 in trips"),
    )
    assert differences(here, here) == ()


@st.composite
def acyclic(draw: st.DrawFn) -> Upstreams:
    names = [f"d{i}" for i in range(draw(st.integers(1, 8)))]
    return {
        name: tuple(draw(st.lists(st.sampled_from(names[:i]), unique=True))) if i else ()
        for i, name in enumerate(names)
    }


@given(acyclic())
def test_groups_divide_all_datasets_and_keep_upstreams_before_their_downstreams(upstreams: Upstreams) -> None:
    groups = release_groups(upstreams)
    assert sorted(name for group in groups for name in group) == sorted(upstreams)
    for group in groups:
        for name in group:
            assert set(upstreams[name]) <= set(group[: group.index(name)])
            assert set(downstream_of([name], upstreams)) <= set(group[group.index(name) + 1 :])
