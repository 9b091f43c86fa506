"""Days of a database through a launch of Dagster: extracted, landed, checked and released; and a launch that could not extract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from backfill_assets.spark.server import SparkServer
from backfill_assets_tests.dagster.shop import D1, D2, Shop, refuses
from backfill_assets_tests.harness import postgres
from backfill_assets_tests.unit.extracts.kit import run, shop_database, url_of

SOURCE = {
    "format": "parquet",
    "path": "extracts/{day}.parquet",
    "columns": {"id": "integer"},
    "extract": {
        "database": "env:ORDERS_URL",
        "query": "SELECT id::int AS id FROM orders WHERE at >= :day AND at < :day + 1 ORDER BY id",
    },
}


@pytest.fixture
def database() -> Iterator[Engine]:
    with postgres.cluster() as url, shop_database(url) as engine:
        yield engine


def test_two_days_of_a_database_are_released_by_one_launch(
    database: Engine, tmp_path: Path, spark_server: SparkServer
) -> None:
    shop = Shop(tmp_path, spark_server.folder.root.parent)
    shop.describe("web_orders", SOURCE)
    run(database, f"INSERT INTO orders VALUES (1, '{D1} 00:00Z', 5), (2, '{D1} 23:59:59Z', 5), (3, '{D2} 00:00Z', 5)")
    refuses(
        shop.launch("web_orders", D1, D2),
        f"web_orders {D1}: source.extract: database: the environment variable ORDERS_URL",
    )
    with shop.observed(ORDERS_URL=url_of(database)):
        launched = shop.launch("web_orders", D1, D2)
    assert launched.returncode == 0, launched.stderr[-3000:]
    assert shop.sees("web_orders") == [[D1, "1"], [D1, "2"], [D2, "3"]]
    assert "secret" not in launched.stdout + launched.stderr
