"""The sensor that fills gaps, and what `backfill status` says of it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.test_utils import create_run_for_test
from typer.testing import CliRunner

from backfill_assets.application import Application
from backfill_assets.cli.app import app
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.unit import LIVE_TAG, UNIT_TAG, Hold
from backfill_assets.orchestration import backfills
from backfill_assets.orchestration.backfills import DagsterBackfills, LaunchError, live_days
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets_tests.harness.clocks import START
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import BOTH, House

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clock_of_the_house")]

NOW = START.timestamp()
ALL = tuple(day(i) for i in range(10))


@pytest.fixture
def asked(house: House) -> House:
    """Both datasets catch up, by four days at a time; all days are delivered."""
    for name in BOTH:
        file = house.world.folder / "datasets" / name / "dataset.yaml"
        text = file.read_text(encoding="utf-8") + "live: {watch_days: 1, catch_up: {days_per_run: 4}}\n"
        file.write_text(text, encoding="utf-8")
    (house.world.folder / "sources" / "x").mkdir()
    for date in ALL:
        (house.world.folder / "sources" / "x" / f"{date}.csv").write_text("id\n1\n", encoding="utf-8")
    house.application.ledger.close()  # type: ignore[attr-defined]
    house.application = Application.from_env()
    house.application.catalog.require_all()
    return house


def look(house: House, instance: dg.DagsterInstance) -> str:
    """What the sensor says after a look."""
    definitions = definitions_of(house.application)
    with dg.build_sensor_context(instance, repository_def=definitions.get_repository_def()) as context:
        data = definitions.resolve_sensor_def("catch_up").evaluate_tick(context)
    assert not data.run_requests
    return str(data.skip_message)


def accepts(requests: list[BackfillRequest], instance: dg.DagsterInstance) -> Callable[[BackfillRequest, object], str]:
    """Takes a launch as Dagster does: the backfill is stored, and the daemon has not begun it."""

    def launch(request: BackfillRequest, _: object = None) -> str:
        requests.append(request)
        instance.add_backfill(
            stored(f"b{len(requests)}", NOW + len(requests), BulkActionStatus.REQUESTED, **request.tags)
        )
        return f"b{len(requests)}"

    return launch


def stored(name: str, at: float, status: BulkActionStatus, **tags: str) -> PartitionBackfill:
    return PartitionBackfill(
        backfill_id=name, status=status, from_failure=False, tags=tags, backfill_timestamp=at, asset_selection=[]
    )


def test_the_sensor_is_on_exactly_if_a_dataset_asks_for_it(house: House, asked: House) -> None:
    assert asked is house
    on = definitions_of(asked.application).resolve_sensor_def("catch_up")
    assert on.default_status is dg.DefaultSensorStatus.RUNNING


def test_without_a_dataset_that_asks_it_is_off_and_does_nothing(house: House) -> None:
    sensor = definitions_of(house.application).resolve_sensor_def("catch_up")
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    with dg.DagsterInstance.ephemeral() as instance:
        assert look(house, instance) == "no dataset has a step to take; see: backfill status"


def test_it_launches_a_native_backfill_of_the_unit_and_waits_for_it(
    asked: House, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    requests: list[BackfillRequest] = []
    monkeypatch.setattr(backfills, "launch_backfill", accepts(requests, instance))
    # The history is closed: its last day is the newest that is watched.
    assert "sales: launched backfill b1 over sales, totals 2026-01-10 in unit" in look(asked, instance)
    assert look(asked, instance) == "no dataset has a step to take; see: backfill status"
    (unit,) = asked.application.ledger.units()
    assert (requests[0].tags[UNIT_TAG], unit.catches_up) == (unit.id, True)
    ended = instance.get_backfill("b1")
    assert ended is not None
    instance.update_backfill(ended.with_status(BulkActionStatus.CANCELED))  # type: ignore[no-untyped-call]
    assert look(asked, instance) == "no dataset has a step to take; see: backfill status"
    assert len(requests) == 1


def test_a_launch_that_dagster_refuses_is_made_again_by_the_next_look(
    asked: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: BackfillRequest, webserver: object) -> str:
        raise LaunchError(f"no webserver for {request.title} at {webserver}")

    requests: list[BackfillRequest] = []
    with dg.DagsterInstance.ephemeral() as instance:
        monkeypatch.setattr(backfills, "launch_backfill", refuse)
        assert look(asked, instance) == "no dataset has a step to take; see: backfill status"
        monkeypatch.setattr(backfills, "launch_backfill", accepts(requests, instance))
        assert "launched backfill b1" in look(asked, instance)
        assert len(asked.application.ledger.units()) == 1


def test_days_of_live_runs_that_have_not_ended_are_known_and_those_of_others_are_not() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        for number, (status, tags) in enumerate(
            [
                (dg.DagsterRunStatus.STARTING, {LIVE_TAG: "true"}),
                (dg.DagsterRunStatus.STARTED, {LIVE_TAG: "true"}),
                (dg.DagsterRunStatus.SUCCESS, {LIVE_TAG: "true"}),
                (dg.DagsterRunStatus.STARTED, {}),
            ]
        ):
            create_run_for_test(instance, status=status, tags={"dagster/partition": str(day(number)), **tags})
        assert live_days(instance) == {day(0), day(1)}


def test_backfills_of_a_unit_are_found_by_its_tag_newest_first(instance: dg.DagsterInstance) -> None:
    for number, (status, unit) in enumerate(
        [
            (BulkActionStatus.COMPLETED_FAILED, "u_1"),
            (BulkActionStatus.CANCELED, "u_1"),
            (BulkActionStatus.REQUESTED, "u_1"),
            (BulkActionStatus.REQUESTED, "u_2"),
        ]
    ):
        instance.add_backfill(stored(f"b{number}", 1_000.0 + number, status, **{UNIT_TAG: unit}))
    found = DagsterBackfills(instance, tag=UNIT_TAG)
    assert found.active("u_1") == ("b2",)
    opened = dt.datetime.fromtimestamp(1_000.0, dt.UTC)
    ended = [(one.at.timestamp(), one.cancelled) for one in found.ended("u_1", opened)]
    assert ended == [(1001.0, True), (1000.0, False)]
    assert found.ended("u_1", opened + dt.timedelta(days=2)) == ()


def test_a_backfill_without_runs_is_found_in_a_database_that_was_not_migrated() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_backfill(stored("b1", 1.0, BulkActionStatus.REQUESTED, **{UNIT_TAG: "u_1"}))
        assert DagsterBackfills(instance, tag=UNIT_TAG).active("u_1") == ("b1",)
        instance.add_backfill(stored("b2", 2.0, BulkActionStatus.CANCELED, **{UNIT_TAG: "u_2"}))
        assert len(DagsterBackfills(instance, tag=UNIT_TAG).ended("u_2", dt.datetime.fromtimestamp(1.0, dt.UTC))) == 1


def test_status_says_how_far_a_group_has_caught_up_and_what_waits(asked: House) -> None:
    asked.released({day(0): [1], day(1): [2]})
    asked.application.ledger.hold([Hold(("sales", day(3)), "wrong logic", "ada", asked.application.clock.now())])
    (asked.world.folder / "sources" / "x" / f"{day(4)}.csv").unlink()
    text = " ".join(CliRunner().invoke(app, ["status"]).output.split())
    assert "sales, totals: caught up to 2026-01-02" in text
    assert "sales, totals: 6 due days left in 2 backfills: 2026-01-03, 2026-01-06..2026-01-10" in text
    assert "waits: 2026-01-04: sales is on hold: wrong logic" in text
    assert "waits: 2026-01-05: sales has no delivery" in text
    assert "fill gaps" not in text
    assert "due and not published" not in text
    (found,) = json.loads(CliRunner().invoke(app, ["status", "totals", "--json"]).output)["catch_up"]
    assert (found["group"], found["to"], len(found["ready"])) == ([*BOTH], "2026-01-02", 6)
    assert found["waiting"][str(day(4))] == "sales has no delivery"


def test_a_group_whose_source_cannot_be_read_is_named_and_hides_and_stops_nothing_else(
    asked: House, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    asked.settle("events", source="{table: bronze/events, day: day, columns: {id: long}}")
    file = asked.world.folder / "datasets" / "events" / "dataset.yaml"
    file.write_text(file.read_text(encoding="utf-8") + "live: {catch_up: {}}\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["status"])
    assert done.exit_code == 0
    assert "events: it is not known how far it has caught up" in done.stderr
    assert "events: due and not published" in done.stdout
    assert "sales, totals: not caught up to any day yet" in done.stdout
    monkeypatch.setattr(backfills, "launch_backfill", accepts([], instance))
    assert "sales: launched backfill b1" in look(asked, instance)


def test_a_group_that_dagster_has_not_loaded_in_that_form_is_left_alone(
    asked: House, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    monkeypatch.setattr(backfills, "launch_backfill", accepts([], instance))
    file = asked.world.folder / "datasets" / "totals" / "dataset.yaml"
    correct = file.read_text(encoding="utf-8")
    definitions = definitions_of(asked.application)
    file.write_text(f"{correct}half: saved\n", encoding="utf-8")
    with dg.build_sensor_context(instance, repository_def=definitions.get_repository_def()) as context:
        sensor = definitions.resolve_sensor_def("catch_up")
        said = str(sensor.evaluate_tick(context).skip_message)
        assert said == "sales: its datasets are others than Dagster has loaded; reload the code location"
        file.write_text(correct, encoding="utf-8")
        assert "launched backfill b1 over sales, totals" in str(sensor.evaluate_tick(context).skip_message)
