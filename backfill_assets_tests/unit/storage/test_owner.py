"""One ledger owns a warehouse, and only a place that keeps two writers apart becomes one."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backfill_assets.application import Application
from backfill_assets.core.errors import LayoutError, StorageError
from backfill_assets.settings import Settings
from backfill_assets.storage.bucket import bucket_of
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location
from backfill_assets.storage.owner import (
    OWNER_FILE,
    Restoring,
    begin_restore,
    end_restore,
    owner_mark,
    require_one_winner,
    require_owner,
    take_warehouse,
)
from backfill_assets_tests.harness import tables
from backfill_assets_tests.harness.bad_network import Fault, Rule, bad_network
from backfill_assets_tests.harness.ledgers import Known
from backfill_assets_tests.harness.objects import ObjectStore
from backfill_assets_tests.harness.specifications import DAYS
from backfill_assets_tests.harness.world import World

_HOMES = itertools.count()
OURS, THEIRS = "0a1b2c3d4e5f6071", "ffffffffffffffff"


@pytest.fixture
def warehouse(home: Location) -> Location:
    return home / "ware/house"


def layout(warehouse: Location) -> Layout:
    return Layout(warehouse, OnDisk(Path("sources")))


def names(warehouse: Location) -> list[str]:
    return sorted(place.name for place in warehouse.listed())


def test_a_ledger_takes_a_new_warehouse_and_leaves_nothing_else_there(warehouse: Location) -> None:
    require_owner(layout(warehouse), Known(OURS, "ledger mine.db"))
    assert not warehouse.is_folder()
    for _ in range(2):
        take_warehouse(layout(warehouse), Known(OURS, "ledger mine.db"))
        require_owner(layout(warehouse), Known(OURS, "ledger mine.db"))
    assert names(warehouse) == [OWNER_FILE]


def test_a_second_ledger_is_refused_with_the_first_one_and_the_remedies(warehouse: Location) -> None:
    take_warehouse(layout(warehouse), Known(OURS, "ledger mine.db"))
    for act in (take_warehouse, require_owner):
        with pytest.raises(LayoutError) as refused:
            act(layout(warehouse), Known(THEIRS, "ledger theirs.db"))
        assert all(
            words in str(refused.value)
            for words in ("ledger mine.db", "theirs.db", "BACKFILL_ASSETS_LEDGER_URL", f"{warehouse / OWNER_FILE}")
        )
    (warehouse / OWNER_FILE).remove()
    take_warehouse(layout(warehouse), Known(THEIRS, "ledger theirs.db"))


def test_of_ledgers_that_take_a_warehouse_at_once_one_gets_it(warehouse: Location) -> None:
    def take(number: int) -> bool:
        try:
            take_warehouse(layout(warehouse), Known(f"{number:016}", f"ledger {number}"))
        except LayoutError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(take, range(6))) == 1
    assert names(warehouse) == [OWNER_FILE]


def test_an_owner_that_cannot_be_read_owns_the_warehouse_all_the_same(warehouse: Location) -> None:
    warehouse.make_folder()
    (warehouse / OWNER_FILE).write("")
    with pytest.raises(LayoutError, match="belongs to another ledger"):
        take_warehouse(layout(warehouse), Known(OURS, "ledger mine.db"))


def test_a_store_in_which_two_create_one_object_is_refused_and_nothing_stays_there(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bad_network(store.environ["AWS_ENDPOINT_URL"]) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
        warehouse = bucket_of(f"{store.url}/owned{next(_HOMES)}")
        told, deceived = (
            r"16 writers created the same file.*docs/storage\.md",
            Rule(Fault.two_winners, "PUT", for_good=True),
        )
        with between.under(deceived), pytest.raises(StorageError, match=told):
            take_warehouse(layout(warehouse), Known(OURS, "ledger mine.db"))
        assert names(warehouse) == []
        require_one_winner(warehouse)


def test_an_answer_that_is_lost_does_not_speak_against_a_store(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks again, and is told that the file is there: in that race nobody was told that they had won."""
    with bad_network(store.environ["AWS_ENDPOINT_URL"]) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
        warehouse = bucket_of(f"{store.url}/owned{next(_HOMES)}")
        with between.under(Rule(Fault.lost_answer, "PUT")):
            require_one_winner(warehouse)
        assert names(warehouse) == []


def test_a_restore_that_somebody_has_ended_does_not_take_the_warehouse_back(warehouse: Location) -> None:
    """The text of `_owner` says how: whoever goes on with the ledger of before removes it."""
    begin_restore(layout(warehouse), Restoring(OURS, "ledger mine.db", "b_1"), "", is_agreed=False)
    (warehouse / OWNER_FILE).remove()
    take_warehouse(layout(warehouse), Known(THEIRS, "the ledger of before"))
    with pytest.raises(LayoutError, match="somebody has ended this restore"):
        end_restore(layout(warehouse), OURS, "ledger mine.db", "00ff")
    require_owner(layout(warehouse), Known(THEIRS, "the ledger of before"))


def test_a_ledger_whose_restore_was_given_up_gets_no_warehouse(warehouse: Location) -> None:
    manifest = warehouse / "published" / "sales" / "_releases" / "r_1.json"
    manifest.parent.make_folder()
    manifest.write("{}")
    half = Known(OURS, "ledger half.db", releases=True, warehouse="00ff", restoring="b_1")
    for act in (take_warehouse, require_owner, partial(require_owner, writes=True)):
        with pytest.raises(LayoutError, match=r"backup b_1 into ledger half\.db was cut off.*give that database up"):
            act(layout(warehouse), half)
    # Of a restore that ended, and could not note that any more, it is the warehouse.
    (warehouse / OWNER_FILE).write(owner_mark(OURS, "ledger half.db", "00ff"))
    require_owner(layout(warehouse), half, writes=True)
    take_warehouse(layout(warehouse), half)
    assert half.restoring == ""


def test_a_ledger_without_releases_does_not_get_a_warehouse_with_some(warehouse: Location) -> None:
    manifest = warehouse / "published" / "sales" / "_releases" / "r_1.json"
    manifest.parent.make_folder()
    manifest.write("{}")
    with pytest.raises(LayoutError, match=r"has releases, and ledger mine\.db knows none.*backfill reconcile"):
        take_warehouse(layout(warehouse), Known(OURS, "ledger mine.db"))
    assert OWNER_FILE not in names(warehouse)
    take_warehouse(layout(warehouse), Known(OURS, "ledger mine.db", releases=True))


def test_a_ledger_has_one_warehouse(warehouse: Location) -> None:
    """A wrong prefix, an address that one process lacks, a folder that is not mounted: half of the releases would be elsewhere."""
    ledger, elsewhere = Known(OURS, "ledger mine.db"), layout(warehouse.parent / "elsewhere")
    take_warehouse(elsewhere, Known(OURS, "another process that has noted nothing"))
    take_warehouse(layout(warehouse), ledger)
    assert ledger.warehouse
    for act in (take_warehouse, require_owner):
        with pytest.raises(LayoutError, match=r"elsewhere is another warehouse .* than that of ledger mine\.db"):
            act(elsewhere, ledger)
    (elsewhere.warehouse / OWNER_FILE).remove()
    require_owner(elsewhere, ledger)  # whoever reads finds nothing there
    for writes in (take_warehouse, partial(require_owner, writes=True)):
        with pytest.raises(
            LayoutError, match=r"elsewhere is nobody's.*mine\.db already has a warehouse.*AWS_ENDPOINT_URL"
        ):
            writes(elsewhere, ledger)
        with pytest.raises(LayoutError, match=r"elsewhere is nobody's and empty"):
            writes(elsewhere, Known(OURS, "of a version that noted no warehouse", releases=True))
    assert not elsewhere.warehouse.is_folder() or names(elsewhere.warehouse) == []
    # Nor is it refused where something was landed and nothing released: a file `_owner` that was damaged is removed by hand.
    landed = warehouse.parent / "landed"
    (landed / "raw" / "sales").make_folder()
    (landed / "raw" / "sales" / "x.parquet").write("")
    with pytest.raises(LayoutError, match="is nobody's and empty"):
        take_warehouse(layout(landed), ledger)
    (landed / "raw" / "sales" / "_delta_log").make_folder()
    (landed / "raw" / "sales" / "_delta_log" / "0.json").write("")
    with pytest.raises(LayoutError, match="is nobody's and empty"):
        take_warehouse(layout(landed), Known(OURS, "ledger mine.db", releases=True, warehouse=ledger.warehouse))
    take_warehouse(layout(landed), ledger)
    # Its own warehouse without the file is taken again, under the mark that it had.
    manifest = warehouse / "published" / "sales" / "_releases" / "r_1.json"
    manifest.parent.make_folder()
    manifest.write("{}")
    (warehouse / OWNER_FILE).remove()
    ledger.releases = True
    take_warehouse(layout(warehouse), ledger)
    require_owner(layout(warehouse), ledger, writes=True)


def test_a_warehouse_that_an_older_version_took_gets_its_mark(warehouse: Location) -> None:
    warehouse.make_folder()
    (warehouse / OWNER_FILE).write(owner_mark(OURS, "ledger mine.db"))
    ledger = Known(OURS, "ledger mine.db")
    require_owner(layout(warehouse), ledger)
    take_warehouse(layout(warehouse), ledger)
    assert (warehouse / OWNER_FILE).text() == owner_mark(OURS, "ledger mine.db", ledger.warehouse)
    # A copy from before that is another place now.
    (warehouse / OWNER_FILE).write(owner_mark(OURS, "ledger mine.db"))
    with pytest.raises(LayoutError, match="is another warehouse \\(without a mark\\)"):
        take_warehouse(layout(warehouse), ledger)


def test_a_process_that_comes_second_at_the_first_start_is_not_refused(warehouse: Location) -> None:
    """It found no owner; before it asks its ledger, another process of the installation takes the warehouse."""

    first = Known(OURS, "ledger mine.db")

    class Second(Known):
        def __getattribute__(self, name: str) -> Any:
            if name == "warehouse" and not first.warehouse:
                take_warehouse(layout(warehouse), first)
            return getattr(first, name) if name in {"warehouse", "note_warehouse"} else super().__getattribute__(name)

    take_warehouse(layout(warehouse), Second(OURS, "ledger mine.db"))
    assert first.warehouse in (warehouse / OWNER_FILE).text()


def test_a_release_at_another_place_is_refused_and_nothing_is_settled_there(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    world = World(tmp_path / "one")
    take_warehouse(tables.layout(world.folder), world.ledger)
    world.released({DAYS[0]: [1]})
    unit = world.open_unit({"sales": DAYS[1:2]})
    (tmp_path / "two").mkdir()
    moved = World(tmp_path / "two", ledger=f"sqlite:///{world.folder / 'ledger.db'}", clock=world.clock)
    for act in (lambda: moved.reconcile().run(), lambda: moved.publisher().release(unit.id)):
        with pytest.raises(LayoutError, match="is nobody's and empty"):
            act()
    assert world.content() == {DAYS[0]: [1]}
    world.close(), moved.close()


def test_a_bucket_that_is_not_there_is_named(store: ObjectStore) -> None:
    assert store.url
    with pytest.raises(StorageError, match=r"s3://nobodys/x.*no such bucket"):
        take_warehouse(layout(bucket_of("s3://nobodys/x")), Known(OURS, "ledger mine.db"))


def test_two_installations_on_one_warehouse_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    shared = {
        "BACKFILL_ASSETS_WAREHOUSE": str(tmp_path / "warehouse"),
        "BACKFILL_ASSETS_DATASETS": str(tmp_path / "datasets"),
    }
    one, two = (
        Application(Settings.from_env({"BACKFILL_ASSETS_STATE": str(tmp_path / name), **shared})) for name in ("1", "2")
    )
    assert (one.warehouse.ledger, two.warehouse.ledger) == (one.ledger, two.ledger)  # nobody has written yet
    take_warehouse(one.layout, one.ledger)
    with (
        pytest.raises(
            LayoutError, match=rf"belongs to another ledger .*{tmp_path}/1/ledger\.db.*{tmp_path}/2/ledger\.db"
        ),
        two.session("late"),
    ):
        pytest.fail("it was opened")
    again = Application(Settings.from_env({"BACKFILL_ASSETS_STATE": str(tmp_path / "2"), **shared}))
    with pytest.raises(LayoutError, match="belongs to another ledger"):
        assert again.warehouse
    assert names(one.layout.warehouse) == [OWNER_FILE]
    one.ledger.close(), two.ledger.close(), again.ledger.close()
