"""`backfill run` and `resume` with `--watch`: which units are named at the end, and when the exit code is 1."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.storage.tags import AUTO_RETRY_RUN_ID_TAG, WILL_RETRY_TAG
from dagster._core.test_utils import create_run_for_test
from typer.testing import CliRunner, Result

from backfill_assets.cli import launches
from backfill_assets.cli.app import app
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.unit import OPENED_BY, REASON_TAG, Launch, ReleaseMode, Unit, UnitState
from backfill_assets.orchestration import backfills
from backfill_assets.orchestration.assets import first_reason
from backfill_assets.orchestration.backfills import LaunchError
from backfill_assets.orchestration.launches import BACKFILL_TAG
from backfill_assets.orchestration.names import FAILED_DAYS, opened_instance
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import BOTH, House

D1, D2 = day(1), day(2)
RANGE = f"{D1}..{D2}"
SUCCESS, STARTED = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.STARTED
GOOD, BAD, WAITS = BulkActionStatus.COMPLETED_SUCCESS, BulkActionStatus.COMPLETED_FAILED, BulkActionStatus.REQUESTED


class Daemon:
    """An instance to which launches add backfills that have a run each; `statuses` are theirs, in turn.

    While a command waits, `steps` are done one by one; after the last one, every backfill has ended well.
    """

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.statuses: list[BulkActionStatus] = []
        self.steps: list[Callable[[], object]] = []
        self.stored = 0
        self.runs = True
        self.now = 0.0

    def launch(self, backfill: BackfillRequest, webserver: str | None = None) -> str:
        del backfill, webserver
        self.stored += 1
        name, status = f"b_{self.stored}", self.statuses.pop(0)
        self.instance.add_backfill(PartitionBackfill(name, status, False, {}, 0.0))
        if self.runs:
            self._run_of(name)
        return name

    def _run_of(self, name: str) -> None:
        create_run_for_test(self.instance, status=dg.DagsterRunStatus.STARTED, tags={BACKFILL_TAG: name})

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += 20 * seconds
        if self.steps:
            self.steps.pop(0)()
        if not self.steps:
            for backfill in self.instance.get_backfills():
                self.instance.update_backfill(backfill.with_status(GOOD))  # type: ignore[no-untyped-call]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with dg.DagsterInstance.ephemeral() as instance:
        found = Daemon(instance)

        @contextmanager
        def opened() -> Iterator[dg.DagsterInstance]:
            yield instance

        monkeypatch.setattr(launches, "opened_dagster", opened)
        monkeypatch.setattr(backfills, "launch_backfill", found.launch)
        clock = SimpleNamespace(sleep=found.wait, monotonic=found.monotonic)
        monkeypatch.setattr("backfill_assets.cli.watch.time", clock)
        yield found


def _run(daemon: Daemon, *words: str, statuses: Sequence[BulkActionStatus] = (GOOD,)) -> Result:
    daemon.statuses = list(statuses)
    return CliRunner().invoke(app, [*words, "--watch"])


def _opened(house: House, launch: str, names: Sequence[str] = BOTH) -> Unit:
    """An open unit of two days, opened by this launch; both days have passed."""
    days = frozenset({D1, D2})
    targets = dict.fromkeys(names, (D1, D2))
    proposal = Unit(house.world.ids.new("u"), launch, house.world.clock.now(), "ada", targets, ReleaseMode.auto)
    unit = house.world.ledger.assign(Launch(dict.fromkeys(names, days), launch), proposal)
    for name in names:
        house.world.build(unit, name, {D1: [1], D2: [2]})
    return unit


def _releases(house: House, unit: Unit) -> list[str]:
    return [record.manifest.release for record in house.world.ledger.releases(unit=unit.id)]


def test_the_releases_of_the_unit_that_the_launch_opened_are_named(house: House, daemon: Daemon) -> None:
    unit = _opened(house, "b_1")
    house.world.publisher().release(unit.id)
    done = _run(daemon, "run", *BOTH, RANGE)
    assert done.exit_code == 0, done.output
    for release in _releases(house, unit):
        assert f"undo it with: backfill rollback {release} --reason" in done.output


def test_a_unit_that_the_launch_cannot_join_is_not_named(house: House, daemon: Daemon) -> None:
    unit = house.unit({D1: [1], D2: [2]}, names=("sales",))
    done = _run(daemon, "run", *BOTH, RANGE, statuses=[BAD])
    assert (done.exit_code, unit.id in done.output) == (1, False), done.output


@pytest.mark.parametrize(("last", "code"), [(dg.DagsterRunStatus.SUCCESS, 0), (dg.DagsterRunStatus.FAILURE, 1)])
def test_a_backfill_that_dagster_calls_failed_has_succeeded_if_the_retries_of_its_failed_runs_have(
    house: House, daemon: Daemon, last: dg.DagsterRunStatus, code: int
) -> None:
    unit = _opened(house, "b_1")
    house.world.publisher().release(unit.id)
    daemon.runs = False
    tags = {BACKFILL_TAG: "b_1"}
    retry = create_run_for_test(daemon.instance, status=last, tags=tags)
    create_run_for_test(
        daemon.instance, status=dg.DagsterRunStatus.FAILURE, tags=tags | {AUTO_RETRY_RUN_ID_TAG: retry.run_id}
    )
    done = _run(daemon, "run", *BOTH, RANGE, statuses=[BAD])
    assert done.exit_code == code, done.output
    assert ("failed:" in done.output) == bool(code)
    assert ("1 failure" in done.output) == bool(code)


@pytest.mark.parametrize(
    ("runs", "opener", "seconds"),
    [
        ([SUCCESS], "b_1", 40),
        ([SUCCESS, SUCCESS], "b_1", 40),
        ([], "b_1", 80),
        ([SUCCESS, STARTED], "b_1", 80),
        ([SUCCESS, dg.DagsterRunStatus.FAILURE], "b_1", 80),
        ([SUCCESS], "b_other", 80),
    ],
)
def test_a_launch_is_over_when_its_runs_have_succeeded_and_its_own_unit_is_released_although_dagster_has_not_looked_yet(
    house: House, daemon: Daemon, runs: Sequence[dg.DagsterRunStatus], opener: str, seconds: float
) -> None:
    unit = _opened(house, opener)
    daemon.runs = False
    for status in runs:
        create_run_for_test(daemon.instance, status=status, tags={BACKFILL_TAG: "b_1"})
    daemon.steps = [lambda: house.world.publisher().release(unit.id), lambda: None]
    done = _run(daemon, "run", *BOTH, RANGE, statuses=[WAITS])
    assert (done.exit_code, daemon.now) == (0, seconds), done.output


def test_a_failed_run_that_dagster_will_launch_again_is_not_called_a_failure(house: House, daemon: Daemon) -> None:
    daemon.runs = False
    tags = {BACKFILL_TAG: "b_1", WILL_RETRY_TAG: "true"}
    create_run_for_test(daemon.instance, status=dg.DagsterRunStatus.FAILURE, tags=tags)
    done = _run(daemon, "run", *BOTH, RANGE, statuses=[WAITS])
    assert "0:00:00 runs: 1 waiting for retry\n" in done.output
    assert "failure" not in done.output


def test_the_progress_says_without_a_terminal_when_something_changes_and_how_long_it_took(
    house: House, daemon: Daemon
) -> None:
    daemon.runs = False
    unit = _opened(house, "b_1")
    daemon.steps = [
        lambda: None,
        lambda: create_run_for_test(daemon.instance, status=SUCCESS, tags={BACKFILL_TAG: "b_1"}),
        lambda: house.world.publisher().release(unit.id),
    ]
    said = _run(daemon, "run", *BOTH, RANGE, statuses=[WAITS]).output.splitlines()
    assert said[0] == f"asking Dagster to launch sales, totals {RANGE}"
    waiting, running, bar = (line for line in said if line.startswith("0:") or "days checked" in line)
    assert waiting == "0:00:00 waiting for the Dagster daemon, which may take 30 s"
    assert running == "0:01:20 runs: 1 success"
    assert bar.endswith("4/4 days checked 0:02:00")


def test_days_that_no_run_has_checked_have_not_succeeded_with_the_retry_of_another(
    house: House, daemon: Daemon
) -> None:
    unit = _opened(house, "b_1", ("sales",))
    house.world.publisher().release(unit.id)
    daemon.runs = False
    tags = {BACKFILL_TAG: "b_1"}
    retry = create_run_for_test(daemon.instance, status=dg.DagsterRunStatus.SUCCESS, tags=tags)
    create_run_for_test(
        daemon.instance, status=dg.DagsterRunStatus.FAILURE, tags=tags | {AUTO_RETRY_RUN_ID_TAG: retry.run_id}
    )
    done = _run(daemon, "run", *BOTH, RANGE, statuses=[BAD])
    assert (done.exit_code, "failed:" in done.output) == (1, True), done.output


def test_failed_checks_are_said_once_and_only_for_the_run_in_one_line(house: House, daemon: Daemon) -> None:
    unit = house.world.open_unit(dict.fromkeys(BOTH, (D1, D2)))
    house.world.build(unit, "sales", {D1: [1], D2: [2]}, passed=False)

    @dg.op
    def checks() -> None:
        raise dg.Failure("2 of 2 days of sales failed\n2 days, such as unique_key", metadata={FAILED_DAYS: RANGE})

    daemon.runs = False
    run = dg.GraphDefinition("checks", node_defs=[checks]).to_job()
    run.execute_in_process(instance=daemon.instance, raise_on_error=False, tags={BACKFILL_TAG: "b_1"})
    done = _run(daemon, "resume", unit.id, statuses=[BAD])
    said = done.output.splitlines()
    assert [line.partition(": ")[2].partition(": ")[2] for line in said if "failed: run" in line] == [
        "2 of 2 days of sales failed"
    ]
    listed = f"    2 days ({RANGE}), such as {D1} unique_key: expected no duplicate, found what is there"
    assert [line for line in said if "unique_key" in line] == [listed]
    assert "Only if this change is intended" not in done.output


def test_the_unit_of_a_campaign_is_not_offered_to_be_discarded(house: House, daemon: Daemon) -> None:
    unit = _opened(house, f"{OPENED_BY}fix-tax/1")
    done = _run(daemon, "run", *BOTH, RANGE, statuses=[BAD])
    assert (done.exit_code, unit.id in done.output) == (1, False), done.output


def test_days_that_another_launch_releases_first_are_not_the_success_of_this_one(house: House, daemon: Daemon) -> None:
    other = _opened(house, "b_other")
    mine: list[Unit] = []

    def release(unit: Unit) -> None:
        house.world.publisher().release(unit.id)

    daemon.steps = [
        lambda: release(other),
        lambda: mine.append(_opened(house, "b_1")),
        lambda: release(mine[0]),
    ]
    done = _run(daemon, "run", *BOTH, RANGE, statuses=[WAITS])
    assert done.exit_code == 0, done.output
    assert all(release in done.output for release in _releases(house, mine[0]))
    assert not any(release in done.output for release in _releases(house, other))


def test_a_launch_of_raw_says_nothing_about_the_unit_of_another_launch(house: House, daemon: Daemon) -> None:
    unit = _opened(house, "b_other")
    done = _run(daemon, "run", "sales", RANGE, "--only", "raw")
    assert (done.exit_code, unit.id in done.output) == (0, False), done.output


def test_published_alone_names_every_unit_that_it_released(house: House, daemon: Daemon) -> None:
    units = [house.unit({one: [1]}) for one in (D1, D2)]
    daemon.steps = [lambda: [house.world.publisher().release(unit.id) for unit in units]]
    done = _run(daemon, "run", *BOTH, RANGE, "--only", "published", statuses=[WAITS])
    assert done.exit_code == 0, done.output
    assert all(release in done.output for unit in units for release in _releases(house, unit))


def test_a_unit_that_is_complete_but_not_released_is_no_success_unless_only_shadow_was_launched(
    house: House, daemon: Daemon
) -> None:
    unit = _opened(house, "b_1")
    done = _run(daemon, "run", *BOTH, RANGE)
    assert (done.exit_code, f"unit {unit.id} is complete" in done.output) == (1, True), done.output
    done = _run(daemon, "run", *BOTH, RANGE, "--only", "shadow")
    assert (done.exit_code, f"unit {unit.id} is complete" in done.output) == (0, True), done.output


def test_a_unit_that_was_given_up_meanwhile_is_no_success(house: House, daemon: Daemon) -> None:
    unit = _opened(house, "b_1")
    house.world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    done = _run(daemon, "run", *BOTH, RANGE)
    assert done.exit_code == 1
    assert f"unit {unit.id} was discarded meanwhile: nothing of it is published" in done.output


def test_a_canceled_backfill_is_said_to_be_canceled(house: House, daemon: Daemon) -> None:
    done = _run(daemon, "run", *BOTH, RANGE, statuses=[BulkActionStatus.CANCELED])
    assert (done.exit_code, "failed: backfill b_1 ended as canceled" in done.output) == (1, True), done.output


def test_a_backfill_of_another_instance_cannot_be_followed(
    house: House, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfills, "launch_backfill", lambda *_: "b_elsewhere")
    done = _run(daemon, "run", "sales", str(D1))
    assert "launched backfill b_elsewhere" in done.output
    assert isinstance(done.exception, LaunchError)
    assert "the Dagster instance in DAGSTER_HOME does not have backfill b_elsewhere" in str(done.exception)


def test_a_unit_that_needs_several_launches_is_judged_when_all_are_over(house: House, daemon: Daemon) -> None:
    unit = house.world.open_unit({"sales": [D1, D2], "totals": [D1]})
    house.world.build(unit, "sales", {D1: [1]})

    def complete() -> None:
        house.world.build(unit, "sales", {D2: [2]})
        house.world.build(unit, "totals", {D1: [1]})
        house.world.publisher().release(unit.id)

    daemon.steps = [complete]
    done = _run(daemon, "resume", unit.id, statuses=[GOOD, WAITS])
    assert daemon.stored == 2
    assert done.exit_code == 0, done.output
    assert all(done.output.count(f"rollback {release}") == 1 for release in _releases(house, unit))


def test_a_command_that_is_interrupted_says_that_the_daemon_goes_on(
    house: House, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("backfill_assets.cli.watch.time", SimpleNamespace(sleep=interrupted, monotonic=lambda: 0))
    done = _run(daemon, "run", *BOTH, RANGE, statuses=[WAITS])
    assert done.exit_code != 0
    assert "the Dagster daemon goes on without this command; see: backfill status" in done.output


def test_a_launch_of_which_nothing_runs_says_once_that_the_daemon_may_be_down(house: House, daemon: Daemon) -> None:
    daemon.runs = False
    daemon.steps = [lambda: None] * 5
    done = _run(daemon, "run", *BOTH, RANGE, statuses=[WAITS])
    assert done.output.count("check that the Dagster daemon runs") == 1, done.output
    assert "nothing had to be built or released" in done.output


def test_status_shows_what_dagster_has_taken_and_not_ended(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Under way" not in _status()
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    assert "Under way" not in _status()
    tags, keys = {BACKFILL_TAG: "b_queued"}, [dg.AssetKey(["sales", "raw"]), dg.AssetKey(["totals", "shadow"])]
    waits = dg.DagsterRunStatus.NOT_STARTED
    with opened_instance() as instance:
        for name, status in (("b_over", GOOD), ("b_queued", WAITS), ("b_new", WAITS)):
            instance.add_backfill(PartitionBackfill(name, status, False, {}, 0.0, asset_selection=keys))
        for state in (waits, waits, STARTED):
            create_run_for_test(instance, status=state, tags=tags)
    under_way = " ".join(_status().split("Under way in Dagster")[1].replace("│", " ").split())
    assert "b_queued sales, totals runs: 2 not started, 1 started" in under_way
    assert "b_new sales, totals waiting for the Dagster daemon" in under_way
    assert "b_over" not in under_way
    assert {one["launch"] for one in json.loads(_status("--json"))["launches"]} == {"b_queued", "b_new"}
    (home / "dagster.yaml").write_text("storage: [")
    said = CliRunner().invoke(app, ["status"])
    assert (said.exit_code, "launches are not shown: DAGSTER_HOME" in said.stderr) == (0, True), said.output


def _status(*words: str) -> str:
    done = CliRunner().invoke(app, ["status", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_unit_keeps_the_reason_of_the_launch_that_opened_it(house: House) -> None:
    unit = house.world.open_unit({"sales": [D1]})
    with dg.DagsterInstance.ephemeral() as instance:
        assert first_reason(instance, unit) == ""
        backfill = PartitionBackfill("b_1", WAITS, False, {REASON_TAG: "files came twice"}, 0.0)
        instance.add_backfill(backfill)
        assert first_reason(instance, replace(unit, opened_by="b_1")) == "files came twice"
        assert first_reason(instance, replace(unit, opened_by="b_1/2")) == "files came twice"
        run = create_run_for_test(instance, tags={REASON_TAG: "one day"})
        assert first_reason(instance, replace(unit, opened_by=run.run_id)) == "one day"
