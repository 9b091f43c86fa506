"""How names and strings are written in Spark's SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Quote an identifier or a path with backticks."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str) -> str:
    """Write a string as a SQL literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
