"""A new table beside a live one, with the commands of docs/new-tables.md: it begins later, and is a draft at first."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from backfill_assets_tests.dagster.shop import D1, D2, D3, D4, Shop, refuses

if TYPE_CHECKING:
    from pathlib import Path

    from backfill_assets.spark.server import SparkServer

CATCH_UP = {"catch_up": {"days_per_run": 90}}
_OF_TWO_DAYS = """\
SELECT day, id, CAST(count(*) OVER two_days AS INT) AS n FROM sales
WINDOW two_days AS (PARTITION BY id ORDER BY day RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW)
"""


@pytest.fixture
def shop(tmp_path: Path, spark_server: SparkServer) -> Shop:
    shop = Shop(tmp_path, spark_server.folder.root.parent)
    shop.describe("sales", {"columns": {"id": "integer"}}, live=CATCH_UP)
    for day in (D1, D2, D3):
        shop.deliver("sales", day, "id", "1")
    return shop


def describe_seen(shop: Shop, start: str, **more: object) -> None:
    """`seen` counts on how many of two days an id was sold."""
    columns = {"day": {"type": "date"}, "id": {"type": "integer"}, "n": {"type": "integer"}}
    said = {
        "name": "seen", "partition_column": "day", "start": start, "end": "2026-01-31", "key": ["day", "id"], "columns": columns,
        "upstream": {"sales": {"lookback_days": 1}}, "live": CATCH_UP, **more,
    }  # fmt: skip
    shop.write("datasets/seen/dataset.yaml", yaml.safe_dump(said, sort_keys=False))
    shop.write("datasets/seen/fact.sql", _OF_TWO_DAYS)


def launch(shop: Shop, assets: str, first: str, last: str) -> subprocess.CompletedProcess[str]:
    command = ("dagster", "asset", "materialize", "-f", "definitions.py", "--select", assets)
    return shop.run(*command, "--partition-range", f"{first}...{last}")


def succeeds(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return done.stdout


def test_a_new_table_is_prepared_as_a_draft_and_then_taken_over(shop: Shop) -> None:
    describe_seen(shop, D2, state="draft")
    refuses(launch(shop, "group:sales,seen/shadow", D1, D3), "which only `backfill publish` does for a draft")
    succeeds(launch(shop, "group:sales", D1, D3))
    # The range begins before its history, whose first day looks back at a day before that.
    succeeds(launch(shop, "seen/shadow", D1, D3))
    assert shop.sees("seen") == []
    status = succeeds(shop.run("backfill", "status"))
    assert "seen: a draft, which live runs leave out; once it is released, drop `state` from its dataset.yaml" in status
    (unit,) = re.findall(r"^(u_\w+): next: ", status, re.MULTILINE)
    command = re.search(rf"backfill publish {unit}( --evidence \w+)?", succeeds(shop.run("backfill", "resume", unit)))
    assert command is not None
    succeeds(shop.run(*command[0].split()))
    assert shop.sees("seen", "day, n") == [[D2, "2"], [D3, "2"]]

    shop.deliver("sales", D4, "id", "1")
    succeeds(launch(shop, "group:sales", D4, D4))
    assert "seen: due" not in succeeds(shop.run("backfill", "status"))
    describe_seen(shop, D2)
    status = succeeds(shop.run("backfill", "status"))
    assert f"sales, seen: 1 due day left in 1 backfill: {D4}" in status
    assert "stale" not in status.lower()
    succeeds(launch(shop, "group:seen", D4, D4))
    assert shop.sees("seen", "day, n") == [[D2, "2"], [D3, "2"], [D4, "2"]]


def test_a_copy_of_published_days_is_changed_and_nobody_else_sees_it(shop: Shop) -> None:
    succeeds(launch(shop, "group:sales", D1, D3))
    refuses(shop.run("backfill", "sandbox", "sales", D4, "trial"), "no row of these days is published")
    said = succeeds(shop.run("backfill", "sandbox", "sales", f"{D2}..{D4}", "trial"))
    assert "sandbox.trial: 2 rows of 2 days of sales, version" in said
    assert f"not published, or without rows: {D4}" in said
    refuses(shop.run("backfill", "sandbox", "sales", D1, "trial"), "sandbox 'trial' is there already")
    succeeds(shop.run("backfill", "sql", "UPDATE sandbox.trial SET id = 7"))
    seen = succeeds(shop.run("backfill", "sql", "SELECT day, id FROM sandbox.trial ORDER BY day"))
    assert re.findall(r"(\S+) │ 7", seen) == [D2, D3]
    assert shop.sees("sales") == [[D1, "1"], [D2, "1"], [D3, "1"]]
    assert "sandbox" not in succeeds(shop.run("backfill", "doctor"))
    assert re.search(rf"trial +│ sales {D2}\.\.{D3}, version", succeeds(shop.run("backfill", "sandbox")))
    succeeds(shop.run("backfill", "sandbox", "--drop", "trial"))
    refuses(shop.run("backfill", "sandbox", "--drop", "trial"), "there is no sandbox 'trial'")
    refuses(shop.run("backfill", "sql", "SELECT * FROM sandbox.trial"), "TABLE_OR_VIEW_NOT_FOUND")
    assert list((shop.root / "warehouse" / "sandbox").iterdir()) == []
    succeeds(shop.run("backfill", "sandbox", "sales", D1, "trial"))


def test_a_launch_of_all_takes_each_dataset_from_its_own_start_on(shop: Shop) -> None:
    describe_seen(shop, D3)
    succeeds(launch(shop, "group:sales,group:seen", D1, D3))
    assert (shop.sees("sales"), shop.sees("seen", "day, n")) == ([[D1, "1"], [D2, "1"], [D3, "1"]], [[D3, "2"]])
    history = succeeds(shop.run("backfill", "history", "seen"))
    assert (D3 in history, D2 in history) == (True, False)
    # Nothing is left to build, and days before the history are passed by once more.
    succeeds(launch(shop, "group:sales,group:seen", D1, D3))
    succeeds(launch(shop, "group:seen", D1, D2))
    assert shop.sees("seen", "day, n") == [[D3, "2"]]
    doctor = succeeds(shop.run("backfill", "doctor"))
    assert "seen" not in doctor, doctor
