"""The demo's story, stage by stage."""

from __future__ import annotations

import calendar
import datetime as dt
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from backfill_assets.application import Application
from backfill_assets.cli.output import console, opened_dagster, say, table
from backfill_assets.cli.watch import follow
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.days import day_range, format_days
from backfill_assets.core.errors import BackfillError
from backfill_assets.core.layers import Layer
from backfill_assets.orchestration.backfills import Launched, launch_backfill
from backfill_assets.orchestration.names import op_name
from backfill_assets.spark.server import SparkServer
from backfill_assets.storage.disk import path_of
from demo.daemon import refuse_second_daemon, running_daemon
from demo.figures import Figures, published_figures
from demo.sources import compose_as_it_was, land_flights

DATASET = "flights"
REDELIVERED = tuple(dt.date(2013, 3, day) for day in (11, 12, 13, 14))
"""The days whose files came twice."""
HALVED = dict.fromkeys(("row_count", "available_seat_miles", "departure_delay", "arrival_delay", "distance"), "-50%")
"""What the correction must do to the four days, exactly; all other metrics must stay as they are."""


class DemoError(BackfillError):
    """Raised when the demo goes wrong."""


@dataclass
class Watch:
    """Measures how long each stage takes, in seconds."""

    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announce a stage and measure it."""
        console.rule(f"[bold]{name}", align="left")
        begin = time.perf_counter()
        yield
        self.stages[name] = time.perf_counter() - begin


def run_demo(months: int) -> None:
    """Play the story on the first `months` months of 2013; can be played again on the same state.

    Raises:
        DemoError: a backfill failed, or the published figures are not the expected ones.
    """
    _default_home()
    refuse_second_daemon()
    last = dt.date(2013, months, calendar.monthrange(2013, months)[1])
    application = Application.from_env()
    watch = Watch()
    with watch.stage("1. Land real departures of New York, 2013, as daily files; four days are delivered twice"):
        report = land_flights(path_of(application.settings.sources), dt.date(2013, 1, 1), last, REDELIVERED)
        say(f"{report.rows:,} departures in {report.files} files under {application.settings.sources}")
    with watch.stage("2. Start the warm Spark server"):
        say(f"Spark Connect at {SparkServer(application.settings).ensure().url}")
    with watch.stage("3. Build the published history with the model of that time, which kept both deliveries"):
        _build_wrong_history(application, last)
    before = published_figures(application.layout.published_path(DATASET), REDELIVERED)
    with watch.stage("4. Correct the model: of each key, the latest delivery wins; backfill the four days"):
        _show_correction(application)
        _correct(application)
    after = published_figures(application.layout.published_path(DATASET), REDELIVERED)
    _finish(application, before, after, watch)


def _default_home() -> None:
    # `make demo` sets both; a plain `python -m demo` should not ask for more.
    os.environ.setdefault("DAGSTER_HOME", str(Path.cwd()))
    state = os.environ.setdefault("BACKFILL_ASSETS_STATE", str(Path.cwd() / ".state"))
    os.environ.setdefault("BACKFILL_ASSETS_DAGSTER_STATE", str(Path(state) / "dagster"))
    Path(os.environ["BACKFILL_ASSETS_DAGSTER_STATE"]).mkdir(parents=True, exist_ok=True)


def _build_wrong_history(application: Application, last: dt.date) -> None:
    as_it_was = application.settings.state / "demo" / "datasets"
    compose_as_it_was(as_it_was)
    history = day_range(dt.date(2013, 1, 1), last)
    active = application.tables[DATASET].active()
    again = all(active.get(day) for day in history)
    days = REDELIVERED if again else history
    # In a second run the four days are already right, and even a demo may not double them without a promise.
    doubling = _expecting(dict.fromkeys(HALVED, "0% to 100%")) if again else {}
    variables = {"BACKFILL_ASSETS_DATASETS": str(as_it_was), "BACKFILL_ASSETS_CHUNK": "122"}
    request = BackfillRequest(
        {DATASET: tuple(Layer)},
        days,
        title="history, as it was",
        description="the model of that time: both deliveries are kept",
        run_config=doubling,
    )
    _launch_and_follow(application, request, variables)


def _show_correction(application: Application) -> None:
    say("- staging: {deduplicate: none}              # as it was")
    say("+ staging: {deduplicate: latest_delivery}   # corrected")
    say(
        f"expected change of {format_days(REDELIVERED)}: {', '.join(f'{m} {c}' for m, c in HALVED.items())}, others unchanged"
    )
    say(f"datasets: {application.settings.datasets}")


def _correct(application: Application) -> None:
    request = BackfillRequest(
        {DATASET: tuple(Layer)},
        REDELIVERED,
        title="re-delivered files counted once",
        description="four days were doubled by a second delivery of their files",
        run_config=_expecting(HALVED),
    )
    _launch_and_follow(application, request, {})
    unit = application.ledger.releases(DATASET)[0].manifest.unit
    evidence = application.ledger.evidence(unit)
    rows = [
        (
            e.day,
            f"{sum(v.passed for v in e.verdicts)} of {len(e.verdicts)}",
            "; ".join(v.check for v in e.verdicts if not v.passed),
        )
        for e in evidence.values()
    ]
    table(("day", "checks passed", "warnings"), rows, "Checks per day")


def _expecting(changes: Mapping[str, str]) -> Mapping[str, object]:
    contract = [{"days": [str(day) for day in REDELIVERED], "metrics": dict(changes)}]
    return {"ops": {op_name(Layer.shadow, DATASET): {"config": {"expected_change": contract}}}}


def _launch_and_follow(application: Application, request: BackfillRequest, variables: Mapping[str, str]) -> None:
    log = application.settings.state / "demo" / "daemon.log"
    with running_daemon(log, variables), opened_dagster() as instance:
        launched = Launched(launch_backfill(request), {DATASET: request.days})
        say(f"launched native backfill {launched.backfill} of {len(request.days)} partitions")
        state = follow(application, instance, launched)
    if state.failure:
        raise DemoError(f"{state.failure}; look at it with: make dev (log of the daemon: {log})")


def _finish(
    application: Application, before: Mapping[dt.date, Figures], after: Mapping[dt.date, Figures], watch: Watch
) -> None:
    rows, wrong = [], []
    for day in REDELIVERED:
        expected = Figures(before[day].departures // 2, before[day].seat_miles // 2)
        wrong += [day] if after[day] != expected else []
        shown = (before[day], after[day], expected)
        rows.append((day, *(f"{f.departures:,}" for f in shown), *(f"{f.seat_miles:,}" for f in shown)))
    columns = (
        "day",
        *(f"{what} {when}" for what in ("departures", "seat miles") for when in ("before", "after", "expected")),
    )
    table(columns, rows, "Read back from the published table")
    release = application.ledger.releases(DATASET)[0].manifest
    table(
        ("stage", "seconds"), [(name, f"{seconds:.1f}") for name, seconds in watch.stages.items()], "How long it took"
    )
    if wrong:
        raise DemoError(f"the published figures of {format_days(wrong)} are not the expected ones")
    say(f"release {release.release} of unit {release.unit}; undo it with:")
    say(f"    backfill rollback {release.release} --reason 'only trying'")
    say("look at the partitions, the checks of every day and the release in the Dagster UI:")
    say("    make dev")
