"""A ledger is copied whole: from either kind of database into a file, and from the file into either kind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from sqlalchemy import create_engine, func, insert, select

from backfill_assets.core.errors import LedgerError
from backfill_assets.core.unit import AttemptState
from backfill_assets.ledger.copies import migrated, require_empty, restore, save
from backfill_assets.ledger.open import Ledger, open_ledger
from backfill_assets.ledger.schema import drivers, locks, meta, metadata, staged_days
from backfill_assets_tests.harness import ledgers
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.unit.ledger.full_ledger import OLD, full_ledger
from backfill_assets_tests.unit.ledger.samples import (
    LEASE,
    a_delivery,
    a_launch,
    a_manifest,
    a_unit,
    march,
    some_evidence,
)

pytestmark = pytest.mark.slow

NO_WAIT = dt.timedelta(0)


def rows(url: str) -> Mapping[str, list[tuple[object, ...]]]:
    """All rows of all tables."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {t.name: sorted(map(tuple, connection.execute(select(t))), key=repr) for t in metadata.sorted_tables}
    engine.dispose()
    return found


@pytest.fixture
def source(clock: FixedClock, url: str) -> Iterator[Ledger]:
    """A full ledger on either kind of database."""
    ledger = full_ledger(url, clock)
    yield ledger
    ledger.close()


def saved(ledger: Ledger, folder: Path) -> Path:
    file = folder / "saved" / "ledger.db"
    with ledger.frozen() as frozen:
        save(frozen, file)
    assert [left.name for left in file.parent.glob("ledger.db-*")] == []
    return file


def same_but(before: Mapping[str, list[tuple[object, ...]]], after: Mapping[str, list[tuple[object, ...]]]) -> None:
    """Everything is there again but who writes now, what is staged, and which ledger it is."""
    for name in before.keys() - {meta.name, locks.name, drivers.name, staged_days.name}:
        assert after[name] == before[name] != [], name
    assert after[staged_days.name] == after[drivers.name] == []
    turns = [row for row in before[meta.name] if str(row[0]).startswith("turn ")]
    assert [row for row in after[meta.name] if str(row[0]).startswith("turn ")] == turns != []


@pytest.fixture
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty ledger of the kind that the test asks for."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'other' / 'ledger.db'}"
        return
    cluster = str(request.getfixturevalue("postgres_cluster"))
    yield ledgers.empty_postgres_ledger(cluster, "copied_ledger")
    ledgers.drop_database(cluster, "copied_ledger")


@pytest.mark.parametrize("other", ["sqlite", "postgres"], indirect=True)
def test_all_rows_are_there_again_in_either_kind_and_numbers_go_on(
    source: Ledger, url: str, other: str, tmp_path: Path, clock: FixedClock
) -> None:
    source.turn("a look", LEASE)
    empty = require_empty(other, "b_1")
    with source.lock("flights", LEASE) as token, source.driver("raw/flights", "spark", LEASE):
        file = saved(source, tmp_path)
    migrated(file)
    before = rows(f"sqlite:///{file}")
    for one in source.attempts(state=AttemptState.running):
        source.end_attempt(one.number, AttemptState.lost)
    restore(file, other, "b_1", clock.now(), 0, "00ff", "feed")
    same_but(rows(url), rows(other))
    assert rows(f"sqlite:///{file}") == before
    full = require_empty(other, "b_1")
    assert (empty.filled_from, full.filled_from, full.id, full.name) == ("", "b_1", empty.id, empty.name)
    assert (empty.restoring, full.restoring, full.replaced) == ("", "b_1", "feed")
    ledger = open_ledger(other, clock)
    assert (ledger.id, ledger.warehouse, ledger.restoring) == (empty.id, "00ff", "b_1")
    assert (ledger.note_warehouse("of another"), ledger.restoring) == ("00ff", "")
    assert ledger.journal(OLD) == source.journal(OLD) != ()
    with ledger.lock("flights", NO_WAIT) as next_token, ledger.driver("raw/flights", "spark of others", NO_WAIT):
        assert next_token == token + 1
    days = march(25, 26)
    for one in (ledger, source):
        unit = one.assign(a_launch(days, "b_9"), a_unit(days, "b_9"))
        attempt = one.start_attempt(unit.id, "flights", days, "r_9", LEASE)
        one.add_evidence(attempt.number, [some_evidence(unit.id, attempt.number, days[0])])
        one.add_deliveries([a_delivery(days[0])])
        one.intend(a_manifest("rel_9", days, unit.id))
    assert [a.number for a in ledger.attempts()] == [a.number for a in source.attempts()]
    assert [r.number for r in ledger.releases()] == [r.number for r in source.releases()]
    ledger.close()


@pytest.mark.parametrize("other", ["sqlite", "postgres"], indirect=True)
def test_attempts_are_numbered_after_those_whose_shadows_are_there(
    source: Ledger, other: str, tmp_path: Path, clock: FixedClock
) -> None:
    require_empty(other, "b_1")
    restore(saved(source, tmp_path), other, "b_1", clock.now(), 40, "00ff", "")
    ledger = open_ledger(other, clock)
    unit = ledger.assign(a_launch(march(25), "b_9"), a_unit(march(25), "b_9"))
    assert ledger.start_attempt(unit.id, "flights", march(25), "r_9", LEASE).number == 41
    ledger.close()


def test_what_is_written_after_the_moment_is_not_in_the_copy(source: Ledger, url: str, tmp_path: Path) -> None:
    before = rows(url)
    with source.frozen() as frozen:
        source.add_deliveries([a_delivery(march(28)[0], "late.csv")])
        file = tmp_path / "saved.db"
        save(frozen, file)
    copied = rows(f"sqlite:///{file}")
    assert copied["deliveries"] == before["deliveries"] != rows(url)["deliveries"]


def test_only_an_empty_ledger_is_filled(source: Ledger, tmp_path: Path, clock: FixedClock) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    empty = require_empty(other, "b_1")
    assert (empty.name, len(empty.id)) == (f"ledger {tmp_path / 'other.db'}", 16)
    ledger = open_ledger(other, clock)
    # Locks and who writes are of the moment, and do not count.
    with ledger.lock("flights", LEASE), ledger.driver("raw/flights", "spark", LEASE):
        assert require_empty(other, "b_1") == empty
    ledger.add_deliveries([a_delivery(march(1)[0])])
    before = rows(other)
    for act in (
        lambda: require_empty(other, "b_1"),
        lambda: restore(saved(source, tmp_path), other, "b_1", clock.now(), 0, "00ff", ""),
    ):
        with pytest.raises(LedgerError, match="is not empty: its table deliveries has 1 row,"):
            act()
    assert rows(other) == before
    ledger.close()


def test_a_ledger_of_a_newer_version_is_refused(source: Ledger, tmp_path: Path) -> None:
    file = saved(source, tmp_path)
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(LedgerError, match="is at revision 9999, which this version of backfill_assets does not know"):
        migrated(file)


def test_a_ledger_that_cannot_be_restored_whole_is_not_restored_at_all(
    source: Ledger, tmp_path: Path, clock: FixedClock
) -> None:
    file = saved(source, tmp_path)
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        # An approval after a release that is not there: the target refuses it, as its last table.
        table = metadata.tables["approvals"]
        one = dict(connection.execute(select(table)).mappings().first() or {})
        connection.exec_driver_sql("DROP TRIGGER approvals_refuses_foresight")
        number = connection.execute(select(func.max(table.c.number))).scalar_one() + 1
        connection.execute(insert(table), one | {"number": number, "after_release": 1_000})
    engine.dispose()
    other = f"sqlite:///{tmp_path / 'other.db'}"
    before = require_empty(other, "b_1")
    with pytest.raises(LedgerError, match="approval"):
        restore(file, other, "b_1", clock.now(), 0, "00ff", "")
    assert require_empty(other, "b_1") == before
