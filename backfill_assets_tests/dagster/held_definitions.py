"""The definitions of an installation whose workers wait at gates before chosen calls of their ports; see `gates.py`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from backfill_assets.application import Application
from backfill_assets.delta.table import PublishedTable
from backfill_assets.ledger.open import Ledger
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets.settings import Settings
from backfill_assets_tests.dagster.gates import HOLD_VARIABLE, stand
from backfill_assets_tests.harness.between import between

CALLS = (
    "assign", "add_deliveries", "add_staged", "lock", "add_evidence", "store_manifest", "intend", "commit",
    "finalize_publication", "seal",
)  # fmt: skip


class HeldApplication(Application):
    """An application that checks for a gate before each call that changes something."""

    def __init__(self, settings: Settings, gates: Path) -> None:
        super().__init__(settings)
        self._gates = gates
        self._seen: Counter[str] = Counter()

    @cached_property
    def ledger(self) -> Ledger:
        """The control state."""
        return between(Application.ledger.func(self), CALLS, before=self._pass)

    @cached_property
    def tables(self) -> Mapping[str, PublishedTable]:
        """The published table of every dataset."""
        found = Application.tables.func(self)
        return {name: between(table, CALLS, before=self._pass) for name, table in found.items()}

    def _pass(self, call: str) -> None:
        self._seen[call] += 1
        stand(self._gates, f"{call}.{self._seen[call]}")


if HOLD_VARIABLE in os.environ:
    defs = definitions_of(HeldApplication(Settings.from_env(os.environ), Path(os.environ[HOLD_VARIABLE])))
