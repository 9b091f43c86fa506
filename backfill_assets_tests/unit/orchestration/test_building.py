"""Two launches working on the same days: which one waits, and what is left to build afterwards."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backfill_assets.core.errors import EngineError
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.unit import Attempt, AttemptState, Unit, UnitState
from backfill_assets.orchestration import batches
from backfill_assets_tests.harness.between import between, nothing
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import House

D1, D2 = day(1), day(2)
LEASE = dt.timedelta(hours=1)


@dataclass
class Step:
    """The step of a run that builds `sales`: on a real ledger, without Spark."""

    house: House
    unit: Unit
    run: Any
    runs: dict[str, Any]

    def other(self, run: str, *days: dt.date, finished: bool = False) -> Attempt:
        """Another run's attempt, which Dagster counts as finished or not."""
        self.runs[run] = SimpleNamespace(is_finished=finished)
        return self.house.world.ledger.start_attempt(self.unit.id, "sales", days, run, LEASE)

    def build(
        self, session: Callable[..., Any] = lambda *_: nullcontext(), between_calls: Callable[[str], None] = nothing
    ) -> tuple[dt.date, ...]:
        application = self.house.application
        pipeline = SimpleNamespace(
            days_to_build=application.pipeline.days_to_build, build=lambda *_: None, validate=self._validate
        )
        stripped: Any = SimpleNamespace(
            ledger=between(self.house.world.ledger, {"start_attempt"}, before=between_calls),
            clock=self.house.world.clock, pipeline=pipeline, session=session,
            settings=SimpleNamespace(lease=LEASE, query_timeout=LEASE), dataset=application.dataset,
        )  # fmt: skip
        context: Any = SimpleNamespace(
            run=self.run,
            log=SimpleNamespace(info=lambda _: None, error=lambda _: None),
            instance=SimpleNamespace(get_run_by_id=self.runs.get),
        )
        return batches.build(context, stripped, self.unit, "sales", (D1, D2))

    def _validate(self, _: object, unit: Unit, attempt: Attempt) -> tuple[DayEvidence, ...]:
        self.house.world.build(unit, "sales", {d: [d.day] for d in attempt.days}, attempt=attempt)
        return tuple(self.house.world.ledger.evidence(unit.id, "sales", attempt.days).values())

    def states(self) -> dict[str, AttemptState]:
        return {a.run: a.state for a in self.house.world.ledger.attempts(self.unit.id)}


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    house = House(tmp_path, monkeypatch)
    run = SimpleNamespace(run_id="mine", root_run_id=None, parent_run_id=None, tags={})
    yield Step(house, house.world.open_unit({"sales": (D1, D2)}), run, {})
    house.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens while a launch waits: one event between each two checks; one check more fails."""
    events: list[Callable[[], object]] = []
    monkeypatch.setattr(batches, "time", SimpleNamespace(sleep=lambda _: events.pop(0)()))
    return events


def test_a_unit_that_another_launch_releases_at_the_last_moment_leaves_nothing_to_build(step: Step) -> None:
    world = step.house.world

    def released(_call: str) -> None:
        world.build(step.unit, "sales", {D1: [1], D2: [2]})
        world.publisher().release(step.unit.id)

    assert step.build(between_calls=released) == ()
    assert "mine" not in step.states()
    assert world.ledger.unit(step.unit.id).state is UnitState.published


def test_days_that_another_launch_builds_meanwhile_are_not_built_again(
    step: Step, looks: list[Callable[[], object]]
) -> None:
    other = step.other("other", D1)
    looks += [lambda: None, lambda: step.house.world.build(step.unit, "sales", {D1: [1]}, attempt=other)]
    assert step.build() == (D2,)
    assert looks == []
    assert step.states() == {"other": AttemptState.done, "mine": AttemptState.done}


def test_nothing_is_left_when_another_launch_has_built_all(step: Step, looks: list[Callable[[], object]]) -> None:
    other = step.other("other", D1, D2)
    looks += [lambda: step.house.world.build(step.unit, "sales", {D1: [1], D2: [2]}, attempt=other)]
    assert step.build() == ()
    assert step.states() == {"other": AttemptState.done}


def test_a_run_that_is_over_whatever_its_lease_says_is_not_waited_for(
    step: Step, looks: list[Callable[[], object]]
) -> None:
    step.other("over", D1, finished=True)
    assert step.build() == (D1, D2)
    assert step.states() == {"over": AttemptState.lost, "mine": AttemptState.done}


def test_a_dead_run_is_waited_for_until_its_lease_is_over(step: Step, looks: list[Callable[[], object]]) -> None:
    step.other("dead", D1)
    looks += [lambda: step.house.world.clock.advance(LEASE / 2), lambda: step.house.world.clock.advance(LEASE)]
    assert step.build() == (D1, D2)
    assert looks == []


@pytest.mark.parametrize("kin", ["root_run_id", "parent_run_id"])
def test_a_retry_does_not_wait_for_what_it_retries(step: Step, looks: list[Callable[[], object]], kin: str) -> None:
    step.other("first", D1, D2)
    setattr(step.run, kin, "first")
    assert step.build() == (D1, D2)
    assert step.states()["mine"] is AttemptState.done


def test_an_attempt_whose_server_does_not_start_fails_and_delays_no_other(
    step: Step, looks: list[Callable[[], object]]
) -> None:
    def refuses(*_: object) -> Any:
        raise EngineError("no Java")

    with pytest.raises(EngineError):
        step.build(refuses)
    assert step.states() == {"mine": AttemptState.failed}
