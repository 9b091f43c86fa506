"""The ledger's order of deliveries: the database returns their events as the domain defines them, and records each."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from backfill_assets.core.delivery import Deed, Delivery, DeliveryEntry, Place
from backfill_assets.dataset.deliveries import heads, in_force
from backfill_assets.ledger.open import Ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.judged import BY_KEY, PLAIN, dataset
from backfill_assets_tests.harness.supplier import D7, D8, D9, Act, Supplier, acts, merged, print_of
from backfill_assets_tests.unit.ledger.samples import SECOND, a_delivery, march

(DAY,) = march(7)
_EXAMPLES = itertools.count()


class Stored:
    """A book in a real ledger, under a name of its own."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger, self._name = ledger, name

    def add(self, found: Sequence[Delivery], seen: Mapping[Place, int]) -> None:
        self._ledger.add_deliveries([replace(one, dataset=self._name) for one in found], seen)

    def change(self, changed: Collection[Delivery], deed: Deed) -> None:
        self._ledger.change_deliveries(changed, deed, "ada", "a test")

    def known(self) -> tuple[Delivery, ...]:
        return self._ledger.deliveries(self._name, [D7, D8, D9])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts)
def test_the_ledger_follows_the_sources_whatever_happens(ledger: Ledger, story: list[Act]) -> None:
    described = dataset(source=PLAIN["source"] | {"late_days": 2}, staging=BY_KEY)
    supplier = Supplier(described, Stored(ledger, f"trips_{next(_EXAMPLES)}"))
    for act in story:
        supplier.act(act)
    force = in_force(described, supplier.book.known())
    said = [(place, print_of(content)) for place, content in supplier.model.counts()]
    assert [((one.day, one.path), one.fingerprint) for one in force] == said
    assert merged(force) == supplier.model.rows()


def test_runs_that_land_at_once_make_one_record_each_and_different_numbers(ledger: Ledger) -> None:
    found = [a_delivery(DAY, f"{i}.csv", f"{i}" * 64) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: ledger.add_deliveries([found[i % 8], found[(i + 1) % 8]], {}), range(16)))
    known = ledger.deliveries("flights", [DAY])
    assert sorted(one.path for one in known) == sorted(one.path for one in found)
    assert len({one.order for one in known} - {0}) == len(known)


def test_each_event_of_a_delivery_is_recorded_once(ledger: Ledger, clock: FixedClock) -> None:
    first, wrong = a_delivery(DAY, fingerprint="a" * 64), a_delivery(DAY, fingerprint="b" * 64)
    ledger.add_deliveries([first])
    ledger.add_deliveries([wrong])
    assert ledger.delivery_journal("flights", [DAY]) == ()
    (head,) = heads(ledger.deliveries("flights", [DAY])).values()
    out = ledger.change_deliveries([head], Deed.withdrawn, "ada", "wrong file")
    assert out == (replace(head, withdrawn=True),)
    assert ledger.change_deliveries([head], Deed.withdrawn, "ben", "wrong file") == ()
    clock.advance(SECOND)
    ledger.add_deliveries([first])
    numbers = {one.fingerprint: one.order for one in ledger.deliveries("flights", [DAY])}
    assert ledger.delivery_journal("flights", [DAY, *march(8)]) == (
        DeliveryEntry(
            "flights", DAY, wrong.path, "b" * 64, Deed.withdrawn, head.order, clock.now() - SECOND, "ada", "wrong file"
        ),
        DeliveryEntry("flights", DAY, first.path, "a" * 64, Deed.again, numbers["a" * 64], clock.now()),
    )
    assert numbers["a" * 64] > numbers["b" * 64] == head.order
    restored = ledger.change_deliveries([head], Deed.restored, "ada", "it was right")
    assert restored == (head,)
    read = ledger.change_deliveries([replace(head, rows=9, corrupt_rows=2)], Deed.read, "ada", "again")
    assert read == (replace(head, rows=9, corrupt_rows=2, landings=2),)
    assert ledger.change_deliveries([head], Deed.lost) == (replace(head, rows=0, corrupt_rows=0, landings=0),)
    assert ledger.delivery_journal("flights", []) == ()
    assert ledger.change_deliveries([], Deed.lost) == ()


def test_what_counts_by_now_is_not_purged_and_what_was_purged_is_not_restored(ledger: Ledger) -> None:
    """Each was decided on what somebody had read before another command was faster."""
    latest = dataset(source=PLAIN["source"], staging={"deduplicate": "latest_file"})
    ledger.add_deliveries([a_delivery(DAY, path, path * 64) for path in "ab"])
    loser, newest = ledger.deliveries("flights", [DAY])
    ledger.change_deliveries([newest], Deed.withdrawn, "ben", "wrong file")

    def purged(*which: Delivery) -> tuple[Delivery, ...]:
        return ledger.change_deliveries(which, Deed.purged, "ada", "a test", partial(in_force, latest))

    assert purged(loser) == ()
    assert purged(newest) == ()
    out = replace(newest, withdrawn=True)
    assert purged(loser, out) == (replace(out, rows=0, corrupt_rows=0, landings=0),)
    assert ledger.change_deliveries([out], Deed.restored, "ben", "it was right") == ()
    assert [one.deed for one in ledger.delivery_journal("flights", [DAY])] == [Deed.withdrawn, Deed.purged]
    assert in_force(latest, ledger.deliveries("flights", [DAY])) == (loser,)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["UPDATE delivery_journal SET reason = 'x'", "DELETE FROM delivery_journal"])
def test_no_record_of_a_delivery_can_be_changed(ledger: Ledger, url: str, change: str) -> None:
    ledger.add_deliveries([a_delivery(DAY)])
    ledger.change_deliveries([a_delivery(DAY)], Deed.withdrawn, "ada", "wrong file")
    engine = create_engine(url)
    with pytest.raises(DBAPIError, match="delivery_journal is append-only"), engine.begin() as connection:
        connection.execute(text(change))
    engine.dispose()
    assert [entry.reason for entry in ledger.delivery_journal("flights", [DAY])] == ["wrong file"]
