"""Claims: days that open units of others hold, looked at before a campaign is planned or announced."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping

from backfill_assets.core.days import format_days
from backfill_assets.core.errors import ClaimedDaysError
from backfill_assets.ledger.ledger import Ledger


def refuse_claimed(ledger: Ledger, campaign: str, targets: Mapping[str, Collection[dt.date]]) -> None:
    """Refuse days, by dataset, that belong to an open unit which is not the campaign's own.

    Raises:
        ClaimedDaysError: names the first such unit, its days and the remedy.
    """
    for name, days in targets.items():
        claims = ledger.claims(name, days)
        for owner in sorted(set(claims.values())):
            unit = ledger.unit(owner)
            # Planned again after its launch, a campaign meets the claims of its own unit.
            if unit.campaign != campaign:
                own = format_days(day for day, holder in claims.items() if holder == owner)
                of = f" of campaign {unit.campaign}" if unit.campaign else ""
                raise ClaimedDaysError(
                    f"{name} {own}: claimed by open unit {owner}{of}; publish it (backfill publish {unit.handle}) "
                    f"or give it up (backfill discard {unit.handle}) first"
                )
