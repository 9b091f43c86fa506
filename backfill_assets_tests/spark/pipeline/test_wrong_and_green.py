"""Ways to publish wrong rows with every check green, each tried on the real pipeline: refused by name, or right.

`docs/proof.md` lists them; each of these tests failed before the way was closed.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib
import itertools
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import cast

import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.application import Application
from backfill_assets.core.errors import EvidenceError, SourceError
from backfill_assets.core.evidence import DayEvidence, Verdict
from backfill_assets.core.expected_change import parse_contract
from backfill_assets.core.unit import Attempt, Unit, UnitState
from backfill_assets.evidence.raw_contents import DELIVERY_DAY
from backfill_assets.pipeline import land as landing
from backfill_assets.pipeline.deliveries import Chosen
from backfill_assets.pipeline.land import land
from backfill_assets.pipeline.raw_table import read_in_force
from backfill_assets.pipeline.tables import read_days
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.sources import discover
from backfill_assets_tests.harness.between import Died, between
from backfill_assets_tests.harness.without_dagster import build, built, judged, opened, publish
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, D4, DAYS, FACT, NOW, STAGING, TRIPS, Kit, values


def verdict(evidence: DayEvidence, check: str) -> Verdict:
    return next(v for v in evidence.verdicts if v.check == check)


def test_the_file_of_the_next_day_does_not_stand_in_for_that_of_a_day(kit: Kit) -> None:
    kit.dataset(source={**TRIPS["source"], "late_days": 1})  # type: ignore[dict-item]
    kit.deliver(D2, f"{D2},1,a,10,1.00")
    application = Application(kit.settings)
    evidence = judged(application, built(application, kit.spark, "trips", (D1, D2)), "trips")
    present = verdict(evidence[D1], "source_present")
    assert present.refuses
    assert present.found == "none"
    assert "files of later days, with 1 row, do not replace" in present.note
    assert not any(v.refuses for v in evidence[D2].verdicts)


BY_KIND: dict[str, object] = {"key": ["day", "kind"], "measures": {"fee": {}}, "checks": {}}


def test_rows_that_come_under_other_keys_are_refused_unless_they_are_promised(kit: Kit) -> None:
    kit.dataset(**BY_KIND)
    kit.deliver(D1, f"{D1},1,a,10,1.00", f"{D1},2,b,10,2.00")
    publish(Application(kit.settings), kit.spark, "trips", (D1,))
    kit.dataset(fact="SELECT day, id, upper(kind) AS kind, amount, fee FROM staging", **BY_KIND)
    application = Application(kit.settings)
    unit = built(application, kit.spark, "trips", (D1,))
    day = judged(application, unit, "trips")[D1]
    assert [v.check for v in day.verdicts if v.refuses] == ["change_keys"]
    assert verdict(day, "change_keys").found == "2 added and 2 removed of 2 rows"
    sentence = application.reviews.of(unit.id).judgement.sentence
    assert "structural check change_keys of trips fails" in sentence
    application.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    promised = {"rows": {"added": "100%", "removed": "100%"}}
    unit = built(application, kit.spark, "trips", (D1,), promised)
    day = judged(application, unit, "trips")[D1]
    assert day.passed
    assert "2 rows removed and 2 added" in application.reviews.of(unit.id).judgement.sentence


def test_rows_that_come_and_go_with_a_newer_delivery_need_no_promise(kit: Kit) -> None:
    kit.dataset(fact=f"{FACT} WHERE amount > 0", **BY_KIND)
    kit.deliver(D1, f"{D1},1,a,10,1.00", f"{D1},2,b,10,2.00")
    application = Application(kit.settings)
    publish(application, kit.spark, "trips", (D1,))
    kit.deliver(D1, f"{D1},2,b,-1,2.00", f"{D1},3,c,10,2.00", part="-late", hour=1)
    keys = verdict(judged(application, built(application, kit.spark, "trips", (D1,)), "trips")[D1], "change_keys")
    assert (keys.passed, keys.found) == (
        True,
        "1 added and 1 removed of 2 rows, 2 of them with keys of deliveries that came or went",
    )


ROLLING = """
SELECT day, id, kind, amount, CAST(sum(fee) OVER (
    ORDER BY day RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW
) AS decimal(12, 2)) AS fee FROM staging
"""


def test_days_that_a_day_looks_back_at_are_landed_with_it_or_named_as_missing(kit: Kit) -> None:
    kit.dataset(fact=ROLLING, lookback_days=1)
    kit.deliver(D2, f"{D2},1,a,50,20.00")
    application = Application(kit.settings)
    unit = built(application, kit.spark, "trips", (D2,))
    present = verdict(judged(application, unit, "trips")[D2], "source_present")
    assert (present.refuses, present.found) == (True, f"1 deliveries, none for {D1}, which the day looks back at")
    kit.deliver(D1, f"{D1},1,a,50,10.00")
    assert application.pipeline.days_to_land("trips", (D2,)) == (D2,)
    # A launch of only the shadow.
    attempt = application.ledger.start_attempt(unit.id, "trips", (D2,), unit.id, dt.timedelta(minutes=10))
    application.pipeline.build(kit.spark, unit, attempt)
    application.pipeline.validate(kit.spark, unit, attempt)
    evidence = judged(application, unit, "trips")[D2]
    assert [v for v in evidence.verdicts if v.refuses] == []
    assert evidence.measured.shadow.metrics["fee"] == Decimal("30.00")


TWO_DAYS = """
SELECT day, CAST(sum(coalesce(sum(fee), 0)) OVER (
    ORDER BY day RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW
) AS decimal(22, 2)) AS fee FROM trips GROUP BY day
"""


def two_days(kit: Kit, on_missing: str = "fail") -> None:
    """The dataset `totals`: the fees of `trips` of a day and of the day before it."""
    kit.derived(
        TWO_DAYS,
        key=["day"],
        columns={"day": {"type": "date"}, "fee": {"type": "decimal(22,2)"}},
        upstream={"trips": {"lookback_days": 1, "on_missing": on_missing}},
    )


def discard(application: Application, unit: Unit) -> None:
    application.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)


def test_an_upstream_day_that_is_looked_back_at_is_published_or_named_as_missing(kit: Kit) -> None:
    """The day had failed its checks, or was rolled back: the next day was published with half of its fees."""
    kit.dataset(source={**TRIPS["source"], "on_missing": "pass"})  # type: ignore[dict-item]
    two_days(kit)
    for day in (D1, D3):
        kit.deliver(day, f"{day},1,a,50,10.00")
    application = Application(kit.settings)
    publish(application, kit.spark, "trips", (D1, D3))
    unit = built(application, kit.spark, "totals", (D1, D3))
    evidence = judged(application, unit, "totals")
    assert [v for v in evidence[D1].verdicts if v.refuses] == []
    assert [v.check for v in evidence[D3].verdicts if v.refuses] == ["upstream_present"]
    present = verdict(evidence[D3], "upstream_present")
    assert present.found == f"1 of trips, none of trips for {D2}, which the day looks back at"
    discard(application, unit)
    # A day of the same unit is no gap, even without a row, and neither is a day that was released without one.
    unit = opened(application, {"trips": (D2,), "totals": (D3,)})
    build(application, kit.spark, unit)
    assert [v for v in judged(application, unit, "totals")[D3].verdicts if v.refuses] == []
    discard(application, unit)
    publish(application, kit.spark, "trips", (D2,))
    unit = built(application, kit.spark, "totals", (D3,))
    assert [v for v in judged(application, unit, "totals")[D3].verdicts if v.refuses] == []
    discard(application, unit)
    # The release is rolled back.
    (record, *_) = application.ledger.releases("trips")
    application.rollback.execute(record.manifest.release, "wrong")
    unit = built(application, kit.spark, "totals", (D3,))
    assert verdict(judged(application, unit, "totals")[D3], "upstream_present").refuses
    discard(application, unit)
    two_days(kit, on_missing="pass")
    lenient = Application(kit.settings)
    assert judged(lenient, built(lenient, kit.spark, "totals", (D3,)), "totals")[D3].passed


def test_a_column_that_upstream_days_were_built_without_is_named_as_missing(kit: Kit) -> None:
    """Delta fills it with null, which the model replaced by 0."""
    columns = dict(cast("dict[str, object]", TRIPS["columns"]))
    del columns["fee"]
    plain: dict[str, object] = {"measures": {"amount": {}}, "checks": {}}
    kit.dataset(fact="SELECT day, id, kind, amount FROM staging", columns=columns, **plain)
    kit.deliver(D1, f"{D1},1,a,50,")
    kit.deliver(D2, f"{D2},1,a,50,10.00")
    publish(Application(kit.settings), kit.spark, "trips", (D1, D2))
    kit.dataset(**plain)
    two_days(kit)
    application = Application(kit.settings)

    def refused(targets: dict[str, tuple[dt.date, ...]], days: str) -> None:
        unit = opened(application, targets)
        with pytest.raises(
            SourceError, match=rf"trips was built without .*: fee of {days}; launch trips for these days"
        ):
            build(application, kit.spark, unit)
        discard(application, unit)

    # The table does not have the column; then it has it, but older files do not.
    refused({"totals": (D2,)}, f"{D1}..{D2}")
    refused({"trips": (D2,), "totals": (D2,)}, f"{D1}")
    publish(application, kit.spark, "trips", (D2,))
    refused({"totals": (D2,)}, f"{D1}")
    # A day that was built with it is read, even if it is null in each row.
    unit = opened(application, {"trips": (D1,), "totals": (D1, D2)})
    build(application, kit.spark, unit)
    evidence = judged(application, unit, "totals")
    assert [v for day in (D1, D2) for v in evidence[day].verdicts if v.refuses] == []
    application.publisher.release(unit.id)
    table = kit.table(path_of(kit.layout.published_path("totals")))
    assert values(table, "day", "fee") == [(D1, Decimal("0.00")), (D2, Decimal("10.00"))]


def test_upstream_days_that_come_and_go_while_a_day_is_built_are_not_published(kit: Kit) -> None:
    """The evidence named the published state before and after, but the shadow was built from a state in between."""
    trips = kit.dataset()
    two_days(kit, on_missing="pass")
    kit.publish(trips, kit.rows((D1, 1, "a", 50.0, Decimal(10))))
    other = kit.rows((D1, 1, "a", 50.0, Decimal(99)))
    application = Application(kit.settings)
    table = path_of(kit.layout.published_path("trips"))

    def comes() -> None:
        kit.publish(trips, other)

    def goes() -> None:
        DeltaTable(table).restore(DeltaTable(table).version() - 1)

    def fees(ticks: list[Callable[[], None]], looks: list[Callable[[], None]]) -> list[Decimal]:
        """Other processes act whenever this pipeline asks for the time, and whenever it reads the version of the upstream."""

        def next_of(acts: list[Callable[[], None]]) -> Callable[[str], None]:
            return lambda _call: acts.pop(0)() if acts else None

        clock = between(application.clock, {"now"}, before=next_of(ticks))
        tables = {
            **application.pipeline.tables,
            "trips": between(application.pipeline.tables["trips"], {"version"}, before=next_of(looks)),
        }
        pipeline = replace(application.pipeline, warehouse=replace(application.warehouse, clock=clock, tables=tables))
        unit = opened(application, {"totals": (D1,)})
        attempt = application.ledger.start_attempt(unit.id, "totals", (D1,), unit.id, dt.timedelta(minutes=10))
        pipeline.build(kit.spark, unit, attempt)
        # It is fresh: a release would find no change.
        assert judged(application, unit, "totals")[D1].basis.upstream == application.basis.upstream("totals", (D1,))[D1]
        discard(application, unit)
        shadow = DeltaTable(path_of(kit.layout.published_path("totals")) / attempt.folder)
        found: list[Decimal] = shadow.to_pyarrow_table(columns=["fee"])["fee"].to_pylist()
        return found

    # The time is asked for before the upstream is read, and after the shadow is built.
    assert fees([comes, goes], []) == [Decimal(10)]
    # Also if it is gone before the next check.
    assert fees([comes], [lambda: None, goes]) == [Decimal(10)]
    with pytest.raises(
        EvidenceError, match="an upstream, source or reference changed 3 times while its shadow was built"
    ):
        fees([comes, goes, comes], [])


RUNNING = "SELECT day, id, kind, amount, CAST(sum(fee) OVER (ORDER BY day) AS decimal(12, 2)) AS fee FROM staging"


def test_a_fact_that_depends_on_how_a_launch_is_cut_is_refused(kit: Kit) -> None:
    kit.dataset(fact=RUNNING, lookback_days=1)
    for day in DAYS:
        kit.deliver(day, f"{day},1,a,100,10.00")
    application = Application(kit.settings)
    unit = built(application, kit.spark, "trips", DAYS)
    evidence = judged(application, unit, "trips")
    assert evidence[D4].measured.shadow.metrics["fee"] == Decimal("40.00")
    # Days that were not built alone are as wrong as those that were.
    assert [[v.check for v in evidence[day].verdicts if v.refuses] for day in DAYS] == [["same_alone"]] * 4
    assert f"{D4}: 1 of 1 row differ when built alone" in verdict(evidence[D1], "same_alone").found
    assert "structural check same_alone of trips fails" in application.reviews.of(unit.id).judgement.sentence
    application.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    # Another order of summed doubles does not make another row.
    kit.dataset(
        fact=ROLLING.replace("amount,", "sum(amount + 0.1) OVER (PARTITION BY day) AS amount,"), lookback_days=1
    )
    application = Application(kit.settings)
    evidence = judged(application, built(application, kit.spark, "trips", DAYS), "trips")
    assert [v for day in DAYS for v in evidence[day].verdicts if v.refuses] == []
    assert verdict(evidence[D4], "same_alone").found.endswith(str(D4))
    assert evidence[D4].measured.shadow.metrics["fee"] == Decimal("20.00")


def test_rows_that_raw_has_lost_are_landed_again_or_named_as_missing(kit: Kit) -> None:
    loaded = kit.dataset()
    file = kit.deliver(D1, f"{D1},1,a,10,1.00")
    application = Application(kit.settings)
    application.pipeline.land(kit.spark, "trips", (D1,))
    known = application.ledger.deliveries("trips", [D1])
    # Raw from an earlier backup.
    shutil.rmtree(path_of(kit.layout.raw_path("trips")))
    os.utime(file, (1, 1))
    assert application.pipeline.days_to_land("trips", (D1,)) == (D1,)
    with pytest.raises(SourceError, match="has fewer rows of 2024-02-28 than were landed; launch raw of these days"):
        application.pipeline.stage(kit.spark, "trips", (D1,))
    assert application.pipeline.land(kit.spark, "trips", (D1,)).new == ()
    assert values(kit.raw(loaded), "id", "_delivered_at") == [(1, known[0].delivered_at.replace(tzinfo=None))]
    assert judged(application, built(application, kit.spark, "trips", (D1,)), "trips")[D1].passed
    shutil.rmtree(path_of(kit.layout.raw_path("trips")))
    shutil.rmtree(path_of(kit.layout.staging_path("trips")))
    file.write_text("another one")
    with pytest.raises(SourceError, match=rf"trips/{D1}.csv is no longer among the sources as landed then; restore"):
        application.pipeline.stage(kit.spark, "trips", (D1,))


def test_unknown_rows_do_not_stand_in_for_rows_that_raw_has_lost(kit: Kit) -> None:
    """Raw has as many rows as were landed that day, but of another file: the day was published without its own rows."""
    kit.dataset()
    kit.deliver(D1, f"{D1},1,a,10,1.00", f"{D1},2,a,10,1.00")
    application = Application(kit.settings)
    application.pipeline.land(kit.spark, "trips", (D1,))
    DeltaTable(path_of(kit.layout.raw_path("trips"))).update(updates={"_source_file": "'trips/other.csv'"})
    assert application.pipeline.days_to_land("trips", (D1,)) == ()
    match = (
        rf"raw has 0 rows of trips/{D1}.csv, but 2 were landed.* backfill reland trips --prefix trips/{D1}.csv --reason"
    )
    with pytest.raises(SourceError, match=match):
        application.pipeline.stage(kit.spark, "trips", (D1,))
    application.delivery_commands.reland(kit.spark, "trips", Chosen(days=(D1,)), "rows of it were lost")
    # The other file no longer exists: as docs/deliveries.md says, its rows are deleted.
    with pytest.raises(
        SourceError, match=r"raw has rows of trips/other.csv \(\w{8}\) that the ledger does not know"
    ) as refused:
        application.pipeline.stage(kit.spark, "trips", (D1,))
    digits = re.findall(r"\((\w{8})\)", str(refused.value))[0]
    DeltaTable(path_of(kit.layout.raw_path("trips"))).delete(
        f"_delivery_day = '{D1}' AND _source_file = 'trips/other.csv' AND _fingerprint LIKE '{digits}%'"
    )
    assert application.pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 2}
    # Rows that are there twice are not accepted either.
    rows = DeltaTable(path_of(kit.layout.raw_path("trips"))).to_pyarrow_table()
    write_deltalake(path_of(kit.layout.raw_path("trips")), rows, mode="append")
    shutil.rmtree(path_of(kit.layout.staging_path("trips")))
    doubled = rf"raw has 4 rows of trips/{D1}.csv, but 2 were landed"
    with pytest.raises(SourceError, match=doubled):
        application.pipeline.stage(kit.spark, "trips", (D1,))
    # Another reading does not change their number.
    kit.dataset(source={**TRIPS["source"], "optional": ["kind"]})  # type: ignore[dict-item]
    with pytest.raises(SourceError, match=doubled):
        Application(kit.settings).pipeline.stage(kit.spark, "trips", (D1,))


def test_unknown_rows_of_files_that_are_gone_are_refused_by_the_name_of_the_file(kit: Kit) -> None:
    """The ledger came from a dump before they landed: the day was built from the earlier deliveries."""
    source = {**TRIPS["source"], "removed_after_landing": True}  # type: ignore[dict-item]
    loaded = kit.dataset(source=source)
    application = Application(kit.settings)
    pipeline = application.pipeline
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    pipeline.land(kit.spark, "trips", (D1,))
    assert pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 1}
    # The one that came last is not the first one by fingerprint.
    for amount in (30, 20):
        file = kit.deliver(D1, f"{D1},1,a,{amount},1.00")
        # As by a landing that died before it reached the ledger.
        land(kit.spark, loaded, kit.layout, discover(loaded, kit.layout, [D1]), application.clock.now())
    # The next landing will record it, or the file that has replaced it by then.
    pipeline.require_known("trips", (D1,))
    unknown = file.read_bytes()
    kit.deliver(D1, f"{D1},1,a,15,1.00")
    pipeline.require_known("trips", (D1,))
    file.unlink()
    missed = (
        rf"raw has rows of trips/{D1}.csv \({hashlib.sha256(unknown).hexdigest()[:8]}\) that the ledger does not know"
    )
    back = rf"put the file back with this content, the newest there, and launch raw of {D1}\."
    with pytest.raises(SourceError, match=f"{missed} .*, or {back}"):
        pipeline.stage(kit.spark, "trips", (D1,))
    file.write_bytes(unknown)
    assert [one.rows for one in pipeline.land(kit.spark, "trips", (D1,)).new] == [1]
    assert pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 1}
    assert values(kit.staged(loaded), "amount") == [(20.0,)]
    # The files that it has superseded need not be put back.
    file.unlink()
    pipeline.require_known("trips", (D1,))


def test_raw_is_counted_and_read_at_one_version(kit: Kit) -> None:
    """Rows vanished from raw after they were counted and before they were read; or all of raw vanished."""
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,10,1.00", f"{D1},2,a,10,1.00")
    kit.land(loaded, D1)
    raw, force = path_of(kit.layout.raw_path("trips")), kit.in_force(loaded)
    counted = read_in_force(kit.spark, loaded, kit.layout, [D1], force)
    (commit,) = (raw / "_delta_log").glob("*.json")
    DeltaTable(raw).delete()
    # Delta itself refuses a version older than a week that is no longer the newest.
    os.utime(commit, (NOW.timestamp(), NOW.timestamp()))
    unmet = shutil.copytree(raw, raw.with_name("unmet"))
    assert read_days(kit.spark, OnDisk(unmet), DELIVERY_DAY, [D1], version=0).count() == counted.count() == 2
    shutil.rmtree(raw)
    with pytest.raises(SourceError, match=rf"raw has 0 rows of trips/{D1}.csv, but 2 were landed"):
        read_in_force(kit.spark, loaded, kit.layout, [D1], force)


def test_rows_that_another_process_stages_meanwhile_are_not_published_under_this_code(kit: Kit) -> None:
    kit.dataset(staging=STAGING.replace("fee", "fee * 2 AS fee"))
    old = Application(kit.settings)
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    kit.dataset()
    application = Application(kit.settings)
    unit = opened(application, {"trips": (D1,)})
    others = iter(range(2))

    def stages(_call: str) -> None:
        if next(others, None) is not None:
            old.pipeline.stage(kit.spark, "trips", (D1,))

    busy = between(application.ledger, {"add_staged"}, after=stages)
    pipeline = replace(application.pipeline, warehouse=replace(application.warehouse, ledger=busy))
    pipeline.land(kit.spark, "trips", (D1,))
    attempt = application.ledger.start_attempt(unit.id, "trips", (D1,), unit.id, dt.timedelta(minutes=10))
    pipeline.build(kit.spark, unit, attempt)
    pipeline.validate(kit.spark, unit, attempt)
    evidence = judged(application, unit, "trips")[D1]
    assert (next(others, None), evidence.measured.shadow.metrics["fee"]) == (None, Decimal("1.00"))
    attempt = application.ledger.start_attempt(unit.id, "trips", (D1,), unit.id, dt.timedelta(minutes=10))
    pipeline.build(kit.spark, unit, attempt)
    old.pipeline.stage(kit.spark, "trips", (D1,))
    with pytest.raises(EvidenceError, match="other code has staged these days while they were checked"):
        pipeline.validate(kit.spark, unit, attempt)
    others = iter(range(3))
    attempt = application.ledger.start_attempt(unit.id, "trips", (D1,), unit.id, dt.timedelta(minutes=10))
    shutil.rmtree(path_of(kit.layout.staging_path("trips")))
    with pytest.raises(EvidenceError, match="staging changed 3 times while its shadow was built"):
        pipeline.build(kit.spark, unit, attempt)


@pytest.mark.parametrize("launches", [1, 3])
def test_days_that_another_launch_of_the_same_code_stages_meanwhile_are_checked_again(kit: Kit, launches: int) -> None:
    kit.dataset(staging=STAGING.replace("fee", "fee * 2 AS fee"))
    old = Application(kit.settings)
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    kit.dataset()
    application = Application(kit.settings)
    unit = opened(application, {"trips": (D1,)})
    pipeline = application.pipeline
    pipeline.land(kit.spark, "trips", (D1,))
    attempt = application.ledger.start_attempt(unit.id, "trips", (D1,), unit.id, dt.timedelta(minutes=10))
    pipeline.build(kit.spark, unit, attempt)
    # Asked before each try; in it before the figures, between them and after them; and after it.
    asked, staged = itertools.count(), []

    def stages(_call: str) -> None:
        if next(asked) % 5 == 2 and len(staged) < launches:
            staged.append(D1)
            old.pipeline.stage(kit.spark, "trips", (D1,))
            application.pipeline.stage(kit.spark, "trips", (D1,))

    busy = between(application.ledger, {"staged"}, before=stages)
    checks = replace(pipeline, warehouse=replace(application.warehouse, ledger=busy))
    if launches == 3:
        with pytest.raises(
            EvidenceError, match="staging, a reference or a golden file changed 3 times while these days"
        ):
            checks.validate(kit.spark, unit, attempt)
        return
    (evidence,) = checks.validate(kit.spark, unit, attempt)
    assert (len(staged), evidence.measured.shadow.metrics["fee"]) == (1, Decimal("1.00"))
    assert judged(application, unit, "trips")[D1] == evidence


PYTHON_STAGING = "def staging(raw):\n    return raw.select('day', 'id', 'kind', 'amount', 'fee', '_lineage')\n"
PYTHON_FACT = """
from pyspark.sql import functions as F
def fact(staging):
    from trips_fees import factor
    return staging.select('day', 'id', 'kind', 'amount', (F.col('fee') * factor()).cast('decimal(12, 2)').alias('fee'))
"""


def test_the_code_that_runs_is_the_code_that_evidence_names(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    def deploy(factor: int) -> None:
        (kit.root / "trips_fees.py").write_text(f"def factor():\n    return {factor}\n")

    monkeypatch.syspath_prepend(str(kit.root))
    deploy(1)
    # This process has an old version of the module.
    importlib.import_module("trips_fees")
    deploy(22)
    kit.dataset(PYTHON_STAGING, PYTHON_FACT, "py", checks={})
    kit.deliver(D1, f"{D1},1,a,50,1.00")
    application = Application(kit.settings)
    deploy(333)
    evidence = judged(application, built(application, kit.spark, "trips", (D1,)), "trips")[D1]
    monkeypatch.delitem(sys.modules, "trips_fees")
    assert evidence.measured.shadow.metrics["fee"] == Decimal("22.00")
    assert evidence.basis.code == application.datasets["trips"].code_version
    # A process that loads the datasets now does not accept it.
    assert Application(kit.settings).datasets["trips"].code_version != evidence.basis.code


DOUBLING = """
SELECT day, id, max(kind) AS kind, sum(amount) AS amount, CAST(sum(fee) AS decimal(12, 2)) AS fee
FROM staging GROUP BY day, id
"""


def test_a_doubled_first_load_and_a_column_that_is_not_filled_any_more_are_warned_of(kit: Kit) -> None:
    kit.dataset(fact=DOUBLING, deduplicate="none", checks={"reconciliation": {"metrics": ["amount"]}})
    for day in (D1, D2, D3, D4):
        kind = "" if day == D4 else "a"
        kit.deliver(day, *(f"{day},{i},{kind},10,1.00" for i in range(12)))
    kit.deliver(D1, *(f"{D1},{i},a,10,1.00" for i in range(12)), part="-again", hour=1)
    application = Application(kit.settings)
    evidence = judged(application, built(application, kit.spark, "trips", (D1, D2, D3, D4)), "trips")
    warned = {day: [(v.check, v.found) for v in one.verdicts if not v.passed] for day, one in evidence.items()}
    assert warned == {
        D1: [("identical_files", f"trips/{D1}-again.csv = trips/{D1}.csv")],
        D2: [],
        D3: [],
        D4: [("null_share", "kind 100% (was 0%)")],
    }
    assert evidence[D1].measured.shadow.metrics["fee"] == Decimal("24.00")
    assert all(one.passed for one in evidence.values())


SUMMED = """
SELECT day, id, kind, amount, CAST(sum(fee) AS decimal(12, 2)) AS fee, max(_lineage) AS _lineage FROM raw GROUP BY ALL
"""


@pytest.mark.parametrize(
    ("staging", "passed"),
    [
        (STAGING, True),
        ("SELECT DISTINCT day, id, kind, amount, fee, _lineage FROM raw", False),
        (SUMMED, False),
        ("SELECT raw.* FROM raw LEFT JOIN (SELECT kind AS k, max(label) FROM kinds GROUP BY 1) ON kind = k", False),
    ],
    ids=["as it came", "distinct", "summed", "of a reference"],
)
def test_a_file_that_came_twice_is_warned_of_where_the_staging_model_may_add_it_up(
    kit: Kit, staging: str, *, passed: bool
) -> None:
    """No older row of a key is left for the newer one to replace. The sum of a reference also counts as adding up."""
    kit.dataset(staging, checks={})
    for part in ("", "-again"):
        kit.deliver(D1, f"{D1},1,a,10,1.00", part=part)
    application = Application(kit.settings)
    day = judged(application, built(application, kit.spark, "trips", (D1,)), "trips")[D1]
    assert day.passed
    assert day.measured.shadow.metrics["fee"] == Decimal("2.00" if "sum(" in staging else "1.00")
    assert verdict(day, "identical_files").passed is passed


def test_a_new_day_is_not_published_empty_where_the_models_drop_all_its_rows(kit: Kit) -> None:
    """There is nothing published to compare with, and staging is as empty as the fact."""
    kit.dataset(f"{STAGING} WHERE kind = 'A'", checks={"row_count": {"tolerance": "100%"}})
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    kit.deliver(D2, f"{D2},1,A,10,1.00")
    application = Application(kit.settings)
    evidence = judged(application, built(application, kit.spark, "trips", (D1, D2)), "trips")
    assert [v.check for one in evidence.values() for v in one.verdicts if v.refuses] == ["not_empty"]
    assert verdict(evidence[D1], "not_empty").note.startswith("none of 1 row is left; ")


def test_a_file_of_yesterday_that_comes_again_as_todays_is_warned_of(kit: Kit) -> None:
    """The rows do not say their day; each launch lands only one file."""
    kit.dataset("SELECT _lineage.delivery_day AS day, id, kind, amount, fee, _lineage FROM raw", checks={})
    application = Application(kit.settings)
    for day, content in ((D1, "1"), (D2, "1"), (D3, "2"), (D4, "")):
        kit.put(f"trips/{day}.csv", "day,id,kind,amount,fee\n" + f"{D1},{content},a,10,1.00\n" * bool(content))
    found = {}
    for day in DAYS:
        evidence = judged(application, built(application, kit.spark, "trips", (day,)), "trips")[day]
        found[day] = verdict(evidence, "identical_files")
    assert [found[day].passed for day in DAYS] == [True, False, True, True]
    assert (found[D2].found, found[D2].refuses) == (f"trips/{D1}.csv = trips/{D2}.csv", False)
    assert found[D2].note == f"delivered for several days: {D1}..{D2}"


def test_a_file_that_is_still_being_written_while_it_is_landed_is_refused_and_leaves_no_row(kit: Kit) -> None:
    loaded = kit.dataset()
    growing = kit.deliver(D1, f"{D1},1,a,10,1.00")
    kit.deliver(D2, f"{D2},1,a,10,1.00")
    files = discover(loaded, kit.layout, [D1, D2])
    with growing.open("a", encoding="utf-8") as file:
        file.write(f"{D1},2,a,10,1.00\n")
    with pytest.raises(SourceError, match=rf"trips/{D1}.csv changed or vanished while it was read"):
        land(kit.spark, loaded, kit.layout, files, NOW)
    assert kit.raw(loaded).count() == 0
    # It was empty when it was listed, but no longer when it was hashed.
    begun = replace(discover(loaded, kit.layout, [D1])[0], size=0)
    with pytest.raises(SourceError, match=rf"trips/{D1}.csv changed or vanished while it was read"):
        land(kit.spark, loaded, kit.layout, [begun], NOW)
    assert [d.rows for d in kit.land(loaded, D1, D2)] == [2, 1]


def test_a_file_that_is_replaced_while_it_is_landed_and_put_back_leaves_no_row(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content is as before when it is looked at again, but nobody knows which of the two Spark has read."""
    loaded = kit.dataset()
    file = kit.deliver(D1, f"{D1},1,a,10,1.00")
    right, write = file.read_bytes(), landing.replace_where

    def of_another_file(*given: object) -> object:
        file.write_bytes(right.replace(b",a,", b",z,"))
        commit = write(*given)  # type: ignore[arg-type]
        file.write_bytes(right)
        return commit

    with monkeypatch.context() as patch:
        patch.setattr(landing, "replace_where", of_another_file)
        with pytest.raises(SourceError, match=rf"trips/{D1}.csv changed or vanished while it was read"):
            kit.land(loaded, D1)
    assert kit.raw(loaded).count() == 0
    assert [d.rows for d in kit.land(loaded, D1)] == [1]


def test_a_file_that_is_replaced_for_a_moment_while_a_landing_dies_counts_as_it_is(kit: Kit) -> None:
    loaded = kit.dataset()
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    listed = discover(loaded, kit.layout, [D1])
    looks = iter(("stamps it", "reads its header", "compares it again"))

    def dies(_call: str) -> None:
        if next(looks) == "compares it again":
            raise Died

    dying = replace(kit.layout, sources=between(kit.layout.sources, {"each"}, before=dies))
    kit.deliver(D1, f"{D1},1,a,20,1.00")
    with pytest.raises(Died):
        land(kit.spark, loaded, dying, listed, NOW)
    # Raw has the rows of one content under the fingerprint of another one.
    assert values(kit.raw(loaded), "amount") == [(20.0,)]
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    pipeline = Application(kit.settings).pipeline
    pipeline.land(kit.spark, "trips", (D1,))
    assert pipeline.stage(kit.spark, "trips", (D1,)) == {D1: 1}
    assert values(kit.staged(loaded), "amount") == [(10.0,)]


@pytest.mark.parametrize("second", ["the days before it", "the days after it"])
def test_a_step_between_two_batches_that_are_checked_at_the_same_time_is_refused(kit: Kit, second: str) -> None:
    days = tuple(D1 + dt.timedelta(i) for i in range(14))
    before, march = days[:2], days[2:]
    strict = {"seams": {"severity": "error"}}
    kit.dataset(measures={"fee": {}}, checks=strict)
    for day in days:
        kit.deliver(day, f"{day},1,a,100,{10 + day.day % 4}.00")
    publish(Application(kit.settings), kit.spark, "trips", days)
    fact = FACT.replace("fee FROM", "CAST(IF(day >= '2024-03-01', fee * 5, fee) AS decimal(12, 2)) AS fee FROM")
    kit.dataset(fact=fact, measures={"fee": {}}, checks=strict)
    application = Application(kit.settings)
    unit = opened(application, {"trips": days}, parse_contract({"fee": "any"}, ["fee"]))

    def begun(batch: Sequence[dt.date]) -> Attempt:
        attempt = application.ledger.start_attempt(unit.id, "trips", batch, str(batch[0]), dt.timedelta(minutes=10))
        application.pipeline.build(kit.spark, unit, attempt)
        return attempt

    one, other = begun(before), begun(march)
    stored: list[str] = []

    def checked(attempt: Attempt, before: Callable[[str], None]) -> None:
        busy = between(application.ledger, {"add_comparisons", "add_evidence"}, before=before)
        replace(application.pipeline, warehouse=replace(application.warehouse, ledger=busy)).validate(
            kit.spark, unit, attempt
        )

    def other_comes_between(call: str) -> None:
        if call == "add_comparisons":
            application.pipeline.validate(kit.spark, unit, other)

    def other_is_as_far(call: str) -> None:
        """The other batch is judged, and must not be stored before this one."""
        if call == "add_evidence":
            thread.start()
            assert judged_first.wait(300)
            time.sleep(1)
            assert not stored

    judged_first = threading.Event()
    steps = {"add_comparisons": judged_first.set, "add_evidence": lambda: stored.append("other")}
    thread = threading.Thread(target=checked, args=(other, lambda call: steps[call]()))
    if second == "the days before it":
        checked(one, other_comes_between)
    else:
        checked(one, other_is_as_far)
        thread.join(300)
        assert stored
    evidence = judged(application, unit, "trips")
    refused = {day: [v.check for v in e.verdicts if v.refuses] for day, e in evidence.items()}
    responsible = before[-1] if second == "the days before it" else march[0]
    assert refused == {day: ["seams"] if day == responsible else [] for day in days}
