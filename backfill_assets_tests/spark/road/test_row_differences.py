from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import functions as F  # noqa: N812

from backfill_assets.catalog import LoadedDataset
from backfill_assets.domain.comparison import DayComparison, RowCounts
from backfill_assets.domain.contract import Contract
from backfill_assets.lakehouse.road import Question, RowDifferences, row_differences
from backfill_assets_tests.spark.road.kit import D1, D2, D3, FOLDER, Kit

ATTEMPT = 7
ROWS = ("1,a,10,1.00", "2,a,20,2.00", "3,b,30,3.00", "4,,40,")


def built(kit: Kit, *days: dt.date, **changes: object) -> LoadedDataset:
    """The dataset with the same four rows on each day, in the shadow."""
    loaded = kit.dataset(**changes)  # type: ignore[arg-type]
    for day in days:
        kit.deliver(day, *(f"{day},{row}" for row in ROWS))
    kit.build(loaded, *days)
    return loaded


def published(kit: Kit, loaded: LoadedDataset, **columns: str) -> None:
    """Publish the shadow with some columns replaced by SQL."""
    frame = kit.shadow(loaded)
    kit.publish(
        loaded,
        frame.withColumns({name: F.expr(sql).cast(frame.schema[name].dataType) for name, sql in columns.items()}),
    )


@contextmanager
def differences(
    kit: Kit, loaded: LoadedDataset, *days: dt.date, contract: Contract | None = None
) -> Iterator[RowDifferences]:
    question = Question(FOLDER, ATTEMPT, kit.measure(loaded, *days), contract or Contract())
    with row_differences(kit.spark, loaded, kit.layout, question) as found:
        yield found


def counted(
    kit: Kit, loaded: LoadedDataset, *days: dt.date, contract: Contract | None = None
) -> Mapping[dt.date, RowCounts]:
    with differences(kit, loaded, *days, contract=contract) as found:
        return found.counts


def compared(kit: Kit, loaded: LoadedDataset, day: dt.date) -> DayComparison:
    with differences(kit, loaded, day) as found:
        (one,) = found.comparisons
    return one


def test_rows_are_counted_by_what_happens_to_them(kit: Kit) -> None:
    loaded = built(kit, D1, D2, D3)
    kit.publish(
        loaded,
        kit.shadow(loaded)
        .where(f"day <> '{D3}' AND NOT (day = '{D1}' AND id = 1)")
        .withColumn("amount", F.expr(f"IF(day = '{D1}' AND id = 2, 21, amount)"))
        .withColumn("kind", F.expr(f"IF(day = '{D1}' AND id IN (2, 4), 'c', kind)"))
        .withColumn("id", F.expr(f"IF(day = '{D1}' AND id = 3, 9, id)")),
    )
    counts = counted(kit, loaded, D1, D2, D3)
    # Nothing is published of the third day: there is nothing to compare.
    assert counts == {
        D1: RowCounts(added=2, removed=1, changed=2, columns={"kind": 2, "amount": 1}),
        D2: RowCounts(unchanged=4),
    }


def test_a_day_that_vanishes_is_removed_whole(kit: Kit) -> None:
    loaded = built(kit, D1)
    kit.publish(loaded, kit.shadow(loaded).withColumn("day", F.lit(D2)))
    kit.shadow(loaded).limit(0)
    one = counted(kit, loaded, D1, D2)
    assert one == {D2: RowCounts(removed=4)}


def test_no_rows_are_looked_at_where_nothing_moved(kit: Kit) -> None:
    loaded = built(kit, D1, D2)
    kit.publish(loaded, kit.shadow(loaded).where(f"day = '{D1}'"))
    measured = kit.measure(loaded, D1, D2)
    question = Question("_shadow/nowhere", ATTEMPT, measured, Contract())
    with row_differences(kit.spark, loaded, kit.layout, question) as found:
        assert (found.counts, found.comparisons) == ({D1: RowCounts(unchanged=4)}, ())
        assert found.sample({("rows_change", "amount"): (D1,)}) == {}
