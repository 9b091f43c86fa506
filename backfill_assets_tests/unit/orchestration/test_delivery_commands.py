"""`backfill deliveries` and `backfill withdraw`: what counts and why, withdrawn and restored; days that depend on it are found."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from backfill_assets.cli.app import app
from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.delivery import Deed, Delivery
from backfill_assets.core.errors import ArgumentError, DatasetError, InvalidDayError, SourceError
from backfill_assets.dataset.deliveries import heads
from backfill_assets.pipeline.deliveries import Chosen
from backfill_assets.storage.disk import path_of
from backfill_assets.storage.sources import discover
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import House
from backfill_assets_tests.unit.orchestration.test_launch_commands import Dagster, dagster

__all__ = ["dagster"]

D1, D2 = day(1), day(2)
FILE = f"x/{D1}.csv"
NO_SPARK = cast("SparkSession", None)
"""The refused commands of this test do not get that far."""


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    if done.exception is not None:
        raise done.exception
    return done.output


def deliver(house: House, content: str, hour: int = 0) -> Path:
    file = path_of(house.application.layout.sources) / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")
    os.utime(file, (1_700_000_000 + 3600 * hour,) * 2)
    return file


def land(house: House) -> None:
    """What the raw step does to the ledger."""
    loaded, now = house.application.datasets["sales"], house.world.clock.now()
    files = discover(loaded, house.application.layout, [D1])
    seen = {place: one.order for place, one in heads(house.world.ledger.deliveries("sales", [D1])).items()}
    landed = [Delivery("sales", f.day, f.path, f.fingerprint, f.size, f.delivered_at, now, 1, 0) for f in files]
    house.world.ledger.add_deliveries(landed, seen)


def shown(*words: str) -> list[tuple[object, ...]]:
    rows = json.loads(run("deliveries", "sales", *words, "--json"))
    return [(row["in_force"], row["source"], row["why"].split(" by ")[0]) for row in rows]


def test_a_supplier_sends_corrects_and_takes_back_and_each_step_is_shown(house: House) -> None:
    file = deliver(house, "id\n1\n")
    assert shown() == [("no", "not landed yet", "")]
    land(house)
    first = file.read_text()
    deliver(house, "id\n2\n", hour=-5)
    assert shown() == [("yes", "other content, not landed yet", "")]
    land(house)
    assert shown() == [("yes", "as landed", ""), ("no", "", "superseded")]
    deliver(house, first)
    land(house)
    assert shown("--days", str(D1)) == [("yes", "as landed", "came again at " + _at(house)), ("no", "", "superseded")]
    file.unlink()
    assert shown()[0] == ("yes", "gone", "came again at " + _at(house))
    assert shown("--days", str(D2)) == []
    assert FILE in run("deliveries", "sales")


def test_a_file_outside_the_path_is_distinguished_from_one_that_is_gone(house: House) -> None:
    deliver(house, "id\n1\n")
    land(house)
    file = house.application.datasets["sales"].folder / "dataset.yaml"
    file.write_text(file.read_text().replace("x/{day}", "y/{day}"), encoding="utf-8")
    assert shown() == [("yes", "no longer fits source.path", "")]


def _at(house: House) -> str:
    (entry,) = house.world.ledger.delivery_journal("sales", [D1])
    return f"{entry.at:%Y-%m-%d %H:%M:%S} UTC"


def test_a_wrong_file_is_withdrawn_and_taken_back_and_its_published_days_are_found(
    house: House, dagster: Dagster
) -> None:
    deliver(house, "id\n1\n")
    land(house)
    house.released({D1: [1], D2: [2]})
    basis = house.application.basis
    before = basis.inputs("sales", (D1, D2))
    assert json.loads(run("status", "--json"))["stale"] == []
    said = run("withdraw", "sales", FILE, "--reason", "of another shop")
    assert "withdrawn: 1 file" in said
    assert f"published as before: {D1}; build them again with: backfill refresh sales" in said
    assert shown() == [("no", "as landed", "withdrawn")]
    now = basis.inputs("sales", (D1, D2))
    assert (now[D1] != before[D1], now[D2] == before[D2]) == (True, True)
    (stale,) = json.loads(run("status", "--json"))["stale"]
    assert (stale["dataset"], stale["causes"]) == ("sales", {"source": [str(D1)]})
    assert f"sales {D1}: bring up to date: backfill refresh sales; see: backfill deliveries sales" in run("status")
    assert [late.day for late in house.application.late_deliveries.of("sales")] == [D1]
    run("refresh", "sales")
    assert dagster.asked()[0][1] == [str(D1)]
    assert "nothing to do: already withdrawn" in run("withdraw", "sales", "--prefix", "x/", "--reason", "again")
    said = run("withdraw", "sales", "--prefix", "x/", "--undo", "--reason", "it was right")
    assert ("restored: 1 file" in said, "build them again" in said) == (True, False)
    assert basis.inputs("sales", (D1, D2)) == before
    assert house.application.late_deliveries.of("sales") == ()


def test_a_withdrawal_names_the_published_days_that_look_ahead_to_its_day(house: House) -> None:
    file = deliver(house, "id\n1\n")
    file.rename(file.with_name(f"{D2}.csv"))
    house.rewrite("sales", "publication: auto", "publication: auto\nlookahead_days: 1")
    now = house.world.clock.now()
    house.world.ledger.add_deliveries([Delivery("sales", D2, f"x/{D2}.csv", "f", 1, now, now, 1)], {})
    house.released({D1: [1], D2: [2], D2 + ONE_DAY: [3]})
    said = run("withdraw", "sales", f"x/{D2}.csv", "--reason", "of another shop")
    assert f"built from them: sales {D1}..{D2}" in said
    assert f"published as before: {D1}..{D2}; build them again" in said


@pytest.mark.parametrize("prefix", ["x/shop_1", "x/shop_1/"])
def test_a_prefix_means_a_folder_and_no_other_whose_name_only_begins_with_it(house: House, prefix: str) -> None:
    now = house.world.clock.now()
    paths = (f"x/shop_1/{D1}.csv", f"x/shop_10/{D1}.csv", f"x/shop_1/{D2}.csv", f"x/shop_1_{D1}.csv")
    landed = [Delivery("sales", D1, path, f"of {path}", 1, now, now, 1, 0) for path in paths]
    house.world.ledger.add_deliveries(landed, {})

    def withdrawn() -> set[str]:
        return {one.path for one in house.world.ledger.deliveries("sales", [D1]) if one.withdrawn}

    said = run("withdraw", "sales", "--prefix", prefix, "--reason", "of another shop")
    assert f"withdrawn: 2 files, first {paths[0]}, last {paths[2]}" in said
    assert withdrawn() == {paths[0], paths[2]}
    run("withdraw", "sales", "--prefix", "x", "--reason", "all of them")
    assert withdrawn() == set(paths)
    run("withdraw", "sales", "--prefix", prefix, "--undo", "--reason", "it was right")
    assert withdrawn() == {paths[1], paths[3]}
    services = house.application.delivery_commands
    with pytest.raises(SourceError, match=r"x/shop_1/.* and 1 more: no longer among the sources"):
        services.reland(NO_SPARK, "sales", Chosen(prefix=prefix), "the disk was bad")
    for chosen in (Chosen(prefix="x/shop_10"), Chosen(days=(D2,))):
        with pytest.raises(ArgumentError, match=re.escape(f"no delivery in force fits {chosen}; see:")):
            services.reland(NO_SPARK, "sales", chosen, "the disk was bad")


@pytest.mark.usefixtures("clock_of_the_house")
def test_days_that_were_rolled_back_are_not_refreshed_until_the_hold_is_lifted(house: House, dagster: Dagster) -> None:
    deliver(house, "id\n1\n")
    land(house)
    house.released({D1: [1]}, ("sales",))
    deliver(house, "id\n1\n2\n")
    land(house)
    wrong = house.released({D1: [7]}, ("sales",))
    (release,) = house.world.ledger.releases(unit=wrong.id)
    run("rollback", release.manifest.release, "--reason", "model is wrong")
    lift = f"backfill hold lift sales {D1}"
    held = rf"sales {D1} \(on hold: model is wrong\): {{}}\. Refresh would publish again .*{lift}\n"
    said = run("status")
    assert re.search(held.format("stale because of source"), said)
    assert "bring up to date" not in said
    assert re.search(held.format("left out"), run("refresh", "sales"))
    assert dagster.taken == []
    assert [hold.target for hold in house.world.ledger.holds("sales")] == [("sales", D1)]
    run(*shlex.split(lift)[1:])
    assert f"sales {D1}: bring up to date: backfill refresh sales" in run("status")
    run("refresh")
    assert [asked for _, asked in dagster.asked()] == [[str(D1)]]


def test_days_of_an_open_unit_are_not_refreshed_but_resumed(house: House, dagster: Dagster) -> None:
    deliver(house, "id\n1\n")
    land(house)
    house.released({D1: [1], D2: [2]})
    deliver(house, "id\n1\n2\n")
    land(house)
    unit = house.world.open_unit({"sales": [D1]})
    resume = f"See: backfill status {unit.id}\n"
    said = run("status")
    assert f"sales {D1} (in an open unit): stale because of source. {resume}" in said
    assert "backfill refresh" not in said
    assert f"sales {D1} (in an open unit): left out. {resume}" in run("refresh")
    assert dagster.taken == []
    run("discard", unit.id)
    assert "bring up to date: backfill refresh sales" in run("status")


def test_impossible_arguments_are_refused(house: House) -> None:
    deliver(house, "id\n1\n")
    land(house)
    for words, error, message in (
        (("withdraw", "sales", "--reason", "x"), ArgumentError, "name one file, or a folder"),
        (("withdraw", "sales", FILE, "--prefix", "x", "--reason", "x"), ArgumentError, "name one file"),
        (("withdraw", "sales", FILE), ArgumentError, "say why: --reason TEXT"),
        (
            ("purge", "sales", "--reason", "x"),
            ArgumentError,
            "say which: a file, a folder with --prefix, or --before DAY",
        ),
        (("purge", "sales", FILE, "--dry-run"), ArgumentError, r"has landed and does not count; 1 file of it in force"),
        (("purge", "sales", FILE, "--before", "yesterday", "--dry-run"), InvalidDayError, "--before"),
        (("withdraw", "sales", "y.csv", "--reason", "x"), ArgumentError, r"nothing that fits y\.csv has landed"),
        (
            ("withdraw", "sales", "--prefix", "x/2026", "--reason", "x"),
            ArgumentError,
            r"fits --prefix x/2026 \(a folder .* has landed",
        ),
        (("withdraw", "sales", "--prefix", "/", "--reason", "x"), ArgumentError, "nothing that fits --prefix / "),
        (("withdraw", "sales", FILE, "--undo", "--reason", "x"), ArgumentError, "nothing that fits .* was withdrawn"),
        (("withdraw", "totals", FILE, "--reason", "x"), DatasetError, "totals has no source of its own"),
        (("reland", "sales", "--reason", "x"), ArgumentError, "say which files: --days"),
    ):
        with pytest.raises(error, match=message):
            run(*words)
    assert shown() == [("yes", "as landed", "")]


def test_a_delivery_whose_rows_raw_has_lost_is_not_taken_back(house: House) -> None:
    deliver(house, "id\n1\n")
    land(house)
    run("withdraw", "sales", FILE, "--reason", "wrong")
    house.world.ledger.change_deliveries(house.world.ledger.deliveries("sales", [D1]), Deed.lost)
    with pytest.raises(
        SourceError, match=f"{FILE}: raw no longer has its rows, which were lost or purged; put the file back"
    ):
        run("withdraw", "sales", FILE, "--undo", "--reason", "right")


def test_the_worked_case_of_the_documents_does_what_it_says(
    house: House, dagster: Dagster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "deliveries.md").read_text(encoding="utf-8")
    lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    for line in lines:
        if line.startswith("backfill "):
            said.append(run(*shlex.split(line)[1:]))
        elif line.startswith("# launch"):
            land(house)
            house.released({D1: [1]})
        else:
            subprocess.run(["bash", "-c", line], check=True)
    corrected, again, withdrawn, status, _, back = said
    assert "superseded" in corrected
    assert "came again" in again
    assert "withdrawn: 1 file" in withdrawn
    assert f"sales {D1}: bring up to date: backfill refresh sales" in status
    assert [asked for _, asked in dagster.asked()] == [[str(D1)]]
    assert "restored: 1 file" in back
    assert json.loads(run("status", "--json"))["stale"] == []
