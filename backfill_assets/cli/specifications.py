"""Commands that write the first version of files, and check them: init, new, validate."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from backfill_assets.application import Application
from backfill_assets.campaign.draft import Draft, Mistake, draft_text
from backfill_assets.campaign.load import (
    LoadedSpecification,
    load_specification,
    misfits,
    read_specification,
    scoped,
)
from backfill_assets.campaign.specification import ID_PATTERN
from backfill_assets.cli.output import say
from backfill_assets.core.days import parse_day
from backfill_assets.core.errors import ArgumentError, BackfillError, LedgerError, SpecificationError
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.expected_change import parse_contract
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import shown_days
from backfill_assets.dataset.checks import metric_names
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.load import linked, load_dataset
from backfill_assets.dataset.loaded import FILE, LoadedDataset
from backfill_assets.dataset.yaml import FileProblem, shown_path
from backfill_assets.project.scaffold import addition, new_project


def init(
    folder: Annotated[Path, typer.Argument(help="The project's folder.")] = Path(),
    into: Annotated[
        bool, typer.Option("--into", help="Add to the Dagster project in this folder; changes none of its files.")
    ] = False,
) -> None:
    """Write a project with one example dataset, for the Dagster UI, its daemon and this command; never overwrites a file."""
    scaffold = addition(folder) if into else new_project(folder)
    scaffold.write()
    for name in scaffold.files:
        say(f"wrote {shown_path(folder / name)}")
    for name, needed in scaffold.kept.items():
        say(f"kept {shown_path(folder / name)}" + (f"; {needed}" if needed else ""))
    where = "" if folder.absolute() == Path.cwd() else f"cd {shown_path(folder)}, then "
    first = "store_sales 2024-05-01..2024-05-03" if scaffold.has_example else "DATASET DAYS"
    say(f"next: {where}start {scaffold.start}; in a second terminal: backfill run {first} --watch")


def validate(
    files: Annotated[
        list[Path],
        typer.Argument(help="Specifications, such as backfills/*.yaml, and folders or dataset.yaml of datasets."),
    ],
) -> None:
    """Check specifications and datasets, by themselves and against the other datasets; reports every problem with its line."""
    application = Application.from_env()
    problems: dict[Path, tuple[FileProblem, ...]] = {}
    good: list[LoadedSpecification] = []
    folders: list[Path] = []
    for file in dict.fromkeys(files):
        if folder := _dataset_folder(file):
            folders.append(folder)
            problems[folder] = _dataset_problems(application, folder)
            continue
        loaded = load_specification(file)
        if isinstance(loaded, LoadedSpecification):
            problems[file] = (*misfits_here(application, loaded), *_namesakes(loaded, good))
            good.append(loaded)
        else:
            problems[file] = loaded
    found = [problem for own in problems.values() for problem in own]
    for problem in found:
        say(str(problem))
    for folder in dict.fromkeys(folders):
        if not problems[folder]:
            say(f"{shown_path(folder)}: good")
    for loaded in good:
        if not problems[loaded.file]:
            _report(application, loaded)
    if found:
        wrong = sum(bool(own) for own in problems.values())
        say(f"{number_of(len(found), 'problem')} in {wrong} of {number_of(len(problems), 'file')}")
        raise typer.Exit(1)


def _dataset_folder(file: Path) -> Path | None:
    """The folder of a dataset, if that or one of its YAML files is given."""
    try:
        folder = file if file.is_dir() else file.parent
        if not folder.is_dir() or (folder != file and file.name not in {FILE, "defs.yaml"}):
            return None
    except (OSError, ValueError):
        return None  # a name that no file can have: reading it as a specification says so
    # The dataset has the folder's name, which `.` and `..` do not show.
    return folder if folder.name not in {"", ".."} else folder.resolve()


def _dataset_problems(application: Application, folder: Path) -> tuple[FileProblem, ...]:
    """The problems of a dataset folder by itself, or with its upstreams and the paths of the other datasets."""
    loaded = load_dataset(folder)
    if not isinstance(loaded, LoadedDataset):
        return loaded
    _, problems = linked({**application.datasets, loaded.name: loaded})
    # The others were good: what does not fit now is caused by this folder, whichever dataset it is booked on.
    return problems


def misfits_here(application: Application, loaded: LoadedSpecification) -> tuple[FileProblem, ...]:
    """The problems of a specification with the datasets, the clock and the environment of this process."""
    now, computes = application.clock.now(), application.settings.computes
    return misfits(loaded, application.catalog, now=now, computes=computes)


def _namesakes(loaded: LoadedSpecification, others: Sequence[LoadedSpecification]) -> Iterator[FileProblem]:
    own = loaded.specification.backfill_id
    for other in others:
        if other.specification.backfill_id == own:
            text = f"backfill_id = {own!r}: {shown_path(other.file)} has the same; give each campaign its own"
            yield loaded.problem(("backfill_id",), text)


def _report(application: Application, loaded: LoadedSpecification) -> None:
    specification = loaded.specification
    days, names = specification.source_range, ", ".join(scoped(specification, application.catalog))
    say(
        f"{shown_path(loaded.file)}: good; {names} {days.start}..{days.end}, {days.count} day{'s' if days.count > 1 else ''}"
    )
    try:
        for unit, claimed in _claims(application, loaded).items():
            text = f"{shown_days(claimed)}: claimed by open unit {unit}, so that a launch would be refused; publish it "
            remedy = f"(backfill publish {unit}) or give it up (backfill discard {unit})"
            say(str(loaded.problem(("source_range",), f"warning: {text}{remedy}")))
    except LedgerError as error:
        say(f"{shown_path(loaded.file)}: warning: could not check whether its days are claimed: {error}")


def _claims(application: Application, loaded: LoadedSpecification) -> dict[str, list[DatasetDay]]:
    """The days that other open units have claimed, by unit; without a ledger nothing is claimed."""
    from backfill_assets.ledger.database import parsed_url

    url = parsed_url(application.settings.ledger_url)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        return {}
    specification = loaded.specification
    found: dict[str, list[DatasetDay]] = defaultdict(list)
    for name in scoped(specification, application.catalog):
        for day, unit in application.ledger.claims(name, specification.source_range.days).items():
            found[unit].append((name, day))
    own = specification.backfill_id
    return {unit: days for unit, days in sorted(found.items()) if application.ledger.unit(unit).campaign != own}


_Answer = TypeVar("_Answer")
_FOLDER: Final = Path("backfills")


def new(
    dataset: Annotated[str, typer.Option(help="The dataset whose history is wrong.")] = "",
    start: Annotated[str, typer.Option(help="First day to recompute, such as 2024-01-01.")] = "",
    end: Annotated[str, typer.Option(help="Last day to recompute.")] = "",
    change: Annotated[str, typer.Option(help="What is corrected, in one line.")] = "",
    issue: Annotated[str, typer.Option(help="The issue that asks for it.")] = "",
    name: Annotated[str, typer.Option("--id", help="Name of the campaign and of its file.")] = "",
    owner: Annotated[str, typer.Option(help="Who is responsible; by default the dataset's owner.")] = "",
    approver: Annotated[list[str] | None, typer.Option(help="User or role that may approve; repeat for more.")] = None,
    expect: Annotated[list[str] | None, typer.Option(help="metric=change, such as revenue=-50%; repeat.")] = None,
    mistake: Annotated[
        Mistake | None, typer.Option(help="Where the mistake was made; it decides which layers run again.")
    ] = None,
    begins: Annotated[
        str,
        typer.Option(
            "--from", help="First layer to run again; by default what --mistake says, or the dataset's first."
        ),
    ] = "",
    downstream: Annotated[str, typer.Option(help="none, all, or datasets separated by commas.")] = "all",
    folder: Annotated[Path, typer.Option(help="Folder of the specifications.")] = _FOLDER,
) -> None:
    """Write the first version of a specification; asks for values that no option gives. Never overwrites a file."""
    application = Application.from_env()
    # A call with all required options comes from a script, which cannot answer questions.
    asks = not (dataset and start and end and change and name and approver)
    if begins and mistake:
        raise ArgumentError("--from and --mistake both say which layers run again; give only one")
    if asks and not begins and mistake is None:
        mistake = _asked(f"Where was the mistake made ({', '.join(Mistake)})", _mistake, Mistake.ingestion.value)
    target = application.dataset(dataset) if dataset else _asked_dataset(application)
    first = parse_day(start) if start else _asked_day("First", target)
    last = parse_day(end) if end else _asked_day("Last", target)
    change = change or _asked("What is corrected, in one line", str)
    issue = issue or (_asked("Issue (may be empty)", str, "") if asks else "")
    name = name or _asked_name(folder, f"{target.name.replace('_', '-')}-{first:%Y-%m}")
    owner = owner or (_asked("Owner", str, target.owner or None) if asks or not target.owner else target.owner)
    approvers = approver or _asked("Who may approve (users or roles, separated by commas)", _listed)
    expected = _changes(expect or (), target)
    if asks and not expected:
        question = "What changes, as metric=change, separated by commas (may be empty)"
        expected = _asked(question, lambda text: _changes(_listed(text), target), "")
    scope = (begins or (mistake.first_layer.value if mistake else ""), downstream)
    draft = Draft(name, target.name, first, last, change, owner, tuple(approvers), issue, *scope, expected)
    file = shown_path(_written(application, draft, folder))
    say(f"wrote {file}; complete it, then: backfill validate {file}")


def _written(application: Application, draft: Draft, folder: Path) -> Path:
    # Also refuses a name with a path in it, before anything is written.
    file = folder / f"{draft.backfill_id}.yaml"
    text = draft_text(draft, application.catalog, shown_path(file))
    loaded = read_specification(text, file)
    problems = misfits_here(application, loaded) if isinstance(loaded, LoadedSpecification) else loaded
    if problems:
        raise SpecificationError("\n".join(["nothing was written:", *(problem.message for problem in problems)]))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        if os.path.lexists(file):  # False, not an error, for a name that is too long
            raise SpecificationError(_taken(file)) from None
        raise SpecificationError(
            f"{shown_path(file)} cannot be written: {error.strerror}; choose another --folder"
        ) from None
    return file


def _taken(file: Path) -> str:
    return f"{shown_path(file)} already exists; choose another --id, or edit the file"


def _asked(question: str, read: Callable[[str], _Answer], default: str | None = None) -> _Answer:
    """The user's answer at the terminal; asks again until it can be read."""

    def checked(text: str) -> _Answer:
        try:
            return read(text)
        except BackfillError as error:
            raise typer.BadParameter(str(error)) from None

    answer: _Answer = typer.prompt(question, default=default, show_default=bool(default), value_proc=checked)
    return answer


def _mistake(text: str) -> Mistake:
    try:
        return Mistake(text)
    except ValueError:
        raise SpecificationError(f"{text!r} is not a place of a mistake; choose {', '.join(Mistake)}") from None


def _asked_dataset(application: Application) -> Dataset:
    return _asked(f"Dataset ({', '.join(sorted(application.datasets))})", application.dataset)


def _asked_day(which: str, target: Dataset) -> date:
    def day(text: str) -> date:
        found = parse_day(text)
        target.check_days((found,))
        return found

    return _asked(f"{which} day (of {target.start}..{target.end or ''})", day)


def _asked_name(folder: Path, default: str) -> str:
    def name(text: str) -> str:
        if not re.fullmatch(ID_PATTERN, text):
            raise SpecificationError(f"{text!r}: use a-z, 0-9 and -, begin with a letter, 3 to 63 characters")
        if os.path.lexists(folder / f"{text}.yaml"):
            raise SpecificationError(_taken(folder / f"{text}.yaml"))
        return text

    return _asked("Name of the campaign", name, default)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _changes(texts: Iterable[str], target: Dataset) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        metric, sign, change = (part.strip() for part in text.partition("="))
        if not sign:
            raise SpecificationError(f"{text!r} names no change; write metric=change, such as revenue=-50%")
        found[metric] = change
    parse_contract(found, metric_names(target), "expected change")
    return found
