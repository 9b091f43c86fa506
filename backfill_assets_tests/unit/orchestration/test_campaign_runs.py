"""How the runs of a campaign wait for its gate: on a real ledger, with files, and with hours that pass immediately."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from backfill_assets.campaign.gate import Waits
from backfill_assets.campaign.specification import Notice
from backfill_assets.campaign.state import CAMPAIGN_TAG, Action, CampaignState, Phase
from backfill_assets.control.conductor import Batch
from backfill_assets.core.errors import EngineError, JavaError, ModelError, QueryTimeoutError, ServerLostError
from backfill_assets.core.evidence import DayEvidence
from backfill_assets.core.layers import Layer
from backfill_assets.core.unit import Attempt, AttemptState, Unit
from backfill_assets.orchestration import batches
from backfill_assets.orchestration.batch_pool import BatchPool, Slot
from backfill_assets.orchestration.batches import build, in_batches
from backfill_assets_tests.harness.specifications import CANARIES, NAME, SIX_DAYS, with_canaries
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.harness.world import World

HOUR = dt.timedelta(hours=1)
Days = tuple[dt.date, ...]


@dataclass
class Paving:
    """A pipeline that remembers what was landed and staged, and builds shadows as tests do."""

    world: World
    landed: set[dt.date] = field(default_factory=set)
    staged: set[dt.date] = field(default_factory=set)
    at_work: Callable[[Attempt], object] = lambda _: None

    def days_to_land(self, _: str, days: Days, *, again: bool = False) -> Days:  # noqa: ARG002 - files only
        return tuple(d for d in days if d not in self.landed)

    def days_to_stage(self, _: str, days: Days) -> Days:
        return tuple(d for d in days if d not in self.staged)

    def days_to_build(self, unit: Unit, _: str, days: Days) -> Days:
        built = self.world.ledger.evidence(unit.id, "sales", days)
        return tuple(d for d in days if ("sales", d) not in built)

    def build(self, *_: object) -> None:
        pass

    def validate(self, _: object, unit: Unit, attempt: Attempt) -> tuple[DayEvidence, ...]:
        self.at_work(attempt)
        self.world.build(unit, "sales", {d: [d.day] for d in attempt.days}, attempt=attempt)
        return tuple(self.world.ledger.evidence(unit.id, "sales", attempt.days).values())


class Runs:
    """The runs of a world's newest backfill, with the real gates; each new check of a gate lets time pass."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = world.clock
        looks = SimpleNamespace(
            monotonic=lambda: clock.now().timestamp(),
            sleep=lambda seconds: clock.advance(dt.timedelta(seconds=seconds)),
        )
        monkeypatch.setattr(batches, "time", looks)
        monkeypatch.setattr(batches, "_LOOK_SECONDS", 60.0)
        services = SimpleNamespace(gatekeeper=world.gatekeeper, conductor=world.conductor)
        monkeypatch.setattr(batches, "services_of", lambda *_: services)
        monkeypatch.setattr(batches, "_report", lambda *_: None)
        self.world, self.pipeline, self.count = world, Paving(world), 0
        settings = SimpleNamespace(lease=HOUR, gate_wait=dt.timedelta(minutes=1), query_timeout=HOUR)
        self.application: Any = SimpleNamespace(
            ledger=world.ledger,
            pipeline=self.pipeline,
            settings=settings,
            clock=clock,
            session=self._session,
            dataset=lambda _: SimpleNamespace(has_own_window=self.has_own_window, provisional=None),
        )
        self.has_own_window = False
        self.outage: EngineError | None = None
        self.meeting: threading.Barrier | None = None
        self.tags: list[str] = []
        self.said: list[str] = []

    def fails(self, attempt: Attempt, error: EngineError) -> None:
        """Spark fails in a batch, which is one of several that run at the same time."""
        run = SimpleNamespace(tags={CAMPAIGN_TAG: NAME})
        context = cast("dg.AssetExecutionContext", SimpleNamespace(run_id="run_x", run=run, instance=None))
        batches._gate_of(context, self.application).engine_failed(attempt, Layer.shadow, error)  # noqa: SLF001
        self.world.ledger.end_attempt(attempt.number, AttemptState.failed)

    @contextmanager
    def _session(self, tag: str, *_: object) -> Iterator[None]:
        self.tags.append(tag)
        if self.outage is not None:
            raise self.outage
        if self.meeting is not None:
            self.meeting.wait(20)
        yield

    def work(self) -> bool:
        """One run over all days of the newest backfill; returns whether it finished."""
        self.count += 1
        run = SimpleNamespace(tags={CAMPAIGN_TAG: NAME}, run_id=f"run_{self.count}", root_run_id=None)
        log = SimpleNamespace(info=lambda _: None, error=self.said.append)
        context = cast("dg.AssetExecutionContext", SimpleNamespace(run=run, run_id=run.run_id, log=log, instance=None))
        world, days = self.world, self.world.scheduler.requests[-1].days
        unit = world.ledger.unit(world.campaign().unit)
        done: Mapping[str, Callable[[Days], None]] = {
            "raw": self.pipeline.landed.update,
            "staging": self.pipeline.staged.update,
        }
        try:
            for layer, note in done.items():
                in_batches(
                    context, self.application, Batch("sales", days, layer), lambda _, batch, note=note: note(batch)
                )
            build(context, self.application, unit, "sales", days)
        except dg.Failure as failure:
            world.scheduler.failed_run, world.scheduler.failed_of = run.run_id, str(failure.description)
            return False
        except EngineError as error:
            world.scheduler.failed_run, world.scheduler.failed_of = run.run_id, str(error)
            return False
        finally:
            world.scheduler.at_work = []
        return True

    def batches(self) -> list[tuple[str, Days]]:
        return [(a.layer, a.days) for a in self.world.ledger.attempts(self.world.campaign().unit)]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**execution: object) -> World:
        made.append(World(tmp_path, asked=with_canaries(**execution)))  # type: ignore[arg-type]
        made[-1].plan()
        return made[-1]

    yield make
    made[-1].close()


def test_the_floor_brings_all_layers_forward_beside_live_runs_that_never_end(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened(min_progress="1 batch per hour")
    runs = Runs(world, monkeypatch)
    world.scheduler.live = ("live",)
    world.control.launch(NAME)
    world.control.set(NAME, "", partitions_per_batch=4)
    for _ in range(7):
        world.clock.advance(HOUR)
        world.conduct()
        if world.scheduler.at_work:
            runs.work()
    assert world.standings.of(NAME).state is CampaignState.validated
    rest = tuple(d for d in SIX_DAYS if d not in CANARIES)
    assert runs.batches() == [(layer, days) for days in (CANARIES, rest) for layer in ("raw", "staging", "shadow")]
    starts = [a.started_at for a in world.ledger.attempts(world.campaign().unit)]
    assert min(later - one for one, later in pairwise(starts)) >= HOUR


def test_landing_and_staging_pass_no_gate_and_are_charged_nothing(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened()
    runs = Runs(world, monkeypatch)
    world.control.launch(NAME)
    runs.pipeline.landed = set(CANARIES)
    runs.pipeline.staged = {CANARIES[0]}
    assert runs.work()
    assert runs.batches() == [("staging", CANARIES[1:]), ("shadow", CANARIES)]


@pytest.mark.parametrize("queued", [False, True])
def test_a_batch_above_the_budget_of_the_day_stops_the_campaign(
    opened: Callable[..., World],
    monkeypatch: pytest.MonkeyPatch,
    queued: bool,  # noqa: FBT001
) -> None:
    world = opened(budget={"bytes_read_per_day": "1 KB"})
    world.released({d: [1, 2, 3] for d in CANARIES})
    runs = Runs(world, monkeypatch)
    world.control.launch(NAME)
    assert not runs.work()
    world.scheduler.at_work = ["b1"] if queued else []
    assert "is stopped: the next batch would bring the bytes read today to" in world.conduct()
    assert (world.phase(), len(world.scheduler.requests), world.scheduler.at_work) == (Phase.stopped, 1, [])
    assert world.notices[-1][0] is Notice.stopped
    world.control.resume(NAME, "it is small")
    assert len(world.scheduler.requests) == 2
    assert not runs.work()
    assert "is stopped: the next batch" in world.conduct()


def test_a_budget_that_is_renewed_before_the_campaign_is_stopped_stops_nothing(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened(budget={"bytes_read_per_day": "5 KB"})
    world.released({d: [1, 2, 3] for d in CANARIES})
    runs = Runs(world, monkeypatch)
    world.control.launch(NAME)
    runs.pipeline.landed = runs.pipeline.staged = set(CANARIES)
    spent = world.gatekeeper.begin(NAME, Batch("sales", CANARIES), "run_0", HOUR)
    assert isinstance(spent, Attempt)
    world.ledger.end_attempt(spent.number, AttemptState.failed)
    assert not runs.work()
    world.clock.advance(12 * HOUR)
    assert "launched backfill b2" in world.conduct()
    assert runs.work()


def test_a_campaign_waits_for_midnight_if_the_bytes_of_the_day_are_used_up(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened(budget={"bytes_read_per_day": "5 KB", "used_up": "wait"})
    world.released({d: [1, 2, 3] for d in CANARIES})
    runs = Runs(world, monkeypatch)
    world.control.launch(NAME)
    runs.pipeline.landed = runs.pipeline.staged = set(CANARIES)
    spent = world.gatekeeper.begin(NAME, Batch("sales", CANARIES), "run_0", HOUR)
    assert isinstance(spent, Attempt)
    world.ledger.end_attempt(spent.number, AttemptState.failed)
    assert not runs.work()
    for _ in range(3):
        assert world.conduct() == ""
    assert (world.phase(), len(world.scheduler.requests)) == (Phase.canary, 1)
    said = world.standings.of(NAME).decision
    assert isinstance(said, Waits)
    assert said.until is not None
    world.clock.advance(12 * HOUR)
    assert "launched backfill b2" in world.conduct()
    assert runs.work()


@pytest.mark.parametrize("layer", ["raw", "shadow"])
def test_a_campaign_tries_again_after_pauses_that_grow_and_stops_at_the_fourth_failure_of_spark(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    world = opened()
    runs = Runs(world, monkeypatch)
    world.control.launch(NAME)
    if layer == "shadow":
        runs.pipeline.landed = runs.pipeline.staged = set(CANARIES)
    runs.outage = ServerLostError("The Spark server went away")
    for number, minutes in enumerate((1, 5, 15), start=1):
        assert not runs.work()
        world.clock.advance(dt.timedelta(minutes=minutes, seconds=-1))
        assert world.conduct() == ""
        assert world.phase() is Phase.canary
        world.clock.advance(dt.timedelta(seconds=1))
        assert f"launched backfill b{number + 1}" in world.conduct()
    assert not runs.work()
    assert "is stopped: The Spark server went away" in world.conduct()
    assert world.phase() is Phase.stopped
    reasons = [entry.reason for entry in world.ledger.journal(NAME) if entry.action is Action.waits]
    assert [reason.partition(" times")[0] for reason in reasons] == [f"Spark failed, {n} of 3" for n in (1, 2, 3)]

    world.control.resume(NAME, "the server is back")
    assert not runs.work()
    assert world.conduct() == "", "a resume begins to count again"
    said = world.standings.of(NAME).decision
    assert isinstance(said, Waits)
    assert said.reason.startswith("Spark failed, 1 of 3 times in a row; next try at")
    runs.outage = None
    world.clock.advance(HOUR)
    assert "launched backfill" in world.conduct()
    assert runs.work()


@pytest.mark.parametrize("layer", [Layer.shadow, Layer.raw])
def test_days_that_pass_between_two_failures_of_spark_begin_the_count_again_and_what_was_only_landed_does_not(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch, layer: Layer
) -> None:
    world = opened()
    runs = Runs(world, monkeypatch)
    world.control.launch(NAME)
    for _ in range(5):
        runs.outage = QueryTimeoutError("A Spark operation ran longer than 30m")
        assert not runs.work()
        world.clock.advance(dt.timedelta(minutes=16))
        if "launched backfill" not in world.conduct():
            break
        runs.outage = None
        runs.pipeline.landed, runs.pipeline.staged = set(), set()
        passed = world.gatekeeper.begin(NAME, Batch("sales", CANARIES, layer), "run_0", HOUR)
        assert isinstance(passed, Attempt)
        world.ledger.end_attempt(passed.number, AttemptState.done)
        world.clock.advance(dt.timedelta(seconds=1))
    assert (world.phase() is Phase.canary) is (layer is Layer.shadow)


def test_batches_that_fail_together_count_once(opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    world = opened()
    runs = Runs(world, monkeypatch)
    world.control.launch(NAME)
    world.control.set(NAME, "", max_concurrency=3)
    runs.pipeline.landed = runs.pipeline.staged = set(CANARIES)
    begun = [world.gatekeeper.begin(NAME, Batch("sales", (day,)), f"run_{day}", HOUR) for day in CANARIES]
    world.clock.advance(HOUR / 2)
    for attempt in begun:
        assert isinstance(attempt, Attempt)
        runs.fails(attempt, ServerLostError("gone"))
        world.clock.advance(dt.timedelta(seconds=1))
    failure = world.gatekeeper.traffic(world.campaign()).failure
    assert failure is not None
    assert failure.failures == 1


def test_a_batch_that_ends_after_another_one_has_failed_says_nothing_about_spark(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened()
    runs = Runs(world, monkeypatch)
    world.control.launch(NAME)
    world.control.set(NAME, "", max_concurrency=2)
    bad, good = [world.gatekeeper.begin(NAME, Batch("sales", (day,)), f"run_{day}", HOUR) for day in CANARIES]
    assert isinstance(bad, Attempt)
    assert isinstance(good, Attempt)
    world.clock.advance(HOUR / 2)
    runs.fails(bad, ServerLostError("gone"))
    world.clock.advance(dt.timedelta(seconds=1))
    world.ledger.end_attempt(good.number, AttemptState.done)
    assert isinstance(world.gatekeeper.begin(NAME, Batch("sales", CANARIES[:1]), "next", HOUR), Waits)


def test_no_batch_begins_while_the_campaign_pauses_after_a_failure_of_spark(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened()
    runs = Runs(world, monkeypatch)
    world.control.launch(NAME)
    runs.outage = ServerLostError("gone")
    assert not runs.work()
    answer = world.gatekeeper.begin(NAME, Batch("sales", CANARIES), "queued before", HOUR)
    assert isinstance(answer, Waits)
    assert answer.until == world.clock.now() + dt.timedelta(minutes=1)


def test_another_error_of_spark_stops_a_campaign_as_before(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened()
    runs = Runs(world, monkeypatch)
    world.control.launch(NAME)
    runs.outage = JavaError("Java was not found")
    assert not runs.work()
    assert "is stopped: Java was not found" in world.conduct()


REST = tuple(d for d in SIX_DAYS if d not in CANARIES)


def with_canaries_passed(opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch, size: int = 2) -> Runs:
    """A campaign whose next run has the four other days, of which two batches may be at work."""
    world = opened()
    runs = Runs(world, monkeypatch)
    world.control.launch(NAME)
    assert runs.work()
    world.control.set(NAME, "faster", max_concurrency=2, partitions_per_batch=size)
    assert "launched backfill b2" in world.conduct()
    runs.tags.clear()
    return runs


def test_a_dataset_with_a_window_builds_one_batch_at_a_time_and_raw_lands_one(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = with_canaries_passed(opened, monkeypatch)
    runs.has_own_window = True
    assert runs.work()
    assert [tag for tag in runs.tags if "staging" not in tag] == [
        f"{runs.world.campaign().unit}:{layer}:sales:{day}" for layer in ("raw", "shadow") for day in (REST[0], REST[2])
    ]


def test_two_batches_of_one_run_are_at_work_at_the_same_time_in_sessions_of_their_own(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = with_canaries_passed(opened, monkeypatch)
    runs.pipeline.landed = set(SIX_DAYS)
    runs.meeting = threading.Barrier(2)
    assert runs.work(), "each batch waits for the other one"
    assert sorted(runs.batches()[3:]) == sorted(
        (layer, days) for layer in ("staging", "shadow") for days in (REST[:2], REST[2:])
    )
    assert {a.state for a in runs.world.ledger.attempts(runs.world.campaign().unit)} == {AttemptState.done}
    layers = ("staging", "shadow")
    assert sorted(runs.tags) == sorted(
        f"{runs.world.campaign().unit}:{layer}:sales:{day}" for layer in layers for day in (REST[0], REST[2])
    )
    runs.world.conduct()
    assert runs.world.standings.of(NAME).state is CampaignState.validated


def test_a_batch_that_fails_lets_the_others_end_and_no_other_begin(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = with_canaries_passed(opened, monkeypatch, size=1)
    runs.pipeline.landed = runs.pipeline.staged = set(SIX_DAYS)
    world, begun = runs.world, threading.Event()

    def failed() -> bool:
        return bool(world.ledger.attempts(world.campaign().unit, AttemptState.failed))

    def at_work(attempt: Attempt) -> None:
        if attempt.days == REST[:1]:
            assert begun.wait(20)
            raise ServerLostError("gone")
        begun.set()
        wait_for(failed, "the other batch to fail", 20)

    runs.pipeline.at_work = at_work
    assert not runs.work()
    assert world.scheduler.failed_of == "gone"
    states = {a.days: a.state for a in world.ledger.attempts(world.campaign().unit) if set(a.days) <= set(REST)}
    assert states == {REST[:1]: AttemptState.failed, REST[1:2]: AttemptState.done}
    assert REST[1] in world.evidence()
    assert runs.said == []


def test_the_failure_of_a_batch_is_named_and_not_the_gate_that_it_closes(
    opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = with_canaries_passed(opened, monkeypatch, size=1)
    runs.pipeline.landed = runs.pipeline.staged = set(SIX_DAYS)
    both = threading.Barrier(2)

    def at_work(attempt: Attempt) -> None:
        both.wait(20)
        raise ModelError(f"no column in {attempt.days[0]}")

    runs.pipeline.at_work = at_work
    with pytest.raises(ModelError, match="no column in"):
        runs.work()
    (said,) = runs.said
    assert said.startswith("another batch failed as well: no column in")


def test_a_cancelled_run_waits_for_no_batch(opened: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = with_canaries_passed(opened, monkeypatch)
    world, at_work, interrupted = runs.world, threading.Event(), threading.Event()
    attempt = world.gatekeeper.begin(NAME, Batch("sales", REST), "run_2", HOUR)
    assert isinstance(attempt, Attempt)

    def work(slot: Slot) -> None:
        slot.spark = cast("SparkSession", SimpleNamespace(interruptAll=interrupted.set))
        at_work.set()
        assert interrupted.wait(20)

    pool = BatchPool(world.ledger, runs.said.append)
    with pytest.raises(KeyboardInterrupt), pool:  # noqa: PT012
        pool.run(work, attempt, 2)
        assert at_work.wait(20)
        assert pool.attempts == (attempt.number,)
        raise KeyboardInterrupt
    assert interrupted.is_set()
    assert [a.state for a in world.ledger.attempts(run="run_2")] == [AttemptState.failed]
