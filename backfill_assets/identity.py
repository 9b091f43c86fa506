"""Who is at work: the source that the settings name, and never what somebody claims."""

from __future__ import annotations

from typing import assert_never

from backfill_assets.core.ports import Identity
from backfill_assets.ledger.open import LedgerLogin
from backfill_assets.settings import IdentitySource, Settings
from backfill_assets.system import SystemUser


def identity_of(settings: Settings) -> Identity:
    """The source of identities that `BACKFILL_ASSETS_IDENTITY` names.

    Raises:
        LedgerError: it is the ledger's login, and the ledger is a SQLite file.
    """
    match settings.identity:
        case IdentitySource.os:
            return SystemUser()
        case IdentitySource.ledger:
            return LedgerLogin(settings.ledger_url)
        case _:
            assert_never(settings.identity)
