"""What a derived dataset depends on: the content of its upstream, wherever that is."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from backfill_assets.core.errors import EvidenceError, LedgerError, RollbackError, SourceError, UnitError
from backfill_assets.core.unit import Unit, UnitState
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.evidence.basis import PUBLISHED, UpstreamDays
from backfill_assets.evidence.readiness import Blocker
from backfill_assets.evidence.relaunches import UpstreamPlaces, absent_before
from backfill_assets.evidence.stale import Staleness
from backfill_assets.pipeline.frames import require_declared_columns
from backfill_assets.pipeline.measure import rows_on
from backfill_assets_tests.harness.actors import TwoChecks
from backfill_assets_tests.harness.tables import dataset, day, derived, layout, loaded, rows_of
from backfill_assets_tests.harness.world import World
from backfill_assets_tests.observed import Observed

pytestmark = pytest.mark.slow

D1, D2, D3 = day(1), day(2), day(3)


class Shop:
    """`sales`, and `totals` built from it."""

    def __init__(self, folder: Path, lookback: int = 0) -> None:
        self.world = World(folder, ("sales", "totals"))
        datasets = self.world.datasets
        datasets["totals"] = derived("totals", "sales", lookback=lookback)
        self.loaded = {name: loaded(dataset, folder) for name, dataset in datasets.items()}
        self._wire()

    def _wire(self) -> None:
        warehouse = replace(self.world.warehouse(), catalog=Catalog(self.loaded))
        self.world.basis = self.basis = TwoChecks(warehouse, self.world.fingerprints)
        self.places = UpstreamPlaces(warehouse)
        self.staleness = Staleness(warehouse, self.basis)

    def unit(self, *days: dt.date, names: tuple[str, ...] = ("sales", "totals")) -> Unit:
        return self.world.open_unit(dict.fromkeys(names, days))

    def released(self, amounts: dict[dt.date, list[int]], names: tuple[str, ...] = ("sales", "totals")) -> Unit:
        unit = self.unit(*amounts, names=names)
        for name in names:
            self.world.build(unit, name, amounts)
        self.world.publisher().release(unit.id)
        return unit


class Chain(Shop):
    """`sales` built from `zones`, and `areas` built from `sales`."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, ("zones", "sales<zones", "areas<sales"))
        self.loaded = {name: loaded(dataset, folder) for name, dataset in self.world.datasets.items()}
        self._wire()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(tmp_path)
    yield found
    found.world.close()


def test_a_unit_reads_its_own_shadow_and_all_other_days_as_published(shop: Shop) -> None:
    shop.released({D1: [1]}, names=("sales",))
    unit = shop.unit(D2)
    shop.world.build(unit, "sales", {D2: [2]})
    (upstream,) = shop.places.of(unit, "totals", (D1, D2))
    assert upstream.places == {PUBLISHED: (D1,), f"_shadow/{unit.id}/2": (D2,)}


def test_a_downstream_cannot_be_built_from_an_upstream_that_has_not_passed(shop: Shop) -> None:
    unit = shop.unit(D1, D2)
    shop.world.build(unit, "sales", {D1: [1]})
    shop.world.build(unit, "sales", {D2: [2]}, passed=False)
    with pytest.raises(EvidenceError, match=r"sales 2026-01-03 belongs to the same unit .* backfill resume"):
        shop.places.of(unit, "totals", (D1, D2))


def test_an_upstream_rebuilt_in_the_unit_makes_its_downstream_stale_there(shop: Shop) -> None:
    unit = shop.unit(D1)
    shop.world.build(unit, "sales", {D1: [1]})
    shop.world.build(unit, "totals", {D1: [1]})
    assert shop.world.publisher().blockers(unit.id) == ()
    shop.world.build(unit, "sales", {D1: [1, 1]})
    (blocker,) = shop.world.publisher().blockers(unit.id)
    assert (blocker.dataset, blocker.day, blocker.reason.value) == (
        "totals", D1, "is stale: its upstream changed since it was checked",
    )  # fmt: skip
    shop.world.build(unit, "sales", {D1: [1]})
    assert shop.world.publisher().blockers(unit.id) == ()


def test_datasets_released_together_are_not_stale_and_an_upstream_released_alone_makes_them_so(shop: Shop) -> None:
    shop.released({D1: [1], D2: [2]})
    assert shop.staleness.of("totals").days == ()
    shop.released({D2: [20]}, names=("sales",))
    assert shop.staleness.of("totals").days == (D2,)
    assert [o.dataset for o in shop.staleness.all()] == ["totals"]
    shop.released({D2: [20]}, names=("totals",))
    assert shop.staleness.all() == ()


def test_the_same_content_in_other_files_makes_nothing_stale(shop: Shop) -> None:
    shop.released({D1: [1]})
    shop.released({D1: [1]}, names=("sales",))
    assert shop.staleness.all() == ()


def test_a_rollback_of_the_upstream_makes_its_downstream_stale(shop: Shop) -> None:
    shop.released({D1: [1]})
    second = shop.released({D1: [2]})
    (sales,) = shop.world.ledger.releases("sales", second.id)
    shop.world.rollback().execute(sales.manifest.release, "wrong")
    assert shop.staleness.of("totals").days == (D1,)
    (totals,) = shop.world.ledger.releases("totals", second.id)
    shop.world.rollback().execute(totals.manifest.release, "wrong")
    assert shop.staleness.all() == ()


def test_a_downstream_that_looks_back_is_stale_after_its_own_day_as_well(tmp_path: Path) -> None:
    shop = Shop(tmp_path, lookback=1)
    shop.released({D1: [1], D2: [2], D3: [3]})
    shop.released({D1: [10]}, names=("sales",))
    assert shop.staleness.of("totals").days == (D1, D2)
    shop.world.close()


@pytest.mark.faults
def test_no_upstream_can_be_released_between_the_verification_and_the_commit(observed: Observed, shop: Shop) -> None:
    observed.injected("an upstream is published between the verification of its downstream and the commit")
    shop.released({D1: [1]})
    unit = shop.unit(D1, names=("totals",))
    shop.world.build(unit, "totals", {D1: [1]})
    rival = shop.unit(D1, names=("sales",))
    shop.world.build(rival, "sales", {D1: [100]})
    refused = []

    def meanwhile(step: str) -> None:
        if step == "intend":
            shop.world.wait = dt.timedelta(0)
            with pytest.raises(LedgerError, match="'publish:sales': held by") as error:
                shop.world.publisher().release(rival.id)
            refused.append(error)

    shop.world.publisher(meanwhile).release(unit.id)
    assert len(refused) == 1
    assert shop.staleness.all() == ()
    shop.world.publisher().release(rival.id)
    assert shop.staleness.of("totals").days == (D1,)
    assert (shop.world.content("sales"), shop.world.content("totals")) == ({D1: [100]}, {D1: [1]})
    assert shop.world.doctor().examine() == ()
    observed.found(refused[0].value, f"stale after it was published: {D1}")


def test_a_unit_with_one_table_rolled_back_is_not_called_published(shop: Shop) -> None:
    shop.released({D1: [1]})
    second = shop.released({D1: [2], D2: [2]})
    (sales,) = shop.world.ledger.releases("sales", second.id)
    back = shop.world.rollback().execute(sales.manifest.release, "wrong", days=frozenset({D1}))
    with pytest.raises(UnitError, match=rf"sales {D1} was rolled back since\..*launch these days again"):
        shop.world.publisher().release(second.id)
    with pytest.raises(RollbackError, match=f"to publish these days again, launch sales {D1}"):
        shop.world.rollback().execute(back.release, "not wrong after all")
    assert shop.world.content("sales") == {D1: [1], D2: [2]}


def test_a_day_that_was_released_without_a_row_is_stale_when_its_upstream_gets_some(shop: Shop) -> None:
    shop.released({D1: [1], D2: []})
    assert shop.staleness.all() == ()
    shop.released({D2: [5]}, names=("sales",))
    assert shop.staleness.of("totals").days == (D2,)
    assert shop.staleness.of("totals", days=(D1, D2)).days == (D2,)
    shop.released({D2: [5]}, names=("totals",))
    assert shop.staleness.all() == ()


def test_a_day_that_was_built_without_a_row_and_never_released_is_not_stale(shop: Shop) -> None:
    shop.released({D1: [1]})
    unit = shop.unit(D2)
    shop.world.build(unit, "totals", {D2: []})
    shop.world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    shop.released({D2: [5]}, names=("sales",))
    assert shop.staleness.all() == ()


def test_a_day_that_looks_back_reads_passed_days_of_its_unit_and_waits_for_the_others(tmp_path: Path) -> None:
    shop = Shop(tmp_path, lookback=1)
    shop.released({D1: [1]})
    unit = shop.unit(D2, D3)
    shop.world.build(unit, "sales", {D2: [2]})
    (upstream,) = shop.places.of(unit, "totals", (D2,))
    assert upstream.places == {PUBLISHED: (D1,), f"_shadow/{unit.id}/3": (D2,)}
    with pytest.raises(EvidenceError, match=rf"sales {D3} belongs to the same unit .* backfill resume {unit.id}"):
        shop.places.of(unit, "totals", (D3,))
    shop.world.close()


def test_days_looked_back_at_are_absent_unless_the_unit_holds_them_or_readers_see_them(tmp_path: Path) -> None:
    shop = Shop(tmp_path, lookback=2)
    totals, ledger, tables = shop.loaded["totals"].dataset, shop.world.ledger, shop.world.tables

    def absent(unit: Unit, *days: dt.date) -> dict[dt.date, tuple[dt.date, ...]]:
        found = absent_before(ledger, tables, totals, days, shop.places.of(unit, "totals", days))
        return {day: own["sales"] for day, own in found.items() if own}

    # There is nothing before the history, which begins on the day before D1.
    first = shop.unit(D1, names=("totals",))
    assert absent(first, day(0), D1, D2) == {D1: (day(0),), D2: (day(0), D1)}
    shop.released({day(0): [1]}, names=("sales",))
    # One of the unit's days has no row.
    unit = shop.unit(D2, D3)
    shop.world.build(unit, "sales", {D2: [], D3: [3]})
    assert absent(unit, D2, D3) == {D2: (D1,), D3: (D1,)}
    # So does a released one, until it is rolled back.
    empty = shop.released({D1: []}, names=("sales",))
    assert absent(unit, D2, D3) == {}
    (release,) = ledger.releases("sales", empty.id)
    shop.world.rollback().execute(release.manifest.release, "wrong")
    assert absent(unit, D2, D3) == {D2: (D1,), D3: (D1,)}
    shop.world.close()


def test_the_days_that_a_day_looks_back_at_do_not_stand_in_for_its_own() -> None:
    assert rows_on(D2, {"sales": {D1: 5}, "stock": {D1: 5, D2: 3}}) == {"sales": 0, "stock": 3}


def test_upstream_days_that_were_built_without_a_declared_column_are_refused(shop: Shop, tmp_path: Path) -> None:
    shop.released({D1: [1], D2: [2]}, names=("sales",))
    unit = shop.unit(D2)
    shop.world.build(unit, "sales", {D2: [2]})
    (before,) = shop.places.of(unit, "totals", (D1, D2))
    require_declared_columns(layout(tmp_path), [before])
    tipped = loaded(dataset("sales", {"id": "long", "day": "date", "amount": "long", "tip": "long"}), tmp_path)
    # One day as it is published, and one in a shadow of the unit.
    with pytest.raises(
        SourceError, match=f"sales was built without columns .*: tip of {D1}..{D2}; launch sales for these"
    ):
        require_declared_columns(layout(tmp_path), [replace(before, loaded=tipped)])
    # After one release with the column, the table has it; on that day it may be null in each row.
    with_tip = rows_of({D3: [3]}).append_column("tip", pa.nulls(1, pa.int64()))
    write_deltalake(shop.world.homes["sales"], with_tip, mode="append", schema_mode="merge")
    require_declared_columns(layout(tmp_path), [UpstreamDays(tipped, {PUBLISHED: (D3,)})])
    with pytest.raises(SourceError, match=f": tip of {D1};"):
        require_declared_columns(layout(tmp_path), [UpstreamDays(tipped, {PUBLISHED: (D1, D3)})])
    for file in shop.world.homes["sales"].rglob("*.parquet"):
        file.write_bytes(b"PAR1")
    with pytest.raises(SourceError, match=r"parquet: cannot be read: .*; see: backfill doctor"):
        require_declared_columns(layout(tmp_path), [before])


def test_the_hint_what_to_materialize_names_every_dataset_of_the_unit_with_its_own_layers(shop: Shop) -> None:
    unit = shop.unit(D1, D2)
    shop.world.build(unit, "sales", {D1: [1], D2: [2]})
    shop.world.build(unit, "totals", {D2: [2]})
    with pytest.raises(EvidenceError) as refusal:
        shop.world.publisher().release(unit.id)
    assert [line for line in str(refusal.value).splitlines() if line.startswith("  ")] == [
        f"  raw, staging and shadow of sales with their checks for {D1}",
        f"  shadow of totals with their checks for {D1}",
    ]


def assert_only_the_rewriting_is_found(shop: Shop, version: int) -> None:
    """The doctor names only what was written outside of releases."""
    (finding,) = shop.world.doctor().examine()
    assert re.fullmatch(rf"sales: version {version} \(WRITE, .*\) is no release", finding.what)


def _rewritten(shop: Shop, name: str, data: dict[dt.date, list[int]]) -> None:
    """Another writer rewrites an entire published table."""
    write_deltalake(shop.world.homes[name], rows_of(data), mode="overwrite")


@pytest.mark.faults
def test_a_compacted_upstream_makes_nothing_stale(observed: Observed, shop: Shop) -> None:
    observed.injected("somebody writes an upstream anew with the same rows")
    shop.released({D1: [1, 2], D2: [3]})
    unit = shop.unit(D1, D2, names=("totals",))
    shop.world.build(unit, "totals", {D1: [10], D2: [3]})
    _rewritten(shop, "sales", {D1: [2, 1], D2: [3]})
    assert shop.staleness.all() == ()
    assert shop.world.fingerprints.asked == []
    assert shop.world.publisher().blockers(unit.id) == ()
    assert shop.world.fingerprints.asked == [("sales", (D1, D2))]
    shop.world.publisher().release(unit.id)
    assert shop.staleness.all() == ()
    assert shop.world.fingerprints.asked == [("sales", (D1, D2))]
    assert (shop.world.content("sales"), shop.world.content("totals")) == ({D1: [1, 2], D2: [3]}, {D1: [10], D2: [3]})
    assert_only_the_rewriting_is_found(shop, 2)
    observed.found("no day is stale, and the content was asked for once")


@pytest.mark.faults
def test_foreign_rows_in_an_upstream_make_its_downstream_stale(observed: Observed, shop: Shop) -> None:
    observed.injected("somebody writes other rows into an upstream")
    shop.released({D1: [1], D2: [2]})
    unit = shop.unit(D1, D2, names=("totals",))
    shop.world.build(unit, "totals", {D1: [1], D2: [2]})
    _rewritten(shop, "sales", {D1: [1, 1], D2: [9]})
    # Another number of rows is noticed immediately, other rows as soon as they have to be read.
    assert shop.staleness.of("totals").days == (D1,)
    blockers = shop.world.publisher().blockers(unit.id)
    assert [(f.day, f.reason) for f in blockers] == [(D1, Blocker.upstream_moved), (D2, Blocker.upstream_moved)]
    assert shop.staleness.of("totals").days == (D1, D2)
    # Rebuilt from the present content, they are released; the write outside of releases stays a finding.
    shop.world.build(unit, "totals", {D1: [1, 1], D2: [9]})
    shop.world.publisher().release(unit.id)
    assert shop.staleness.all() == ()
    assert shop.world.content("totals") == shop.world.content("sales") == {D1: [1, 1], D2: [9]}
    assert_only_the_rewriting_is_found(shop, 2)
    observed.found(*(f"{blocker.day} {blocker.reason}" for blocker in blockers))


def test_a_compacted_day_in_the_middle_is_still_known_to_be_stale(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    chain.released({D1: [1]}, ("zones", "sales", "areas"))
    home = chain.world.homes["sales"]
    write_deltalake(home, rows_of({D1: [1]}), mode="overwrite")
    chain.basis.upstream("areas", (D1,))
    assert chain.staleness.all() == ()
    chain.released({D1: [7]}, ("zones",))
    assert [o.dataset for o in chain.staleness.all()] == ["sales"]
    write_deltalake(home, rows_of({D1: [5]}), mode="overwrite")
    chain.basis.upstream("areas", (D1,))
    assert [o.dataset for o in chain.staleness.all()] == ["areas"]
    chain.world.close()
