"""What the ports that are implemented on Spark have in common."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.storage.layout import Layout


@dataclass(frozen=True)
class OnSpark:
    """Works on these datasets, in a session of its own for each step; `session` opens one for a tag."""

    session: Callable[[str], AbstractContextManager[SparkSession]]
    datasets: Mapping[str, LoadedDataset]
    layout: Layout

    def opened(self, step: str) -> AbstractContextManager[SparkSession]:
        """A session for a step."""
        # A tag of this thread's own: a session's newer namesake would end it.
        return self.session(f"{step} {os.getpid()} {threading.get_ident()}")
