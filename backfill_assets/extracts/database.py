"""Reads the rows of a day from a Postgres, in one transaction that sees one moment and changes nothing."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection, NullPool, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from backfill_assets.core.errors import SourceError
from backfill_assets.core.text import format_duration, in_one_line, without_secrets
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.extracts import Extract
from backfill_assets.extracts.rows import BATCH, write_rows
from backfill_assets.ledger.database import readable_url

# A dead network must not keep a worker for ever.
_CONNECTING: Final = {
    "connect_timeout": 10, "keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
}  # fmt: skip
_SETTINGS: Final = text(
    "SELECT set_config('TimeZone', :zone, true), set_config('statement_timeout', :milliseconds, true)"
)
_LONGEST_STATEMENT: Final = 2**31 - 1
"""Milliseconds; Postgres refuses a longer timeout of a statement. `_in_time` has the limit as it was set."""
_Row = TypeVar("_Row", bound=Sequence[object])


def extract_query(dataset: Dataset, extract: Extract, day: dt.date, file: Path) -> None:
    """Write the rows that the query returns for a day; times are read in the dataset's time zone.

    Raises:
        SourceError: the database cannot be reached, refuses the query or takes too long; or its rows do not fit the columns.
            No message has the password.
    """
    with _reading(dataset, extract) as connection:
        found = connection.execute(text(extract.query or ""), {"day": day}, execution_options={"stream_results": True})
        names = [column[0] for column in found.cursor.description]  # `keys` may leave out one of two
        write_rows(file, dataset.landing, names, _in_time(found.partitions(BATCH), extract.timeout))


def newest_change(dataset: Dataset, extract: Extract, day: dt.date) -> tuple[int, object]:
    """How many rows the query returns for a day, and the largest value of its `modified_column`; None without rows.

    Raises:
        SourceError: as `extract_query` does.
    """
    rows = f"FROM ({(extract.query or '').rstrip().rstrip(';')}\n) AS q"
    with _reading(dataset, extract) as connection:
        shape = connection.execute(text(f"SELECT * {rows} LIMIT 0"), {"day": day})
        header = dataset.landing.headers[extract.modified_column or ""]
        name = next((column[0] for column in shape.cursor.description if column[0].lower() == header), header)
        quoted = name.replace('"', '""').replace(":", r"\:")
        count, largest = connection.execute(text(f'SELECT count(*), max(q."{quoted}") {rows}'), {"day": day}).one()
    return int(count), largest


@contextmanager
def _reading(dataset: Dataset, extract: Extract) -> Iterator[Connection]:
    """A transaction that is read only and sees one moment; its errors have no password."""
    url = _url(extract)
    milliseconds = min(extract.timeout.total_seconds() * 1000, _LONGEST_STATEMENT)
    settings = {"zone": dataset.time_zone, "milliseconds": f"{milliseconds:.0f}"}
    try:
        engine = create_engine(
            url, poolclass=NullPool, hide_parameters=True, use_native_hstore=False, connect_args=_CONNECTING
        )
        event.listen(engine, "connect", _refuse_infinity)
        reading = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with reading.connect() as connection:
            connection.execute(_SETTINGS, settings)
            yield connection
    except ImportError as error:
        raise SourceError(f"{error}; install backfill-assets[postgres]") from None
    except (SQLAlchemyError, ValueError, OverflowError) as error:
        cause = str(getattr(error, "orig", error))
        # In one line: the server quotes values of rows.
        cause = in_one_line(without_secrets(cause.replace(url.password, "***") if url.password else cause))
        raise SourceError(
            f"{cause}; check that the database of {extract.database} is up "
            "and reachable with this URL, and try the query there for this day"
        ) from None


def _url(extract: Extract) -> URL:
    variable = (extract.database or "").removeprefix("env:")
    value = os.environ.get(variable, "")
    if not value:
        raise SourceError(
            f"database: the environment variable {variable} is not set where this runs; set it to the URL there"
        )
    url = readable_url(value)
    if url is None or url.get_driver_name() != "psycopg2":
        raise SourceError(
            f"database: the value of {variable} (not shown: it may hold a password) is no URL of a Postgres; write "
            f"postgresql+psycopg2://user:password@host/database, or fetch the rows of other databases in extract.py"
        )
    return url


def _in_time(batches: Iterable[Sequence[_Row]], limit: dt.timedelta) -> Iterator[Sequence[_Row]]:
    """The batches; each statement has the limit of the server, and all of them together have it, too."""
    end = time.monotonic() + limit.total_seconds()
    for batch in batches:
        if time.monotonic() > end:
            raise SourceError(
                f"it takes longer than its timeout, {format_duration(limit)}; make the query faster, or set a longer one"
            )
        yield batch


def _refuse_infinity(connection: Any, _: object) -> None:
    """psycopg2 gives the year 9999 for infinity, which is another value."""
    from psycopg2 import extensions  # noqa: PLC0415 - of the extra `postgres`

    def finite(cast: Callable[[str | None, Any], object]) -> Callable[[str | None, Any], object]:
        def checked(value: str | None, cursor: Any) -> object:
            if value is not None and value.endswith("infinity"):
                raise ValueError(
                    f"{value} is no day or time that a column can hold; write NULL in its place in the query"
                )
            return cast(value, cursor)

        return checked

    for cast in (extensions.PYDATE, extensions.PYDATETIMETZ):
        extensions.register_type(extensions.new_type(cast.values, cast.name, finite(cast)), connection)
