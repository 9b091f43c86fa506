"""A review of any size and variety, made of evidence that the real judge has judged."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from backfill_assets.campaign.plan import Estimate, Price
from backfill_assets.campaign.state import Action, JournalEntry
from backfill_assets.core.certificate import Certificate, Disagreement, Prints, Recomputation
from backfill_assets.core.days import day_range, slices
from backfill_assets.core.evidence import Basis, DatasetDay, DayEvidence, unit_hash
from backfill_assets.core.expected_change import Contract, parse_contract
from backfill_assets.core.measured import (
    Compared,
    DayComparison,
    DayMeasurement,
    Figures,
    GoldenCounts,
    RowChange,
    RowCounts,
    Share,
    Side,
    SourceState,
)
from backfill_assets.core.release import DataFile
from backfill_assets.core.unit import Attempt, AttemptState, ReleaseMode, Unit, UnitState
from backfill_assets.dataset.checks import checks_of
from backfill_assets.dataset.definition import Dataset
from backfill_assets.evidence.readiness import Command
from backfill_assets.pipeline.judge import judge
from backfill_assets.report.causes import Reach, attribute
from backfill_assets.report.concerns import of_certificate, of_seams, of_verdicts
from backfill_assets.report.facts import (
    Made,
    ReviewSubject,
    agreements,
    all_seams,
    day_states,
    effort_of,
    largest_changes,
    row_totals,
)
from backfill_assets.report.judgement import Grounds, judge_unit
from backfill_assets.report.review import Proof, Review
from backfill_assets.report.series import DayState, NeighbouringDays, series_of
from backfill_assets_tests.harness.specifications import PLAIN

START = dt.date(1995, 1, 1)
NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
SALES = Dataset.model_validate(
    {
        "name": "daily_sales",
        "partition_column": "day",
        "start": "1994-01-01",
        "key": ["day", "store"],
        "columns": {"day": {"type": "date"}, "store": {"type": "string"}}
        | {name: {"type": "decimal(20,2)"} for name in ("gross_revenue", "net_revenue", "discount")},
        "source": {"format": "csv", "path": "{day}.csv", "columns": {"store": "string"}},
        "measures": {
            "gross_revenue": {"tolerance": "0.1%"},
            "net_revenue": {"percentiles": True},
            "discount": {"tolerance": "10%"},
            "store": {"sum": False, "distinct": True},
        },
        "golden": {"finance_totals": {"sql": "SELECT 1 AS day", "ours": "SELECT 1 AS day", "key": ["day"]}},
        "checks": {"reconciliation": {"metrics": ["row_count"]}},
    }
)
PROMISED = parse_contract(
    dict.fromkeys(("net_revenue", "p05_net_revenue", "p50_net_revenue", "p95_net_revenue"), "-1.5% to -0.8%"),
    ("net_revenue", "p05_net_revenue", "p50_net_revenue", "p95_net_revenue"),
    dataset="daily_sales",
)
REASON = "Tax is no revenue: net revenue must leave tax out"


@dataclass(frozen=True)
class Wish:
    """What the sample should be like: `wrong` days lose rows and revenue, finance has other figures of `unbooked` ones."""

    days: int = 547
    wrong: Sequence[int] = ()
    unbooked: Sequence[int] = ()
    state: UnitState = UnitState.open
    seam_from: int | None = None
    flaky: bool = False
    reason: str = REASON
    value: str = "B"


def sample_review(wish: Wish | None = None) -> Review:
    """A review of a campaign over a daily table with weeks, growth and noise."""
    wish = wish or Wish()
    days = day_range(START, START + dt.timedelta(days=wish.days - 1))
    unit = Unit(
        "u_20260301_090000_ab12cd", "campaign:tax-fix-2026", NOW - dt.timedelta(hours=5), "ada", {"daily_sales": days},
        ReleaseMode.manual, PROMISED, wish.state,
    )  # fmt: skip
    evidence = {("daily_sales", day): _evidence(wish, unit.id, number, day) for number, day in enumerate(days)}
    return _review(wish, unit, evidence)


def _review(wish: Wish, unit: Unit, evidence: Mapping[DatasetDay, DayEvidence]) -> Review:
    days = unit.targets["daily_sales"]
    mine = {day: one for (_, day), one in evidence.items()}
    outside = {
        d: _figures(wish, -n, d, old=True)
        for n, d in enumerate(day_range(START - dt.timedelta(60), START - dt.timedelta(1)))
    }
    live = days[-1] + dt.timedelta(days=1)
    outside |= {live: _figures(wish, 7, live, old=True)}
    series = series_of(
        SALES, mine, Contract(PROMISED.clauses), NeighbouringDays(outside, frozenset({live, days[len(days) // 2]}))
    )
    seams, proof = all_seams(series, {}), _proof(wish, days[:3])
    undone = dict.fromkeys(evidence, DayState.rolled_back) if unit.state is UnitState.rolled_back else {}
    states = day_states(unit, evidence, (), undone, frozenset({("daily_sales", days[len(days) // 2])}))
    concerns = (
        *of_verdicts(evidence, {"daily_sales": checks_of(SALES)}),
        *of_seams(seams),
        *of_certificate(proof.certificate, blocks=False),
    )
    comparisons = [_comparison(wish, number, day) for number, day in enumerate(days)]
    whole = unit_hash(evidence.values())
    reach = Reach(
        "daily_sales", "", len(days), len(days), len(days), 60, 60, (), True,
        f"Publishing daily_sales brings {len(days)} files for {len(days)} days in place of {len(days)} files: exactly the "
        "files that these days have now. The 60 files of the 60 other days are not touched.",
    )  # fmt: skip
    made = _made(unit)
    pending = whole if unit.state is UnitState.open and not any(f.blocks for f in concerns) else ""
    grounds = Grounds(
        unit.state,
        states,
        concerns,
        series,
        (reach,),
        made,
        row_totals(evidence),
        pending,
        {"daily_sales": len(proof.certificate.days)} if proof.passed else {},
        int(not wish.unbooked),
    )
    attempts = _attempts(unit.id, days)
    effort = effort_of(None, attempts, NOW, Price(Decimal("4.20"), "EUR"))
    return Review(
        unit=unit.id, made_at=NOW, state=unit.state.value, judgement=judge_unit(grounds), subject=_subject(wish, unit),
        evidence=whole, pending=pending, concerns=concerns, series=series, seams=seams, days=states,
        rows=row_totals(evidence), largest=largest_changes(comparisons), attributions=attribute(comparisons),
        certificates=(proof,), golden=agreements(evidence),
        effort=replace(effort, estimate=Estimate(len(days) * 500, 10**9, len(days) // 31 + 1, 900.0, "1.05 EUR")),
        batches=attempts, journal=_journal(wish), reaches=(reach,), releases=made,
        commands=(
            Command("approve", f"backfill approve tax-fix-2026 --evidence {whole}"),
            Command("publish", "backfill publish tax-fix-2026"),
            Command("roll back, once it is published", "backfill rollback RELEASE --reason '…'"),
        ),
    )  # fmt: skip


def _figures(wish: Wish, number: int, day: dt.date, *, old: bool) -> Figures:
    rng = random.Random(f"{day}")  # noqa: S311  # the same sample every time
    level = 1_000_000 * (1 + number / 4000) * (1 + 0.15 * math.sin(day.weekday())) * (1 + 0.03 * rng.random())
    seam = wish.seam_from is not None and number >= wish.seam_from and not old
    share = 1.0 if old else 0.986 + 0.005 * rng.random() - (0.2 if number in wish.wrong else 0)
    rows = 500 + day.weekday() * 10 - (0 if old or number not in wish.wrong else 60)
    net = level * share
    discount = level * 0.05 * (1.09 if seam else 1)
    figures = {
        "row_count": rows, "gross_revenue": level * 1.1, "net_revenue": net, "p05_net_revenue": net / 900,
        "p50_net_revenue": net / 500, "p95_net_revenue": net / 200, "discount": discount, "distinct_store": 50,
    }  # fmt: skip
    return {name: Decimal(f"{value:.2f}") for name, value in figures.items()}


def _evidence(wish: Wish, unit: str, number: int, day: dt.date) -> DayEvidence:
    old, new = (_figures(wish, number, day, old=side) for side in (True, False))
    staging = Side({"row_count": old["row_count"]})
    measured = DayMeasurement(
        day, Side(new, {}, f"n{number}"), Side(old, {}, f"o{number}"), staging, SourceState(1, 500)
    )
    changed = int(new["row_count"] or 0)
    gone = 60 if number in wish.wrong else 0
    booked = GoldenCounts(different=1) if number in wish.unbooked else GoldenCounts(equal=1)
    rows = RowCounts(removed=gone, changed=changed, columns={"net_revenue": changed})
    compared = Compared(rows, golden={"finance_totals": booked})
    return DayEvidence(
        unit, number // 31 + 1, "daily_sales", day, Basis("i", "c0de", PROMISED.hash, "p"),
        (DataFile(f"_shadow/{unit}/1/day={day}/part-0.parquet", 20_000, day, 0),), measured,
        judge(SALES, measured, PROMISED, compared), NOW, compared,
    )  # fmt: skip


def _comparison(wish: Wish, number: int, day: dt.date) -> DayComparison:
    changes = tuple(
        RowChange(
            "net_revenue",
            day,
            {"day": str(day), "store": f"Store {s}"},
            Decimal(9000 + s),
            Decimal(8900 + s - number % 7),
        )
        for s in range(3)
    )
    moved = Decimal(10_000)
    shares = (
        Share("tax class", wish.value, 240, 250, {"net_revenue": moved * 97 / 100}),
        Share("tax class", "A", 10, 250, {"net_revenue": moved * 3 / 100}),
        Share("store", "Store 1", 10, 20, {"net_revenue": moved / 10}),
    )
    return DayComparison("daily_sales", day, number // 31 + 1, 250, 500, {"net_revenue": moved}, changes, shares)


def _proof(wish: Wish, days: Sequence[dt.date]) -> Proof:
    ways = (Recomputation("once more", {}), Recomputation("other shuffle", {"spark.sql.shuffle.partitions": "7"}))
    prints = {
        way.name: {day: Prints(500, 500, {"net_revenue": "ab12"}, {"net_revenue": "1"}) for day in days} for way in ways
    }
    row = {"store": "Store 1", "net_revenue: old": "9.10", "net_revenue: new": "9.11"}
    differing = (Disagreement(days[0], "other shuffle", ("net_revenue",), (row,)),) if wish.flaky else ()
    made = Certificate(
        "c_1",
        "daily_sales",
        "u",
        tuple(days),
        "c0de",
        dict.fromkeys(days, "i"),
        ways,
        prints,
        differing,
        (),
        NOW,
        "ada",
    )
    return Proof(made, made.hash, made.passed)


def _attempts(unit: str, days: Sequence[dt.date]) -> tuple[Attempt, ...]:
    begin, found = NOW - dt.timedelta(hours=5), []
    for number, some in enumerate(slices(days, 31), 1):
        waited = dt.timedelta(minutes=8) if number % 5 == 0 else dt.timedelta()
        start = begin + dt.timedelta(minutes=number // 2 * 4) + waited
        end = start + dt.timedelta(minutes=3)
        state = AttemptState.failed if number == 3 else AttemptState.done
        found.append(
            Attempt(
                number,
                unit,
                "daily_sales",
                some,
                f"run{number}",
                "w",
                state,
                start,
                end,
                end,
                15_000,
                2_000_000,
                waited,
            )
        )
        begin += waited
    return tuple(found)


def _made(unit: Unit) -> tuple[Made, ...]:
    at = NOW - dt.timedelta(minutes=20)
    count = len(unit.targets["daily_sales"])
    one = Made("r_1", "publish", "daily_sales", at, "ada", 7, count, "FIN-2841", "anna as finance-controller", "", "e")
    back = Made("r_2", "rollback", "daily_sales", NOW, "ben", 8, count, "finance saw a gap", "", "r_1", "e")
    match unit.state:
        case UnitState.published:
            return (one,)
        case UnitState.rolled_back:
            return (back, one)
        case _:
            return ()


def _subject(wish: Wish, unit: Unit) -> ReviewSubject:
    specification = PLAIN | {
        "target": {"dataset": "daily_sales"},
        "source_range": {"start": str(START), "end": "1996-06-30"},
        "reason": {"issue": "FIN-2841", "change": wish.reason},
    }
    contract = tuple(unit.contract.to_plain())
    return ReviewSubject(
        "tax-fix-2026",
        unit.opened_by,
        unit.opened_at,
        "ada",
        unit.targets,
        contract,
        specification,
        "backfills/tax-fix.yaml",
    )


def _journal(wish: Wish) -> tuple[JournalEntry, ...]:
    def entry(minutes: int, action: Action, reason: str = "") -> JournalEntry:
        return JournalEntry("tax-fix-2026", NOW - dt.timedelta(minutes=minutes), "ada", action, reason)

    return (
        entry(300, Action.launched, wish.reason),
        entry(200, Action.waits, "live runs are running (3fa9c211)"),
        entry(150, Action.paused, "lunch"),
        entry(120, Action.resumed),
        entry(100, Action.validated),
    )
