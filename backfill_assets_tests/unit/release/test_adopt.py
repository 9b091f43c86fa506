from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from backfill_assets.core.errors import (
    ArgumentError,
    BackfillError,
    LayoutError,
    PreconditionError,
    RollbackError,
    SourceError,
    TableMovedError,
    UnitError,
)
from backfill_assets.core.release import ReleaseKind, ReleaseState
from backfill_assets.core.unit import UnitState
from backfill_assets.dataset.definition import Dataset
from backfill_assets.delta.table import PublishedTable
from backfill_assets.doctor.findings import FindingSeverity
from backfill_assets.evidence.known_deliveries import KnownDeliveries
from backfill_assets.evidence.readiness import Readiness
from backfill_assets.release.adopt import Adopted, Adoption
from backfill_assets.release.finish import SettlementKind, no_checkpoint
from backfill_assets.storage.disk import path_of
from backfill_assets.storage.layout import OWNER
from backfill_assets.storage.owner import OWNER_FILE
from backfill_assets_tests.harness.objects import folder_of, place_at
from backfill_assets_tests.harness.specifications import NAME
from backfill_assets_tests.harness.tables import content, dataset, day, layout, rows_of
from backfill_assets_tests.harness.world import World, lost_ledger, repaired
from backfill_assets_tests.observed import Observed

DAYS = [day(0), day(1), day(2)]
PLAIN = ["id", "day", "amount"]


class CrashError(Exception):
    pass


def write(folder: Path, data: Mapping[dt.date, Sequence[int]], mode: Any = "append") -> None:
    """What a job without this project writes."""
    write_deltalake(folder, rows_of(data).select(PLAIN), mode=mode, partition_by=["day"])


def overwrite(folder: Path, date: dt.date, amounts: Sequence[int], **said: str) -> None:
    """Another writer changes a day; a table that has been released to has audit columns."""
    rows, saying = rows_of({date: amounts}).select(PLAIN), CommitProperties(custom_metadata=said)
    own = f"day = '{date}'"
    write_deltalake(folder, rows, mode="overwrite", predicate=own, schema_mode="merge", commit_properties=saying)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A table that was there before, with several files on one of its days."""
    folder = tmp_path / "lake" / "sales"
    write(folder, {d: [1] for d in DAYS})
    write(folder, {day(1): [5]})
    return folder


def adoption(world: World, step: str = "") -> Adoption:
    def crash(at: str) -> None:
        if at == step:
            raise CrashError(step)

    return Adoption(world.warehouse(), checkpoint=crash if step else no_checkpoint)


def adopted(world: World, lake: Path) -> Adopted:
    return adoption(world).adopt("sales", place_at(lake), "we take it over")


def data_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every data file below a folder, with its inode and size."""
    found = sorted(folder.rglob("*.parquet"))
    return {str(file.relative_to(folder)): (file.stat().st_ino, file.stat().st_size) for file in found}


def unreleased(world: World, data: Mapping[dt.date, Sequence[int]]) -> str:
    unit = world.open_unit({"sales": sorted(data)})
    world.build(unit, "sales", data)
    return unit.id


def findings(world: World) -> list[str]:
    return [str(found) for found in world.doctor().examine()]


def test_an_adopted_table_keeps_its_place_its_files_and_its_rows(world: World, lake: Path) -> None:
    before, seen = data_files(lake), content(lake)
    done = adopted(world, lake)
    assert data_files(lake) == before
    assert content(lake) == world.content() == seen == {day(0): [1], day(1): [1, 5], day(2): [1]}
    assert (done.days, done.files) == (tuple(DAYS), 4)
    record = world.ledger.release(done.release)
    assert (record.manifest.kind, record.state) == (ReleaseKind.baseline, ReleaseState.finalized)
    assert record.version == done.version == DeltaTable(lake).version()
    assert findings(world) == []


def test_a_release_to_an_adopted_table_is_rolled_back_to_the_files_of_the_baseline(world: World, lake: Path) -> None:
    adopted(world, lake)
    before = {file.path for file in world.tables["sales"].active([day(1)])[day(1)]}
    release = world.released({day(1): [7]})
    assert content(lake) == {day(0): [1], day(1): [7], day(2): [1]}
    world.rollback().execute(release, "finance says no")
    assert {file.path for file in world.tables["sales"].active([day(1)])[day(1)]} == before
    assert content(lake) == {day(0): [1], day(1): [1, 5], day(2): [1]}
    assert findings(world) == []


@pytest.mark.faults
def test_no_release_is_made_after_another_writer_until_a_person_accepts_its_commits(
    observed: Observed, world: World, lake: Path
) -> None:
    observed.injected("another writer overwrites a day of an adopted table between two releases")
    adopted(world, lake)
    unit = unreleased(world, {day(0): [7]})
    overwrite(lake, day(2), [9])
    with pytest.raises(PreconditionError, match=r"1 commit of another writer.*version 4 \(WRITE.*--again"):
        world.publisher().release(unit)
    assert content(lake)[day(0)] == [1]
    assert [str(f) for f in world.doctor().examine() if f.severity is FindingSeverity.error and "--again" in f.remedy]
    done = adoption(world).accept("sales", "a correction by hand")
    assert done.days == (day(2),)
    world.publisher().release(unit)
    assert content(lake) == {day(0): [7], day(1): [1, 5], day(2): [9]}
    assert findings(world) == []
    observed.found(*findings(world))


@pytest.mark.faults
def test_another_writer_in_the_middle_of_a_release_stops_it(observed: Observed, world: World, lake: Path) -> None:
    observed.injected("another writer overwrites a day of an adopted table between intent and commit of a release")
    adopted(world, lake)
    unit = unreleased(world, {day(0): [7]})

    def interfere(step: str) -> None:
        if step == "intend":
            overwrite(lake, day(2), [9])

    with pytest.raises(PreconditionError, match="another writer since its baseline"):
        world.publisher(interfere).release(unit)
    assert content(lake) == {day(0): [1], day(1): [1, 5], day(2): [9]}
    observed.found(*findings(world))


def test_a_writer_that_uses_our_keys_for_something_else_is_another_writer(world: World, lake: Path) -> None:
    adopted(world, lake)
    unit = unreleased(world, {day(0): [7]})
    overwrite(lake, day(2), [9])
    overwrite(lake, day(1), [10], kind="baseline", release="2.4")
    with pytest.raises(PreconditionError, match=r"2 commits of another writer.*version 5"):
        world.publisher().release(unit)
    assert adoption(world).accept("sales", "it was right").days == (day(1), day(2))


def test_a_commit_of_another_writer_that_names_a_release_is_not_taken_for_a_torn_one(world: World, lake: Path) -> None:
    adopted(world, lake)
    unit = unreleased(world, {day(0): [7]})

    def crash(step: str) -> None:
        if step == "intend":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.publisher(crash).release(unit)
    overwrite(lake, day(2), [9], release="2.4")
    world.reconcile().run()
    assert content(lake) == {day(0): [1], day(1): [1, 5], day(2): [9]}


def test_another_writer_whose_commits_the_log_has_no_longer_stops_releases_too(world: World, lake: Path) -> None:
    adopted(world, lake)
    unit = unreleased(world, {day(0): [7]})
    overwrite(lake, day(2), [9])
    world.tables["sales"].prepare("_shadow/none/1")  # our own commit is the newest one
    DeltaTable(lake).create_checkpoint()
    version = DeltaTable(lake).version()
    for commit in sorted((lake / "_delta_log").glob("*.json"))[:version]:
        commit.unlink()
    assert world.tables["sales"].foreign() == ()
    with pytest.raises(PreconditionError, match=r"see other files of 2026-01-03 than releases brought"):
        world.publisher().release(unit)
    assert adoption(world).accept("sales", "it was right").days == (day(2),)
    world.publisher().release(unit)
    assert content(lake) == {day(0): [7], day(1): [1, 5], day(2): [9]}


def test_another_writer_during_the_survey_of_a_release_stops_it(
    world: World, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted(world, lake)
    world.released({day(0): [6]})
    unit, survey, done = unreleased(world, {day(0): [7]}), Readiness.survey, list[str]()

    def interfere(self: Readiness, unit: Any) -> Any:
        if not done:
            done.append("")
            overwrite(lake, day(2), [9])
        return survey(self, unit)

    monkeypatch.setattr(Readiness, "survey", interfere)
    with pytest.raises(PreconditionError, match="another writer since its baseline"):
        world.publisher().release(unit)


@pytest.mark.faults
def test_another_writer_in_the_middle_of_an_adoption_stops_it(observed: Observed, world: World, lake: Path) -> None:
    observed.injected("another writer overwrites a day between intent and commit of a baseline")

    def interfere(step: str) -> None:
        if step == "intend":
            overwrite(lake, day(2), [9])

    with pytest.raises(TableMovedError):
        Adoption(world.warehouse(), checkpoint=interfere).adopt("sales", place_at(lake), "too early")
    assert adopted(world, lake).days == tuple(DAYS)
    assert content(lake)[day(2)] == [9]
    assert findings(world) == []
    observed.found(*findings(world))


def test_accepted_days_cannot_go_back_behind_the_other_writer_and_all_others_can(world: World, lake: Path) -> None:
    adopted(world, lake)
    release = world.released({d: [7] for d in DAYS})
    overwrite(lake, day(2), [9])
    adoption(world).accept("sales", "it was right")
    done = world.rollback().execute(release, "finance says no")
    assert (done.days, done.left) == ((day(0), day(1)), (day(2),))
    assert content(lake) == {day(0): [1], day(1): [1, 5], day(2): [9]}
    with pytest.raises(RollbackError, match=r"show what another writer brought .* build these days again"):
        world.rollback().execute(release, "again", days=frozenset({day(2)}))
    assert findings(world) == []


def test_days_that_another_writer_emptied_are_accepted_as_empty(world: World, lake: Path) -> None:
    adopted(world, lake)
    DeltaTable(lake).delete(f"day = '{day(2)}'")
    assert adoption(world).accept("sales", "it is gone").days == (day(2),)
    assert world.content() == {day(0): [1], day(1): [1, 5]}
    assert findings(world) == []


def test_a_commit_without_a_change_of_files_is_accepted_too(world: World, lake: Path) -> None:
    adopted(world, lake)
    DeltaTable(lake).alter.set_table_properties({"delta.checkpointInterval": "20"})
    unit = unreleased(world, {day(0): [7]})
    with pytest.raises(PreconditionError, match="another writer"):
        world.publisher().release(unit)
    assert adoption(world).accept("sales", "only a setting").days == ()
    world.publisher().release(unit)
    assert findings(world) == []


def test_a_baseline_cannot_be_rolled_back(world: World, lake: Path) -> None:
    done = adopted(world, lake)
    with pytest.raises(RollbackError, match=r"is a baseline.*backfill unadopt sales"):
        world.rollback().execute(done.release, "no")


def test_a_table_has_one_owner(world: World, lake: Path, tmp_path: Path) -> None:
    adopted(world, lake)
    elsewhere = World(tmp_path / "other")
    with pytest.raises(LayoutError, match="one table has one owner"):
        adoption(elsewhere).adopt("sales", place_at(lake), "ours")
    elsewhere.close()
    with pytest.raises(ArgumentError, match="adopted already"):
        adopted(world, lake)
    assert findings(world) == []


def test_the_published_table_of_another_warehouse_is_not_adopted(world: World, tmp_path: Path) -> None:
    elsewhere = World(tmp_path / "other", first_id=50)
    elsewhere.released({day(0): [3]})
    with pytest.raises(LayoutError, match="it is the published table of another warehouse"):
        adopted(world, elsewhere.homes["sales"])
    assert not (elsewhere.homes["sales"] / OWNER).exists()
    elsewhere.close()


def test_a_table_with_a_folder_in_which_a_sweep_would_delete_files_of_others_is_not_adopted(
    world: World, lake: Path
) -> None:
    (lake / "_shadow").mkdir()
    (lake / "_shadow" / "theirs").write_text("kept")
    with pytest.raises(LayoutError, match="a folder _shadow of somebody else needs another name"):
        adopted(world, lake)
    assert not (lake / OWNER).exists()


def test_a_table_that_was_given_back_is_adopted_by_another_warehouse_and_returns(
    world: World, lake: Path, tmp_path: Path
) -> None:
    adopted(world, lake)
    world.released({day(0): [7]})
    adoption(world).give_back("sales")
    elsewhere = World(tmp_path / "other", first_id=50)
    assert adopted(elsewhere, lake).days == tuple(DAYS)
    elsewhere.released({day(1): [8]})
    assert findings(elsewhere) == []
    adoption(elsewhere).give_back("sales")
    elsewhere.close()
    assert adopted(world, lake).days == tuple(DAYS)
    world.rollback().execute(world.released({day(1): [9]}), "no")
    assert content(lake) == {day(0): [7], day(1): [8], day(2): [1]}
    assert findings(world) == []


def test_a_dataset_that_has_a_published_table_adopts_no_other(world: World, lake: Path) -> None:
    world.released({day(0): [3]})
    with pytest.raises(LayoutError, match=r"adopt .* under another name"):
        adopted(world, lake)
    assert not (lake / OWNER).exists()


def test_a_link_to_a_table_that_was_not_adopted_is_refused(world: World, lake: Path) -> None:
    adopted(world, lake)
    (lake / OWNER).write_text("{}")
    with pytest.raises(LayoutError, match=r"adopted as \{\}"):
        world.tables["sales"].version()
    (lake / OWNER).unlink()
    with pytest.raises(LayoutError, match="no readable"):
        world.tables["sales"].version()
    assert any(OWNER in found for found in findings(world))
    # As the message says: there may be another table now.
    assert adoption(world).give_back("sales") == place_at(lake)
    assert not layout(world.folder).is_adopted("sales")


def out_of_reach(lake: Path) -> Path:
    """The folder of the table is somewhere else, as that of a disk that is not mounted; returns where."""
    return lake.rename(lake.with_name("unmounted"))


@pytest.mark.faults
def test_a_table_that_is_out_of_reach_is_named_by_the_sweep_which_does_all_others(
    observed: Observed, two: World, lake: Path
) -> None:
    observed.injected("the disk of an adopted table is not mounted while the sweep runs")
    adopted(two, lake)
    unit = two.open_unit({"orders": DAYS})
    two.build(unit, "orders", {d: [1] for d in DAYS})
    two.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    out_of_reach(lake)
    two.clock.advance(dt.timedelta(days=365_000))
    planned = two.sweep().plan()
    orders, sales = two.sweep().execute()
    assert planned == (orders, sales)
    assert (orders.problem, len(orders.paths) > len(DAYS)) == ("", True)
    assert two.tables["orders"].stored_files() == ()
    assert sales.listed("are gone").startswith("sales: left alone: ")
    assert "mount the folder" in sales.problem
    observed.found(sales.problem)


@pytest.mark.faults
def test_a_table_that_is_out_of_reach_is_named_by_reconcile_which_settles_all_others(
    observed: Observed, two: World, lake: Path
) -> None:
    observed.injected("the disk of an adopted table is not mounted while reconcile runs")
    adopted(two, lake)
    unit = two.open_unit({"orders": DAYS})
    two.build(unit, "orders", {d: [1] for d in DAYS})

    def crash(step: str) -> None:
        if step == "commit":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        two.publisher(crash).release(unit.id)
    place = out_of_reach(lake)
    done, left = two.reconcile().run()
    assert (done.dataset, done.kind) == ("orders", SettlementKind.finalized)
    assert (left.dataset, left.kind, left.kind.left) == ("sales", SettlementKind.unreadable, True)
    assert re.search(r"the published table \(sales\) left alone: .*mount the folder", str(left))
    observed.found(str(left))
    place.rename(lake)
    assert two.reconcile().run() == ()


@pytest.mark.faults
def test_half_a_unit_waits_for_the_table_of_the_other_half(observed: Observed, two: World, lake: Path) -> None:
    observed.injected("the disk of an adopted table is not mounted after half of a unit was released")
    adopted(two, lake)
    unit = two.open_unit({"orders": DAYS[:1], "sales": DAYS[:1]})
    for name in unit.targets:
        two.build(unit, name, {day(0): [7]})

    def crash(step: str) -> None:
        if step == "commit":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        two.publisher(crash).release(unit.id)
    place = out_of_reach(lake)
    found = two.reconcile().run()
    assert {one.kind for one in found} == {SettlementKind.unreadable}
    assert len(found) == 3  # both releases, and the table
    later = two.open_unit({"orders": DAYS[1:]})
    two.build(later, "orders", {d: [1] for d in DAYS[1:]})
    with pytest.raises(LayoutError, match="mount the folder"):
        two.publisher().release(later.id)
    place.rename(lake)
    assert {one.kind for one in two.reconcile().run()} == {SettlementKind.undone, SettlementKind.abandoned}
    assert content(lake) == {day(0): [1], day(1): [1, 5], day(2): [1]}
    observed.found(*findings(two))


@pytest.mark.parametrize("place", ["", "below", "published/other"])
def test_a_table_in_or_around_the_warehouse_is_not_adopted(world: World, place: str, tmp_path: Path) -> None:
    folder = tmp_path if not place else tmp_path / "warehouse" / place
    write(folder, {day(0): [1]})
    with pytest.raises(LayoutError, match="in the warehouse, or around it"):
        adopted(world, folder)


def test_a_table_is_given_back_with_the_rows_that_readers_see(world: World, lake: Path) -> None:
    adopted(world, lake)
    release = world.released({day(0): [7]})
    table = world.tables["sales"]
    assert adoption(world).give_back("sales") == place_at(lake)
    assert content(lake) == {day(0): [7], day(1): [1, 5], day(2): [1]}
    assert not (lake / OWNER).exists()
    assert not layout(world.folder).is_adopted("sales")
    assert {r.state for r in world.ledger.releases("sales")} == {ReleaseState.returned}
    with pytest.raises(RollbackError, match="returned, not finalized"):
        world.rollback().execute(release, "no")
    # A process that knew the table while it was adopted does not write there any more.
    assert table.version() == -1
    overwrite(lake, day(2), [4])
    assert findings(world) == []


def test_a_table_that_was_given_back_is_adopted_again(world: World, lake: Path) -> None:
    adopted(world, lake)
    world.released({day(0): [7]})
    adoption(world).give_back("sales")
    DeltaTable(lake).delete("day = '2026-01-03'")
    done = adopted(world, lake)
    assert done.days == (day(0), day(1))
    world.rollback().execute(world.released({day(0): [8]}), "no")
    assert world.content() == {day(0): [7], day(1): [1, 5]}
    assert findings(world) == []


def test_a_unit_whose_table_was_given_back_does_not_count_as_released(world: World, lake: Path) -> None:
    adopted(world, lake)
    unit = unreleased(world, {day(0): [7]})
    world.publisher().release(unit)
    adoption(world).give_back("sales")
    with pytest.raises(UnitError, match="its table was given back since"):
        world.publisher().release(unit)


def test_a_table_with_an_open_unit_is_not_given_back(world: World, lake: Path) -> None:
    adopted(world, lake)
    unit = unreleased(world, {day(0): [7]})
    with pytest.raises(PreconditionError, match=f"unit {unit} is open.*backfill discard {unit}.*backfill sweep"):
        adoption(world).give_back("sales")


def test_everything_that_needs_a_table_is_named_at_once_before_it_is_given_back(tmp_path: Path, lake: Path) -> None:
    world = World(tmp_path, ("orders<sales", "sales"))
    adopted(world, lake)
    unit = unreleased(world, {day(0): [7]})
    one = r"orders is built from it.* take upstream\.sales out of .*dataset\.yaml"
    with pytest.raises(PreconditionError, match=rf"{one}.*unit {unit} is open"):
        adoption(world).give_back("sales")
    assert len(adoption(world).needs_of("sales")) == len(("orders", "unit"))
    world.ledger.move(unit, {UnitState.open}, UnitState.discarded)
    world.datasets["orders"] = dataset("orders")
    assert adoption(world).give_back("sales") == place_at(lake)
    world.close()


def test_a_table_of_a_published_campaign_is_not_given_back_before_its_sign_off(campaigns: World, lake: Path) -> None:
    adopted(campaigns, lake)
    campaigns.approved()
    campaigns.release().publish(NAME)
    with pytest.raises(PreconditionError, match=rf"campaign {NAME} is published and not signed off.*sign-off {NAME}"):
        adoption(campaigns).give_back("sales")
    campaigns.sign_off().sign_off(NAME)
    assert adoption(campaigns).give_back("sales") == place_at(lake)


def test_a_table_of_a_campaign_that_was_rolled_back_is_given_back(campaigns: World, lake: Path) -> None:
    adopted(campaigns, lake)
    campaigns.approved()
    campaigns.campaign_rollback().execute(campaigns.release().publish(NAME).outcome.release, "odd")
    assert adoption(campaigns).give_back("sales") == place_at(lake)


def lose_the_link(world: World) -> None:
    layout(world.folder).link("sales").remove()


@pytest.mark.parametrize("there", ["nothing", "a copy"])
def test_an_adopted_table_to_which_nothing_leads_is_not_taken_for_one_that_was_never_released(
    world: World, lake: Path, tmp_path: Path, there: str
) -> None:
    """The link is gone, or a tool that follows links has put a copy of the table in its place."""
    adopted(world, lake)
    release = world.released({day(0): [7]})
    unit = unreleased(world, {day(1): [8]})
    place = layout(world.folder)
    lose_the_link(world)
    shutil.copytree(lake, tmp_path / "copy")
    if there == "a copy":
        shutil.copytree(lake, folder_of(place.link("sales")))
    gone = rf"sales no longer leads to {place_at(lake)}, the adopted table of sales; .*backfill adopt sales --from {place_at(lake)}"
    rollback = partial(world.rollback().plan, release)
    for refused in (
        partial(world.publisher().release, unit),
        rollback,
        partial(place.shadow_path, "sales", "_shadow/x"),
    ):
        with pytest.raises(LayoutError, match=gone):
            refused()
    (settled,) = world.reconcile().run()
    assert settled.kind is SettlementKind.unreadable
    assert [swept.problem for swept in world.sweep().execute() if "no longer leads" in swept.problem]
    assert [found for found in findings(world) if "no longer leads" in found]
    with pytest.raises(LayoutError, match=rf"has an adopted table, {place_at(lake)}: name that one"):
        adoption(world).put_back("sales", place_at(tmp_path / "copy"))
    assert str(place.leads_to("sales")) == str(place_at(lake))
    if there == "a copy":
        with pytest.raises(LayoutError, match="has a published table"):
            adoption(world).put_back("sales", place_at(lake))
        with pytest.raises(PreconditionError, match=r"published/sales is no link but a copy.*move it away"):
            adoption(world).give_back("sales")
        shutil.rmtree(folder_of(place.link("sales")))
    version = DeltaTable(lake).version()
    assert adoption(world).is_lost("sales")
    adoption(world).put_back("sales", place_at(lake))
    assert not adoption(world).is_lost("sales")
    assert DeltaTable(lake).version() == version
    world.publisher().release(unit)
    assert content(lake) == {day(0): [7], day(1): [8], day(2): [1]}
    assert findings(world) == []


def test_a_table_whose_mark_is_gone_is_put_back_unless_it_lost_a_release(world: World, lake: Path) -> None:
    adopted(world, lake)
    shutil.copytree(lake / "_delta_log", world.folder / "backup")
    release = world.released({day(0): [7]})
    (lake / OWNER).unlink()
    lose_the_link(world)
    shutil.move(lake / "_delta_log", world.folder / "newer")
    shutil.copytree(world.folder / "backup", lake / "_delta_log")
    with pytest.raises(PreconditionError, match=rf"does not have its newest release, {release}"):
        adoption(world).put_back("sales", place_at(lake))
    assert not (lake / OWNER).exists()
    shutil.rmtree(lake / "_delta_log")
    shutil.move(world.folder / "newer", lake / "_delta_log")
    adoption(world).put_back("sales", place_at(lake))
    world.rollback().execute(release, "no")
    assert findings(world) == []


def test_a_table_that_was_moved_is_put_back_and_one_of_two_copies_is_refused(world: World, lake: Path) -> None:
    adopted(world, lake)
    release = world.released({day(0): [7]})
    moved = lake.with_name("moved")
    shutil.copytree(lake, moved)
    link = layout(world.folder).link("sales")
    link.remove()
    link.link_to(place_at(moved))
    with pytest.raises(
        LayoutError,
        match=rf"leads to {place_at(moved)}, and {place_at(lake)} is marked .*, too: one is a copy.*remove {OWNER}",
    ):
        world.released({day(1): [9]})
    (lake / OWNER).unlink()
    link.remove()
    adoption(world).put_back("sales", place_at(moved))
    assert str(layout(world.folder).noted("sales")) == str(place_at(moved))
    world.rollback().execute(release, "no")
    assert content(moved) == {day(0): [1], day(1): [1, 5], day(2): [1]}
    assert findings(world) == []


def test_a_table_that_an_older_checkout_adopted_is_given_back(world: World, lake: Path) -> None:
    adopted(world, lake)
    shutil.rmtree(folder_of(layout(world.folder).note("sales")).parent)
    assert adoption(world).give_back("sales") is not None
    assert not (lake / OWNER).exists()
    assert not layout(world.folder).is_adopted("sales")


def test_an_adopted_table_that_is_lost_with_its_link_is_given_up(world: World, lake: Path) -> None:
    adopted(world, lake)
    lose_the_link(world)
    shutil.rmtree(lake)
    assert adoption(world).give_back("sales") is None
    assert not layout(world.folder).noted("sales")
    world.released({day(0): [9]})
    assert world.content() == {day(0): [9]}
    assert findings(world) == []


def test_only_an_adopted_table_is_accepted_or_given_back(world: World) -> None:
    world.released({day(0): [1]})
    for act in (lambda: adoption(world).accept("sales", "x"), lambda: adoption(world).give_back("sales")):
        with pytest.raises(ArgumentError, match="not adopted"):
            act()


@pytest.mark.faults
@pytest.mark.parametrize("step", ["take", "manifest", "intend", "commit"])
def test_an_adoption_that_was_interrupted_is_finished_by_the_same_command(
    observed: Observed, world: World, lake: Path, step: str
) -> None:
    observed.injected(f"an adoption dies after its step {step}")
    with pytest.raises(CrashError):
        adoption(world, step).adopt("sales", place_at(lake), "we take it over")
    if step == "commit":
        world.reconcile().run()
    else:
        assert adopted(world, lake).days == tuple(DAYS)
    world.released({day(0): [7]})
    assert content(lake) == {day(0): [7], day(1): [1, 5], day(2): [1]}
    repaired(world)
    observed.found(*findings(world))


@pytest.mark.faults
def test_a_table_that_was_half_given_back_is_given_back_by_the_same_command(
    observed: Observed, world: World, lake: Path
) -> None:
    observed.injected("unadopt dies between ledger and folder")
    adopted(world, lake)
    with pytest.raises(CrashError):
        adoption(world, "returned").give_back("sales")
    assert adoption(world).give_back("sales") == place_at(lake)
    observed.found(*findings(world))


def test_a_lost_ledger_learns_the_baseline_from_its_manifest(world: World, lake: Path) -> None:
    done = adopted(world, lake)
    release = world.released({day(0): [7]})
    again = lost_ledger(world)
    with pytest.raises(LayoutError, match=r"belongs to another ledger.*remove .*_owner, and: backfill reconcile"):
        again.reconcile().run()
    (again.warehouse().layout.warehouse / OWNER_FILE).remove()
    again.reconcile().run()
    assert again.ledger.release(done.release).manifest.kind is ReleaseKind.baseline
    again.rollback().execute(release, "no")
    assert content(lake) == {day(0): [1], day(1): [1, 5], day(2): [1]}
    assert findings(again) == []
    again.close()


def test_the_log_and_the_files_of_an_adopted_table_are_kept_as_long_as_a_rollback_needs(
    world: World, lake: Path
) -> None:
    adopted(world, lake)
    configuration = DeltaTable(lake).metadata().configuration
    assert configuration["delta.logRetentionDuration"] == "interval 3196800 seconds"
    assert configuration["delta.deletedFileRetentionDuration"] == "interval 3196800 seconds"


def test_a_longer_retention_of_an_adopted_table_is_kept(world: World, lake: Path) -> None:
    names = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
    DeltaTable(lake).alter.set_table_properties(dict.fromkeys(names, "interval 52 weeks 1 day 5 hours"))
    adopted(world, lake)
    configuration = DeltaTable(lake).metadata().configuration
    assert {configuration[name] for name in names} == {"interval 52 weeks 1 day 5 hours"}


@pytest.mark.parametrize(
    ("keep_for", "log", "files"), [("1d", None, "691200"), ("0d", None, None), ("25d", "2764800", "2764800")]
)
def test_a_retention_that_is_not_set_is_never_made_shorter_than_that_of_delta(
    world: World, lake: Path, keep_for: str, log: str | None, files: str | None
) -> None:
    """Where it is not set, Delta keeps the log for 30 days, and files that were removed for 7."""
    short = dataset(keep_for=keep_for)
    world.datasets["sales"], world.tables["sales"] = short, PublishedTable(layout(world.folder), short, world.clock)
    adopted(world, lake)
    configuration = DeltaTable(lake).metadata().configuration
    for name, seconds in (("log", log), ("deletedFile", files)):
        kept = seconds and f"interval {seconds} seconds"
        assert configuration.get(f"delta.{name}RetentionDuration") == kept


def test_files_in_the_folder_of_an_adopted_table_that_look_unfinished_stay(world: World, lake: Path) -> None:
    adopted(world, lake)
    others = [lake / name for name in ("notes#1", "_commit_a.json.tmp", ".part.crc", "day=2026-01-01/.x.tmp")]
    ours = lake / "_delta_log" / "_commit_b.json.tmp"
    for file in (*others, ours):
        file.write_text("")
        os.utime(file, (0, 0))
    world.repairer().repair()
    assert [file.exists() for file in (*others, ours)] == [True, True, True, True, False]


def changed(folder: Path, kind: str, **values: object) -> None:
    """Change an action of the table's first commit, as another engine would have written it."""
    commit = folder / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if kind in line:
            line[kind] |= values
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))


def with_fields(folder: Path, column: str, **values: object) -> None:
    commit = folder / "_delta_log" / f"{0:020}.json"
    found = next(json.loads(line) for line in commit.read_text().splitlines() if "metaData" in line)
    schema = json.loads(found["metaData"]["schemaString"])
    schema["fields"] = [field | (values if field["name"] == column else {}) for field in schema["fields"]]
    changed(folder, "metaData", schemaString=json.dumps(schema))


def not_null(folder: Path) -> None:
    with_fields(folder, "amount", nullable=False)


def generated(folder: Path) -> None:
    with_fields(folder, "amount", metadata={"delta.generationExpression": "id * 2"})


def of_a_length(folder: Path, declared: str = "varchar(3)") -> None:
    with_fields(folder, "amount", metadata={"__CHAR_VARCHAR_TYPE_STRING": declared})


def of_a_padded_length(folder: Path) -> None:
    of_a_length(folder, "char(3)")


def of_a_length_inside(folder: Path) -> None:
    of_a_length(folder, "array<varchar(3)>")


def constrained(folder: Path) -> None:
    changed(folder, "metaData", configuration={"delta.constraints.positive": "amount > 0"})


def append_only(folder: Path) -> None:
    changed(folder, "metaData", configuration={"delta.appendOnly": "true"})


def with_deletion_vectors(folder: Path) -> None:
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    changed(folder, "protocol", minReaderVersion=3, minWriterVersion=7, **features)


def with_row_tracking(folder: Path) -> None:
    changed(folder, "protocol", minWriterVersion=7, writerFeatures=["rowTracking", "domainMetadata"])


def of_a_text_day(folder: Path) -> None:
    with_fields(folder, "day", type="string")


def of_another_type(folder: Path) -> None:
    with_fields(folder, "amount", type="integer")


def of_a_strange_type(folder: Path) -> None:
    with_fields(folder, "amount", type={"type": "array", "elementType": "byte", "containsNull": True})


def with_a_capital_name(folder: Path) -> None:
    with_fields(folder, "amount", name="Amount")


def without_a_day(folder: Path) -> None:
    changed(folder, "add", partitionValues={"day": None})


def of_a_clone(folder: Path) -> None:
    changed(folder, "add", path="file:///elsewhere/day=2026-01-01/a.parquet")


def with_a_blank_in_a_file_name(folder: Path) -> None:
    changed(folder, "add", path="day=2026-01-01/a%20b.parquet")


def without_a_file(folder: Path) -> None:
    changed(folder, "add", path="day=2026-01-01/gone.parquet")


def forgetting_transactions(folder: Path) -> None:
    changed(folder, "metaData", configuration={"delta.setTransactionRetentionDuration": "interval 7 days"})


def read_by_manifests(folder: Path) -> None:
    changed(folder, "metaData", configuration={"delta.compatibility.symlinkFormatManifest.enabled": "TRUE"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (not_null, r"column amount NOT NULL"),
        (generated, r"column amount delta.generationExpression \(amount <=> \(id \* 2\)\)"),
        (of_a_length, r"column amount __CHAR_VARCHAR_TYPE_STRING \(amount IS NULL OR length\(amount\) <= 3\)"),
        (of_a_padded_length, r"column amount __CHAR_VARCHAR_TYPE_STRING \(amount IS NULL OR length\(amount\) <= 3\)"),
        (of_a_length_inside, r"column amount __CHAR_VARCHAR_TYPE_STRING;"),
        (constrained, r"constraint positive \(amount > 0\)"),
        (append_only, r"delta.appendOnly, and a release replaces files"),
        (with_deletion_vectors, r"deletionVectors"),
        (with_row_tracking, r"the features domainMetadata, rowTracking, which nobody has tried"),
        (of_a_text_day, r"partitioned by day \(string\)"),
        (of_another_type, r"column amount: expected long, found integer"),
        (of_a_strange_type, r"column amount: its type array<byte> cannot be declared"),
        (with_a_capital_name, r"column 'Amount' is not a safe name"),
        (without_a_day, r"rows without a day \(day is null\)"),
        (of_a_clone, r"some of its files lie elsewhere"),
        (with_a_blank_in_a_file_name, r"have names with special characters"),
        (
            without_a_file,
            r"files that are missing, altered or behind a link: 1, first day=2026-01-01/gone\.parquet; restore",
        ),
        (forgetting_transactions, r"setTransactionRetentionDuration, and releases are found by their transactions"),
        (read_by_manifests, r"symlinkFormatManifest.enabled, and releases do not write these manifests"),
    ],
)
def test_a_table_that_no_release_fits_is_refused_before_anything_is_written(
    world: World, tmp_path: Path, change: Any, message: str
) -> None:
    folder = tmp_path / "lake"
    write(folder, {day(0): [1]})
    change(folder)
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    with pytest.raises(BackfillError, match=message):
        adopted(world, folder)
    assert {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()} == before
    assert not layout(world.folder).is_adopted("sales")
    assert world.ledger.releases("sales") == ()


RULES = ("amount <=> (id * 2)", "amount > 0", "amount IS NULL OR length(amount) <= 3")


def enforce(world: World, **changes: object) -> None:
    """Declare all rules of the tables here as blocking checks."""
    said = world.datasets["sales"].model_dump(mode="json", exclude_defaults=True)
    said |= {"checks": {"rules": {f"rule_{i}": {"sql": sql} for i, sql in enumerate(RULES)}}, **changes}
    said["columns"]["amount"] |= {"nullable": False}
    world.datasets["sales"] = found = Dataset.model_validate(said)
    world.tables["sales"] = PublishedTable(layout(world.folder), found, world.clock)


@pytest.mark.parametrize("change", [not_null, generated, of_a_length, constrained])
def test_the_rules_of_a_table_are_no_obstacle_if_blocking_checks_enforce_them(
    world: World, tmp_path: Path, change: Any
) -> None:
    folder = tmp_path / "lake"
    write(folder, {day(0): [2]})
    change(folder)
    before = json.loads(DeltaTable(folder).schema().to_json())["fields"]
    enforce(world)
    adopted(world, folder)
    world.released({day(0): [7]})
    assert content(folder) == {day(0): [7]}
    # The release added its audit columns, and no rule of another column got lost.
    assert json.loads(DeltaTable(folder).schema().to_json())["fields"][: len(before)] == before


def test_the_length_of_a_column_that_no_model_fills_is_no_obstacle(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    write_deltalake(folder, rows_of({day(0): [2]}).select([*PLAIN, "unit"]), partition_by=["day"])
    with_fields(folder, "unit", name="old", metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"})
    world.datasets["sales"] = found = world.datasets["sales"].model_copy(update={"dropped_columns": ("old",)})
    world.tables["sales"] = PublishedTable(layout(world.folder), found, world.clock)
    assert adopted(world, folder).days == (day(0),)


def test_files_that_a_rule_was_never_checked_on_do_not_come_back_after_it(world: World, lake: Path) -> None:
    """Whoever adds a constraint has only the rows of that time checked, and a rollback would bring back others."""
    write(lake, {day(2): [-4]})
    adopted(world, lake)
    release = world.released({day(2): [7]})
    DeltaTable(lake).alter.add_constraint({"positive": "amount > 0"})
    enforce(world)
    adoption(world).accept("sales", "no refunds any more")
    again = world.released({day(2): [8]})
    assert world.rollback().execute(again, "a typing error").days == (day(2),)
    with pytest.raises(
        PreconditionError,
        match=rf"own rules as before {release}, found constraint positive \(amount > 0\).* build these days again",
    ) as refused:
        world.rollback().execute(release, "finance says no")
    (foretold,) = world.rollback().refusals(world.rollback().plan(release))
    assert str(foretold) == str(refused.value)
    assert content(lake)[day(2)] == [7]
    DeltaTable(lake).alter.drop_constraint("positive")
    assert world.rollback().refusals(world.rollback().plan(release)) == ()
    world.rollback().execute(release, "finance says no")
    assert content(lake)[day(2)] == [-4, 1]


def test_rows_that_nobody_has_accepted_do_not_go_on_into_the_tables_that_are_built_from_them(
    tmp_path: Path, lake: Path
) -> None:
    world = World(tmp_path, ("orders<sales", "sales"))
    adopted(world, lake)
    overwrite(lake, day(0), [9])
    unit = world.open_unit({"orders": [day(0)]})
    world.build(unit, "orders", {day(0): [9]})
    with pytest.raises(PreconditionError, match="sales: its adopted table has 1 commit of another writer"):
        world.publisher().release(unit.id)
    adoption(world).accept("sales", "it was right")
    world.publisher().release(unit.id)
    assert world.content("orders") == {day(0): [9]}
    world.close()


def test_a_table_that_the_dataset_itself_reads_is_not_adopted(world: World) -> None:
    """Each release would be read again as new rows: an amount in cents would be multiplied by 100 each time."""
    lake = path_of(layout(world.folder).sources) / "lake" / "sales"
    write(lake, {day(0): [1]})
    said = world.datasets["sales"].model_dump(mode="json", exclude_defaults=True)
    said["source"] = {"table": "lake/sales", "day": "day", "columns": {"id": "long", "amount": "long"}}
    world.datasets["sales"] = Dataset.model_validate(said)
    with pytest.raises(SourceError, match=r"source\.table: lake/sales is the published table of sales itself"):
        adopted(world, lake)
    assert not (lake / OWNER).exists()
    plain, world.datasets["sales"] = world.datasets["sales"], dataset()
    adopted(world, lake)
    world.datasets["sales"] = plain
    with pytest.raises(SourceError, match="is the published table of sales itself"):
        KnownDeliveries(world.warehouse()).of("sales", [day(0)])


def test_a_dataset_with_releases_of_another_table_adopts_none(world: World, lake: Path) -> None:
    release = world.released({day(0): [3]})
    shutil.rmtree(world.homes["sales"])
    with pytest.raises(PreconditionError, match=rf"releases of another table, the newest is {release}.* another name"):
        adopted(world, lake)
    assert not (lake / OWNER).exists()


def test_a_log_that_was_restored_or_written_again_is_not_accepted_but_adopted_again(world: World, lake: Path) -> None:
    adopted(world, lake)
    backup = world.folder / "backup"
    shutil.copytree(lake / "_delta_log", backup)
    release = world.released({day(0): [7]})
    shutil.rmtree(lake / "_delta_log")
    shutil.copytree(backup, lake / "_delta_log")
    unit = unreleased(world, {day(1): [8]})
    with pytest.raises(PreconditionError, match=r"see other files of 2026-01-01 than releases brought"):
        world.publisher().release(unit)
    with pytest.raises(PreconditionError, match=rf"its newest release, {release}: it was restored.* unadopt sales"):
        adoption(world).accept("sales", "from the backup")
    world.ledger.move(unit, {UnitState.open}, UnitState.discarded)
    adoption(world).give_back("sales")
    adopted(world, lake)
    world.rollback().execute(world.released({day(0): [9]}), "no")
    assert content(lake) == {day(0): [1], day(1): [1, 5], day(2): [1]}
    assert findings(world) == []


def test_rows_outside_of_the_declared_history_are_refused(world: World, lake: Path) -> None:
    write(lake, {dt.date(2020, 1, 1): [1]})
    with pytest.raises(PreconditionError, match="rows of 2020-01-01, outside of 2026-01-01"):
        adopted(world, lake)


def test_a_folder_without_a_table_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="there is no Delta table"):
        adopted(world, tmp_path / "nothing")


def test_a_torn_commit_of_an_adopted_table_is_set_aside_in_its_own_folder(world: World, lake: Path) -> None:
    """It may lie on another disk than the warehouse, where nothing can be moved."""
    adopted(world, lake)
    version = DeltaTable(lake).version()
    unit = unreleased(world, {day(0): [7]})
    torn = lake / "_delta_log" / f"{version + 1:020}.json"
    torn.write_text('{"commitInfo": {"rel')
    assert world.tables["sales"].set_aside_torn()
    assert (lake / "_set_aside" / torn.name).exists()
    world.publisher().release(unit)
    assert content(lake)[day(0)] == [7]


def test_a_table_on_a_mounted_object_store_is_refused(
    world: World, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As s3fs shows itself in the list of mounts; a real mount needs root and a bucket."""
    listed = psutil.disk_partitions(all=True)
    mounted = listed[0]._replace(mountpoint=str(lake.parent), device="s3fs", fstype="fuse.s3fs")
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: [*listed, mounted])
    with pytest.raises(LayoutError, match="shows an object store as a folder"):
        adopted(world, lake)
    assert not (lake / OWNER).exists()
