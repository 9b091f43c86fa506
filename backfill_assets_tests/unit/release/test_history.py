"""Who changed a day, when, why, from what to what."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from deltalake import write_deltalake

from backfill_assets.core.measured import ROW_COUNT, Side
from backfill_assets.core.release import ReleaseKind
from backfill_assets.core.unit import UnitState
from backfill_assets.release.readers import History
from backfill_assets_tests.harness.specifications import DAYS, NAME
from backfill_assets_tests.harness.tables import day, rows_of
from backfill_assets_tests.harness.world import World, side

HOUR = dt.timedelta(hours=1)


def test_the_changes_of_a_day_are_listed_newest_first(campaigns: World) -> None:
    first = campaigns.released({d: [1, 1] for d in DAYS})
    campaigns.clock.advance(HOUR)
    campaigns.approved()
    second = campaigns.release("carl").publish(NAME).outcome.release
    campaigns.clock.advance(HOUR)
    third = campaigns.campaign_rollback("ben").execute(second, "odd").release
    changes = History(campaigns.ledger).of("sales", [DAYS[1]])
    assert [c.release for c in changes] == [third, second, first]
    back, new, old = changes
    assert [(c.kind, c.by) for c in changes] == [
        (ReleaseKind.rollback, "ben"), (ReleaseKind.publish, "carl"), (ReleaseKind.publish, "ada"),
    ]  # fmt: skip
    assert (old.rows_before, old.rows_after) == (0, 2)
    assert (new.rows_before, new.rows_after) == (2, 1)
    assert (back.rows_before, back.rows_after) == (1, 2)
    assert (new.campaign, new.approved_by, new.reason) == (
        NAME, "anna as finance-controller", "FIN-2841; Correct the tax",
    )  # fmt: skip
    assert (back.undoes, back.reason, back.day) == (second, "odd", DAYS[1])
    assert [c.at.hour for c in changes] == [14, 13, 12]


def test_all_days_are_listed_without_a_day_and_other_datasets_are_not(campaigns: World) -> None:
    campaigns.released({d: [1] for d in DAYS})
    assert [c.day for c in History(campaigns.ledger).of("sales")] == list(DAYS)
    assert History(campaigns.ledger).of("orders") == ()
    assert History(campaigns.ledger).of("sales", [day(9)]) == ()


def measured(campaigns: World) -> str:
    """A release of days whose evidence has a measure beside the rows."""

    def with_sum(amounts: Sequence[int]) -> Side:
        made = side(amounts)
        return replace(made, metrics={**made.metrics, "amount": Decimal(sum(amounts))})

    campaigns.measure = with_sum
    return campaigns.released({d: [5, 6] for d in DAYS})


def test_measures_come_from_the_evidence_and_are_reversed_in_a_rollback(campaigns: World) -> None:
    campaigns.released({d: [1] for d in DAYS})
    release = measured(campaigns)
    campaigns.campaign_rollback().execute(release, "odd")
    back, new, old = History(campaigns.ledger).of("sales", [DAYS[0]])
    assert new.measures == {"amount": (Decimal(1), Decimal(11))}
    assert back.measures == {"amount": (Decimal(11), Decimal(1))}
    assert old.measures == {}
    assert ROW_COUNT not in new.measures


def test_measures_of_evidence_that_was_replaced_are_left_out(campaigns: World) -> None:
    release = measured(campaigns)
    campaigns.campaign_rollback().execute(release, "odd")
    name = campaigns.ledger.release(release).manifest.unit
    unit = campaigns.ledger.move(name, {UnitState.rolled_back}, UnitState.open)
    campaigns.build(unit, "sales", {DAYS[0]: [9]})
    newest = {c.day: c for c in History(campaigns.ledger).of("sales") if c.kind is ReleaseKind.publish}
    assert newest[DAYS[0]].measures == {}
    assert newest[DAYS[1]].measures == {"amount": (Decimal(0), Decimal(11))}
    assert newest[DAYS[0]].rows_after == 2


def test_a_rollback_over_foreign_rows_has_no_measures(campaigns: World) -> None:
    campaigns.released({d: [1] for d in DAYS})
    release = measured(campaigns)
    write_deltalake(
        campaigns.homes["sales"], rows_of({DAYS[0]: [99]}), mode="overwrite", predicate=f"day = '{DAYS[0]}'"
    )
    campaigns.campaign_rollback().execute(release, "odd", consent_rewritten=frozenset({DAYS[0]}))
    back = {c.day: c for c in History(campaigns.ledger).of("sales") if c.kind is ReleaseKind.rollback}
    assert (back[DAYS[0]].rows_before, back[DAYS[0]].rows_after) == (1, 1)
    assert back[DAYS[0]].measures == {}
    assert back[DAYS[1]].measures == {"amount": (Decimal(11), Decimal(1))}
