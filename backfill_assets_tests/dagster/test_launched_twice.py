"""The same days are launched from the UI and the command line at the same time, and the webserver dies during launches."""

from __future__ import annotations

import datetime as dt
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from backfill_assets.core.days import day_range
from backfill_assets.core.unit import AttemptState, UnitState
from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.dagster.campaigns import backfill, planned, reaches
from backfill_assets_tests.dagster.gates import HOLD_VARIABLE, open_gates, reached, set_gate
from backfill_assets_tests.dagster.held_storage import AFTER, BEFORE
from backfill_assets_tests.dagster.lab import ROOT, Lab, amounts, started
from backfill_assets_tests.harness.waiting import PATIENCE, wait_for
from backfill_assets_tests.observed import Observed

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400 * PATIENCE)]

DATASET = "tickets_twice"
MODULE = ("-m", "backfill_assets_tests.dagster.held_definitions")
# The request of Dagster's own page, sent by a separate process: the webserver's URL, the dataset, the title, the days.
CLIENT = """
import sys
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.layers import Layer
from backfill_assets.orchestration.backfills import launch_backfill
from backfill_assets.orchestration.names import days_of
url, dataset, title, *days = sys.argv[1:]
print(launch_backfill(BackfillRequest({dataset: tuple(Layer)}, days_of(days), title), url))
"""
LISTED = """
query { partitionBackfillsOrError { ... on PartitionBackfills { results { id title status } } } }
"""
Days = tuple[dt.date, ...]
Process = subprocess.Popen[str]
_BEGUN: list[Process] = []
"""Processes that a failed test leaves waiting at a gate."""


@pytest.fixture(scope="module")
def lab(spark_server: SparkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An installation of its own with the run limits as shipped, whose workers and whose webserver have gates."""
    root = tmp_path_factory.mktemp("twice")
    # No worker dies here: one that waits on a busy machine must not count as dead.
    own = {HOLD_VARIABLE: str(root / "gates"), "PYTHONPATH": str(ROOT), "BACKFILL_ASSETS_LEASE": "60s"}
    made = Lab(root, spark_server.folder.root.parent, variables=own)
    made.module = MODULE
    made.set_up({DATASET: "tickets"}, run_limits={})
    config = yaml.safe_load((made.home / "dagster.yaml").read_text(encoding="utf-8"))
    config["storage"]["custom"] |= {"module": "backfill_assets_tests.dagster.held_storage", "class": "HeldStorage"}
    (made.home / "dagster.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (root / "gates").mkdir()
    with started(made):
        yield made
    for process in _BEGUN:
        process.kill()


def delivered(lab: Lab, first: dt.date, count: int) -> Days:
    """Newly delivered days, ten and twenty on each."""
    days = day_range(first, first + dt.timedelta(days=count - 1))
    for day in days:
        lab.deliver(DATASET, day, [(1, 10), (2, 20)])
    return days


def asked(lab: Lab, days: Days, title: str) -> Process:
    """A client that has sent the launch to the webserver, or is about to."""
    _BEGUN.append(lab.begun("python", "-c", CLIENT, lab.url, DATASET, title, *map(str, days)))
    return _BEGUN[-1]


def answered(client: Process) -> str:
    """The id of the backfill that a client received."""
    out, err = client.communicate(timeout=120 * PATIENCE)
    assert client.returncode == 0, err
    return out.strip()


def commanded(lab: Lab, days: Days, gates: Path) -> Process:
    """The same days by `dagster asset materialize`, with gates of its own."""
    span = f"{days[0]}...{days[-1]}"
    command = ("dagster", "asset", "materialize", *MODULE, "--select", f"group:{DATASET}", "--partition-range", span)
    _BEGUN.append(lab.begun(*command, **{HOLD_VARIABLE: str(gates), "BACKFILL_ASSETS_CHUNK": "all"}))
    return _BEGUN[-1]


def assert_once(lab: Lab, days: Days) -> str:
    """Each day was built and released exactly once, readers see the model's content, nothing is left; returns this in words."""
    assert amounts(lab, DATASET, days) == dict.fromkeys(days, 30)
    ledger = lab.application.ledger
    attempts = [a for a in ledger.attempts() if a.layer == "shadow" and set(a.days) & set(days)]
    built = Counter(day for attempt in attempts for day in attempt.days)
    assert built == dict.fromkeys(days, 1), [(a.number, a.state, a.days) for a in attempts]
    assert {a.state for a in attempts} == {AttemptState.done}
    releases = [r for r in ledger.releases(DATASET) if set(days) & {s.day for s in r.manifest.days}]
    assert [(r.state.value, {s.day for s in r.manifest.days}) for r in releases] == [("finalized", set(days))]
    units = [u for u in ledger.units(DATASET) if set(days) & set(u.targets[DATASET])]
    assert [u.state for u in units] == [UnitState.published]
    # The last days are reported to Dagster a moment after their release.
    wait_for(lambda: not lab.findings(), "the doctor to find nothing", 60)
    return f"{len(attempts)} attempts, {len(releases)} release of {len(days)} days; the doctor: nothing"


def listed(lab: Lab) -> dict[str, dict[str, Any]]:
    """All backfills that the webserver shows, by title; each title once."""
    found = lab.graphql(LISTED)["partitionBackfillsOrError"]["results"]
    assert len({one["title"] for one in found}) == len(found), found
    return {one["title"]: one for one in found}


@pytest.mark.parametrize("step", ["assign.1", "lock.1"], ids=["the first claim", "the first build"])
def test_two_launches_that_reach_the_same_step_together_build_and_release_once(
    observed: Observed, lab: Lab, step: str
) -> None:
    days = delivered(lab, dt.date(2024, 2, 1) if step == "assign.1" else dt.date(2024, 2, 11), 6)
    own = lab.root / f"command_{step}"
    own.mkdir()
    gates = [set_gate(own, step), set_gate(lab.root / "gates", step)]
    command, client = commanded(lab, days, own), asked(lab, days, f"twice at {step}")
    backfill = answered(client)
    pids = [reached(gate) for gate in gates]
    open_gates(*gates)
    out, err = command.communicate(timeout=400 * PATIENCE)
    ends = (lab.finished(backfill), command.returncode)
    assert ends == ("COMPLETED_SUCCESS", 0), (lab.failures(backfill), out[-3000:], err[-3000:])
    found = assert_once(lab, days)
    observed.injected(
        f"the worker of the command {pids[0]} and that of the backfill {pids[1]} let go at once before {step}"
    )
    observed.found(found)


def test_a_command_that_reaches_its_shadow_after_the_backfill_has_published_has_nothing_to_do(
    observed: Observed, lab: Lab
) -> None:
    days, own = delivered(lab, dt.date(2024, 2, 21), 6), lab.root / "late"
    own.mkdir()
    gate = set_gate(own, "assign.3")
    command = commanded(lab, days, own)
    pid = reached(gate)
    backfill = answered(asked(lab, days, "before the command"))
    assert lab.finished(backfill) == "COMPLETED_SUCCESS", lab.failures(backfill)
    open_gates(gate)
    out, err = command.communicate(timeout=400 * PATIENCE)
    assert command.returncode == 0, (out[-3000:], err[-3000:])
    observed.injected(f"the command {pid} held before its shadow until the backfill has published")
    observed.found(assert_once(lab, days))


def test_a_backfill_whose_last_run_begins_after_the_command_has_published_leaves_no_unit_open(
    observed: Observed, lab: Lab
) -> None:
    days, own, gates = delivered(lab, dt.date(2024, 3, 1), 6), lab.root / "early", lab.root / "gates"
    own.mkdir()
    command_builds = set_gate(own, "lock.1")
    command = commanded(lab, days, own)
    reached(command_builds)
    first_ends = set_gate(gates, "assign.5")
    backfill = answered(asked(lab, days, "around the command"))
    reached(first_ends)
    last_begins = set_gate(gates, "assign.1")
    open_gates(first_ends)
    pid = reached(last_begins)
    open_gates(command_builds)
    out, err = command.communicate(timeout=400 * PATIENCE)
    assert command.returncode == 0, (out[-3000:], err[-3000:])
    open_gates(last_begins)
    assert lab.finished(backfill) == "COMPLETED_SUCCESS", lab.failures(backfill)
    observed.injected(f"the backfill's last run {pid} held at its start until the command has published")
    observed.found(assert_once(lab, days))


def test_a_backfill_from_the_ui_that_comes_after_the_launch_of_a_campaign_leaves_its_days_alone(
    observed: Observed, lab: Lab
) -> None:
    days, gates = delivered(lab, dt.date(2024, 3, 11), 6), lab.root / "gates"
    campaign, gate = (
        planned(lab, "launched-first", DATASET, days, partitions_per_batch=3),
        set_gate(gates, "assign.1"),
    )
    launched = answered(asked(lab, days, "after the campaign"))
    pid = reached(gate)
    backfill(lab, "launch", campaign)
    open_gates(gate)
    assert lab.finished(launched) == "COMPLETED_FAILED"
    refusal = lab.failures(launched)
    assert f"belongs to campaign {campaign}" in refusal
    assert f"backfill resume {campaign}" in refusal
    reaches(lab, "validated", campaign=campaign)
    backfill(lab, "publish", campaign)
    observed.injected(
        f"the worker of the UI's backfill {pid} held at its first claim until a campaign has been launched over the same days"
    )
    observed.found(f"it was refused; {assert_once(lab, days)}")


def test_a_campaign_is_not_launched_over_days_that_a_backfill_from_the_ui_is_building(
    observed: Observed, lab: Lab
) -> None:
    days, gates = delivered(lab, dt.date(2024, 3, 21), 6), lab.root / "gates"
    campaign, gate = planned(lab, "launched-second", DATASET, days, partitions_per_batch=3), set_gate(gates, "lock.1")
    launched = answered(asked(lab, days, "before the campaign"))
    pid = reached(gate)
    refusal = backfill(lab, "launch", campaign, refused=True)
    unit = lab.unit(launched).id
    assert f"claimed by open unit {unit}" in refusal
    assert f"backfill publish {unit}" in refusal
    open_gates(gate)
    assert lab.finished(launched) == "COMPLETED_SUCCESS", lab.failures(launched)
    observed.injected(
        f"the worker of the UI's backfill {pid} held before it builds while a campaign is launched over the same days"
    )
    observed.found(f"the campaign was refused; {assert_once(lab, days)}")


@pytest.mark.parametrize("point", [BEFORE, AFTER])
def test_the_webserver_dies_with_a_launch_in_it_while_another_is_running(
    observed: Observed, lab: Lab, point: str
) -> None:
    days = delivered(lab, dt.date(2024, 4, 1) if point == BEFORE else dt.date(2024, 4, 21), 3)
    more, gates = delivered(lab, days[-1] + dt.timedelta(days=1), 3), lab.root / "gates"
    at_work, in_flight, again = f"{point}: at work", f"{point}: in flight", f"{point}: said again"
    shadow_written = set_gate(gates, "add_evidence.1")
    backfill = answered(asked(lab, days, at_work))
    worker = reached(shadow_written)
    launch, landed = set_gate(gates, point), set_gate(gates, "add_deliveries.1")
    client = asked(lab, more, in_flight)
    pid = reached(launch)
    lab.kill_webserver()
    _, err = client.communicate(timeout=120 * PATIENCE)
    assert client.returncode != 0
    assert "no Dagster webserver answers at" in err
    open_gates(shadow_written)
    assert lab.finished(backfill) == "COMPLETED_SUCCESS", lab.failures(backfill)
    if point == AFTER:
        # The daemon has started it while there is no webserver.
        reached(landed)
    lab.start_webserver()
    shown = listed(lab)
    assert shown[at_work] == {"id": backfill, "title": at_work, "status": "COMPLETED_SUCCESS"}
    assert (in_flight in shown) == (point == AFTER)
    # A user who got no answer launches again: they cannot know that it was stored.
    ids = [answered(asked(lab, more, again)), *([shown[in_flight]["id"]] if point == AFTER else [])]
    if point == BEFORE:
        reached(landed)
    open_gates(landed)
    assert [lab.finished(one) for one in ids] == ["COMPLETED_SUCCESS"] * len(ids), [lab.failures(one) for one in ids]
    found = f"{assert_once(lab, days)}; of the launch in flight {assert_once(lab, more)}"
    observed.injected(f"kill -9 of the webserver {pid} {point}, beside the worker {worker}")
    observed.found(found)
    launch.with_name(f"{launch.name}.on").unlink()
