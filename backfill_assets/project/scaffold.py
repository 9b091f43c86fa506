"""The files that a project, and a dataset in it, begin with."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from backfill_assets.core.errors import ArgumentError, StorageError
from backfill_assets.core.text import checked_name
from backfill_assets.dataset.yaml import shown_path
from backfill_assets.environment import written_in

_TEMPLATE: Final = Path(__file__).parent / "template"
_EXAMPLE: Final = "store_sales"
DEFS_YAML: Final = "type: backfill_assets.Dataset\n"
"""What makes a dataset folder a component."""
_DATASETS: Final = "BACKFILL_ASSETS_DATASETS"
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
"""A project of `dg` loads components, so it needs neither."""
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
        start: how to start Dagster there.
    """

    root: Path
    files: Mapping[str, str]
    kept: Mapping[str, str]
    start: str = "dagster dev"

    @property
    def has_example(self) -> bool:
        """Whether the example is there once the files are written."""
        return any(f"/{_EXAMPLE}/" in name for name in (*self.files, *self.kept))

    def write(self) -> None:
        """Write all files or none; never overwrites one.

        Raises:
            StorageError: a file cannot be written.
        """
        written: list[Path] = []
        try:
            for name, text in self.files.items():
                file = self.root / name
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("x", encoding="utf-8") as out:
                    written.append(file)
                    out.write(text)
        except OSError as error:
            for one in written:
                one.unlink(missing_ok=True)
            raise StorageError(
                f"{shown_path(file)} cannot be written: {error.strerror}; correct it and run the command again. No file was kept"
            ) from None


def new_project(root: Path) -> Scaffold:
    """A project in an empty or missing folder; hidden files, such as `.git`, and virtual environments may be there.

    Raises:
        ArgumentError: the folder is not empty.
    """
    try:
        found = sorted(path.name for path in root.iterdir() if not _is_hidden(path)) if root.exists() else []
    except OSError as error:
        raise ArgumentError(f"{shown_path(root)} cannot be read: {error.strerror}; choose another folder") from None
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

    The example, and the workflow that builds it, are left out if there are datasets. A project of `dg` gets the example as a
    component among its definitions.

    Raises:
        ArgumentError: there is no such folder, or its pyproject.toml, dg.toml or .env cannot be used.
        SettingsError: its .env cannot be read.
    """
    if not os.path.isdir(root):  # noqa: PTH112  # False, not an error, for a name that is too long
        raise ArgumentError(f"{shown_path(root)} is not a folder; for a new project: backfill init FOLDER")
    tools = _tools(root)
    defs = _folder_of_components(tools, root)
    datasets = _named_datasets(root) or (f"{defs}/datasets" if defs else "datasets")
    files = dict(_files(datasets, () if defs else _OF_LOCATION))
    files.pop("README.md")
    if defs:
        files[f"{datasets}/{_EXAMPLE}/defs.yaml"] = DEFS_YAML
        files[_WORKFLOW] = files[_WORKFLOW].replace(f"-f {_DEFINITIONS} ", "")
        files[_WORKFLOW] = files[_WORKFLOW].replace("--requirement req", "--editable . --requirement req")
    elif _differs(root / _DEFINITIONS, files[_DEFINITIONS]):
        own = f"backfill_{_DEFINITIONS}"
        files[own] = files.pop(_DEFINITIONS)
        for name in ("workspace.yaml", _WORKFLOW):
            files[name] = files[name].replace(_DEFINITIONS, own)
    if _has_folders(root / datasets):
        files = {name: text for name, text in files.items() if f"/{_EXAMPLE}/" not in name and name != _WORKFLOW}
    kept = {name: _needed(root / name, text) for name, text in files.items() if (root / name).exists()}
    start = "dg dev" if defs else _start(tools)
    return Scaffold(root, {name: text for name, text in files.items() if name not in kept}, kept, start)


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
        yield name, _text(_TEMPLATE / name.replace(".py", ".txt")).replace('/ "datasets"', f'/ "{datasets}"')
    for name, text in dataset_files(_EXAMPLE).items():
        yield f"{datasets}/{_EXAMPLE}/{name}", text
    for file in sorted((_TEMPLATE / "sources").glob("*/*.csv")):
        yield f"sources/{_EXAMPLE}/{file.relative_to(_TEMPLATE / 'sources')}", _text(file)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or (path / "pyvenv.cfg").exists()


def _tools(root: Path) -> Mapping[str, Any]:
    """The tables of the tools `dg` and `dagster` in a project's files; empty without them."""
    found: dict[str, Any] = {}
    for name in ("pyproject.toml", "dg.toml"):
        file = root / name
        if not file.is_file():
            continue
        try:
            content = tomllib.loads(_text(file))
        except (OSError, ValueError) as error:
            raise ArgumentError(f"{shown_path(file)} cannot be read: {error}; correct it first") from None
        found |= {"dg": content} if name == "dg.toml" else _table(content.get("tool"))
    return found


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _folder_of_components(tools: Mapping[str, Any], root: Path) -> str:
    """The folder of components in a project of `dg`, below `root`; empty in other projects."""
    project = _table(_table(tools.get("dg")).get("project"))
    module = project.get("root_module")
    if not isinstance(module, str):
        return ""
    defs = str(project.get("defs_module", f"{module}.defs")).replace(".", "/")
    return defs if (root / defs).is_dir() else f"src/{defs}"


def _start(tools: Mapping[str, Any]) -> str:
    # Dagster prefers the pyproject.toml that names a module to a workspace.yaml.
    return "dagster dev -w workspace.yaml, with your own location in it" if tools.get("dagster") else "dagster dev"


def _named_datasets(root: Path) -> str:
    """The folder of datasets that the project's `.env` names, below `root`; empty if it names none.

    Raises:
        ArgumentError: the folder is not in the project.
    """
    named = written_in(root).get(_DATASETS, "").replace("${PWD}/", "")
    if not named:
        return ""
    try:
        return str((root / named).absolute().relative_to(root.absolute()))
    except ValueError:
        raise ArgumentError(
            f"{shown_path(root / '.env')}: {_DATASETS} = {named!r} is outside of the project; there is nothing to add here"
        ) from None


def _has_folders(folder: Path) -> bool:
    return folder.is_dir() and any(path.is_dir() and path.name[0] not in "._" for path in folder.iterdir())


def _needed(file: Path, text: str) -> str:
    """What a file that exists needs of the text that was meant for it."""
    if not _differs(file, text):
        return ""
    present = file.read_text(encoding="utf-8", errors="replace")
    match file.name:
        case ".env":
            known = written_in(file.parent)
            return _missing([line for line in _entries(text) if line.split("=")[0] not in known])
        case ".gitignore" | "requirements.txt":
            return _missing([line for line in _entries(text) if line not in present.splitlines()])
        case "workspace.yaml":
            lines = text.splitlines()[1:]
            return "" if lines[1].strip() in present else "\n".join(["add below load_from:", *lines])
        case "dagster.yaml":
            return f"what backfills need in it: {_NEEDED_OF_INSTANCE}; compare it with {_TEMPLATE / 'dagster.yaml'}"
        case _:
            return ""


def _missing(lines: Sequence[str]) -> str:
    return "\n".join(["add to it:", *lines]) if lines else ""


def _entries(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _differs(file: Path, text: str) -> bool:
    return file.is_file() and file.read_bytes() != text.encode()
