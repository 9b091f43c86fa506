"""The deliveries that a dataset can be built from: files as the ledger knows them, or the days of a source table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from backfill_assets.core.canonical import digest
from backfill_assets.core.content import UNKNOWN_ORIGIN, Content
from backfill_assets.core.days import parse_day
from backfill_assets.core.delivery import Deed, Delivery, TableDay
from backfill_assets.core.errors import DatasetError, InvalidDayError, PreconditionError, SourceError
from backfill_assets.core.text import in_one_line, shortened
from backfill_assets.dataset.deliveries import heads
from backfill_assets.dataset.loaded import LoadedDataset
from backfill_assets.dataset.table_source import TableSource
from backfill_assets.delta.opening import DeltaError, error_text, is_table, opened
from backfill_assets.delta.reading import HeldDay, held_days
from backfill_assets.ledger.open import Ledger
from backfill_assets.storage.layout import Layout
from backfill_assets.storage.location import Location
from backfill_assets.storage.sources import SourceFile, discover, read_from
from backfill_assets.warehouse import OnWarehouse

_SHOWN: Final = 60


class SourceFingerprints(Protocol):
    """Reads rows of source tables when their files changed: only changed rows are another delivery."""

    def of_source(self, dataset: str, days: Collection[dt.date], version: int) -> Mapping[dt.date, str]:
        """Order-independent fingerprints of the declared columns by delivery day; empty for a day without rows."""
        ...


def new_files(
    loaded: LoadedDataset, layout: Layout, days: Collection[dt.date], landed: Sequence[Delivery]
) -> Mapping[dt.date, Sequence[SourceFile]]:
    """The files of these delivery days that are not what came last at their path; `landed` has all deliveries of the days.

    Raises:
        SourceError: it is unclear to which day a file belongs, or the sources cannot be listed.
        LayoutError: a link leads out of the sources folder.
        StorageError: a store fails.
    """
    # The file at a path counts: content that was landed and superseded before may be delivered again.
    last = {place: one.fingerprint for place, one in heads(landed).items()}
    new: dict[dt.date, list[SourceFile]] = {}
    # If two contents have the same size and time of change, the newer one is taken as the file at the path.
    for file in discover(loaded, layout, days, sorted(landed, key=lambda one: one.order)):
        if last.get((file.day, file.path)) != file.fingerprint:
            new.setdefault(file.day, []).append(file)
    return new


def table_of(loaded: LoadedDataset) -> TableSource:
    """The source of a dataset that reads a table.

    Raises:
        DatasetError: it does not.
    """
    if not isinstance(loaded.dataset.source, TableSource):
        raise DatasetError(f"{loaded.name} reads no table; declare one as source.table in its dataset.yaml")
    return loaded.dataset.source


def source_key(loaded: LoadedDataset, *path: str) -> str:
    """The file and key that declare a source, for messages."""
    return f"{loaded.folder / 'dataset.yaml'}: {'.'.join(('source', *path))}"


def require_another_table(loaded: LoadedDataset, layout: Layout, published: Location) -> None:
    """Refuse a source that is the dataset's own published table: each release would be read again as new rows.

    Raises:
        SourceError: it is.
        LayoutError: a link leads out of the sources folder.
    """
    source = loaded.dataset.source
    if isinstance(source, TableSource) and layout.source(source.table) == published.resolved():
        raise SourceError(
            f"{source_key(loaded, 'table')}: {source.table} is the published table of {loaded.name} itself, so each release would "
            "be read again as new rows; name the table that its rows come from"
        )


@dataclass(frozen=True)
class TableVersion:
    """One version of a source table: its number, and what it has of each delivery day by its log."""

    number: int
    days: Mapping[dt.date, HeldDay]


def table_version(loaded: LoadedDataset, layout: Layout, number: int | None = None) -> TableVersion:
    """A version of the source table, or the one that `dataset.yaml` says; reads only its log.

    Raises:
        SourceError: there is no such table or version, delta-rs cannot read it, it is not partitioned by the day, it has
            rows that belong to no day, or it is the dataset's own published table.
        LayoutError: a link leads out of the sources folder.
    """
    source, key = table_of(loaded), source_key(loaded, "table")
    place = layout.source(source.table)
    require_another_table(loaded, layout, layout.leads_to(loaded.name))
    if not is_table(place):
        raise SourceError(
            f"{key}: the Delta table {source.table} is not in {layout.sources}; put it there, or correct source.table"
        )
    try:
        with read_from(source.table):
            table = opened(place, version=source.pinned if number is None else number)
            partitions = {column.lower(): column for column in table.metadata().partition_columns}
            if source.day.lower() not in partitions:
                raise SourceError(
                    f"{source_key(loaded, 'day')}: {source.table} is not partitioned by {source.day!r} but by "
                    f"{', '.join(partitions.values()) or 'nothing'}, so that each day would cost a read of all rows; name a "
                    "partition column, or partition the table by the day"
                )
            held = held_days(table, partitions[source.day.lower()])
    except (DeltaError, PreconditionError, ValueError) as error:
        text = in_one_line(error_text(error))
        raise SourceError(
            f"{key}: {source.table} cannot be read by delta-rs: {text}; deliver it completely, without features that delta-rs "
            "does not know, or correct source.version"
        ) from error
    return TableVersion(table.version(), {_day_of(loaded, value): one for value, one in held.items()})


def _day_of(loaded: LoadedDataset, value: object) -> dt.date:
    if type(value) is dt.date:
        return value
    source = table_of(loaded)
    try:
        return parse_day("" if value is None else str(value), source.day)
    except InvalidDayError as error:
        shown = shortened(repr(value), _SHOWN)
        raise SourceError(
            f"{source_key(loaded, 'day')}: {source.table} has rows with {source.day} = {shown}, which no day would read; correct "
            "or delete them there"
        ) from error


def table_days(
    loaded: LoadedDataset, version: TableVersion, days: Collection[dt.date], prints: Mapping[dt.date, str]
) -> tuple[TableDay, ...]:
    """What a version has of these delivery days; a day without a fingerprint of its rows equals only the same files."""
    source, found = table_of(loaded), []
    for day in sorted(version.days.keys() & set(days)):
        held, content = version.days[day], prints.get(day)
        if content == "" or (content is None and not held.size):
            continue
        begin = dt.datetime.combine(day, dt.time(), dt.UTC)
        found.append(
            TableDay(
                loaded.name, day, f"{source.table}/{source.day}={day}",
                digest(f"files {held.files}" if content is None else content), held.size, begin, begin,
                rows=held.rows if content is None else int(content.partition(":")[0]),
                order=day.toordinal(), reading=source.reading, version=version.number,
            )
        )  # fmt: skip
    return tuple(found)


def purged_among(ledger: Ledger, name: str, known: Iterable[Delivery]) -> frozenset[Delivery]:
    """The deliveries among these that were purged and have not landed again since, whatever a person decided later."""
    gone = {one.content: one for one in known if not one.landings}
    journal = ledger.delivery_journal(name, {one.day for one in gone.values()}) if gone else ()
    said = (one for one in journal if one.deed not in {Deed.withdrawn, Deed.restored})
    last = {(one.day, one.path, one.fingerprint): one.deed for one in said}
    return frozenset(one for content, one in gone.items() if last.get(content) is Deed.purged)


@dataclass(frozen=True)
class KnownDeliveries(OnWarehouse):
    """Finds all known deliveries, whether they are in force or not.

    Without `fingerprints`, no rows are read: days of a source table whose files were never measured equal only themselves.
    """

    fingerprints: SourceFingerprints | None = None

    def of(self, name: str, days: Collection[dt.date]) -> tuple[Delivery, ...]:
        """The known deliveries of some delivery days; rows of new files in a source table are read once.

        Raises:
            SourceError: the source is a table that cannot be read; see `table_version`.
        """
        loaded = self.datasets[name]
        if not isinstance(loaded.dataset.source, TableSource):
            return self.ledger.deliveries(name, days)
        if not days:
            return ()
        version = table_version(loaded, self.layout)
        return table_days(loaded, version, days, self._prints(loaded, version, version.days.keys() & set(days)))

    def files(self, name: str, days: Collection[dt.date]) -> Mapping[dt.date, HeldDay]:
        """The files of delivery days in the newest version of a source table; none if the source is no table.

        Names of files never repeat: with the same files before and after, nothing came and went in between.
        """
        loaded = self.datasets[name]
        held = table_version(loaded, self.layout).days if isinstance(loaded.dataset.source, TableSource) else {}
        return {day: held[day] for day in held.keys() & set(days)}

    def _prints(self, loaded: LoadedDataset, version: TableVersion, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """The fingerprints of the rows of these days, as the ledger knows or as they are measured now."""
        layouts = {day: self._layout_of(loaded, version, day) for day in days}
        known = {day: one.fingerprint for day, one in self.ledger.contents(loaded.name, layouts).items()}
        unknown = tuple(sorted(layouts.keys() - known.keys()))
        if not unknown or self.fingerprints is None:
            return known
        found = self.fingerprints.of_source(loaded.name, unknown, version.number)
        # Look at the log again after the reading: another table may have been put in its place.
        still = table_version(loaded, self.layout, version.number)
        same = [day for day in unknown if still.days.get(day) == version.days[day]]
        contents = {day: (layouts[day], Content(found[day], UNKNOWN_ORIGIN)) for day in same}
        self.ledger.add_contents(loaded.name, contents)
        return known | {day: found[day] for day in same}

    def _layout_of(self, loaded: LoadedDataset, version: TableVersion, day: dt.date) -> str:
        # Never that of a published day: those are digests of lists of files.
        return digest(["source", table_of(loaded).reading, version.days[day].files])
