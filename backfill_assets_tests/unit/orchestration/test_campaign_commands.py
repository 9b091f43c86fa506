"""Commands and jobs on campaigns: no unit's name bypasses its campaign, and hints name the command to type."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import dagster as dg
import pytest
import yaml
from typer.testing import CliRunner

from backfill_assets.application import Application
from backfill_assets.campaign.state import CAMPAIGN_TAG, Action, CampaignState, JournalEntry, Phase
from backfill_assets.cli import output
from backfill_assets.cli.app import app
from backfill_assets.cli.campaign_status import next_step
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.errors import BackfillError, CampaignError, ContractError, EvidenceError, UnitError
from backfill_assets.core.expected_change import parse_contract
from backfill_assets.core.unit import UNIT_TAG, Unit, UnitState
from backfill_assets.dataset.releasing import Publication
from backfill_assets.evidence.relaunches import UpstreamPlaces
from backfill_assets.orchestration import backfills
from backfill_assets.orchestration.checks import how_to_go_on
from backfill_assets.orchestration.jobs import operation_jobs
from backfill_assets.orchestration.launches import DeclaredChange, unit_of, updated
from backfill_assets.orchestration.services import Services, services_of
from backfill_assets_tests.harness.specifications import DAYS, NAME, PLAIN
from backfill_assets_tests.unit.orchestration.house import BOTH, House
from backfill_assets_tests.unit.release.test_watch_release import watcher

pytestmark = pytest.mark.slow

TARGETS = dict.fromkeys(BOTH, DAYS)
SPECIFICATION = PLAIN | {
    "source_range": {"start": DAYS[0], "end": DAYS[-1]}, "scope": {"from": "shadow"}, "approval": {"required": False},
}  # fmt: skip
ANYTHING = DeclaredChange(parse_contract({"row_count": "any"}, ["row_count"], dataset="sales"), frozenset({"sales"}))


@pytest.fixture
def house(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return house


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[BackfillRequest]:
    """What Dagster was asked to launch."""
    found: list[BackfillRequest] = []

    def launch(backfill: BackfillRequest, webserver: str | None = None) -> str:
        assert webserver is None
        found.append(backfill)
        return f"b_{len(found)}"

    monkeypatch.setattr(backfills, "launch_backfill", launch)
    return found


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    if isinstance(done.exception, BackfillError):
        raise done.exception
    return done.output


def validated(house: House) -> Unit:
    """A campaign that needs no approval, with every day passed."""
    _, unit = house.world.launched(TARGETS, approval={"required": False})
    for name in BOTH:
        house.world.build(unit, name, {d: [2] for d in DAYS})
    return unit


@pytest.mark.parametrize("by", ["campaign", "unit"])
def test_no_resume_changes_what_a_campaign_expects(house: House, taken: list[BackfillRequest], by: str) -> None:
    _, unit = house.world.launched(TARGETS)
    with pytest.raises(ContractError, match=rf"campaign {NAME} is in its specification \(validation\)"):
        run("resume", NAME if by == "campaign" else unit.id, "--expected-change", '{"sales": {"amount": "any"}}')
    assert taken == []
    assert house.world.ledger.unit(unit.id).contract == unit.contract


def test_a_campaigns_unit_is_resumed_as_the_campaign(house: House, taken: list[BackfillRequest]) -> None:
    _, unit = house.world.launched(TARGETS)
    said = run("resume", unit.id, "--explain")
    assert f"{NAME} is running" in said
    assert "sales 2026-01-01..2026-01-03 is not built yet" in " ".join(said.split())
    assert taken == []


def test_explaining_a_units_resume_launches_nothing(house: House, taken: list[BackfillRequest]) -> None:
    unit = house.world.open_unit(TARGETS)
    house.world.build(unit, "sales", {d: [1] for d in DAYS})
    said = run("resume", unit.id, "--explain")
    assert "would be launched: totals 2026-01-01..2026-01-03" in said
    house.world.build(unit, "totals", {d: [1] for d in DAYS})
    assert "nothing would be launched" in run("resume", unit.id, "--explain")
    assert taken == []
    assert house.world.ledger.unit(unit.id).state is UnitState.open


def test_a_campaign_is_published_only_with_the_evidence_that_was_named(house: House) -> None:
    unit = validated(house)
    whole = house.world.campaign_publisher().evidence_hash(unit.id)
    with pytest.raises(EvidenceError, match="the approval is for evidence 0000"):
        run("publish", NAME, "--evidence", "0" * 64)
    assert house.world.ledger.releases() == ()
    assert f"not {'0' * 16}" in run("publish", NAME, "--dry-run", "--evidence", "0" * 64)
    assert f"evidence {whole}" in run("publish", unit.id, "--dry-run")
    assert "is published" in run("publish", unit.id, "--evidence", whole)
    assert {r.manifest.campaign for r in house.world.ledger.releases()} == {NAME}


def test_a_status_of_a_campaigns_unit_leads_to_the_campaign(house: House) -> None:
    unit = validated(house)
    assert f"next: backfill status {NAME}" in run("status", unit.id)


@pytest.mark.parametrize("by", ["campaign", "unit"])
def test_a_discarded_campaign_knows_who_gave_it_up_and_why(house: House, by: str) -> None:
    _, unit = house.world.launched(TARGETS)
    said = run("discard", NAME if by == "campaign" else unit.id, "--reason", "finance cancelled it")
    assert said.startswith(f"discarded {unit.id}; free again: sales 2026-01-01..2026-01-03")
    entry = house.world.ledger.journal(NAME)[-1]
    assert (entry.action, entry.reason) == (Action.discarded, "finance cancelled it")


def test_days_that_moved_since_the_plan_are_named_at_the_launch(house: House, taken: list[BackfillRequest]) -> None:
    names = [NAME, "totals-too"]
    for name in names:
        house.world.planned(TARGETS, backfill_id=name)
    said = run("launch", NAME, "--explain")
    assert "steps" in said
    # The plans of this world were made without any inputs.
    assert "built from the current inputs: sales 2026-01-01..2026-01-03; totals 2026-01-01..2026-01-03" in said
    assert house.world.ledger.campaign(NAME).phase is Phase.planned
    assert taken == []


def test_a_plan_that_still_holds_names_no_days(house: House) -> None:
    planner = house.application.planner
    campaign = house.world.planned(TARGETS)
    own = [replace(d, inputs=planner.inputs(d.name, d.days)) for d in campaign.plan.datasets]
    assert planner.moved(replace(campaign.plan, datasets=tuple(own))) == ()
    own[0] = replace(own[0], inputs={**own[0].inputs, DAYS[1]: "as it was"})
    assert planner.moved(replace(campaign.plan, datasets=tuple(own))) == (("sales", DAYS[1]),)


def test_the_next_step_names_what_is_to_be_typed(house: House) -> None:
    validated(house)
    instance = dg.DagsterInstance.ephemeral()
    standings = services_of(house.application, instance).standings
    standing = standings.of(NAME)
    assert standing.state is CampaignState.validated
    assert next_step(standing, house.world.datasets) == f"backfill publish {NAME}"
    careful = house.world.datasets["sales"].model_copy(update={"publication": Publication.approval})
    assert next_step(standing, {"sales": careful}) == f"backfill approve {NAME} --evidence {standing.evidence}"
    releases = house.world.release().publish(NAME).outcome.releases
    said = next_step(standings.of(NAME), house.world.datasets)
    for release in releases.values():
        assert f"backfill watch-release {release}" in said
        assert f"backfill rollback {release} --reason" in said
    instance.dispose()


def test_a_launch_neither_changes_nor_releases_what_belongs_to_a_campaign(house: House) -> None:
    _, unit = house.world.launched(TARGETS)
    with pytest.raises(ContractError, match=rf"belongs to campaign {NAME}.*backfill resume {NAME}"):
        updated(house.application, unit, ANYTHING, released=False)
    with pytest.raises(UnitError, match=f"backfill publish {NAME}; leave published out"):
        updated(house.application, unit, None, released=True)
    assert updated(house.application, unit, None, released=False) == unit
    plain = house.world.open_unit({"sales": [dt.date(2026, 1, 9)]})
    assert updated(house.application, plain, ANYTHING, released=True).contract.clauses


def of_launch(days: tuple[dt.date, ...], **tags: str) -> dg.AssetExecutionContext:
    """What a step of a run over both shadows sees of it."""
    chosen = {dg.AssetKey([name, "shadow"]) for name in BOTH}
    run_of = SimpleNamespace(run_id="run_1", tags=tags, asset_selection=chosen, run_config={})
    keys, instance = [d.isoformat() for d in days], dg.DagsterInstance.ephemeral()
    return cast("dg.AssetExecutionContext", SimpleNamespace(run=run_of, partition_keys=keys, instance=instance))


def test_days_of_a_campaign_are_built_by_no_launch_but_its_own(house: House) -> None:
    _, unit = house.world.launched(TARGETS)
    sales = house.application.dataset("sales")
    for other in ({}, {UNIT_TAG: unit.id}, {CAMPAIGN_TAG: "another"}):
        with pytest.raises(UnitError, match=rf"unit {unit.id} .*belongs to campaign {NAME}.*backfill resume {NAME}"):
            unit_of(of_launch(DAYS, **other), house.application, sales)
    own = of_launch(DAYS[:1], **{UNIT_TAG: unit.id, CAMPAIGN_TAG: NAME})
    assert unit_of(own, house.application, sales) == unit
    assert house.world.ledger.attempts(unit.id) == ()


def test_a_build_from_days_without_evidence_says_how_to_continue(house: House) -> None:
    _, unit = house.world.launched(TARGETS)
    with pytest.raises(EvidenceError, match=f"or run: backfill resume {NAME}"):
        UpstreamPlaces(house.application.warehouse).of(unit, "totals", DAYS)


def test_failed_checks_of_a_campaign_lead_back_to_the_campaign(house: House) -> None:
    _, unit = house.world.launched(TARGETS)
    said = how_to_go_on(unit, "shadow of sales")
    assert f"    backfill resume {NAME}\n" in said
    assert "expected_change" in said
    assert "materialize" not in said
    plain = how_to_go_on(replace(unit, opened_by="b_1"), "shadow of sales")
    assert f"    backfill resume {unit.id}\n" in plain
    assert "materialize shadow of sales" in plain


def test_a_plan_made_in_another_folder_finds_its_file_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path("backfills", "fix.yaml")
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(SPECIFICATION), encoding="utf-8")
    project = Path.cwd()
    monkeypatch.chdir(file.parent)
    run("plan", file.name)
    monkeypatch.chdir(project)
    file.write_text(yaml.safe_dump({**SPECIFICATION, "owner": "somebody-else"}), encoding="utf-8")
    with pytest.raises(CampaignError, match=r"plan it again: backfill plan backfills/fix\.yaml"):
        run("launch", NAME)
    said = run("status", NAME)
    assert f"attention: {file} has changed since the plan" in said
    assert f"next: backfill plan {file}" in said
    file.unlink()
    said = run("status", NAME)
    assert f"attention: its file {file} is missing: not compared with the plan" in said


def of_job(house: House, name: str, **config: object) -> bool:
    (job,) = [job for job in operation_jobs(house.application) if job.name == name]
    with dg.DagsterInstance.get() as instance:
        done = job.execute_in_process(run_config={"ops": {f"{name}_op": {"config": config}}}, instance=instance)
    return done.success


def test_a_campaign_can_be_led_by_jobs_from_its_plan_to_its_clean_up(house: House) -> None:
    Path("fix.yaml").write_text(yaml.safe_dump(SPECIFICATION), encoding="utf-8")
    assert of_job(house, "campaign_plan", file="fix.yaml")
    campaign = house.world.ledger.campaign(NAME)
    assert (campaign.file, campaign.phase) == (str(Path("fix.yaml").absolute()), Phase.planned)
    assert of_job(house, "campaign_set", campaign=NAME, partitions_per_batch=3, reason="small days")
    turned = house.world.ledger.campaign(NAME)
    assert (turned.knobs.partitions_per_batch, turned.knobs.max_concurrency) == (3, campaign.knobs.max_concurrency)
    entry = JournalEntry(NAME, house.world.clock.now(), "ada", Action.launched)
    unit = house.world.open_unit({"sales": DAYS})
    house.world.ledger.change_campaign(replace(turned, phase=Phase.running, unit=unit.id), {Phase.planned}, entry)
    house.world.build(unit, "sales", {d: [2] for d in DAYS})
    house.world.release().publish(NAME)
    assert of_job(house, "campaign_sign_off", campaign=NAME, reason="looks right")
    assert house.world.ledger.campaign(NAME).phase is Phase.closed
    assert of_job(house, "campaign_cleanup", campaign=NAME, dry_run=True)
    assert house.world.ledger.campaign(NAME).phase is Phase.closed


def test_a_command_turns_only_the_knob_that_it_names(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.world.planned(TARGETS)
    opened_services = output.opened_services

    @contextmanager
    def meanwhile(application: Application, webserver: str) -> Iterator[Services]:
        with opened_services(application, webserver) as services:
            services.control.set(NAME, "somebody else", max_concurrency=4)
            yield services

    monkeypatch.setattr(output, "opened_services", meanwhile)
    assert "max_concurrency=4, partitions_per_batch=14" in run("set", NAME, "partitions_per_batch=14")


def test_what_a_dry_run_of_the_sweep_would_take_is_listed_for_people_and_for_programs(house: House) -> None:
    unit = house.world.open_unit({"sales": DAYS})
    house.world.build(unit, "sales", {d: [1] for d in DAYS})
    run("discard", unit.id)
    (found, _) = json.loads(run("sweep", "--dry-run", "--json", "--grace", "0"))
    assert all(path.startswith(f"_shadow/{unit.id}/") for path in found["paths"])
    said = run("sweep", "--dry-run", "--grace", "0").splitlines()
    assert f"  {found['paths'][0]}" in said
    assert house.world.tables["sales"].stored_files()


def test_a_job_watches_a_release_and_fails_when_a_figure_has_drifted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Application, "watch_release", property(lambda _: watcher(house.world)))
    release = house.world.released({d: [10] for d in DAYS})
    with pytest.raises(dg.Failure, match=rf"{release} \(sales\): figures that consumers read have drifted"):
        of_job(house, "release_watch", release=release)
    again = house.world.released({d: [10] for d in DAYS})
    assert of_job(house, "release_watch", release=again)


def test_a_campaign_can_be_given_up_by_a_job(house: House) -> None:
    house.world.launched(TARGETS)
    assert of_job(house, "campaign_discard", campaign=NAME, reason="not needed")
    assert house.world.ledger.journal(NAME)[-1].action is Action.discarded
