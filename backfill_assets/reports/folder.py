"""The folder of reports as files; unlike writing one, looking at it takes no chart library."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backfill_assets.core.errors import PreconditionError
from backfill_assets.core.release import StoredFile

UNFINISHED: Final = ".part"
"""How the name of a page ends until it is whole."""
JSON: Final = "review.json"


@dataclass(frozen=True)
class ReportFolder:
    """The port `WrittenReports` on a folder, which need not exist."""

    folder: Path

    def units(self) -> tuple[str, ...]:
        """The units of which a report lies there."""
        return tuple(sorted(file.parent.name for file in self.folder.glob(f"*/{JSON}")))

    def unfinished(self) -> tuple[StoredFile, ...]:
        """Files that a write has left unfinished, their paths relative to the folder."""
        found = []
        for path in sorted((*self.folder.glob(f"*{UNFINISHED}"), *self.folder.glob(f"*/*{UNFINISHED}"))):
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue  # somebody at work has finished it
            at = dt.datetime.fromtimestamp(status.st_mtime, dt.UTC)
            found.append(StoredFile(path.relative_to(self.folder).as_posix(), at, status.st_size))
        return tuple(found)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove unfinished files; one that is gone already is fine.

        Raises:
            PreconditionError: a path is no unfinished page; nothing has been removed then.
        """
        targets = list(paths)
        for path in targets:
            if not path.endswith(UNFINISHED) or ".." in Path(path).parts or Path(path).is_absolute():
                raise PreconditionError(f"{path!r} is no unfinished page below {self.folder}; nothing was removed")
        for path in targets:
            (self.folder / path).unlink(missing_ok=True)
