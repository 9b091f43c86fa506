"""Which days a preview shows new, from which attempt, and when it is dropped."""

from __future__ import annotations

import pytest

from backfill_assets.core.errors import UnitError
from backfill_assets.core.unit import UnitState
from backfill_assets.release.readers import Preview
from backfill_assets_tests.harness.specifications import DAYS, NAME
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.harness.world import World


def test_each_day_comes_from_the_attempt_that_its_evidence_names(campaigns: World) -> None:
    _, unit = campaigns.launched()
    campaigns.build(unit, "sales", {DAYS[0]: [1], DAYS[1]: [1]})
    campaigns.build(unit, "sales", {DAYS[1]: [2], DAYS[2]: []})
    catalogue = campaigns.previews
    (shown,) = Preview(campaigns.ledger, catalogue).show(unit.id)
    first, second = (f"_shadow/{unit.id}/{number}" for number in (1, 2))
    assert catalogue.views == {"sales": (unit.id, DAYS, {first: (DAYS[0],), second: (DAYS[1],)})}
    assert (shown.view, shown.new, shown.missing) == ("preview.sales", DAYS, ())


def test_days_without_passing_evidence_are_shown_as_they_are_published(campaigns: World) -> None:
    _, unit = campaigns.launched()
    campaigns.build(unit, "sales", {DAYS[0]: [1]})
    campaigns.build(unit, "sales", {DAYS[1]: [2]}, passed=False)
    catalogue = campaigns.previews
    (shown,) = Preview(campaigns.ledger, catalogue).show(unit.id)
    assert (shown.new, shown.missing) == ((DAYS[0],), DAYS[1:])
    assert catalogue.views["sales"][1] == (DAYS[0],)


def test_a_unit_that_is_over_has_no_preview(campaigns: World) -> None:
    _, unit = campaigns.approved()
    campaigns.release().publish(NAME)
    with pytest.raises(UnitError, match="is published: there is nothing to preview"):
        Preview(campaigns.ledger, campaigns.previews).show(unit.id)


def test_a_preview_is_dropped_by_hand_or_when_its_unit_is_over(campaigns: World) -> None:
    _, unit = campaigns.validated()
    other = campaigns.open_unit({"sales": [day(9)]})
    preview = Preview(campaigns.ledger, campaigns.previews)
    preview.show(unit.id)
    assert preview.tidy() == ()
    assert preview.drop(other.id) == ()
    assert preview.drop(unit.id) == ("sales",)
    preview.show(unit.id)
    campaigns.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    assert preview.tidy() == ("sales",)
    assert preview.previews.shown() == {}


def test_a_release_drops_the_preview_of_its_unit(campaigns: World) -> None:
    _, unit = campaigns.approved()
    Preview(campaigns.ledger, campaigns.previews).show(unit.id)
    campaigns.release().publish(NAME)
    assert campaigns.previews.shown() == {}


def test_a_preview_that_cannot_be_dropped_fails_no_release(campaigns: World, caplog: pytest.LogCaptureFixture) -> None:
    _, unit = campaigns.approved()
    Preview(campaigns.ledger, campaigns.previews).show(unit.id)
    campaigns.previews.broken = True
    campaigns.release().publish(NAME)
    assert campaigns.content() == {d: [2] for d in DAYS}
    assert "previews of finished units could not be dropped" in caplog.text
    campaigns.previews.broken = False
    campaigns.reconcile().run()
    assert campaigns.previews.shown() == {}
