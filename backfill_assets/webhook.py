"""Notices by webhook: one JSON text, as Slack and those that speak its language take it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from backfill_assets.domain.errors import NoticeError

_WORTH_A_RETRY: Final = (429, 500, 502, 503, 504)
_SUCCESS: Final = range(200, 300)
_LOGGERS: Final = ("urllib3.connectionpool", "urllib3.util.retry")


@dataclass(frozen=True)
class Webhook:
    """The port `Notices` over HTTP; `environ` holds the URLs, which are secrets and never shown.

    Each try ends after `timeout` seconds; `retries` more follow, with a pause that begins at `pause` seconds and doubles.
    """

    environ: Mapping[str, str]
    timeout: float = 5.0
    retries: int = 3
    pause: float = 0.5

    def send(self, webhook: str, text: str) -> None:
        """Post `{"text": …}` to the URL in the environment variable `webhook`.

        Raises:
            NoticeError: the variable is not set or no http(s) URL, nobody answers, or the answer is no success.
        """
        url = self.environ.get(webhook, "").strip()
        if not url:
            raise NoticeError(f"the environment variable {webhook} is not set; put the webhook's URL into it")
        try:
            with _unlogged(), self._session() as session:
                # A redirect would carry the text to a place that nobody has named.
                answer = session.post(url, json={"text": text}, timeout=self.timeout, allow_redirects=False)
        except (requests.RequestException, ValueError) as error:
            # The error's own text names the URL.
            raise NoticeError(
                f"the webhook of {webhook} could not be reached ({type(error).__name__}); check the URL in that variable"
            ) from None
        if answer.status_code not in _SUCCESS:
            raise NoticeError(
                f"the webhook of {webhook} answered {answer.status_code}; check the URL in that variable and the receiver"
            )

    @contextmanager
    def _session(self) -> Iterator[requests.Session]:
        retry = Retry(
            total=self.retries,
            backoff_factor=self.pause,
            status_forcelist=_WORTH_A_RETRY,
            allowed_methods={"POST"},
            # A receiver may ask for hours: an operator's command must not wait that long for a notice.
            respect_retry_after_header=False,
            raise_on_status=False,
        )
        with requests.Session() as session:
            session.mount("http://", HTTPAdapter(max_retries=retry))
            session.mount("https://", HTTPAdapter(max_retries=retry))
            yield session


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep the HTTP library from logging the URL of this thread's requests: its path is the secret."""
    thread = threading.get_ident()

    def foreign(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(foreign)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(foreign)
