"""Reads `flights/published` without Spark: a small report per month, rebuilt when a release changes the month."""

from pathlib import Path

import dagster as dg
import pandas as pd
from dagster_deltalake import DeltaTableResource
from deltalake import DeltaTable
from pyarrow.fs import FileSystem, SubTreeFileSystem

MONTHS = dg.MonthlyPartitionsDefinition(
    start_date="2013-01", end_date="2014-01", timezone="America/New_York", fmt="%Y-%m"
)
_COLUMNS = ["carrier", "airline", "cancelled", "departure_delay", "available_seat_miles"]
_WHEN_RELEASED = (
    dg.AutomationCondition.any_deps_updated().since_last_handled()
    & ~dg.AutomationCondition.any_deps_in_progress()
    & ~dg.AutomationCondition.in_progress()
)
"""A month is due when a release changed one of its days, and no run in progress would change it again."""


def carrier_report(folder: Path) -> dg.AssetsDefinition:
    """The asset `consumers/carrier_report`: one CSV file per month in `folder`, each written atomically.

    It needs the resource `flights_table`, the published table. All months of a run are read from one version.
    """

    @dg.asset(
        key=["consumers", "carrier_report"],
        deps=[dg.AssetKey(["flights", "published"])],
        partitions_def=MONTHS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        automation_condition=_WHEN_RELEASED,
        group_name="consumers",
        kinds={"pandas", "csv"},
        description="Per month and airline: departures, cancellations, mean delay and capacity, as published.",
    )
    def report(context: dg.AssetExecutionContext, flights_table: DeltaTableResource) -> None:
        table = flights_table.load()
        release = latest_release(table)
        for month in context.partition_keys:
            found = summary(flights_of(table, month))
            file = folder / f"{month}.csv"
            _write_atomically(file, found.to_csv(index=False))
            metadata = {
                "release": release,
                "version": table.version(),
                "airlines": len(found),
                "departures": int(found["departures"].sum()),
                "path": dg.MetadataValue.path(file),
            }
            context.add_asset_metadata(metadata, partition_key=month)

    return report


def latest_release(table: DeltaTable) -> str:
    """The newest release in a loaded version (every release writes its name into its commit); empty before the first."""
    named = (str(commit["release"]) for commit in table.history() if "release" in commit)
    # `history` covers the newest version, whichever is loaded; the transactions are those of the loaded version.
    return next((name for name in named if table.transaction_version(name) is not None), "")


def flights_of(table: DeltaTable, month: str) -> pd.DataFrame:
    """One row per departure of a month such as `2013-03`; only the files of its days are opened."""
    first = pd.Period(month, freq="M")
    days = [("flight_date", ">=", first.start_time.date()), ("flight_date", "<", (first + 1).start_time.date())]
    # Arrow opens the files: through delta-rs, a process that ends right after reading may abort (delta-io/delta-rs#2184).
    files, folder = FileSystem.from_uri(table.table_uri)
    return table.to_pandas(columns=_COLUMNS, filters=days, filesystem=SubTreeFileSystem(folder, files))


def summary(flights: pd.DataFrame) -> pd.DataFrame:
    """One row per airline: departures, cancelled ones, mean delay in minutes, available seat miles."""
    return (
        flights.groupby(["carrier", "airline"], as_index=False)
        .agg(
            departures=("carrier", "size"),
            cancelled=("cancelled", "sum"),
            mean_departure_delay=("departure_delay", "mean"),
            available_seat_miles=("available_seat_miles", "sum"),
        )
        .astype({"available_seat_miles": "int64"})
        .round({"mean_departure_delay": 1})
    )


def _write_atomically(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
