"""Sales with their returns of the next day, by the commands of docs/windows.md: published when the next file has come."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from backfill_assets_tests.dagster.shop import D1, D2, D3, Shop, refuses

if TYPE_CHECKING:
    from pathlib import Path

    from backfill_assets.spark.server import SparkServer

_RETURNED = """\
SELECT s.day, s.id, CAST(count(r.returned) AS INT) AS n FROM staging AS s
LEFT JOIN staging AS r ON r.returned = s.id AND r.day BETWEEN s.day AND date_add(s.day, 1)
WHERE s.id > 0 GROUP BY s.day, s.id
"""
"""How often each sale came back, on its day or on the next one; a return has the id 0."""


SAID: dict[str, object] = {
    "columns": {"n": {"type": "integer"}},
    "staging": {"deduplicate": "none"},
    "measures": {"n": {}},
    "checks": {"reconciliation": {"metrics": []}},
    "lookahead_days": 1,
}


@pytest.fixture
def shop(tmp_path: Path, spark_server: SparkServer) -> Shop:
    shop = Shop(tmp_path, spark_server.folder.root.parent)
    staging = "SELECT _lineage.delivery_day AS day, id, returned, _lineage FROM raw"
    shop.describe("returned", {"columns": {"id": "integer", "returned": "integer"}}, (staging, _RETURNED), **SAID)
    for number, day in enumerate((D1, D2), 1):
        shop.deliver("returned", day, "id,returned", f"{number},")
    return shop


def succeeds(shop: Shop, first: str, last: str) -> None:
    done = shop.launch("returned", first, last)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]


def stale(shop: Shop) -> list[str]:
    return [day for one in json.loads(shop.run("backfill", "stale", "--json").stdout) for day in one["days"]]


def test_a_day_waits_for_the_next_file_and_is_stale_when_that_is_corrected(shop: Shop) -> None:
    refuses(shop.launch("returned", D1, D2), f"none for {D3}, which the day looks ahead to")
    assert shop.sees("returned") == []
    shop.deliver("returned", D3, "id,returned", "3,", "0,2")
    succeeds(shop, D1, D2)
    assert shop.sees("returned", "day, id, n") == [[D1, "1", "0"], [D2, "2", "1"]]
    assert stale(shop) == []
    shop.deliver("returned", D3, "id,returned", "3,")
    assert stale(shop) == [D2]
    refuses(shop.launch("returned", D2), "change_n")
