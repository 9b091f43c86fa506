"""A ledger with rows in each of its tables."""

from __future__ import annotations

from dataclasses import replace

from backfill_assets.campaign.state import Action, Phase
from backfill_assets.core.content import Content, KeptDay
from backfill_assets.core.delivery import Deed
from backfill_assets.core.unit import StagedDay, UnitState
from backfill_assets.ledger.open import Ledger, open_ledger
from backfill_assets.system import Clock
from backfill_assets_tests.unit.ledger.campaign_samples import a_campaign, an_approval, an_entry
from backfill_assets_tests.unit.ledger.proof_samples import a_certificate, a_comparison
from backfill_assets_tests.unit.ledger.samples import (
    LEASE,
    a_delivery,
    a_hold,
    a_launch,
    a_manifest,
    a_unit,
    march,
    some_evidence,
)

OLD, PLANNED = "old-1", "old-2"


def full_ledger(url: str, clock: Clock) -> Ledger:
    """A new ledger with rows in each table."""
    ledger = open_ledger(url, clock)
    for by, days in (("b_1", march(1, 9)), ("b_2", march(11, 12))):
        unit = ledger.assign(a_launch(days, by), a_unit(days, by))
        attempt = ledger.start_attempt(unit.id, "flights", days, f"r_{by}", LEASE)
        ledger.add_evidence(attempt.number, [some_evidence(unit.id, attempt.number, days[0])])
        ledger.add_comparisons(attempt.number, [a_comparison(day, attempt.number) for day in days[:2]])
        ledger.add_certificate(a_certificate(days, unit.id, f"c_{by}"))
    (one, other) = a_delivery(march(1)[0]), a_delivery(march(2)[0])
    ledger.add_deliveries([one, other])
    ledger.change_deliveries([other], Deed.withdrawn, "ada", "wrong file")
    ledger.add_staged([StagedDay("flights", march(1)[0], "i", "c", 7)])
    ledger.add_code("flights", {"code": "d1"})
    ledger.keep(
        [KeptDay("flights", march(1)[0], "a", Content("f", ""), ("code",), "ada", clock.now(), "the same rows")]
    )
    fill_campaigns(ledger)
    ledger.hold([a_hold(march(20)[0])])
    ledger.intend(a_manifest("rel_1", march(11), "u_b_2"))
    ledger.finalize("rel_1", 3, clock.now(), UnitState.published)
    with ledger.lock("flights", LEASE):
        pass
    return ledger


def fill_campaigns(ledger: Ledger) -> None:
    """One campaign that was launched, turned, paused and twice approved, and one that is only planned."""
    planned = ledger.add_campaign(a_campaign(OLD), an_entry(Action.planned, campaign=OLD))
    launched = replace(planned, phase=Phase.running, unit="u_b_2", canary_only=True)
    launched = ledger.change_campaign(
        launched, {Phase.planned}, an_entry(Action.launched, "ben", "geprüft", OLD, unit="u_b_2")
    )
    turned = launched.turned(max_concurrency=1)
    turned = ledger.change_campaign(turned, {Phase.running}, an_entry(Action.set, "dora", "", OLD, max_concurrency=1))
    paused = replace(turned, phase=Phase.paused)
    ledger.change_campaign(paused, {Phase.running}, an_entry(Action.paused, "carl", "month end", OLD))
    ledger.note(an_entry(Action.notified, "webhook", campaign=OLD))
    for days, seen in ((march(11), "a"), (march(11, 12), "b")):
        ledger.approve(an_approval(days, seen * 64, "u_b_2"), an_entry(Action.approved, "ben", campaign=OLD))
    ledger.add_campaign(a_campaign(PLANNED), an_entry(Action.planned, campaign=PLANNED))
