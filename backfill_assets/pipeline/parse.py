"""Lines of text as rows of declared columns, as `dataset.yaml` declares them now, whenever the lines were delivered.

A row is either good, or its entire line is in `_corrupt_record`; nothing is lost.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from backfill_assets.dataset.sources import CsvOptions, Encoding, Files
from backfill_assets.pipeline.sql_text import literal
from backfill_assets.pipeline.types import spark_type
from backfill_assets.pipeline.values import alone, parsed, typed, unmarked

LINE: Final = "_line"
"""Bytes of one line of a text file, as delivered."""
HEADER: Final = "_header"
"""Bytes of the headline of the line's file; null if the file has none."""
CORRUPT: Final = "_corrupt_record"
"""The line of a row that could not be read as declared; null in good rows."""
NAMES: Final = "_names"
"""What the columns of a line are called in its file, in lower case."""
CELLS: Final = "_cells"
"""The texts of the declared columns of a line; null if the line is no complete record."""

Headers = Mapping[bytes, tuple[str, ...]]
"""The columns that each headline names, in order."""

_TEXT: Final = "_text"
_MOST_CELLS: Final = 20_000
_UNKNOWN: Final = "a row has an unknown headline; launch again"
_WINDOWS: Final = bytes(range(0x80, 0xA0)).decode("latin-1")
_WINDOWS_MEANS: Final = "".join(bytes([b]).decode("windows-1252", "replace") for b in range(0x80, 0xA0))
_NO_TEXT: Final = "\ufffd"
_END: Final = "\ufdd0"
"""An extra cell after each line of a CSV file: if another cell swallows it, that cell was never closed."""


def typed_rows(cells: DataFrame, declared: Files) -> DataFrame:
    """Lines with cells as rows: declared columns in their types, `_corrupt_record`, `NAMES`, and all other columns."""
    with_cells = computed_once(cells, [CELLS, NAMES, _TEXT])
    texts = {name: F.col(CELLS).getField(name) for name in declared.columns}
    values = {
        name: F.expr(typed(f"{CELLS}.{name}", spark_type(kind), name, declared.optional))
        for name, kind in declared.types.items()
    }
    with_values = computed_once(with_cells.withColumns(values), list(values))
    bad = F.col(CELLS).isNull()
    for name, text in texts.items():
        if declared.types[name] != "string":
            bad |= text.isNotNull() & F.col(name).isNull()
    line = F.make_valid_utf8(F.col(LINE).cast("string"))
    shown = F.coalesce(F.col(_TEXT), line, F.lit("(not kept: undeclared is drop, and the line is no complete record)"))
    rest = [name for name in cells.columns if name not in {LINE, HEADER, CELLS, NAMES, _TEXT}]
    return with_values.withColumn(CORRUPT, F.when(bad, shown)).select(*declared.columns, CORRUPT, NAMES, *rest)


def computed_once(frame: DataFrame, columns: list[str]) -> DataFrame:
    """The same rows, with these columns computed once for each row.

    Spark copies the expression of a column into each use, and into filters that it pushes down; it never copies what a
    generator makes.
    """
    rest = [name for name in frame.columns if name not in columns]
    made = F.explode(F.array(F.struct(*(F.col(name) for name in columns)))).alias("_once")
    return frame.select(*rest, made).select(*rest, *(F.col("_once").getField(name).alias(name) for name in columns))


def dropped(cells: DataFrame) -> DataFrame:
    """Lines reduced to the declared columns, as JSON; null if the line is no complete record."""
    kept = F.encode(F.to_json(CELLS), "UTF-8")
    return cells.withColumns({LINE: F.when(F.col(CELLS).isNotNull(), kept), HEADER: F.lit(None).cast("binary")})


def text_of(line: Column, encoding: Encoding) -> Column:
    """The text of a line; null if some of its bytes are invalid in this encoding."""
    match encoding:
        case Encoding.utf_8:
            text = line.cast("string")
            return F.when(F.is_valid_utf8(text), text)
        case Encoding.latin_1:
            return F.decode(line, "ISO-8859-1")
        case Encoding.windows_1252:
            text = F.translate(F.decode(line, "ISO-8859-1"), _WINDOWS, _WINDOWS_MEANS)
            return F.when(~text.contains(_NO_TEXT), text)


def csv_options(options: CsvOptions) -> dict[str, str]:
    """The options of Spark's CSV parser: one line is one row, quotes are doubled inside quotes."""
    return {
        "sep": options.delimiter,
        "quote": options.quote,
        "escape": options.quote,
        "nullValue": options.null_value,
        # If true, Spark does not count the cells of a row when it reads only some of them: a truncated row would pass.
        "columnPruning": "false",
        "maxColumns": str(_MOST_CELLS + 2),
        "columnNameOfCorruptRecord": "_bad",
    }


def csv_cells(lines: DataFrame, declared: Files, headers: Headers | None) -> DataFrame:
    """The cells of each line that is a complete record; `headers` are the columns by headline, for files with one."""
    orders: dict[bytes | None, tuple[str, ...]] = (
        dict(headers.items()) if headers is not None else {None: tuple(declared.columns)}
    )
    of = {f"_parsed_{i}": header for i, header in enumerate(orders)}
    read, cells, names, known = {}, [], [], F.lit(False)
    sign = declared.csv.delimiter.replace("\\t", "\t")
    # Text has no zero bytes: a crash leaves them where it cut a line.
    readable = _is_short_enough(sign) & ~F.col(_TEXT).contains("\0")
    # A quote that is never closed would swallow the rest of the line.
    text = F.when(readable, F.concat(F.col(_TEXT), F.lit(sign + _END)))
    for column, header in of.items():
        order = orders[header]
        schema = ", ".join([*(f"_{i} string" for i in range(len(order))), "_end string", "_bad string"])
        own = F.lit(True) if header is None else F.col(HEADER) == F.lit(header)
        read[column] = F.when(own, F.from_csv(text, F.lit(schema), csv_options(declared.csv)))
        place = {name: i for i, name in enumerate(order)}
        texts = [
            (F.col(column).getField(f"_{place[own]}") if own in place else F.lit(None).cast("string")).alias(name)
            for name, own in declared.headers.items()
        ]
        whole = (F.col(column).getField("_end") == _END) & F.col(column).getField("_bad").isNull()
        if header is not None:
            # If files were concatenated and all columns are texts, the second headline would pass as a row.
            whole &= ~F.col(LINE).isin(header, codecs.BOM_UTF8 + header)
        cells.append(F.when(own & whole, F.struct(*texts)))
        names.append(F.when(own, F.array(*(F.lit(name) for name in order))))
        known |= own
    # Fail: such a row is not bad, and would not be counted.
    found = F.when(known, F.coalesce(*cells)).otherwise(F.raise_error(F.lit(_UNKNOWN)))
    with_text = lines.withColumn(_TEXT, text_of(F.col(LINE), declared.encoding))
    return with_text.withColumns(read).withColumns({CELLS: found, NAMES: F.coalesce(*names)}).drop(*read)


def _is_short_enough(sign: str) -> Column:
    """Whether a line has no more cells than the parser accepts: a longer one would fail the entire job."""
    text = F.col(_TEXT)
    signs = F.length(text) - F.length(F.replace(text, F.lit(sign)))
    return (F.octet_length(text) < _MOST_CELLS) | (signs < _MOST_CELLS * len(sign))


def json_cells(lines: DataFrame, declared: Files) -> DataFrame:
    """The cells of each line that is one JSON object, with keys in lower case; numbers keep their text from the line."""
    with_text = lines.withColumn(_TEXT, text_of(F.col(LINE), declared.encoding))
    found = computed_once(with_text.withColumn("_parsed", F.expr(parsed(_TEXT, "map<string, string>"))), ["_parsed"])
    record = F.expr(alone("_parsed"))
    names = computed_once(
        found.withColumn("_record", record).withColumn(NAMES, F.transform(F.map_keys("_record"), F.lower)),
        ["_record", NAMES],
    )
    record = F.col("_record")
    good = record.isNotNull() & (F.size(NAMES) == F.size(F.array_distinct(NAMES)))
    texts = [
        F.expr(unmarked(f"get(map_values(_record), array_position({NAMES}, {literal(own)}) - 1)")).alias(name)
        for name, own in declared.headers.items()
    ]
    return names.withColumn(CELLS, F.when(good, F.struct(*texts))).drop("_parsed", "_record")
