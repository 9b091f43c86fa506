"""References with `as_of: published`: a published day is computed again with the version that it was published with."""

from __future__ import annotations

import datetime as dt
import sqlite3
from decimal import Decimal

import pytest
from deltalake import DeltaTable

from backfill_assets.application import Application
from backfill_assets.backup.take import TakeBackup
from backfill_assets.core.errors import BackupError, SourceError
from backfill_assets.evidence.references import keep_versions
from backfill_assets.evidence.stale import StaleCause
from backfill_assets.settings import Settings
from backfill_assets.storage.disk import OnDisk, path_of
from backfill_assets.storage.layout import REFERENCES
from backfill_assets_tests.harness.without_dagster import built, judged, opened, publish
from backfill_assets_tests.spark.pipeline.kit import D1, D2, D3, D4, STAGING, TRIPS, Kit, values
from backfill_assets_tests.spark.workplace import OnTheTestServer

COLUMNS = {**TRIPS["columns"], "cost": {"type": "decimal(9,2)"}}  # type: ignore[dict-item]
COSTS = {
    "format": "csv", "path": "costs.csv", "as_of": "published",
    "columns": {"kind": "string", "cost": "decimal(9,2)"},
}  # fmt: skip
CHECKS = {"references": {"costed": {"reference": "costs", "columns": ["kind"], "to": ["kind"]}}}
FACT = (
    "SELECT s.day, s.id, s.kind, s.amount, s.fee, c.cost FROM staging AS s "
    "LEFT JOIN costs AS c ON c.kind = s.kind AND c.day = s.day"
)
DEARER = FACT.replace("s.fee", "CAST(s.fee + 1 AS decimal(12,2)) AS fee")
DAYS = (D1, D2, D3)


def costs(kit: Kit, rows: str, head: str = "kind,cost\n") -> None:
    kit.put("costs.csv", head + rows)


def margins(kit: Kit, fact: str = FACT, server: Settings | None = None, **more: object) -> Application:
    """The dataset with costs, and a row on each of three days; with a server for what reads published rows."""
    reference = {**COSTS, **more}
    kit.dataset(STAGING, fact, columns=COLUMNS, references={"costs": reference}, checks=CHECKS, measures={"id": {}})
    for number, day in enumerate(DAYS, 1):
        kit.deliver(day, f"{day},{number},a,10,1.00")
    return Application(kit.settings) if server is None else OnTheTestServer(kit.settings, server)


def published(kit: Kit, column: str = "cost") -> dict[object, object]:
    table = kit.table(path_of(kit.layout.published_path("trips")))
    return dict(values(table, "day", column))  # type: ignore[arg-type]


def of(*costs_of_days: str) -> dict[dt.date, Decimal]:
    return dict(zip((D1, D2, D3, D4), map(Decimal, costs_of_days), strict=False))


def published_rows(kit: Kit) -> list[tuple[object, object]]:
    return values(kit.table(path_of(kit.layout.published_path("trips"))), "day", "cost")  # type: ignore[return-value]


def back_up(kit: Kit) -> None:
    application = Application(kit.settings)
    TakeBackup(application.warehouse).take(OnDisk(kit.root / "backups"))


def copies(kit: Kit) -> list[str]:
    folder = path_of(kit.layout.published_path("trips")) / REFERENCES
    return sorted(file.read_text().rstrip() for file in folder.iterdir())


def test_a_correction_changes_what_it_is_about_and_no_cost_of_a_published_day(
    kit: Kit, spark_settings: Settings
) -> None:
    costs(kit, "a,1.00\n")
    publish(margins(kit), kit.spark, "trips", DAYS)
    costs(kit, "a,2.00\n")
    application = margins(kit)
    assert application.staleness.of("trips").days == ()
    # One batch: three days with their old version, and one with the current one.
    kit.deliver(D4, f"{D4},4,a,10,1.00")
    publish(margins(kit, DEARER), kit.spark, "trips", (*DAYS, D4))
    assert published(kit) == of("1.00", "1.00", "1.00", "2.00")
    assert set(published(kit, "fee").values()) == {Decimal("2.00")}
    assert copies(kit) == ["kind,cost\na,1.00", "kind,cost\na,2.00"]
    costs(kit, "a,3.00\n")
    assert Application(kit.settings).staleness.of("trips").days == ()
    # An independent recomputation sees the same versions, also if the source has none of them any more.
    (certificate,) = OnTheTestServer(kit.settings, spark_settings).prover.prove("trips", (D1, D4))
    assert (certificate.passed, certificate.disagreements) == (True, ())


def test_days_that_are_renewed_take_the_current_version_and_keep_it(kit: Kit) -> None:
    costs(kit, "a,1.00\n")
    publish(margins(kit), kit.spark, "trips", DAYS)
    costs(kit, "a,2.00\n")
    application = margins(kit, renew=f"{D2}..{D2}")
    assert application.staleness.of("trips").by_cause == {StaleCause.reference: (D2,)}
    publish(application, kit.spark, "trips", (D1, D2))
    assert published(kit) == of("1.00", "2.00", "1.00")
    # When they are no longer named, nothing is stale, and the next version changes nothing.
    costs(kit, "a,3.00\n")
    application = margins(kit)
    assert application.staleness.of("trips").days == ()
    publish(margins(kit, DEARER), kit.spark, "trips", DAYS)
    assert published(kit) == of("1.00", "2.00", "1.00")


def test_a_day_that_is_rolled_back_has_the_version_of_the_release_that_readers_see_again(kit: Kit) -> None:
    costs(kit, "a,1.00\n")
    publish(margins(kit), kit.spark, "trips", DAYS)
    costs(kit, "a,2.00\n")
    application = margins(kit, renew=f"{D1}..{D3}")
    unit = built(application, kit.spark, "trips", DAYS)
    release = application.publisher.release(unit.id).releases["trips"]
    application.rollback.execute(release, "wrong costs")
    publish(margins(kit, DEARER), kit.spark, "trips", DAYS)
    assert published(kit) == of("1.00", "1.00", "1.00")


def test_a_day_that_nobody_has_published_follows_the_file(kit: Kit) -> None:
    costs(kit, "a,1.00\n")
    application = margins(kit)
    unit = built(application, kit.spark, "trips", (D1,))
    costs(kit, "a,2.00\n")
    assert application.publisher.blockers(unit.id)
    # Its checks build it again with what is there now.
    attempt = application.ledger.start_attempt(unit.id, "trips", (D1,), unit.id, dt.timedelta(minutes=10))
    application.pipeline.build(kit.spark, unit, attempt)
    application.pipeline.validate(kit.spark, unit, attempt)
    application.publisher.release(unit.id)
    assert published(kit) == of("2.00")


@pytest.mark.parametrize(
    ("damage", "message"), [("lost", "is neither there nor in the sources"), ("altered", "its bytes are no longer")]
)
def test_a_version_that_is_lost_or_altered_is_refused_and_never_replaced(kit: Kit, damage: str, message: str) -> None:
    costs(kit, "a,1.00\n")
    publish(margins(kit), kit.spark, "trips", DAYS)
    back_up(kit)
    costs(kit, "a,2.00\n")
    (copy,) = (path_of(kit.layout.published_path("trips")) / REFERENCES).iterdir()
    kept = copy.read_bytes()
    if damage == "lost":
        copy.unlink()
    else:
        copy.write_text("kind,cost\na,9.00\n")
    application = margins(kit, DEARER)
    with pytest.raises(SourceError, match=f"{message}.*from a backup, or let these days.*references.costs.renew"):
        built(application, kit.spark, "trips", (D1,))
    found = [one.what for one in application.doctor.examine() if REFERENCES in one.what]
    assert found == [
        f"trips {D1}..{D3}: {copy}, the version of a reference that they were published with, is not there or altered"
    ]
    with pytest.raises(BackupError, match=f"the version of a reference that trips {D1}..{D3} sees is lost or altered"):
        back_up(kit)
    copy.write_bytes(kept)
    back_up(kit)
    assert not [one for one in application.doctor.examine() if REFERENCES in one.what]
    publish(application, kit.spark, "trips", (D1,))
    assert published(kit) == of("1.00", "1.00", "1.00")


@pytest.mark.parametrize("damage", ["lost", "altered"])
def test_a_version_that_is_still_the_source_is_kept_again(kit: Kit, damage: str) -> None:
    costs(kit, "a,1.00\n")
    publish(margins(kit), kit.spark, "trips", DAYS)
    (copy,) = (path_of(kit.layout.published_path("trips")) / REFERENCES).iterdir()
    copy.unlink()
    if damage == "altered":
        copy.write_text("kind,cost\na,9.00\n")
    publish(margins(kit, DEARER), kit.spark, "trips", (D1,))
    assert published(kit)[D1] == Decimal("1.00")
    assert copies(kit) == ["kind,cost\na,1.00"]


def test_rows_are_matched_with_the_version_of_their_day(kit: Kit) -> None:
    """A kind that only the current version has is unknown on the days that do not see that version."""
    costs(kit, "b,1.00\n")
    application = margins(kit)
    kit.deliver(D1, f"{D1},1,b,10,1.00")
    publish(application, kit.spark, "trips", (D1,))
    costs(kit, "a,2.00\na,3.00\n")
    kit.deliver(D1, f"{D1},1,a,10,1.00", hour=1)
    found = judged(application, built(application, kit.spark, "trips", (D1, D2)), "trips")
    said = {day: next(v.found for v in one.verdicts if v.check == "reference_costed") for day, one in found.items()}
    # A key that is there twice is no version more: `unique_key` finds the rows that the join doubles.
    assert said == {D1: "1 of 1 without a match (100.00%)", D2: "0 of 2 without a match (0.00%)"}


def test_versions_with_days_are_those_of_the_file_that_the_day_was_published_with(kit: Kit) -> None:
    head = "kind,cost,since,until\n"
    columns = {"kind": "string", "cost": "decimal(9,2)", "since": "date", "until": "date"}
    costs(kit, f"a,1.00,2024-01-01,{D2}\na,2.00,{D2},\n", head)
    publish(margins(kit, valid=["since", "until"], columns=columns), kit.spark, "trips", (D1, D2))
    costs(kit, f"a,5.00,2024-01-01,{D2}\na,6.00,{D2},\n", head)
    application = margins(kit, DEARER, valid=["since", "until"], columns=columns)
    publish(application, kit.spark, "trips", DAYS)
    assert published(kit) == of("1.00", "2.00", "6.00")


def test_a_file_that_is_replaced_before_its_copy_is_made_is_refused(kit: Kit) -> None:
    costs(kit, "a,1.00\n")
    application = margins(kit)
    unit = opened(application, {"trips": (D1,)})
    pipeline = application.pipeline
    pipeline.land(kit.spark, "trips", (D1,))
    (asked,) = (one.references["costs"] for one in application.basis.behind("trips", (D1,)).values())
    costs(kit, "a,2.00\n")
    with pytest.raises(SourceError, match="If the file was replaced just now, launch again"):
        keep_versions(application.datasets["trips"], kit.layout, {D1: {"costs": asked}})
    attempt = application.ledger.start_attempt(unit.id, "trips", (D1,), unit.id, dt.timedelta(minutes=10))
    pipeline.build(kit.spark, unit, attempt)
    pipeline.validate(kit.spark, unit, attempt)
    application.publisher.release(unit.id)
    assert published(kit) == of("2.00")
    assert copies(kit) == ["kind,cost\na,2.00"]


def test_days_that_were_published_before_versions_were_kept_have_that_of_their_fingerprint(kit: Kit) -> None:
    costs(kit, "a,1.00\n")
    publish(margins(kit, FACT.replace(" AND c.day = s.day", ""), as_of="current"), kit.spark, "trips", DAYS)
    application = margins(kit)
    # The file is the same: the declaration and the model have changed, and no reference.
    assert application.staleness.of("trips").by_cause.keys() == {StaleCause.contract, StaleCause.code}
    costs(kit, "a,2.00\n")
    application = margins(kit)
    assert StaleCause.reference not in application.staleness.of("trips").by_cause
    with pytest.raises(SourceError, match="neither there nor in the sources"):
        built(application, kit.spark, "trips", (D1,))
    # What was never kept is in no backup, and keeps no other one from being made.
    back_up(kit)
    costs(kit, "a,1.00\n")
    publish(application, kit.spark, "trips", (D1,))
    costs(kit, "a,2.00\n")
    publish(margins(kit, renew=str(D3)), kit.spark, "trips", DAYS)
    assert published(kit) == of("1.00", "1.00", "2.00")


def test_days_that_were_published_with_versions_of_the_same_file_see_it_as_it_is(kit: Kit) -> None:
    head = "kind,cost,since,until\n"
    columns = {"kind": "string", "cost": "decimal(9,2)", "since": "date", "until": "date"}
    costs(kit, f"a,1.00,2024-01-01,{D3}\na,2.00,{D3},\n", head)
    publish(margins(kit, as_of="current", valid=["since", "until"], columns=columns), kit.spark, "trips", DAYS)
    # Another row ends: that of the first two days is the same.
    costs(kit, f"a,1.00,2024-01-01,{D3}\na,9.00,{D3},\n", head)
    application = margins(kit, DEARER, valid=["since", "until"], columns=columns)
    publish(application, kit.spark, "trips", (D1, D2))
    with pytest.raises(SourceError, match=f"trips {D3} sees is neither there nor in the sources"):
        built(application, kit.spark, "trips", (D3,))
    assert published(kit) == of("1.00", "1.00", "2.00")


def test_a_day_that_another_writer_has_changed_keeps_the_version_of_its_release(
    kit: Kit, spark_settings: Settings
) -> None:
    costs(kit, "a,1.00\n")
    application = margins(kit)
    kit.deliver(D1, f"{D1},1,a,10,1.00", f"{D1},9,a,10,1.00")
    publish(application, kit.spark, "trips", DAYS)
    costs(kit, "a,2.00\n")
    table = DeltaTable(str(path_of(kit.layout.published_path("trips"))))
    table.delete("id = 9")
    table.delete("id = 2")
    publish(margins(kit, DEARER, spark_settings), kit.spark, "trips", DAYS)
    assert {cost for _, cost in published_rows(kit)} == {Decimal("1.00")}


def test_a_day_that_was_published_without_rows_keeps_the_version_of_its_release(kit: Kit) -> None:
    costs(kit, "a,1.00\n")
    source = {**TRIPS["source"], "on_missing": "pass"}  # type: ignore[dict-item]
    kit.dataset(STAGING, FACT, columns=COLUMNS, references={"costs": COSTS}, checks=CHECKS, source=source)
    kit.deliver(D2, f"{D2},2,a,10,1.00")
    publish(Application(kit.settings), kit.spark, "trips", (D1, D2))
    costs(kit, "a,2.00\n")
    application = Application(kit.settings)
    assert application.staleness.of("trips").days == ()
    kit.deliver(D1, f"{D1},1,a,10,1.00")
    publish(Application(kit.settings), kit.spark, "trips", (D1, D2))
    assert published(kit) == of("1.00", "1.00")


def test_a_day_of_which_nobody_knows_what_it_was_built_with_is_refused(kit: Kit, spark_settings: Settings) -> None:
    costs(kit, "a,1.00\n")
    application = margins(kit)
    publish(application, kit.spark, "trips", DAYS)
    costs(kit, "a,2.00\n")
    with sqlite3.connect(application.settings.ledger_url.removeprefix("sqlite:///")) as ledger:
        found = ledger.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'evidence'"
        ).fetchall()
        for (trigger,) in found:
            ledger.execute(f"DROP TRIGGER {trigger}")
        ledger.execute("DELETE FROM evidence")
        ledger.execute("DELETE FROM contents")
    with pytest.raises(SourceError, match=f"trips {D1}: it is not known with which version of reference costs"):
        built(margins(kit, DEARER, spark_settings), kit.spark, "trips", (D1,))
    publish(margins(kit, DEARER, spark_settings, renew=str(D1)), kit.spark, "trips", (D1,))
    assert published(kit)[D1] == Decimal("2.00")
