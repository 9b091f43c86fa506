"""Commands that show datasets, units and metrics, and discard units."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Annotated, Any, TypedDict

import typer

from backfill_assets import operations
from backfill_assets.application import Application
from backfill_assets.cli.campaign_status import say_standing, standing_as_json
from backfill_assets.cli.output import (
    Json,
    as_json,
    campaign_of,
    finish,
    opened_dagster,
    opened_services,
    opened_shell,
    say,
    table,
    warn,
)
from backfill_assets.cli.stale import show_stale, stale_as_json
from backfill_assets.cli.watch import in_runs
from backfill_assets.control.approve import certificates_of
from backfill_assets.control.catch_up import CaughtUp
from backfill_assets.core.days import day_range, days_argument, format_days, grouped_by_text, runs_of_days
from backfill_assets.core.errors import BackfillError
from backfill_assets.core.evidence import DatasetDay, DayEvidence
from backfill_assets.core.text import number_of
from backfill_assets.core.unit import Hold, Unit, UnitState
from backfill_assets.evidence.contents import published_among
from backfill_assets.evidence.gaps import Gaps, gaps_of
from backfill_assets.evidence.readiness import Survey, explain_blockers, next_command
from backfill_assets.evidence.stale import StaleDays
from backfill_assets.report.metrics import CampaignMetrics, DatasetMetrics

_MOST_RANGES, _MOST_REASONS = 5, 10


class Overview(TypedDict):
    """What `backfill status` shows, or prints as JSON."""

    datasets: list[dict[str, object]]
    catch_up: list[CaughtUp]
    fill: list[str]
    stale: Sequence[StaleDays]
    gone: Mapping[str, Sequence[date]]
    holds: Mapping[str, Sequence[Hold]]
    units: list[dict[str, object]]
    not_loaded: list[str]


def status(
    name: Annotated[
        str, typer.Argument(help="A dataset, a unit or a campaign; without it, all datasets and open units.")
    ] = "",
    json: Json = False,
) -> None:
    """Show the state of datasets and units, what is missing, and what to do next; exit code 1 if a table cannot be read."""
    application = Application.from_env()
    if name in {campaign.id for campaign in application.ledger.campaigns()}:
        with opened_services(application, "") as services:
            standing = services.standings.of(name)
        standing_as_json(application, standing) if json else say_standing(application, standing)
        return
    if name and name not in {*application.datasets, *(problem.dataset for problem in application.catalog.problems)}:
        _one_unit(application, application.ledger.unit(name), json)
        return
    found, launches = overview(application, name), _launches()
    if json:
        as_json({**found, "stale": [stale_as_json(one) for one in found["stale"]], "launches": launches})
    else:
        _show(application, found)
    if launches and not json:
        rows = [(one["launch"], one["what"], in_runs(one["runs"])) for one in launches]
        table(("launch", "what", "state"), rows, "Under way in Dagster")
    raise typer.Exit(int(bool(found["not_loaded"])))


def overview(application: Application, dataset: str = "") -> Overview:
    """The state of one dataset and its open units, by default of all; of the others, if a table cannot be read.

    Raises:
        DatasetError: the dataset has problems.
        LayoutError, StorageError, PreconditionError: its table cannot be read.
    """
    wanted = [application.dataset(dataset).name] if dataset else sorted(application.datasets)
    holds = {name: application.ledger.holds(name) for name in wanted}
    found, unread = list[dict[str, object]](), list[str]()
    for name in wanted:
        try:
            found.append(_dataset(application, name, holds[name]))
        except (BackfillError, OSError) as error:
            if dataset:
                raise
            unread.append(f"the published table of {name}: {error}")
    names = [str(one["dataset"]) for one in found]
    gone = {name: days for name in names if (days := application.late_deliveries.gone(name))}
    units = application.ledger.units(dataset or None, states={UnitState.open})
    return {
        "datasets": found,
        "catch_up": _caught_up(application, dataset),
        "fill": _fill(application, [one for one in found if one["gaps"]]),
        "stale": [replace(one, gone=tuple(gone.get(one.dataset, ()))) for one in application.staleness.all(names)],
        "gone": gone,
        "holds": {name: held for name, held in holds.items() if held},
        "units": [_unit(application, u) for u in units],
        "not_loaded": [*(str(f) for f in application.catalog.problems if not dataset), *unread],
    }


def _launches() -> list[dict[str, Any]]:
    """The backfills under way in Dagster; none without an instance, and a warning if it cannot be opened."""
    if not os.environ.get("DAGSTER_HOME"):
        return []
    from backfill_assets.orchestration.backfills import under_way  # loads Dagster

    try:
        with opened_dagster() as instance:
            return under_way(instance)
    except Exception as error:  # noqa: BLE001 - each database driver has its own errors, and the rest needs no Dagster
        warn(f"launches are not shown: {error if isinstance(error, BackfillError) else type(error).__name__}")
        return []


def _show(application: Application, found: Overview) -> None:
    about_datasets = ("dataset", "published days", "watermark", "rows", "on hold", "version")
    rows = [tuple(v for k, v in d.items() if k not in {"gaps", "provisional", "state"}) for d in found["datasets"]]
    table(about_datasets, rows, "Datasets")
    covered = {name for caught_up in found["catch_up"] for name in caught_up.group}
    for one in found["datasets"]:
        for line in _remarks(one, covered):
            say(f"{one['dataset']}: {line}")
    for command in found["fill"]:
        say(f"fill gaps: {command}")
    for caught_up in found["catch_up"]:
        _show_caught_up(caught_up)
    show_stale(application, found["stale"])
    for name, days in found["gone"].items():
        if not any(one.gone for one in found["stale"] if one.dataset == name):
            say(f"{name} {format_days(days, most=3)}: gone from the source table; they cannot be built again")
    about_units = ("unit", "days", "ready", "not ready", "released by", "opened (UTC)", "by")
    table(about_units, [tuple(v for k, v in u.items() if k != "next") for u in found["units"]], "Open units")
    for one in found["units"]:
        say(f"{one['unit']}: next: {one['next']}")
    for problem in found["not_loaded"]:
        say(f"not loaded: {problem}")


def _remarks(one: Mapping[str, object], covered: Collection[str]) -> Iterator[str]:
    """What there is to say of a dataset; gaps of those that catch up (`covered`) are told with their progress."""
    if one["state"] == "draft":
        yield "a draft, which live runs leave out; once it is released, drop `state` from its dataset.yaml"
    elif one["gaps"] and one["dataset"] not in covered:
        yield f"due and not published: {one['gaps']}"
    if one["provisional"]:
        yield f"provisional: {one['provisional']}, until the days that they look ahead to have landed"


def _dataset(application: Application, name: str, holds: Sequence[Hold]) -> dict[str, object]:
    published = application.tables[name]
    active = published.active() if published.exists() else {}
    days = [day for day, files in active.items() if files]
    gaps, provisional = _gaps(application, name), _provisional(application, name, days)
    return {
        "dataset": name,
        "published_days": format_days(days, most=3),
        "watermark": max(days).isoformat() if days else "-",
        "rows": sum(f.rows or 0 for files in active.values() for f in files),
        "on_hold": format_days((h.target[1] for h in holds), most=3),
        "version": published.version(),
        "gaps": format_days(gaps, most=10) if gaps else "",
        "provisional": format_days(provisional, most=3) if provisional else "",
        "state": application.dataset(name).state,
    }


def _provisional(application: Application, name: str, published: Collection[date]) -> Sequence[date]:
    """The published days that wait for others; those that no longer do are stale."""
    found = application.basis.provisional(name, published)
    stale = {} if not found else application.late_deliveries.moved(name)
    return [day for day in sorted(found) if day not in stale]


def _fill(application: Application, lacking: Collection[Mapping[str, object]]) -> list[str]:
    """The commands that build the first gaps of release groups that do not catch up; nothing else keeps these days."""
    found = []
    names = {str(one["dataset"]) for one in lacking}
    for group in application.catalog.live_groups:
        if names.isdisjoint(group) or application.dataset(group[0]).live.catch_up is not None:
            continue
        try:
            wanted = {day for name in group for day in _gaps(application, name)}
            gaps = [gap for gap in Gaps(application.warehouse).of(group) if gap.day in wanted and not gap.waits_for]
            found += [f"backfill resume {unit}" for unit in sorted({gap.unit for gap in gaps if gap.unit})]
            gaps = [gap for gap in gaps if not gap.unit]
        except BackfillError as error:
            warn(f"{group[0]}: it is not known which gaps can be filled: {error}")
            continue
        days = [gap.day for gap in gaps if gap.datasets == gaps[0].datasets]
        if days:
            first = (day for a, b in runs_of_days(days)[:_MOST_RANGES] for day in day_range(a, b))
            found.append(f"backfill run {' '.join(gaps[0].datasets)} {days_argument(first)}")
    return found


def _caught_up(application: Application, dataset: str) -> list[CaughtUp]:
    """How far the release groups that catch up have come; a warning about one that cannot be looked at."""
    found = []
    for group in application.catch_ups.groups:
        if not dataset or dataset in group:
            try:
                found.append(application.catch_ups.state(group))
            except BackfillError as error:
                warn(f"{group[0]}: it is not known how far it has caught up: {error}")
    return found


def _show_caught_up(found: CaughtUp) -> None:
    names = ", ".join(found.group)
    say(f"{names}: caught up to {found.to}" if found.to else f"{names}: not caught up to any day yet")
    if found.unit:
        say(f"{names}: {found.unit}")
    if found.stops:
        say(f"{names}: catching up has stopped: {found.stops}")
    elif found.ready:
        left = f"{number_of(len(found.ready), 'due day')} left in {number_of(found.runs, 'backfill')}"
        say(f"{names}: {left}: {format_days(found.ready, most=3)}")
    if found.until and (found.ready or found.unit) and not found.stops:
        say(f"{names}: done at about {found.until:%Y-%m-%d %H:%M} UTC, at the pace of the last units")
    for text in grouped_by_text((day, f"{day}: {why}") for day, why in found.waiting.items())[:_MOST_REASONS]:
        say(f"{names}: waits: {text}")
    if len(found.waiting) > _MOST_REASONS:
        say(f"{names}: {number_of(len(found.waiting), 'day')} wait; all of them: backfill status --json")


def _gaps(application: Application, name: str) -> Sequence[date]:
    """The due days that are not published; days that were released without a row are published."""
    published = application.tables[name]
    active = published.active() if published.exists() else {}
    days = [day for day, files in active.items() if files]
    missing = gaps_of(application.dataset(name), days, application.clock.now())
    shown = published_among(application.ledger, application.tables[name], name, missing)
    return [day for day in missing if day not in shown]


def _unit(application: Application, unit: Unit) -> dict[str, object]:
    try:
        survey = application.publisher.survey(unit.id)
    except (BackfillError, OSError) as error:
        ready, not_ready, following = "not known", "", f"correct this: {error}"
    else:
        missing = {(f.dataset, f.day) for f in survey.blockers}
        ready, following = f"{len(unit.days) - len(missing)} of {len(unit.days)}", next_command(survey)
        not_ready = format_days((day for _, day in missing), most=3)
    return {
        "unit": unit.id,
        "days": "; ".join(f"{n} {format_days(d, most=3)}" for n, d in sorted(unit.targets.items())),
        "ready": ready,
        "not_ready": not_ready,
        "mode": "its own runs" if unit.mode.value == "auto" else "backfill publish",
        "opened_at": f"{unit.opened_at:%Y-%m-%d %H:%M}",
        "by": unit.by,
        "next": following,
    }


def _one_unit(application: Application, unit: Unit, json: bool) -> None:
    survey = application.publisher.survey(unit.id) if unit.state is UnitState.open else None
    evidence = survey.evidence if survey else application.ledger.evidence(unit.id)
    blockers = survey.blockers if survey else ()
    ready = survey.hash if survey and not blockers else ""
    reasons: dict[DatasetDay, set[str]] = {}
    for blocker in blockers:
        reasons.setdefault((blocker.dataset, blocker.day), set()).add(blocker.reason.value)
    rows = [_day(key, evidence.get(key), reasons.get(key, set())) for key in unit.days]
    certificates = certificates_of(application.ledger, unit.id, evidence)
    if json:
        as_json({"unit": unit, "evidence": ready, "days": rows, "blockers": blockers, "certificates": certificates})
        return
    say(f"{unit.id} is {unit.state.value}, opened {unit.opened_at:%Y-%m-%d %H:%M} UTC by {unit.by}")
    if unit.contract:
        say(f"expected change: {unit.contract.to_plain()}")
    table(("dataset", "days", "rows", "published rows", "checks passed", "state"), _by_state(rows))
    for certificate in certificates.values():
        say(f"certificate {certificate}")
    if survey:
        _what_next(survey)
        for line in operations.acceptance_lines(application, unit, survey.blockers):
            say(line)


def _by_state(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[object, ...]]:
    """One line for all days of a dataset in the same state, with the sum of their rows."""
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["dataset"], row["checks"], row["state"]), []).append(row)
    for (name, checks, state), same in grouped.items():
        counted = ([row[key] for row in same] for key in ("rows", "published_rows"))
        sums = ("-" if "-" in counts else sum(counts) for counts in counted)
        yield name, format_days(row["day"] for row in same), *sums, checks, state


def _day(key: DatasetDay, found: DayEvidence | None, reasons: Collection[str]) -> dict[str, object]:
    name, day = key
    passed = f"{sum(v.passed for v in found.verdicts)} of {len(found.verdicts)}" if found else "-"
    return {
        "dataset": name, "day": day,
        "rows": found.measured.shadow.rows if found else "-",
        "published_rows": found.measured.published.rows if found else "-",
        "checks": passed, "state": "; ".join(sorted(reasons)) or "good",
    }  # fmt: skip


def _what_next(survey: Survey) -> None:
    if survey.blockers:
        say(explain_blockers(survey.blockers))
        say(f"next: {next_command(survey)}   (or give it up: backfill discard {survey.unit.handle})")
    else:
        say(f"evidence {survey.hash}")
        say(f"next: {next_command(survey)}")


def discard(
    unit: Annotated[str, typer.Argument(help="A unit, as `backfill status` lists it, or a campaign.")],
    reason: Annotated[str, typer.Option(help="Why; kept in a campaign's journal.")] = "",
) -> None:
    """Give up an open unit: nothing of it is published, its days are free again, and the sweep deletes its files."""
    application = Application.from_env()
    if campaign := campaign_of(application, unit):
        with opened_shell(application) as shell:
            finish(operations.discard(shell, campaign, reason=reason))
    else:
        finish(operations.discarded(application.reconcile.discard(unit)))


_MOST_WINDOWS = 5
_OF_DATASETS = (
    "dataset", "published days", "watermark", "due", "lag", "duplicates per 1,000 rows", "mismatches",
    "s per partition p50 / p95", "last success (UTC)", "hours ago", "open units",
)  # fmt: skip
_OF_CAMPAIGNS = ("campaign", "state", "days", "batches left", "waits since (UTC)", "for", "hours waited")


def metrics(json: Json = False) -> None:
    """Show duplicates, durations, watermarks, mismatches and waits of all datasets and campaigns."""
    found = Application.from_env().metrics.all()
    if json:
        as_json(found.to_plain())
        return
    table(_OF_DATASETS, [_figures_of_dataset(one) for one in found.datasets], "Datasets")
    table(_OF_CAMPAIGNS, [_campaign(one) for one in found.campaigns], "Campaigns")
    for one in found.datasets:
        if gaps := [day for first, last in one.watermark.gaps for day in day_range(first, last)]:
            say(f"{one.dataset}: {number_of(len(gaps), 'due day')} not published: {format_days(gaps, most=10)}")
        for window in one.rollback_windows[:_MOST_WINDOWS]:
            days = number_of(window.days, "day")
            say(f"{one.dataset}: {window.release} ({days}) can be rolled back until {window.until:%Y-%m-%d %H:%M} UTC")
        if more := one.rollback_windows[_MOST_WINDOWS:]:
            say(
                f"{one.dataset}: and {number_of(len(more), 'older release')}; see: backfill releases {one.dataset} --most 0"
            )


def _figures_of_dataset(found: DatasetMetrics) -> tuple[object, ...]:
    mark, seconds, success = found.watermark, found.seconds_per_partition, found.last_success
    newest = f"{mark.newest or '-'}" + (f" (without gaps: {mark.gap_free})" if mark.gap_free != mark.newest else "")
    lag = "-" if mark.lag_days is None else f"{number_of(mark.lag_days, 'day')}, {mark.lag_hours:,} h"
    duplicates, days = found.duplicate_keys_per_1000_rows, number_of(found.doubled_days, "day")
    return (
        found.dataset, f"{found.published:,}", newest, mark.due or "-", lag,
        ("-" if duplicates is None else f"{duplicates:.3f}") + (f" (files doubled: {days})" if found.doubled_days else ""),
        f"{found.mismatches:,}",
        f"{seconds.p50:.2f} / {seconds.p95:.2f}" if seconds else "-",
        f"{success.at:%Y-%m-%d %H:%M}" if success else "-", f"{success.hours_ago:,}" if success else "-",
        ", ".join(found.open_units) or "-",
    )  # fmt: skip


def _campaign(found: CampaignMetrics) -> tuple[object, ...]:
    return (
        found.campaign, found.state, f"{found.days_done:,} of {found.days_total:,}", f"{found.batches_left:,}",
        f"{found.waiting_since:%Y-%m-%d %H:%M}" if found.waiting_since else "-", found.waiting_for or "-",
        found.waited_hours,
    )  # fmt: skip
