"""Where a Spark Connect server is, and what a client needs to get in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # a variable's name
"""The variable in which Spark's own clients look for the token."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server to connect to: its Spark Connect URL without secrets, and the token that it wants."""

    url: str
    token: str | None = field(default=None, repr=False)
    embedded: bool = False

    @classmethod
    def remote(cls, url: str) -> Endpoint:
        """Read a configured URL; a `;token=` in it moves to `token`, so that the URL can be shown."""
        parts = urlsplit(url)
        address, *options = (parts.netloc + parts.path.removeprefix("/")).split(";")
        tokens = [unquote(option[len("token=") :]) for option in options if option.startswith("token=")]
        shown = [option for option in options if option and not option.startswith("token=")]
        path = "/;" + ";".join(shown) if shown else ""
        return cls(urlunsplit(("sc", address, path, "", "")), tokens[-1] if tokens else None)

    @classmethod
    def local(cls, port: int, token: str) -> Endpoint:
        """The embedded server; by name, because the client demands TLS for a token sent to an address."""
        return cls(f"sc://localhost:{port}", token, embedded=True)

    @property
    def port(self) -> int | None:
        """The port in the URL."""
        return urlsplit(self.url).port


def client_environment(endpoint: Endpoint) -> dict[str, str]:
    """Give the variables that Spark's own clients need, such as Dagster's `LazyPySparkResource`."""
    return {} if endpoint.token is None else {TOKEN_VARIABLE: endpoint.token}
