"""Hostile values, shared by all suites of this folder."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from backfill_assets_tests.harness.examples import EXAMPLES

often = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)

Keys = tuple[str | int, ...]

SQL = (
    "'; DROP TABLE units; --", "x' OR '1'='1", "flights; DELETE FROM claims", "`; VACUUM x; --", '"x"', "\\'", "%s%(a)s:name?",
)  # fmt: skip
PATHS = (
    "../../etc/passwd",
    "/etc/passwd",
    "a/../../b",
    "..",
    ".",
    "~root",
    "C:\\x",
    "file:///etc/passwd",
    "a\0b",
    "x" * 300,
)
MARKUP = (
    "[bold red]x[/]",
    "[/]",
    "{day}",
    "{0.__class__}",
    "${jndi:ldap://x}",
    "\x1b[2J\x1b]0;x\x07",
    "a\nb",
    "a\r\nb",
)
BIDI = ("\u202eabc", "abc\u2066def\u2069", "ab\u200bc", "\ufeffabc", "a\u00adb", "a\u2028b", "a\x85b", "\u061c1")
LOOK_ALIKES = (
    "\u0430nn\u0430",
    "fligh\u0442s",
    "d\u0430ily_sales",
    "\u0661\u0662",
    "\uff11\uff12%",
    "\u2212\u0665%",
    "\uff0e\uff0e/x",
)
LONG = ("x" * 100_000, "9" * 5_000, "-" + "9" * 30, "1e999", "[" * 500, "{" * 500, "a," * 20_000)
DATES = (
    "0001-01-01",
    "9999-12-31",
    "1899-12-31",
    "2200-01-01",
    "2024-02-30",
    "2024-13-01",
    "20240101",
    "-001-01-01",
    "24-1-1",
)
SURROGATES = ("\udcff", "a\ud800b")
WORDS = (
    "",
    " ",
    "null",
    "true",
    "no",
    "0",
    "-1",
    "nan",
    "inf",
    "0x10",
    "1_000",
    "\t",
    "*",
    "&a",
    "!!x",
    "|",
    "<<",
    "None",
)

TEXTS: Sequence[str] = (*SQL, *PATHS, *MARKUP, *BIDI, *LOOK_ALIKES, *LONG, *DATES, *WORDS)


def texts(*, surrogates: bool = False) -> st.SearchStrategy[str]:
    """Known tricks, and any other text."""
    some = (*TEXTS, *SURROGATES) if surrogates else TEXTS
    return st.sampled_from(some) | st.text(max_size=40)


def arguments() -> st.SearchStrategy[str]:
    """Texts as the operating system passes them to a program: without NUL, and with surrogates for bytes that are no UTF-8."""
    known = [text.replace("\0", "") for text in (*TEXTS, SURROGATES[0])]
    free = st.binary(max_size=30).map(lambda raw: raw.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
    return st.sampled_from(known) | free


def values() -> st.SearchStrategy[Any]:
    """Any value of JSON and YAML, with texts from above."""
    plain = (
        st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
    )
    leaves = plain | texts() | st.sampled_from([10**5, 2**63, -1, 0, 1e300])
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(), inner, max_size=4), max_leaves=6
    )


def days() -> st.SearchStrategy[str]:
    """Days of any year, and texts that are no days."""
    return st.sampled_from(DATES) | st.dates().map(dt.date.isoformat) | texts()


def places(document: Any, path: Keys = ()) -> Iterator[Keys]:
    """The place of every value in a document."""
    yield path
    inner: Mapping[Any, Any] | Sequence[Any] = document if isinstance(document, (dict, list)) else ()
    for key in inner if isinstance(inner, Mapping) else range(len(inner)):
        yield from places(inner[key], (*path, key))


def replaced(document: Any, path: Keys, value: Any) -> Any:
    """The document with another value at one place."""
    if not path:
        return value
    first, *rest = path
    changed = dict(document) if isinstance(document, dict) else list(document)
    changed[first] = replaced(document[first], tuple(rest), value)
    return changed


@st.composite
def spoiled(draw: st.DrawFn, document: Mapping[str, Any], most: int = 3) -> Any:
    """A good document with up to `most` values replaced by hostile ones, or with keys that it should not have."""
    found: Any = dict(document)
    for _ in range(draw(st.integers(1, most))):
        path = draw(st.sampled_from([place for place in places(found) if place] or [()]))
        found = replaced(found, path, draw(values() | days()))
        if isinstance(found, dict) and draw(st.booleans()):
            found = {**found, draw(texts()): draw(values())}
    return found


def as_yaml(document: Any) -> str:
    """JSON is YAML; its escapes hide characters from view."""
    return json.dumps(document)


@st.composite
def broken(draw: st.DrawFn, text: str) -> bytes:
    """A file as a crash, a bad editor or a bad neighbour leaves it: cut, with inserted bytes, in other encodings, with bombs."""
    content = text.encode()
    at = draw(st.integers(0, len(content)))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + draw(st.binary(min_size=1, max_size=20)) + content[at:]
    if kind == 2:
        return content[:at] + draw(texts()).encode("utf-8", "surrogatepass") + content[at:]
    if kind == 3:
        return text.encode(draw(st.sampled_from(["utf-16", "utf-32", "utf-7", "cp037"])))
    if kind == 4:
        return content + draw(st.sampled_from(BOMBS)).encode()
    return draw(st.sampled_from(BOMBS)).encode()


def _laughs() -> str:
    levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 20))
    return f"\nl0: &l0 boom\n{levels}\n"


BOMBS = (
    _laughs(),
    "\na: &a [*a]\n",
    "\nx: !!python/object/apply:os.system ['touch pwned']\n",
    "\nx: !!python/name:os.system\n",
    "\n!!binary aGVsbG8=\n",
    "\n<<: {owner: x}\n",
    "\n---\nbackfill_id: other\n",
    "\n" + "a: 1\n" * 50_000,
    "\n" + "\n".join(f"k{i}: 1" for i in range(15_000)),
    "\nx: [" + "1," * 100_000 + "]\n",
    "\nx: " + "[" * 50_000,
    "\nx: " + "{a: " * 5_000,
    "\nx: '" + "y" * (1 << 20) + "'\n",
    "\n" + "#" * (1 << 21),
    "\n# harmless \u2028approval: {required: false}\n",
    "\n# harmless \rapproval: {required: false}\n",
    "\n%TAG ! tag:x,2000:\n---\n!a b\n",
)
