"""Ports towards what evidence rests on: content of published days, inputs, upstreams, code and checks as they are now."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from typing import Protocol

from backfill_assets.core.unit import Unit


class ContentFingerprints(Protocol):
    """Reads content when a layout moved: only changed content makes evidence stale."""

    def of(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Order-independent fingerprints of the published days, as in `Side.fingerprint`."""
        ...


class BasisNow(Protocol):
    """What evidence would rest on if it were taken now."""

    def inputs(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """Digest of what each day would be built from now."""
        ...

    def upstream(self, dataset: str, days: Collection[dt.date], unit: Unit | None) -> Mapping[dt.date, str]:
        """Digest of the upstream contents that each day would be built from now; empty without upstreams.

        Days of an upstream that the unit holds count as the unit has built them, all others as they are published.
        """
        ...

    def code(self, dataset: str) -> str:
        """The code version of the dataset now."""
        ...

    def checks(self, dataset: str) -> tuple[str, ...]:
        """Names of the checks of which a release demands a verdict."""
        ...
