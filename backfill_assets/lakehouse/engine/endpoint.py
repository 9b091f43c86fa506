"""Where a Spark Connect server is, and what a client needs to get in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # a variable's name
"""The variable in which Spark's own clients look for the token."""
_HARMLESS: Final = ("use_ssl=", "user_id=", "user_agent=", "session_id=", "grpc_max_message_size=")
"""What Spark's client knows by name; whatever else stands in a URL goes with each call as a header, as keys of services do."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server to connect to: its Spark Connect URL without secrets, and the token and headers that it wants."""

    url: str
    token: str | None = field(default=None, repr=False)
    embedded: bool = False
    headers: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def remote(cls, url: str) -> Endpoint:
        """Read a configured URL; its token moves to `token` and headers to `headers`, so that the URL can be shown."""
        parts = urlsplit(url)
        address, *options = (parts.netloc + parts.path.removeprefix("/")).split(";")
        tokens = [unquote(option[len("token=") :]) for option in options if option.startswith("token=")]
        rest = [_encoded(option) for option in options if option and not option.startswith("token=")]
        shown = [option for option in rest if option.startswith(_HARMLESS)]
        headers = [option for option in rest if not option.startswith(_HARMLESS)]
        path = "/;" + ";".join(shown) if shown else ""
        return cls(urlunsplit(("sc", address, path, "", "")), tokens[-1] if tokens else None, headers=tuple(headers))

    @classmethod
    def local(cls, port: int, token: str) -> Endpoint:
        """The embedded server; by name, because the client demands TLS for a token sent to an address."""
        return cls(f"sc://localhost:{port}", token, embedded=True)

    @property
    def full_url(self) -> str:
        """The URL to connect with: with headers, still without the token."""
        if not self.headers:
            return self.url
        return f"{self.url}{'' if '/;' in self.url else '/'};{';'.join(self.headers)}"

    @property
    def port(self) -> int | None:
        """The port in the URL."""
        return urlsplit(self.url).port

    @property
    def host(self) -> str | None:
        """The host in the URL, in small letters."""
        return urlsplit(self.url).hostname


def _encoded(option: str) -> str:
    """The option with its value percent-encoded: Spark's client takes a slash in it for a path."""
    name, sign, value = option.partition("=")
    return f"{name}{sign}{quote(unquote(value), safe='')}"


def client_environment(endpoint: Endpoint) -> dict[str, str]:
    """Give the variables that Spark's own clients need, such as Dagster's `LazyPySparkResource`."""
    return {} if endpoint.token is None else {TOKEN_VARIABLE: endpoint.token}
