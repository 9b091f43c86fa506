from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.core.errors import (
    ClaimedDaysError,
    DatasetError,
    EvidenceError,
    PreconditionError,
    TableMovedError,
    UnitError,
)
from backfill_assets.core.expected_change import Change, Clause, Contract
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import UnitState
from backfill_assets.evidence.readiness import Blocker
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets_tests.harness.tables import day, rows_of
from backfill_assets_tests.harness.world import LEASE, World
from backfill_assets_tests.observed import Observed

DAYS = [day(0), day(1), day(2)]


def test_a_unit_is_released_completely(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {day(0): [1], day(1): [2]})
    world.build(unit, "sales", {day(2): [3]})
    outcome = world.publisher().release(unit.id, reason="first history")
    assert isinstance(outcome, Released)
    assert world.content() == {day(0): [1], day(1): [2], day(2): [3]}
    assert outcome.days == {"sales": tuple(DAYS)}
    assert outcome.evidence == world.publisher().evidence_hash(unit.id)
    record = world.ledger.release(outcome.release)
    assert (record.state, record.version) == (ReleaseState.finalized, outcome.versions["sales"])
    assert world.ledger.unit(unit.id).state is UnitState.published
    assert world.ledger.claims("sales", DAYS) == {}
    assert world.tables["sales"].manifests() == (record.manifest,)
    assert {p.name for p in world.homes["sales"].glob("_shadow/*/*/*_log")} == {"_sealed_log"}


def test_releasing_again_changes_nothing(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    first = world.publisher().release(unit.id)
    version = world.tables["sales"].version()
    again = world.publisher().release(unit.id)
    assert isinstance(again, AlreadyReleased)
    assert (again.releases, again.days, again.versions, again.evidence) == (
        first.releases, first.days, first.versions, first.evidence,
    )  # fmt: skip
    assert world.tables["sales"].version() == version


def test_a_day_without_evidence_holds_back_the_complete_unit(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {day(0): [1], day(2): [3]})
    with pytest.raises(EvidenceError, match="sales 2026-01-02 is not built yet") as refusal:
        world.publisher().release(unit.id)
    assert "raw, staging and shadow of sales with their checks for 2026-01-02" in str(refusal.value)
    assert f"backfill status {unit.id}" in str(refusal.value)
    assert world.content() == {}
    assert not world.tables["sales"].exists()
    assert [f.reason for f in world.publisher().blockers(unit.id)] == [Blocker.missing]


def test_a_failed_check_holds_back_the_complete_unit(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {day(0): [1], day(2): [3]})
    world.build(unit, "sales", {day(1): [2, 2]}, passed=False)
    with pytest.raises(EvidenceError, match=r"2026-01-02 failed its checks\n.*unique_key"):
        world.publisher().release(unit.id)
    world.build(unit, "sales", {day(1): [2]})
    world.publisher().release(unit.id)
    assert world.content()[day(1)] == [2]


def test_changed_inputs_make_only_their_day_stale(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    world.basis.changed["sales", day(1)] = "a late file"
    (blocker,) = world.publisher().blockers(unit.id)
    assert (blocker.day, blocker.reason) == (day(1), Blocker.inputs_moved)


@pytest.mark.faults
def test_changed_code_makes_all_days_stale(observed: Observed, world: World) -> None:
    observed.injected("the code of a model moves after its days have passed")
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    world.basis.codes["sales"] = "n3w"
    missing = world.publisher().blockers(unit.id)
    assert {(f.day, f.reason) for f in missing} == {(d, Blocker.code_moved) for d in DAYS}
    world.build(unit, "sales", {d: [2] for d in DAYS})
    world.publisher().release(unit.id)
    assert world.content() == {d: [2] for d in DAYS}
    assert world.doctor().examine() == ()
    observed.found(*(f"{blocker.day} {blocker.reason}" for blocker in missing))


def test_another_contract_makes_all_days_stale(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    world.ledger.set_contract(unit.id, Contract((Clause((), {"row_count": Change(0, 0)}),)))  # type: ignore[arg-type]
    assert {f.reason for f in world.publisher().blockers(unit.id)} == {Blocker.contract_moved}


def test_a_late_row_makes_only_its_day_stale(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [2] for d in DAYS})
    write_deltalake(world.homes["sales"], rows_of({day(1): [99]}), mode="append")
    with pytest.raises(EvidenceError) as refusal:
        world.publisher().release(unit.id)
    assert "sales 2026-01-02 is stale: the published day was rewritten" in str(refusal.value)
    assert "2026-01-01" not in str(refusal.value)
    assert "2026-01-03" not in str(refusal.value)
    assert world.content() == {day(0): [1], day(1): [1, 99], day(2): [1]}


def test_a_compaction_with_equal_content_does_not_matter(world: World) -> None:
    world.released({d: [1, 2] for d in DAYS})
    write_deltalake(world.homes["sales"], rows_of({d: [3] for d in DAYS}), mode="append")
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [4] for d in DAYS})
    DeltaTable(world.homes["sales"]).optimize.compact()
    assert world.publisher().blockers(unit.id) == ()
    outcome = world.publisher().release(unit.id)
    assert world.content() == {d: [4] for d in DAYS}
    removed = world.ledger.release(outcome.release).manifest.removed
    assert [f.day for f in removed] == DAYS
    world.rollback().execute(outcome.release, "try the compacted files again")
    assert world.content() == {d: [1, 2, 3] for d in DAYS}


def test_content_is_read_only_for_days_whose_layout_moved(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [2] for d in DAYS})
    world.publisher().blockers(unit.id)
    assert world.fingerprints.asked == []
    write_deltalake(world.homes["sales"], rows_of({day(1): [99]}), mode="append")
    world.publisher().blockers(unit.id)
    assert world.fingerprints.asked == [("sales", (day(1),))]


def test_lost_shadow_files_make_their_day_stale(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    (lost,) = world.ledger.evidence(unit.id)["sales", day(2)].shadow_files
    (world.homes["sales"] / lost.path).unlink()
    (blocker,) = world.publisher().blockers(unit.id)
    assert (blocker.day, blocker.reason) == (day(2), Blocker.shadow_moved)
    assert lost.path in blocker.detail


def test_an_approval_is_for_exactly_its_evidence(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    approved = world.publisher().evidence_hash(unit.id)
    world.build(unit, "sales", {day(1): [7]})
    with pytest.raises(EvidenceError, match="the approval is for evidence"):
        world.publisher().release(unit.id, evidence_hash=approved)
    outcome = world.publisher().release(unit.id, evidence_hash=world.publisher().evidence_hash(unit.id))
    assert world.content()[day(1)] == [7]
    assert outcome.evidence != approved


def test_days_without_data_are_part_of_a_release(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    unit = world.open_unit({"sales": [*DAYS, day(3)]})
    world.build(unit, "sales", {day(0): [2], day(1): [], day(2): [2], day(3): []})
    outcome = world.publisher().release(unit.id)
    assert outcome.days["sales"] == (*DAYS, day(3))
    assert world.content() == {day(0): [2], day(2): [2]}


def test_a_unit_of_nothing_but_days_without_data_is_released(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [] for d in DAYS})
    outcome = world.publisher().release(unit.id)
    assert world.tables["sales"].committed(outcome.release) == 1
    assert world.content() == {}


def test_a_live_day_published_meanwhile_is_kept(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    world.released({day(3): [9]})
    world.publisher().release(unit.id)
    assert world.content() == {day(0): [1], day(1): [1], day(2): [1], day(3): [9]}


@pytest.mark.faults
def test_a_live_day_published_between_checks_and_commit_is_kept(observed: Observed, world: World) -> None:
    observed.injected("a live day is appended between the checks of a publication and its commit")
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    world.released({day(3): [9]})
    moved = []

    def interfere(step: str) -> None:
        if step == "intend" and not moved:
            moved.append(step)
            write_deltalake(world.homes["sales"], rows_of({day(4): [8]}), mode="append")

    outcome = world.publisher(interfere).release(unit.id)
    assert world.content() == {d: [1] for d in DAYS} | {day(3): [9], day(4): [8]}
    states = [r.state for r in world.ledger.releases(unit=unit.id)]
    assert states == [ReleaseState.finalized, ReleaseState.abandoned]
    assert world.ledger.releases(unit=unit.id)[0].manifest.release == outcome.release
    (foreign,) = world.doctor().examine()
    assert re.fullmatch(r"sales: version 2 \(WRITE, .*\) is no release", foreign.what)
    observed.found(f"released as {outcome.release}, and {day(4)} has its row {world.content()[day(4)]}")


def test_a_day_rewritten_between_checks_and_commit_is_checked_again(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [2] for d in DAYS})

    def interfere(step: str) -> None:
        if step == "intend":
            write_deltalake(world.homes["sales"], rows_of({day(2): [99]}), mode="append")

    with pytest.raises(EvidenceError, match="2026-01-03 is stale: the published day was rewritten"):
        world.publisher(interfere).release(unit.id)
    assert world.content() == {day(0): [1], day(1): [1], day(2): [1, 99]}
    assert world.ledger.unit(unit.id).state is UnitState.open


def test_a_table_that_never_rests_is_given_up(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    tries = []

    def interfere(step: str) -> None:
        if step == "intend":
            tries.append(step)
            write_deltalake(world.homes["sales"], rows_of({day(9): [1]}), mode="append")

    with pytest.raises(TableMovedError):
        world.publisher(interfere).release(unit.id)
    assert len(tries) == 5
    assert {r.state for r in world.ledger.releases(unit=unit.id)} == {ReleaseState.abandoned}


def test_a_discarded_unit_is_not_released(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [1] for d in DAYS})
    world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    with pytest.raises(UnitError, match="was discarded"):
        world.publisher().release(unit.id)


def test_a_unit_that_does_not_exist_is_named(world: World) -> None:
    with pytest.raises(UnitError, match="u_none"):
        world.publisher().release("u_none")


def test_a_dataset_that_is_not_loaded_is_named(two: World) -> None:
    unit = two.open_unit({"orders": DAYS})
    del two.tables["orders"]
    with pytest.raises(DatasetError, match="'orders' is not loaded"):
        two.publisher().release(unit.id)


def test_a_rolled_back_unit_is_published_again_with_the_same_evidence(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [2] for d in DAYS})
    first = world.publisher().release(unit.id)
    world.rollback().execute(first.release, "wrong after all")
    assert world.content() == {d: [1] for d in DAYS}
    again = world.publisher().release(unit.id)
    assert isinstance(again, Released)
    assert again.release != first.release
    assert world.content() == {d: [2] for d in DAYS}
    assert world.ledger.unit(unit.id).state is UnitState.published
    # The clock is stopped here: both publications have the same time.
    assert isinstance(world.publisher().release(unit.id), AlreadyReleased)


def test_a_rolled_back_unit_stays_rolled_back_while_another_one_claims_its_days(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", {d: [2] for d in DAYS})
    first = world.publisher().release(unit.id)
    world.rollback().execute(first.release, "wrong after all")
    world.open_unit({"sales": [day(1)]})
    with pytest.raises(ClaimedDaysError):
        world.publisher().release(unit.id)
    assert world.ledger.unit(unit.id).state is UnitState.rolled_back
    assert world.content() == {d: [1] for d in DAYS}


def test_a_day_that_was_built_and_not_checked_is_not_called_rewritten(world: World) -> None:
    world.released({day(0): [1]})
    unit = world.open_unit({"sales": [day(0)]})
    world.build(unit, "sales", {day(0): [2]})
    (evidence,) = world.ledger.evidence(unit.id).values()
    unchecked = replace(evidence, basis=replace(evidence.basis, published=""), verdicts=())
    attempt = world.ledger.start_attempt(unit.id, "sales", [day(0)], "run", LEASE)
    world.ledger.add_evidence(attempt.number, [replace(unchecked, attempt=attempt.number)])
    found = world.publisher().blockers(unit.id)
    assert Blocker.incomplete in {blocker.reason for blocker in found}
    assert Blocker.published_moved not in {blocker.reason for blocker in found}


def test_several_datasets_are_released_together(two: World) -> None:
    unit = two.open_unit({"orders": DAYS, "sales": DAYS})
    two.build(unit, "orders", {d: [1] for d in DAYS})
    with pytest.raises(EvidenceError, match=r"sales 2026-01-01\.\.2026-01-03 is not built yet"):
        two.publisher().release(unit.id)
    assert two.content("orders") == {}
    two.build(unit, "sales", {d: [2] for d in DAYS})
    outcome = two.publisher().release(unit.id)
    assert two.content("orders") == {d: [1] for d in DAYS}
    assert two.content("sales") == {d: [2] for d in DAYS}
    assert set(outcome.releases) == {"orders", "sales"}
    assert outcome.release == f"{outcome.releases['orders']}, {outcome.releases['sales']}"


def test_if_the_second_dataset_fails_the_first_is_taken_back(two: World) -> None:
    two.released({d: [1] for d in DAYS}, "orders")
    two.released({d: [1] for d in DAYS}, "sales")
    unit = two.open_unit({"orders": DAYS, "sales": DAYS})
    two.build(unit, "orders", {d: [2] for d in DAYS})
    two.build(unit, "sales", {d: [2] for d in DAYS})
    (file,) = two.ledger.evidence(unit.id)["sales", day(1)].shadow_files
    path: Path = two.homes["sales"] / file.path

    def damage(step: str) -> None:
        if step == "commit" and path.exists():
            path.rename(path.with_suffix(".away"))

    with pytest.raises(PreconditionError, match="missing or altered"):
        two.publisher(damage).release(unit.id)
    assert two.content("orders") == {d: [1] for d in DAYS}
    assert two.content("sales") == {d: [1] for d in DAYS}
    assert two.ledger.unit(unit.id).state is UnitState.open
    assert two.ledger.holds("orders") == ()
    states = {r.manifest.release: r.state for r in two.ledger.releases(unit=unit.id)}
    assert sorted(states.values()) == [ReleaseState.abandoned, ReleaseState.finalized, ReleaseState.finalized]
    path.with_suffix(".away").rename(path)
    two.publisher().release(unit.id)
    assert two.content("orders") == two.content("sales") == {d: [2] for d in DAYS}


def test_readers_with_an_older_schema_see_their_columns(world: World) -> None:
    world.released({d: [1] for d in DAYS})
    table: pa.Table = DeltaTable(world.homes["sales"]).to_pyarrow_table(columns=["id", "amount"])
    assert table.num_rows == len(DAYS)
