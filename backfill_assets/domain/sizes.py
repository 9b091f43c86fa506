"""Sizes as people write them in YAML: `500GB`, `1.5TB`, `512MiB`."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGTP", 1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
SIZE_PATTERN = r"\s*(\d{1,19}(?:\.\d{1,3})?)\s*([KMGTP]i?B|B)\s*"
"""What a size looks like in YAML."""
_PATTERN = re.compile(SIZE_PATTERN, re.ASCII)
_LARGEST = 10**18


def parse_size(value: object) -> int:
    """Read a size with its unit as bytes; KB is 1000 bytes, KiB 1024. The number 0 stands for itself.

    Raises:
        ValueError: the value is anything else, so that nobody guesses what a bare 500 is.
    """
    if value == 0 and not isinstance(value, bool):
        return 0
    match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a size with its unit, such as 500GB, 1.5TB or 512MiB")
    size = int(Decimal(match[1]) * _UNITS[match[2]])
    if size > _LARGEST:
        raise ValueError(f"write a size of at most {format_size(_LARGEST)}")
    return size


def format_size(value: int) -> str:
    """Write bytes in the largest unit that holds them whole: `500GB`, `512MiB`."""
    unit = max((u for u, size in _UNITS.items() if value % size == 0), key=_UNITS.__getitem__)
    return f"{value // _UNITS[unit]}{unit}" if value else "0B"
