"""The command behind `make bench`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from backfill_assets.cli.output import as_json, errors
from backfill_assets.core.canonical import plain
from backfill_assets.core.errors import BackfillError
from benchmarks.bench import Options, run_benchmark
from benchmarks.history import measure_history, show_history
from benchmarks.show import show
from benchmarks.years import MONTH, measure_years, show_years

_MOST_DAYS: Final = 1250
_YEAR: Final = 365
_LEAST_SAMPLE, _MOST_SAMPLE = 2, 50


def main() -> int:
    """Run the benchmark that the command line asks for; the exit code."""
    parser = _parser()
    given = parser.parse_args()
    if not (1 <= given.days <= _MOST_DAYS and _LEAST_SAMPLE <= given.sample <= _MOST_SAMPLE):
        parser.error(f"--days must lie in 1..{_MOST_DAYS} and --sample in {_LEAST_SAMPLE}..{_MOST_SAMPLE}")
    if given.history:
        found = measure_history(given.folder.absolute() / "history", given.history)
        as_json(found) if given.json else show_history(given.history, found)
        return 0
    if given.years:
        days = round(given.years * _YEAR)
        if days <= MONTH or given.datasets < 1:
            parser.error(f"--years must be more than {MONTH} days, and --datasets at least 1")
        costs = measure_years(
            given.folder.absolute() / "years", days, given.datasets, lambda text: errors.print(text, markup=False)
        )
        as_json(costs) if given.json else show_years(days, given.datasets, costs)
        return 0
    options = Options(given.scale, given.days, given.chunk, given.sample, given.growth, given.store, given.workers)
    try:
        results = run_benchmark(given.folder.absolute(), options, lambda text: errors.print(text, markup=False))
    except BackfillError as error:
        errors.print(f"refused: {error}", style="bold red", markup=False, soft_wrap=True)
        return 1
    if given.json:
        as_json({"measured": plain(results), "derived": results.derived()})
    else:
        show(results)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "benchmarks",
        description="Measure the complete pipeline on order lines of TPC-H, beside a bare Spark job and a run per day.",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="scale factor of TPC-H (1)")
    parser.add_argument("--days", type=int, default=550, help="days of the pipeline, from 1995-01-01 on (550)")
    parser.add_argument("--chunk", type=int, help="days per run (as dataset.yaml says)")
    parser.add_argument("--sample", type=int, default=4, help="days to run one by one, for the extrapolation (4)")
    parser.add_argument("--growth", action="store_true", help="also 50 and 2,406 days; takes long")
    parser.add_argument(
        "--store", default="", help="also with the tables in this place of a bucket, s3://bucket/prefix"
    )
    parser.add_argument("--workers", type=int, default=0, help="then also with Spark as a cluster of so many workers")
    parser.add_argument(
        "--history", type=int, default=0, help="instead: how long one dataset of so many partitions takes to handle"
    )
    parser.add_argument(
        "--years",
        type=float,
        default=0,
        help="instead: what so many years of daily releases cost beside a month of them",
    )
    parser.add_argument(
        "--datasets", type=int, default=20, help="how many datasets are released daily, for --years (20)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--folder", type=Path, default=Path(".state/bench"), help="where to work; keeps generated input"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
