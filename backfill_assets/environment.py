"""The environment of a process, and the `.env` of its folder: all processes of an installation read the same values."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil
from dotenv import dotenv_values

from backfill_assets.core.errors import SettingsError
from backfill_assets.settings import PREFIX, shown_value

_PWD: Final = re.compile(r"\$\{PWD[}:]")
_STATE: Final = "BACKFILL_ASSETS_STATE"


def env_file(folder: Path) -> dict[str, str]:
    """The variables of the `.env` in a folder, which Dagster's commands read when they are started there; none without one.

    Raises:
        SettingsError: the file cannot be read, or it uses PWD, which is another folder.
    """
    uses_folder = any(_PWD.search(value) for value in written_in(folder).values())
    shell = os.environ.get("PWD", "")
    if uses_folder and not _is_same(shell, str(folder), folder):
        # Dagster would take it as it is, and everything would be in that folder.
        raise SettingsError(
            f"{folder / '.env'} uses PWD, which is {shell!r} although this runs in {folder}; start it from a shell in that "
            "folder, or write absolute paths into the file"
        )
    return {name: value for name, value in dotenv_values(folder / ".env").items() if value is not None}


def written_in(folder: Path) -> dict[str, str]:
    """The variables of the `.env` in a folder as they are written there, with `${PWD}`; none without one.

    Raises:
        SettingsError: the file cannot be read.
    """
    file = folder / ".env"
    try:
        return {name: value for name, value in dotenv_values(file, interpolate=False).items() if value is not None}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file} cannot be read ({error}); make it readable, or move it away") from None


def environment_in(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that is started in `folder`: what the `.env` there says replaces what `environ` says.

    Raises:
        SettingsError: they disagree about a setting or about DAGSTER_HOME; or the file cannot be read; or `folder` is inside
            a project whose `.env` names the state.
    """
    found = env_file(folder)
    _require_same(environ, found, folder)
    require_state_of(folder, {**environ, **found})
    return {**environ, **found}


def require_state_of(path: Path, environ: Mapping[str, str]) -> None:
    """Refuse to work for a project without the state that its `.env` names.

    Raises:
        SettingsError: the nearest folder at or above `path` whose `.env` names the state is not where this was started.
    """
    if environ.get(_STATE):
        return
    for folder in (path, *path.parents):
        try:
            named = _STATE in written_in(folder)
        except SettingsError:  # of somebody else, above the project
            continue
        if named:
            raise SettingsError(
                f"{_STATE} is not set, and {folder / '.env'} names it: start the command in {folder}, or set it as there"
            )


def require_one_environment(environ: Mapping[str, str]) -> None:
    """Refuse to go on in a process of Dagster in which a `.env` has replaced a setting of the environment.

    A command that somebody starts with the same environment, but in another folder, would read another installation.

    Raises:
        SettingsError: a setting was replaced by another value, here or in a Dagster process that started this one.
    """
    # Dagster's name for the `.env` files of the projects in a workspace.
    for folder in json.loads(environ.get("DAGSTER_PROJECT_ENV_FILE_PATHS") or "{}").values():
        env_file(Path(folder).absolute())
    process = psutil.Process()
    for one in (process, *process.parents()):
        try:
            if one != process and not is_dagster(one.cmdline()):
                continue
            folder, before = Path(one.cwd()), one.environ()
        except (OSError, psutil.Error):  # another user's process, or one that has just ended
            continue
        # A value that is not the file's was set by the code that runs here.
        injected = {name: value for name, value in env_file(folder).items() if environ.get(name) == value}
        _require_same(before, injected, folder)


def is_dagster(command: Sequence[str]) -> bool:
    """Whether a command line runs one of Dagster's programs, or our daemon, as a script or as a module."""
    words = list(command)
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if option == "-m":
                break
            if option in {"-X", "-W"}:
                words = words[1:]
    name = Path(words[0]).name if words else ""
    return name in {"dagster", "dg"} or name.startswith(("dagster-", "dagster_", "dagster.", "backfill_assets."))


def _require_same(environ: Mapping[str, str], found: Mapping[str, str], folder: Path) -> None:
    for name, value in found.items():
        before = environ.get(name, "")
        if not (name.startswith(PREFIX) or name == "DAGSTER_HOME") or not before or _is_same(before, value, folder):
            continue
        raise SettingsError(
            f"{name} is {shown_value(name, before)} in the environment and {shown_value(name, value)} in {folder / '.env'}, which "
            f"Dagster's processes read instead: half of the commands would use another installation. Unset {name} or "
            "change that file, and start Dagster again."
        )


def _is_same(one: str, other: str, folder: Path) -> bool:
    """Whether two values are equal, or are spellings of one path."""
    paths = {os.path.realpath(folder / text) for text in (one, other)}
    return one == other or (bool(one and other) and len(paths) == 1)
