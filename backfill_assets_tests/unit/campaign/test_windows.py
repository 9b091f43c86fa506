"""Time windows are right on every day, also on days of 23 and 25 hours."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.campaign.execution import TimeWindow, covers_the_day, parse_window

MINUTE = dt.timedelta(minutes=1)
# Half an hour of summer time, changes at midnight and just after it, a skipped day, no change at all.
ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "America/St_Johns",
    "Asia/Beirut", "Pacific/Apia", "Asia/Kathmandu", "Africa/Casablanca", "America/Havana",
]  # fmt: skip
BERLIN = ZoneInfo("Europe/Berlin")

clocks = st.builds(dt.time, st.integers(0, 23), st.integers(0, 59))
windows = st.tuples(clocks, clocks).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: TimeWindow(*pair))


def changes_of(name: str) -> list[dt.datetime]:
    """Every hour between 1996 and 2030 before which the clock of a zone was set."""
    zone, hour = ZoneInfo(name), dt.timedelta(hours=1)
    day, found = dt.datetime(1996, 1, 1, tzinfo=dt.UTC), []
    while day.year < 2030:
        after = day + dt.timedelta(days=1)
        if day.astimezone(zone).utcoffset() != after.astimezone(zone).utcoffset():
            hours = [day + i * hour for i in range(25)]
            found += [b for a, b in pairwise(hours) if a.astimezone(zone).utcoffset() != b.astimezone(zone).utcoffset()]
        day = after
    return found


CHANGES = {name: changes_of(name) for name in ZONES}


@st.composite
def moments(draw: st.DrawFn) -> tuple[ZoneInfo, dt.datetime]:
    """A zone and a whole minute in UTC, mostly within a day and a half of a change of its clock."""
    name = draw(st.sampled_from(ZONES))
    anywhere = dt.datetime(2000, 1, 1, tzinfo=dt.UTC) + draw(st.integers(0, 10_000)) * dt.timedelta(days=1)
    near = draw(st.sampled_from(CHANGES[name])) if CHANGES[name] else anywhere
    return ZoneInfo(name), near + draw(st.integers(-36 * 60, 36 * 60)) * MINUTE


def opened(window: TimeWindow, moment: dt.datetime, zone: ZoneInfo) -> bool:
    """The definition, minute by minute: the wall clock is at or after begin and before end."""
    clock, shown = moment.astimezone(zone).time(), window.begin
    while shown != window.end:
        if (shown.hour, shown.minute) == (clock.hour, clock.minute):
            return True
        shown = (dt.datetime.combine(dt.date(2000, 1, 1), shown) + MINUTE).time()
    return False


def walked(window: TimeWindow, moment: dt.datetime, zone: ZoneInfo, *, until: bool) -> dt.datetime:
    while window.contains(moment, zone) is not until:
        moment += MINUTE
    return moment


def test_every_kind_of_change_is_among_the_samples() -> None:
    assert {name for name, found in CHANGES.items() if not found} == {"UTC", "Asia/Kathmandu"}


@given(moments(), windows)
def test_a_window_is_open_while_the_wall_clock_is_in_it(at: tuple[ZoneInfo, dt.datetime], window: TimeWindow) -> None:
    zone, moment = at
    assert window.contains(moment, zone) is opened(window, moment, zone)


@settings(max_examples=300)
@given(moments(), windows)
def test_its_end_and_begin_agree_with_a_walk_minute_by_minute(
    at: tuple[ZoneInfo, dt.datetime], window: TimeWindow
) -> None:
    zone, moment = at
    ending = walked(window, moment, zone, until=False)
    assert window.ends(moment, zone) == ending
    assert window.begins(moment, zone) == walked(window, ending, zone, until=True)


@given(moments(), windows, st.integers(0, 59_999_999))
def test_seconds_make_no_difference_to_when_it_ends(
    at: tuple[ZoneInfo, dt.datetime], window: TimeWindow, microseconds: int
) -> None:
    zone, moment = at
    if window.contains(moment, zone):
        later = moment + dt.timedelta(microseconds=microseconds)
        assert window.ends(later.astimezone(zone), zone) == window.ends(moment, zone)
        assert window.ends(later, zone).tzinfo is dt.UTC


@pytest.mark.parametrize(
    ("window", "moment", "ends", "begins"),
    [
        # 2026-03-29 has 23 hours in Berlin: 02:00 to 03:00 is skipped.
        ("01:30-02:30", "2026-03-29T00:40", "2026-03-29T01:00", "2026-03-29T23:30"),
        ("02:15-02:45", "2026-03-28T12:00", "2026-03-28T12:00", "2026-03-30T00:15"),
        ("22:00-05:00", "2026-03-28T22:00", "2026-03-29T03:00", "2026-03-29T20:00"),
        # 2026-10-25 has 25 hours: 02:00 to 03:00 is shown twice.
        ("01:30-02:30", "2026-10-24T23:40", "2026-10-25T00:30", "2026-10-25T01:00"),
        ("22:00-05:00", "2026-10-24T22:00", "2026-10-25T04:00", "2026-10-25T21:00"),
        ("07:00-09:30", "2026-07-01T05:00", "2026-07-01T07:30", "2026-07-02T05:00"),
        ("07:00-09:30", "2026-07-01T07:30", "2026-07-01T07:30", "2026-07-02T05:00"),
    ],
)
def test_windows_in_berlin(window: str, moment: str, ends: str, begins: str) -> None:
    found, at = parse_window(window), dt.datetime.fromisoformat(f"{moment}+00:00")
    assert f"{found.ends(at, BERLIN):%Y-%m-%dT%H:%M}" == ends
    assert f"{found.begins(at, BERLIN):%Y-%m-%dT%H:%M}" == begins


@given(windows)
def test_a_window_is_read_back_from_its_text(window: TimeWindow) -> None:
    assert parse_window(str(window)) == window


@pytest.mark.parametrize(
    ("text", "shown"),
    [(" 7:05 - 09:30 ", "07:05-09:30"), ("22:00-24:00", "22:00-24:00"), ("22:00-0:00", "22:00-24:00")],
)
def test_a_window_may_be_written_in_several_ways(text: str, shown: str) -> None:
    assert str(parse_window(text)) == shown


@pytest.mark.parametrize("value", ["7-9", "07:00", "07:00-25:00", "24:00-07:00", "07:60-08:00", "07:00-24:30", 7, None])
def test_what_is_no_window_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="two times of day, such as 07:00-09:30"):
        parse_window(value)


@pytest.mark.parametrize("text", ["07:00-07:00", "00:00-24:00", "0:00-00:00"])
def test_a_window_of_the_complete_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="would be the entire day"):
        parse_window(text)


@given(st.lists(windows, max_size=4))
def test_windows_cover_the_day_if_no_minute_of_it_is_outside(found: list[TimeWindow]) -> None:
    midnight = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    minutes = [midnight + i * MINUTE for i in range(24 * 60)]
    assert covers_the_day(found) is all(any(w.contains(m, ZoneInfo("UTC")) for w in found) for m in minutes)


@given(clocks, clocks, clocks)
def test_windows_that_hand_over_to_each_other_cover_the_day(one: dt.time, two: dt.time, three: dt.time) -> None:
    edges = sorted({one, two, three})
    if len(edges) > 1:
        following = [*edges[1:], edges[0]]
        assert covers_the_day([TimeWindow(*pair) for pair in zip(edges, following, strict=True)])
        assert not covers_the_day([TimeWindow(*pair) for pair in zip(edges[:-1], following[:-1], strict=True)])
