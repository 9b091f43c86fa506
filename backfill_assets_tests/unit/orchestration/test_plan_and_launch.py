"""What a plan lists is what its launch does: the backfills of a complete campaign against the steps that were shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from backfill_assets.campaign.plan import StepKind, batches
from backfill_assets.campaign.specification import Notice
from backfill_assets.campaign.state import Action, Campaign, JournalEntry, Knobs
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.text import number_of
from backfill_assets.orchestration.services import Services, services_of
from backfill_assets_tests.harness.actors import Scheduler
from backfill_assets_tests.harness.specifications import NAME, specification
from backfill_assets_tests.unit.orchestration.house import BOTH, House

SPECIFICATION = specification(
    backfill_id=NAME,
    source_range={"start": "2026-01-01", "end": "2026-01-10"},
    scope={"from": "staging"},
    approval={"required": False},
    execution={"canary": {"partitions": 3}, "partitions_per_batch": 4},
    notify={"webhook": "env:HOOK", "on": ["announced"]},
)


@pytest.fixture
def house(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.chdir(tmp_path)
    return house


def planned(house: House) -> Campaign:
    plan, now = house.application.planner.plan(SPECIFICATION), house.world.clock.now()
    execution = SPECIFICATION.execution
    knobs = Knobs(execution.max_concurrency, execution.partitions_per_batch)
    entry = JournalEntry(NAME, now, "ada", Action.planned)
    return house.application.ledger.add_campaign(Campaign(SPECIFICATION, plan, knobs, now), entry)


def led_to_its_end(house: House, services: Services, scheduler: Scheduler) -> list[BackfillRequest]:
    """Build what each backfill asks for until no more is launched; returns the backfills."""
    unit = house.world.ledger.unit(house.world.ledger.campaign(NAME).unit)
    built = 0
    while built < len(scheduler.requests):
        request = scheduler.requests[built]
        for name in request.layers:
            house.world.build(unit, name, {d: [1] for d in request.days})
        built, scheduler.at_work = built + 1, []
        services.conductor.conduct(NAME)
    return scheduler.requests


def test_a_campaign_with_canaries_launches_the_steps_of_its_plan_and_no_others(house: House) -> None:
    plan, scheduler, observed = planned(house).plan, Scheduler(), list[Notice]()
    with dg.DagsterInstance.ephemeral() as instance:
        services = services_of(house.application, instance)
        conductor = replace(services.conductor, backfills=scheduler)
        control = replace(services.control, conductor=conductor, notify=lambda _, notice, __: observed.append(notice))
        control.launch(NAME)
        requests = led_to_its_end(house, replace(services, conductor=conductor), scheduler)
    steps = {step.kind: step for step in plan.steps}
    assert [step.kind for step in plan.steps[:4]] == [
        StepKind.announce, StepKind.open_unit, StepKind.canary, StepKind.rest,
    ]  # fmt: skip
    assert observed[0] is Notice.announced
    (unit,) = house.world.ledger.units()
    assert unit.targets == dict.fromkeys(BOTH, steps[StepKind.open_unit].days)
    chunk = house.application.dataset("sales").chunk_days
    assert len(requests) == 2
    for request, step in zip(requests, (steps[StepKind.canary], steps[StepKind.rest]), strict=True):
        assert request.days == step.days
        layers = "; ".join(f"{', '.join(its)} of {name}" for name, its in request.layers.items())
        count = len(request.layers) * len(batches(request.days, 4, chunk))
        assert f"({layers}) in {number_of(count, 'batch')}, at most 4 days each" in step.text
    assert house.world.ledger.journal(NAME)[-1].action is Action.validated
