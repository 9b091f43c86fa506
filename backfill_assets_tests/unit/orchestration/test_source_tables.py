"""Commands and Dagster's assets of a dataset that reads a table: nothing lands, and all else is as for files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from backfill_assets.application import Application
from backfill_assets.cli.app import app
from backfill_assets.core.errors import DatasetError
from backfill_assets.evidence.known_deliveries import KnownDeliveries
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.actors import TableFingerprints
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import House

D1, D2, D3 = DAYS = (day(1), day(2), day(3))


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """A house with `events` besides, which reads the table `bronze/events` of three days."""
    made = House(tmp_path, monkeypatch)
    made.settle("events", source="{table: bronze/events, day: day, columns: {id: long}}")
    home = tmp_path / "sources" / "bronze" / "events"
    write_deltalake(home, pa.table({"day": pa.array(DAYS, pa.date32()), "id": [1, 2, 3]}), partition_by=["day"])
    yield made
    made.close()


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    if done.exception is not None:
        raise done.exception
    return done.output


def test_there_is_no_raw_asset_and_staging_depends_on_none(house: House) -> None:
    assert house.application is not None
    graph = definitions_of(Application.from_env()).resolve_asset_graph()
    own = {
        key.to_user_string(): graph.get(key).parent_keys
        for key in graph.get_all_asset_keys()
        if key.path[0] == "events"
    }
    assert sorted(own) == ["events/published", "events/shadow", "events/staging"]
    assert own["events/staging"] == set()


@pytest.mark.parametrize(
    "words",
    [
        ("deliveries", "events"),
        ("withdraw", "events", "--prefix", "bronze", "--reason", "wrong"),
        ("reland", "events", "--prefix", "bronze", "--reason", "again"),
    ],
)
def test_commands_about_deliveries_refuse_a_table_with_what_to_do_instead(house: House, words: tuple[str, ...]) -> None:
    assert house.application is not None
    with pytest.raises(
        DatasetError, match=r"events reads its days from the table bronze/events.* backfill refresh events"
    ):
        run(*words)


def test_status_names_days_that_moved_and_days_that_are_gone_and_the_doctor_finds_nothing(house: House) -> None:
    application = Application.from_env()
    home = path_of(application.layout.source("bronze/events"))
    reader = TableFingerprints({}, sources={"events": home})
    KnownDeliveries(application.warehouse, reader).of("events", DAYS)
    world = house.world
    world.datasets["events"], world.basis = application.dataset("events"), application.basis
    world.tables["events"] = application.tables["events"]
    world.homes.add("events")
    world.released({d: [1] for d in DAYS}, "events")
    DeltaTable(home).delete(f"day = '{D1}'")
    write_deltalake(home, pa.table({"day": pa.array([D2], pa.date32()), "id": [9]}), mode="append")
    KnownDeliveries(application.warehouse, reader).of("events", DAYS)
    found = json.loads(run("status", "--json"))
    assert [(one["dataset"], one["causes"]) for one in found["stale"]] == [("events", {"source": [str(D2)]})]
    assert found["gone"]["events"] == [str(D1)]
    said = " ".join(run("status").split())
    assert f"events {D1}: gone from the source table; they cannot be built again" in said
    assert f"events {D2}: bring up to date: backfill refresh events" in said
    assert "backfill deliveries events" not in said
    assert "events" not in run("doctor", "--json")
    # A day that is gone is not as it would be built, even if no cause is known.
    assert "nothing is stale" not in run("stale", "events", "--because", "reference")
    assert json.loads(run("stale", "events", "--because", "reference", "--json"))[0]["gone"] == [str(D1)]
    file = application.datasets["events"].folder / "fact.sql"
    file.write_text(f"{file.read_text()} WHERE id > 0", encoding="utf-8")
    (stale,) = json.loads(run("stale", "events", "--json"))
    assert stale["causes"] == {"source": [str(D2)], "code": [str(D1), str(D2), str(D3)]}
    assert stale["gone"] == [str(D1)]
    said = " ".join(run("stale", "events").split())
    assert f"events {D2}..{D3}: bring up to date: backfill refresh events --because source,code" in said
    assert f"events {D1}: gone from the source table; they cannot be built again" in said


def test_a_new_specification_begins_at_staging(house: House, tmp_path: Path) -> None:
    assert house.application is not None
    said = {
        "--dataset": "events", "--start": str(D1), "--end": str(D2), "--change": "x", "--id": "new-events", "--owner": "ada",
        "--approver": "ben", "--folder": str(tmp_path),
    }  # fmt: skip
    run("new", *(word for pair in said.items() for word in pair))
    assert "from: staging" in (tmp_path / "new-events.yaml").read_text()
