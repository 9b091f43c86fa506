"""Check that the parts of a dataset contract fit each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from backfill_assets.core.days import MOST_DAYS
from backfill_assets.core.types import is_nested, is_numeric
from backfill_assets.dataset.references import version_misfits
from backfill_assets.dataset.sources import Format, Golden
from backfill_assets.dataset.table_source import TableSource

if TYPE_CHECKING:
    from backfill_assets.dataset.definition import Dataset
    from backfill_assets.dataset.sources import Source


AUDIT_COLUMNS: Final[Mapping[str, str]] = {"recalculated_at": "timestamp", "unit": "string", "code_version": "string"}
"""Columns that the shadow adds to every fact with `audit: columns`; readers of the published view do not see them."""

RESERVED_TABLES = ("raw", "staging")
"""Names of the models' own tables; no reference may have one of them."""

IS_PROVISIONAL: Final = "is_provisional"
"""The audit column, a boolean, that says of a row that its day waits for later ones; readers of the published view see it."""

DATA_RELEASES = "data_releases"
"""Name of the table of releases, in the warehouse and in the Spark catalog; no dataset may have it."""

# A wrong choice between adding up and replacing doubles or loses rows of new days, with every check green.
_SAY_WHICH_COUNT: Final = (
    "set staging.deduplicate to say which rows count: latest_delivery (rows of a newer file replace rows with the same key), "
    "latest_file (a newer file replaces the older ones) or none (all rows add up)"
)
_GROWS: Final = ("timestamp", "date", "integer", "long")
"""The types of a column whose largest value a database and a file tell alike."""
_Problem = tuple[tuple[str, ...], str]


def misfits(dataset: Dataset) -> tuple[_Problem, ...]:
    """Contradictions in a dataset contract, and references to things that do not exist: (path of the key, message)."""
    return (
        *_key_problems(dataset),
        *_column_problems(dataset),
        *_history_problems(dataset),
        *_comparison_problems(dataset),
        *_measure_problems(dataset),
        *_table_problems(dataset),
        *version_misfits(dataset),
        *_validity_problems(dataset),
        *_reference_problems(dataset),
        *_reconciliation_problems(dataset),
        *_origin_problems(dataset),
        *_table_source_problems(dataset),
        *_extract_problems(dataset),
        *_catch_up_problems(dataset),
        *_window_problems(dataset),
        *_provisional_problems(dataset),
    )


def _key_problems(dataset: Dataset) -> Iterator[_Problem]:
    columns, partition = dataset.columns, dataset.partition_column
    for c in dataset.key:
        if c not in columns:
            yield ("key",), f"key names {c!r}, which is not declared in columns; declare it, or name another"
        elif is_nested(columns[c].type):
            yield (
                ("key",),
                f"key names {c!r}, a {columns[c].type}; name columns without parts, such as one of its fields",
            )
    for c, n in Counter(dataset.key).items():
        if n > 1:
            yield ("key",), f"key names {c!r} {n} times; name it once"
    if partition not in columns:
        text = f"partition_column {partition!r} is not declared in columns; declare it, or name another"
        yield ("partition_column",), text
    elif columns[partition].type != "date":
        yield ("columns", partition), f"partition_column {partition!r} must have the type date"


def _column_problems(dataset: Dataset) -> Iterator[_Problem]:
    columns = dataset.columns
    for c in dataset.audit_columns:
        if c in columns:
            yield (
                ("columns", c),
                f"columns declares {c!r}, a name reserved for audit columns; rename it, or set audit: ledger",
            )
    for c in dataset.dropped_columns:
        if c in columns or c in dataset.audit_columns:
            yield (
                ("dropped_columns",),
                f"dropped_columns names {c!r}, which is still a column; remove it from columns or from here",
            )


def _history_problems(dataset: Dataset) -> Iterator[_Problem]:
    if dataset.name == DATA_RELEASES:
        yield ("name",), f"name {DATA_RELEASES!r} is taken by the table of releases; rename the dataset"
    if dataset.end is not None and dataset.end < dataset.start:
        yield ("end",), f"end {dataset.end} is before start {dataset.start}; swap them or drop end"
    elif dataset.end is not None and (dataset.end - dataset.start).days >= MOST_DAYS:
        yield ("end",), f"end {dataset.end}: the history would be longer than {MOST_DAYS:,} days; correct it"


def _comparison_problems(dataset: Dataset) -> Iterator[_Problem]:
    for name, column in dataset.columns.items():
        where, key = ("columns", name, "tolerance"), f"columns.{name}.tolerance"
        if column.tolerance and not is_numeric(column.type):
            yield where, f"{key}: a {column.type} holds no numbers; drop it"
        if column.tolerance and name in dataset.key:
            yield where, f"{key}: rows are matched by the key, which must be equal; drop it"
    for name in dataset.dimensions or ():
        if name not in dataset.columns:
            text = f"dimensions names {name!r}, which is not declared in columns; declare it, or name another"
            yield ("dimensions",), text
        elif is_nested(kind := dataset.columns[name].type) or kind == "binary":
            yield ("dimensions",), f"dimensions names {name!r}, a {kind}; name columns with texts, numbers or days"
    for name, n in Counter(dataset.dimensions or ()).items():
        if n > 1:
            yield ("dimensions",), f"dimensions names {name!r} {n} times; name it once"


def _measure_problems(dataset: Dataset) -> Iterator[_Problem]:
    for name, measure in dataset.measures.items():
        where = ("measures", name)
        if name == "row_count":
            yield where, "measures.row_count: row_count is measured anyway; rename the column"
            continue
        if name not in dataset.columns:
            yield where, f"measures names {name!r}, which is not declared in columns; declare it, or name another"
            continue
        declared = dataset.columns[name].type
        if measure.sum and not is_numeric(declared):
            yield where, f"measures.{name}: a {declared} cannot be summed; set sum: false"
        if measure.percentiles and not is_numeric(declared):
            yield where, f"measures.{name}: a {declared} has no percentiles; drop percentiles"
        if measure.distinct and is_nested(declared):
            yield where, f"measures.{name}: the values of a {declared} are not counted; drop distinct"
        if not (measure.sum or measure.distinct or measure.percentiles):
            yield where, f"measures.{name} compares nothing; set sum, distinct or percentiles to true"


def _table_problems(dataset: Dataset) -> Iterator[_Problem]:
    for name in (*RESERVED_TABLES, dataset.name):
        if name in dataset.references:
            text = f"references.{name}: models or golden queries use that name for their own tables; rename it"
            yield ("references", name), text
    for name in dataset.upstream:
        taken = {
            "a table of the models": name in RESERVED_TABLES,
            "a reference": name in dataset.references,
            "the dataset itself": name == dataset.name,
        }
        for what, is_taken in taken.items():
            if is_taken:
                yield ("upstream", name), f"upstream.{name}: {what} has that name already; rename one"


def _validity_problems(dataset: Dataset) -> Iterator[_Problem]:
    for name, reference in dataset.references.items():
        if (valid := reference.valid) is None:
            continue
        where, key = ("references", name, "valid"), f"references.{name}.valid"
        for c in dict.fromkeys(valid):
            if reference.types.get(c) != "date" or c not in reference.required:
                yield (
                    where,
                    f"{key} names {c!r}, which is no column of type date that each file has; declare it, or name another",
                )
        if len({*valid}) == 1:
            yield where, f"{key} names {valid[0]!r} twice; name the first day, then the day after the last one"
        checks = [check for check in dataset.checks.references.values() if check.reference == name]
        if not any(check.blocks for check in checks):
            # Rows that find no version, or two, would be lost or doubled, with every check green.
            text = "nothing refuses rows without a version or with two; keep its key in the fact, and add a check of it that blocks"
            yield where, f"{key}: {text}, below checks.references"


def _key_type_problems(dataset: Dataset, name: str) -> Iterator[_Problem]:
    """Keys of versions that are only equal after a cast: two of them could be one, and no count would show it."""
    check, where = dataset.checks.references[name], ("checks", "references", name)
    for own, there in zip(check.columns, check.to, strict=True):
        seen = dataset.references[check.reference].types_seen(dataset.partition_column)
        kind, other = dataset.types.get(own), seen.get(there)
        if kind and other and kind != other and not {kind, other} <= {"integer", "long"}:
            text = f"{own} is {kind}, and {there} of {check.reference} is {other}; declare the same type"
            yield where, f"{'.'.join(where)}: {text}"


def _reference_problems(dataset: Dataset) -> Iterator[_Problem]:
    for name, check in dataset.checks.references.items():
        where = ("checks", "references", name)
        key = ".".join(where)
        if check.reference not in {*dataset.references, *dataset.upstream}:
            text = f"{key}.reference {check.reference!r} is not declared in references or upstream; declare it, or name another"
            yield (*where, "reference"), text
            continue
        for c in check.columns:
            if c not in dataset.columns:
                yield where, f"{key}: no column {c!r} in columns; declare it, or name another"
            elif is_nested(dataset.columns[c].type):
                yield where, f"{key}: {c!r} is a {dataset.columns[c].type}; name columns without parts"
        # Which columns an upstream has is known once both are loaded.
        reference = dataset.references.get(check.reference)
        known = check.to if reference is None else reference.types_seen(dataset.partition_column)
        for c in check.to:
            if c not in known:
                yield where, f"{key}: {check.reference} has no column {c!r}; it has {', '.join(known)}"
        if check.reference in dataset.versioned:
            yield from _key_type_problems(dataset, name)


def _reconciliation_problems(dataset: Dataset) -> Iterator[_Problem]:
    where = ("checks", "reconciliation")
    summed = {m for m, measure in dataset.measures.items() if measure.sum} | {"row_count"}
    for m in dataset.reconciled:
        if m not in summed:
            text = f"checks.reconciliation.metrics names {m!r}; use row_count or a summed measure"
            yield (*where, "metrics"), text
    for metric, total in dataset.checks.reconciliation.totals.items():
        at, key = (*where, "totals", metric), f"checks.reconciliation.totals.{metric}"
        if metric not in summed:
            yield at, f"{key}: use row_count or a summed measure"
        if total.upstream not in dataset.upstream:
            text = f"{key}.upstream {total.upstream!r} is not declared in upstream; declare it, or name another"
            yield (*at, "upstream"), text


def _several_files(source: Source | TableSource) -> str:
    """Why several files may bring rows of a day; empty if only one can."""
    if not isinstance(source, TableSource) and source.template.finds_several:
        return f"source.path {source.path!r} may find several files of a day"
    return "source.late_days lets files of several days bring rows of a day" if source.late_days else ""


def _origin_problems(dataset: Dataset) -> Iterator[_Problem]:
    """Keys that need a source or an upstream that the dataset does not have, and keys that are missing."""
    given, checks = dataset.model_fields_set, dataset.checks.model_fields_set
    if dataset.source is None:
        if not dataset.upstream:
            yield ("source",), "source and upstream are both missing; say what the days are built from"
        texts = "needs a source, which this dataset does not have; drop it or add source"
        for key in ("staging", "lookback_days", "lookahead_days"):
            if key in given:
                yield (key,), f"{key} {texts}"
        for key in ("source_present", "corrupt_rows", "source_freshness"):
            if key in checks:
                yield ("checks", key), f"checks.{key} {texts}"
        if dataset.reconciled:
            yield ("checks", "reconciliation", "metrics"), f"checks.reconciliation.metrics {texts}"
    elif "deduplicate" not in dataset.staging.model_fields_set and (why := _several_files(dataset.source)):
        yield ("staging",), f"{why}; {_SAY_WHICH_COUNT}"
    if not dataset.upstream and "upstream_present" in checks:
        yield ("checks", "upstream_present"), "checks.upstream_present: there is no upstream; drop it"


def _table_source_problems(dataset: Dataset) -> Iterator[_Problem]:
    if isinstance(dataset.source, TableSource) and "source_freshness" in dataset.checks.model_fields_set:
        text = "checks.source_freshness: a table does not show when its rows arrived; drop it"
        yield ("checks", "source_freshness"), text


def _catch_up_problems(dataset: Dataset) -> Iterator[_Problem]:
    asked = dataset.live.catch_up
    back = [name for name, one in dataset.upstream.items() if one.lookback_days]
    # Not a comparison with the member of the enumeration: `definition` imports this module.
    if asked is not None and asked.order == "newest" and back:
        text = (
            f"live.catch_up.order: days look back at {', '.join(back)} (lookback_days), so each needs the days before it; write "
            "order: oldest"
        )
        yield ("live", "catch_up", "order"), text


def _window_problems(dataset: Dataset) -> Iterator[_Problem]:
    if not dataset.lookahead_days:
        return
    if not dataset.checks.source_present.blocks:
        text = (
            "checks.source_present: only this check keeps a day back until the days have landed that it looks ahead to "
            "(lookahead_days); let it block"
        )
        yield ("checks", "source_present"), text
    if dataset.is_monthly:
        text = (
            "lookahead_days: source.path names months, so the last days of a month would wait for the file of the next one; "
            "deliver a file per day, or leave lookahead_days out"
        )
        yield ("lookahead_days",), text


def _provisional_problems(dataset: Dataset) -> Iterator[_Problem]:
    asked = dataset.provisional
    if asked is None:
        return
    if not dataset.lookahead_days:
        text = "provisional: no day looks ahead to others, so none waits for them; set lookahead_days, or leave provisional out"
        yield ("provisional",), text
    if dataset.source is not None and dataset.source.late_days:
        text = (
            "provisional: with source.late_days, the file that finalizes a day may also correct it, and nobody can tell what may "
            "change; leave late_days or provisional out"
        )
        yield ("provisional",), text
    if not dataset.audit_columns:
        text = f"provisional: days are marked in the audit column {IS_PROVISIONAL}; set audit: columns"
        yield ("audit",), text
    for name in asked.may_change:
        where = ("provisional", "may_change")
        if name not in dataset.columns:
            yield (
                where,
                f"provisional.may_change names {name!r}, which is not declared in columns; declare it, or name another",
            )
        elif name not in dataset.compared:
            yield where, f"provisional.may_change names {name!r}, by which rows are matched; name other columns"
    for name, n in Counter(asked.may_change).items():
        if n > 1:
            yield ("provisional", "may_change"), f"provisional.may_change names {name!r} {n} times; name it once"


def _extract_problems(dataset: Dataset) -> Iterator[_Problem]:
    if dataset.extract is None:
        return
    source = dataset.landing
    if source.format is not Format.parquet:
        yield ("source", "format"), "source.format: an extract writes parquet; write that, or leave it out"
    if source.template.finds_several:
        text = f"source.path {source.path!r}: an extract writes one file per day; write no *, ? or [ there, or leave it out"
        yield ("source", "path"), text
    modified = dataset.extract.modified_column
    if modified is not None and source.types.get(modified) not in _GROWS:
        text = f"source.extract.modified_column {modified!r} is no column in source.columns of type {', '.join(_GROWS)}; name one"
        yield ("source", "extract", "modified_column"), text
    if source.template.is_monthly:
        yield (
            ("source", "path"),
            f"source.path {source.path!r}: an extract writes one file per day; write {{day}} there",
        )


def golden_misfits(dataset: Dataset) -> tuple[_Problem, ...]:
    """Contradictions in golden sources, and references to things that do not exist: (path of the key, message)."""
    return tuple(
        ((*("golden", name), *path), ".".join(("golden", name, *path)) + text)
        for name, golden in dataset.golden.items()
        for path, text in (
            *_naming_problems(dataset, name),
            *_golden_key_problems(dataset, golden),
            *_golden_column_problems(dataset, golden),
        )
    )


def _naming_problems(dataset: Dataset, name: str) -> Iterator[_Problem]:
    taken = {
        "a table of the models": name in RESERVED_TABLES,
        "a reference": name in dataset.references,
        "an upstream": name in dataset.upstream,
        "the dataset itself": name == dataset.name,
    }
    yield from (((), f": {what} has that name already; rename one") for what, is_taken in taken.items() if is_taken)


def _golden_key_problems(dataset: Dataset, golden: Golden) -> Iterator[_Problem]:
    if dataset.partition_column not in golden.key:
        yield ("key",), f" has no partition column {dataset.partition_column!r}; rows are compared day by day"
    twice = [column for column, n in Counter(golden.key).items() if n > 1]
    yield from ((("key",), f" names {column!r} twice; once is enough") for column in twice)
    both = [column for column in golden.columns if column in golden.key]
    yield from ((("columns", c), " is part of the key, which must be equal; name it in one of them") for c in both)


def _golden_column_problems(dataset: Dataset, golden: Golden) -> Iterator[_Problem]:
    if golden.ours is None:
        yield from _unknown(golden, dataset.columns, "not declared in the dataset's columns; add it there, or set ours")
    if golden.sql is None and golden.file is not None:
        yield from _unknown(golden, golden.file.columns, "not declared in file.columns; add it there, or set sql")


def _unknown(golden: Golden, known: Collection[str], text: str) -> Iterator[_Problem]:
    yield from ((("key",), f" names {c!r}, which is {text}") for c in golden.key if c not in known)
    yield from ((("columns", c), f": {c!r} is {text}") for c in golden.columns if c not in known)
