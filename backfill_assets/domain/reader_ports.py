"""Ports towards readers: the table of releases, consumers' queries, previews, and notices to people."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Protocol

from backfill_assets.dataset.sources import Figures
from backfill_assets.delta.releases_table import ReleaseRow


class ReleasesTable(Protocol):
    """The table `data_releases`."""

    def read(self) -> tuple[ReleaseRow, ...] | None:
        """All rows; none while there is no such table."""
        ...

    def write(self, rows: Sequence[ReleaseRow]) -> None:
        """Replace the table by these rows, in one commit."""
        ...


class ConsumerQueries(Protocol):
    """The queries that a dataset's consumers run, on any version of its published table."""

    def figures(self, dataset: str, versions: Sequence[int], through: dt.date) -> Mapping[int, Mapping[str, Figures]]:
        """By version and consumer the figures of its query, over the days up to `through`.

        Raises:
            DatasetError: a query of dataset.yaml fails, or returns other than one row of numbers.
        """
        ...


class Previews(Protocol):
    """Views of datasets as they will be once a unit is released."""

    def show(self, dataset: str, unit: str, days: Sequence[dt.date], shadows: Mapping[str, Sequence[dt.date]]) -> str:
        """Create or renew the view of a dataset; its full name.

        It shows the published table outside of `days`, and of these what stands in the unit's `shadows` (folder to days).
        """
        ...

    def shown(self) -> Mapping[str, str]:
        """The datasets that have such a view, and the unit that it shows."""
        ...

    def drop(self, datasets: Sequence[str]) -> None:
        """Drop the views of these datasets; one that is not there is fine."""
        ...


class Notices(Protocol):
    """Short messages to people."""

    def send(self, webhook: str, text: str) -> None:
        """Send a text to the webhook whose URL the environment variable `webhook` holds.

        Raises:
            NoticeError: it could not be delivered; says why, but never the URL, which is a secret.
        """
        ...
