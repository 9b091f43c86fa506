"""The doctor's findings about files, work and events: each is planted, found, repaired if that is safe, and then gone."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.campaign.state import Action, JournalEntry
from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.delivery import Deed, Delivery
from backfill_assets.core.errors import LayoutError, LedgerError, PreconditionError
from backfill_assets.core.release import ReleaseState
from backfill_assets.core.unit import AttemptState, Launch, ReleaseMode, StagedDay, Unit, UnitState
from backfill_assets.delta.opening import LOG
from backfill_assets.delta.stored_tables import StoredTables
from backfill_assets.doctor.doctor import Repairer
from backfill_assets.doctor.findings import Finding, FindingSeverity, RepairResult, RunAtWork
from backfill_assets.storage.disk import path_of
from backfill_assets.storage.layout import SET_ASIDE, UNFINISHED, ReportFolder
from backfill_assets_tests.harness.between import Died, between
from backfill_assets_tests.harness.objects import folder_of
from backfill_assets_tests.harness.tables import dataset, day, layout, rows_of, write_raw, write_shadow
from backfill_assets_tests.harness.world import LEASE, World
from backfill_assets_tests.unit.doctor.events import KeptEvents
from backfill_assets_tests.unit.extracts.kit import names_in, orders

pytestmark = pytest.mark.slow

DAYS = [day(0), day(1), day(2)]
OLD, NEW = {d: [1] for d in DAYS}, {d: [2] for d in DAYS}
LONG_AGO = dt.timedelta(days=2)


def the(world: World, text: str) -> Finding:
    """The one finding with this text."""
    (found,) = [f for f in world.repairer().doctor.examine() if text in f.what]
    return found


def healed(world: World) -> tuple[RepairResult, ...]:
    """What a repair repaired; afterwards there is nothing left to repair."""
    done = world.repairer().repair()
    assert [one.problem for one in done] == [""] * len(done)
    assert world.repairer().repair() == ()
    return done


def clean(world: World) -> bool:
    return world.repairer().doctor.examine() == ()


def aged(path: Path, world: World) -> Path:
    """A file so old that no process can be using it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    moment = (world.clock.now() - LONG_AGO).timestamp()
    os.utime(path, (moment, moment))
    return path


def warehouse(world: World) -> Path:
    return folder_of(layout(world.folder).warehouse)


def commit_file(home: Path, version: int) -> Path:
    return home / "_delta_log" / f"{version:020}.json"


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


# Published tables


@pytest.mark.parametrize("damage", [cut, emptied])
def test_a_release_whose_commit_was_cut_by_a_power_failure_is_committed_again(
    world: World, damage: Callable[[Path], None]
) -> None:
    world.released(OLD)
    release = world.released(NEW)
    home = world.homes["sales"]
    damage(commit_file(home, 2))
    if damage is cut:
        with pytest.raises(PreconditionError, match="backfill doctor"):
            world.tables["sales"].version()
    finding = the(world, "commit 2 of its log")
    assert (finding.severity, bool(finding.repair)) == (FindingSeverity.error, True)
    done = healed(world)
    assert [f"release {release} is finalized" in one.what for one in done] == [False, True]
    assert (world.content(), world.tables["sales"].committed(release)) == (NEW, 2)
    assert (warehouse(world) / SET_ASIDE / "published/sales" / f"{2:020}.json").exists()
    assert clean(world)


def test_a_release_that_was_not_yet_finalized_when_its_commit_was_cut_is_given_up(world: World) -> None:
    world.released(OLD)
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", NEW)

    def power_cut(step: str) -> None:
        if step == "commit":
            cut(commit_file(world.homes["sales"], 2))
            raise Died

    with pytest.raises(Died):
        world.publisher(power_cut).release(unit.id)
    healed(world)
    assert world.content() == OLD
    assert [r.state for r in world.ledger.releases(unit=unit.id)] == [ReleaseState.abandoned]
    world.publisher().release(unit.id)
    assert world.content() == NEW
    assert clean(world)


def test_a_damaged_commit_below_others_needs_a_person(world: World) -> None:
    world.released(OLD)
    world.released(NEW)
    cut(commit_file(world.homes["sales"], 1))
    assert the(world, "commit 1 of its log").repair is None
    assert world.repairer().repair() == ()


def test_a_log_with_missing_commits_between_others_needs_a_person(world: World) -> None:
    for data in (OLD, NEW, OLD):
        world.released(data)
    commit_file(world.homes["sales"], 2).unlink()
    finding = the(world, "is missing the commits 2")
    assert (finding.severity, finding.repair) == (FindingSeverity.error, None)
    assert world.repairer().repair() == ()


def test_a_release_unknown_to_ledger_and_manifests_needs_a_person(world: World) -> None:
    release = world.released(OLD)
    world.close()
    (world.folder / "ledger.db").unlink()
    (world.homes["sales"] / "_releases" / f"{release}.json").unlink()
    fresh = World(world.folder)
    assert the(fresh, "but not in the ledger").repair is None
    fresh.close()


def test_a_commit_that_ends_between_two_lines_shows_in_what_readers_see(world: World) -> None:
    world.released(OLD)
    release = world.released(NEW)
    file = commit_file(world.homes["sales"], 2)
    lines = [line for line in file.read_text().splitlines() if not line.startswith('{"add"')]
    file.write_text("\n".join(lines) + "\n")
    finding = the(world, "readers see other files")
    assert (release in finding.what, finding.repair) == (True, None)


def test_a_manifest_that_cannot_be_read_or_is_gone_is_written_again_from_the_ledger(world: World) -> None:
    release = world.released(OLD)
    path = world.homes["sales"] / "_releases" / f"{release}.json"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert the(world, "cannot be read").severity is FindingSeverity.error
    healed(world)
    assert path.read_text() == whole
    path.unlink()
    assert the(world, "has no manifest").severity is FindingSeverity.warning
    healed(world)
    assert path.read_text() == whole
    assert clean(world)


def test_a_forged_manifest_is_left_for_a_person(world: World) -> None:
    release = world.released(OLD)
    path = world.homes["sales"] / "_releases" / f"{release}.json"
    path.write_text(path.read_text().replace('"by":"ada"', '"by":"eve"'))
    assert the(world, "is not the one that was committed").repair is None
    assert world.repairer().repair() == ()


def test_a_published_shadow_that_could_still_be_written_to_is_sealed(world: World) -> None:
    world.released(OLD)
    (sealed,) = world.homes["sales"].glob("_shadow/*/*/_sealed_log")
    sealed.rename(sealed.with_name("_delta_log"))
    assert the(world, "still a table").severity is FindingSeverity.info
    healed(world)
    assert sealed.exists()
    assert clean(world)


def test_a_file_of_another_size_is_found(world: World) -> None:
    world.released(OLD)
    (file,) = world.tables["sales"].active()[day(1)]
    cut(world.homes["sales"] / file.path)
    finding = the(world, "have another size")
    assert (finding.severity, finding.repair) == (FindingSeverity.error, None)


def test_a_cut_file_that_an_open_unit_would_release_is_found(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", NEW)
    assert clean(world)
    cut(next(world.homes["sales"].glob("_shadow/*/*/day=2026-01-02/*.parquet")))
    finding = the(world, "would release")
    assert ("2026-01-02" in finding.what, finding.remedy) == (True, f"run: backfill resume {unit.id}")


def test_a_running_release_is_no_error_at_any_of_its_steps(world: World) -> None:
    world.released(OLD)
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", NEW)
    seen: list[tuple[str, list[str]]] = []

    def look(step: str) -> None:
        found = world.doctor().examine()
        assert {f.severity for f in found} <= {FindingSeverity.info}
        seen.append((step, [f.what.split(" by ")[0] for f in found]))

    release = world.publisher(look).release(unit.id).release
    made = [f"release {release} is being made"]
    assert seen == [("manifest", []), ("intend", made), ("commit", made), ("finalize", []), ("seal", [])]


def test_a_release_during_the_examination_is_no_error(world: World) -> None:
    world.released(OLD)
    unit = world.open_unit({"sales": DAYS})
    world.build(unit, "sales", NEW)

    def release(call: str) -> None:
        if world.ledger.unit(unit.id).state is UnitState.open:
            world.publisher().release(unit.id)

    doctor = world.doctor()
    slow = between(world.tables["sales"], ("history", "active"), before=release)
    assert replace(doctor, warehouse=replace(doctor.warehouse, tables={"sales": slow})).examine() == ()
    assert world.content() == NEW


def test_a_table_that_cannot_be_examined_keeps_no_other_from_being_repaired(two: World) -> None:
    two.released(OLD, "orders")
    two.released(OLD, "sales")
    two.released(NEW, "sales")
    cut(commit_file(two.homes["orders"], 1))
    cut(commit_file(two.homes["sales"], 1))
    (two.homes["orders"] / "_shadow" / "u_9999").mkdir()
    assert [one.repair.dataset for one in healed(two)] == ["orders", "orders"]
    assert two.content("orders") == OLD
    assert the(two, "published/sales: commit 1").repair is None


# Leftover files


@pytest.mark.parametrize(
    "left",
    [
        "_delta_log/.00000000000000000003.json.1f0c.tmp", "_delta_log/_commit_1f0c.json.tmp",
        "_delta_log/.00000000000000000003.json.crc", "day=2026-01-01/part-0.parquet#1", "_releases/.r_1.json.4711",
        "day=2026-01-01/part-00000-1f0c.snappy.parquet",
    ],
)  # fmt: skip
def test_files_of_a_killed_writer_are_removed_once_no_process_can_be_using_them(world: World, left: str) -> None:
    world.released(OLD)
    file = aged(world.homes["sales"] / left, world)
    finding = the(world, "of a writer that was killed")
    assert (finding.severity, left in finding.what) == (FindingSeverity.info, True)
    healed(world)
    assert not file.exists()
    assert world.content() == OLD
    (world.homes["sales"] / left).touch()
    assert clean(world)


def test_data_files_stay_as_long_as_a_commit_that_was_set_aside_may_name_them(world: World) -> None:
    home = staged(world, "abc", 0)
    staged(world, "abc", 1)
    cut(commit_file(home, 1))
    healed(world)
    for file in home.glob("*/*.parquet"):
        aged(file, world)
    assert the(world, "data files that no commit names").repair is None
    shutil.rmtree(warehouse(world) / SET_ASIDE)
    healed(world)
    assert [file.parent.name for file in home.glob("*/*.parquet")] == ["day=2026-01-01"]


def test_a_table_out_of_reach_hides_nothing_about_the_others(two: World) -> None:
    aged(two.homes["sales"] / "_shadow/u_9999/1/part-0.parquet", two)
    aged(two.folder / "reports" / f"index.html{UNFINISHED}", two)
    unit = two.open_unit({"sales": [day(0)]})
    two.build(unit, "sales", {day(0): [1]})
    cut(next(two.homes["sales"].glob(f"_shadow/{unit.id}/*/*/*.parquet")))
    layout(two.folder).note("orders").parent.make_folder()
    layout(two.folder).note("orders").write(str(two.folder / "gone"))
    assert "no longer leads" in the(two, "the shadows of orders cannot be examined completely").what
    for found in ("u_9999", f"files that unit {unit.id} would release", "unfinished page"):
        the(two, found)


def test_the_scratch_of_a_prove_that_was_killed_is_removed(world: World) -> None:
    world.released(OLD)
    write_shadow(world.homes["sales"], "_shadow/p_0001/1", rows_of({day(0): [1]}))
    assert clean(world)
    for file in list((world.homes["sales"] / "_shadow/p_0001").rglob("*")):
        if file.is_file():
            aged(file, world)
    assert "p_0001" in the(world, "scratch").what
    healed(world)
    assert not (world.homes["sales"] / "_shadow/p_0001").exists()
    assert world.content() == OLD


def test_the_folder_of_an_unknown_unit_is_left_for_a_person(world: World) -> None:
    aged(world.homes["sales"] / "_shadow/u_9999/1/part-0.parquet", world)
    assert the(world, "u_9999").repair is None
    assert world.repairer().repair() == ()


def test_reports_of_unknown_units_are_found_and_unfinished_pages_removed(world: World) -> None:
    world.released(OLD)
    (unit,) = world.ledger.units()
    reports = world.folder / "reports"
    for known in (unit.id, "u_9999"):
        aged(reports / known / "review.json", world)
    part = aged(reports / unit.id / "tmp1f0c.part", world)
    assert the(world, "there is a report of unit u_9999").repair is None
    healed(world)
    assert not part.exists()
    assert len(world.doctor().examine()) == 1


def test_unfinished_files_of_dead_extracts_are_removed_and_those_of_living_ones_and_of_suppliers_stay(
    tmp_path: Path,
) -> None:
    application = orders(tmp_path, {"file": "extract.py"}, "extract = list", path="{yyyy}/{mm}/{dd}.parquet")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = socket.gethostname()[:32]
    dead, living = (f"2024/03/.01.parquet~{here}~{process}.7.part" for process in (gone.pid, os.getpid()))
    for name in (dead, living, f"others/.01.parquet~{here}~{gone.pid}.7.part", "2024/03/.02.parquet.part"):
        file = path_of(application.layout.sources) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    before = names_in(application)
    (finding,) = application.doctor.examine()
    assert (finding.severity, dead in finding.what) == (FindingSeverity.info, True)
    (done,) = Repairer(application.doctor, application.reconcile).repair()
    assert done.problem == ""
    before.remove(Path(dead).name)
    assert (names_in(application), application.doctor.examine()) == (before, ())


def test_releases_that_have_left_the_log_are_known_by_its_transactions_and_the_table_is_opened_for_all_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases = [world.released({day(0): [amount]}) for amount in range(1, 5)]
    table = world.tables["sales"]
    assert table.committed_among([*releases, "r_of_nobody"]) == {r: n for n, r in enumerate(releases, start=1)}
    DeltaTable(world.homes["sales"]).create_checkpoint()
    for version in range(3):
        (world.homes["sales"] / LOG / f"{version:020}.json").unlink()
    asked: list[int] = []
    among = table.committed_among

    def noting(names: Iterable[str]) -> Mapping[str, int]:
        asked.append(len(wanted := list(names)))
        return among(wanted)

    monkeypatch.setattr(table, "committed_among", noting)
    assert world.doctor().examine() == ()
    assert [number for number in asked if number > 1] == [2]


def test_a_log_that_cannot_be_opened_is_named(world: World) -> None:
    (folder_of(layout(world.folder).raw_path("sales")) / "_delta_log" / f"{0:020}.json").mkdir(parents=True)
    finding = the(world, "raw/sales: its log cannot be read")
    assert ("directory" in finding.what, finding.repair) == (True, None)


def test_only_unfinished_pages_are_removed_from_the_reports(tmp_path: Path) -> None:
    page = tmp_path / "u_1" / "index.html"
    page.parent.mkdir()
    page.touch()
    for path in ("u_1/index.html", "../other.part", "/tmp/other.part"):  # noqa: S108  # never written to
        with pytest.raises(PreconditionError):
            ReportFolder(tmp_path).remove([path])
    ReportFolder(tmp_path).remove(["u_1/gone.part"])
    assert page.exists()


def test_nothing_but_unfinished_files_below_a_table_is_removed(world: World) -> None:
    world.released(OLD)
    stored = StoredTables(layout(world.folder))
    for path in ("_delta_log/00000000000000000001.json", "../sales/x.tmp", "/etc/hostname"):
        with pytest.raises((PreconditionError, LayoutError)):
            stored.remove("published/sales", [path])
    with pytest.raises(PreconditionError):
        stored.set_aside("published/sales", 0)
    assert world.content() == OLD


# Raw and staging


def staged(world: World, shape: str, number: int) -> Path:
    """A staged table with a file of one day."""
    home = folder_of(layout(world.folder).staging_path("sales")) / shape
    write_deltalake(home, pa.table({"day": [day(number)], "id": [number]}), partition_by=["day"], mode="append")
    return home


def landed(world: World, number: int, rows: int = 1) -> Path:
    """Raw with a delivery of one day that the ledger knows."""
    home = folder_of(layout(world.folder).raw_path("sales"))
    table = pa.table({"_delivery_day": [day(number)] * rows, "id": list(range(rows))})
    write_deltalake(home, table, partition_by=["_delivery_day"], mode="append")
    now = world.clock.now()
    world.ledger.add_deliveries([Delivery("sales", day(number), f"{number}.csv", f"f{number}", 1, now, now, rows)])
    return home


def test_a_cut_commit_of_staging_is_set_aside_and_its_days_are_staged_again(world: World) -> None:
    staged(world, "abc", 0)
    home = staged(world, "abc", 1)
    world.ledger.add_staged([StagedDay("sales", day(n), "as delivered", "c0de") for n in (0, 1)])
    cut(commit_file(home, 1))
    healed(world)
    assert DeltaTable(home).version() == 0
    assert {d.inputs for d in world.ledger.staged("sales", DAYS).values()} == {""}
    assert clean(world)


def test_days_whose_staged_file_is_lost_are_staged_again(world: World) -> None:
    home = staged(world, "abc", 0)
    world.ledger.add_staged([StagedDay("sales", day(0), "as delivered", "c0de")])
    next(home.glob("*/*.parquet")).unlink()
    assert the(world, "lost or altered").severity is FindingSeverity.warning
    healed(world)
    assert world.ledger.staged("sales", [day(0)])[day(0)].inputs == ""
    assert the(world, "lost or altered").severity is FindingSeverity.info


def test_a_staged_table_of_former_columns_is_mentioned_and_left(world: World) -> None:
    old = commit_file(staged(world, "abc", 0), 0)
    staged(world, "def", 0)
    os.utime(old, (0, 0))
    finding = the(world, "staging/sales/abc")
    assert (finding.severity, finding.repair) == (FindingSeverity.info, None)


def test_a_cut_commit_of_raw_is_set_aside_only_if_the_version_before_has_all_that_was_landed(world: World) -> None:
    landed(world, 0)
    home = landed(world, 1)
    whole = commit_file(home, 1).read_bytes()
    cut(commit_file(home, 1))
    assert the(world, "commit 1 of its log").repair is None
    assert world.repairer().repair() == ()
    commit_file(home, 1).write_bytes(whole)
    del world.datasets["sales"]
    cut(commit_file(home, 1))
    assert the(world, "commit 1 of its log").repair is None
    world.datasets["sales"] = dataset()
    commit_file(home, 1).write_bytes(whole)
    write_deltalake(
        home, pa.table({"_delivery_day": [day(2)], "id": [7]}), partition_by=["_delivery_day"], mode="append"
    )
    cut(commit_file(home, 2))
    healed(world)
    assert DeltaTable(home).version() == 1


@pytest.mark.parametrize("place", ["raw/sales", "staging/sales/abc", "published/sales", "data_releases"])
def test_a_first_commit_that_was_cut_is_set_aside_and_the_table_is_made_again(campaigns: World, place: str) -> None:
    home = warehouse(campaigns) / place
    write_deltalake(home, rows_of({day(0): [1]}), partition_by=["day"])
    cut(commit_file(home, 0))
    healed(campaigns)
    assert not DeltaTable.is_deltatable(str(home))
    campaigns.released(OLD)
    assert campaigns.content() == OLD
    healed(campaigns)
    assert clean(campaigns)


def test_a_cut_commit_of_data_releases_is_set_aside_and_its_rows_are_written_again(campaigns: World) -> None:
    for data in (OLD, NEW):
        campaigns.released(data)
        campaigns.reconcile().run()
    cut(commit_file(warehouse(campaigns) / "data_releases", 1))
    healed(campaigns)
    assert campaigns.data_releases.differing() == ()
    assert clean(campaigns)


def test_raw_that_has_fewer_rows_than_were_landed_is_found(world: World) -> None:
    home = landed(world, 0)
    world.ledger.add_deliveries(
        [Delivery("sales", day(1), "1.csv", "f1", 1, world.clock.now(), world.clock.now(), rows=3)]
    )
    assert "2026-01-02" in the(world, "fewer rows").what
    next(home.glob("*/*.parquet")).unlink()
    assert the(world, "lost or altered").severity is FindingSeverity.error


def test_raw_that_has_lost_the_file_of_a_month_that_is_not_over_is_found(world: World) -> None:
    landed(world, 0)
    sales = world.datasets["sales"]
    source = sales.landing.model_copy(update={"path": "{yyyymm}.csv"})
    world.datasets["sales"] = sales.model_copy(update={"source": source})
    now = world.clock.now()
    last = world.datasets["sales"].due(now.date())
    assert last > now.date() + dt.timedelta(days=1)
    world.ledger.add_deliveries([Delivery("sales", last, "m.csv", "f1", 1, now, now, rows=3)])
    assert f"{last}" in the(world, "fewer rows").what


def test_unknown_rows_in_raw_are_found_once_no_process_can_be_landing_them(
    world: World,
) -> None:
    home = landed(world, 0)
    write_deltalake(
        home, pa.table({"_delivery_day": [day(1)], "id": [7]}), partition_by=["_delivery_day"], mode="append"
    )
    assert clean(world)
    aged(commit_file(home, 1), world)
    finding = the(world, "rows that the ledger does not know")
    assert ("2026-01-02" in finding.what, finding.repair) == (True, None)


def test_an_unknown_content_in_raw_is_found_where_another_one_has_lost_as_many_rows(world: World) -> None:
    """The ledger came from a backup: it knows a withdrawn delivery that was purged since, and not the one in its place."""
    now, home = world.clock.now(), folder_of(layout(world.folder).raw_path("sales"))
    kept, out = (
        Delivery("sales", day(1), f"{path}.csv", path, 1, now, now, rows) for path, rows in (("a", 5), ("b", 1))
    )
    world.ledger.add_deliveries([kept, out])
    write_raw(home, {kept.content: 5, (day(1), "b.csv", "c"): 1})
    aged(commit_file(home, 0), world)
    world.ledger.change_deliveries([out], Deed.withdrawn, "ada", "wrong")
    assert "2026-01-02" in the(world, "rows that the ledger does not know").what


def test_rows_of_purged_deliveries_that_are_in_raw_are_purged_again(world: World) -> None:
    """The purge was interrupted, or raw came from a backup: a landing or another ledger would not help."""
    now, home = world.clock.now(), folder_of(layout(world.folder).raw_path("sales"))
    kept, out = (Delivery("sales", day(1), f"{path}.csv", path, 1, now, now, 1) for path in "ab")
    world.ledger.add_deliveries([kept, out])
    kept, out = world.ledger.deliveries("sales", [day(1)])
    write_raw(home, {kept.content: 1, out.content: 1})
    aged(commit_file(home, 0), world)
    world.ledger.change_deliveries([out], Deed.purged, "ada", "erased on request")
    finding = the(world, "raw/sales 2026-01-02: raw has rows of b.csv, which was purged")
    assert finding.remedy == "repeat: backfill purge sales b.csv --reason TEXT"
    write_raw(home, {(day(1), "c.csv", "c"): 1})
    aged(commit_file(home, 1), world)
    assert the(world, "which was purged") == finding
    assert "2026-01-02" in the(world, "rows that the ledger does not know").what


# Work


def test_an_attempt_whose_worker_died_is_ended_with_its_run_and_a_running_one_is_not(world: World) -> None:
    world.events = events = KeptEvents(launches={"launch_u_0001"})
    unit = world.open_unit({"sales": DAYS})
    for days, run in ((DAYS[:1], "dead"), (DAYS[1:], "alive")):
        world.ledger.start_attempt(unit.id, "sales", days, run, LEASE * (2 if run == "alive" else 1))
        events.runs[run] = RunAtWork(run, world.clock.now())
    world.clock.advance(LEASE + dt.timedelta(seconds=1))
    healed(world)
    assert [a.state for a in world.ledger.attempts()] == [AttemptState.lost, AttemptState.running]
    assert (list(events.failed), list(events.runs)) == (["dead"], ["alive"])
    assert clean(world)


def test_a_run_that_stays_started_is_failed_once_its_lease_is_lost(world: World) -> None:
    world.events = events = KeptEvents(launches={"launch_u_0001"})
    unit = world.open_unit({"sales": DAYS})
    attempt = world.ledger.start_attempt(unit.id, "sales", DAYS, "dead", LEASE)
    events.runs["dead"] = RunAtWork("dead", world.clock.now())
    world.ledger.end_attempt(attempt.number, AttemptState.lost)
    healed(world)
    assert list(events.failed) == ["dead"]
    events.runs["other"] = RunAtWork("other", world.clock.now() - LONG_AGO)
    assert the(world, "run other").repair is None


def test_a_run_whose_process_is_gone_is_failed_immediately_even_within_its_lease(world: World) -> None:
    world.events = events = KeptEvents(launches={"launch_u_0001"})
    unit = world.open_unit({"sales": DAYS})
    for run, process in (("gone", 4711), ("leased", 4712), ("alive", None)):
        events.runs[run] = RunAtWork(run, world.clock.now(), unit.id, process)
    for days, run in ((DAYS[:1], "leased"), (DAYS[1:], "alive")):
        world.ledger.start_attempt(unit.id, "sales", days, run, LEASE)
    assert "run gone shows as started, but its process 4711 is gone" in the(world, "4711").what
    healed(world)
    assert (sorted(events.failed), list(events.runs)) == (["gone", "leased"], ["alive"])
    assert [a.state for a in world.ledger.attempts()] == [AttemptState.lost, AttemptState.running]
    assert clean(world)


def test_a_dead_worker_past_its_lease_is_named_once(world: World) -> None:
    world.events = events = KeptEvents(launches={"launch_u_0001"})
    unit = world.open_unit({"sales": DAYS})
    world.ledger.start_attempt(unit.id, "sales", DAYS, "dead", LEASE)
    events.runs["dead"] = RunAtWork("dead", world.clock.now(), unit.id, 4711)
    world.clock.advance(LEASE + dt.timedelta(seconds=1))
    (finding,) = world.doctor().examine()
    assert "its lease is over" in finding.what
    healed(world)
    assert list(events.failed) == ["dead"]
    assert clean(world)


def test_an_open_unit_whose_launch_is_unknown_is_found(world: World) -> None:
    world.events = events = KeptEvents()
    unit = world.open_unit({"sales": DAYS})
    assert f"backfill resume {unit.id}" in the(world, "no longer in Dagster").remedy
    events.launches.add(unit.opened_by)
    assert clean(world)


def test_the_unit_that_a_sensor_looks_after_is_not_taken_for_a_forgotten_one(world: World) -> None:
    world.events = KeptEvents()
    days = {"sales": tuple(DAYS)}
    launch = Launch({"sales": frozenset(DAYS)}, "catch_up:sales/90/u_1")
    world.ledger.assign(launch, Unit("u_1", launch.opened_by, world.clock.now(), "ada", days, ReleaseMode.auto))
    assert clean(world)


def test_a_lock_of_a_dead_holder_is_released_and_one_that_is_held_is_not(world: World) -> None:
    left = world.ledger.lock("publish:sales", LEASE)
    left.__enter__()
    assert clean(world)
    world.clock.advance(LEASE)
    assert the(world, "the lock publish:sales").severity is FindingSeverity.info
    healed(world)
    assert world.ledger.locks() == ()
    left.__exit__(None, None, None)


def test_repairs_that_a_full_disk_prevents_are_reported_and_the_others_are_made(world: World) -> None:
    world.released(OLD)
    write_deltalake(world.homes["sales"], rows_of({day(0): [9]}), mode="append", partition_by=["day"])
    cut(commit_file(world.homes["sales"], 2))
    (warehouse(world) / SET_ASIDE).touch()
    part = aged(world.folder / "reports" / "tmp1.part", world)
    faults = [bool(one.problem) for one in world.repairer().repair()]
    assert (faults, part.exists()) == ([True, False], False)
    (warehouse(world) / SET_ASIDE).unlink()
    healed(world)
    assert world.content() == OLD


def test_two_concurrent_repairs_are_refused(world: World) -> None:
    with world.ledger.lock("doctor", LEASE), pytest.raises(LedgerError, match="doctor"):
        world.repairer().repair()


# Campaigns


def test_an_approval_without_its_entry_in_the_journal_is_found_and_the_other_way_round(
    campaigns: World,
) -> None:
    campaign, unit = campaigns.approved()
    assert clean(campaigns)
    (given,) = campaigns.ledger.approvals(unit.id)
    campaigns.clock.advance(dt.timedelta(minutes=1))
    later = campaigns.clock.now()
    campaigns.ledger.note(JournalEntry(campaign.id, later, "eve", Action.approved))
    assert the(campaigns, "that does not exist").severity is FindingSeverity.error
    campaigns.clock.advance(dt.timedelta(minutes=1))
    campaigns.ledger.approve(type(given)(**{**vars(given), "at": campaigns.clock.now()}))
    assert the(campaigns, "is not in its journal").severity is FindingSeverity.error
    assert campaigns.repairer().repair() == ()


def test_a_release_without_its_journal_entry_is_reported(campaigns: World) -> None:
    campaign, unit = campaigns.approved()
    replace(campaigns.publisher(), guard=campaigns.guard()).release(unit.id)
    assert the(campaigns, "is not in the journal").severity is FindingSeverity.warning
    healed(campaigns)
    assert campaigns.actions(campaign).count(Action.published) == 1
    assert clean(campaigns)


def test_a_journal_entry_of_an_unknown_release_is_found(campaigns: World) -> None:
    campaign, _ = campaigns.approved()
    observed = {"releases": {"sales": "r_9999"}}
    entry = JournalEntry(campaign.id, campaigns.clock.now(), "eve", Action.published, detail=observed)
    campaigns.ledger.note(entry)
    assert the(campaigns, "r_9999").repair is None


def test_a_unit_of_a_campaign_whose_launch_was_not_completed_is_found(campaigns: World) -> None:
    campaigns.planned({"sales": DAYS})
    opened_by = "campaign:tax-fix-2026"
    proposal = Unit("u_x", opened_by, campaigns.clock.now(), "ada", {"sales": tuple(DAYS)}, ReleaseMode.manual)
    campaigns.ledger.assign(Launch({"sales": frozenset(DAYS)}, opened_by), proposal)
    assert "backfill launch tax-fix-2026" in the(campaigns, "was not completed").remedy


def test_a_repair_of_a_campaigns_work_is_noted_in_its_journal_and_at_its_dataset(campaigns: World) -> None:
    campaigns.events = events = KeptEvents()
    campaign, unit = campaigns.launched()
    campaigns.ledger.start_attempt(unit.id, "sales", DAYS, "dead", LEASE)
    campaigns.clock.advance(LEASE * 2)
    healed(campaigns)
    (entry,) = [e for e in campaigns.ledger.journal(campaign.id) if e.action is Action.repaired]
    assert (entry.by, "attempt 1 of sales" in entry.reason) == ("ada", True)
    ((dataset, text),) = events.notes
    assert (dataset, "repaired by ada" in text) == ("sales", True)


# The event log


def observed(world: World) -> KeptEvents:
    """A release that was reported to Dagster long enough ago."""
    release = world.released(OLD)
    world.events = events = KeptEvents(datasets={release: "sales"})
    events.report(release, DAYS)
    world.clock.advance(dt.timedelta(minutes=5))
    return events


def test_a_release_is_reported_to_dagster_for_the_missing_days_only(world: World) -> None:
    events = observed(world)
    assert clean(world)
    missing = events.said.pop(("sales", DAYS[1]))
    assert the(world, "was not reported to Dagster for 2026-01-02").severity is FindingSeverity.warning
    healed(world)
    assert events.said == {("sales", d): missing for d in DAYS}
    assert clean(world)


def test_a_release_is_not_missed_while_its_run_may_still_report_it(world: World) -> None:
    events = observed(world)
    release = world.released(NEW)
    assert clean(world)
    world.clock.advance(dt.timedelta(minutes=5))
    unit = world.ledger.release(release).manifest.unit
    events.runs["telling"] = RunAtWork("telling", world.clock.now(), unit)
    assert clean(world)
    events.runs.clear()
    assert release in the(world, "was not reported").what


def test_a_materialization_that_no_release_holds_is_found(world: World) -> None:
    events = observed(world)
    events.said["sales", day(7)] = ""
    events.said["sales", day(8)] = "r_9999"
    assert the(world, "names no release").repair is None
    assert "2026-01-09" in the(world, "release r_9999").what


def test_days_that_a_launch_passed_by_before_the_history_are_no_finding(world: World) -> None:
    events = observed(world)
    events.said["sales", DAYS[0] - ONE_DAY] = ""
    assert clean(world)
    world.datasets["sales"] = world.datasets["sales"].model_copy(update={"start": DAYS[0] - ONE_DAY})
    assert the(world, "names no release")


def test_an_unreported_rollback_is_reported_and_nothing_is_published_for_it(world: World) -> None:
    events = observed(world)
    release = world.released(NEW)
    events.datasets[release] = "sales"
    events.report(release, DAYS)
    done = world.rollback().execute(release, "no", days=frozenset(DAYS[:1]))
    events.datasets[done.release] = "sales"
    assert clean(world)
    world.clock.advance(dt.timedelta(minutes=5))
    found = the(world, "was not reported to Dagster for 2026-01-01")
    assert (done.release in found.what, found.remedy) == (True, "run: backfill doctor --repair, which reports it again")
    healed(world)
    assert events.said == {("sales", DAYS[0]): done.release, **{("sales", d): release for d in DAYS[1:]}}
    assert clean(world)


# Repairs that die


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, 6))
def test_a_repair_that_dies_is_finished_by_the_next(world: World, at: int) -> None:
    release, newer = world.released(OLD), world.released(NEW)
    cut(commit_file(world.homes["sales"], 2))
    (world.homes["sales"] / "_releases" / f"{release}.json").unlink()
    unit = world.open_unit({"sales": [day(5)]})
    world.ledger.start_attempt(unit.id, "sales", [day(5)], "dead", LEASE)
    world.clock.advance(LEASE * 2)
    events = DyingEvents(launches={unit.opened_by}, datasets={release: "sales", newer: "sales"}, at=at)
    world.events = events
    with pytest.raises(Died):
        world.repairer().repair()
    world.clock.advance(LEASE)
    events.at = 0
    world.events = None
    healed(world)
    assert world.content() == NEW
    assert world.ledger.unit(unit.id).state is UnitState.open
    assert clean(world)


class DyingEvents(KeptEvents):
    """Dies with the repair at its `at`-th note."""

    def __init__(self, *, at: int, launches: set[str], datasets: dict[str, str]) -> None:
        super().__init__(launches=launches, datasets=datasets)
        self.at = at

    def note(self, dataset: str, text: str) -> None:
        super().note(dataset, text)
        if len(self.notes) == self.at:
            raise Died
