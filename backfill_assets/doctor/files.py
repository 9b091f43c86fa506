"""Examines files: whether logs and data of all tables are on disk as written, and what is left over."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from backfill_assets.campaign.plan import shown_bytes
from backfill_assets.core.days import day_range, format_days
from backfill_assets.core.delivery import Delivery, FileContent
from backfill_assets.core.layers import Layer
from backfill_assets.core.release import StoredFile
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import UnitState
from backfill_assets.dataset.definition import Dataset
from backfill_assets.delta.opening import newest_commit
from backfill_assets.delta.stored_tables import StoredTable
from backfill_assets.delta.table import PublishedTable
from backfill_assets.doctor.findings import RESTORE_FOLDER, RESTORE_LEDGER, Finding, Repair, RepairKind
from backfill_assets.evidence.inputs import idle_days, lost_days, surplus_days
from backfill_assets.evidence.known_deliveries import purged_among
from backfill_assets.evidence.raw_contents import rows_in_raw
from backfill_assets.ledger.open import Ledger
from backfill_assets.storage.delivering import left_behind
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.layout import Layout, ReportFolder

REPORTS = "reports"
"""The name of the reports folder where otherwise a table's folder is named."""
SOURCES = "sources"
"""The same for the sources folder."""
_SCRATCH = ("p_", "d_")
"""The prefixes of ids of certificates and of comparisons with history."""


@dataclass(frozen=True)
class FilesExam:
    """Examines all tables at one moment; a file written before `settled` is no longer being worked on."""

    ledger: Ledger
    datasets: Mapping[str, Dataset]
    layout: Layout
    now: dt.datetime
    settled: dt.datetime

    def of_table(self, table: StoredTable) -> Iterator[Finding]:
        """Problems with the files of one table."""
        yield from self._log(table)
        yield from self._lost(table)
        yield from self._left(table, table.temporary, "unfinished files")
        yield from self._left(table, table.orphans, "data files that no commit names")
        if table.layer == Layer.raw:
            yield from self._landed(table)

    def of_staging(self, tables: Sequence[StoredTable]) -> Iterator[Finding]:
        """Staged tables with columns of an earlier staging model."""
        for table in tables:
            newest = current_staging(tables, table.dataset)
            if table.layer == Layer.staging and newest is not None and table.place != newest.place:
                what = f"{table.place} holds rows of {table.dataset} with columns of an earlier staging model"
                remedy = f"it is read only if the staging model gets them again; remove the folder {table.place}"
                yield Finding.info(what, remedy)

    def of_shadows(self, name: str, table: PublishedTable) -> Iterator[Finding]:
        """Shadow folders without a unit: scratch of a killed command, or of a unit that the ledger has lost."""
        units = {unit.id for unit in self.ledger.units(name)}
        folders: dict[str, list[StoredFile]] = {}
        for file in table.stored_files():
            folders.setdefault(file.path.split("/")[1], []).append(file)
        for folder, files in sorted(folders.items()):
            if folder in units or any(file.modified > self.settled for file in files):
                continue
            size = shown_bytes(sum(file.size for file in files))
            what = f"{name}: the folder _shadow/{folder} ({number_of(len(files), 'file')}, {size})"
            if folder.startswith(_SCRATCH):
                repair = Repair(RepairKind.files, f"published/{name}", name, paths=tuple(file.path for file in files))
                killed = f"{what} is scratch of a backfill prove or diff-history that was killed"
                yield Finding.info(killed, "run: backfill sweep", repair)
            else:
                remedy = f"if the ledger lost it: {RESTORE_LEDGER}; otherwise run: backfill sweep"
                yield Finding.warning(f"{what} belongs to a unit that the ledger does not know", remedy)

    def of_evidence(self, name: str, table: PublishedTable) -> Iterator[Finding]:
        """The shadow files behind the evidence of open units, and the logs of their shadows."""
        for unit in self.ledger.units(name, states={UnitState.open}):
            evidence = self.ledger.evidence(unit.id, name).values()
            files = [file for found in evidence for file in found.shadow_files]
            if lost := table.unreleasable(files):
                days = format_days(f.day for f in lost)
                what = f"{name} {days}: files that unit {unit.id} would release, or their shadow's log, are lost or altered"
                yield Finding.warning(f"{what}, first {lost[0].path}", f"run: backfill resume {unit.handle}")

    def of_reports(self, reports: ReportFolder) -> Iterator[Finding]:
        """Reports of units that do not exist, and unfinished pages."""
        units = {unit.id for unit in self.ledger.units()}
        for unit in reports.units():
            if unit not in units:
                what = f"there is a report of unit {unit}, which the ledger does not know"
                yield Finding.warning(what, f"if the ledger lost it: {RESTORE_LEDGER}; otherwise remove the folder")
        left = [file for file in reports.unfinished() if file.modified < self.settled]
        if left:
            repair = Repair(RepairKind.files, REPORTS, paths=tuple(file.path for file in left))
            what = f"{REPORTS}: {number_of(len(left), 'unfinished page')}, first {left[0].path}"
            yield Finding.info(what, "remove them by hand", repair)

    def of_sources(self, layout: Layout) -> Iterator[Finding]:
        """Unfinished files of extracts."""
        own = [dataset for dataset in self.datasets.values() if dataset.extract is not None]
        files = (layout.source(one.landing.template.filled(day)) for one in own for day in self.days(one.name))
        folders = {file.path.parent for file in files if isinstance(file, OnDisk)}
        left = [file for folder in sorted(folders) for file in left_behind(folder)]
        if left:
            paths = tuple(OnDisk(file).relative_to(layout.sources.resolved()) for file in left)
            what = (
                f"{SOURCES}: {number_of(len(left), 'unfinished file')} of an extract that was killed, first {paths[0]}"
            )
            remedy = "nothing: the next extract into that folder removes what is left there"
            yield Finding.info(what, remedy, Repair(RepairKind.files, SOURCES, paths=paths))

    def _log(self, table: StoredTable) -> Iterator[Finding]:
        for commit in table.damaged:
            newest = commit.version == table.version
            what = f"{table.place}: commit {commit.version} of its log {commit.problem}"
            repair = Repair(RepairKind.set_aside, table.place, table.dataset, paths=(str(commit.version),))
            yield Finding.error(what, RESTORE_FOLDER, repair if newest and self._may_go(table) else None)
        if table.gaps:
            what = f"{table.place}: its log is missing the commits {', '.join(map(str, table.gaps[:5]))}"
            yield Finding.error(what, RESTORE_FOLDER)
        for version in table.torn_checkpoints:
            what = f"{table.place}: checkpoint {version} of its log cannot be read; its commits have all that was in it"
            repair = Repair(RepairKind.checkpoint, table.place, table.dataset, paths=(str(version),))
            yield Finding.error(what, RESTORE_FOLDER, repair)
        if table.problem and not table.damaged and not table.gaps and not table.torn_checkpoints:
            yield Finding.error(f"{table.place}: its log cannot be read: {table.problem}", RESTORE_FOLDER)

    def _may_go(self, table: StoredTable) -> bool:
        """Whether the newest commit may be set aside; of raw, only if the version before has all landed rows of the ledger."""
        if table.layer != Layer.raw:
            return True
        # The days of a dataset that is not loaded are unknown.
        return table.dataset in self.datasets and not lost_days(self._deliveries(table), table.rows)

    def _lost(self, table: StoredTable) -> Iterator[Finding]:
        if not table.lost:
            return
        first = table.lost[0]
        found = "is not there" if first.found < 0 else f"has {first.found:,} bytes instead of {first.size:,}"
        what = f"{table.place}: {number_of(len(table.lost), 'file')} of its newest version lost or altered; {first.path} {found}"
        if table.layer == Layer.staging:
            staged = self.ledger.staged(table.dataset, self.days(table.dataset))
            known = any(day.inputs for day in staged.values())
            repair = Repair(RepairKind.stage, table.place, table.dataset) if known else None
            remedy = "launch staging of these days" if known else "these days are staged again when they are needed"
            yield (Finding.warning if known else Finding.info)(what, remedy, repair)
        elif table.layer == Layer.raw:
            yield Finding.error(what, "restore them from a backup: raw is the only copy of the deliveries")
        else:
            yield Finding.error(what, RESTORE_FOLDER)

    def _left(self, table: StoredTable, files: Sequence[StoredFile], what: str) -> Iterator[Finding]:
        left = [file for file in files if file.modified < self.settled]
        if left:
            repair = Repair(RepairKind.files, table.place, table.dataset, paths=tuple(file.path for file in left))
            size = shown_bytes(sum(file.size for file in left))
            found = f"{table.place}: {len(left)} {what} ({size}) of a writer that was killed, first {left[0].path}"
            if files is table.orphans and table.set_aside:
                remedy = f"a commit in _set_aside/{table.place} may name them; remove that folder when it is no longer needed"
                yield Finding.info(found, remedy)
            else:
                yield Finding.info(found, "remove them by hand", repair)

    def _landed(self, table: StoredTable) -> Iterator[Finding]:
        if table.dataset not in self.datasets or table.damaged or table.problem:
            return
        deliveries = self._deliveries(table)
        missing = lost_days(deliveries, table.rows)
        if missing:
            what = f"raw/{table.dataset} {format_days(missing)}: raw has fewer rows than the ledger says were landed"
            remedy = "launch raw of these days if their files are still there; otherwise restore raw from a backup"
            yield Finding.error(what, f"{remedy} of the ledger's time, or later")
        if table.written_at is not None and table.written_at < self.settled:
            yield from self._unknown(table, deliveries)

    def _unknown(self, table: StoredTable, deliveries: Sequence[Delivery]) -> Iterator[Finding]:
        """Rows of raw that the ledger does not know, found by their contents where totals prove nothing."""
        over, landed = surplus_days(deliveries, table.rows), {one.content: one.rows for one in deliveries}
        rows = self._rows(table, over | idle_days(self.datasets[table.dataset], deliveries))
        more = {content for content, number in rows.items() if number > landed.get(content, 0)}
        back = more & {one.content for one in purged_among(self.ledger, table.dataset, deliveries)}
        for day, path in sorted({content[:2] for content in back}):
            what = f"raw/{table.dataset} {day}: raw has rows of {path}, which was purged"
            yield Finding.warning(what, f"repeat: backfill purge {table.dataset} {path} --reason TEXT")
        days = {content[0] for content in more - back} | (over - {content[0] for content in more})
        if days:
            what = f"raw/{table.dataset} {format_days(days)}: raw has rows that the ledger does not know as landed"
            remedy = "launch raw of these days if their files are still there; otherwise restore a newer ledger"
            yield Finding.warning(what, f"{remedy}, or see docs/deliveries.md")

    def _rows(self, table: StoredTable, days: Collection[dt.date]) -> Mapping[FileContent, int]:
        """The rows that raw has of each delivery of these days; none if its files do not say so, or somebody writes it."""
        if not days or not table.readable or table.lost:
            return {}
        place = self.layout.at(table.place)
        try:
            found = rows_in_raw(place, days)
        except (pa.ArrowException, KeyError):
            return {}  # files of another writer
        return found if newest_commit(place) == table.version else {}

    def _deliveries(self, table: StoredTable) -> tuple[Delivery, ...]:
        return self.ledger.deliveries(table.dataset, {*self.days(table.dataset), *table.rows})

    def days(self, name: str) -> tuple[dt.date, ...]:
        """The days that a dataset has had until now; none if it is not loaded."""
        return days_of(self.datasets.get(name), self.now)


def days_of(dataset: Dataset | None, now: dt.datetime) -> tuple[dt.date, ...]:
    """The days that a dataset has had until now, and later delivery days that have landed with them; none without a dataset."""
    if dataset is None:
        return ()
    newest = now.date() + dt.timedelta(days=1 + dataset.lookahead_days)
    return tuple(day_range(dataset.start, max(dataset.start, dataset.due(newest))))


def current_staging(tables: Sequence[StoredTable], dataset: str) -> StoredTable | None:
    """The staged table of a dataset that was written last."""
    oldest = dt.datetime.min.replace(tzinfo=dt.UTC)
    own = [table for table in tables if table.layer == Layer.staging and table.dataset == dataset]
    return max(own, key=lambda table: table.written_at or oldest, default=None)
