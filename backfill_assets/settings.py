"""All settings: one environment variable each, read and checked early."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from backfill_assets.campaign.approval import parse_roles
from backfill_assets.campaign.execution import Execution
from backfill_assets.campaign.plan import Price, parse_price
from backfill_assets.core.errors import ArgumentError, SettingsError
from backfill_assets.core.text import may_hold_secret, parse_duration
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.layout import mounts_here, refused_mount, refused_url
from backfill_assets.storage.location import Location

PREFIX: Final = "BACKFILL_ASSETS_"
"""All our variables begin with it."""
_SHOWN: Final = 100
_PACKAGE: Final = Path(__file__).resolve().parent

_Value = TypeVar("_Value")

_MEMORY: Final = re.compile(r"^[1-9][0-9]{0,8}[mg]$")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_SPARK_URL: Final = re.compile(r"sc://[^\s/?#@;]+/?(;[^\s/?#;=]+=[^\s?#;=]*)*;?")
"""Host and port, then options, as Spark's client reads them; no user, because the client does not support one."""
_BUCKET: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_.=-]+)*/?")
_WEB_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9._-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~%/+-]*)?")
_LOWEST_MEMORY_MB: Final = 512
_PORTS: Final = range(1024, 65536)

Chunk = int | Literal["all"]
"""Days per run, or one run for all."""


class IdentitySource(StrEnum):
    """Where the user's name comes from."""

    os = "os"
    ledger = "ledger"


def _identity(text: str) -> IdentitySource:
    try:
        return IdentitySource(text)
    except ValueError:
        raise ValueError("write os or ledger, or unset it") from None


def _duration(text: str) -> timedelta:
    """A positive duration of at most a year."""
    found = parse_duration(text)
    if not timedelta(0) < found <= timedelta(days=365):
        raise ValueError("give a duration above zero and of at most 365d")
    return found


def _days(text: str) -> timedelta:
    """A duration of a day to a year: younger runs may still be started again."""
    found = parse_duration(text)
    if not timedelta(days=1) <= found <= timedelta(days=365):
        raise ValueError("give a duration of at least 1d and at most 365d")
    return found


def _folder(text: str) -> Path:
    """A folder of this machine, absolute; it does not have to exist."""
    if "://" in text:
        raise ValueError("give a folder of this machine or of a mounted file system, not a URL")
    try:
        path = Path(text).expanduser().absolute()
        taken = path.exists() and not path.is_dir()
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{error}; give a folder that this user can access") from None
    if taken:
        raise ValueError("it is a file; give a folder, or move the file away")
    return path


def _location(text: str, environ: Mapping[str, str]) -> Location:
    """A folder, or a place in a bucket."""
    if reason := refused_url(text):
        raise ValueError(reason)
    if not text.startswith("s3://"):
        return OnDisk(_folder(text))
    if not _BUCKET.fullmatch(text) or {".", ".."} & set(text.split("/")):
        raise ValueError("give s3://bucket/prefix, of letters, digits and - _ . =")
    # Imported here: few need it, and it takes longer than all other settings.
    from backfill_assets.storage.bucket import bucket_of  # noqa: PLC0415

    return bucket_of(text, environ)


def place_of(text: str, environ: Mapping[str, str]) -> Location:
    """The folder or the place in a bucket that a command names.

    Raises:
        ArgumentError: it cannot be used; says why.
    """
    try:
        return _location(text, environ)
    except ValueError as error:
        raise ArgumentError(f"{shown_value('', text)} cannot be used; {error}") from None


def _ledger_url(text: str) -> str:
    """A SQLAlchemy URL of SQLite or Postgres."""
    if not re.match(r"^(sqlite|postgresql(\+\w+)?)://", text):
        raise ValueError("give sqlite:///<absolute path> or postgresql+psycopg2://user:password@host/database")
    return text


def _web_address(text: str) -> str:
    """An address without anything that could be a secret."""
    # All users see it in links: no part of it may be a secret.
    if not _WEB_ADDRESS.fullmatch(text):
        raise ValueError(
            "give an address without user and options, such as https://reports.example.org/backfills, or unset it"
        )
    return text


def _spark_url(text: str) -> str:
    """A Spark Connect URL."""
    remedy = "give a Spark Connect URL such as sc://spark.example.org:15002 or sc://host:443/;use_ssl=true;token=…, or unset it"
    if not _SPARK_URL.fullmatch(text):
        raise ValueError(remedy)
    try:
        parts = urlsplit(text)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError:
        # Python's own message would quote the URL, including the token.
        known = False
    if not known:
        raise ValueError(remedy)
    return text


def _memory(text: str) -> str:
    """A heap size that Spark starts with, such as 1500m."""
    if not _MEMORY.match(text):
        raise ValueError("give a whole number and m or g, such as 1500m or 4g")
    megabytes = int(text[:-1]) * (1024 if text.endswith("g") else 1)
    if megabytes < _LOWEST_MEMORY_MB:
        raise ValueError(f"Spark does not start with less than {_LOWEST_MEMORY_MB}m")
    return text


def _port(text: str) -> int:
    """A port, or 0 for a free one."""
    if not _NUMBER.fullmatch(text) or not (int(text) == 0 or int(text) in _PORTS):
        raise ValueError("give a port from 1024 to 65535, or 0 for a free one")
    return int(text)


def _chunk(text: str) -> Chunk:
    """Days per run, or `all` for one run."""
    if text == "all":
        return "all"
    if not _NUMBER.fullmatch(text) or int(text) == 0:
        raise ValueError("give a number of days from 1 on, or `all` for one run over the entire range")
    return int(text)


class Settings(BaseModel):
    """Where things live and how the engine behaves; built by `Settings.from_env`, then never changed.

    Each setting is annotated with the function that reads its variable.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    state: Path = Field(
        description="BACKFILL_ASSETS_STATE: folder of everything that is not code; "
        "default `.state` in the working folder."
    )
    warehouse: Location = Field(
        description="BACKFILL_ASSETS_WAREHOUSE: folder of all tables, or a place in a bucket such as s3://lake/warehouse; "
        "default `warehouse` in the state folder."
    )
    sources: Location = Field(
        description="BACKFILL_ASSETS_SOURCES: folder into which source files are delivered, or a place in a bucket such as "
        "s3://lake/sources; default `sources` in the state folder."
    )
    datasets: Annotated[Path, _folder] = Field(
        description="BACKFILL_ASSETS_DATASETS: folder of dataset folders; default the ones that come with the package."
    )
    reports: Annotated[Path, _folder] = Field(
        description="BACKFILL_ASSETS_REPORTS: folder into which reports are written; default `reports` in the state folder."
    )
    reports_url: Annotated[str, _web_address] = Field(
        default="",
        description="BACKFILL_ASSETS_REPORTS_URL: address at which the folder of reports is served, for links to "
        "them; by default links are paths.",
    )
    ledger_url: Annotated[str, _ledger_url] = Field(
        repr=False,
        description="BACKFILL_ASSETS_LEDGER_URL: SQLAlchemy URL of the ledger; default SQLite in the state folder.",
    )
    spark_url: Annotated[str | None, _spark_url] = Field(
        default=None,
        repr=False,
        description="BACKFILL_ASSETS_SPARK_URL: Spark Connect URL (sc://host:port) of an external server; "
        "default none, which means the embedded server.",
    )
    spark_folder: Annotated[Path, _folder] = Field(
        description="BACKFILL_ASSETS_SPARK_FOLDER: where the folder `backfill_spark` of the embedded server and of Spark's "
        "temporary files is, on a disk of this host; default the state folder. Projects of one user that name the same folder "
        "share a server and its catalog."
    )
    spark_memory: Annotated[str, _memory] = Field(
        default="2g",
        description="BACKFILL_ASSETS_SPARK_MEMORY: heap of the embedded server, such as 1500m or 4g.",
    )
    spark_port: Annotated[int, _port] = Field(
        default=0,
        description="BACKFILL_ASSETS_SPARK_PORT: port of the embedded server on 127.0.0.1; 0 takes a free one.",
    )
    spark_idle: Annotated[timedelta, _duration] = Field(
        default=timedelta(minutes=30),
        description="BACKFILL_ASSETS_SPARK_IDLE: after how long without use the embedded server stops; a server that "
        "still works without any client stops sooner.",
    )
    query_timeout: Annotated[timedelta, _duration] = Field(
        default=timedelta(minutes=30),
        description="BACKFILL_ASSETS_QUERY_TIMEOUT: how long one Spark operation may run before it is interrupted.",
    )
    lease: Annotated[timedelta, _duration] = Field(
        default=timedelta(seconds=90),
        description="BACKFILL_ASSETS_LEASE: how long a run's worker may be silent before its run is marked as failed.",
    )
    gate_wait: Annotated[timedelta, _duration] = Field(
        default=timedelta(minutes=1),
        description="BACKFILL_ASSETS_GATE_WAIT: how long a campaign's run waits for a closed gate to open; then it "
        "ends, and what is missing is launched again when the gate opens.",
    )
    computes: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="BACKFILL_ASSETS_SPARK_URL_<NAME>: Spark Connect URLs that specifications name in `compute`.",
    )
    cost_per_hour: Annotated[Price | None, parse_price] = Field(
        default=None,
        description="BACKFILL_ASSETS_COST_PER_HOUR: what an hour of batch time costs, such as 4.20 EUR; default none, and "
        "plans show no cost.",
    )
    chunk: Annotated[Chunk | None, _chunk] = Field(
        default=None,
        description="BACKFILL_ASSETS_CHUNK: days per run for every dataset, or `all` for one run (for CI); "
        "by default, each dataset's own.",
    )

    keep_run_logs: Annotated[timedelta | None, _days] = Field(
        default=None,
        description="BACKFILL_ASSETS_KEEP_RUN_LOGS: how long after the end of a run Dagster keeps its log, such as 90d; then the "
        "sweep deletes it. By default, forever.",
    )

    roles: Annotated[Mapping[str, tuple[str, ...]], parse_roles] = Field(
        default_factory=dict,
        description="BACKFILL_ASSETS_ROLES: users by role, for approvals, such as `finance-controller=anna,ben; "
        "data-lead=carl`; default none.",
    )

    identity: Annotated[IdentitySource, _identity] = Field(
        default=IdentitySource.os,
        description="BACKFILL_ASSETS_IDENTITY: where the user's name comes from: `os`, the user of the operating system, or "
        "`ledger`, the login at the ledger's Postgres; default os.",
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Read the settings from `environ`; an empty variable counts as unset.

        Relative folders are relative to the working folder. Raises `SettingsError` for a value that
        cannot be used, with the variable, the value and the remedy.
        """
        state = _read(environ, "STATE", _folder) or Path.cwd() / ".state"
        found: dict[str, Any] = {
            "state": state,
            **{
                name: _read(environ, name.upper(), partial(_location, environ=environ)) or OnDisk(state / name)
                for name in ("warehouse", "sources")
            },
            "datasets": _PACKAGE / "datasets",
            "reports": state / "reports",
            "spark_folder": state,
            "ledger_url": f"sqlite:///{state / 'ledger.db'}",
            "computes": _computes(environ),
        }
        for name, field in cls.model_fields.items():
            for parse in field.metadata:
                if (value := _read(environ, name.upper(), parse)) is not None:
                    found[name] = value
        if isinstance(found["warehouse"], OnDisk):
            _require_disk(found["warehouse"].path)
        return cls(**found)

    @property
    def store_options(self) -> Mapping[str, str]:
        """What reaches the object store that has the warehouse or the sources; empty if both are folders."""
        return self.warehouse.storage_options or self.sources.storage_options or {}

    def of_campaign(self, execution: Execution) -> Settings:
        """The same settings with the campaign's own values.

        Raises:
            SettingsError: the campaign names a compute without a URL in this process.
        """
        update: dict[str, object] = {}
        if execution.query_timeout is not None:
            update["query_timeout"] = execution.query_timeout
        if execution.compute:
            if execution.compute not in self.computes:
                variable = f"{PREFIX}SPARK_URL_{execution.compute.upper()}"
                raise SettingsError(f"execution.compute = {execution.compute!r}: {variable} is not set where this runs")
            update["spark_url"] = self.computes[execution.compute]
        return self.model_copy(update=update)


def _read(environ: Mapping[str, str], name: str, parse: Callable[[str], _Value]) -> _Value | None:
    text = environ.get(PREFIX + name, "").strip()
    if not text:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise SettingsError(f"{PREFIX}{name}: {shown_value(name, text)} cannot be used; {error}.") from None


def shown_value(name: str, text: str) -> str:
    """A setting's value for a message; not shown if it may hold a secret."""
    # A URL may carry a password: the variable's name is enough to find it.
    if "_URL" in name or may_hold_secret(text):
        return "its value (not shown: it may hold a secret)"
    return repr(text[:_SHOWN])


def _computes(environ: Mapping[str, str]) -> dict[str, str]:
    head = PREFIX + "SPARK_URL_"
    named = {name.removeprefix(head).lower() for name in environ if name.startswith(head)}
    found = {name: _read(environ, f"SPARK_URL_{name.upper()}", _spark_url) for name in sorted(named)}
    return {name: url for name, url in found.items() if url}


def _require_disk(warehouse: Path) -> None:
    try:
        reason = refused_mount(_resolved(warehouse), mounts_here())
    except (OSError, RuntimeError) as error:
        reason = f"its links cannot be followed ({error}); fix them, or give another folder"
    if reason:
        raise SettingsError(f"{PREFIX}WAREHOUSE: {str(warehouse)!r} cannot be used; {reason}.")


def _resolved(folder: Path) -> Path:
    """Follow all links and fail for circular ones, which `resolve` leaves as they are from Python 3.13 on."""
    try:
        folder.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
    return folder.resolve()
