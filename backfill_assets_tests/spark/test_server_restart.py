"""A server that comes back with another configuration, at the same address, under a session that is open."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from backfill_assets.core.errors import ServerLostError
from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.session import open_session
from backfill_assets_tests.engine import engine_settings
from backfill_assets_tests.observed import Observed
from tools.cluster import connect, free_port

pytestmark = pytest.mark.faults


def test_no_session_continues_in_a_restarted_embedded_server(observed: Observed, tmp_path: Path) -> None:
    port = str(free_port())
    before = engine_settings(tmp_path, spark_port=port)
    after = engine_settings(tmp_path, spark_port=port, spark_memory="1200m")

    def bereaved() -> None:
        with open_session(before, "bereaved") as spark:
            assert spark.range(3).count() == 3
            SparkServer(before).stop()
            SparkServer(after).ensure()
            spark.range(3).count()

    try:
        with pytest.raises(ServerLostError, match=r"started again while bereaved.*backfill resume") as lost:
            bereaved()
        assert SparkServer(before).status().configuration["spark.driver.memory"] == "1200m"
        with open_session(before, "bereaved") as spark:
            assert spark.range(3).count() == 3
    finally:
        SparkServer(before).stop()
    observed.injected("the embedded server is started again with more memory")
    observed.found(lost.value)


# This needs three servers, one after the other: left to `make test-faults`.
@pytest.mark.orchestration
def test_no_session_continues_in_a_restarted_remote_server(observed: Observed, tmp_path: Path) -> None:
    settings = engine_settings(tmp_path)
    other = {"spark.sql.ansi.enabled": "false", "spark.sql.shuffle.partitions": "13"}

    def bereaved() -> None:
        with contextlib.ExitStack() as first:
            url = first.enter_context(connect(settings, tmp_path / "first", {})).url
            with open_session(engine_settings(settings.state, spark_url=url), "bereaved") as spark:
                assert spark.range(3).count() == 3
                first.close()
                with connect(settings, tmp_path / "second", other, url):
                    spark.range(3).count()

    with pytest.raises(ServerLostError, match=r"started again while bereaved.*backfill resume") as lost:
        bereaved()
    observed.injected(f"a remote server is started again with {other}")
    observed.found(lost.value)
