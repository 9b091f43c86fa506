"""Campaigns on an installation: planned and operated by command, as its operators do it, and waited for."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dagster as dg

from backfill_assets.campaign.state import CAMPAIGN_TAG, CampaignState
from backfill_assets.control.standing import CampaignStanding
from backfill_assets.orchestration.services import services_of
from backfill_assets.system import SystemUser
from backfill_assets_tests.dagster.lab import Lab
from backfill_assets_tests.harness.waiting import wait_for
from benchmarks.specifications import document, write_document

ID = "count-fees-2024"
"""The default campaign."""
AT_REST = {CampaignState.stopped, CampaignState.paused, CampaignState.stale, CampaignState.validated}
ROLLBACK = {"keep_for": "14d"}
"""How long the datasets of the tests keep replaced files."""


def backfill(lab: Lab, *command: str, refused: bool = False) -> str:
    roles = f"controller={SystemUser().name()}"
    done = lab.backfill(*command, BACKFILL_ASSETS_ROLES=roles, BACKFILL_ASSETS_WEBSERVER=lab.url)
    assert (done.returncode != 0) is refused, (command, done.stdout, done.stderr)
    return done.stderr if refused else done.stdout


def write(lab: Lab, content: Mapping[str, object]) -> str:
    """Write a specification; returns its path for the command."""
    return write_document(lab.root, content)


def planned(lab: Lab, name: str, dataset: str, days: tuple[dt.date, ...], **execution: object) -> str:
    """Plan a campaign that needs no approval, and do not launch it yet; returns its id."""
    content = document(name, dataset, days, execution={"max_concurrency": 1, **execution}, rollback=ROLLBACK)
    backfill(lab, "plan", write(lab, content))
    return name


def status(lab: Lab, campaign: str = ID) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(backfill(lab, "status", campaign, "--json"))
    return found


def standing(lab: Lab, campaign: str) -> CampaignStanding:
    """The same as `status`, without starting a process for it; opens models, ledger and instance."""
    with lab.instance as instance:
        return services_of(lab.application, instance).standings.of(campaign)


def waits(lab: Lab, campaign: str, until: Callable[[CampaignStanding], bool], what: str) -> None:
    """Wait until a campaign is in this state; models, ledger and instance are opened once."""
    with lab.instance as instance:
        standings = services_of(lab.application, instance).standings
        wait_for(lambda: until(standings.of(campaign)), what, 300, every=4, instead=partial(shown, lab, campaign))


def reaches(lab: Lab, state: str, campaign: str = ID) -> dict[str, Any]:
    def reached(found: CampaignStanding) -> bool:
        assert found.state.value == state or found.state not in AT_REST, shown(lab, campaign)
        return found.state.value == state

    waits(lab, campaign, reached, f"campaign {campaign} to be {state}")
    return status(lab, campaign)


def shown(lab: Lab, campaign: str) -> str:
    """What people see of a campaign, and what Dagster knows about its runs."""
    with lab.instance as instance:
        records = instance.get_run_records(dg.RunsFilter(tags={CAMPAIGN_TAG: campaign}))
    runs = [f"{r.dagster_run.run_id} {r.dagster_run.status} {r.start_time} to {r.end_time}" for r in records]
    return "\n".join([backfill(lab, "status", campaign), *runs, lab.failures(campaign, CAMPAIGN_TAG), lab.logs()])
