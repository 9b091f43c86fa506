"""The steps of a campaign: one list, which `launch` follows and `explain` shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backfill_assets.core.days import format_days
from backfill_assets.core.text import format_duration, number_of
from backfill_assets.domain.plan import Days, PlannedDataset, Step, StepKind, batches, counted
from backfill_assets.domain.specification import Notice, Specification


def steps(
    specification: Specification, datasets: Sequence[PlannedDataset], canaries: Days, chunk_days: int
) -> tuple[Step, ...]:
    """The steps of a campaign from its launch on; those that the specification does not ask for are left out.

    `chunk_days` are the days of one run, which a batch never reaches over.
    """
    found = _steps(specification, datasets, canaries, chunk_days)
    return tuple(Step(number, kind, text, days) for number, (kind, text, days) in enumerate(found, 1))


def _steps(
    specification: Specification, datasets: Sequence[PlannedDataset], canaries: Days, chunk_days: int
) -> Iterator[tuple[StepKind, str, Days]]:
    days, chosen = datasets[0].days, frozenset(canaries)
    rest = tuple(day for day in days if day not in chosen)
    names = ", then ".join(d.name for d in datasets)
    notify = specification.notify
    if notify is not None and Notice.announced in notify.on:
        yield StepKind.announce, f"announce {specification.backfill_id} at the webhook in {notify.variable}", days
    yield StepKind.open_unit, f"open one release unit and claim {counted(days)} of {names}", days
    size = specification.execution.partitions_per_batch
    for kind, some in ((StepKind.canary, tuple(sorted(canaries))), (StepKind.rest, rest)):
        if some:
            count = len(datasets) * len(batches(some, size, chunk_days))
            yield kind, _building(kind, specification, datasets, (some, count)), some
    if specification.approval.required:
        who = " or ".join(specification.approval.by) or "anybody"
        yield StepKind.approve, f"wait until {who} has approved exactly the evidence of all days", days
    windows = " or ".join(str(window) for window in specification.publish_window)
    when = f", between {windows} ({specification.time_zone})" if windows else ""
    commits = "one commit" if len(datasets) == 1 else "one commit each"
    yield StepKind.publish, f"rehearse the rollback, then publish {counted(days)} of {names} in {commits}{when}", days
    kept = format_duration(specification.rollback.keep_for)
    yield StepKind.sign_off, f"wait for the sign-off; the release can be rolled back for {kept}", days
    yield StepKind.cleanup, "after sign-off and that time, remove the files that nothing refers to", days


def _building(
    kind: StepKind, specification: Specification, datasets: Sequence[PlannedDataset], work: tuple[Days, int]
) -> str:
    (days, count), execution = work, specification.execution
    layers = "; ".join(f"{', '.join(d.layers)} of {d.name}" for d in datasets)
    canary = kind is StepKind.canary
    which = (
        f"the canaries {format_days(days)}"
        if canary
        else f"{'all' if len(days) == len(datasets[0].days) else 'the other'} {counted(days)}"
    )
    most = f"at most {number_of(execution.partitions_per_batch, 'day')} each, at most {execution.max_concurrency} at a time"
    after = "stop there if a check fails, go on if none does" if canary else "stop if a check fails"
    return f"build and check {which} ({layers}) in {number_of(count, 'batch')}, {most}; {after}"
