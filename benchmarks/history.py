"""A history of thousands of partitions: how long it takes to load, show, publish and roll back; without Spark.

The tables, the ledger, the evidence with all its verdicts and the release are the real ones. Only the shadow is written by
delta-rs here, because ten thousand days through Spark would measure Spark.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import write_deltalake

from backfill_assets.application import Application
from backfill_assets.cli.output import collect_rarely, table
from backfill_assets.cli.status import overview
from backfill_assets.core.days import ONE_DAY, day_range
from backfill_assets.core.evidence import Basis, DayEvidence
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.measured import NOTHING, Compared, DayMeasurement, RowCounts, Side, SourceState
from backfill_assets.core.release import layout_digest
from backfill_assets.core.unit import AttemptState, Launch, ReleaseMode, Unit, UnitState
from backfill_assets.dataset.checks import metric_names
from backfill_assets.pipeline.judge import judge
from backfill_assets.settings import Settings

_FIRST: Final = dt.date(1992, 1, 1)
_NAME: Final = "history"
_MEASURES: Final = tuple(f"m{number}" for number in range(8))
_LEASE: Final = dt.timedelta(hours=1)


def measure_history(folder: Path, partitions: int) -> dict[str, float]:
    """Seconds of each operation on a history of that many partitions, by operation."""
    shutil.rmtree(folder, ignore_errors=True)
    collect_rarely()  # as every command does
    write_dataset(
        folder / "datasets" / _NAME,
        f"name: {_NAME}",
        f"start: {_FIRST}",
        f"end: {_FIRST + (partitions - 1) * ONE_DAY}",
        "chunk_days: 10000",
        "source: {format: csv, path: '{day}.csv', columns: {day: date}}",
    )
    environ = {
        "BACKFILL_ASSETS_STATE": str(folder / "state"),
        "BACKFILL_ASSETS_DATASETS": str(folder / "datasets"),
    }
    application = _application(environ)
    days = day_range(_FIRST, _FIRST + (partitions - 1) * ONE_DAY)
    seconds: dict[str, float] = {}
    with _timed(seconds, "load the definitions (with imports)"):
        _run(environ, "-c", "from backfill_assets.definitions import defs; defs.get_repository_def()")
    first = _built(application, days, "one")
    # Each timed operation starts without cached knowledge, like a command.
    publisher = _application(environ).publisher
    with _timed(seconds, "publish all, nothing before"):
        publisher.release(first.id)
    second = _built(application, days, "two")
    publisher = _application(environ).publisher
    with _timed(seconds, "publish all over what was there"):
        done = publisher.release(second.id)
    third = _built(application, days, "three")
    status = ("-c", "from backfill_assets.cli.app import main; main()", "status")
    with _timed(seconds, "backfill status, a unit of all days open"):
        _run(environ, *status)
    with _timed(seconds, "the same, without starting a process"):
        overview(_application(environ))
    with _timed(seconds, "backfill status of that unit, day by day"):
        _run(environ, *status, third.id)
    application.ledger.move(third.id, {UnitState.open}, UnitState.discarded)
    with _timed(seconds, "backfill status, no unit open"):
        _run(environ, *status)
    with _timed(seconds, "roll all back"):
        application.rollback.execute(done.releases[_NAME], "measured")
    return seconds


def show_history(partitions: int, seconds: dict[str, float]) -> None:
    """Print the table."""
    rows = [(what, f"{found:.2f}") for what, found in seconds.items()]
    table(("what", "seconds"), rows, f"A history of {partitions:,} partitions")


def _application(environ: dict[str, str]) -> Application:
    """An application that has read nothing yet, like a command's."""
    return Application(Settings.from_env(environ))


def _built(application: Application, days: tuple[dt.date, ...], by: str) -> Unit:
    """A unit over all days with a shadow and complete evidence."""
    dataset, ledger, published = application.dataset(_NAME), application.ledger, application.tables[_NAME]
    now = application.clock.now()
    proposal = Unit(application.ids.new("u"), by, now, "bench", {_NAME: days}, ReleaseMode.manual)
    unit = ledger.assign(Launch({_NAME: frozenset(days)}, by), proposal)
    attempt = ledger.start_attempt(unit.id, _NAME, days, by, _LEASE)
    home = application.layout.published_path(_NAME) / attempt.folder
    write_deltalake(str(home), shadow_rows(days, unit), partition_by=["day"], mode="append")
    files, active = published.shadow_files(attempt.folder, days), published.active(days) if published.exists() else {}
    inputs, code = application.basis.inputs(_NAME, days), application.basis.code(_NAME)
    evidence = []
    for day in days:
        measured = _measured(day, metric_names(dataset), bool(active.get(day)))
        basis = Basis(inputs[day], code, Contract().hash, layout_digest(active.get(day, ())))
        verdicts = judge(dataset, measured, Contract(), Compared(RowCounts(unchanged=1)))
        evidence.append(DayEvidence(unit.id, attempt.number, _NAME, day, basis, files[day], measured, verdicts, now))
    ledger.add_evidence(attempt.number, evidence)
    ledger.end_attempt(attempt.number, AttemptState.done)
    return unit


def _measured(day: dt.date, metrics: tuple[str, ...], published: bool) -> DayMeasurement:  # noqa: FBT001
    side = Side(dict.fromkeys(metrics, Decimal(1)), {}, f"{day:%Y%m%d}")
    source = SourceState(1, 1, 0, 0, dt.datetime.combine(day + ONE_DAY, dt.time(), dt.UTC))
    return DayMeasurement(day, side, side if published else NOTHING, side, source)


def shadow_rows(days: tuple[dt.date, ...], unit: Unit) -> pa.Table:
    """One row a day, with the columns that a released table has."""
    number = len(days)
    columns = {name: pa.array([1] * number, pa.int64()) for name in _MEASURES}
    now = pa.array([unit.opened_at] * number, pa.timestamp("us", "UTC"))
    audit = {"recalculated_at": now, "unit": pa.array([unit.id] * number), "code_version": pa.array([""] * number)}
    return pa.table({"day": pa.array(days, pa.date32()), **columns, **audit})


def write_dataset(folder: Path, *own: str) -> None:
    """Write a dataset with eight measures and a rule for each; `own` are the lines of its YAML that only it has."""
    folder.mkdir(parents=True)
    lines = [
        *own, "partition_column: day", "key: [day]",
        "columns:", "  day: {type: date}", *(f"  {name}: {{type: long}}" for name in _MEASURES),
        "measures:", *(f"  {name}: {{}}" for name in _MEASURES),
        "checks:", "  rules:", *(f"    r_{name}: {{sql: {name} > 0}}" for name in _MEASURES),
    ]  # fmt: skip
    (folder / "dataset.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "staging.sql").write_text("SELECT * FROM raw\n", encoding="utf-8")
    (folder / "fact.sql").write_text("SELECT * FROM staging\n", encoding="utf-8")


def _run(environ: dict[str, str], *arguments: str) -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **environ}
    # Not in the checkout: its `.env` names another state, which is refused.
    folder = Path(environ["BACKFILL_ASSETS_DATASETS"]).parent
    words = [sys.executable, *arguments]
    subprocess.run(words, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _timed(seconds: dict[str, float], what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[what] = time.perf_counter() - start
