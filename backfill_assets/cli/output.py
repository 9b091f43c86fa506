"""What commands share: tables, lines, refusals, options, the shell of operations; commands built from operations."""

from __future__ import annotations

import datetime as dt
import gc
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn
from urllib.parse import unquote, urlsplit

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from backfill_assets.application import Application
from backfill_assets.control.commands import Control
from backfill_assets.core.canonical import plain
from backfill_assets.core.days import parse_day
from backfill_assets.core.errors import ArgumentError, BackfillError, CampaignError
from backfill_assets.core.text import in_one_line, visible
from backfill_assets.operations import PARAMETERS, Operation, Result, Shell
from backfill_assets.release.adopt import Adopted
from backfill_assets.release.publish import AlreadyReleased, Released
from backfill_assets.release.rollback import RolledBack
from backfill_assets.settings import Settings
from backfill_assets.system import SystemClock

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from backfill_assets.orchestration.services import Services


_PIPE_WIDTH = 240
"""A file or a pipe has no visible right edge, and a folded identifier cannot be searched for."""

_HEAD, _TAIL = 1_000, 500
_OBJECTS = 500_000
"""New objects between two garbage collections: a history of ten thousand days creates millions that all stay."""


def collect_rarely() -> None:
    """Run the garbage collector rarely while a command creates many objects: a fifth less time for big histories."""
    gc.set_threshold(_OBJECTS, 20, 50)


console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
errors = Console(stderr=True, highlight=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table; numbers are aligned to the right."""
    out = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        out.add_column(column, overflow="fold")
    for row in rows:
        out.add_row(*(escape(printable(str(value))) for value in row))
    console.print(out)


def as_json(value: object) -> None:
    """Print domain values as JSON."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))  # noqa: T201  # for programs, not for rich


def say(text: str) -> None:
    """Print a line as it is."""
    console.print(escape(printable(text)), soft_wrap=True)


def chosen_day(moment: dt.datetime) -> dt.date:
    """The day that an option or argument names.

    Raises:
        InvalidDayError: no dataset can have it.
    """
    return parse_day(moment.date().isoformat())


def printable(text: str) -> str:
    """Escape terminal control characters in a text, line by line: much of it was written by others."""
    return "\n".join(visible(line) for line in text.split("\n"))


def warn(text: str) -> None:
    """Print a warning on standard error."""
    errors.print(escape(printable(f"attention: {text}")), soft_wrap=True)


def refuse(headline: str, text: str) -> None:
    """Print on standard error why a command did not do its work."""
    shown = "\n".join(_shortened(line) for line in printable(text).split("\n"))
    errors.print(f"[bold red]{headline}:[/] {escape(shown)}", soft_wrap=True)


def _shortened(line: str) -> str:
    """Cut the middle out of a very long line: the user's value is near its start, the remedy at its end."""
    return line if len(line) <= _HEAD + _TAIL else f"{line[:_HEAD]} … {line[-_TAIL:]}"


_LOG: Final = "errors.log"
_SHORTEST: Final = 4
_LONGEST: Final = 300
_SECRET_NAMES: Final = re.compile(r"url|token|password|secret|webhook|credential|key", re.IGNORECASE)
_IN_URL: Final = re.compile(r"[=:@/;?&]+")


def run_command(command: Callable[[], object]) -> None:
    """Run the command line; a refusal prints one message without a stack trace and exits with code 1.

    So does any other error; its trace is in `errors.log` of the state folder.
    """
    # By default SIGTERM kills Python immediately, and the Spark work of the command would go on without it.
    signal.signal(signal.SIGTERM, _leave)
    collect_rarely()
    try:
        require_text(sys.argv[1:])
        command()
    except BackfillError as error:
        refuse("refused", str(error))
        sys.exit(1)
    except Exception as error:  # noqa: BLE001  # a trace is for developers, and it may quote a secret
        refuse("failed", noted(error, os.environ))
        sys.exit(1)


def require_text(words: Sequence[str]) -> None:
    """Refuse arguments that databases and terminals do not accept.

    Raises:
        ArgumentError: an argument is not valid UTF-8.
    """
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"the argument '{visible(word)}' is not valid UTF-8; encode it as UTF-8") from None


def noted(error: Exception, environ: Mapping[str, str]) -> str:
    """Write the trace of a failure to the log in the state folder; returns one line with the failure and the path.

    Neither contains a secret of `environ`.
    """
    first = next(iter(str(error).strip().splitlines()), "")[:_LONGEST]
    what = without_secrets_of(environ, f"{type(error).__name__}: {first}" if first else type(error).__name__)
    trace = without_secrets_of(environ, "".join(traceback.format_exception(error)))
    try:
        log = Settings.from_env(environ).state / _LOG
        _append(log, f"{SystemClock().now().isoformat()}\n{trace}\n")
    except (BackfillError, OSError) as trouble:
        return f"{what}; no trace written ({type(trouble).__name__}): check that BACKFILL_ASSETS_STATE is a folder"
    return f"{what}; unexpected error. Please report it with its trace: {log}"


def without_secrets_of(environ: Mapping[str, str], text: str) -> str:
    """Mask all secrets of `environ` in a text: database drivers quote URLs that they cannot use."""
    for secret in _secrets(environ):
        text = text.replace(secret, "***")
    return text


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise SystemExit(128 + signum)


def _append(log: Path, text: str) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(descriptor, "a", encoding="utf-8", errors="backslashreplace") as out:  # noqa: PTH123  # private from its first byte on
        out.write(text)


def _secrets(environ: Mapping[str, str]) -> list[str]:
    """The values of variables that may hold secrets, and the parts of URLs, longest first."""
    found: set[str] = set()
    for name, value in environ.items():
        if _SECRET_NAMES.search(name) and len(value) >= _SHORTEST:
            found.add(value)
            if "://" in value:
                found |= set(_parts(value))
    return sorted(found, key=len, reverse=True)


def _parts(url: str) -> Iterator[str]:
    """The secret parts of a URL: its user's password, its path, and its options."""
    try:
        parts = urlsplit(url)
        password = parts.password or ""
    except ValueError:
        return
    # If an @ in the password is not encoded, or the host is missing, programs read part of it as the host or port.
    torn = [*password.split("@"), parts.netloc.partition(":")[2] if "@" not in parts.netloc else ""]
    pieces = [password, unquote(password), *_IN_URL.split(f"{parts.path};{parts.query};{parts.fragment}")]
    yield from (piece for piece in pieces if len(piece) >= 2 * _SHORTEST or piece == password != "")
    yield from (piece for piece in torn if len(piece) >= _SHORTEST and not piece.isdecimal())


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

DryRun = Annotated[bool, typer.Option("--dry-run", help=PARAMETERS["dry_run"])]

Webserver = Annotated[
    str, typer.Option(envvar="BACKFILL_ASSETS_WEBSERVER", help="URL of a Dagster webserver to launch through.")
]


def campaign_of(application: Application, name: str) -> str:
    """The campaign with this name, or the campaign of the unit with this name; empty for a unit without one.

    Raises:
        UnitError: no campaign and no unit has this name.
    """
    if name in {campaign.id for campaign in application.ledger.campaigns()}:
        return name
    return application.ledger.unit(name).campaign


def _said(error: Exception) -> str:
    return without_secrets_of(os.environ, in_one_line(error))


@contextmanager
def opened_dagster() -> Iterator[DagsterInstance]:
    """Open the Dagster instance of DAGSTER_HOME for the duration of the block.

    Raises:
        CampaignError: DAGSTER_HOME is not set, or its instance cannot be opened.
    """
    import dagster as dg  # takes longer to import than other commands take to run

    from backfill_assets.orchestration.names import opened_instance  # loads Dagster

    if not os.environ.get("DAGSTER_HOME"):
        raise CampaignError("DAGSTER_HOME is not set: backfills run through Dagster; set it to the project's folder")
    try:
        found = opened_instance()
    except BackfillError:
        raise
    except (dg.DagsterError, OSError, ValueError, yaml.YAMLError) as error:
        raise CampaignError(
            f"DAGSTER_HOME={os.environ['DAGSTER_HOME']!r} is not a Dagster instance: {_said(error)}; set it to the "
            "project's folder, and check its dagster.yaml"
        ) from error
    except Exception as error:  # each database driver has its own errors
        raise CampaignError(
            f"the Dagster instance in DAGSTER_HOME={os.environ['DAGSTER_HOME']!r} cannot be opened: {_said(error)}; "
            "check that its database is up and reachable"
        ) from error
    with found as instance:
        yield instance


@contextmanager
def opened_services(application: Application, webserver: str) -> Iterator[Services]:
    """Open the use cases for the duration of the block; raises what `opened_dagster` raises."""
    from backfill_assets.orchestration.services import services_of  # loads Dagster

    with opened_dagster() as instance:
        yield services_of(application, instance, webserver)


_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {"partitions": {"metavar": "DAYS"}}
_FLAGS: Final[Mapping[str, str]] = {"include_rewritten": "--include-rewritten/--no-include-rewritten"}


def command_of(operation: Operation, show: Callable[..., None] | None = None) -> Callable[..., None]:
    """Build the command of an operation; `show(value, json=…)` prints its value before its messages."""

    def command(*, json: bool = False, webserver: str = "", **given: Any) -> None:
        taken = {name: chosen_day(one) if isinstance(one, dt.datetime) else one for name, one in given.items()}
        with opened_shell(Application.from_env(), webserver) as shell:
            result = operation.act(shell, **taken)
        if show is not None:
            show(result.value, json=json)
        finish(result, quiet=json)

    parameters = [_typed(parameter) for parameter in operation.parameters.values()]
    if show is not None:
        parameters.append(Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json))
    if operation.conducts:
        parameters.append(Parameter("webserver", Parameter.KEYWORD_ONLY, default="", annotation=Webserver))
    command.__doc__ = operation.text
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # typer asks `inspect` for it
    return command


def _typed(parameter: Parameter) -> Parameter:
    """The parameter for typer: a positional one becomes an argument, a keyword-only one an option."""
    kind, description = parameter.annotation, PARAMETERS[parameter.name]
    default = ... if parameter.default is Parameter.empty else parameter.default
    if parameter.kind is not Parameter.KEYWORD_ONLY:
        return parameter.replace(annotation=kind, default=typer.Argument(default, help=description))
    option = partial(typer.Option, default, help=description, **_OPTIONS.get(parameter.name, {}))
    if kind is bool:
        flag = _FLAGS.get(parameter.name, f"--{parameter.name.replace('_', '-')}")
        return parameter.replace(annotation=kind, default=option(flag))
    if kind == dt.date | None:
        return parameter.replace(annotation=dt.datetime | None, default=option(formats=["%Y-%m-%d"]))
    return parameter.replace(annotation=kind, default=option())


def show_json(value: object, *, json: bool) -> None:
    """Print the value of an operation for programs only: people need only its messages."""
    if json:
        as_json(value)


@contextmanager
def opened_shell(application: Application, webserver: str = "") -> Iterator[Shell]:
    """The shell for an operation; opens Dagster's instance only if the operation needs it, and closes it at the end."""
    with ExitStack() as opened:
        yield shell_of(application, lambda: opened.enter_context(opened_services(application, webserver)).control)


def shell_of(application: Application, control: Callable[[], Control]) -> Shell:
    """The shell for an operation, from a command that has opened the use cases itself."""
    return Shell(application, control, _delete_run_logs, partial(_report, application), warn)


def finish(result: Result, *, quiet: bool = False) -> None:
    """Print the messages of an operation, unless `quiet`, and exit with 1 if it failed."""
    for text in filter(None, () if quiet else result.lines):
        say(text)
    if result.failed:
        raise typer.Exit(1)


def _delete_run_logs(before: dt.datetime, dry_run: bool) -> int:
    from dagster_batched_events import delete_old_logs  # loads Dagster

    with opened_dagster() as instance:
        return delete_old_logs(instance, before, dry_run=dry_run)


def _report(application: Application, done: Released | AlreadyReleased | RolledBack | Adopted) -> None:
    from backfill_assets.orchestration.release_events import report_outside_runs  # loads Dagster

    report_outside_runs(application, done)
