"""The command behind `make soak`."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from backfill_assets.cli.output import errors
from benchmarks.installation import ROOT
from benchmarks.soak.drive import Soak
from benchmarks.soak.figures import figures
from benchmarks.soak.found import Found
from benchmarks.soak.site import Site
from benchmarks.soak.watch import Watcher

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Soak as long as the command line says; 0 if every promise was kept, 1 if not, 2 if there is no verdict."""
    given = _parser().parse_args()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    root = given.folder.absolute() / f"run_{os.getpid()}"
    _tell(f"{given.minutes:g} minutes, seed {seed}, in {root}")
    for number in _ENDING:
        signal.signal(number, _interrupted)
    elsewhere = {
        name: value
        for name, value in {
            "BACKFILL_ASSETS_WAREHOUSE": given.warehouse,
            "BACKFILL_ASSETS_SOURCES": given.sources,
            "BACKFILL_ASSETS_LEDGER_URL": given.ledger,
        }.items()
        if value
    }
    site, found = Site(root, elsewhere, given.workers, given.dagster), Found()
    try:
        site.start()
        with site.installation.instance() as instance:
            soak = Soak(site, Watcher(site, instance), seed, _teller())
            found = soak.found
            soak.run(given.minutes * 60)
    except BaseException:  # noqa: BLE001  # also an interrupt: the findings so far are always reported
        _tell(traceback.format_exc())
    finally:
        _take_down(site)
    print(figures(found, given.minutes, seed))  # noqa: T201  # Markdown for a file, not for rich
    if found.kept:
        shutil.rmtree(root, ignore_errors=True)
    return 0 if found.kept else 1 if found.ended else 2


def _interrupted(number: int, _: object) -> NoReturn:
    # By default these would end the soak and leave its processes running.
    raise KeyboardInterrupt(signal.Signals(number).name)


def _take_down(site: Site) -> None:
    """End every process that was started; a second interrupt does not interrupt that."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    try:
        site.stop()
    except Exception:  # noqa: BLE001  # the verdict is worth more than a clean end
        _tell(f"the installation was not taken down cleanly:\n{traceback.format_exc()}")


def _teller() -> Callable[[str], None]:
    began = time.monotonic()
    return lambda text: _tell(f"{time.monotonic() - began:7.1f} s  {text}")


def _tell(text: str) -> None:
    errors.print(text, markup=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("benchmarks.soak", description="Work for minutes under random faults, and judge.")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long to act before all is settled (20)")
    parser.add_argument("--seed", type=int, help="what decides acts and faults (a random one, printed)")
    parser.add_argument("--folder", type=Path, default=Path(".state/soak"), help="where to work")
    parser.add_argument("--warehouse", help="a folder or s3://bucket/prefix (below the folder)")
    parser.add_argument("--sources", help="the same for the deliveries")
    parser.add_argument("--ledger", help="the URL of an empty Postgres database (SQLite below the folder)")
    parser.add_argument("--dagster", type=Path, default=ROOT / "dagster.yaml", help="Dagster's configuration")
    parser.add_argument("--workers", type=int, default=0, help="Spark as a standalone cluster of so many workers")
    return parser


if __name__ == "__main__":
    sys.exit(main())
