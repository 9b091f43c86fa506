"""The worked cases of the documents, and ways to be wrong and green, tested only with the documented commands.

Each test is a project of its own, outside of this one; what readers see is asked with `backfill sql`.
"""

from __future__ import annotations

import os
import py_compile
import re
import shutil
import sqlite3
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from backfill_assets_tests.dagster.shop import D1, D2, D3, D4, Shop, refuses

if TYPE_CHECKING:  # an older package has it elsewhere
    from backfill_assets.spark.server import SparkServer

ROOT = Path(__file__).resolve().parents[2]
MAY_MOVE = {"row_count": {"tolerance": "100%"}}
_SCRIPT = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LAUNCH = re.compile(r"^# launch (\S+)$", re.MULTILINE)


@pytest.fixture
def shop(tmp_path: Path, spark_server: SparkServer) -> Shop:
    return Shop(tmp_path, spark_server.folder.root.parent)


def test_a_supplier_who_sends_corrects_and_takes_back(shop: Shop) -> None:
    """The script of docs/deliveries.md, word for word."""
    document = (ROOT / "docs" / "deliveries.md").read_text(encoding="utf-8")
    sends, withdraws, restores = _SCRIPT.findall(document)
    shop.describe("sales", {"path": "x/{day}.csv", "columns": {"id": "integer"}}, checks=MAY_MOVE)
    first, second, third = [[1, 2], [1], [1, 2]]
    pieces = _LAUNCH.split(sends)
    for piece, day, ids in zip(pieces[0::2], pieces[1::2], (first, second, third), strict=False):
        assert shop.run("bash", "-euc", piece).returncode == 0
        launched = shop.launch("sales", day)
        assert launched.returncode == 0, launched.stderr[-3000:]
        assert shop.sees("sales") == [[day, str(number)] for number in ids]
    shown = shop.run("bash", "-euc", pieces[-1])
    assert re.search(r"superseded by", shown.stdout), shown.stdout + shown.stderr

    # This launches what a daemon would launch.
    taken_out = shop.run("bash", "-euc", withdraws.replace("backfill refresh sales\n", ""))
    assert f"sales {D2}: bring up to date: backfill refresh sales" in taken_out.stdout, (
        taken_out.stdout + taken_out.stderr
    )
    refuses(shop.launch("sales", D2), f"{D2} source_present: expected")
    assert shop.sees("sales") == [[D2, "1"], [D2, "2"]]
    restored = shop.run("bash", "-euc", restores)
    assert restored.returncode == 0, restored.stderr
    assert shop.launch("sales", D2).returncode == 0
    assert shop.sees("sales") == [[D2, "1"], [D2, "2"]]


def test_a_source_column_that_is_added_in_mid_history(shop: Shop) -> None:
    """What docs/dataset-yaml.md says about it, with files that no longer exist."""
    shop.describe("rides", {"columns": {"id": "integer"}})
    shop.deliver("rides", D1, "id", "1")
    tipped = shop.deliver("rides", D2, "id,tip", "1,2.50")
    assert shop.launch("rides", D1, D2).returncode == 0
    tipped.unlink()

    money = {"tip": {"type": "decimal(10,2)"}}
    shop.describe("rides", {"columns": {"id": "integer", "tip": "decimal(10,2)"}}, columns=money)
    refused = shop.launch("rides", D1, D2)
    assert refused.returncode != 0
    assert f"rides/{D1}.csv" in refused.stderr, refused.stderr[-3000:]
    optional = {"columns": {"id": "integer", "tip": "decimal(10,2)"}, "optional": ["tip"]}
    shop.describe("rides", optional, columns=money)
    launched = shop.launch("rides", D1, D2)
    assert launched.returncode == 0, launched.stderr[-3000:]
    assert shop.sees("rides", "day, id, coalesce(string(tip), 'none')") == [[D1, "1", "none"], [D2, "1", "2.50"]]


def test_the_file_of_the_next_day_does_not_stand_in_for_that_of_a_day(shop: Shop) -> None:
    shop.describe("late", {"columns": {"id": "integer"}, "late_days": 1}, staging={"deduplicate": "latest_delivery"})
    shop.deliver("late", D2, "id", "1")
    refuses(shop.launch("late", D1), f"{D1} source_present: expected")
    assert shop.sees("late") == []


def test_rows_under_other_keys_are_refused(shop: Shop) -> None:
    shop.describe("keys", {"columns": {"id": "integer"}})
    shop.deliver("keys", D1, "id", "1", "2", "3")
    assert shop.launch("keys", D1).returncode == 0
    mixed_up = "SELECT day, CASE id WHEN 3 THEN 4 ELSE id END AS id FROM staging"
    shop.describe("keys", {"columns": {"id": "integer"}}, ("", mixed_up))
    refuses(shop.launch("keys", D1), f"{D1} change_keys: expected")
    assert shop.sees("keys") == [[D1, "1"], [D1, "2"], [D1, "3"]]


def test_days_that_a_day_looks_back_at_are_landed_with_it(shop: Shop) -> None:
    window = "PARTITION BY id ORDER BY day RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW"
    rolling = f"SELECT day, id, CAST(sum(n) OVER ({window}) AS INT) AS n FROM staging"
    number = {"columns": {"id": "integer", "n": "integer"}}
    shop.describe("rolling", number, ("", rolling), columns={"n": {"type": "integer"}}, lookback_days=1)
    for day, n in ((D1, 10), (D2, 20), (D3, 30)):
        shop.deliver("rolling", day, "id,n", f"1,{n}")
    assert shop.launch("rolling", D3).returncode == 0
    assert shop.sees("rolling", "day, n") == [[D3, "50"]]
    # The sum of all days of a launch, without the days that are only looked back at.
    depends = rolling.replace("RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW", "")
    shop.describe("running", number, ("", depends), columns={"n": {"type": "integer"}}, lookback_days=1)
    for day, n in ((D1, 10), (D2, 20), (D3, 30), (D4, 40)):
        shop.deliver("running", day, "id,n", f"1,{n}")
    refuses(shop.launch("running", D2, D4), f"such as {D2} same_alone: expected")
    assert shop.sees("running") == []


def test_a_row_that_would_lose_something_in_reading_is_quarantined(shop: Shop) -> None:
    both = {"columns": {"id": "integer", "n": "decimal(9,2)"}}
    shop.describe("cut", both, columns={"n": {"type": "decimal(9,2)"}})
    # The second row is truncated, and the file has an undeclared column.
    shop.deliver("cut", D1, "id,n,note", "1,1.00,a", "2")
    shop.deliver("cut", D2, "id,n,note", "1,4.5049,a")
    for day in (D1, D2):
        refuses(shop.launch("cut", day), f"{day} corrupt_rows: expected")
    renamed = {"format": "jsonl", "path": "renamed/{day}.csv", **both}
    shop.describe("renamed", renamed, columns={"n": {"type": "decimal(9,2)"}})
    shop.deliver("renamed", D1, '{"id": 1, "amount": 2}')
    refuses(shop.launch("renamed", D1), "none of its records has n")
    assert shop.sees("cut") == shop.sees("renamed") == []


def test_a_model_sees_the_tables_that_it_is_given(shop: Shop) -> None:
    file = shop.write("elsewhere.csv", "id\n9\n")
    source = {"columns": {"id": "integer"}}
    shop.describe("reads", source, ("", f"SELECT day, CAST(_c0 AS INT) AS id FROM staging, csv.`{file}` WHERE _c0 > 0"))
    shop.describe("calls", source, ("", "SELECT day, CAST(rand() * 1000 AS INT) AS id FROM staging"))
    for name, word in (("reads", "reads files of the format csv"), ("calls", "calls rand")):
        shop.deliver(name, D1, "id", "1")
        refuses(shop.launch(name, D1), word)
        assert shop.sees(name) == []


def test_a_declaration_for_no_day_and_a_setting_that_loses_rows_are_refused(shop: Shop) -> None:
    shop.describe("declared", {"columns": {"id": "integer"}})
    shop.deliver("declared", D1, "id", "1", "2")
    assert shop.launch("declared", D1).returncode == 0
    shop.describe("declared", {"columns": {"id": "integer"}}, ("", "SELECT day, id FROM staging WHERE id = 1"))
    config = {
        "ops": {"shadow__declared": {"config": {"expected_change": [{"days": [], "metrics": {"row_count": "any"}}]}}}
    }
    refuses(shop.launch("declared", D1, config=config), "names no day")
    assert shop.sees("declared") == [[D1, "1"], [D1, "2"]]

    said = {
        "dataset": "declared",
        "start": D1,
        "end": D2,
        "id": "loses",
        "change": "rows",
        "approver": "me",
        "owner": "me",
    }
    drafted = shop.run("backfill", "new", *(word for key, value in said.items() for word in (f"--{key}", value)))
    assert drafted.returncode == 0, drafted.stderr
    (file,) = (shop.root / "backfills").glob("*.yaml")
    campaign = yaml.safe_load(file.read_text(encoding="utf-8"))
    campaign.setdefault("execution", {})["spark"] = {"spark.sql.files.ignoreMissingFiles": "true"}
    file.write_text(yaml.safe_dump(campaign, sort_keys=False), encoding="utf-8")
    refuses(shop.run("backfill", "validate", str(file)), "spark.sql.files.ignoreMissingFiles")


def test_a_mistyped_folder_is_no_launch_that_landed_nothing(shop: Shop) -> None:
    shop.describe("moved", {"columns": {"id": "integer"}})
    shop.deliver("moved", D1, "id", "1")
    assert shop.launch("moved", D1).returncode == 0
    shop.environ["BACKFILL_ASSETS_SOURCES"] = str(shop.root / "datasets")
    refuses(shop.launch("moved", D1), "no file fits")


RATED = """
from {module} import RATE

def fact(staging):
    return staging.selectExpr("day", f"{{RATE}} AS id")
"""
WAITING = """
import os, time

def fact(staging):
    open({at_work!r}, "w").close()
    while not os.path.exists({go_on!r}):
        time.sleep(0.1)
    return staging.select("day", "id")
"""


def in_python(shop: Shop, name: str, fact: str) -> None:
    """Describe a dataset of one delivered row whose fact model is in Python; it finds modules in the project's folder."""
    shop.environ["PYTHONPATH"] = str(shop.root)
    shop.describe(name, {"columns": {"id": "integer"}}, checks=MAY_MOVE)
    (shop.root / "datasets" / name / "fact.sql").unlink()
    shop.write(f"datasets/{name}/fact.py", fact)
    shop.deliver(name, D1, "id", "1")


def test_a_stale_pyc_is_not_what_runs(shop: Shop) -> None:
    in_python(shop, "stale", RATED.format(module="rates"))
    rates = shop.write("rates.py", "RATE = 5\n")
    then = rates.stat().st_mtime_ns
    py_compile.compile(str(rates), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    os.utime(shop.write("rates.py", "RATE = 1\n"), ns=(then, then))
    launched = shop.launch("stale", D1)
    assert launched.returncode == 0, launched.stderr[-3000:]
    assert shop.sees("stale") == [[D1, "1"]]


def test_a_project_file_that_is_not_hashed_is_not_run(shop: Shop) -> None:
    """Python itself has such a module; the day is built by one text of the project's module, and published under another."""
    in_python(shop, "unhashed", RATED.format(module="tabnanny"))
    for rate, assets in ((5, ("unhashed/raw", "unhashed/staging", "unhashed/shadow")), (6, ("unhashed/published",))):
        shop.write("tabnanny.py", f"RATE = {rate}\n")
        launched = shop.run(*shop.materialize(D1, *assets))
    assert shop.sees("unhashed") == []
    refuses(launched, "tabnanny.py of the project has the name of a module of the standard library; rename it")


def test_rows_that_other_code_stages_meanwhile_are_not_published_under_this_code(shop: Shop) -> None:
    def staging(factor: int) -> None:
        model = f"SELECT _lineage.delivery_day AS day, id * {factor} AS id, _lineage FROM raw"
        shop.write("datasets/staged/staging.sql", model)

    at_work, go_on = shop.root / "at_work", shop.root / "go_on"
    in_python(shop, "staged", WAITING.format(at_work=str(at_work), go_on=str(go_on)))
    staging(1)
    with ThreadPoolExecutor(1) as thread:
        launch = thread.submit(shop.launch, "staged", D1)
        while not (at_work.exists() or launch.done()):
            time.sleep(0.1)
        staging(5)
        other = shop.run(*shop.materialize(D1, "staged/staging"))
        staging(1)
        go_on.touch()
    for done in (other, launch.result()):
        assert done.returncode == 0, done.stderr[-3000:]
    assert shop.sees("staged") == [[D1, "1"]]


def test_days_that_a_restored_raw_has_lost_are_not_published_empty(shop: Shop) -> None:
    shop.describe("backup", {"columns": {"id": "integer"}})
    raw = Path(shop.environ["BACKFILL_ASSETS_WAREHOUSE"]) / "raw" / "backup"
    for day in (D1, D2):
        if day == D2:
            shutil.copytree(raw, shop.root / "copy")
        shop.deliver("backup", day, "id", "1")
        landed = shop.run(*shop.materialize(day, "backup/raw"))
        assert landed.returncode == 0, landed.stderr[-3000:]
    shutil.rmtree(raw)
    shutil.copytree(shop.root / "copy", raw)
    launched = shop.launch("backup", D2)
    assert launched.returncode == 0, launched.stderr[-3000:]
    assert shop.sees("backup") == [[D2, "1"]]


def test_no_program_replaces_evidence_or_a_release(shop: Shop) -> None:
    shop.describe("kept", {"columns": {"id": "integer"}})
    shop.deliver("kept", D1, "id", "1")
    assert shop.launch("kept", D1).returncode == 0
    changes: Sequence[tuple[str, Mapping[str, object]]] = (
        ("evidence", {"body": "{}"}),
        ("releases", {"state": "abandoned"}),
        ("releases", {"number": 99}),
    )
    observed: list[str] = []
    with closing(sqlite3.connect(shop.root / ".state" / "ledger.db", isolation_level=None)) as ledger:
        ledger.row_factory = sqlite3.Row
        before = {table: dict(ledger.execute(f"SELECT * FROM {table}").fetchone()) for table, _ in changes}
        for table, change in changes:
            row = {**before[table], **change}
            try:
                ledger.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join(f':{name}' for name in row)})", row)
            except sqlite3.IntegrityError as refused:
                observed.append(str(refused))
        assert {table: dict(ledger.execute(f"SELECT * FROM {table}").fetchone()) for table in before} == before
    assert observed == [f"{table} is append-only" for table, _ in changes]
