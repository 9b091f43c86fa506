"""Specifications of campaigns over some days: their content, and their file where the command looks for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml


def document(backfill_id: str, dataset: str, days: Sequence[dt.date], **more: object) -> dict[str, object]:
    """The specification of a campaign that needs no approval; `more` are further keys, or other values."""
    return {
        "backfill_id": backfill_id,
        "owner": "operations",
        "source_range": {"start": str(days[0]), "end": str(days[-1])},
        "target": {"dataset": dataset, "partition_key": "day"},
        "reason": {"issue": "OPS-1", "change": "Deliveries of these days came again"},
        "approval": {"required": False},
        **more,
    }


def write_document(root: Path, content: Mapping[str, object]) -> str:
    """Write a specification into the folder `backfills` below `root`; returns its path from there, for the command."""
    file = root / "backfills" / f"{content['backfill_id']}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(dict(content)), encoding="utf-8")
    return str(file.relative_to(root))
