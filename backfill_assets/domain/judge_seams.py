"""From seams to a verdict: whether a day steps to its neighbours as the series always did."""

from __future__ import annotations

from collections.abc import Sequence

from backfill_assets.core.evidence import Finding
from backfill_assets.core.measured import Seam
from backfill_assets.domain.seams import UNUSUAL


def judge_seams(seams: Sequence[Seam]) -> Finding:
    """The finding about the steps that one day has to answer for; none is fine, and so is a step that cannot be told."""
    expected = "no step to a neighbouring day that the series never made"
    introduced = [seam for seam in seams if seam.introduced]
    if introduced:
        remedy = "recompute the days on the other side as well; if the step is right, let the dataset warn: checks.seams.severity"
        return Finding(False, expected, "; ".join(map(_shown, introduced)), f"a robust z-score of {UNUSUAL}", remedy)
    return Finding(True, expected, f"{len(seams)} usual steps" if seams else "no edge and no beginning of a month")


def _shown(seam: Seam) -> str:
    was = (
        "unknown" if seam.old_step is None or seam.old_score is None else f"{seam.old_step:+.2f}, {seam.old_score:.1f}"
    )
    return f"{seam.metric} steps by {seam.new_step:+.2f} into {seam.day}, a score of {seam.new_score:.1f} (was {was})"
