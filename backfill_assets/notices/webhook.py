"""Sends notices to a webhook as one JSON text, in the format of Slack and compatible receivers."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from backfill_assets.core.errors import NoticeError

_WORTH_A_RETRY: Final = (429, 500, 502, 503, 504)
_SUCCESS: Final = range(200, 300)
_CALL: Final = re.compile(r"(?<!\w)@(?=(?:all|channel|everyone|here)\b)", re.IGNORECASE)
_LOST: Final = frozenset({"ConnectionError", "ConnectTimeout"})
"""Errors that are worth a retry; a receiver that does not answer in time gets no retry: it may have taken the notice."""
_NO_ANSWER: Final = "no answer in time"
_LOGGERS: Final = ("urllib3.connectionpool", "urllib3.util.retry")


@dataclass
class _Answer:
    """The answer of a receiver: its status, or the name of the error on the way; empty until it arrives."""

    status: int = 0
    error: str = ""
    ready: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Webhook:
    """Sends notices over HTTP; `environ` holds the URLs, which are secrets and never shown.

    Each try ends after `timeout` seconds; up to `retries` more follow, with a pause that begins at `pause` seconds and
    doubles. All tries together end after `patience` seconds.
    """

    environ: Mapping[str, str]
    timeout: float = 5.0
    retries: int = 3
    pause: float = 0.5
    patience: float = 10.0

    def send(self, webhook: str, text: str) -> None:
        """Post `{"text": …}` to the URL in the environment variable `webhook`, escaped for Slack.

        Raises:
            NoticeError: the variable is not set or no http(s) URL, there is no answer in time, or the answer is no success.
        """
        url = self.environ.get(webhook, "").strip()
        if not url:
            raise NoticeError(f"the environment variable {webhook} is not set; put the webhook's URL into it")
        answer = self._with_retries(url, escaped(text))
        if answer.error:
            raise NoticeError(
                f"the webhook of {webhook} could not be reached ({answer.error}); check the URL in that variable"
            )
        if answer.status not in _SUCCESS:
            raise NoticeError(
                f"the webhook of {webhook} answered {answer.status}; check the URL in that variable and the receiver"
            )

    def _with_retries(self, url: str, text: str) -> _Answer:
        end, pause, answer = time.monotonic() + self.patience, self.pause, _Answer()
        for left in reversed(range(self.retries + 1)):
            answer = self._try(url, text, min(self.timeout, end - time.monotonic()))
            again = answer.error in _LOST or answer.status in _WORTH_A_RETRY
            if not again or not left or time.monotonic() + pause >= end:
                break
            time.sleep(pause)
            pause *= 2
        return answer

    def _try(self, url: str, text: str, seconds: float) -> _Answer:
        """One try in a separate thread: the library's timeout starts again with every byte that a slow receiver sends."""
        answer = _Answer()
        # A daemon thread: it must not keep the process from ending if the receiver hangs.
        threading.Thread(target=_post, args=(url, text, seconds, answer), daemon=True).start()
        if not answer.ready.wait(seconds):
            return _Answer(error=_NO_ANSWER)
        return answer


def escaped(text: str) -> str:
    """The text without effects: nothing in it, whoever wrote it, makes a link, mentions a user or calls a channel.

    Slack wants `&`, `<` and `>` as entities: `<!channel>` and `<https://…|text>` are commands there. In compatible receivers
    `@all` calls a channel as well.
    """
    entities = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _CALL.sub("@ ", entities)


def _post(url: str, text: str, seconds: float, answer: _Answer) -> None:
    import requests  # noqa: PLC0415 - few processes send notices

    try:
        with _unlogged(), requests.Session() as session:
            # A redirect would send the text to an address that is not configured; the body of the answer is not needed.
            found = session.post(url, json={"text": text}, timeout=seconds, allow_redirects=False, stream=True)
            answer.status = found.status_code
            found.close()
    except Exception as error:  # noqa: BLE001  # on any error: its text contains the URL, and must not be shown
        answer.error = type(error).__name__
    finally:
        answer.ready.set()


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep the HTTP library from logging the URL of this thread's requests: its path is a secret."""
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
