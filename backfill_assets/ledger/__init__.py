"""The control state on SQLAlchemy: units, claims, attempts, evidence, releases and locks."""

from __future__ import annotations

from backfill_assets.ledger.database import Host, LockPace, this_host
from backfill_assets.ledger.open import Ledger, LedgerLogin, adopt_host, ledger_clock, open_ledger

__all__ = ["Host", "Ledger", "LedgerLogin", "LockPace", "adopt_host", "ledger_clock", "open_ledger", "this_host"]
