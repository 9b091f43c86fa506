"""Times that cannot be right are corrected by the releases before and after them."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.core.release import AHEAD, corrected, is_ahead

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
skews = st.sampled_from([dt.timedelta(0), dt.timedelta(0), -1000 * HOUR, -HOUR, HOUR, 100_000 * HOUR])


def test_a_time_counts_as_ahead_once_no_two_hosts_differ_so_much() -> None:
    assert not is_ahead(NOW + AHEAD, NOW)
    assert is_ahead(NOW + AHEAD + dt.timedelta(seconds=1), NOW)


@given(st.lists(skews, max_size=8))
def test_no_release_counts_as_older_than_it_is_by_the_clocks_that_were_right(skew: list[dt.timedelta]) -> None:
    """Release number n is made n hours after the first, by a clock with this skew; all are read long after the last one."""
    made = [NOW + n * HOUR for n in range(len(skew))]
    observed = [(f"r_{n}", at + by) for n, (at, by) in enumerate(zip(made, skew, strict=True))]
    now = NOW + 1000 * HOUR
    fixed = corrected(observed, now)
    since = [fixed.get(name, at) for name, at in observed]
    right = [n for n, by in enumerate(skew) if not by]
    for n, at in enumerate(since):
        before = [made[m] for m in right if m <= n]
        # Nothing counts as made before what was certainly made before it.
        assert not before or at >= max(before)
        # And every release before a right one has an end.
        assert not is_ahead(at, now) or not any(m > n for m in right)
    assert all(
        name not in fixed for name, at in observed if not is_ahead(at, now) and at == max(a for _, a in observed)
    )
