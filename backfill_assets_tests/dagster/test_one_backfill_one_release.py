"""A native backfill in several chunks is one Delta commit, and readers see the old state or the new one."""

from __future__ import annotations

import datetime as dt
import threading

from deltalake import DeltaTable

from backfill_assets.core.days import day_range
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.dagster.lab import Lab, amounts, content

DATASET = "tickets_at_once"
DAYS = day_range(dt.date(2024, 1, 1), dt.date(2024, 1, 6))
HALVED = [{"days": [str(d) for d in DAYS], "metrics": {"amount": "-50%", "row_count": "unchanged"}}]


def _deliver(lab: Lab, amount: int, number: int) -> None:
    for day in DAYS:
        lab.deliver(DATASET, day, [(1, amount), (2, amount)], number)


def _poll(lab: Lab, stop: threading.Event, seen: set[tuple[int, ...]]) -> None:
    path = path_of(lab.application.layout.published_path(DATASET))
    while not stop.wait(0.2):
        published = content(DeltaTable(path))
        seen.add(tuple(sum(published[day].values()) for day in DAYS))


def test_a_backfill_of_two_chunks_is_one_commit_and_readers_never_see_a_mixture(lab: Lab) -> None:
    _deliver(lab, 10, number=1)
    lab.publish(DATASET, DAYS)
    released = lab.version(DATASET)
    assert amounts(lab, DATASET, DAYS) == dict.fromkeys(DAYS, 20)

    _deliver(lab, 5, number=2)
    seen: set[tuple[int, ...]] = set()
    stop = threading.Event()
    reader = threading.Thread(target=_poll, args=(lab, stop, seen))
    reader.start()
    try:
        backfill = lab.launch(DATASET, DAYS, contract=HALVED)
        status = lab.finished(backfill)
    finally:
        stop.set()
        reader.join()

    assert status == "COMPLETED_SUCCESS", lab.failures(backfill)
    assert len(lab.runs(backfill)) == 2
    assert lab.version(DATASET) == released + 1
    assert seen <= {(20,) * len(DAYS), (10,) * len(DAYS)}
    assert amounts(lab, DATASET, DAYS) == dict.fromkeys(DAYS, 10)
    assert {str(d) for d in DAYS} <= lab.materialized("published", DATASET)
    (release, *_) = lab.application.ledger.releases(DATASET)
    assert {s.day for s in release.manifest.days} == set(DAYS)
    evidence = lab.application.ledger.evidence(release.manifest.unit)
    verdicts = {v.check: v for v in evidence[DATASET, DAYS[0]].verdicts}
    assert verdicts["change_amount"].expected == "-50%"
    assert verdicts["change_amount"].found == "20 → 10 (-50.0000%)"
