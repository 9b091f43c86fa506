"""How much more everyday work on many datasets costs after years of daily releases than after a month; without Spark.

The sources, the ledger, the evidence with all its verdicts and the releases are the real ones, each made at the time of its day.
Only the shadow is written by delta-rs here: Spark would take days for it.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from backfill_assets.application import Application
from backfill_assets.cli.app import app
from backfill_assets.cli.output import collect_rarely, table
from backfill_assets.core.days import ONE_DAY, day_range
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.evidence import Basis, DayEvidence
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.measured import NOTHING, Compared, DayMeasurement, RowCounts, Side, SourceState
from backfill_assets.core.release import layout_digest
from backfill_assets.core.unit import AttemptState, Launch, ReleaseMode, Unit
from backfill_assets.dataset.checks import metric_names
from backfill_assets.dataset.parts import code_parts
from backfill_assets.dataset.reading import reading_of
from backfill_assets.evidence.raw_contents import DELIVERY_DAY
from backfill_assets.evidence.stale import DATA
from backfill_assets.pipeline.judge import judge
from backfill_assets.settings import Settings
from backfill_assets.storage.sources import discover
from backfill_assets.system import SystemClock
from benchmarks.history import shadow_rows, write_dataset

MONTH: Final = 30
_LEASE: Final = dt.timedelta(hours=1)
_RELEASED_AT: Final = dt.timedelta(days=1, hours=3)
"""After the beginning of a day."""
_HEALTHY: Final = "everything that was compared agrees"
_COMMANDS: Final = ("status", "releases", "metrics", "doctor", "stale")


@dataclass
class _Then:
    """The port `Clock`, set to the time that a history has come to; each look at it takes a millisecond."""

    moment: dt.datetime

    def now(self) -> dt.datetime:
        self.moment += dt.timedelta(milliseconds=1)
        return self.moment


def measure_years(
    folder: Path, days: int, datasets: int, say: Callable[[str], object]
) -> dict[str, tuple[float, float]]:
    """CPU seconds of each operation after a month and after so many days of daily releases, by operation.

    Both histories end yesterday. The looks of sensors are the second ones of their process, as almost all are.

    Raises:
        RuntimeError: a command failed.
    """
    collect_rarely()  # as every command does
    names = [f"daily_{number:02}" for number in range(1, datasets + 1)]
    after_month = _measured(folder / "month", MONTH, names, say)
    after_years = _measured(folder / "years", days, names, say)
    return {what: (after_month[what], found) for what, found in after_years.items()}


def show_years(days: int, datasets: int, found: Mapping[str, tuple[float, float]]) -> None:
    """Print the table."""
    rows = [(what, f"{month:.2f}", f"{years:.2f}", f"{years / month:.1f}") for what, (month, years) in found.items()]
    table(
        ("what", f"{MONTH} days", f"{days:,} days", "times"), rows, f"CPU seconds, {datasets} datasets released daily"
    )


def _measured(folder: Path, number: int, names: Sequence[str], say: Callable[[str], object]) -> dict[str, float]:
    shutil.rmtree(folder, ignore_errors=True)
    real = SystemClock()
    today = real.now().date()
    *past, newest = day_range(today - number * ONE_DAY, today - ONE_DAY)
    for name in names:
        source = f"source: {{format: csv, path: '{name}/{{day}}.csv', columns: {{day: date}}}}"
        write_dataset(folder / "datasets" / name, f"name: {name}", f"start: {past[0]}", source)
    environ = {
        "BACKFILL_ASSETS_STATE": str(folder / "state"),
        "BACKFILL_ASSETS_SOURCES": str(folder / "sources"),
        "BACKFILL_ASSETS_DATASETS": str(folder / "datasets"),
    }
    clock, begun = _Then(real.now()), time.monotonic()
    history = _application(environ)
    history.clock = clock
    for day in past:
        clock.moment = dt.datetime.combine(day, dt.time(), dt.UTC) + _RELEASED_AT
        since = time.time() - 1
        for name in names:
            history.publisher.release(_built(history, name, day).id)
        _aged(history, names, clock.moment, since)
        if (day - past[0]).days % MONTH == 0:
            say(f"{day}: {time.monotonic() - begun:.0f} s")
    clock.moment = real.now()
    units = [_built(history, name, newest) for name in names]
    history.ledger.close()
    # Each operation opens ledger and tables anew, like a command.
    publisher, seconds = _application(environ).publisher, dict[str, float]()
    seconds["publish a day of each dataset"] = _cpu(partial(_all, publisher.release, [unit.id for unit in units]))
    for command in _COMMANDS:
        with chdir(folder):  # in the checkout, its `.env` names another state, which is refused
            seconds[f"backfill {command}"] = _cpu(partial(_run, environ, command))
    table = _application(environ).data_releases.table
    # One in fifty releases pays for it.
    seconds["write data_releases whole"] = _cpu(partial(table.write, table.read() or ()))
    seconds["sweep"] = _cpu(_application(environ).sweep().execute)
    looking = _application(environ)
    looks: Mapping[str, Callable[[str], object]] = {
        "look for late deliveries": looking.late_deliveries.of,
        "nightly look for stale days": partial(looking.staleness.of, among=DATA, look=True),
    }
    for what, look in looks.items():
        _all(look, names)
        seconds[what] = _cpu(partial(_all, look, names))
    return seconds


def _cpu(act: Callable[[], object]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


def _all(do: Callable[[str], object], asked: Iterable[str]) -> None:
    for one in asked:
        do(one)


def _run(environ: Mapping[str, str], command: str) -> None:
    # Neither another Dagster instance nor another ledger, whatever this process was started with.
    others = dict.fromkeys(name for name in os.environ if name.startswith(("BACKFILL_ASSETS_", "DAGSTER_")))
    done = CliRunner().invoke(app, [command], env={**others, **environ})
    if done.exit_code or (command == "doctor" and _HEALTHY not in done.output):
        raise RuntimeError(f"backfill {command} ended with {done.exit_code}: {done.output}") from done.exception


def _application(environ: Mapping[str, str]) -> Application:
    return Application(Settings.from_env(environ))


def _built(application: Application, name: str, day: dt.date) -> Unit:
    """The unit of a live run: the day's file is delivered and landed, its shadow written, its evidence complete."""
    dataset, ledger, published = application.dataset(name), application.ledger, application.tables[name]
    now = application.clock.now()
    _deliver(application, name, day, now)
    run = f"live {name} {day}"
    proposal = Unit(application.ids.new("u"), run, now, "bench", {name: (day,)}, ReleaseMode.auto, live=True)
    unit = ledger.assign(Launch({name: frozenset({day})}, run, None, live=True), proposal)
    attempt = ledger.start_attempt(unit.id, name, (day,), run, _LEASE)
    home = application.layout.published_path(name) / attempt.folder
    write_deltalake(str(home), shadow_rows((day,), unit), partition_by=["day"], mode="append")
    behind = application.basis.behind(name, [day])[day]
    basis = Basis(behind.inputs, application.basis.code(name), unit.contract.of(name).hash, layout_digest(()))
    side = Side(dict.fromkeys(metric_names(dataset), Decimal(1)), {}, f"{day:%Y%m%d}")
    measured = DayMeasurement(day, side, NOTHING, side, SourceState(1, 1, 0, 0, now))
    shadow = published.shadow_files(attempt.folder, (day,))[day]
    verdicts = judge(dataset, measured, Contract(), Compared(RowCounts(added=1)))
    evidence = DayEvidence(
        unit.id, attempt.number, name, day, basis, shadow, measured, verdicts, now, deliveries=behind.deliveries,
        references=behind.references, parts=ledger.add_code(name, code_parts(application.datasets[name])),
    )  # fmt: skip
    ledger.add_evidence(attempt.number, [evidence])
    ledger.end_attempt(attempt.number, AttemptState.done)
    return unit


def _aged(application: Application, names: Sequence[str], at: dt.datetime, since: float) -> None:
    """Date the logs that were written since: Delta cleans them up by the age of their files.

    Of `data_releases`, overwritten files go after a week; their dates are in its log, so they go here whatever their age.
    """
    if at.weekday() == 0:
        table = DeltaTable(str(application.layout.data_releases_path()))
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    layout = application.layout
    logs = (
        Path(str(place)) / "_delta_log"
        for name in names
        for place in (layout.published_path(name), layout.raw_path(name))
    )
    for folder in (*logs, Path(str(layout.data_releases_path())) / "_delta_log"):
        for entry in os.scandir(folder):
            if entry.stat().st_mtime >= since:
                os.utime(entry.path, (at.timestamp(), at.timestamp()))


def _deliver(application: Application, name: str, day: dt.date, now: dt.datetime) -> None:
    loaded = application.datasets[name]
    path = Path(str(application.settings.sources)) / name / f"{day}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"day\n{day}\n", encoding="utf-8")
    (file,) = discover(loaded, application.layout, [day])
    landed = Delivery(
        name, day, file.path, file.fingerprint, file.size, file.delivered_at, now, rows=1,
        reading=reading_of(loaded.dataset.landing),
    )  # fmt: skip
    raw = {
        DELIVERY_DAY: pa.array([day], pa.date32()), "_source_file": [file.path], "_fingerprint": [file.fingerprint],
        "day": [f"{day}"],
    }  # fmt: skip
    write_deltalake(str(application.layout.raw_path(name)), pa.table(raw), partition_by=[DELIVERY_DAY], mode="append")
    application.ledger.add_deliveries([landed])
