"""Which steps a batch is checked for; nothing is published outside of the unit here, so no Spark is needed."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from backfill_assets.core.days import day_range
from backfill_assets.core.evidence import Basis, DayEvidence, Severity, Verdict
from backfill_assets.core.measured import NOTHING, ROW_COUNT, DayMeasurement, Seam, Side, SourceState
from backfill_assets.core.release import DataFile
from backfill_assets.core.unit import Unit
from backfill_assets.pipeline.frames import Frames
from backfill_assets.pipeline.measure import Neighbours, Sides
from backfill_assets_tests.harness.tables import layout, loaded
from backfill_assets_tests.harness.world import LEASE, World

NO_SPARK = cast("SparkSession", None)
DAYS = day_range(dt.date(2024, 2, 20), dt.date(2024, 3, 20))
MARCH = dt.date(2024, 3, 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def sides(was: int, would_be: int) -> Sides:
    old, new = (Side({ROW_COUNT: Decimal(rows)}, fingerprint=f"of {rows}") for rows in (was, would_be))
    return Sides(new, old, NOTHING)


def usual(days: Sequence[dt.date]) -> dict[dt.date, Sides]:
    return {day: sides(1000 + day.day % 7, 1000 + day.day % 7) for day in days}


def found(world: World, unit: Unit, batch: Mapping[dt.date, Sides]) -> Mapping[dt.date, tuple[Seam, ...]]:
    sales = loaded(world.datasets["sales"], world.folder)
    frames = Frames(NO_SPARK, sales, layout(world.folder), "", tuple(batch))
    return Neighbours(world.ledger, unit, frames).around(batch, {day: files(day, 0) for day in batch}, {}).seams


def built(
    world: World, unit: Unit, batch: Mapping[dt.date, Sides], *, judged: bool = True, nulls: int = 0, code: str = "c0de"
) -> None:
    attempt = world.ledger.start_attempt(unit.id, "sales", sorted(batch), "run", LEASE)
    evidence = [
        DayEvidence(
            unit.id, attempt.number, "sales", day, Basis("", code, unit.contract.of("sales").hash, ""), files(day, nulls),
            DayMeasurement(day, one.shadow, one.published, NOTHING, SourceState()),
            (Verdict("unique_key", day, True, Severity.error, True, "", ""),) if judged else (), world.clock.now(),
        )
        for day, one in batch.items()
    ]  # fmt: skip
    world.ledger.add_evidence(attempt.number, evidence)


def files(day: dt.date, nulls: int, rows: int = 100) -> tuple[DataFile, ...]:
    return (DataFile(f"{day}.parquet", 1, day, 0, json.dumps({"numRecords": rows, "nullCount": {"amount": nulls}})),)


def test_days_that_were_checked_before_the_days_before_them_are_compared_with_them_then(world: World) -> None:
    first, second = DAYS[:7], DAYS[7:14]
    unit = world.open_unit({"sales": DAYS})
    sales = loaded(world.datasets["sales"], world.folder)

    def rises(batch: Sequence[dt.date], nulls: int) -> dict[dt.date, list[str]]:
        neighbours = Neighbours(world.ledger, unit, Frames(NO_SPARK, sales, layout(world.folder), "", tuple(batch)))
        found = neighbours.around(usual(batch), {day: files(day, nulls) for day in batch}, {}).null_rises
        return {day: [rise.place for rise in own] for day, own in found.items() if own}

    assert rises(second, 100) == {}, "compared with themselves"
    built(world, unit, usual(second), nulls=100)
    assert rises(first, 0) == {first[-1]: [f"amount on {day}" for day in second[:4]]}
    assert rises(first, 100) == {}
    built(world, unit, usual(second), nulls=100, code="older")
    assert rises(first, 0) == {}, "they are going to be built again"
    built(world, unit, usual(first), nulls=0)
    assert rises(second, 100) == {day: ["amount"] for day in second[:4]}


def test_days_whose_content_stays_are_not_checked(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    assert found(world, unit, usual(DAYS)) == {}


def test_a_day_that_is_published_for_the_first_time_has_no_step_to_check(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    assert found(world, unit, usual(DAYS) | {MARCH: sides(0, 5000)}) == {}


def test_a_month_that_begins_with_a_step_has_a_seam_at_its_first_day(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    batch = {day: sides(1000 + day.day % 7, (3000 if day >= MARCH else 1000) + day.day % 7) for day in DAYS}
    ((day, (seam,)),) = [(day, own) for day, own in found(world, unit, batch).items() if own[0].introduced]
    assert (day, seam.day, seam.metric) == (MARCH, MARCH, ROW_COUNT)


def test_a_step_in_the_middle_of_a_month_is_none_of_the_places(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    batch = usual(DAYS) | {MARCH + dt.timedelta(9): sides(1000, 9000)}
    assert found(world, unit, batch) == {}


def test_days_that_the_unit_has_built_count_as_they_will_be_and_others_of_it_do_not_count(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    february = {day: sides(1000 + day.day % 7, 3000 + day.day % 7) for day in DAYS if day < MARCH}
    march = {day: sides(1000 + day.day % 7, 3000 + day.day % 7) for day in DAYS if day >= MARCH}
    assert not found(world, unit, march)
    built(world, unit, february, judged=False)
    assert not found(world, unit, march)
    built(world, unit, february)
    (seam,) = found(world, unit, march)[MARCH]
    assert (seam.introduced, seam.new_step) == (False, seam.old_step)


def test_a_step_to_the_day_after_the_batch_is_checked_at_its_last_day(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    built(world, unit, usual([day for day in DAYS if day >= MARCH]))
    batch = {day: sides(1000 + day.day % 7, 3000 + day.day % 7) for day in DAYS if day < MARCH}
    (seam,) = found(world, unit, batch)[dt.date(2024, 2, 29)]
    assert (seam.day, seam.introduced) == (MARCH, True)


def test_an_unchanged_batch_is_checked_for_the_step_to_a_day_that_was_changed_before(world: World) -> None:
    unit = world.open_unit({"sales": DAYS})
    built(world, unit, usual([day for day in DAYS if day > MARCH]) | {MARCH: sides(1000, 9000)})
    february = usual([day for day in DAYS if day < MARCH])
    (seam,) = found(world, unit, february)[dt.date(2024, 2, 29)]
    assert (seam.day, seam.introduced) == (MARCH, True)
