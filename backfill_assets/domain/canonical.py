"""One canonical JSON and one digest, so that equal things have equal hashes in every process."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal


def plain(value: object) -> object:
    """Turn domain values into JSON ones: dataclasses to dicts, days and times to ISO text, decimals to text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(plain(v)) for v in value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    if isinstance(value, (Decimal, dt.timedelta)):
        return str(value)
    return value


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces; the same text for equal values."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: object) -> str:
    """SHA-256 of `canonical_json(value)`, as 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
