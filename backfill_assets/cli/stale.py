"""The command that shows which published days would come out differently today, and why; and what it shares with others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import Annotated, Final

import typer

from backfill_assets.application import Application
from backfill_assets.cli.output import Json, as_json, say, table, warn
from backfill_assets.core.content import KeptDay
from backfill_assets.core.days import day_range, days_argument, format_days, grouped_by_text, parse_days
from backfill_assets.core.errors import ArgumentError
from backfill_assets.core.text import in_words, number_of, visible
from backfill_assets.evidence.keep import OF_CODE
from backfill_assets.evidence.relaunches import LeftOut
from backfill_assets.evidence.stale import DATA, StaleCause, StaleDays
from backfill_assets.operations import PARAMETERS
from backfill_assets.proof.stale_sample import StaleSample

_MOST_FILES: Final = 3
_MOST_SAMPLED: Final = 366
Because = Annotated[
    str, typer.Option(metavar="CAUSE,…", help=f"Only days that are stale because of these: {', '.join(StaleCause)}.")
]


def stale(
    dataset: Annotated[str, typer.Argument(help="A dataset; by default, all.")] = "",
    because: Because = "",
    sample: Annotated[
        int,
        typer.Option(
            min=0, max=_MOST_SAMPLED, help="Build so many of them again, without publishing: do they come out the same?"
        ),
    ] = 0,
    json: Json = False,
) -> None:
    """Show which published days would come out differently if they were built today, or might, and why.

    backfill stale flights
    backfill stale --because code,columns
    backfill stale flights --sample 12

    It compares what each day was built from with what it would be built from now, and reads no rows. Comments and
    descriptions do not count. A sample needs Spark. It changes nothing: sampled days stay stale.
    """
    application = Application.from_env()
    names = [application.dataset(dataset).name] if dataset else sorted(application.datasets)
    causes = causes_of(because)
    found = [application.staleness.of(name, causes, look=True) for name in names]
    # With all causes: days that data made stale are built again anyway.
    every = [application.staleness.of(name, look=True) for name in names] if sample and because else found
    samples = [application.stale_samples.of(one, sample, causes) for one in every] if sample else []
    if json:
        sampled = {one.dataset: one for one in samples if one.days}
        as_json([{**stale_as_json(one), "sampled": sampled.get(one.dataset)} for one in found])
        return
    show_stale(application, found)
    for one in found:
        if one.files:
            more = f" and {len(one.paths) - _MOST_FILES} more" if len(one.paths) > _MOST_FILES else ""
            say(f"{one.dataset}: not landed yet: {', '.join(map(visible, one.paths[:_MOST_FILES]))}{more}")
        if one.unknown:
            say(
                f"{one.dataset} {format_days(one.unknown, most=3)}: it is not known which code built these days; to compare their "
                f"rows with those of today's models: backfill diff-history --models HEAD --dataset {one.dataset} --partitions DAYS"
            )
        say_kept(one.kept.values())
    for taken in samples:
        _say_sample(taken)
    if not any(one.days or one.gone or one.unknown or one.kept or one.problems for one in found):
        all_clear = "nothing is stale: every published day is as it would be built today"
        say(f"nothing is stale because of {because}" if because else all_clear)


def keep(
    dataset: Annotated[str, typer.Argument(help="A dataset.")],
    days: Annotated[str, typer.Argument(metavar="DAYS", help=PARAMETERS["partitions"])],
    because: Annotated[
        str,
        typer.Option(
            metavar="CAUSE,…", help=f"What made them stale and does not matter: {', '.join(sorted(OF_CODE))}."
        ),
    ] = "",
    reason: Annotated[str, typer.Option(help="Why, for the history.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Take back all that was said about these days.")] = False,
) -> None:
    """Keep published days as they are although the code changed: they are stale no more, and nothing is built.

    backfill keep flights 2013-01-01..2013-03-31 --because code --reason "a join is written in another way"

    From now on they count as built by the code of now, until it changes again. See also: backfill stale --sample.
    """
    application, chosen = Application.from_env(), parse_days(days)
    application.dataset(dataset)
    if undo:
        taken = application.keeping.take_back(dataset, chosen, reason)
        say(
            f"{dataset}: {number_of(len(taken), 'day')} kept no more: {format_days(taken)}"
            if taken
            else "nothing to undo"
        )
        return
    refusals = application.keeping.keep(dataset, chosen, causes_of(because) if because else (), reason)
    say(f"{dataset} {format_days(day for day in chosen if day not in refusals)}: kept as they are")
    for text in grouped_by_text((day, f"{day}: {why}") for day, why in refusals.items()):
        say(f"not kept: {text}")


def causes_of(text: str) -> frozenset[StaleCause]:
    """The causes that `--because` names; all of them if it is empty.

    Raises:
        ArgumentError: there is no such cause.
    """
    named = [word.strip() for word in text.split(",")] if text else list(StaleCause)
    if unknown := [word for word in named if word not in {*StaleCause}]:
        raise ArgumentError(
            f"--because {visible(unknown[0])!r}: there is no such cause; choose some of: {', '.join(StaleCause)}"
        )
    return frozenset(StaleCause(word) for word in named)


def show_stale(application: Application, found: Iterable[StaleDays]) -> None:
    """Print the stale days of datasets by cause, how to bring them up to date, and what could not be compared."""
    stale = tuple(found)
    rows = [
        (one.dataset, cause.value, format_days(days, most=3), cause.words)
        for one in stale
        for cause, days in one.by_cause.items()
    ]
    if rows:
        title = "Stale: published days that would come out differently, or might"
        table(("dataset", "because of", "days", "what changed"), rows, title)
    for one in stale:
        out = application.relaunches.left_out(one.dataset, one.refreshable)
        if free := [day for day in one.refreshable if day not in out]:
            _say_next(application, one, free)
        if one.gone:
            say(
                f"{one.dataset} {format_days(one.gone, most=3)}: gone from the source table; they cannot be built again"
            )
        for causes in sorted({one.causes[day] for day in out}, key=sorted):
            same = [left for day, left in out.items() if one.causes[day] == causes]
            say_left_out(same, f"stale because of {in_words(sorted(causes))}")
    warn_of_problems(stale)


def warn_of_problems(found: Iterable[StaleDays]) -> None:
    """Say what could not be compared."""
    for one in found:
        for problem in one.problems:
            warn(f"{one.dataset} could not be compared: {problem}")


def say_kept(words: Iterable[KeptDay]) -> None:
    """Print who keeps which days as they are, or does so no more, and why."""
    said: dict[tuple[str, str, str, str, str], list[date]] = {}
    for one in words:
        what = f"kept as they are ({in_words(one.causes)})" if one.causes else "kept no more"
        about = (one.dataset, what, one.by, f"{one.at:%Y-%m-%d %H:%M}", visible(one.reason))
        said.setdefault(about, []).append(one.day)
    for (dataset, what, by, at, reason), days in said.items():
        say(f"{dataset} {format_days(days)}: {what}, by {by}, {at} UTC: {reason}")


def _say_sample(taken: StaleSample) -> None:
    """Print how many sampled days come out the same, and which do not."""
    if taken.problem:
        warn(f"{taken.dataset}: no day could be built again: {taken.problem}")
    if not taken.days:
        return
    sampled = f"{taken.dataset}: {len(taken.days)} of {number_of(taken.of, 'day')} built again by the code of now"
    if not taken.different:
        say(f"{sampled}: all have the same rows")
        return
    differ = "; ".join(f"{day} ({', '.join(columns)})" for day, columns in taken.different.items())
    say(f"{sampled}: {len(taken.days) - len(taken.different)} have the same rows; different: {differ}")


def _say_next(application: Application, stale: StaleDays, days: Sequence[date]) -> None:
    name, causes = stale.dataset, stale.by_cause
    because = "" if DATA.issuperset(causes) else f" --because {','.join(causes)}"
    looks = StaleCause.source in causes and application.dataset(name).lands_files
    see = f"; see: backfill deliveries {name}" if looks else ""
    say(f"{name} {format_days(days, most=3)}: bring up to date: backfill refresh {name}{because}{see}")
    if OF_CODE.issuperset(causes):
        word = f"backfill keep {name} DAYS --because {','.join(causes)} --reason …"
        say(f"{name}: if these rows are right as they are: backfill stale {name} --sample 12, then: {word}")
    if len(days) > application.dataset(name).chunk_days and len(day_range(days[0], days[-1])) == len(days):
        draft = f"backfill new --dataset {name} --start {days[0]} --end {days[-1]}"
        say(
            f"{name}: these are {len(days)} days; a campaign builds them step by step, with canaries and an approval: {draft}"
        )


def stale_as_json(found: StaleDays) -> dict[str, object]:
    """Stale days as `--json` prints them: all of them, and the days of each cause."""
    return {
        "dataset": found.dataset,
        "days": found.days,
        "causes": found.by_cause,
        "files": found.paths,
        "gone": found.gone,
        "unknown": found.unknown,
        "kept": [words_as_json(one) for one in found.kept.values()],
        "problems": found.problems,
    }


def words_as_json(one: KeptDay) -> dict[str, object]:
    """Somebody's word about a day as `--json` prints it; without causes, it takes back what was said before."""
    return {"day": one.day, "causes": one.causes, "by": one.by, "at": one.at, "reason": one.reason}


def say_left_out(found: Iterable[LeftOut], what: str) -> None:
    """Print what is wrong with days that refresh leaves out, and what to do about them instead."""
    grouped: dict[tuple[str, str, str, bool], list[date]] = {}
    for one in found:
        grouped.setdefault((one.target[0], one.resume, one.reason, one.is_early), []).append(one.target[1])
    for (name, resume, reason, is_early), days in grouped.items():
        if is_early:
            say(
                f"{name} {format_days(days)}: {what}. Its release group looks ahead to days that are not over (lookahead_days)"
            )
            continue
        if resume:
            hold = f", on hold: {reason}" if reason else ""
            say(f"{name} {format_days(days)} (in an open unit{hold}): {what}. See: backfill status {resume}")
            continue
        say(
            f"{name} {format_days(days)} (on hold: {reason}): {what}. Refresh would publish again what was rolled back; "
            f"launch a backfill of these days once it gives the right rows, or let refresh build them: "
            f"backfill hold lift {name} {days_argument(days)}"
        )
