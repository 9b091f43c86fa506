"""A small valid specification, which each test changes as it needs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from backfill_assets.campaign.specification import Specification
from benchmarks.specifications import document

NAME = "tax-fix-2026"
DAYS = tuple(dt.date(2026, 1, number) for number in range(1, 4))
SIX_DAYS = tuple(dt.date(2026, 1, number) for number in range(2, 8))
CANARIES = (SIX_DAYS[0], SIX_DAYS[-1])
PLAIN: dict[str, Any] = document(
    NAME,
    "sales",
    DAYS,
    owner="finance-data",
    reason={"issue": "FIN-2841", "change": "Correct the tax"},
    approval={"required": True, "by": ["finance-controller"]},
)


def specification(**changes: object) -> Specification:
    """Make the specification with other values of these keys."""
    return Specification.model_validate(PLAIN | changes)


def with_canaries(approval: Mapping[str, object] | None = None, **execution: object) -> Specification:
    """Make a specification of six days, two of them canaries, built in batches of two, with a notice for every event."""
    return specification(
        source_range={"start": str(SIX_DAYS[0]), "end": str(SIX_DAYS[-1])},
        approval=approval or {"required": False},
        execution={"canary": {"partitions": 2}, "partitions_per_batch": 2, **execution},
        notify={"webhook": "env:BACKFILL_WEBHOOK"},
    )
