"""`backfill purge` beside other commands: what counts again is kept and named, and what was purged can be decided about."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from backfill_assets.application import Application
from backfill_assets.cli.app import app
from backfill_assets.core.delivery import Deed, Delivery
from backfill_assets.core.errors import SourceError, StorageError
from backfill_assets.core.unit import StagedDay
from backfill_assets.dataset.deliveries import require_known_decision
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.delta.reading import digests_by_day
from backfill_assets.evidence.known_deliveries import purged_among
from backfill_assets.pipeline import purge as purging
from backfill_assets.storage.layout import Layout
from backfill_assets_tests.harness.objects import folder_of, place_at
from backfill_assets_tests.harness.tables import day, rows_of, write_raw
from backfill_assets_tests.unit.orchestration.house import House
from backfill_assets_tests.unit.orchestration.test_delivery_commands import run

D1, D2, D3 = day(1), day(2), day(3)
OLDER, NEWER = f"x/{D1}-a.csv", f"x/{D1}-b.csv"
NO_SPARK = cast("SparkSession", None)
"""Everything that would need it is replaced."""


def land(house: House, *paths: str) -> dict[str, Delivery]:
    """What a landing of such files does to the ledger, and all that it knows then."""
    ledger, now = house.world.ledger, house.world.clock.now()
    for path in paths:
        ledger.add_deliveries([Delivery("sales", D1, path, path[::-1], 1, now, now, 1)])
    return {one.path: one for one in ledger.deliveries("sales", [D1])}


@pytest.fixture
def purging_house(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """Files go once they have landed; commands run without Spark."""
    house.rewrite("sales", "format: csv", "format: csv, removed_after_landing: true")
    (house.world.folder / "sources" / "x").mkdir()

    def delete_from_raw(_: object, loaded: LoadedDataset, layout: Layout, gone: Sequence[Delivery]) -> None:
        prints = ", ".join(f"'{one.fingerprint}'" for one in gone)
        DeltaTable(folder_of(layout.raw_path(loaded.name))).delete(f"_fingerprint IN ({prints})")

    monkeypatch.setattr(purging, "delete_from_raw", delete_from_raw)
    monkeypatch.setattr(purging, "require_layout", lambda *_: None)
    monkeypatch.setattr(purging, "read_table", lambda *_: SimpleNamespace(where=str))
    monkeypatch.setattr(purging, "writing", lambda *_: nullcontext())
    monkeypatch.setattr(Application, "session", lambda *_: nullcontext(NO_SPARK))
    return house


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], plans: int) -> None:
    """Somebody else does this after so many looks at what is to be purged."""
    plan, seen = purging.Purge.plan, list[int]()

    def looked(*given: Any) -> purging.Purged:
        found = plan(*given)
        seen.append(1)
        if len(seen) == plans:
            act()
        return found

    monkeypatch.setattr(purging.Purge, "plan", looked)


def latest_file(house: House) -> None:
    house.rewrite("sales", "publication: auto", "publication: auto\nstaging: {deduplicate: latest_file}")


def test_what_would_count_and_was_purged_is_left_out_by_withdrawing_it(house: House) -> None:
    """Its bytes are gone, so that it cannot be delivered again."""
    latest_file(house)
    ledger, dataset = house.world.ledger, house.application.dataset("sales")
    loser = land(house, OLDER, NEWER)[OLDER]
    ledger.change_deliveries([loser], Deed.purged, "ada", "erased on request")
    run("withdraw", "sales", NEWER, "--reason", "of another shop")

    def decided() -> None:
        require_known_decision(dataset, ledger.deliveries("sales", [D1]), ledger.delivery_journal("sales", [D1]))

    with pytest.raises(SourceError, match=rf"{OLDER} .* would count, and was purged.*withdraw sales {OLDER} --reason"):
        decided()
    assert "withdrawn: 1 file" in run("withdraw", "sales", OLDER, "--reason", "erased on request")
    decided()
    assert "nothing to do: already withdrawn" in run("withdraw", "sales", OLDER, "--reason", "once more")
    # Its last data files still go with the sweep.
    assert [one.path for one in purged_among(ledger, "sales", ledger.deliveries("sales", [D1]))] == [OLDER]


@pytest.mark.parametrize("plans", [1, 2])
def test_what_somebody_takes_back_meanwhile_is_not_purged_and_named(
    purging_house: House, monkeypatch: pytest.MonkeyPatch, plans: int
) -> None:
    house, raw = purging_house, folder_of(purging_house.application.layout.raw_path("sales"))
    landed = land(house, OLDER, NEWER, f"x/{D1}.csv")
    write_raw(raw, {one.content: 1 for one in landed.values()})
    for path in (OLDER, NEWER):
        run("withdraw", "sales", path, "--reason", "of another shop")
    meanwhile(monkeypatch, partial(run, "withdraw", "sales", OLDER, "--undo", "--reason", "it was right"), plans)
    done = CliRunner().invoke(app, ["purge", "sales", "--prefix", "x", "--reason", "erased on request"])
    assert f"purged: 1 file, first {NEWER}; 1 row of raw" in done.output
    assert f"not purged: {OLDER} counts again; see: backfill deliveries sales" in done.output
    assert done.exit_code == 1
    left = DeltaTable(raw).to_pyarrow_table().column("_source_file").to_pylist()
    assert sorted(left) == [OLDER, f"x/{D1}.csv"]


def test_a_landing_beside_a_purge_is_no_reason_to_refuse_and_lost_rows_are(
    purging_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions of one Spark server share its lease on raw."""
    house, raw = purging_house, folder_of(purging_house.application.layout.raw_path("sales"))
    landed = land(house, OLDER, NEWER, f"x/{D1}.csv")
    write_raw(raw, {one.content: 1 for one in landed.values()})
    delete, late = purging.delete_from_raw, (D1, f"x/{D1}-late.csv", "late")

    def beside(act: Callable[[], object]) -> None:
        def deleting(*given: Any) -> None:
            delete(*given)
            act()

        monkeypatch.setattr(purging, "delete_from_raw", deleting)

    beside(lambda: write_raw(raw, {late: 3}))
    run("withdraw", "sales", OLDER, "--reason", "wrong")
    assert "purged: 1 file" in run("purge", "sales", OLDER, "--reason", "erased on request")
    beside(lambda: DeltaTable(raw).delete(f"_source_file = 'x/{D1}.csv'"))
    run("withdraw", "sales", NEWER, "--reason", "wrong")
    with pytest.raises(
        StorageError, match=rf"1 rows of x/{D1}\.csv .* became 0: another writer .* repeat the command$"
    ):
        run("purge", "sales", NEWER, "--reason", "erased on request")


def test_days_that_were_built_from_it_under_another_dataset_yaml_are_found(
    purging_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery brought rows of the day before it, and no longer does; that day is published and staged from it."""
    house, now = purging_house, purging_house.world.clock.now()
    adding_up = "publication: auto\nstaging: {deduplicate: none}"
    house.rewrite("sales", "publication: auto", adding_up)
    house.rewrite("sales", "format: csv", "format: csv, late_days: 1")
    late, staging = f"x/{D2}.csv", folder_of(house.application.layout.staging_path("sales"))
    house.world.ledger.add_deliveries([Delivery("sales", D2, late, "a", 1, now, now, 1)])
    house.released({D1: [1]}, ("sales",))
    house.rewrite("sales", "late_days: 1", "late_days: 0")
    run("withdraw", "sales", late, "--reason", "of another shop")
    with pytest.raises(SourceError, match=f"sales {D1}: published as built from what is to be purged"):
        run("purge", "sales", late, "--dry-run")
    house.released({D1: [2]}, ("sales",))
    assert "would be purged: 1 file" in run("purge", "sales", late, "--dry-run")

    # An older staging model called the day otherwise; what was staged from what counts now stays, whatever the code was.
    write_deltalake(
        staging / "older", rows_of({D1: [1], D2: [1]}).rename_columns({"day": "date"}), partition_by=["date"]
    )
    write_deltalake(staging / "newer", rows_of({D1: [1], D2: [1], D3: [1]}), partition_by=["day"])
    inputs = house.application.basis.staged_inputs("sales", (D2,))[D2]
    files = digests_by_day(place_at(staging / "newer"), "day", (D2,))[D2]
    house.world.ledger.add_staged([
        StagedDay("sales", D1, "other", "c0de", 0, "newer", "f"), StagedDay("sales", D2, inputs, "c0de", 0, "newer", files),
        StagedDay("sales", D3, "other", "c0de", 0, "older", "f"),
    ])  # fmt: skip
    emptied: dict[str, list[dt.date]] = {}
    monkeypatch.setattr(purging, "write_days", lambda _, path, __, days: emptied.update({path.name: days}))
    run("purge", "sales", late, "--reason", "erased on request")
    assert emptied == {"newer": [D1, D3], "older": [D1, D2]}


def test_a_raw_table_that_cannot_be_written_is_refused_before_the_ledger_says_that_rows_are_gone(
    purging_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, raw = purging_house, folder_of(purging_house.application.layout.raw_path("sales"))
    landed = land(house, OLDER, NEWER)
    write_raw(raw, {one.content: 1 for one in landed.values()})
    run("withdraw", "sales", OLDER, "--reason", "wrong")

    def refused(*_: object) -> None:
        raise SourceError("raw does not keep lines")

    monkeypatch.setattr(purging, "require_layout", refused)
    before = house.world.ledger.deliveries("sales", [D1])
    with pytest.raises(SourceError, match="does not keep lines"):
        run("purge", "sales", OLDER, "--reason", "erased on request")
    assert house.world.ledger.deliveries("sales", [D1]) == before
