"""Deliveries: one file of one delivery day each, and what happened to it after it landed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

FileContent = tuple[dt.date, str, str]
"""A source file's delivery day, its path below the sources folder, and the SHA-256 of its bytes."""
ARCHIVES: Final[Mapping[str, bytes]] = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
"""Endings of the names of compressed text that is read, in lower case, and how such a file begins."""


@dataclass(frozen=True)
class Delivery:
    """One source file landed in raw; the same path with other content is another delivery.

    `path` is relative to the sources folder, `fingerprint` the SHA-256 of its bytes, `size` in bytes; `rows` counts all
    rows of the file, `corrupt_rows` those that could not be read as `reading` says (see `reading_of`). `order` is the
    number that the ledger gave it when it last arrived: a higher number means newer; 0 if it was never the newest at its
    path. `withdrawn` says that a person has withdrawn it. `landings` counts how often it was read into raw; 0 if raw has lost
    it for good, or somebody has purged it.
    """

    dataset: str
    day: dt.date
    path: str
    fingerprint: str
    size: int
    delivered_at: dt.datetime
    landed_at: dt.datetime
    rows: int = 0
    corrupt_rows: int = 0
    order: int = 0
    withdrawn: bool = False
    landings: int = 1
    reading: str = ""

    @property
    def content(self) -> FileContent:
        """What was delivered: other bytes, or the same bytes at another path or for another day, are different content."""
        return self.day, self.path, self.fingerprint


@dataclass(frozen=True)
class TableDay(Delivery):
    """A delivery day of a source that is a table, as one of its versions has it; it never lands, and no ledger has it.

    `path` is the table's folder with the day; `fingerprint` names the rows, not the files: a rewrite of files with equal rows
    is the same delivery. `order` is the day's ordinal number, and `delivered_at` the beginning of the day in UTC.
    """

    version: int = field(default=0, compare=False)


Place = tuple[dt.date, str]
"""The place of a delivery: its delivery day and its path."""


class Deed(StrEnum):
    """What happened to a delivery that was already in the ledger."""

    again = "came again"
    withdrawn = "withdrawn"
    restored = "taken back"
    read = "read again"
    lost = "lost"
    purged = "purged"


@dataclass(frozen=True)
class DeliveryEntry:
    """One line of the journal of deliveries; `order` is the delivery's number from then on."""

    dataset: str
    day: dt.date
    path: str
    fingerprint: str
    deed: Deed
    order: int
    at: dt.datetime
    by: str = ""
    reason: str = ""

    def __str__(self) -> str:
        """What happened, for people."""
        who = f" by {self.by}" if self.by else ""
        why = f": {' '.join(self.reason.split())}" if self.reason.strip() else ""
        return f"{self.deed.value}{who} at {self.at:%Y-%m-%d %H:%M:%S} UTC{why}"
