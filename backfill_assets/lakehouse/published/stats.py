"""Statistics of data files: what of a shadow's log may go into the published one."""

from __future__ import annotations

import json

KEPT = ("numRecords", "nullCount")


def published_stats(text: str) -> str:
    """The number of records and the null counts of the log's statistics, as JSON text; no bounds.

    Bounds make readers drop rows in silence, whichever way they are carried over. As Spark writes them: its
    timestamps are cut to milliseconds, so that the maximum lies below the value; a float column with NaN has a
    minimum and no maximum; wide decimals lose digits. With only these left out, it is worse: delta-rs' PyArrow
    datasets take a missing bound of one column for `column >= null`, which no row meets, as soon as another column
    has one. Days are partitions, so all that a bound could save is opening one file of a day that was asked for.

    The result is empty where the log has no statistics, and then the file's `stats` must be null: one empty *text*
    among the files of a table makes delta-rs lose the statistics of all of them.
    """
    if not text.strip():
        return ""
    stats = json.loads(text)
    kept = {key: stats[key] for key in KEPT if key in stats}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False) if kept else ""
