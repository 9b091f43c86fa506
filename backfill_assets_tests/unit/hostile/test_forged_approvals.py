"""No user can approve or publish as another: not by tags, run config, arguments or variables of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from backfill_assets.application import Application
from backfill_assets.campaign.state import CAMPAIGN_TAG
from backfill_assets.control.approve import approved, current_evidence
from backfill_assets.core.errors import ApprovalError, LedgerError
from backfill_assets.core.unit import CONTRACT_TAG, LIVE_TAG, UNIT_TAG, Unit
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets.system import SystemUser
from backfill_assets_tests.harness.specifications import DAYS, NAME
from backfill_assets_tests.unit.hostile.commands import run
from backfill_assets_tests.unit.orchestration.house import BOTH, House

pytestmark = pytest.mark.slow

ME = SystemUser().name()
CLAIMS = {
    "backfill_assets/identity": "anna", "backfill_assets/by": "anna", "backfill_assets/approved_by": "anna as finance-controller",
    "backfill_assets/approved": "true", "dagster/user": "anna", "user": "anna", "USER": "anna", CAMPAIGN_TAG: NAME,
    LIVE_TAG: "true", CONTRACT_TAG: '{"row_count": "any"}',
}  # fmt: skip
"""Tags by which a user may try to appear as another user, or as approved."""


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    found = House(tmp_path / "house", monkeypatch)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "house")
    for variable in ("USER", "LOGNAME", "LNAME", "USERNAME", "SUDO_USER"):
        monkeypatch.setenv(variable, "anna")
    yield found
    found.close()


@pytest.fixture
def unit(house: House) -> Unit:
    """A campaign with every day passed, which anna or ben would have to approve."""
    _, unit = house.world.launched(dict.fromkeys(BOTH, DAYS))
    for name in BOTH:
        house.world.build(unit, name, {day: [2] for day in DAYS})
    return unit


def evidence(unit: Unit) -> str:
    """The hash that an approver would name."""
    application = Application.from_env()
    found = current_evidence(application.ledger, unit)
    return approved(application.ledger, unit, found, application.settings.roles).pending


def failed(name: str, config: Mapping[str, object], tags: Mapping[str, str]) -> str:
    """The class of the error that ended a job of the UI."""
    job = definitions_of(Application.from_env()).get_job_def(name)
    (op,) = [node.name for node in job.nodes]
    done = job.execute_in_process(run_config={"ops": {op: {"config": config}}}, tags=dict(tags), raise_on_error=False)
    return error_of(done)


def error_of(done: dg.ExecuteInProcessResult) -> str:
    assert not done.success
    error: Any = next(e.event_specific_data.error for e in done.all_events if e.is_step_failure)  # type: ignore[union-attr]
    return str(error.cause.cls_name if error.cause else error.cls_name)


def nothing_happened(house: House, unit: Unit) -> None:
    assert house.world.ledger.approvals(unit.id) == ()
    assert house.world.ledger.releases() == ()


def test_no_job_and_no_command_takes_the_name_of_its_user(house: House) -> None:
    claims = {"identity", "user", "as", "on_behalf_of", "approved_by", "roles"}
    for job in definitions_of(house.application).resolve_all_job_defs():
        for node in job.nodes:
            fields = getattr(getattr(node.definition, "config_schema", None), "config_type", None)
            assert not claims & set(getattr(fields, "fields", {})), job.name


@pytest.mark.parametrize("key", ["identity", "user", "approved_by", "roles"])
@pytest.mark.parametrize("name", ["campaign_approve", "campaign_publish", "unit_publish", "campaign_sign_off"])
def test_a_job_refuses_config_with_the_name_of_its_user(name: str, key: str, house: House) -> None:
    job = definitions_of(house.application).get_job_def(name)
    (op,) = [node.name for node in job.nodes]
    whom = {"unit": "u", "evidence": "e"} if name == "unit_publish" else {"campaign": NAME}
    config = {**whom, **({"evidence": "e"} if name == "campaign_approve" else {}), key: "anna"}
    with pytest.raises(dg.DagsterInvalidConfigError, match=key):
        job.execute_in_process(run_config={"ops": {op: {"config": config}}})


@pytest.mark.parametrize("by", ["", "anna", "finance-controller", ME])
def test_no_tag_and_no_variable_makes_a_user_an_approver(by: str, house: House, unit: Unit) -> None:
    asked = {"campaign": NAME, "evidence": evidence(unit), "by": by}
    assert failed("campaign_approve", asked, CLAIMS) == ApprovalError.__name__
    said = run("approve", NAME, "--evidence", evidence(unit), *(["--by", by] if by else []))
    assert (said.code, said.out) == (1, "")
    assert ME in said.err or "may not approve" in said.err
    nothing_happened(house, unit)


@pytest.mark.parametrize("name", ["campaign_publish", "unit_publish"])
def test_no_tag_publishes_an_unapproved_campaign(name: str, house: House, unit: Unit) -> None:
    whole = Application.from_env().publisher.evidence_hash(unit.id)
    asked = {"campaign": NAME} if name == "campaign_publish" else {"unit": unit.id, "evidence": whole}
    assert failed(name, asked, CLAIMS) == ApprovalError.__name__
    nothing_happened(house, unit)


def test_no_tag_publishes_by_a_launch_of_published(house: House, unit: Unit) -> None:
    job = definitions_of(Application.from_env()).resolve_implicit_global_asset_job_def()
    for tags in ({UNIT_TAG: unit.id}, {UNIT_TAG: unit.id, **CLAIMS}, {}):
        done = job.execute_in_process(
            asset_selection=[dg.AssetKey([name, "published"]) for name in BOTH],
            tags={**tags, "dagster/asset_partition_range_start": str(DAYS[0]), "dagster/asset_partition_range_end": str(DAYS[-1])},
            raise_on_error=False,
        )  # fmt: skip
        assert error_of(done) == ApprovalError.__name__
        nothing_happened(house, unit)


def test_roles_of_ones_own_environment_do_not_publish(
    house: House, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_ASSETS_ROLES", f"finance-controller={ME}")
    said = run("approve", NAME, "--evidence", evidence(unit))
    assert said.code == 0, said
    (given,) = house.world.ledger.approvals(unit.id)
    assert (given.identity, given.by) == (ME, "finance-controller")
    # The process that publishes knows who is in the role.
    monkeypatch.setenv("BACKFILL_ASSETS_ROLES", "finance-controller=anna,ben")
    assert failed("campaign_publish", {"campaign": NAME}, {}) == ApprovalError.__name__
    said = run("publish", NAME)
    assert f"The approval of {ME} as finance-controller does not count: BACKFILL_ASSETS_ROLES" in said.err
    assert house.world.ledger.releases() == ()
    assert f"backfill approve {NAME} --evidence {evidence(unit)}" in run("status", NAME).out.replace("\n", "")
    # The right approver sees the same evidence, and the release names only them.
    house.world.approve(house.world.ledger.campaign(NAME), "ben")
    assert run("publish", NAME).code == 0
    assert {r.manifest.approved_by for r in house.world.ledger.releases()} == {"ben as finance-controller"}
    assert {r.manifest.by for r in house.world.ledger.releases()} == {ME}


def test_who_approved_is_recorded_with_the_hash_of_what_they_saw(house: House, unit: Unit) -> None:
    seen = evidence(unit)
    house.world.approve(house.world.ledger.campaign(NAME), "ben")
    (given,) = house.world.ledger.approvals(unit.id)
    assert (given.identity, given.by, given.evidence) == ("ben", "finance-controller", seen)
    for name in BOTH:
        house.world.build(unit, name, {DAYS[1]: [3]})
    assert failed("campaign_publish", {"campaign": NAME}, CLAIMS) == ApprovalError.__name__
    assert house.world.ledger.releases() == ()


def test_an_identity_of_postgres_is_refused_where_the_ledger_is_a_file(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_ASSETS_IDENTITY", "ledger")
    with pytest.raises(LedgerError, match="is a file and has no logins"):
        Application.from_env()
    said = run("status")
    assert (said.code, "unset BACKFILL_ASSETS_IDENTITY" in said.err) == (1, True)
    monkeypatch.setenv("BACKFILL_ASSETS_IDENTITY", "anna")
    assert "BACKFILL_ASSETS_IDENTITY: 'anna' cannot be used; write os or ledger" in run("status").err
