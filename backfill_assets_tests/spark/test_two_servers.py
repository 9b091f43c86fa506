"""Two Spark servers on one warehouse, such as a campaign's `execution.compute` beside the default one."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from backfill_assets.application import Application
from backfill_assets.campaign.execution import Execution
from backfill_assets.core.days import day_range
from backfill_assets.delta.opening import table_at
from backfill_assets.settings import Settings
from backfill_assets.spark.driver import driver_of
from backfill_assets.spark.server import SparkServer
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.without_dagster import publish
from tools.cluster import connect

NAME = "tickets"
DATASETS = Path(__file__).parents[1] / "dagster" / "datasets"
DAYS = day_range(dt.date(2024, 3, 1), dt.date(2024, 3, 8))


def test_two_servers_publish_days_of_one_dataset_at_the_same_time(spark_server: SparkServer, tmp_path: Path) -> None:
    spark_server.ensure()
    shutil.copytree(DATASETS / NAME, tmp_path / "datasets" / NAME)
    environ = {
        "BACKFILL_ASSETS_STATE": str(tmp_path / "state"),
        "BACKFILL_ASSETS_DATASETS": str(tmp_path / "datasets"),
        "BACKFILL_ASSETS_SPARK_FOLDER": str(spark_server.folder.root.parent),
        "BACKFILL_ASSETS_SPARK_MEMORY": "1g",
    }
    with connect(Settings.from_env(environ), tmp_path / "big", {}) as big:
        application = Application(Settings.from_env({**environ, "BACKFILL_ASSETS_SPARK_URL_BIG": big.url}))
        for day in DAYS:
            file = path_of(application.settings.sources) / NAME / str(day) / "sold.csv"
            file.parent.mkdir(parents=True)
            file.write_text(f"day,ticket,amount\n{day},1,{day.day}\n")

        def work(execution: Execution | None, days: Sequence[dt.date]) -> set[str]:
            found = set()
            for day in days:
                with application.session(f"{day}", execution) as spark:
                    publish(application, spark, NAME, (day,))
                    found.add(driver_of(spark))
            return found

        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(work, *one) for one in ((None, DAYS[::2]), (Execution(compute="big"), DAYS[1::2]))]
        (one,), (other,) = (future.result() for future in both)
        assert one != other
    rows = table_at(application.layout.published_path(NAME)).to_pyarrow_table(columns=["day", "amount"]).to_pylist()
    assert {row["day"]: row["amount"] for row in rows} == {day: day.day for day in DAYS}
    assert len(rows) == len(DAYS)
    raw = table_at(application.layout.raw_path(NAME)).to_pyarrow_table(columns=["_source_file"])
    assert sorted(raw["_source_file"].to_pylist()) == sorted(f"{NAME}/{day}/sold.csv" for day in DAYS)
    assert application.doctor.examine() == ()
    application.ledger.close()
