"""The code version of a dataset: what evidence is bound to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import metadata

from backfill_assets.core.canonical import digest

DIGITS = 16
"""Hex digits of a code version."""


@cache
def project_version() -> str:
    """The installed version of this project; `unknown` for code that runs without having been installed."""
    try:
        return metadata.version("backfill-assets")
    except metadata.PackageNotFoundError:
        return "unknown"


def code_version(files: Mapping[str, bytes], project: str) -> str:
    """16 hex digits over files by name and the project's version; line ends do not count.

    So a checkout with other line ends builds evidence that the first one's release accepts.
    """
    contents = {name: hashlib.sha256(normal(content)).hexdigest() for name, content in files.items()}
    return digest([contents, project])[:DIGITS]


def normal(content: bytes) -> bytes:
    """A file as it counts: without a mark of its encoding, and with the line ends of Unix."""
    return content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
