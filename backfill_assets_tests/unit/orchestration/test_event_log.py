"""What every event log guarantees the doctor, tested on Dagster's and on the one that tests use instead."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from typer.testing import CliRunner

from backfill_assets.cli.app import app
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import UNIT_TAG
from backfill_assets.doctor.findings import EventLog, RunAtWork
from backfill_assets.orchestration.event_log import DagsterEventLog
from backfill_assets.orchestration.names import asset_key, last_metadata
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.doctor.events import KeptEvents
from backfill_assets_tests.unit.orchestration.house import House
from event_lab import batched_sqlite, open_instance

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clock_of_the_house")]

RUN = "3c7a1d5e-0000-4000-8000-000000000001"
D1, D2 = day(0), day(1)


class Scene:
    """An event log, and how things get into it."""

    def __init__(self, house: House, instance: dg.DagsterInstance | None) -> None:
        self.house = house
        self.instance = instance
        self.kept = KeptEvents()
        self.log: EventLog = self.kept if instance is None else DagsterEventLog(instance, house.application)

    def started(self, run: str, unit: str = "") -> None:
        self.kept.runs[run] = RunAtWork(run, self.house.world.clock.now(), unit)
        if self.instance is not None:
            tags = {UNIT_TAG: unit} if unit else {}
            self.instance.add_run(dg.DagsterRun("job", run, status=dg.DagsterRunStatus.STARTED, tags=tags))

    def materialized(self, dataset: str, at: dt.date, release: str) -> None:
        self.kept.said[dataset, at] = release
        if self.instance is not None:
            metadata = {"release": release} if release else {}
            event = dg.AssetMaterialization(asset_key(Layer.published, dataset), partition=str(at), metadata=metadata)
            self.instance.report_runless_asset_event(event)

    def released(self, data: dict[dt.date, list[int]]) -> dict[str, str]:
        """Release both datasets of the house together; returns the release by dataset."""
        unit = self.house.released(data)
        found = {r.manifest.dataset: r.manifest.release for r in self.house.world.ledger.releases(unit=unit.id)}
        self.kept.datasets |= {release: name for name, release in found.items()}
        return found


@pytest.fixture(params=["Dagster's", "kept"])
def scene(request: pytest.FixtureRequest, house: House) -> Iterator[Scene]:
    if request.param == "kept":
        yield Scene(house, None)
        return
    with dg.DagsterInstance.ephemeral() as instance:
        yield Scene(house, instance)


def test_a_started_run_counts_as_running_until_it_is_failed_and_is_failed_once(scene: Scene) -> None:
    assert scene.log.at_work() == ()
    scene.started(RUN, "u_1")
    (run,) = scene.log.at_work()
    assert (run.id, run.unit, run.started_at.tzinfo is not None) == (RUN, "u_1", True)
    assert scene.log.fail(RUN, "its worker is dead")
    assert scene.log.at_work() == ()
    assert not scene.log.fail(RUN, "its worker is dead")
    assert not scene.log.fail("a-run-of-nobody", "its worker is dead")


def test_only_existing_launches_are_known(scene: Scene) -> None:
    scene.started(RUN)
    assert scene.log.known({RUN, "bxyz"}) == {RUN}
    assert scene.log.known(()) == frozenset()


def test_the_newest_materialization_of_each_day_says_its_release_or_that_it_has_none(scene: Scene) -> None:
    assert scene.log.reported("sales") == {}
    for at, release in ((D1, "r_1"), (D2, "r_1"), (D1, "r_2"), (D2, "")):
        scene.materialized("sales", at, release)
    assert scene.log.reported("sales") == {D1: "r_2", D2: ""}
    assert scene.log.reported("totals") == {}


def test_a_report_of_a_release_is_found_on_its_days_and_no_others(scene: Scene) -> None:
    releases = scene.released({D1: [1], D2: [2]})
    scene.log.report(releases["sales"], [D2])
    reported = scene.log.reported("sales")
    assert (list(reported), releases["sales"] in reported[D2].split(", ")) == ([D2], True)
    assert scene.log.reported("totals") == {}


def test_a_rollback_is_reported_as_a_release_of_its_own(scene: Scene) -> None:
    releases = scene.released({D1: [1], D2: [2]})
    scene.log.report(releases["sales"], [D1, D2])
    done = scene.house.application.rollback.execute(releases["sales"], "wrong model")
    scene.kept.datasets[done.release] = "sales"
    scene.log.report(done.release, [D2])
    reported = scene.log.reported("sales")
    assert (releases["sales"] in reported[D1].split(", "), reported[D2]) == (True, done.release)
    if scene.instance is not None:
        said = last_metadata(scene.instance, asset_key(Layer.published, "sales"), [D2])[D2]
        assert (said["undoes"], said["reason"], "launch" in said) == (releases["sales"], "wrong model", False)


def test_a_repair_is_noted_without_publishing_anything(scene: Scene) -> None:
    scene.log.note("sales", "removed what was left over")
    assert scene.log.reported("sales") == {}


def test_dagster_shows_a_repair_beside_the_published_asset(house: House) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        DagsterEventLog(instance, house.application).note("sales", "sealed")
        (record,) = instance.fetch_observations(asset_key(Layer.published, "sales"), limit=9).records
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["repair"].value == "sealed"


def test_the_command_reports_a_release_that_dagster_does_not_know(
    house: House, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = house.released({D1: [1], D2: [2]})
    house.world.clock.advance(dt.timedelta(minutes=2))
    with open_instance(home, batched_sqlite(home)):
        monkeypatch.setenv("DAGSTER_HOME", str(home))
    listed = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "300"})
    assert (listed.exit_code, "was not reported to Dagster" in listed.output) == (0, True), listed.output
    results = CliRunner().invoke(app, ["doctor", "--repair"], env={"COLUMNS": "300"})
    assert (results.exit_code, results.output.count("reports the release to Dagster")) == (0, 2), results.output
    with open_instance(home, batched_sqlite(home)) as instance:
        reported = DagsterEventLog(instance, house.application).reported("totals")
    known = {r.manifest.release for r in house.world.ledger.releases(unit=unit.id)}
    assert {d: set(said.split(", ")) for d, said in reported.items()} == {D1: known, D2: known}
    again = CliRunner().invoke(app, ["doctor", "--repair"], env={"COLUMNS": "300"})
    assert "nothing to repair automatically" in again.output
    assert json.loads(CliRunner().invoke(app, ["doctor", "--repair", "--json"]).stdout) == {
        "repaired": [], "findings": json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout),
    }  # fmt: skip


def test_a_dagster_that_cannot_be_asked_is_a_finding_beside_the_others(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.world.open_unit({"sales": [D1]})
    house.world.clock.advance(dt.timedelta(days=8))
    (tmp_path / "dagster.yaml").write_text("storage: {sqlite: {base_dir: {env: NOT_SET_BY_ANYBODY}}}")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    listed = CliRunner().invoke(app, ["doctor", "--json"])
    assert listed.exit_code == 1
    first, second = json.loads(listed.stdout)
    assert ("cannot be read" in first["what"], "has been open since" in second["what"]) == (True, True)
