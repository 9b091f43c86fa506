"""`backfill purge` beside other commands: what counts again is kept and named, and what was purged can be decided about."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql import SparkSession

from backfill_assets.core.delivery import Deed, Delivery
from backfill_assets.core.errors import SourceError
from backfill_assets.dataset.deliveries import require_known_decision
from backfill_assets.pipeline.deliveries import purged_among
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import House
from backfill_assets_tests.unit.orchestration.test_delivery_commands import run

D1, D2 = day(1), day(2)
OLDER, NEWER = f"x/{D1}-a.csv", f"x/{D1}-b.csv"
NO_SPARK = cast("SparkSession", None)
"""Everything that would need it is replaced."""


def land(house: House, *paths: str) -> dict[str, Delivery]:
    """What a landing of such files does to the ledger, and all that it knows then."""
    ledger, now = house.world.ledger, house.world.clock.now()
    for path in paths:
        ledger.add_deliveries([Delivery("sales", D1, path, path[::-1], 1, now, now, 1)])
    return {one.path: one for one in ledger.deliveries("sales", [D1])}


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
