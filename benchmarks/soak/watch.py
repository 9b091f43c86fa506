"""What a soak observes while it runs: the situation to act on, and what long-lived processes use."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import dagster as dg
import psutil
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES, BulkActionsFilter, BulkActionStatus
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from backfill_assets.application import Application
from backfill_assets.campaign.state import CAMPAIGN_TAG
from backfill_assets.core.days import ONE_DAY
from backfill_assets.core.release import ReleaseKind, ReleaseState
from backfill_assets.core.unit import LIVE_TAG, UNIT_TAG, ReleaseRecord, UnitState
from backfill_assets.orchestration.services import services_of
from backfill_assets.spark.start import TABLES_KEPT
from benchmarks.soak.actions import Situation
from benchmarks.soak.processes import SPARK, Processes
from benchmarks.soak.site import DATASET, Site
from benchmarks.soak.trend import Sample, Trend, trend_of

FIRST_DAY: Final = dt.date(2024, 1, 1)
_RECENT: Final = 5
"""So many of the newest releases may be rolled back."""
_SAMPLE_SECONDS: Final = 5.0
_COLLECT_SECONDS: Final = 30.0
_DELTA_LOGS: Final = re.compile(r"^\s*\d+:\s+(\d+)\s+\d+\s+org\.apache\.spark\.sql\.delta\.DeltaLog\s*$", re.MULTILINE)
_TABLE_BYTES: Final = 3_000_000
"""Bytes of a table that Delta keeps: its plans, and the session that first used it. Measured with 25 to 150 tables."""
_ACTIVE: Final = [status for status in BulkActionStatus if status not in BULK_ACTION_TERMINAL_STATUSES]
_AT_WORK: Final = frozenset({"planned", "canary", "running", "paused", "stopped", "stale", "validated", "approved"})


class Watcher:
    """Reads ledger and Dagster, as long as the soak lasts."""

    def __init__(self, site: Site, instance: dg.DagsterInstance) -> None:
        self._site = site
        self._instance = instance
        self._application = site.installation.application

    def situation(self) -> Situation:
        """The possible targets now."""
        ledger, days = self._application.ledger, tuple(sorted(self._site.deliveries))
        active = self._instance.get_backfills(filters=BulkActionsFilter(statuses=_ACTIVE))
        runs = self._instance.get_runs(dg.RunsFilter(statuses=list(NOT_FINISHED_STATUSES)))
        busy = {b.backfill_id for b in active} | {r.run_id for r in runs}
        busy |= {tags[UNIT_TAG] for tags in (*(b.tags for b in active), *(r.tags for r in runs)) if UNIT_TAG in tags}
        units = [u for u in ledger.units(states={UnitState.open}) if not u.campaign]
        return Situation(
            days=days,
            next_day=days[-1] + ONE_DAY if days else FIRST_DAY,
            live=sum(LIVE_TAG in run.tags for run in runs),
            backfills=sum(CAMPAIGN_TAG not in backfill.tags for backfill in active),
            campaigns=_campaigns(self._application, self._instance),
            units=tuple(u.id for u in units if not {u.id, u.opened_by} & busy),
            releases=_restorable(ledger.releases(DATASET)),
            claimed=frozenset(ledger.claims(DATASET, days)),
            idle=not active and not runs,
        )

    def held(self) -> Collection[dt.date]:
        """Days that live runs must leave alone after a rollback."""
        return {hold.target[1] for hold in self._application.ledger.holds(DATASET)}


def _campaigns(application: Application, instance: dg.DagsterInstance) -> Mapping[str, str]:
    # By the units: a killed launch has claimed its days, and the campaign may not know it yet.
    names = sorted({u.campaign for u in application.ledger.units(states={UnitState.open}) if u.campaign})
    standings = services_of(application, instance).standings if names else None
    found = {name: standings.of(name).state.value for name in names} if standings else {}
    return {name: state for name, state in found.items() if state in _AT_WORK}


def _restorable(records: Sequence[ReleaseRecord]) -> tuple[str, ...]:
    finalized = [r.manifest for r in records if r.state is ReleaseState.finalized]
    undone = {m.undoes for m in finalized if m.undoes}
    published = [m.release for m in finalized if m.kind is ReleaseKind.publish and m.release not in undone]
    return tuple(published[:_RECENT])


class Meter(threading.Thread):
    """Samples memory and open files of the long-lived processes every few seconds, also into a file for later.

    `troubles` are errors of the sampling itself.
    """

    def __init__(self, processes: Processes, file: Path) -> None:
        super().__init__(name="meter", daemon=True)
        self._processes = processes
        self._file = file
        self._ended = threading.Event()
        self._samples: dict[tuple[str, int], list[Sample]] = {}
        self._collected = 0.0
        self.troubles: list[str] = []

    def run(self) -> None:
        """Sample until `stop`."""
        begin = time.monotonic()
        while not self._ended.wait(_SAMPLE_SECONDS):
            try:
                self._look(time.monotonic() - begin)
            except Exception as error:  # noqa: BLE001  # any error is reported, and the next check may succeed
                self.troubles.append(f"a look at memory: {type(error).__name__}: {error}")

    def stop(self) -> None:
        """End the sampling."""
        self._ended.set()
        self.join()

    def trends(self) -> tuple[Trend, ...]:
        """The process of each role that was sampled longest."""
        longest: dict[str, list[Sample]] = {}
        for (role, _), samples in self._samples.items():
            if role not in longest or samples[-1].at - samples[0].at > longest[role][-1].at - longest[role][0].at:
                longest[role] = samples
        return tuple(trend_of(role, longest[role]) for role in sorted(longest))

    def _look(self, at: float) -> None:
        collects = at - self._collected >= _COLLECT_SECONDS
        self._collected = at if collects else self._collected
        for role, process in self._processes.long_lived().items():
            if role == SPARK and not collects:
                continue
            # Processes are killed all the time here.
            with contextlib.suppress(psutil.Error):
                uncounted = _uncounted(process.pid) if role == SPARK else 0
                if uncounted is None:
                    continue
                sample = Sample(at, process.memory_info().rss - uncounted, process.num_fds())
                self._samples.setdefault((role, process.pid), []).append(sample)
                line = {"role": role, "pid": process.pid, **asdict(sample)}
                with self._file.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(line) + "\n")


def _uncounted(jvm: int) -> int | None:
    """Bytes of a JVM that grow up to a limit, after a garbage collection; None if it does not answer.

    Its heap takes all that it may, whatever it uses, and Delta keeps some tables: only the rest shows
    whether something is never given back.
    """
    jcmd, jstat = shutil.which("jcmd"), shutil.which("jstat")
    if not jcmd or not jstat:
        return 0  # without a JDK no tool can ask the JVM
    with contextlib.suppress(subprocess.TimeoutExpired):
        objects = _answer(jcmd, str(jvm), "GC.class_histogram")
        spare = spare_bytes(_answer(jstat, "-gc", str(jvm)))
        return None if spare is None else spare + tables_kept(objects) * _TABLE_BYTES
    return None  # it was killed just now, or is too busy


def _answer(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_COLLECT_SECONDS, check=False, env=os.environ | {"LC_ALL": "C"}
    ).stdout


def tables_kept(said: str) -> int:
    """How many tables Delta keeps within its limit, by the living objects in `jcmd GC.class_histogram`."""
    found = _DELTA_LOGS.search(said)
    return min(int(found[1]), TABLES_KEPT) if found else 0


def spare_bytes(said: str) -> int | None:
    """Bytes of the heap that a JVM does not need, by `jstat -gc` right after a garbage collection; None without an answer.

    Columns are in KB: capacity (C) and use (U) of both survivor spaces (S0, S1), eden (E) and the old generation (O).
    Source: https://docs.oracle.com/en/java/javase/17/docs/specs/man/jstat.html. The objects in eden were allocated since.
    """
    lines = [line.split() for line in said.splitlines()]
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):  # noqa: PLR2004  # names and figures
        return None
    value = dict(zip(*lines, strict=True))
    taken = sum(float(value[f"{space}C"]) for space in ("S0", "S1", "E", "O"))
    return int((taken - sum(float(value[f"{space}U"]) for space in ("S0", "S1", "O"))) * 1024)
