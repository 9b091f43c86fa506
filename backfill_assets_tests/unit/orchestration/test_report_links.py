"""The report in Dagster's metadata: for releases, for units that wait for publication, and never blocking anything."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from typer.testing import CliRunner

from backfill_assets.cli.app import app
from backfill_assets.core.errors import UnitError
from backfill_assets.core.unit import ReleaseMode, Unit
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets.orchestration.release_events import report_metadata, report_waiting
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import BOTH, House

pytestmark = pytest.mark.slow

D1, D2 = day(1), day(2)


def published(house: House) -> Mapping[str, object]:
    """What is reported to Dagster about the day that a run publishes."""
    job = definitions_of(house.application).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(
            partition_key=str(D1), asset_selection=[dg.AssetKey([n, "published"]) for n in BOTH], instance=instance
        )
        (event, *_) = [
            e for e in done.get_asset_materialization_events() if e.asset_key == dg.AssetKey(["sales", "published"])
        ]
    return {name: value.value for name, value in event.materialization.metadata.items()}


def command(*words: str) -> str:
    done = CliRunner().invoke(app, ["report", *words])
    assert done.exit_code == 0, done.exception
    return done.output


def test_a_release_in_a_run_carries_the_page_and_the_sentence(house: House) -> None:
    unit = house.unit({D1: [1]})
    said = published(house)
    page = house.application.settings.reports / unit.id / "index.html"
    assert said["report"] == str(page)
    assert str(said["review"]).startswith("Published ")
    assert str(said["review"]) in page.read_text()
    assert said["unit"] == unit.id


def test_with_an_address_the_link_can_be_clicked(house: House) -> None:
    unit = house.unit({D1: [1]})
    settings = house.application.settings
    house.application.settings = settings.model_copy(update={"reports_url": "https://reports.example.org"})
    link = report_metadata(house.application, unit, logging.getLogger("test"))["report"]
    assert link == dg.MetadataValue.url(f"https://reports.example.org/{unit.id}/index.html")


def test_a_live_run_of_one_day_has_the_sentence_only(house: House) -> None:
    unit = replace(house.unit({D1: [1]}, ("sales",)), live=True)
    assert list(report_metadata(house.application, unit, logging.getLogger("test"))) == ["review"]
    assert not house.application.settings.reports.exists()


def test_a_release_that_is_reported_again_keeps_the_page_that_was_written_after_it(house: House) -> None:
    unit, log = house.released({D1: [1]}), logging.getLogger("test")
    first = report_metadata(house.application, unit, log)
    page, later = house.application.settings.reports / unit.id / "index.html", house.world.clock.now().timestamp() + 60
    page.write_text("as it was")
    os.utime(page, (later, later))
    assert report_metadata(house.application, unit, log, again=True) == first
    assert page.read_text() == "as it was"
    # A report from before the release says that it is ready.
    os.utime(page, (later - 120, later - 120))
    report_metadata(house.application, unit, log, again=True)
    assert "Published" in page.read_text()


def test_a_report_that_cannot_be_written_is_a_warning_and_the_release_stays(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    unit = house.unit({D1: [1]})
    house.application.settings.reports.parent.mkdir(exist_ok=True)
    house.application.settings.reports.write_text("in the way")
    said = published(house)
    assert "report" not in said
    assert house.world.content("sales") == {D1: [1]}
    with caplog.at_level(logging.WARNING):
        report_metadata(house.application, unit, logging.getLogger("test"))
    assert f"unit {unit.id}: its report could not be written" in caplog.text


def test_the_command_prints_the_sentence_and_the_path_and_writes_both_files(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = house.unit({D1: [1], D2: [2]})
    sentence, path = command(unit.id).strip().splitlines()
    assert sentence.startswith("Ready to publish: 4 of 4 days pass")
    assert Path(path) == house.application.settings.reports / unit.id / "index.html"
    assert json.loads(Path(path).with_name("review.json").read_text())["judgement"]["sentence"] == sentence
    assert json.loads(command(unit.id, "--json"))["unit"] == unit.id
    monkeypatch.chdir(tmp_path)
    assert command(unit.id, "--out", str(tmp_path / "here")).splitlines()[-1] == "here/index.html"


def test_the_index_links_to_the_reports_that_are_there(house: House) -> None:
    first, second = house.released({D1: [1]}), house.unit({D2: [2]})
    command(first.id)
    page = Path(command("--index").strip())
    text = page.read_text()
    assert page == house.application.settings.reports / "index.html"
    assert f'href="{first.id}/index.html"' in text
    assert f'href="{second.id}/index.html"' not in text
    assert second.id in text
    assert {one["dataset"] for one in json.loads((page.parent / "metrics.json").read_text())["datasets"]} == set(BOTH)


def test_nothing_named_and_both_named_are_refused(house: House) -> None:
    for words in ((), ("u", "--index")):
        assert isinstance(CliRunner().invoke(app, ["report", *words]).exception, UnitError)


def reported_for(house: House, unit: Unit) -> list[Mapping[str, object]]:
    """The metadata that a run reports about a unit after its checks."""

    @dg.op
    def look(context: dg.OpExecutionContext) -> None:
        report_waiting(context, house.application, house.world.ledger.unit(unit.id), "sales")

    @dg.job
    def looking() -> None:
        look()

    found = [e for e in looking.execute_in_process().all_events if e.event_type_value == "ASSET_OBSERVATION"]
    return [{n: v.value for n, v in e.asset_observation_data.asset_observation.metadata.items()} for e in found]


def test_a_unit_that_waits_for_publication_is_reported_once_it_is_complete(house: House) -> None:
    unit = house.world.open_unit({"sales": [D1, D2]})
    house.world.build(unit, "sales", {D1: [1]})
    house.world.ledger.set_mode(unit.id, ReleaseMode.manual)
    assert reported_for(house, unit) == []
    house.world.build(unit, "sales", {D2: [2]})
    (said,) = reported_for(house, unit)
    assert str(said["review"]).startswith("Ready to publish: 2 of 2 days pass")
    assert Path(str(said["report"])).is_file()
    house.world.ledger.set_mode(unit.id, ReleaseMode.auto)
    assert reported_for(house, unit) == []


def test_an_error_before_the_report_fails_no_step(house: House, capfd: pytest.CaptureFixture[str]) -> None:
    unit = house.world.open_unit({"sales": [D1, D2]})
    house.world.build(unit, "sales", {D1: [1]})
    house.world.ledger.set_mode(unit.id, ReleaseMode.manual)
    publisher = house.application.publisher
    house.application.publisher = replace(publisher, warehouse=replace(publisher.warehouse, tables={}))
    assert reported_for(house, unit) == []
    assert "report" not in capfd.readouterr().err  # nothing is reviewed before all days have passed
    house.world.build(unit, "sales", {D2: [1]})
    assert reported_for(house, unit) == []
    assert f"unit {unit.id}: its report could not be written" in capfd.readouterr().err


def test_reasons_and_values_in_the_sentence_are_no_markdown(house: House) -> None:
    unit = replace(house.unit({D1: [1]}, ("sales",)), live=True)
    observed = report_metadata(house.application, unit, logging.getLogger("test"))
    assert isinstance(observed["review"], dg.TextMetadataValue)
