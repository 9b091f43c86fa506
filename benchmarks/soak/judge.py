"""The judgement at the end of a soak: what readers saw, what the ledger and the log say, what the doctor finds."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

from backfill_assets.core.release import ReleaseKind, ReleaseState
from backfill_assets.core.unit import ReleaseRecord
from benchmarks.soak.found import Found
from benchmarks.soak.model import Commit, Poll, Record, lost_rows, mixed_reads
from benchmarks.soak.readers import KINDS, at_version, looks_in
from benchmarks.soak.site import DATASET, ROWS, Said, Site


def judge(site: Site, found: Found) -> None:
    """Examine everything once it is calm, and record the findings."""
    _examine(site, found)
    polls: list[Poll] = []
    for kind in KINDS:
        looks = looks_in(site.processes.polls(kind))
        polls += looks.polls
        found.reader_errors += looks.errors
        found.polls[kind], found.away[kind] = len(looks.polls), looks.away
    record = record_of(site, polls)
    found.versions, found.days = len(record.views), len(site.deliveries)
    found.deliveries = sum(map(len, site.deliveries.values()))
    found.rows = found.deliveries * ROWS
    released = [r.manifest.kind for r in _releases(site) if r.state is ReleaseState.finalized]
    found.publications = released.count(ReleaseKind.publish)
    found.rollbacks = released.count(ReleaseKind.rollback)
    found.lost, found.mixed = lost_rows(record), mixed_reads(record)


def record_of(site: Site, polls: Sequence[Poll]) -> Record:
    """All that is known at the end: the ledger's releases, and what each version of the table shows."""
    releases = {r.manifest.release: r.manifest for r in _releases(site)}
    commits = []
    for commit in reversed(site.installation.application.tables[DATASET].history()):
        manifest = releases.get(commit.release)
        days: frozenset[dt.date] = frozenset(swap.day for swap in manifest.days) if manifest else frozenset()
        commits.append(Commit(commit.version, commit.release, days, manifest.undoes if manifest else "", commit.at))
    views = {commit.version: at_version(site.table, commit.version) for commit in commits}
    return Record(ROWS, site.deliveries, commits, views, polls)


def left_by_doctor(said: Said) -> tuple[str, ...]:
    """What the doctor finds, without findings that it only mentions."""
    try:
        answer = json.loads(said.out)
    except ValueError:
        return (f"the doctor did not answer: {said.out[-300:]} {said.errors[-500:]}",)
    findings: list[dict[str, Any]] = answer["findings"] if isinstance(answer, dict) else answer
    return tuple(f"{f['severity']}: {f['what']}" for f in findings if f["severity"] != "info")


def _examine(site: Site, found: Found) -> None:
    """Reconcile, then run the doctor: a repair must fix all its findings, and the next examination must find nothing."""
    reconciled = site.command("reconcile")
    if reconciled.code:
        found.crashed.append(f"reconcile: {reconciled.last}")
    found.repaired = left_by_doctor(site.command("doctor", "--json"))
    if found.repaired:
        site.command("doctor", "--repair")
        found.disagreements = left_by_doctor(site.command("doctor", "--json"))
        found.repaired = [one for one in found.repaired if one not in found.disagreements]


def _releases(site: Site) -> Sequence[ReleaseRecord]:
    return site.installation.application.ledger.releases(DATASET)
