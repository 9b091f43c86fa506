"""The control state on SQLAlchemy: units, claims, attempts, evidence, releases and locks."""

from __future__ import annotations

from backfill_assets.ledger.clock import ledger_clock
from backfill_assets.ledger.host import Host, this_host
from backfill_assets.ledger.locks import LockPace
from backfill_assets.ledger.login import LedgerLogin
from backfill_assets.ledger.opening import adopt_host, open_ledger
from backfill_assets.ledger.sql_ledger import Ledger

__all__ = ["Host", "Ledger", "LedgerLogin", "LockPace", "adopt_host", "ledger_clock", "open_ledger", "this_host"]
