"""Settings of the whole project: one environment variable each, refused early when they make no sense."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import psutil
from pydantic import BaseModel, ConfigDict, Field

from backfill_assets import variables
from backfill_assets.campaign.approval import parse_roles
from backfill_assets.campaign.estimate import Price, parse_price
from backfill_assets.campaign.execution import Execution
from backfill_assets.core.errors import SettingsError
from backfill_assets.core.text import may_hold_secret
from backfill_assets.storage.places import Mount, refused_mount

_PREFIX: Final = "BACKFILL_ASSETS_"
_SHOWN: Final = 100
_PACKAGE: Final = Path(__file__).resolve().parent

_Value = TypeVar("_Value")
_Default = TypeVar("_Default")


class IdentitySource(StrEnum):
    """Who says who is at work."""

    os = "os"
    ledger = "ledger"


class Settings(BaseModel):
    """Where things live and how the engine behaves; built by `Settings.from_env`, never changed after."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: Path = Field(
        description="BACKFILL_ASSETS_STATE: folder of everything that is not code; "
        "default `.state` in the working folder."
    )
    warehouse: Path = Field(
        description="BACKFILL_ASSETS_WAREHOUSE: folder of all tables and of the embedded server; "
        "default `warehouse` in the state folder."
    )
    sources: Path = Field(
        description="BACKFILL_ASSETS_SOURCES: folder into which source files are delivered; "
        "default `sources` in the state folder."
    )
    datasets: Path = Field(
        description="BACKFILL_ASSETS_DATASETS: folder of dataset folders; default the ones that come with the package."
    )
    reports: Path = Field(
        description="BACKFILL_ASSETS_REPORTS: folder into which reports are written; default `reports` in the state folder."
    )
    reports_url: str = Field(
        default="",
        description="BACKFILL_ASSETS_REPORTS_URL: address under which somebody serves the folder of reports, for links to "
        "them; default none, and links are paths.",
    )
    ledger_url: str = Field(
        repr=False,
        description="BACKFILL_ASSETS_LEDGER_URL: SQLAlchemy URL of the ledger; default SQLite in the state folder.",
    )
    spark_url: str | None = Field(
        default=None,
        repr=False,
        description="BACKFILL_ASSETS_SPARK_URL: Spark Connect URL (sc://host:port) of a server that somebody "
        "else runs; default none, which means the embedded server.",
    )
    spark_memory: str = Field(
        default="2g",
        description="BACKFILL_ASSETS_SPARK_MEMORY: heap of the embedded server, such as 1500m or 4g.",
    )
    spark_port: int = Field(
        default=0,
        description="BACKFILL_ASSETS_SPARK_PORT: port of the embedded server on 127.0.0.1; 0 takes a free one.",
    )
    spark_idle: timedelta = Field(
        default=timedelta(minutes=30),
        description="BACKFILL_ASSETS_SPARK_IDLE: after how long without use the embedded server stops; one that works on "
        "for nobody stops sooner.",
    )
    query_timeout: timedelta = Field(
        default=timedelta(minutes=30),
        description="BACKFILL_ASSETS_QUERY_TIMEOUT: how long one Spark operation may run; then it is interrupted.",
    )
    lease: timedelta = Field(
        default=timedelta(seconds=90),
        description="BACKFILL_ASSETS_LEASE: how long a run's worker may be silent before its run is failed.",
    )
    gate_wait: timedelta = Field(
        default=timedelta(minutes=1),
        description="BACKFILL_ASSETS_GATE_WAIT: how long a campaign's run waits before a shut gate; then it ends, and what "
        "is missing is launched again when the gate opens.",
    )
    computes: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="BACKFILL_ASSETS_SPARK_URL_<NAME>: Spark Connect URLs that specifications name in `compute`.",
    )
    cost_per_hour: Price | None = Field(
        default=None,
        description="BACKFILL_ASSETS_COST_PER_HOUR: what an hour of batch time costs, such as 4.20 EUR; default none, and "
        "plans name no cost.",
    )
    chunk: variables.Chunk | None = Field(
        default=None,
        description="BACKFILL_ASSETS_CHUNK: days per run for every dataset, or `all` for one run (for CI); "
        "default none, which means what each dataset says.",
    )

    roles: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="BACKFILL_ASSETS_ROLES: users by role, for approvals, such as `finance-controller=anna,ben; "
        "data-lead=carl`; default none.",
    )

    identity: IdentitySource = Field(
        default=IdentitySource.os,
        description="BACKFILL_ASSETS_IDENTITY: who says who is at work: `os`, the user of the operating system, or `ledger`, "
        "the login at the ledger's Postgres; default os.",
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Read the settings from `environ`; an empty variable counts as unset.

        Relative folders are taken from the working folder. Raises `SettingsError` for a value that
        cannot be used, naming the variable, the value and the remedy.
        """
        state = _folder(environ, "STATE", Path.cwd() / ".state")
        return cls(
            state=state,
            warehouse=_warehouse(environ, state / "warehouse"),
            sources=_folder(environ, "SOURCES", state / "sources"),
            datasets=_folder(environ, "DATASETS", _PACKAGE / "datasets"),
            reports=_folder(environ, "REPORTS", state / "reports"),
            reports_url=_read(environ, "REPORTS_URL", "", variables.web_address),
            ledger_url=_read(environ, "LEDGER_URL", f"sqlite:///{state / 'ledger.db'}", variables.ledger_url),
            spark_url=_read(environ, "SPARK_URL", None, variables.spark_url),
            spark_memory=_read(environ, "SPARK_MEMORY", "2g", variables.memory),
            spark_port=_read(environ, "SPARK_PORT", 0, variables.port),
            spark_idle=_read(environ, "SPARK_IDLE", timedelta(minutes=30), variables.duration),
            query_timeout=_read(environ, "QUERY_TIMEOUT", timedelta(minutes=30), variables.duration),
            lease=_read(environ, "LEASE", timedelta(seconds=90), variables.duration),
            gate_wait=_read(environ, "GATE_WAIT", timedelta(minutes=1), variables.duration),
            computes=_computes(environ),
            cost_per_hour=_read(environ, "COST_PER_HOUR", None, parse_price),
            chunk=_read(environ, "CHUNK", None, variables.chunk),
            roles=_read(environ, "ROLES", {}, parse_roles),
            identity=_read(environ, "IDENTITY", IdentitySource.os, _identity),
        )

    def of_campaign(self, execution: Execution) -> Settings:
        """The same settings with what a campaign wants otherwise.

        Raises:
            SettingsError: it names a compute that this process has no URL of.
        """
        update: dict[str, object] = {}
        if execution.query_timeout is not None:
            update["query_timeout"] = execution.query_timeout
        if execution.compute:
            if execution.compute not in self.computes:
                variable = f"{_PREFIX}SPARK_URL_{execution.compute.upper()}"
                raise SettingsError(f"execution.compute = {execution.compute!r}: {variable} is not set where this runs")
            update["spark_url"] = self.computes[execution.compute]
        return self.model_copy(update=update)


def _read(
    environ: Mapping[str, str], name: str, default: _Default, parse: Callable[[str], _Value]
) -> _Value | _Default:
    text = environ.get(_PREFIX + name, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        # A URL may carry a password: the variable's name is enough to find it.
        shown = (
            "its value (not shown: it may hold a secret)"
            if "_URL" in name or may_hold_secret(text)
            else repr(text[:_SHOWN])
        )
        raise SettingsError(f"{_PREFIX}{name}: {shown} cannot be used; {error}.") from None


def _computes(environ: Mapping[str, str]) -> dict[str, str]:
    head = _PREFIX + "SPARK_URL_"
    named = {name.removeprefix(head).lower() for name in environ if name.startswith(head)}
    found = {name: _read(environ, f"SPARK_URL_{name.upper()}", "", variables.spark_url) for name in sorted(named)}
    return {name: url for name, url in found.items() if url}


def _folder(environ: Mapping[str, str], name: str, default: Path) -> Path:
    return _read(environ, name, default.absolute(), variables.folder_path)


def _warehouse(environ: Mapping[str, str], default: Path) -> Path:
    folder = _read(environ, "WAREHOUSE", default, variables.warehouse_path)
    try:
        reason = refused_mount(_resolved(folder), _mounts())
    except (OSError, RuntimeError) as error:
        reason = f"its links cannot be followed ({error}); mend them, or give another folder"
    if reason:
        raise SettingsError(f"{_PREFIX}WAREHOUSE: {str(folder)!r} cannot be used; {reason}.")
    return folder


def _resolved(folder: Path) -> Path:
    """Follow all links; from Python 3.13 on `resolve` leaves those as they are that lead in a circle."""
    try:
        folder.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
    return folder.resolve()


def _mounts() -> list[Mount]:
    return [Mount(Path(p.mountpoint), p.device, p.fstype) for p in psutil.disk_partitions(all=True)]


def _identity(text: str) -> IdentitySource:
    try:
        return IdentitySource(text)
    except ValueError:
        raise ValueError("write os or ledger, or unset it") from None
