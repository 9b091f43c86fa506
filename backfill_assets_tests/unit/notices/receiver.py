"""A real HTTP server on this machine that acts as the receiver of notices."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

SECRET = "T0SECRET"


class Receiver(HTTPServer):
    """Answers with the given status codes in turn, then always with the last one, and keeps what it got."""

    def __init__(self, *answers: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = list(answers)
        self.got: list[tuple[str, object]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/services/{SECRET}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.headers["Content-Type"], json.loads(body)))
        status = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        self.send_response(status)
        if status in {301, 307}:
            self.send_header("Location", self.server.url + "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class calls it so
        """Print nothing."""


@contextmanager
def receiver(*answers: int) -> Iterator[Receiver]:
    server = Receiver(*answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def dripping() -> Iterator[str]:
    """The URL of a receiver that answers byte by byte without end, within the block."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        thread = threading.Thread(target=_drip, args=(server, over))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/services/{SECRET}"
        finally:
            over.set()
            thread.join()


def _drip(server: socket.socket, over: threading.Event) -> None:
    taken: list[socket.socket] = []
    while not over.wait(0.01):
        with suppress(TimeoutError):
            taken.append(server.accept()[0])
            taken[-1].sendall(b"HTTP/1.1 ")
        for connection in taken:
            with suppress(OSError):
                connection.sendall(b"2")
    for connection in taken:
        connection.close()
