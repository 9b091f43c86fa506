"""Findings: what the evidence of a day found, in the few figures that overviews add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

IDENTICAL_FILES: Final = "identical_files"
"""The check that warns of files which were delivered twice, and whose rows add up."""


@dataclass(frozen=True)
class DayFindings:
    """The figures of one day's evidence.

    `golden_mismatches` counts the rows on which a golden source and the day do not agree, `tolerated` names the other checks
    that failed and do not block; `passed` says whether there are verdicts and none of them refuses the release.
    """

    rows: int = 0
    duplicate_keys: int = 0
    golden_mismatches: int = 0
    tolerated: tuple[str, ...] = ()
    passed: bool = False
