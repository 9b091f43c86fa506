"""Which processes of a soak count as growing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.spark.start import TABLES_KEPT
from benchmarks.soak.actions import Fault
from benchmarks.soak.trend import Sample, slope, trend_of
from benchmarks.soak.watch import spare_bytes, tables_kept

MEGA = 1_000_000


def samples(seconds: int, rss_per_second: float, files_per_second: float = 0) -> list[Sample]:
    return [
        Sample(float(at), int(300 * MEGA + rss_per_second * at), int(50 + files_per_second * at))
        for at in range(0, seconds, 5)
    ]


def test_a_leak_is_found() -> None:
    assert trend_of(Fault.daemon.value, samples(1200, 0)).flat
    assert not trend_of(Fault.daemon.value, samples(1200, 0, 0.15)).flat
    assert not trend_of(Fault.daemon.value, samples(1200, 0.2 * MEGA)).flat
    assert not trend_of("reader (delta-rs)", samples(1200, 0, 0.1)).flat


def test_databases_of_runs_that_stay_open_are_no_leak() -> None:
    assert trend_of(Fault.webserver.value, samples(1200, 0, 0.05)).flat
    assert not trend_of("reader (delta-rs)", samples(1200, 0, 0.05)).flat


def test_memory_that_a_process_takes_while_it_warms_up_is_no_leak() -> None:
    warm = [Sample(s.at, s.rss if s.at > 300 else s.rss // 4, s.files) for s in samples(1200, 0)]
    found = trend_of("Spark server", warm)
    assert found.flat
    assert found.rss_per_minute == pytest.approx(0)


@pytest.mark.parametrize("at", [500, 700, 800, 1000])
def test_what_is_taken_once_is_no_leak(at: int) -> None:
    """As a soak did at 742 s, whose first campaign loaded a library: 29 MB and ten files."""
    taken = [Sample(float(t), (317 + 29 * (t > at)) * MEGA, 17 + 10 * (t > at)) for t in range(0, 1200, 5)]
    assert trend_of("the soak itself", taken).flat
    leak = [Sample(float(t), 317 * MEGA, 17 + t // 30) for t in range(0, 1200, 5)]
    assert not trend_of("the soak itself", leak).flat


def test_a_short_life_is_not_judged() -> None:
    assert not trend_of("reader", samples(120, 5 * MEGA)).judged
    assert not trend_of("reader", samples(5, 0)).judged
    assert trend_of("reader", samples(1200, 0)).judged


@given(st.floats(-100, 100), st.floats(-100, 100), st.lists(st.integers(0, 1000), min_size=2, unique=True))
def test_a_straight_line_has_its_own_slope(of: float, start: float, xs: list[int]) -> None:
    assert slope([float(x) for x in xs], [start + of * x for x in xs]) == pytest.approx(of, abs=1e-6)


# From a JVM whose collector does no concurrent work, so CGC and CGCT have no figures.
SAID = """ S0C    S1C    S0U    S1U      EC       EU        OC         OU       MC       MU    YGC  CGC CGCT
 0.0   2048.0  0.0  2048.0 484352.0 40960.0  380928.0  275113.8 284160.0 272366.2 645   -    -
"""


def test_memory_that_a_jvm_has_reserved_is_distinguished_from_memory_that_it_uses() -> None:
    assert spare_bytes(SAID) == int((2048 + 484352 + 380928 - 2048 - 275113.8) * 1024)


@pytest.mark.parametrize("said", ["", "9086 not found\n", "9086:\nCommand executed successfully\n"])
def test_the_memory_of_a_jvm_that_does_not_answer_is_unknown(said: str) -> None:
    assert spare_bytes(said) is None


OBJECTS = """ num     #instances         #bytes  class name (module)
-------------------------------------------------------
   1:        332647       66227376  [B (java.base@17.0.15)
1088:            10           1040  org.apache.spark.sql.delta.DeltaLog
1120:            24           1152  org.apache.spark.sql.delta.DeltaLogFileIndex
Total       3280613      189024960
"""


def test_tables_that_delta_keeps_are_counted() -> None:
    assert tables_kept(OBJECTS) == 10
    assert tables_kept("9086 not found") == 0


def test_tables_beyond_the_limit_of_delta_are_a_leak() -> None:
    assert tables_kept(OBJECTS.replace("         10  ", "        500  ")) == TABLES_KEPT
