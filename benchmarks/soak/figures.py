"""The figures of a soak as Markdown, to be read directly or put into the documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from benchmarks.soak.actions import Act, Fault
from benchmarks.soak.found import Found
from benchmarks.soak.trend import Trend

_SHOWN: Final = 5
_MEGA: Final = 1_000_000
_COMMANDS: Final = (Act.pause, Act.stop, Act.resume, Act.publish, Act.discard, Act.rollback)


def figures(found: Found, minutes: float, seed: int) -> str:
    """Everything that was done, what was injected, what was found, and whether the promises were kept."""
    tables = (
        _table(("figure", "value"), _work(found, minutes, seed)),
        _table(("long-lived process", "samples", "memory", "open files", ""), map(_row, found.trends)),
        # A soak without a verdict must not look like one without findings.
        _table(("promise: none of these", "found"), [(name, len(bad)) for name, bad in found.promises.items()])
        if found.ended
        else [],
    )
    bad = [f"- {name}: {line}" for name, lines in found.promises.items() for line in lines[:_SHOWN]]
    return "\n".join(
        [*(line for table in tables for line in (*table, "")), *bad, *([""] if bad else []), verdict(found)]
    )


def verdict(found: Found) -> str:
    """One sentence."""
    if not found.ended:
        return "The soak did NOT come to its end: no verdict; its folder was left for a look."
    return "Every promise was kept." if found.kept else "Promises were BROKEN; the folder was left for a look."


def _work(found: Found, minutes: float, seed: int) -> Iterator[tuple[str, object]]:
    yield "minutes of acts and kills, seed", f"{minutes:g}, {seed}"
    launches = (Act.live, Act.late, Act.again, Act.backfill, Act.campaign, Act.relaunch)
    yield "launches (refused at once)", _times(found, launches)
    yield "commands (refused or killed)", _times(found, _COMMANDS)
    kills = [f"{found.faults[fault.value]} {fault.value}" for fault in Fault if found.faults[fault.value]]
    yield "kill -9", f"{found.faults.total()}: {', '.join(kills)}" if kills else "0"
    if found.ended:
        yield from _judged(found)


def _judged(found: Found) -> Iterator[tuple[str, object]]:
    yield "minutes until all was settled after that", f"{found.settled_seconds / 60:.1f}"
    yield "days, deliveries, rows delivered", f"{found.days}, {found.deliveries}, {found.rows:,}"
    yield "publications, rollbacks", f"{found.publications}, {found.rollbacks}"
    yield "versions of the table", found.versions
    yield "polls per reader", ", ".join(f"{kind} {count:,}" for kind, count in found.polls.items())
    if found.away.total():
        yield "looks that found the Spark server killed", found.away.total()
    yield "lost rows, mixed reads", f"{len(found.lost)}, {len(found.mixed)}"
    yield "findings of the doctor: repaired, left", f"{len(found.repaired)}, {len(found.disagreements)}"


def _times(found: Found, acts: Iterable[Act]) -> str:
    done = [(act.value, found.acts[act.value], found.refused[act.value]) for act in acts if found.acts[act.value]]
    return ", ".join(f"{count} {name}" + (f" ({refused})" if refused else "") for name, count, refused in done)


def _row(of: Trend) -> tuple[object, ...]:
    memory = f"{of.mean_rss / _MEGA:.0f} MB, {of.rss_per_minute / _MEGA:+.2f} MB/min"
    files = f"{of.mean_files:.0f}, {of.files_per_minute:+.2f}/min"
    word = ("flat" if of.flat else "GROWS") if of.judged else "too short to say"
    return (of.role, f"{of.seconds:.0f} s", memory, files, word)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
