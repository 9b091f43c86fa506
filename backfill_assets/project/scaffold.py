"""The files that a project, and a dataset in it, begin with."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backfill_assets.core.errors import ArgumentError, StorageError
from backfill_assets.core.text import checked_name
from backfill_assets.dataset.yaml import shown_path

_TEMPLATE: Final = Path(__file__).parent / "template"
_EXAMPLE: Final = "store_sales"
DEFS_YAML: Final = "type: backfill_assets.Dataset\n"
"""What makes a dataset folder a component."""
_DEFINITIONS: Final = "definitions.py"
_WORKFLOW: Final = ".github/workflows/backfills.yml"
_PLACES: Final[Mapping[str, str]] = {
    "env": ".env",
    "gitignore": ".gitignore",
    "ci.yml": _WORKFLOW,
    "README.md": "README.md",
    "dagster.yaml": "dagster.yaml",
    "requirements.txt": "requirements.txt",
}
"""Where the files of the template go; names with a leading dot would not get into a wheel."""
_OF_LOCATION: Final = (_DEFINITIONS, "workspace.yaml")
"""What a project of `dg` does not need: it loads components."""
_VARIABLE: Final = re.compile(r"^[A-Z_]+=")
_NEEDED_OF_INSTANCE: Final = (
    "run_coordinator (QueuedRunCoordinator), concurrency (a limit on the tag dagster/backfill below max_concurrent_runs; "
    "pools with granularity: run), run_retries (retry_on_asset_or_op_failure: false) and run_monitoring"
)


@dataclass(frozen=True)
class Scaffold:
    """Files to write.

    Attributes:
        root: the project's folder.
        files: the contents, by path below `root`.
        kept: files that exist and stay as they are, each with what it needs; empty text if it needs nothing.
    """

    root: Path
    files: Mapping[str, str]
    kept: Mapping[str, str]

    def write(self) -> None:
        """Write the files; never overwrites one.

        Raises:
            StorageError: a file cannot be written.
        """
        for name, text in self.files.items():
            file = self.root / name
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("x", encoding="utf-8") as out:
                    out.write(text)
            except OSError as error:
                raise StorageError(
                    f"{shown_path(file)} cannot be written: {error.strerror}; correct it, then run it again"
                ) from None


def new_project(root: Path) -> Scaffold:
    """A project in an empty or missing folder; hidden files, such as `.git`, and virtual environments may be there.

    Raises:
        ArgumentError: the folder is not empty.
    """
    try:
        found = sorted(path.name for path in root.iterdir() if not _is_hidden(path)) if root.exists() else []
    except OSError as error:
        raise ArgumentError(f"{shown_path(root)} cannot be read: {error.strerror}") from None
    files = dict(_files("datasets", _OF_LOCATION))
    found += [name for name in files if name.startswith(".") and (root / name).exists()]
    if found:
        raise ArgumentError(
            f"{shown_path(root)} is not empty: it has {found[0]!r}; choose an empty folder, or add to the project that is "
            "there: backfill init --into FOLDER"
        )
    return Scaffold(root, files, {})


def addition(root: Path) -> Scaffold:
    """What an existing Dagster project needs besides what it has; no file of it is changed.

    A project of `dg` gets the example as a component in its folder of definitions.

    Raises:
        ArgumentError: there is no such folder, or its pyproject.toml cannot be read.
    """
    if not root.is_dir():
        raise ArgumentError(f"{shown_path(root)} is not a folder; for a new project: backfill init FOLDER")
    module = _module_of_dg(root)
    defs = _folder_of(module, root) if module else "datasets"
    files = dict(_files(defs, () if module else _OF_LOCATION))
    files.pop("README.md")
    if module:
        files[f"{defs}/{_EXAMPLE}/defs.yaml"] = DEFS_YAML
        files[_WORKFLOW] = files[_WORKFLOW].replace(f"-f {_DEFINITIONS} ", "")
    elif _differs(root / _DEFINITIONS, files[_DEFINITIONS]):
        own = f"backfill_{_DEFINITIONS}"
        files[own] = files.pop(_DEFINITIONS)
        for name in ("workspace.yaml", _WORKFLOW):
            files[name] = files[name].replace(_DEFINITIONS, own)
    kept = {name: _needed(root / name, text) for name, text in files.items() if (root / name).exists()}
    return Scaffold(root, {name: text for name, text in files.items() if name not in kept}, kept)


def dataset_files(name: str) -> dict[str, str]:
    """The files of a dataset folder, by name, for a dataset of that name.

    Raises:
        InvalidNameError: it is not a name for a dataset.
    """
    checked_name(name, "dataset")
    folder = _TEMPLATE / "dataset"
    return {file.name: _text(file).replace(_EXAMPLE, name) for file in sorted(folder.iterdir()) if file.is_file()}


def _files(datasets: str, further: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name, place in _PLACES.items():
        text = _text(_TEMPLATE / name)
        yield place, text.replace("${PWD}/datasets", f"${{PWD}}/{datasets}") if name == "env" else text
    for name in further:
        yield name, _text(_TEMPLATE / name.replace(".py", ".txt"))
    for name, text in dataset_files(_EXAMPLE).items():
        yield f"{datasets}/{_EXAMPLE}/{name}", text
    for file in sorted((_TEMPLATE / "sources").glob("*/*.csv")):
        yield f"sources/{_EXAMPLE}/{file.relative_to(_TEMPLATE / 'sources')}", _text(file)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or (path / "pyvenv.cfg").exists()


def _module_of_dg(root: Path) -> str | None:
    """The root module of a project of `dg`; none in other projects."""
    file = root / "pyproject.toml"
    if not file.is_file():
        return None
    try:
        tool = tomllib.loads(_text(file)).get("tool", {})
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{shown_path(file)} cannot be read: {error}; correct it first") from None
    module = tool.get("dg", {}).get("project", {}).get("root_module")
    return module if isinstance(module, str) else None


def _folder_of(module: str, root: Path) -> str:
    """The folder of datasets in a project of `dg`, among its components, below `root`."""
    defs = f"{module.replace('.', '/')}/defs"
    return f"{defs}/datasets" if (root / defs).is_dir() else f"src/{defs}/datasets"


def _needed(file: Path, text: str) -> str:
    """What a file that exists needs of the text that was meant for it."""
    if not _differs(file, text):
        return ""
    match file.name:
        case ".env" | ".gitignore" | "requirements.txt":
            present = _text(file).splitlines()
            missing = [line for line in text.splitlines() if line[:1] not in {"", "#"} and not _is_in(line, present)]
            return "\n".join(["add to it:", *missing]) if missing else ""
        case "workspace.yaml":
            return "\n".join(["add below load_from:", *text.splitlines()[1:]])
        case "dagster.yaml":
            return f"what backfills need in it: {_NEEDED_OF_INSTANCE}; compare it with {_TEMPLATE / 'dagster.yaml'}"
        case _:
            return ""


def _differs(file: Path, text: str) -> bool:
    return file.is_file() and _text(file) != text


def _is_in(line: str, lines: Sequence[str]) -> bool:
    """Whether the line, or another value of its variable, is one of `lines`."""
    variable = _VARIABLE.match(line)
    return line in lines or (variable is not None and any(one.startswith(variable[0]) for one in lines))
