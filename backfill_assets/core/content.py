"""What a published day holds and was built from, and the word of somebody who keeps it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from backfill_assets.core.canonical import digest

UNKNOWN_ORIGIN = "unknown"
"""Stands for the upstream content behind files that this project did not build."""


@dataclass(frozen=True)
class Content:
    """What a set of files holds for a day: the fingerprint of its rows, and digests of what they were built from.

    `upstream` is empty for a dataset without upstreams (see also `UNKNOWN_ORIGIN`); `inputs` covers deliveries and references,
    `deliveries` only the deliveries, as `origins` names them; `references` are the fingerprints of references and golden
    sources by name; `parts` is the name of the parts of its code (`Ledger.add_code`). All four are None if unknown.
    """

    fingerprint: str
    upstream: str
    inputs: str | None = None
    deliveries: tuple[str, ...] | None = None
    references: Mapping[str, str] | None = None
    parts: str | None = None

    @property
    def origin(self) -> str:
        """A digest of these rows and of what they were built from, by which code."""
        return digest([self.fingerprint, self.upstream, self.inputs, self.parts])


@dataclass(frozen=True)
class KeptDay:
    """Somebody's word that a published day stays as it is, although the code changed since it was built.

    It is about the content with the origin `about`. `content` is that content as if it had been built when the word was given, by
    the code and from the inputs of that moment; None if the word takes back what was said before. `causes` made the day stale then.
    """

    dataset: str
    day: dt.date
    about: str
    content: Content | None
    causes: tuple[str, ...]
    by: str
    at: dt.datetime
    reason: str
