"""The layers that a day goes through: the one place that lists them, in order."""

from __future__ import annotations

from enum import StrEnum


class Layer(StrEnum):
    """A layer of a dataset: one table on the disk, and one asset in Dagster.

    Attributes:
        raw: every delivery, unchanged.
        staging: cleaned, typed, and for each key the delivery in force.
        shadow: the new version of a day, invisible to readers.
        published: what readers see, changed only by releases.
    """

    raw = "raw"
    staging = "staging"
    shadow = "shadow"
    published = "published"
