"""URLs of databases: read, or refused without being shown."""

from __future__ import annotations

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError


class UnreadableUrlError(ValueError):
    """Raised when the URL of Dagster's database cannot be read; the message never shows it."""


def require_readable(url: str) -> str:
    """The same URL; SQLAlchemy and drivers quote one that they cannot read in their errors, with parts of its password.

    Raises:
        UnreadableUrlError: it cannot be read.
    """
    if not _is_readable(url):
        raise UnreadableUrlError(
            "the URL of Dagster's database (storage in dagster.yaml; not shown: it may hold a password) cannot be read; write "
            "postgresql+psycopg2://user:password@host/database, with special characters of the password percent-encoded"
        )
    return url


def _is_readable(url: str) -> bool:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError):
        return False
    # Where an @ of the password is not encoded, what follows it is taken for the host.
    return "@" not in (parsed.host or "")
