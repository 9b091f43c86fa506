"""Load the datasets of a git commit, next to those of the working folder."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Final

from backfill_assets.core.errors import DatasetError
from backfill_assets.core.text import in_one_line
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.loaded import Catalog, normal
from backfill_assets.dataset.yaml import shown_path

_LONGEST_REF: Final = 250
_SHOWN: Final = 100


@dataclass(frozen=True)
class Checkout:
    """The datasets of a commit; `ref` is the name that the user gave."""

    ref: str
    commit: str
    catalog: Catalog


@contextmanager
def datasets_at(folder: Path, ref: str) -> Iterator[Checkout]:
    """Load the folder of datasets as it is at a commit; the working folder does not change.

    Python models import the modules that this process finds: run it with the project of that commit.

    Raises:
        DatasetError: git is missing, the folder is in no repository, the commit does not exist or does not have the folder,
            a link leads out of the folder, or a module that a model imports differs at that commit.
    """
    # Git would read a leading dash as an option, and not every text can be an argument of a program.
    if ref.startswith("-") or not ref.isprintable() or not 0 < len(ref) <= _LONGEST_REF:
        raise DatasetError(f"--models {ref[:_SHOWN]!r} cannot be a commit; name a branch, tag or commit")
    home = Path(
        _git(folder, "rev-parse", "--show-toplevel", refusal=f"{shown_path(folder)} is not in a git repository")
    )
    wanted = f"{ref}^{{commit}}"
    unknown = f"--models {ref!r}: this clone has no such commit; fetch it, or name a branch, tag or commit"
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", wanted, refusal=unknown)
    inside = folder.resolve().relative_to(home.resolve()).as_posix()
    missing = f"{inside} does not exist at {ref!r}; name a commit that has the folder of datasets"
    with TemporaryDirectory(prefix="models-") as temporary:
        with tarfile.open(fileobj=io.BytesIO(_run(home, "archive", commit, "--", inside, refusal=missing))) as archive:
            try:
                _unpack(archive, Path(temporary))
            except (tarfile.TarError, OSError, RuntimeError) as error:
                raise DatasetError(
                    f"{inside} at {ref!r} cannot be unpacked: {in_one_line(error)}; name a commit without such files"
                ) from error
        catalog = load_folder(Path(temporary, inside))
        _require_modules_of(commit, ref, home.resolve(), catalog)
        yield Checkout(ref, commit, catalog)


def _require_modules_of(commit: str, ref: str, home: Path, catalog: Catalog) -> None:
    """Refuse models that would run with modules of another commit; modules outside the repository are not checked."""
    models = [model for one in catalog.datasets.values() for model in (one.staging, one.fact) if model is not None]
    modules = {module.file.resolve(): module for model in models for module in model.modules.values() if module.file}
    for file, module in sorted(modules.items(), key=lambda found: found[0]):
        if file.is_relative_to(home):
            path = file.relative_to(home).as_posix()
            refusal = f"models import {path}, which differs at {ref!r}; check out {ref} and run this with its project"
            if normal(_run(home, "show", f"{commit}:{path}", refusal=refusal)) != normal(module.content):
                raise DatasetError(refusal)


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive of git; raises TarError for an entry outside the folder, RuntimeError for circular links."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    # Python before 3.11.4, such as that of Debian 12, has no filters.
    for member in archive.getmembers():
        path = PurePosixPath(member.name)
        if not (member.isfile() or member.isdir() or member.issym()) or path.is_absolute() or ".." in path.parts:
            raise tarfile.TarError(f"{member.name} is not a file in the folder")
    archive.extractall(folder)  # noqa: S202  # members are checked above, links below
    for place in folder.rglob("*"):
        if not place.resolve().is_relative_to(folder.resolve()):
            raise tarfile.TarError(f"{place.relative_to(folder)} leads out of the folder")


def _git(folder: Path, *arguments: str, refusal: str) -> str:
    return _run(folder, *arguments, refusal=refusal).decode().strip()


def _run(folder: Path, *arguments: str, refusal: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)  # noqa: S607
    except OSError as error:
        raise DatasetError(f"git cannot be run ({error.strerror}); install it to compare models of a commit") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise DatasetError(refusal + (f" (git: {in_one_line(said[0])})" if said else ""))
    return done.stdout
