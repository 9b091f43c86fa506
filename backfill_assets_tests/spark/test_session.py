"""Sessions: apart from each other, gone when their block ends, and nothing left running behind them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from backfill_assets.campaign.execution import PINNED
from backfill_assets.core.errors import EngineError, QueryTimeoutError, ServerLostError, SessionTakenOverError
from backfill_assets.settings import Settings
from backfill_assets.spark import session
from backfill_assets.spark.driver import stopped
from backfill_assets.spark.registration import Endpoint
from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.session import open_session
from backfill_assets_tests.engine import engine_environment, engine_settings, start_python
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.observed import Observed

_NAP = "java_method('java.lang.Thread', 'sleep', 200L) AS nap"

# Writes one small file every 100 ms for most of an hour: the files show whether Spark still works.
_LONG_WORK = f"""
import os
from backfill_assets.spark.session import open_session
from backfill_assets.settings import Settings
with open_session(Settings.from_env(os.environ), os.environ["WORK_TAG"]) as spark:
    spark.range(0, 30000, 1, 30000).selectExpr("{_NAP}").write.parquet(os.environ["WORK_FOLDER"])
"""

_LONG_WORK_UNDER_DAGSTER = f"""
from dagster._utils.interrupts import capture_interrupts, raise_interrupts_as
from dagster._core.errors import DagsterExecutionInterruptedError
with capture_interrupts(), raise_interrupts_as(DagsterExecutionInterruptedError):
{"".join("    " + line + chr(10) for line in _LONG_WORK.strip().splitlines())}
"""


class _LongWork:
    """A process whose Spark operation runs until it is stopped."""

    def __init__(self, code: str, settings: Settings, folder: Path, tag: str) -> None:
        self.folder = folder
        variables = {"WORK_TAG": tag, "WORK_FOLDER": str(folder)}
        self.process: subprocess.Popen[str] = start_python(code, engine_environment(settings.state) | variables)
        wait_for(lambda: self.process.poll() is not None or self.files() > 0, "the work writes files")
        assert self.process.poll() is None, self.process.communicate()[0]

    def files(self) -> int:
        return sum(name.endswith(".parquet") for _, _, names in os.walk(self.folder) for name in names)

    def continues(self) -> bool:
        before = self.files()
        time.sleep(2)
        return self.files() > before


def test_a_cancelled_dagster_run_ends_its_spark_operation(spark_settings: Settings, tmp_path: Path) -> None:
    work = _LongWork(_LONG_WORK_UNDER_DAGSTER, spark_settings, tmp_path / "out", "cancelled")
    assert work.continues()
    work.process.send_signal(signal.SIGTERM)
    output = work.process.communicate(timeout=60)[0]
    assert "DagsterExecutionInterruptedError" in output
    assert not work.continues()


def test_a_new_attempt_ends_what_a_killed_one_left_running(spark_settings: Settings, tmp_path: Path) -> None:
    work = _LongWork(_LONG_WORK, spark_settings, tmp_path / "out", "killed")
    work.process.kill()
    work.process.wait()
    assert work.continues()  # its result is not read, but it runs
    with open_session(spark_settings, "another-tag") as spark:
        spark.sql("SELECT 1").collect()
        assert work.continues()
    with open_session(spark_settings, "killed") as spark:
        assert not work.continues()
        assert spark.range(4).count() == 4


def test_an_older_attempt_that_is_still_running_can_do_nothing_more(spark_settings: Settings) -> None:
    def overtaken() -> None:
        with open_session(spark_settings, "step-7") as older:
            older.range(1).count()
            with open_session(spark_settings, "step-7") as newer:
                newer.range(1).createOrReplaceTempView("mine")
                with pytest.raises(PySparkException):
                    older.range(1).count()
                assert newer.table("mine").count() == 1
            older.range(1).count()

    with pytest.raises(SessionTakenOverError, match="step-7"):
        overtaken()


def test_a_newer_attempt_survives_the_end_of_the_older_one(spark_settings: Settings) -> None:
    older = open_session(spark_settings, "step-8")
    older.__enter__()
    with open_session(spark_settings, "step-8") as newer:
        newer.range(1).createOrReplaceTempView("mine")
        older.__exit__(None, None, None)
        assert newer.table("mine").count() == 1


def test_a_tag_can_be_used_again_and_again(spark_settings: Settings) -> None:
    ids = set()
    for _ in range(3):
        with open_session(spark_settings, "again") as spark:
            assert not spark.catalog.listTables(pattern="left_over")
            spark.range(1).createOrReplaceTempView("left_over")
            ids.add(spark.session_id)  # type: ignore[attr-defined]
    assert len(ids) == 1  # after an orderly end the server has nothing that a later start would have to skip


def test_an_operation_that_runs_too_long_is_interrupted_and_named(spark_settings: Settings, tmp_path: Path) -> None:
    settings = engine_settings(spark_settings.state, query_timeout="2s")
    with (
        pytest.raises(QueryTimeoutError, match=r"slow-step.*2s.*BACKFILL_ASSETS_QUERY_TIMEOUT"),
        open_session(settings, "slow-step") as spark,
    ):
        spark.range(0, 30000, 1, 30000).selectExpr(_NAP).collect()


def test_a_session_that_failed_says_whether_something_was_at_work_and_interrupts_it(spark_settings: Settings) -> None:
    with open_session(spark_settings, "fails") as spark, ThreadPoolExecutor(1) as pool:
        with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO") as failed:
            spark.sql("SELECT 1 / 0").collect()
        assert stopped(spark, failed.value)
        work = pool.submit(spark.range(0, 30000, 1, 30000).selectExpr(_NAP).collect)
        wait_for(lambda: work.done() or not stopped(spark, ValueError("of another thread")), "the work to begin")
        with pytest.raises(PySparkException, match="OPERATION_CANCELED") as interrupted:
            work.result(60)
        assert not stopped(spark, interrupted.value)
        # Spark's client has interrupted what was at work, and nothing is left to interrupt.
        assert not stopped(spark, KeyboardInterrupt())


def test_many_short_operations_may_take_longer_than_the_timeout_together(spark_settings: Settings) -> None:
    settings = engine_settings(spark_settings.state, query_timeout="2s")
    with open_session(settings, "many-steps") as spark:
        for _ in range(8):
            assert len(spark.range(0, 1, 1, 1).selectExpr(_NAP.replace("200L", "500L")).collect()) == 1


def test_an_error_of_the_work_itself_arrives_as_it_is(spark_settings: Settings) -> None:
    with pytest.raises(ZeroDivisionError), open_session(spark_settings, "own-error"):
        _ = 1 / 0
    with (
        pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"),
        open_session(spark_settings, "sql") as spark,
    ):
        spark.sql("SELECT 1 / 0").collect()


def test_no_session_can_change_a_setting_that_decides_which_rows_come_out(spark_settings: Settings) -> None:
    loose = {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.files.ignoreMissingFiles": "true",
        "spark.sql.shuffle.partitions": "9",
    }
    with open_session(spark_settings, "loose", loose) as spark:
        assert {name: spark.conf.get(name) for name in PINNED} == PINNED
        assert spark.conf.get("spark.sql.shuffle.partitions") == "9"


def test_a_setting_that_the_server_refuses_is_named(spark_settings: Settings) -> None:
    fixed = {"spark.sql.warehouse.dir": "/elsewhere"}
    with (
        pytest.raises(EngineError, match=r"refuses a setting that every session needs: .*spark\.sql\.warehouse\.dir"),
        open_session(spark_settings, "refused", fixed),
    ):
        raise AssertionError("unreachable: the session was never ready")


def test_a_server_that_brings_earlier_behaviour_back_is_refused(spark_settings: Settings) -> None:
    # The session stands for the server: what is set in either is seen in the same way.
    earlier = {"spark.sql.legacy.statisticalAggregate": "true"}
    with (
        pytest.raises(EngineError, match=r"sets spark\.sql\.legacy\.statisticalAggregate=true.*Remove that"),
        open_session(spark_settings, "earlier", earlier),
    ):
        raise AssertionError("unreachable: the session was never ready")


def test_a_session_that_waits_is_kept(spark_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, remind = list[str](), session.remind

    def noted(endpoint: Endpoint, session_id: str) -> None:
        remind(endpoint, session_id)
        asked.append(session_id)

    monkeypatch.setattr(session, "_REMIND_SECONDS", 0.5)
    monkeypatch.setattr(session, "remind", noted)
    with open_session(spark_settings, "waits") as spark:
        wait_for(lambda: len(asked) > 1, "the server to be reminded")
        assert set(asked) == {spark.session_id}  # type: ignore[attr-defined]
        assert spark.range(1).count() == 1
    remind(
        Endpoint("sc://127.0.0.1:1"), asked[0]
    )  # a server that is gone is the concern of whoever uses the session next


@pytest.mark.faults
def test_workers_that_spark_gave_up_on_are_named(spark_settings: Settings, observed: Observed) -> None:
    text = (
        "Job aborted due to stage failure: Task 1 in stage 3.0 failed 4 times, most recent failure: Lost task 1.3 in stage 3.0 "
        "(TID 9): ExecutorLostFailure (executor 4 exited caused by one of the running tasks)"
    )
    observed.injected("the error of a job whose executors were lost more often than Spark tries again")
    named = pytest.raises(ServerLostError, match=r"lost workers while lost.*backfill resume")
    with named as error, open_session(spark_settings, "lost"):
        raise PySparkException(text)
    observed.found(error.value)


def test_a_remote_server_that_does_not_answer_is_an_obstacle(spark_settings: Settings, tmp_path: Path) -> None:
    endpoint = SparkServer(spark_settings).ensure()
    environ = {"BACKFILL_ASSETS_STATE": str(tmp_path)}

    def obstacle(url: str) -> str:
        return SparkServer(Settings.from_env({**environ, "BACKFILL_ASSETS_SPARK_URL": url})).obstacle()

    assert obstacle(f"{endpoint.url}/;token={endpoint.token}") == ""
    assert "refuses the token" in obstacle(f"{endpoint.url}/;token=wrong")
    assert "does not answer" in obstacle("sc://127.0.0.1:1")


def test_sessions_of_two_threads_share_no_settings(spark_settings: Settings) -> None:
    def work(number: int) -> tuple[str | None, str | None]:
        with open_session(spark_settings, f"thread-{number}") as spark:
            spark.conf.set("spark.sql.shuffle.partitions", str(number))
            spark.range(10).withColumn("k", F.col("id") % 3).groupBy("k").count().collect()
            return spark.conf.get("spark.sql.shuffle.partitions"), spark.conf.get("spark.sql.session.timeZone")

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, [1, 2, 3])) == [("1", "UTC"), ("2", "UTC"), ("3", "UTC")]
    assert SparkSession.getActiveSession() is None


def test_a_session_is_over_when_its_block_ends(spark_settings: Settings) -> None:
    with open_session(spark_settings, "over") as spark:
        assert spark.range(1).count() == 1
    with pytest.raises(PySparkException, match="NO_ACTIVE_SESSION"):
        spark.range(1).count()


def test_a_tag_that_spark_cannot_carry_is_refused(spark_settings: Settings) -> None:
    with pytest.raises(EngineError, match="commas"), open_session(spark_settings, "a,b"):
        pass


def test_the_fixture_gives_a_working_session(spark: SparkSession) -> None:
    assert spark.range(7).count() == 7
