"""What a soak says at its end, and when it says that every promise was kept."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.soak.actions import Act, Fault
from benchmarks.soak.figures import figures
from benchmarks.soak.found import Found
from benchmarks.soak.judge import left_by_doctor
from benchmarks.soak.site import Said
from benchmarks.soak.trend import Trend

FLAT = Trend("Dagster daemon", 400.0, 300e6, 0.1e6, 50.0, 0.0)
GOOD = Found(
    acts=Counter({Act.live.value: 30, Act.campaign.value: 4, Act.publish.value: 3}),
    refused=Counter({Act.publish.value: 1}),
    faults=Counter({Fault.worker.value: 3, Fault.spark.value: 1}),
    polls=Counter({"polars": 1200, "spark": 900}),
    trends=(FLAT,),
    days=30,
    deliveries=50,
    rows=10_000,
    versions=40,
    publications=35,
    rollbacks=4,
    ended=True,
)


def test_a_good_soak_says_so_with_all_its_figures() -> None:
    text = figures(GOOD, 20, 7)
    for observed in (
        "| minutes of acts and kills, seed | 20, 7 |",
        "| days, deliveries, rows delivered | 30, 50, 10,000 |",
        "| commands (refused or killed) | 3 publish (1) |",
        "| publications, rollbacks | 35, 4 |",
        "| kill -9 | 4: 3 run worker, 1 Spark server |",
        "| polls per reader | polars 1,200, spark 900 |",
        "| Dagster daemon | 400 s | 300 MB, +0.10 MB/min | 50, +0.00/min | flat |",
        "| rows lost | 0 |",
        "Every promise was kept.",
    ):
        assert observed in text


MANY = Counter({fault.value: 5 for fault in Fault if fault is not Fault.executor})


def test_executors_that_were_never_killed_have_proved_nothing_where_there_are_any() -> None:
    assert replace(GOOD, faults=MANY, absent=frozenset({Fault.executor})).kept
    assert replace(GOOD, faults=MANY).idle == ("no kill of a Spark executor",)


@pytest.mark.parametrize(
    ("broken", "observed"),
    [
        ({"lost": ("2024-01-01 is gone",)}, "rows lost: 2024-01-01 is gone"),
        ({"trends": (replace(FLAT, rss_per_minute=50e6),)}, "processes that grow: Dagster daemon"),
        ({"publications": 0}, "what never happened: no publication"),
        ({"polls": Counter({"spark": 0})}, "what never happened: no look of the reader spark"),
        ({"faults": Counter[str]()}, "what never happened: no kill"),
        ({"faults": Counter({Fault.worker.value: 20})}, "what never happened: no kill of a Spark server"),
    ],
)
def test_a_broken_promise_is_reported_and_so_is_what_has_proved_nothing(
    broken: dict[str, object], observed: str
) -> None:
    found = replace(GOOD, **broken)  # type: ignore[arg-type]
    assert not found.kept
    assert observed in figures(found, 20, 7)
    assert "BROKEN" in figures(found, 20, 7)


def test_a_soak_that_did_not_end_has_no_verdict() -> None:
    found = replace(GOOD, ended=False)
    assert not found.kept
    assert "no verdict" in figures(found, 20, 7)
    assert "30 a new day arrives" in figures(found, 20, 7)
    assert "lost" not in figures(found, 20, 7)


def test_a_short_life_is_neither_flat_nor_growing() -> None:
    found = replace(GOOD, trends=(replace(FLAT, seconds=60.0, rss_per_minute=50e6),))
    assert found.kept
    assert "too short to say" in figures(found, 3, 7)


def test_only_findings_that_the_doctor_merely_mentions_are_left_out() -> None:
    findings = [{"severity": "info", "what": "a lock"}, {"severity": "warning", "what": "no manifest"}]
    assert left_by_doctor(Said(0, json.dumps(findings))) == ("warning: no manifest",)
    assert left_by_doctor(Said(0, json.dumps({"repaired": [], "findings": findings}))) == ("warning: no manifest",)
    assert left_by_doctor(Said(0, "[]")) == ()
    (observed,) = left_by_doctor(Said(1, "", "the ledger is away"))
    assert "the ledger is away" in observed


def test_a_command_that_was_killed_without_output_is_still_reported() -> None:
    assert Said(-9).last == "ended with -9 and said nothing"
    assert Said(1, "a table", "refused: claimed").last == "refused: claimed"
