"""A proxy in front of an object store, in a process of its own, that loses, delays and refuses what it is told to.

In a process of its own because delta-rs holds Python's lock during some requests: a thread beside it could not answer them.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import Request as Order
from urllib.request import urlopen

_SLOW_SECONDS: Final = 1.5
# Longer than the clients of a store wait for an answer.
_LATE_SECONDS: Final = 33
_CONTROL: Final = "/-/rule"
_HOP: Final = frozenset({"transfer-encoding", "connection"})


class Fault(StrEnum):
    """What happens to a request."""

    lost_answer = "the store does it, and its answer is lost"
    cut = "the connection is cut before the store hears of it"
    half_answer = "the answer is cut off in the middle"
    conflict = "409, another request for the object is at work"
    busy = "503, slow down"
    slow = "it takes longer than others"
    expired = "403, the credentials have expired"
    late = "the store does it when its client has given up"
    two_winners = "whoever comes second to create an object is told that it was first"
    no_copy = "the store says that it copied an object, and does not"


OF_A_GOOD_STORE: Final = tuple(f for f in Fault if f not in {Fault.late, Fault.two_winners, Fault.no_copy})
"""What happens before or behind a store that keeps its promises, within seconds."""
_COPIED: Final = (
    b'<CopyObjectResult><ETag>"0"</ETag><LastModified>2024-01-01T00:00:00.000Z</LastModified></CopyObjectResult>'
)
_ANSWERS: Final = {
    Fault.conflict: (409, "ConditionalRequestConflict"),
    Fault.busy: (503, "SlowDown"),
    Fault.expired: (403, "ExpiredToken"),
}


@dataclass(frozen=True)
class Rule:
    """A fault for one request: of those whose method and key fit, the first one after `skipped` others.

    The key of a LIST is the prefix that it lists. `for_good` means all requests from that one on. `hit` is the request.
    """

    fault: Fault
    method: str = ""
    key: str = ""
    skipped: int = 0
    for_good: bool = False
    hit: str = ""


class Between:
    """The rule in force, as all threads of the proxy see it."""

    def __init__(self) -> None:
        self.rule: Rule | None = None
        self._lock = Lock()

    def fault_of(self, method: str, key: str) -> Fault | None:
        """The fault of a request that arrives now."""
        with self._lock:
            rule = self.rule
            if rule is None:
                return None
            if rule.hit:
                return rule.fault if rule.for_good else None
            if not re.search(rule.method, method) or not re.search(rule.key, key):
                return None
            if rule.skipped:
                self.rule = replace(rule, skipped=rule.skipped - 1)
                return None
            self.rule = replace(rule, hit=f"{method} {key}")
            return rule.fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store = ""
    between = Between()

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == _CONTROL:
            self._control(body)
            return
        parts = urlsplit(self.path)
        prefix = next((unquote(part[7:]) for part in parts.query.split("&") if part.startswith("prefix=")), "")
        fault = self.between.fault_of("LIST" if prefix else self.command, prefix or unquote(parts.path))
        if fault in _ANSWERS:
            status, code = _ANSWERS[fault]
            self._answer(status, [], f"<Error><Code>{code}</Code><Message>{fault}</Message></Error>".encode())
            return
        if fault is Fault.no_copy and self.headers.get("x-amz-copy-source"):
            self._answer(HTTPStatus.OK, [], _COPIED)
            return
        if fault in {Fault.slow, Fault.late}:
            time.sleep(_SLOW_SECONDS if fault is Fault.slow else _LATE_SECONDS)
        if fault is not Fault.cut:
            self._forward(body, fault)
        if fault in {Fault.cut, Fault.lost_answer, Fault.half_answer}:
            self.close_connection = True

    def _control(self, body: bytes) -> None:
        before = self.between.rule
        told = json.loads(body)
        self.between.rule = Rule(**{**told, "fault": Fault(told["fault"])}) if told else None
        self._answer(200, [], json.dumps(asdict(before) if before else None).encode())

    def _forward(self, body: bytes, fault: Fault | None) -> None:
        upstream = http.client.HTTPConnection(self.store, timeout=60)
        # The signature covers the name of the host, as the client knows it.
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders(body)
        answer = upstream.getresponse()
        content, headers = answer.read(), [(n, v) for n, v in answer.getheaders() if n.lower() not in _HOP]
        upstream.close()
        if fault is Fault.two_winners and answer.status == HTTPStatus.PRECONDITION_FAILED:
            self._answer(HTTPStatus.OK, [("ETag", '"0"')], b"")
            return
        if fault is not Fault.lost_answer:
            self._answer(
                answer.status, headers, content[: len(content) // 2] if fault is Fault.half_answer else content
            )

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class BadNetwork:
    """The proxy as tests see it: what clients take for the address of the store."""

    url: str

    @contextmanager
    def under(self, rule: Rule) -> Iterator[list[str]]:
        """Put a rule in force; in the end, the list has the request that it hit, if there was one."""
        hit: list[str] = []
        self._tell(json.dumps(asdict(rule)))
        try:
            yield hit
        finally:
            was = self._tell("null")
            hit += [was["hit"]] if was["hit"] else []

    def _tell(self, text: str) -> dict[str, str]:
        with urlopen(Order(self.url + _CONTROL, data=text.encode(), method="PUT"), timeout=30) as answer:  # noqa: S310
            found: dict[str, str] = json.load(answer)
            return found


@contextmanager
def bad_network(store: str) -> Iterator[BadNetwork]:
    """Run the proxy in front of the store at an address such as http://127.0.0.1:7070."""
    words = [sys.executable, "-m", __name__, urlsplit(store).netloc]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            yield BadNetwork(f"http://127.0.0.1:{int(started.stdout.readline())}")
        finally:
            started.kill()


if __name__ == "__main__":
    _Handler.store = sys.argv[1]
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as proxy:
        proxy.daemon_threads = True
        print(proxy.server_address[1], flush=True)  # noqa: T201
        proxy.serve_forever()
