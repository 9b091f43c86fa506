"""Plants a bug in each room of the package, one at a time, and shows which test catches it.

A bug that no test catches is a hole in the tests: `python -m backfill_assets_tests.planted_bugs --seed 18`. Seed and commit
decide which bugs; a bug that ruff finds is not chosen, because its style would give it away.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

import psutil

from backfill_assets_tests.mutations import Mutation, is_another_program, mutations

ROOT: Final = Path(__file__).resolve().parents[1]
_EVENTS: Final = "packages/dagster-batched-events/src"
ROOMS: Final = {
    "words": ("backfill_assets/core", "backfill_assets/campaign"),
    "dataset": ("backfill_assets/dataset",),
    "tables": ("backfill_assets/storage", "backfill_assets/delta"),
    "ledger": ("backfill_assets/ledger",),
    "pipeline": ("backfill_assets/pipeline", "backfill_assets/evidence"),
    "release": ("backfill_assets/release",),
    "control": ("backfill_assets/control", "backfill_assets/notices"),
    "proof": ("backfill_assets/proof", "backfill_assets/doctor"),
    "orchestration": ("backfill_assets/orchestration", f"{_EVENTS}/dagster_batched_events"),
    "console": ("backfill_assets/cli", "backfill_assets/report"),
}
"""Ten parts of the house, and the folders (or modules) below the checkout that belong to each."""

_INSTALLED_FROM: Final = ("requirements.lock", "pyproject.toml", "packages/dagster-batched-events/pyproject.toml")
_NEVER: Final = {"migrations"}  # released migrations are never edited again
_ATTEMPTS: Final = 500
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)
_TYPES: Final = re.compile(r"^\S+\.py:\d+: error: .*$", re.MULTILINE)
_BROKEN: Final = re.compile(r"^(?:ImportError while loading conftest .*|\++ Timeout \++)$", re.MULTILINE)


@dataclass(frozen=True)
class Bug:
    """A bug to plant: the room, the file below the checkout, and what changes in it."""

    room: str
    file: str
    source: str
    mutation: Mutation

    @property
    def planted(self) -> str:
        """The text of the file with the bug."""
        return self.mutation.applied(self.source)

    @property
    def diff(self) -> str:
        """The change in one line, such as `- if a < b: + if a <= b:`."""
        lines = difflib.ndiff(self.source.splitlines(), self.planted.splitlines())
        return " ".join(" ".join(line.split()) for line in lines if line[:2] in {"- ", "+ "})


@dataclass(frozen=True)
class Result:
    """The result of a bug: `by` is the failed test or the message that caught it, `note` says why another is not credited."""

    room: str
    place: str
    kind: str
    diff: str
    caught: bool = False
    by: str = ""
    seconds: int = 0
    note: str = ""


def modules_of(room: str) -> list[Path]:
    """The modules of a room that have code."""
    places = [ROOT / name for name in ROOMS[room]]
    found = [path for place in places for path in ([place] if place.suffix else place.rglob("*.py"))]
    return sorted(path for path in found if path.stat().st_size and not _NEVER & set(path.parts))


def is_tidy(file: str, text: str) -> bool:
    """Whether neither the linter nor the formatter of ruff objects to a text."""
    commands = (["format", "--check"], ["check", "--no-cache"])
    ruff = [sys.executable, "-m", "ruff"]
    return not any(
        subprocess.run(
            [*ruff, *command, "--quiet", "--stdin-filename", file, "-"],
            cwd=ROOT,
            input=text,
            text=True,
            capture_output=True,
            check=False,
        ).returncode
        for command in commands
    )


def choose(room: str, seed: int, accepts: Callable[[str, str], bool] = is_tidy) -> Bug:
    """The bug of a room. A long module comes more often than a short one, each kind of change as often as another.

    Raises:
        LookupError: the room has no place for a bug.
    """
    chance = random.Random(f"{seed} {room}")  # noqa: S311  # it has to be repeatable, not secret
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in modules_of(room)}
    for _ in range(_ATTEMPTS if texts else 0):
        (file,) = chance.choices(list(texts), [len(text) for text in texts.values()])
        found = mutations(texts[file])
        if not found:
            continue
        kind = chance.choice(sorted({mutation.kind for mutation in found}))
        bug = Bug(room, file, texts[file], chance.choice([mutation for mutation in found if mutation.kind == kind]))
        if is_another_program(bug.source, bug.planted) and accepts(file, bug.planted):
            return bug
    raise LookupError(f"no place for a bug in {room}: see ROOMS in {__file__}")


@dataclass(frozen=True)
class Copy:
    """A clean copy of the last commit that has its own state and temporary files, and shares the virtual environment."""

    folder: Path
    of: Path = ROOT

    @property
    def checkout(self) -> Path:
        """The files of the commit."""
        return self.folder / "c"

    def make(self) -> None:
        """Clone the checkout; `make` has to find that the virtual environment is newer than the lock."""
        self.folder.mkdir()
        (self.folder / "t").mkdir()
        clone = ["git", "clone", "--quiet", "--shared", str(self.of), str(self.checkout)]
        subprocess.run(clone, check=True, capture_output=True, text=True)
        (self.checkout / ".venv").symlink_to((self.of / ".venv").resolve())
        for name in _INSTALLED_FROM:
            os.utime(self.checkout / name, (0, 0))
        if (known := self.of / ".mypy_cache").is_dir():
            shutil.copytree(known, self.checkout / ".mypy_cache")  # a minute less for each bug

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in the copy and end all processes that it leaves running."""
        try:
            return subprocess.run(
                command,
                cwd=self.checkout,
                env=self._environment(),
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        finally:
            end_processes(self.folder)

    def _environment(self) -> dict[str, str]:
        # A make above this one would pass its own options on.
        kept = {k: v for k, v in os.environ.items() if not re.match(r"MAKE|MFLAGS|ARGS$|VIRTUAL_ENV|COLUMNS", k)}
        state = self.checkout / ".state"
        return kept | {
            "PATH": f"{self.checkout / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{self.checkout}{os.pathsep}{self.checkout / _EVENTS}",
            "PWD": str(self.checkout),
            "TMPDIR": str(self.folder / "t"),
            "DAGSTER_HOME": str(self.checkout),
            "BACKFILL_ASSETS_STATE": str(state),
            "BACKFILL_ASSETS_DAGSTER_STATE": str(state / "dagster"),
            "TZ": "UTC",
        }


def end_processes(folder: Path) -> None:
    """End all processes that were started for copies in a folder: they carry its name in their environment."""
    ours = [process for process in psutil.process_iter() if _imports_from(process).startswith(f"{folder}/")]
    for process in ours:
        process.kill()
    psutil.wait_procs(ours, timeout=30)


def _imports_from(process: psutil.Process) -> str:
    try:
        return process.environ().get("PYTHONPATH", "")
    except psutil.Error:
        return ""


def try_out(bug: Bug, copy: Copy, command: Sequence[str]) -> Result:
    """Plant a bug in a copy and run the tests there; the test that catches it must pass without it."""
    copy.make()
    result = Result(bug.room, f"{bug.file}:{bug.mutation.line}", bug.mutation.kind, bug.diff)
    target = copy.checkout / bug.file
    if target.read_text(encoding="utf-8") != bug.source:
        return replace(result, note=f"{bug.file} has changes that are not committed: commit them first")
    _write(target, bug.planted)
    start = time.monotonic()
    run = copy.run(command)
    result = replace(result, seconds=round(time.monotonic() - start))
    if run.returncode == 0:
        return replace(result, note="not caught")
    by, again = caught_by(run.stdout)
    if not again:
        return replace(result, by=by, caught=bool(by), note="" if by else f"failed otherwise: {run.stdout[-2000:]}")
    _write(target, bug.source)
    if copy.run(again).returncode:
        return replace(result, by=by, note=f"{by} fails without the bug, too")
    return replace(result, by=by, caught=True)


def _write(module: Path, source: str) -> None:
    """Write a module; Python would reuse the compiled text of a module of the same length and second."""
    module.write_text(source, encoding="utf-8")
    Path(cache_from_source(str(module))).unlink(missing_ok=True)


def caught_by(output: str) -> tuple[str, list[str]]:
    """The test or message that a command failed with (empty: none is known), and how to ask again without the bug."""
    if test := _FAILED.search(output):
        return test[1], ["python", "-m", "pytest", "-q", test[1]]
    if types := _TYPES.search(output):
        return types[0], ["python", "-m", "mypy"]
    broken = _BROKEN.search(output)
    return (broken[0], []) if broken else ("", [])


def try_all(bugs: Sequence[Bug], command: Sequence[str], jobs: int, *, clean_first: bool) -> Iterator[Result]:
    """The result of each bug, in their order; the copies are removed at the end, also after Ctrl-C.

    Raises:
        RuntimeError: the command fails without any bug.
    """
    with tempfile.TemporaryDirectory(prefix="bugs-") as name:
        folder, pool = Path(name), ThreadPoolExecutor(jobs)
        folder.chmod(0o755)  # the Postgres of the tests works as another user when root runs them
        try:
            if clean_first:
                (copy := Copy(folder / "clean")).make()
                if (run := copy.run(command)).returncode:
                    raise RuntimeError(f"{shlex.join(command)} fails without any bug:\n{run.stdout[-4000:]}")
            copies = [Copy(folder / str(number)) for number in range(len(bugs))]
            yield from pool.map(lambda bug, copy: try_out(bug, copy, command), bugs, copies)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            end_processes(folder)
            pool.shutdown()


def as_markdown(results: Sequence[Result]) -> str:
    """The results as a table."""
    head = ["room", "place", "change", "caught by", "seconds"]
    rows = [
        [r.room, r.place, f"{r.kind}: `{r.diff}`", r.by if r.caught else f"**{r.note}**", r.seconds] for r in results
    ]
    cells = [[" ".join(str(cell).replace("|", r"\|").split()) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *cells])


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant what the command line asks for: 0 if every bug is caught, 2 if the command fails without one."""
    given = _parser().parse_args(arguments)
    bugs = [choose(room, given.seed) for room in given.only or ROOMS]
    if given.list:
        results = [
            Result(b.room, f"{b.file}:{b.mutation.line}", b.mutation.kind, b.diff, note="not tried") for b in bugs
        ]
        print(json.dumps([asdict(r) for r in results], indent=2) if given.json else as_markdown(results))  # noqa: T201
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    results = []
    try:
        for result in try_all(bugs, shlex.split(given.command), given.jobs, clean_first=given.clean_first):
            results.append(result)
            print(f"{result.place}: {result.by or result.note}", file=sys.stderr, flush=True)  # noqa: T201
    except RuntimeError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    print(json.dumps([asdict(r) for r in results], indent=2) if given.json else as_markdown(results))  # noqa: T201
    return 0 if all(result.caught for result in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("planted_bugs", description="Plant a bug per room and see which test catches it.")
    parser.add_argument("--seed", type=int, default=18, help="which bugs (18)")
    parser.add_argument("--only", action="append", choices=ROOMS, metavar="ROOM", help=f"one of {', '.join(ROOMS)}")
    parser.add_argument("--command", default="make test ARGS=-x", help="what has to catch them (make test ARGS=-x)")
    parser.add_argument("--jobs", type=int, default=1, help="how many copies at once (1)")
    parser.add_argument("--clean-first", action="store_true", help="run the command without any bug before")
    parser.add_argument("--list", action="store_true", help="only show the bugs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
