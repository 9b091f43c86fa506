"""Drift: what of a campaign's code or specification is no longer what its plan was made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from backfill_assets.catalog.specifications import load_specification
from backfill_assets.dataset.faults import shown_path
from backfill_assets.domain.campaign import Campaign


def drift_of(campaign: Campaign, code: Mapping[str, str]) -> str:
    """What moved since the plan, in words, or nothing; `code` are the code versions that are loaded, by dataset.

    A specification whose file is not there is not compared, which `uncompared` says: a deployment need not carry it.
    """
    moved = [d.name for d in campaign.plan.datasets if code.get(d.name) != d.code_version]
    if moved:
        return (
            f"the code of {', '.join(moved)} is no longer what the plan was made from; "
            f"if that is meant, go on with: backfill resume {campaign.id}; if not, restore the code"
        )
    file = Path(campaign.file)
    if not campaign.file or not file.is_file():
        return ""
    loaded = load_specification(file)
    if isinstance(loaded, tuple):
        return f"the specification cannot be read any more: {loaded[0]}; mend or restore the file"
    if loaded.specification.hash != campaign.specification.hash:
        return (
            f"{shown_path(file)} is no longer what the plan was made from; "
            f"if that is meant, go on with: backfill resume {campaign.id}; if not, restore the file"
        )
    return ""


def uncompared(campaign: Campaign) -> str:
    """That the specification's file is not there, in words, or nothing: then nobody notices if it has moved."""
    file = Path(campaign.file)
    if not campaign.file or file.is_file():
        return ""
    return f"its file {shown_path(file)} is not there: not compared with the plan"
