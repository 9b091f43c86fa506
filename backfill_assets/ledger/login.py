"""Who is at work, as Postgres knows them: for several hosts, where every host has users of its own making."""

from __future__ import annotations

from functools import cached_property

from sqlalchemy import text

from backfill_assets.core.errors import LedgerError
from backfill_assets.ledger.database import Database, parsed_url


class LedgerLogin:
    """The identity that Postgres has verified: the role with which this process logs in to the ledger.

    Raises:
        LedgerError: the ledger is a SQLite file, or its URL cannot be read.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(parsed_url(url))
        if self._database.is_sqlite:
            raise LedgerError(
                f"{self._database.name} is a file and has no logins; unset BACKFILL_ASSETS_IDENTITY, or use a ledger on "
                "Postgres by BACKFILL_ASSETS_LEDGER_URL"
            )

    def name(self) -> str:
        """The name of the role; source: Postgres' `session_user`, which no SET ROLE changes.

        Raises:
            LedgerError: the ledger cannot be reached.
        """
        return self._name

    @cached_property
    def _name(self) -> str:
        try:
            with self._database.read() as connection:
                return str(connection.execute(text("SELECT session_user")).scalar_one())
        finally:
            self._database.close()
