"""What `stale` calls current comes out the same when it is computed again, and a sample says what stale days would become."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill_assets.core.certificate import Recomputation
from backfill_assets.core.release import ReleaseKind
from backfill_assets.evidence.stale import StaleCause
from backfill_assets.proof.recompute import SparkRecomputations
from backfill_assets.proof.stale_sample import StaleSample
from backfill_assets.proof.subjects import RecomputedDays, Subjects
from backfill_assets.settings import Settings
from backfill_assets_tests.harness.examples import examples
from backfill_assets_tests.harness.without_dagster import built, publish
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, D4, DAYS, FACT, STAGING, TRIPS, Kit
from backfill_assets_tests.spark.pipeline.test_recompute import OfKit
from backfill_assets_tests.spark.pipeline.test_references_with_a_time import CHECKS, COSTS, HEAD

BOTH = ("trips", "totals")
JOINED = (
    "SELECT s.day, s.id, s.kind, s.amount * {factor} AS amount, s.fee, c.cost, k.label FROM staging AS s "
    "LEFT JOIN costs AS c ON c.kind = s.kind AND c.day = s.day LEFT JOIN kinds AS k ON k.kind = s.kind"
)
COLUMNS = {**TRIPS["columns"], "cost": {"type": "decimal(9,2)"}, "label": {"type": "string"}}  # type: ignore[dict-item]
REFERENCES = {"costs": COSTS, **TRIPS["references"]}  # type: ignore[dict-item]


@dataclass
class Changing:
    """`trips`, with a reference of each kind, and `totals` built from it: all that their days are built from may change."""

    kit: Kit
    server: Settings
    factor: int = 1
    comments: int = 0
    rules: dict[str, object] = field(default_factory=dict)
    costs: dict[dt.date, int] = field(default_factory=dict)
    label: str = "Alpha"
    files: dict[dt.date, int] = field(default_factory=lambda: dict.fromkeys(DAYS, 1))

    def written(self) -> OfKit:
        """The files as they are now, and an application that has read them."""
        self.kit.dataset(
            STAGING, JOINED.format(factor=self.factor) + " -- a comment" * self.comments, columns=COLUMNS,
            references=REFERENCES, checks={**CHECKS, "rules": self.rules}, description="Trips. " * self.comments, measures={},
        )  # fmt: skip
        sums = "SELECT day, CAST(sum(amount) AS double) AS amount, max(cost) AS cost FROM trips GROUP BY day"
        columns = {"day": {"type": "date"}, "amount": {"type": "double"}, "cost": {"type": "decimal(9,2)"}}
        self.kit.derived(sums, key=["day"], columns=columns, upstream={"trips": {}})
        self.kit.put("kinds.csv", f"kind,label\na,{self.label}\n", hour=len(self.label))
        versions = [f"a,{self.costs.get(day, 1)}.00,{day},{day + dt.timedelta(1)}\n" for day in DAYS]
        self.kit.put("costs.csv", HEAD + "".join(versions) + f"a,{self.comments}.50,2020-01-01,2020-02-01\n")
        for day, rows in self.files.items():
            self.kit.deliver(day, *(f"{day},{i},a,{i},{i}.25" for i in range(rows)), hour=rows)
        return OfKit(self.kit, self.server)

    def publish(self, *days: dt.date) -> None:
        application = self.written()
        for name in BOTH:
            unit = built(application, self.kit.spark, name, days, {"row_count": "any"})
            application.publisher.release(unit.id)
        application.ledger.close()

    def stale(self, again: Sequence[str] = ()) -> Mapping[str, Mapping[str, tuple[dt.date, ...]]]:
        """The stale days of both datasets by cause; all others of some are computed `again`, and come out as they are published."""
        application = self.written()
        found = {name: application.staleness.of(name, look=True) for name in BOTH}
        for name, one in found.items():
            published = {day for day, files in application.tables[name].active().items() if files}
            assert not one.problems + one.unknown, one
            if name in again and (current := tuple(sorted(published - {*one.days}))):
                self._assert_as_published(application, name, current)
        application.ledger.close()
        return {name: {cause.value: days for cause, days in one.by_cause.items()} for name, one in found.items()}

    def _assert_as_published(self, application: OfKit, name: str, days: tuple[dt.date, ...]) -> None:
        engine = SparkRecomputations(application.session, application.datasets, application.layout)
        folder = f"_shadow/{application.ids.new('t')}/1"
        sampled = Subjects(application.warehouse).sampled(RecomputedDays(name, days))
        engine.recompute(sampled, folder, Recomputation("again", {}))
        assert engine.prints(name, days, folder) == engine.prints(name, days, "")


@pytest.fixture
def changing(kit: Kit, spark_settings: Settings) -> Changing:
    return Changing(kit, spark_settings)


def test_what_is_current_comes_out_the_same_for_every_kind_of_change(changing: Changing) -> None:
    changing.publish(*DAYS)
    # A comment, a description, and a version of a reference that is valid on no day.
    changing.comments = 1
    assert changing.stale(BOTH) == {"trips": {}, "totals": {}}
    changing.costs[D3], changing.files[D2] = 7, 2
    assert changing.stale() == {"trips": {"source": (D2,), "reference": (D3,)}, "totals": {}}
    changing.publish(D3)
    assert changing.stale(BOTH) == {"trips": {"source": (D2,)}, "totals": {}}
    changing.label = "Beta"
    assert changing.stale() == {"trips": {"source": (D2,), "reference": DAYS}, "totals": {}}
    changing.factor, changing.rules = 3, {"positive": {"sql": "amount >= 0"}}
    assert {cause: days for cause, days in changing.stale()["trips"].items() if cause in {"code", "checks"}} == {
        "code": DAYS, "checks": DAYS,
    }  # fmt: skip


def _model(changing: Changing, _: dt.date) -> None:
    changing.factor += 1


def _comment(changing: Changing, _: dt.date) -> None:
    changing.comments += 1


def _cost(changing: Changing, day: dt.date) -> None:
    changing.costs[day] = changing.costs.get(day, 1) + 1


def _label(changing: Changing, _: dt.date) -> None:
    changing.label += "a"


def _file(changing: Changing, day: dt.date) -> None:
    changing.files[day] += 1


def _release(changing: Changing, day: dt.date) -> None:
    changing.publish(day)


def _back(changing: Changing, _: dt.date) -> None:
    """The newest release of `trips` is undone, unless it is the first one, or undoes another."""
    application = changing.written()
    newest, *others = application.ledger.releases("trips")
    if others and newest.manifest.kind is ReleaseKind.publish:
        application.rollback.execute(newest.manifest.release, "wrong")
    application.ledger.close()


STEPS = (_model, _comment, _cost, _label, _file, _release, _back)


@settings(max_examples=examples(6), deadline=None, suppress_health_check=[*HealthCheck])
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(DAYS)), min_size=2, max_size=6))
def test_what_is_current_comes_out_the_same_after_any_sequence_of_changes_and_releases(
    module_kit: Kit, spark_settings: Settings, steps: list[tuple[Callable[[Changing, dt.date], None], dt.date]]
) -> None:
    root = module_kit.root / f"{len([*module_kit.root.iterdir()])}"
    root.mkdir()
    changing = Changing(Kit(module_kit.spark, root), spark_settings)
    changing.publish(*DAYS)
    for step, day in steps:
        step(changing, day)
    changing.stale(BOTH)


def sample(kit: Kit, server: Settings, fact: str) -> tuple[StaleSample, OfKit]:
    """What sampled days become by another model."""
    kit.dataset(fact=fact, checks={}, references={})
    application = OfKit(kit, server)
    found = application.staleness.of("trips", look=True)
    assert found.by_cause == {StaleCause.source: (D3,), StaleCause.code: DAYS}
    return application.stale_samples.of(found, 12), application


def test_a_sample_says_which_stale_days_come_out_the_same_and_changes_nothing(
    kit: Kit, spark_settings: Settings
) -> None:
    kit.dataset(checks={}, references={})
    for day in (D1, D2, D3, D4):
        kit.deliver(day, *(f"{day},{i},a,{i},{i}.25" for i in range(1, 4)))
    publish(OfKit(kit, spark_settings), kit.spark, "trips", (D1, D2, D3, D4))
    # Data made this day stale as well: it is built again anyway.
    kit.deliver(D3, f"{D3},1,a,1,1.25", hour=1)
    same, application = sample(kit, spark_settings, f"{FACT} WHERE true")
    assert (same.days, same.of, dict(same.different), same.problem) == ((D1, D2, D4), 3, {}, "")
    doubled = f"CAST(CASE WHEN day = DATE '{D2}' THEN 2 * fee ELSE fee END AS decimal(12,2)) AS fee"
    fact = f"{FACT.replace('fee', doubled)} WHERE day <> DATE '{D4}' OR id > 1"
    other, application = sample(kit, spark_settings, fact)
    assert dict(other.different) == {D2: ("fee",), D4: ("rows", "amount", "day", "fee", "id", "kind")}
    broken, application = sample(
        kit, spark_settings, FACT.replace("fee", "CAST(1 / (id - id) AS decimal(12,2)) AS fee")
    )
    assert (broken.days, "Division by zero" in broken.problem) == ((), True)
    assert not [file for file in application.tables["trips"].stored_files() if file.path.startswith("_shadow/s_")]
