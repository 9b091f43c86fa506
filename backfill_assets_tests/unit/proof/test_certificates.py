"""Certificates: what is recomputed, what is compared with what, and what a campaign that requires one waits for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from backfill_assets.campaign.execution import Execution
from backfill_assets.core.certificate import AS_BUILT, INPUT_ROWS, NO_PRINTS, Certificate, Prints, Recomputation
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import ApprovalError, InvalidDayError, ModelError, ProofError, UnitError
from backfill_assets.core.measured import Value
from backfill_assets.proof.certificate import Prover, ways_for
from backfill_assets.proof.subjects import Sampled
from backfill_assets_tests.harness.specifications import DAYS, NAME
from backfill_assets_tests.harness.tables import day, fingerprint, rows_of, write_shadow
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

REQUIRED = {"validation": {"certificate": "required"}}
RAW = {"raw": {DAYS[0]: "as landed"}, "staging": {DAYS[0]: "as staged"}}


class Engine:
    """Recomputes every day to the same amounts, unless a test sets other amounts for a recomputation."""

    def __init__(self, world: World, amounts: Collection[int] = (2,)) -> None:
        self.world, self.amounts = world, tuple(amounts)
        self.otherwise: dict[str, tuple[int, ...]] = {}
        self.asked: list[tuple[Sampled, str, Recomputation]] = []
        self.pipeline: dict[str, dict[dt.date, str]] = {name: dict(found) for name, found in RAW.items()}
        self.meanwhile: Callable[[], object] = lambda: None
        self._ways: dict[str, str] = {}

    def recompute(self, sampled: Sampled, folder: str, how: Recomputation) -> None:
        self.asked.append((sampled, folder, how))
        self._ways[folder] = how.name
        write_shadow(self.world.homes[sampled.dataset], folder, rows_of({sampled.days[0]: self.amounts}, ""))
        self.meanwhile()

    def prints(self, dataset: str, days: Collection[dt.date], place: str) -> Mapping[dt.date, Prints]:
        del dataset
        amounts = self.otherwise.get(self._ways.get(place, AS_BUILT), self.amounts)
        found = Prints(len(amounts), 1, {"day": "1", "amount": f"{sum(amounts)}:7"}, {}, fingerprint(amounts))
        return dict.fromkeys(days, found if amounts else NO_PRINTS)

    def rows(
        self, dataset: str, days: Collection[dt.date], places: tuple[str, str]
    ) -> Mapping[dt.date, tuple[Mapping[str, Value], ...]]:
        del dataset
        return {d: ({"places": " ".join(self._ways.get(place, "built") for place in places)},) for d in days}

    def layouts(self, dataset: str) -> Mapping[str, Mapping[dt.date, str]]:
        del dataset
        return {name: dict(found) for name, found in self.pipeline.items()}


def delivered(world: World, *days: dt.date) -> None:
    at = world.clock.now()
    world.ledger.add_deliveries(Delivery("sales", d, f"{d}.csv", "f", 1, at, at, 1, 0) for d in days)


def prover(world: World, engine: Engine) -> Prover:
    return Prover(world.warehouse(), world.basis, lambda _: engine)


def proven(campaigns: World, **otherwise: tuple[int, ...]) -> Certificate:
    delivered(campaigns, *DAYS)
    engine = Engine(campaigns)
    engine.otherwise = {name.replace("_", " "): amounts for name, amounts in otherwise.items()}
    (certificate,) = prover(campaigns, engine).prove(NAME)
    return certificate


def test_a_unit_is_recomputed_in_three_ways_and_compared_with_what_it_has_built(campaigns: World) -> None:
    _, unit = campaigns.validated()
    certificate = proven(campaigns)
    assert certificate.passed
    assert (certificate.dataset, certificate.unit, certificate.days, certificate.by) == ("sales", unit.id, DAYS, "ada")
    assert [way.name for way in certificate.recomputations] == ["as configured", "again", "another engine", AS_BUILT]
    assert campaigns.ledger.certificates(unit=unit.id) == (certificate,)
    assert not list(campaigns.homes["sales"].glob(f"_shadow/{certificate.id}*"))


def test_differences_are_named_with_day_columns_and_rows(campaigns: World) -> None:
    campaigns.validated()
    certificate = proven(campaigns, another_engine=(3,))
    assert not certificate.passed
    assert {(d.day, d.recomputation, d.columns) for d in certificate.disagreements} == {
        (d, "another engine", ("amount",)) for d in DAYS
    }
    assert certificate.disagreements[0].rows == ({"places": "as configured another engine"},)
    assert "amount of 2026-01-01..2026-01-03 came out differently" in str(certificate)


def test_evidence_that_is_not_reproduced_is_a_disagreement(campaigns: World) -> None:
    campaigns.validated(amount=5)
    certificate = proven(campaigns)
    assert {d.recomputation for d in certificate.disagreements} == {AS_BUILT}


def test_evidence_of_other_code_is_not_compared(campaigns: World) -> None:
    campaigns.validated(amount=5)
    campaigns.basis.codes["sales"] = "0ther"  # type: ignore[union-attr]
    certificate = proven(campaigns)
    assert certificate.passed
    assert AS_BUILT not in certificate.prints


def test_the_named_days_are_recomputed_or_up_to_three_telling_ones(
    campaigns: World,
) -> None:
    days = [day(i) for i in range(6)]
    campaigns.released({d: [2] * (1 + 40 * (i == 2)) for i, d in enumerate(days)})
    delivered(campaigns, *days)
    engine = Engine(campaigns)
    (certificate,) = prover(campaigns, engine).prove("sales")
    assert certificate.days == (days[0], days[2], days[5])
    assert certificate.unit == ""
    (named,) = prover(campaigns, engine).prove("sales", (days[1],))
    assert named.days == (days[1],)
    assert [folder for _, folder, _ in engine.asked[3:]] == [f"_shadow/{named.id}/{n}" for n in (1, 2, 3)]


def test_published_days_of_the_same_code_and_inputs_must_come_out_again(campaigns: World) -> None:
    campaigns.released({DAYS[0]: [2], DAYS[1]: [5]})
    delivered(campaigns, *DAYS)
    (certificate,) = prover(campaigns, Engine(campaigns)).prove("sales")
    assert {(d.day, d.recomputation) for d in certificate.disagreements} == {(DAYS[1], AS_BUILT)}
    campaigns.basis.changed["sales", DAYS[1]] = "another delivery"  # type: ignore[union-attr]
    (again,) = prover(campaigns, Engine(campaigns)).prove("sales")
    assert again.passed
    assert set(again.prints[AS_BUILT]) == {DAYS[0]}


def test_nothing_to_recompute_is_refused_with_the_remedy(campaigns: World) -> None:
    proving = prover(campaigns, Engine(campaigns))
    with pytest.raises(
        ProofError, match="nothing of sales can be recomputed: nothing was delivered or published for any day"
    ):
        proving.prove("sales")
    with pytest.raises(
        ProofError, match=r"nothing was delivered or published for 2026-01-01\. Materialize sales/raw first"
    ):
        proving.prove("sales", DAYS[:1])
    with pytest.raises(InvalidDayError, match="outside the history"):
        proving.prove("sales", (dt.date(1999, 1, 1),))
    with pytest.raises(UnitError, match="nobody"):
        proving.prove("nobody")
    campaigns.validated()
    delivered(campaigns, *DAYS)
    with pytest.raises(ProofError, match=rf"{NAME} does not hold sales 2026-01-08"):
        proving.prove(NAME, (day(7),))


def test_inputs_that_move_meanwhile_give_no_certificate_and_leave_no_scratch(campaigns: World) -> None:
    campaigns.validated()
    delivered(campaigns, *DAYS)
    engine = Engine(campaigns)
    engine.meanwhile = lambda: campaigns.basis.changed.update({("sales", DAYS[1]): "late"})  # type: ignore[union-attr]
    with pytest.raises(ProofError, match="sales 2026-01-02: deliveries, references or upstreams changed"):
        prover(campaigns, engine).prove(NAME)
    assert campaigns.ledger.certificates() == ()
    assert len(list(campaigns.homes["sales"].glob("_shadow/*"))) == 1


def test_a_model_that_fails_leaves_no_scratch(campaigns: World) -> None:
    campaigns.validated()
    delivered(campaigns, *DAYS)

    def fail() -> None:
        raise ModelError("fact.sql: division by zero")

    engine = Engine(campaigns)
    engine.meanwhile = fail
    with pytest.raises(ModelError):
        prover(campaigns, engine).prove(NAME)
    assert len(list(campaigns.homes["sales"].glob("_shadow/*"))) == 1


def test_changes_of_a_release_or_a_landing_meanwhile_are_accepted_and_all_others_are_named(campaigns: World) -> None:
    campaigns.validated()
    delivered(campaigns, *DAYS)
    engine, done = Engine(campaigns), list[str]()

    def live() -> None:
        if not done:
            done.append(campaigns.released({day(7): [9]}))
            delivered(campaigns, day(7))
            engine.pipeline["raw"][day(7)] = "landed"
            engine.pipeline["staging"][day(8)] = "by somebody"

    engine.meanwhile = live
    (certificate,) = prover(campaigns, engine).prove(NAME)
    assert certificate.touched == (f"staging {day(8)}",)
    assert not certificate.passed
    assert f"touched meanwhile: staging {day(8)}" in str(certificate)


def test_the_other_engine_differs_in_partitions_plan_and_order_whatever_a_campaign_sets() -> None:
    partitions = "spark.sql.shuffle.partitions"
    for configured in ({}, {partitions: "7"}, {partitions: "200", "spark.sql.broadcastTimeout": "600"}):
        first, again, other = ways_for(Execution(spark=configured))
        assert first.settings == again.settings == configured
        assert other.settings[partitions] not in {"4", "200", configured.get(partitions)}
        assert other.settings["spark.sql.adaptive.enabled"] == "false"
        assert INPUT_ROWS in other.settings
        assert other.settings.items() >= {k: v for k, v in configured.items() if k != partitions}.items()


def test_a_campaign_that_requires_a_certificate_is_neither_approved_nor_published_without(
    campaigns: World,
) -> None:
    campaign, unit = campaigns.validated(**REQUIRED)
    missing = rf"requires a certificate .* of sales has none; get it with: backfill prove {NAME}"
    with pytest.raises(ApprovalError, match=missing):
        campaigns.approve(campaign)
    with pytest.raises(ApprovalError, match=missing):
        campaigns.campaign_publisher().release(unit.id)
    assert any("backfill prove" in refusal for refusal in campaigns.release().plan(NAME).refusals)
    certificate = proven(campaigns)
    campaigns.approve(campaign)
    publication = campaigns.release().publish(NAME)
    manifest = campaigns.ledger.release(publication.outcome.release).manifest
    assert manifest.certificate == certificate.id
    assert manifest.metadata()["certificate"] == certificate.id


def test_a_certificate_that_did_not_pass_or_speaks_of_other_evidence_does_not_help(campaigns: World) -> None:
    campaign, unit = campaigns.validated(**REQUIRED)
    failed = proven(campaigns, again=(3,))
    with pytest.raises(ApprovalError, match=rf"but {failed.id} of sales .* did not pass, .*: amount .* Fix the model"):
        campaigns.approve(campaign)
    campaigns.clock.advance(dt.timedelta(minutes=1))
    proven(campaigns)
    campaigns.approve(campaign)
    campaigns.basis.changed["sales", DAYS[1]] = "another delivery"  # type: ignore[union-attr]
    campaigns.build(unit, "sales", {DAYS[1]: [2]})
    with pytest.raises(ApprovalError, match=f"backfill prove {NAME}"):
        campaigns.approve(campaign)


def test_a_campaign_that_requires_none_names_the_one_that_it_has(campaigns: World) -> None:
    campaigns.approved()
    certificate = proven(campaigns)
    publication = campaigns.release().publish(NAME)
    assert campaigns.ledger.release(publication.outcome.release).manifest.certificate == certificate.id


def test_a_derived_dataset_is_computed_from_the_shadows_of_its_unit(tmp_path: Path) -> None:
    world = World(tmp_path, ["orders", "totals<orders"])
    unit = world.open_unit({"orders": DAYS[:1], "totals": DAYS[:1]})
    for name in ("orders", "totals"):
        world.build(unit, name, {DAYS[0]: [2]})
    at = world.clock.now()
    world.ledger.add_deliveries([Delivery("orders", DAYS[0], "a.csv", "f", 1, at, at, 1, 0)])
    engine = Engine(world)
    one, other = prover(world, engine).prove(unit.id)
    assert (one.dataset, other.dataset) == ("orders", "totals")
    attempt = world.ledger.evidence(unit.id)["orders", DAYS[0]].attempt
    places = engine.asked[3][0].upstream["orders"]
    assert {place: days for place, days in places.items() if days} == {f"_shadow/{unit.id}/{attempt}": DAYS[:1]}
    world.publisher().release(unit.id)
    prover(world, engine).prove("totals")
    assert engine.asked[-1][0].upstream == {"orders": {"": DAYS[:1]}}
    world.close()


def test_scratch_that_a_crash_has_left_behind_is_swept(campaigns: World) -> None:
    write_shadow(campaigns.homes["sales"], "_shadow/p_0009/1", rows_of({DAYS[0]: [2]}, ""))
    campaigns.clock.advance(dt.timedelta(days=400))
    campaigns.sweep().execute()
    assert not list(campaigns.homes["sales"].glob("_shadow/p_0009/**/*.parquet"))


def test_proving_other_days_is_no_way_around_a_failed_day(campaigns: World) -> None:
    campaign, _ = campaigns.validated(**REQUIRED)
    delivered(campaigns, *DAYS)
    engine = Engine(campaigns)
    engine.otherwise = {"again": (3,)}
    (failed,) = prover(campaigns, engine).prove(NAME, DAYS[:1])
    campaigns.clock.advance(dt.timedelta(minutes=1))
    engine.otherwise = {}
    prover(campaigns, engine).prove(NAME, DAYS[1:])
    with pytest.raises(ApprovalError, match=rf"but {failed.id} of sales .* did not pass"):
        campaigns.approve(campaign)
    campaigns.clock.advance(dt.timedelta(minutes=1))
    prover(campaigns, engine).prove(NAME, DAYS[:1])
    campaigns.approve(campaign)


def test_a_day_without_rows_proves_nothing_where_other_days_have_some(campaigns: World) -> None:
    campaign, unit = campaigns.validated(**REQUIRED)
    campaigns.build(unit, "sales", {DAYS[2]: []})
    delivered(campaigns, *DAYS)
    (empty,) = prover(campaigns, Engine(campaigns, ())).prove(NAME, DAYS[2:])
    assert empty.passed
    with pytest.raises(ApprovalError, match=rf"backfill prove {NAME} \(of days that have rows: others prove nothing\)"):
        campaigns.approve(campaign)
    campaigns.build(unit, "sales", {d: [] for d in DAYS})
    campaigns.clock.advance(dt.timedelta(minutes=1))
    prover(campaigns, Engine(campaigns, ())).prove(NAME, DAYS[2:])
    campaigns.approve(campaign)
