"""Times that cannot be right: clocks are wrong now and then, and the numbers of the ledger say what came before what."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Final

AHEAD: Final = dt.timedelta(minutes=5)
"""How far a time may lie in the future before the clock that gave it counts as wrong: hosts agree within seconds."""


def is_ahead(at: dt.datetime, now: dt.datetime) -> bool:
    """Whether a time lies in the future."""
    return at > now + AHEAD


def corrected(releases: Sequence[tuple[str, dt.datetime]], now: dt.datetime) -> Mapping[str, dt.datetime]:
    """The releases whose time cannot be right, each with one that can; `releases` are all, in order of their numbers.

    One that is dated before an earlier release was made by a clock that was behind: it counts as made just after that one. One
    that lies in the future was made by a clock that was ahead: it counts as made just before the next one that does not. While
    there is no next one nobody knows, and it keeps its time. So no window ends too early, and each one ends.
    """
    found: dict[str, dt.datetime] = {}
    before: dt.datetime | None = None
    for release, at in releases:
        if not is_ahead(at, now):
            if before is not None and at < before:
                found[release] = before
            before = max(at, before or at)
    after: dt.datetime | None = None
    for release, at in reversed(releases):
        if not is_ahead(at, now):
            after = found.get(release, at)
        elif after is not None:
            found[release] = after
    return found
