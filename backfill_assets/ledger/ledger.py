"""The ledger, whole."""

from __future__ import annotations

from backfill_assets.ledger.campaigns import CampaignRows, ProofRows
from backfill_assets.ledger.releases import ReleaseRows
from backfill_assets.ledger.units import UnitRows
from backfill_assets.ledger.work import WorkRows


class Ledger(UnitRows, WorkRows, ReleaseRows, CampaignRows, ProofRows):
    """The control state on SQLite or Postgres; every method is one transaction. Made by `open_ledger`."""

    def close(self) -> None:
        """Close the database connections; the ledger opens new ones when it is used again."""
        self._database.close()
