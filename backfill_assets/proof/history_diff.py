"""Shows what changed models would do to published days, as Markdown."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from backfill_assets.core.certificate import Recomputation
from backfill_assets.core.days import Days, format_days
from backfill_assets.core.errors import EvidenceError, ModelError, ProofError, SourceError
from backfill_assets.core.measured import RowChange, SchemaChange
from backfill_assets.core.release import SHADOW
from backfill_assets.core.text import in_words, number_of, visible
from backfill_assets.dataset.checkout import Checkout
from backfill_assets.dataset.loaded import Catalog, LoadedDataset
from backfill_assets.evidence.contents import effective
from backfill_assets.pipeline.judge_rows import schema_change
from backfill_assets.proof.certificate import remove_scratch
from backfill_assets.proof.recompute import DayDifference, SparkRecomputations
from backfill_assets.proof.subjects import RecomputedDays, Subjects
from backfill_assets.warehouse import OnWarehouse, Warehouse

TOP_ROWS: Final = 10
"""The number of changed rows shown for each measure."""
_MOST_DAYS: Final = 31
_PLACES: Final = Decimal("1e-6")
_LARGE: Final = Decimal(10) ** 18
_NOTHING: Final = "-"
_ESCAPED: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", "|": "\\|", "`": "'", "@": "@\u200b"}
    # Links and images; a backslash would undo the escape after it.
    | {"[": "&#91;", "]": "&#93;", "!": "&#33;", "\\": "&#92;"}
)
_LONGEST: Final = 60_000
"""The maximum length of a comment on GitHub, with some room to spare."""


@dataclass(frozen=True)
class DatasetDiff:
    """What the models of one dataset would change; `largest` are the rows that change each measure most.

    `followers` are the datasets that are built from it; `problem` says why nothing could be computed, or is empty.
    """

    dataset: str
    days: tuple[DayDifference, ...] = ()
    largest: tuple[RowChange, ...] = ()
    schema: SchemaChange = field(default_factory=SchemaChange)
    followers: tuple[str, ...] = ()
    problem: str = ""

    @property
    def changes(self) -> bool:
        """Whether anything published would change."""
        return self.schema != SchemaChange() or any(day.changes for day in self.days)


@dataclass(frozen=True)
class HistoryDiff:
    """What the models of a commit would change.

    `same` are the datasets whose code is that of their published days, `new` those with nothing published.
    `not_compared` are the requested days that are not published, by dataset.
    """

    ref: str
    commit: str
    datasets: tuple[DatasetDiff, ...]
    same: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    not_compared: Mapping[str, tuple[dt.date, ...]] = field(default_factory=dict)

    @property
    def skipped(self) -> tuple[str, ...]:
        """The changed datasets without a compared day."""
        return tuple(name for name in self.not_compared if name not in {one.dataset for one in self.datasets})

    @property
    def has_problems(self) -> bool:
        """Whether a model could not be computed."""
        return any(one.problem for one in self.datasets)


def as_markdown(diff: HistoryDiff) -> str:
    """The diff as a comment of a pull request."""
    about = (
        f"The models of {_code(diff.ref)} ({diff.commit[:12]}), computed again from the current deliveries and upstreams, "
        "compared with the published days. Nothing was published."
    )
    lines = ["## What this change does to history", "", about, ""]
    if not diff.skipped and not any(one.changes or one.problem for one in diff.datasets):
        lines += ["**Nothing changes.**", ""]
    for one in diff.datasets:
        lines += _dataset(one)
    for name, days in diff.not_compared.items():
        found = "changed, but was not compared" if name in diff.skipped else "was compared without some days"
        lines += [f"{_code(name)} {found}: nothing of it is published on {format_days(days)}.", ""]
    if diff.same:
        lines += [f"Same code as the published days: {in_words([_code(name) for name in diff.same])}.", ""]
    if diff.new:
        lines += [f"Not published yet: {in_words([_code(name) for name in diff.new])}.", ""]
    return _shortened("\n".join(lines))


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return text[: text.rindex("\n", 0, _LONGEST)] + "\n\n… and more, which does not fit: name fewer days or datasets.\n"


def _dataset(one: DatasetDiff) -> Iterator[str]:
    if one.problem:
        yield from (
            f"### {_code(one.dataset)}: could not be computed",
            "",
            "```",
            "\n".join(map(visible, one.problem.replace("```", "'''").split("\n"))),
            "```",
            "",
        )
        return
    changed, total = [found.day for found in one.days if found.changes], number_of(len(one.days), "day")
    yield f"### {_code(one.dataset)}: " + (
        f"{len(changed)} of {total} changed" if one.changes else f"{total}, unchanged"
    )
    yield ""
    yield f"Computed: {format_days(found.day for found in one.days)}."
    yield from _schema(one.schema)
    yield ""
    if not one.changes:
        return
    yield from _columns(one)
    yield from _row_counts(one)
    yield from _metrics(one)
    yield from _rows(one)
    if one.followers:
        names = in_words([_code(name) for name in one.followers])
        yield from (f"Datasets built from it, not computed here: {names}.", "")


def _schema(schema: SchemaChange) -> Iterator[str]:
    said = {"New columns": schema.added, "Columns gone": schema.removed, "Columns of another type": schema.retyped}
    for what, columns in said.items():
        if columns:
            yield f"{what}: {', '.join(f'{_code(name)} ({kind})' for name, kind in columns.items())}."


def _columns(one: DatasetDiff) -> Iterator[str]:
    counts = Counter[str]()
    for rows in (found.rows for found in one.days if found.rows is not None):
        nested = {path.partition(".")[0] for path in rows.parts}
        counts.update({name: n for name, n in rows.columns.items() if name not in nested} | dict(rows.parts))
    if counts:
        shown = ", ".join(
            f"{_code(name)} ({number_of(n, 'row')})" for name, n in sorted(counts.items(), key=lambda c: -c[1])
        )
        yield from (f"Changed columns: {shown}.", "")


def _row_counts(one: DatasetDiff) -> Iterator[str]:
    rows = [
        (f"{found.day}", *(f"{n:,}" for n in (r.added, r.removed, r.changed, r.unchanged)))
        for found in one.days
        if (r := found.rows) is not None
    ]
    yield from _table(("day", "rows added", "removed", "changed", "unchanged"), rows)


def _metrics(one: DatasetDiff) -> Iterator[str]:
    names = dict.fromkeys(name for found in one.days for name in (*found.old, *found.new))
    moved = {name for found in one.days for name in found.moved}
    rows = [
        (_code(name), f"{found.day}", *_compared(found.old.get(name), found.new.get(name)))
        for name in names
        if name in moved
        for found in one.days[:_MOST_DAYS]
    ]
    yield from _table(("metric", "day", "old", "new", "delta", "%"), rows, limit=len(rows))
    if still := [name for name in names if name not in moved]:
        yield from (f"Unchanged on all days: {', '.join(map(_code, still))}.", "")


def _rows(one: DatasetDiff) -> Iterator[str]:
    by_measure: dict[str, list[RowChange]] = {}
    for change in sorted(one.largest, key=lambda found: -abs(found.delta)):
        by_measure.setdefault(change.measure, []).append(change)
    for measure, changes in by_measure.items():
        top = changes[:TOP_ROWS]
        yield from (f"<details><summary>The rows that change <code>{measure}</code> most</summary>", "")
        yield from _table(("day", "row", "old", "new", "delta"), [_row(change) for change in top])
        yield from ("</details>", "")


def _row(change: RowChange) -> tuple[str, ...]:
    key = ", ".join(f"{name} {value}" for name, value in change.key.items())
    return f"{change.day}", _cell(key), _number(change.old), _number(change.new), _number(change.delta, signed=True)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], limit: int = _MOST_DAYS) -> Iterator[str]:
    if not rows:
        return
    yield f"| {' | '.join(heads)} |"
    yield f"|{'|'.join('---' if i < 1 or head in {'day', 'row'} else '--:' for i, head in enumerate(heads))}|"
    yield from (f"| {' | '.join(row)} |" for row in rows[:limit])
    if len(rows) > limit:
        yield f"| … {len(rows) - limit} more |{' |' * (len(heads) - 1)}"
    yield ""


def _compared(old: Decimal | None, new: Decimal | None) -> Iterable[str]:
    if old is None or new is None or not (old.is_finite() and new.is_finite()):
        return _number(old), _number(new), _NOTHING, _NOTHING
    share = f"{(new - old) / abs(old) * 100:+.2f}" if old else _NOTHING
    return _number(old), _number(new), _number(new - old, signed=True), share if new != old else _NOTHING


def _number(value: Decimal | None, *, signed: bool = False) -> str:
    if value is None or not value.is_finite():
        return _NOTHING if value is None else str(value)
    exact = value.quantize(_PLACES).normalize() if abs(value) < _LARGE else value
    return f"{exact:+,f}" if signed and exact else f"{exact:,f}"


def _cell(text: str) -> str:
    return visible(" ".join(text.split())).translate(_ESCAPED)


def _code(name: str) -> str:
    return f"`{visible(name).replace('`', '')}`"


_CONFIGURED = Recomputation("as configured", {})


@dataclass(frozen=True)
class HistoryDiffs(OnWarehouse):
    """Compares models with the published days; writes only scratch shadows, which it removes.

    `histories` gives the engine for a set of datasets.
    """

    histories: Callable[[Mapping[str, LoadedDataset]], SparkRecomputations]

    def of(self, models: Checkout, names: Collection[str] = (), days: Days = ()) -> HistoryDiff:
        """What the models of a commit would change in these datasets; by default, in all whose code has changed.

        By default, up to three published days of each are compared.

        Raises:
            DatasetError: there is no dataset of that name at the commit, or it has problems.
            ProofError: a named dataset has nothing published, or not on these days.
        """
        catalog = models.catalog
        for name in names:
            catalog.dataset(name)
        catalog.require_all()
        warehouse = self.warehouse.of(catalog)
        changed = tuple(name for name in catalog.upstream_first(catalog.datasets) if self._differs(name, catalog))
        there = {
            name: {day for day, files in table.active().items() if files} for name, table in warehouse.tables.items()
        }
        published = {name: there[name].intersection(days) if days else there[name] for name in names or changed}
        for name in names:
            if not published[name]:
                when = " on these days" if days else ""
                raise ProofError(f"nothing of {name} is published{when}; there is no history to compare with")
        found = [
            self._diff(warehouse, name, tuple(day for day in days if day in own))
            for name, own in published.items()
            if own
        ]
        left = {name: tuple(d for d in days if d not in own) for name, own in published.items() if there[name]}
        same = tuple(name for name in sorted(catalog.datasets) if there[name] and name not in {*names, *changed})
        new = tuple(name for name in sorted(catalog.datasets) if not there[name])
        not_compared = {name: missing for name, missing in left.items() if missing}
        return HistoryDiff(models.ref, models.commit, tuple(found), same, new, not_compared)

    def _differs(self, name: str, catalog: Catalog) -> bool:
        code = catalog.code[name]
        published = {manifest.code_version for manifest in effective(self.ledger.releases(name)).values()}
        return self.catalog.code.get(name, code) != code or bool(published - {code})

    def _diff(self, warehouse: Warehouse, name: str, asked: Days) -> DatasetDiff:
        catalog, table, subjects = warehouse.catalog, warehouse.tables[name], Subjects(warehouse)
        try:
            days = asked or subjects.of_dataset(name).days
        except ProofError as error:
            return DatasetDiff(name, problem=str(error))
        scratch, engine = f"{SHADOW}/{self.ids.new('d')}", self.histories(catalog.seen_at(self.clock.now))
        try:
            sampled = subjects.sampled(RecomputedDays(name, days))
            engine.recompute(sampled, f"{scratch}/1", _CONFIGURED)
            differences, largest = engine.differences(name, days, f"{scratch}/1")
        except (EvidenceError, ModelError, SourceError) as error:
            return DatasetDiff(name, problem=str(error))
        finally:
            remove_scratch(table, scratch)
        schema = schema_change(catalog.definitions[name], table.types())
        return DatasetDiff(name, differences, largest, schema, catalog.downstream_of([name]))
