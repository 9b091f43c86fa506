"""Servers that start at the same moment on a new machine download Spark's JARs one after the other."""

from __future__ import annotations

import threading
from pathlib import Path

from backfill_assets.spark.start import DELTA_PACKAGE, S3_PACKAGES, downloads_alone, jar_of

NEEDED = (DELTA_PACKAGE, S3_PACKAGES[0])


def _meets_another(cache: Path) -> bool:
    """Whether a second start may begin while the first one is running."""
    began = threading.Event()

    def second() -> None:
        with downloads_alone(NEEDED, cache):
            began.set()

    thread = threading.Thread(target=second)
    with downloads_alone(NEEDED, cache):
        thread.start()
        met = began.wait(0.5)
    thread.join(30)
    assert began.is_set(), "the second start never began"
    return met


def test_while_the_jars_are_missing_one_server_starts_at_a_time(tmp_path: Path) -> None:
    assert not _meets_another(tmp_path / "cache")


def test_once_the_jars_are_there_servers_start_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    for package in NEEDED:
        assert not _meets_another(tmp_path)
        (tmp_path / "jars" / jar_of(package)).touch()
    assert _meets_another(tmp_path)


def test_the_jar_is_looked_for_under_the_name_that_spark_gives_it() -> None:
    assert DELTA_PACKAGE == "io.delta:delta-spark_4.2_2.13:4.4.0"
    assert jar_of(DELTA_PACKAGE) == "io.delta_delta-spark_4.2_2.13-4.4.0.jar"
