"""What the environment's variables may hold, each read from its text; a ValueError says what to give instead."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from backfill_assets.core.text import parse_duration
from backfill_assets.storage.places import refused_url

_MEMORY: Final = re.compile(r"^[1-9][0-9]{0,8}[mg]$")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_SPARK_URL: Final = re.compile(r"sc://[^\s/?#@;]+/?(;[^\s/?#;=]+=[^\s?#;=]*)*;?")
"""Host and port, then options, as Spark's client reads them; without a user, whom it does not know."""
_WEB_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9._-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~%/+-]*)?")
_LOWEST_MEMORY_MB: Final = 512
_PORTS: Final = range(1024, 65536)

Chunk = int | Literal["all"]
"""Days per run, or one run for all."""


def duration(text: str) -> timedelta:
    """A positive duration of at most a year."""
    found = parse_duration(text)
    if not timedelta(0) < found <= timedelta(days=365):
        raise ValueError("give a duration above zero and of at most 365d")
    return found


def folder_path(text: str) -> Path:
    """A folder of this machine, absolute; it need not exist."""
    if "://" in text:
        raise ValueError("give a folder of this machine or of a mounted file system, not a URL")
    try:
        path = Path(text).expanduser().absolute()
        taken = path.exists() and not path.is_dir()
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{error}; give a folder that can be looked into") from None
    if taken:
        raise ValueError("it is a file; give a folder, or move the file away")
    return path


def warehouse_path(text: str) -> Path:
    """A folder for tables; no address of an object store."""
    if reason := refused_url(text):
        raise ValueError(reason)
    return folder_path(text)


def ledger_url(text: str) -> str:
    """A SQLAlchemy URL of SQLite or Postgres."""
    if not re.match(r"^(sqlite|postgresql(\+\w+)?)://", text):
        raise ValueError("give sqlite:///<absolute path> or postgresql+psycopg2://user:password@host/database")
    return text


def web_address(text: str) -> str:
    """An address without anything that could be a secret."""
    # It stands in links that everybody sees: nothing of it may be a secret.
    if not _WEB_ADDRESS.fullmatch(text):
        raise ValueError(
            "give an address without user and options, such as https://reports.example.org/backfills, or unset it"
        )
    return text


def spark_url(text: str) -> str:
    """A Spark Connect URL."""
    remedy = "give a Spark Connect URL such as sc://spark.example.org:15002 or sc://host:443/;use_ssl=true;token=…, or unset it"
    if not _SPARK_URL.fullmatch(text):
        raise ValueError(remedy)
    try:
        parts = urlsplit(text)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError:
        # Python's own text would quote the URL, and with it the token.
        known = False
    if not known:
        raise ValueError(remedy)
    return text


def memory(text: str) -> str:
    """A heap size that Spark starts with, such as 1500m."""
    if not _MEMORY.match(text):
        raise ValueError("give a whole number and m or g, such as 1500m or 4g")
    megabytes = int(text[:-1]) * (1024 if text.endswith("g") else 1)
    if megabytes < _LOWEST_MEMORY_MB:
        raise ValueError(f"Spark does not start with less than {_LOWEST_MEMORY_MB}m")
    return text


def port(text: str) -> int:
    """A port, or 0 for a free one."""
    if not _NUMBER.fullmatch(text) or not (int(text) == 0 or int(text) in _PORTS):
        raise ValueError("give a port from 1024 to 65535, or 0 for a free one")
    return int(text)


def chunk(text: str) -> Chunk:
    """Days per run, or `all` for one run."""
    if text == "all":
        return "all"
    if not _NUMBER.fullmatch(text) or int(text) == 0:
        raise ValueError("give a number of days from 1 on, or `all` for one run over the whole range")
    return int(text)
