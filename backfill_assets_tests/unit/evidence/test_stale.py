"""Which published days would come out differently today, and why."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from backfill_assets.application import Application
from backfill_assets.cli.app import app
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.delivery import Deed, Delivery
from backfill_assets.core.errors import ArgumentError
from backfill_assets.core.unit import UnitState
from backfill_assets.dataset.deliveries import heads
from backfill_assets.dataset.reading import reading_of
from backfill_assets.evidence.basis import Behind
from backfill_assets.evidence.stale import StaleCause
from backfill_assets.orchestration import backfills
from backfill_assets.proof.stale_sample import StaleSample, StaleSamples
from backfill_assets.storage.disk import path_of
from backfill_assets.storage.sources import discover
from backfill_assets_tests.harness.tables import day, layout, rows_of
from backfill_assets_tests.unit.orchestration.house import House

pytestmark = pytest.mark.slow

D1, D2, D3 = day(1), day(2), day(3)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    found = House(tmp_path, monkeypatch)
    yield found
    found.close()


def edit(house: House, file: str, old: str, new: str) -> None:
    """Change a file of `sales`; what is opened from now on has it."""
    path = house.world.folder / "datasets" / "sales" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def rebuild(house: House, data: dict[dt.date, list[int]]) -> None:
    """Build and release days of `sales` by the code that is there now."""
    house.application = Application.from_env()
    house.world.basis = house.application.basis
    house.released(data, ("sales",))


def stale(name: str = "sales", *, look: bool = True) -> dict[str, tuple[dt.date, ...]]:
    """The stale days of a dataset by cause, as a new process sees them."""
    application = Application.from_env()
    found = application.staleness.of(name, look=look)
    application.ledger.close()
    return {cause.value: days for cause, days in found.by_cause.items()}


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    if done.exception is not None:
        raise done.exception
    return " ".join(done.output.split())


@pytest.mark.parametrize(
    ("file", "old", "new", "cause"),
    [
        ("fact.sql", "SELECT id, day, amount", "SELECT id, day, 2 * amount AS amount", "code"),
        ("staging.sql", "FROM raw", "FROM raw WHERE amount > 0", "code"),
        ("dataset.yaml", "amount: {type: long}}", "amount: {type: long, nullable: false}}", "columns"),
        ("dataset.yaml", "measures: {amount: {}}", "measures: {amount: {percentiles: true}}", "checks"),
        ("dataset.yaml", "columns: {id: long}}", "columns: {id: string}}", "reading"),
        ("dataset.yaml", "key: [id]", "key: [id, day]", "contract"),
    ],
)
def test_a_change_of_the_code_makes_days_stale_until_they_are_built_by_it(
    house: House, file: str, old: str, new: str, cause: str
) -> None:
    house.released({D1: [1], D2: [2]}, ("sales",))
    assert stale() == {}
    edit(house, file, old, new)
    assert stale() == {cause: (D1, D2)}
    rebuild(house, {D2: [2]})
    assert stale() == {cause: (D1,)}
    # An older checkout is the present code again.
    edit(house, file, new, old)
    assert stale() == {cause: (D2,)}


def test_an_edited_comment_or_description_makes_nothing_stale(house: House) -> None:
    house.released({D1: [1]}, ("sales",))
    before = Application.from_env().catalog.code["sales"]
    edit(house, "fact.sql", "SELECT", "-- All sales.\nSELECT")
    edit(house, "dataset.yaml", "name: sales", "name: sales\ndescription: All sales.\nowner: ada")
    assert Application.from_env().catalog.code["sales"] != before
    assert stale() == {}


def source_file(house: House, name: str, text: str) -> Path:
    file = path_of(layout(house.world.folder).sources) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def land(house: House, *days: dt.date) -> None:
    """What the raw step does to the ledger."""
    source, now = house.application.datasets["sales"], house.world.clock.now()
    files = discover(source, house.application.layout, days)
    reading = reading_of(source.dataset.landing)
    landed = [
        Delivery("sales", f.day, f.path, f.fingerprint, f.size, f.delivered_at, now, 1, 0, reading=reading)
        for f in files
    ]
    seen = {place: one.order for place, one in heads(house.world.ledger.deliveries("sales", days)).items()}
    house.world.ledger.add_deliveries(landed, seen)


def in_the_ledger(house: House, change: str) -> None:
    """Make the ledger one of an older version."""
    with contextlib.closing(sqlite3.connect(house.world.folder / "ledger.db")) as connection, connection:
        connection.execute(change)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[BackfillRequest]:
    """What `backfill refresh` has Dagster launch."""
    taken: list[BackfillRequest] = []

    def launch(asked: BackfillRequest, _: str | None) -> str:
        taken.append(asked)
        return f"b_{len(taken)}"

    monkeypatch.setattr(backfills, "launch_backfill", launch)
    return taken


def test_a_file_that_has_not_landed_makes_its_published_day_stale_however_old_it_is(
    house: House, launched: list[BackfillRequest]
) -> None:
    # The second day was released without a row.
    house.released({D1: [1], D2: []}, ("sales",))
    for date in (D1, D2, D3):
        source_file(house, f"x/{date}.csv", "id\n1\n")
    assert stale() == {"source": (D1, D2)}
    assert stale(look=False) == {}
    said = run("stale", "sales")
    assert f"not landed yet: x/{D1}.csv, x/{D2}.csv" in said
    command = "backfill refresh sales"
    assert f"sales {D1}..{D2}: bring up to date: {command}; see: backfill deliveries sales" in said
    run(*command.split()[1:])
    assert [asked.days for asked in launched] == [(D1, D2)]


def test_a_delivery_that_landed_later_makes_its_day_stale_also_if_that_had_no_row(house: House) -> None:
    source_file(house, f"x/{D1}.csv", "id\n1\n")
    land(house, D1)
    house.released({D1: [1], D3: []}, ("sales",))
    assert stale() == {}
    for date in (D1, D3):
        source_file(house, f"x/{date}.csv", "id\n2\n")
    land(house, D1, D3)
    assert stale(look=False) == {"source": (D1, D3)}
    # What an older ledger does not know of a day is no difference.
    in_the_ledger(house, 'UPDATE contents SET "references" = NULL')
    assert stale(look=False) == {"source": (D1, D3)}


NONE = "measures: {amount: {}}"


def reference(path: str, columns: str) -> str:
    return f"{NONE}\nreferences: {{cities: {{format: csv, path: {path}, csv: {{header: false}}, columns: {columns}}}}}"


def test_a_reference_makes_days_stale_by_its_content_and_by_how_it_is_read(house: House) -> None:
    cities = source_file(house, "cities.csv", "Paris,1\n")
    source_file(house, "towns.csv", "Paris,1\n")
    first = reference("cities.csv", "{city: string, zone: string}")
    edit(house, "dataset.yaml", NONE, first)
    rebuild(house, {D1: [1], D2: [2]})
    assert stale() == {}
    cities.write_text("Roma,1\n", encoding="utf-8")
    assert stale() == {"reference": (D1, D2)}
    edit(house, "dataset.yaml", first, reference("towns.csv", "{city: string, zone: string}"))
    assert stale() == {}
    # A file without a header is read by the places of the columns.
    edit(house, "dataset.yaml", "{city: string, zone: string}", "{zone: string, city: string}")
    assert stale() == {"contract": (D1, D2)}


def test_a_row_of_a_reference_makes_only_the_days_stale_on_which_it_is_valid(house: House) -> None:
    cities = source_file(house, "cities.csv", f"Paris,1,2000-01-01,{D2}\nParis,2,{D2},\n")
    columns = "{city: string, zone: long, since: date, until: date}, valid: [since, until]"
    check = "checks: {references: {city: {reference: cities, columns: [id], to: [zone]}}}"
    edit(house, "dataset.yaml", NONE, f"{reference('cities.csv', columns)}\n{check}")
    rebuild(house, {D1: [1], D2: [2]})
    assert stale() == {}
    cities.write_text(f"Paris,1,2000-01-01,{D2}\nParis,3,{D2},\n", encoding="utf-8")
    assert stale() == {"reference": (D2,)}
    cities.write_text(f"Paris,7,2000-01-01,{D2}\nParis,2,{D2},2100-01-01\n", encoding="utf-8")
    assert stale() == {"reference": (D1,)}
    cities.write_text(f"Paris,1,2000-01-01,{D2}\nParis,2,{D2},2100-01-01\n", encoding="utf-8")
    assert stale() == {}
    edit(house, "dataset.yaml", "valid: [since, until]", "valid: [until, since]")
    assert stale()["contract"] == (D1, D2)


def test_what_cannot_be_compared_is_said_and_hides_nothing_else(house: House) -> None:
    cities = source_file(house, "cities.csv", "Paris,1\n")
    source_file(house, f"x/{D1}.csv", "id\n1\n")
    land(house, D1)
    edit(house, "dataset.yaml", NONE, reference("cities.csv", "{city: string}"))
    rebuild(house, {D1: [1], D2: [2]})
    edit(house, "fact.sql", "SELECT id, day, amount", "SELECT id, day, -amount AS amount")
    source_file(house, f"x/{D1}.csv", "id\n2\n")
    land(house, D1)
    cities.unlink()
    application = Application.from_env()
    found = application.staleness.of("sales")
    application.ledger.close()
    assert found.by_cause == {StaleCause.source: (D1,), StaleCause.code: (D1, D2)}
    assert any("the file of reference cities, cities.csv, is not in" in problem for problem in found.problems)
    said = run("stale", "sales")
    assert "sales could not be compared: sales: the file of reference cities" in said
    assert "nothing is stale" not in said
    said = run("withdraw", "sales", f"x/{D1}.csv", "--reason", "wrong")
    assert f"published as before: {D1}; build them again" in said
    assert "sales could not be compared: sales: the file of reference cities" in said


def test_a_change_of_the_contract_or_the_reading_hides_no_other_data(house: House) -> None:
    for date in (D1, D2):
        source_file(house, f"x/{date}.csv", "id\n1\n")
    land(house, D1, D2)
    house.released({D1: [1], D2: [2]})
    edit(house, "dataset.yaml", "columns: {id: long}}", "columns: {id: long, fare: double}}")
    assert stale() == {"reading": (D1, D2)}
    # What is read again has another name, and is the same file.
    again = house.world.ledger.deliveries("sales", [D1, D2])
    reading = reading_of(Application.from_env().datasets["sales"].dataset.landing)
    house.world.ledger.change_deliveries([replace(one, reading=reading) for one in again], Deed.read)
    assert stale(look=False) == {"reading": (D1, D2)}
    source_file(house, f"x/{D2}.csv", "id\n2\n")
    land(house, D2)
    assert stale() == {"reading": (D1, D2), "source": (D2,)}
    edit(house, "dataset.yaml", "key: [id]", "key: [id, day]")
    assert stale() == {"reading": (D1, D2), "contract": (D1, D2), "source": (D2,)}
    home = house.world.folder / "datasets" / "totals" / "dataset.yaml"
    home.write_text(home.read_text(encoding="utf-8").replace("key: [id]", "key: [id, day]"), encoding="utf-8")
    house.released({D1: [5]}, ("sales",))
    assert stale("totals") == {"contract": (D1, D2), "upstream": (D1,)}


def test_days_outside_the_declared_history_cannot_be_built_and_are_left_out(house: House) -> None:
    house.released({D1: [1], D2: [2]}, ("sales",))
    edit(house, "fact.sql", "SELECT id, day, amount", "SELECT id, day, 2 * amount AS amount")
    for name in ("sales", "totals"):
        file = house.world.folder / "datasets" / name / "dataset.yaml"
        file.write_text(file.read_text(encoding="utf-8").replace("start: 2026-01-01", f"start: {D2}"), encoding="utf-8")
    assert stale() == {"code": (D2,)}


def test_a_compaction_by_somebody_else_hides_no_cause(house: House) -> None:
    house.released({D1: [1], D2: [2]}, ("sales",))
    write_deltalake(house.world.homes["sales"], rows_of({D1: [1], D2: [2]}), mode="overwrite")
    edit(house, "fact.sql", "SELECT id, day, amount", "SELECT id, day, 2 * amount AS amount")
    assert stale() == {"code": (D1, D2)}


def test_a_table_that_cannot_be_read_is_said_and_hides_no_other(house: House) -> None:
    house.released({D1: [1]})
    for name in ("sales", "totals"):
        file = house.world.folder / "datasets" / name / "fact.sql"
        file.write_text(file.read_text(encoding="utf-8").replace("amount", "-amount AS amount"), encoding="utf-8")
    (commit, *_) = sorted((house.world.homes["sales"] / "_delta_log").glob("*.json"))
    commit.write_bytes(b"torn")
    application = Application.from_env()
    sales, totals = (application.staleness.of(name) for name in ("sales", "totals"))
    application.ledger.close()
    assert (sales.days, bool(sales.problems)) == ((), True)
    assert totals.problems or totals.by_cause[StaleCause.code] == (D1,)


def test_an_upstream_and_days_without_rows_are_seen_and_what_was_never_released_is_not(house: House) -> None:
    house.released({D1: [1], D2: []})
    unit = house.world.open_unit({"totals": [D3]})
    house.world.build(unit, "totals", {D3: []})
    house.world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    house.released({D1: [5], D2: [7], D3: [9]}, ("sales",))
    assert stale("totals") == {"upstream": (D1, D2)}


@pytest.mark.parametrize("change", ["UPDATE contents SET parts = NULL", "DELETE FROM codes"], ids=["contents", "codes"])
def test_days_of_which_nothing_is_known_are_named_and_not_called_current(house: House, change: str) -> None:
    house.released({D1: [1], D2: []}, ("sales",))
    edit(house, "fact.sql", "SELECT id", "SELECT 1 * id AS id")
    in_the_ledger(house, change)
    said = run("stale", "sales")
    assert f"sales {D1}..{D2}: it is not known which code built these days; to compare their rows" in said
    assert "backfill diff-history --models HEAD --dataset sales --partitions DAYS" in said
    assert "nothing is stale" not in said


def test_refresh_builds_what_data_made_stale_and_the_rest_only_if_it_is_named(
    house: House, launched: list[BackfillRequest]
) -> None:
    assert "nothing is stale: every published day is as it would be built today" in run("stale")
    house.released({D1: [1], D2: [2]}, ("sales",))
    edit(house, "fact.sql", "SELECT id, day, amount", "SELECT id, day, 2 * amount AS amount")
    assert "nothing is stale because of reference, source and upstream; see also: backfill stale" in run("refresh")
    assert "backfill refresh sales --because code" in run("stale")
    assert "backfill refresh sales --because code" in run("status")
    assert [row["causes"] for row in json.loads(run("stale", "--because", "code,upstream", "--json"))] == [
        {"code": [str(D1), str(D2)]}, {},
    ]  # fmt: skip
    run("refresh", "sales", "--because", "code")
    assert [(asked.days, asked.description) for asked in launched] == [((D1, D2), "stale because of code")]
    choices = ", ".join(StaleCause)
    with pytest.raises(ArgumentError, match=f"--because 'models': there is no such cause; choose some of: {choices}"):
        run("stale", "--because", "code,models")


def test_many_days_are_for_a_campaign(house: House) -> None:
    edit(house, "dataset.yaml", "key: [id]", "key: [id]\nchunk_days: 1")
    edit_of_totals = house.world.folder / "datasets" / "totals" / "dataset.yaml"
    edit_of_totals.write_text(edit_of_totals.read_text().replace("key: [id]", "key: [id]\nchunk_days: 1"))
    rebuild(house, {D1: [1], D2: [2]})
    edit(house, "fact.sql", "SELECT id, day, amount", "SELECT id, day, 2 * amount AS amount")
    draft = f"backfill new --dataset sales --start {D1} --end {D2}"
    assert f"these are 2 days; a campaign builds them step by step, with canaries and an approval: {draft}" in run(
        "stale"
    )


def keep(*words: str, because: str = "code", reason: str = "a join is written in another way") -> str:
    return run("keep", "sales", f"{D1}..{D2}", "--because", because, "--reason", reason, *words)


TWICE = ("SELECT id, day, amount", "SELECT id, day, 2 * amount AS amount")


def test_days_that_somebody_keeps_are_stale_no_more_until_the_code_changes_again(house: House) -> None:
    house.released({D1: [1], D2: [2], D3: [3]}, ("sales",))
    edit(house, "fact.sql", *TWICE)
    assert f"sales {D1}..{D2}: kept as they are" in keep()
    assert stale() == {"code": (D3,)}
    said = f"sales {D1}..{D2}: kept as they are (code), by {Application.from_env().identity.name()}, "
    for command in (("stale", "sales"), ("history", "sales")):
        found = run(*command)
        assert said in found
        assert "UTC: a join is written in another way" in found
    kept = json.loads(run("history", "sales", "--json"))["kept"]
    assert [(one["day"], one["causes"]) for one in kept] == [(str(D2), ["code"]), (str(D1), ["code"])]
    (shown,) = json.loads(run("stale", "sales", "--json"))
    assert [(one["day"], one["causes"]) for one in shown["kept"]] == [(str(D1), ["code"]), (str(D2), ["code"])]
    # A comment changes nothing; another model is judged anew; with the model of before, the word counts again.
    edit(house, "fact.sql", "SELECT", "-- Twice.\nSELECT")
    assert stale() == {"code": (D3,)}
    edit(house, "fact.sql", "2 * amount", "3 * amount")
    assert stale() == {"code": (D1, D2, D3)}
    edit(house, "fact.sql", "3 * amount", "2 * amount")
    assert stale() == {"code": (D3,)}
    assert f"2 days kept no more: {D1}..{D2}" in keep("--undo", reason="the amounts do differ")
    assert stale() == {"code": (D1, D2, D3)}
    assert "nothing to undo" in keep("--undo")
    assert f"sales {D1}: kept no more, by " in run("history", "sales", "--day", str(D1))
    keep()
    assert stale() == {"code": (D3,)}


def test_a_word_is_about_the_rows_that_a_day_has(house: House) -> None:
    house.released({D1: [1], D2: []}, ("sales",))
    edit(house, "fact.sql", *TWICE)
    keep()
    assert stale() == {}
    assert "kept as they are (code)" in run("stale")
    assert "nothing is stale" not in run("stale")
    # Other rows by the model of before: nobody has said anything about them.
    edit(house, "fact.sql", *reversed(TWICE))
    rebuild(house, {D1: [7], D2: []})
    edit(house, "fact.sql", *TWICE)
    assert stale() == {"code": (D1,)}
    house.released({D1: [1]}, ("sales",))
    assert stale() == {}
    # A compaction by somebody else changes no rows.
    write_deltalake(house.world.homes["sales"], rows_of({D1: [1]}), mode="overwrite")
    assert stale() == {}


def test_a_word_hides_no_data_and_no_other_change(house: House, launched: list[BackfillRequest]) -> None:
    for date in (D1, D2):
        source_file(house, f"x/{date}.csv", "id\n1\n")
    land(house, D1, D2)
    house.released({D1: [1], D2: [2]}, ("sales",))
    edit(house, "dataset.yaml", "columns: {id: long}}", "columns: {id: long, fare: double}}")
    edit(house, "dataset.yaml", "key: [id]", "key: [id, day]")
    edit(house, "fact.sql", *TWICE)
    assert stale() == {"reading": (D1, D2), "code": (D1, D2), "contract": (D1, D2)}
    keep(because="code,reading,contract")
    assert stale() == {}
    assert "nothing is stale because of code" in run("refresh", "sales", "--because", "code")
    source_file(house, f"x/{D2}.csv", "id\n2\n")
    land(house, D2)
    assert stale() == {"source": (D2,)}
    edit(house, "dataset.yaml", "measures: {amount: {}}", "measures: {amount: {percentiles: true}}")
    assert stale() == {"source": (D2,), "checks": (D1, D2)}
    assert launched == []


def test_a_golden_source_that_changed_is_data_although_it_is_a_check(house: House) -> None:
    golden = source_file(house, "golden.csv", f"{D1},1\n")
    file = "{format: csv, path: golden.csv, csv: {header: false}, columns: {day: date, amount: long}}"
    edit(
        house,
        "dataset.yaml",
        NONE,
        f"{NONE}\ngolden: {{booked: {{file: {file}, key: [day], columns: {{amount: {{}}}}}}}}",
    )
    rebuild(house, {D1: [1], D2: [2]})
    golden.write_text(f"{D1},2\n", encoding="utf-8")
    assert stale() == {"checks": (D1, D2)}
    with pytest.raises(
        ArgumentError, match=r"no day can be kept; .*stale because a golden source changed, which is data"
    ):
        keep(because="checks")
    golden.write_text(f"{D1},1\n", encoding="utf-8")
    new = f"golden: {{paid: {{file: {file}, key: [day], columns: {{amount: {{}}}}}}, booked:"
    edit(house, "dataset.yaml", "golden: {booked:", new)
    with pytest.raises(ArgumentError, match=r"no day can be kept; .*it was never compared with golden source paid"):
        keep(because="checks")


@pytest.mark.parametrize(
    ("because", "reason", "refusal"),
    [
        ("code", " ", "--reason is empty; say why the days stay as they are"),
        ("", "x", "--because: no cause is named; name what does not matter, some of checks, code, columns"),
        ("code,source", "x", r"--because: source cannot be kept; .* built again \(backfill refresh sales\)"),
        (
            "code",
            "x",
            f"sales {D1}..{D2}: no day can be kept; .*not stale; see: backfill stale sales",
        ),
        ("models", "x", "--because 'models': there is no such cause"),
    ],
)
def test_a_word_needs_a_reason_and_days_that_the_code_made_stale(
    house: House, because: str, reason: str, refusal: str
) -> None:
    house.released({D1: [1], D2: [2]}, ("sales",))
    with pytest.raises(ArgumentError, match=refusal):
        keep(because=because, reason=reason)
    assert house.world.ledger.kept_days("sales") == ()


def test_days_of_unknown_code_cannot_be_kept(house: House) -> None:
    house.released({D1: [1], D2: [2]}, ("sales",))
    edit(house, "fact.sql", *TWICE)
    in_the_ledger(house, "UPDATE contents SET parts = NULL")
    with pytest.raises(ArgumentError, match=r"no day can be kept; .*it is not known which code built it"):
        keep()


def test_a_word_is_about_what_a_day_was_built_from(house: House) -> None:
    """Other deliveries may give the same rows by one model, and others by the next."""
    house.released({D1: [1], D2: []}, ("sales",))
    edit(house, "fact.sql", *TWICE)
    keep()
    assert stale() == {}
    edit(house, "fact.sql", *reversed(TWICE))
    source_file(house, f"x/{D2}.csv", "id\n1\n")
    land(house, D2)
    rebuild(house, {D2: []})
    edit(house, "fact.sql", *TWICE)
    assert stale() == {"code": (D2,)}


def test_a_word_about_the_contract_hides_no_corrected_version(house: House) -> None:
    cities = source_file(house, "cities.csv", f"Paris,1,2000-01-01,{D2}\nParis,2,{D2},\n")
    columns = "{city: string, zone: long, since: date, until: date}, valid: [since, until]"
    check = "checks: {references: {city: {reference: cities, columns: [id], to: [zone]}}}"
    edit(house, "dataset.yaml", NONE, f"{reference('cities.csv', columns)}\n{check}")
    rebuild(house, {D1: [1], D2: [2]})
    edit(house, "dataset.yaml", "key: [id]", "key: [id, day]")
    keep(because="contract")
    assert stale() == {}
    cities.write_text(f"Paris,7,2000-01-01,{D2}\nParis,2,{D2},\n", encoding="utf-8")
    assert stale() == {"reference": (D1,)}


def test_only_days_are_kept_of_which_all_causes_are_named(house: House) -> None:
    house.released({D1: [1], D2: [2]}, ("sales",))
    unit = house.world.open_unit({"sales": [D3]})
    house.world.build(unit, "sales", {D3: []})
    house.world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    source_file(house, f"x/{D2}.csv", "id\n1\n")
    edit(house, "fact.sql", *TWICE)
    said = run("keep", "sales", f"{D1}..{D3}", "--because", "code", "--reason", "x")
    assert f"sales {D1}: kept as they are not kept: " in said
    assert f"{D2}: stale because of source as well" in said
    assert f"{D3}: not stale" in said
    assert stale() == {"source": (D2,), "code": (D2,)}
    edit(house, "dataset.yaml", "measures: {amount: {}}", "measures: {amount: {percentiles: true}}")
    with pytest.raises(ArgumentError, match=r"no day can be kept; .*stale because of checks as well"):
        keep()


def test_nothing_is_kept_while_something_cannot_be_compared(house: House) -> None:
    house.released({D1: [1], D2: [2]}, ("sales",))
    edit(house, "fact.sql", *TWICE)
    source_file(house, f"x/{D1}.csv", "id\n1\n").rename(house.world.folder / "kept.csv")
    inbox = path_of(layout(house.world.folder).sources) / "x"
    (inbox / f"{D1}.csv").symlink_to(house.world.folder / "nothing.csv")
    with pytest.raises(ArgumentError, match=r"no day can be kept; .*\.csv"):
        keep()
    (inbox / f"{D1}.csv").unlink()
    keep()
    assert stale() == {}


def test_another_order_of_the_same_deliveries_is_no_other_reading(house: House) -> None:
    """What was read again has other names; in another order, other rows may win."""
    once, again, other = frozenset({"a1"}), frozenset({"a1", "a2"}), frozenset({"b1"})
    assert not Behind("", (), {}, lambda: (again, other)).has_other_files(("a1", "b1"))
    assert Behind("", (), {}, lambda: (other, again)).has_other_files(("a1", "b1"))
    assert Behind("", (), {}, lambda: (once,)).has_other_files(("a1", "b1"))
    for number, name in enumerate(("a", "b")):
        file = source_file(house, f"x/{D1}-{name}.csv", f"id\n{number}\n")
        os.utime(file, (number, number))
    edit(house, "dataset.yaml", 'path: "x/{day}.csv"', 'path: "x/{day}*.csv"')
    edit(house, "dataset.yaml", NONE, f"{NONE}\nstaging: {{deduplicate: latest_delivery}}")
    house.application = Application.from_env()
    land(house, D1)
    rebuild(house, {D1: [1]})
    edit(house, "dataset.yaml", "columns: {id: long}}", "columns: {id: long, fare: double}}")
    assert stale() == {"reading": (D1,)}
    # A correction, and the content of before once more: now the first file wins.
    for text in ("id\n7\n", "id\n0\n"):
        source_file(house, f"x/{D1}-a.csv", text)
        house.application = Application.from_env()
        land(house, D1)
    assert stale() == {"source": (D1,), "reading": (D1,)}


def test_a_sample_says_what_stale_days_become(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.released({D1: [1], D2: [2]}, ("sales",))
    edit(house, "fact.sql", *TWICE)
    taken = [StaleSample("sales", 2, (D1, D2)), StaleSample("sales", 9, (D1, D2), {D2: ("rows", "amount")})]
    taken += [StaleSample("sales", 2, problem="no table")]
    answers, asked = iter(taken), list[tuple[object, ...]]()
    monkeypatch.setattr(StaleSamples, "of", lambda _, *given: asked.append(given) or next(answers))
    assert "sales: 2 of 2 days built again by the code of now: all have the same rows" in run(
        "stale", "sales", "--sample", "2"
    )
    (found, count, among) = asked[0]
    assert (found.days, count, among) == ((D1, D2), 2, frozenset(StaleCause))  # type: ignore[attr-defined]
    assert (
        f"sales: 2 of 9 days built again by the code of now: 1 have the same rows; different: {D2} (rows, amount)"
        in run("stale", "sales", "--sample", "2", "--because", "code")
    )
    assert "sales: no day could be built again: no table" in run("stale", "sales", "--sample", "2")
    assert "sampled" in json.loads(run("stale", "sales", "--json"))[0]
