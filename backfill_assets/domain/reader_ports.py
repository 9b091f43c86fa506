"""Ports towards readers: the table of releases, consumers' queries, previews, and notices to people."""

from __future__ import annotations

from typing import Protocol


class Notices(Protocol):
    """Short messages to people."""

    def send(self, webhook: str, text: str) -> None:
        """Send a text to the webhook whose URL the environment variable `webhook` holds.

        Raises:
            NoticeError: it could not be delivered; says why, but never the URL, which is a secret.
        """
        ...
