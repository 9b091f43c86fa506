"""What a Python file of an extract may return or do: its rows arrive as they are, or are refused by dataset, day and reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.core.errors import BackfillError
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness.examples import EXAMPLES
from backfill_assets_tests.unit.extracts.kit import D1, file_of, names_in, orders, take
from backfill_assets_tests.unit.hostile.strategies import often
from backfill_assets_tests.unit.hostile.watch import observed, showable

pytestmark = pytest.mark.slow

MARK = "T0SECRET"
URL = f"https://me:{MARK}@h/x?token={MARK}"
COLUMNS = {
    "id": "long", "at": "timestamp", "amount": "decimal(12,2)", "note": "string", "share": "double", "small": "float",
    "due": "date", "open": "boolean", "count": "integer",
}  # fmt: skip
GOOD = f"""
import datetime as dt, os, sys
from collections.abc import Mapping
from decimal import Decimal
URL = {URL!r}
class Odd(Mapping):
    def __getitem__(self, _): raise KeyError(URL)
    def __iter__(self): raise RuntimeError(URL)
    def __len__(self): return 9
class Liar:
    def __repr__(self): raise RuntimeError(URL)
    __str__ = __repr__
class Nowhere(dt.tzinfo):
    def utcoffset(self, _): return None
ROW = {{
    'id': 1, 'at': dt.datetime(2024, 3, 1, 12, tzinfo=dt.UTC), 'amount': Decimal(5), 'note': 'x', 'share': 0.5, 'small': 0.5,
    'due': dt.date(2024, 3, 1), 'open': True, 'count': 1,
}}
"""
VALUES = (
    "None", "True", "0", "-1", "2**31", "2**63", "10**400", "10**5000", "0.1", "1e300", "float('nan')", "float('-inf')", "1j",
    "Decimal('0.005')", "Decimal('sNaN')", "Decimal('1E+999999')", "Decimal('1E-999999')", "''", "'\\ud800'", "'a\\0b'",
    "'\\x1b]0;x\\x07'", "'\\u202e'", "'x' * 10**6", "b'x'", "bytearray(9)", "[]", "{}", "range(3)", "object()", "Liar()", "ROW",
    "URL", "dt.date.min", "dt.date.max", "dt.date(2024, 3, 1)", "dt.datetime(2024, 3, 1)",
    "dt.datetime(2024, 3, 1, tzinfo=Nowhere())",
    "dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=12)))", "dt.datetime.min.replace(tzinfo=dt.UTC)", "dt.time()",
    "dt.timedelta(1)", "type('int', (int,), {})(5)", "type('str', (str,), {})('x')", "lambda: 1", "(x for x in ROW)",
)  # fmt: skip
ROWS = (
    "5", "None", "'id'", "()", "[ROW]", "{}", "{1: 2}", "{None: 1}", "{'id': 1}", "dict(ROW, ID=1)", "dict(ROW, more=1)", "Odd()",
    "dict(ROW, **{'\\x1b[2J': 1})", "dict(ROW, **{'a\\ud800': 1})", "dict(ROW, **{'x' * 10**6: 1})", "{Liar(): 1}",
    "{**ROW, URL: 1}", "{name.upper(): value for name, value in ROW.items()}", "dict(reversed(ROW.items()))",
)  # fmt: skip
ENDS = (
    "pass", "return", "raise SystemExit(0)", "raise KeyboardInterrupt", "raise GeneratorExit", "raise StopIteration",
    "raise MemoryError", "raise BaseException('\\x1b[2J\\ud800')", "raise OSError(28, URL)",
    "raise type('\\x1bE', (Exception,), {})(URL)",
    "raise Liar()", "os._exit(0)", "os._exit(3)", "os.kill(os.getpid(), 9)", "sys.stdout.close()", "sys.stderr = None",
    "os.close(0)", "print('\\ud800')", "extract(day).__next__()", "sys.setrecursionlimit(50)", "raise RecursionError('x' * 10**6)",
)  # fmt: skip
RETURNS = (
    "5",
    "None",
    "''",
    "b''",
    "ROW",
    "Odd()",
    "extract",
    "iter([])",
    "{}.values()",
    "[[ROW]]",
    "(ROW,)",
    "{'id'}",
    "Liar()",
)


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """A file whose rows have a wrong value, key or form, that ends badly, or that returns no rows at all."""
    row = draw(
        st.sampled_from(ROWS)
        | st.tuples(st.sampled_from(list(COLUMNS)), st.sampled_from(VALUES)).map(
            lambda one: f"dict(ROW, {one[0]}={one[1]})"
        )
    )
    body = draw(
        st.sampled_from(RETURNS).map(lambda value: f"return {value}")
        | st.sampled_from(ENDS).map(lambda end: f"yield ROW\n    {end}")
        | st.just(f"yield ROW\n    yield {row}")
    )
    return f"{GOOD}\ndef extract(day):\n    {body}\n"


@settings(often, max_examples=max(4, EXAMPLES // 2))
@given(scripts())
def test_whatever_a_file_returns_arrives_whole_or_is_refused_and_nothing_lands(tmp_path: Path, script: str) -> None:
    application = orders(tmp_path, {"file": "extract.py", "timeout": "1m"}, script, columns=COLUMNS)
    shutil.rmtree(path_of(application.layout.sources), ignore_errors=True)
    try:
        take(application, D1)
    except BackfillError as refusal:
        text = observed(refusal)
        showable(text)
        assert text.startswith("orders 2024-03-01: source.extract: ")
        assert MARK not in text
        assert names_in(application) == []
        return
    finally:
        application.ledger.close()
    with pq.ParquetFile(file_of(application, D1)) as read:
        assert read.schema_arrow.names == list(COLUMNS)
        assert pa.types.is_decimal(read.schema_arrow.field("amount").type)
        assert read.metadata.num_rows in {0, 1, 2}
