"""The pieces of the campaign's story that need no Spark: its models, its specification, its bands on real order lines."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import duckdb
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import backfill_assets
from backfill_assets.campaign.execution import parse_window
from backfill_assets.campaign.load import LoadedSpecification, load_specification, misfits, read_specification
from backfill_assets.campaign.specification import Specification
from backfill_assets.cli.app import app
from backfill_assets.core.days import day_range
from backfill_assets.core.expected_change import Change, parse_change
from backfill_assets.dataset.load import load_folder
from backfill_assets.storage.disk import OnDisk
from demo.campaign_figures import Sales, by_month, differing, published_sales
from demo.campaign_models import DATASET, UPSTREAM, Version, put_datasets, put_version
from demo.campaign_specification import (
    BANDS,
    CAMPAIGN,
    FIRST,
    KEEP_FOR,
    LAST,
    TOO_LONG,
    StoryError,
    completed,
    drafting,
    replaced,
    windows,
)
from demo.orders import generate_orders

SHIPPED = Path(backfill_assets.__file__).parent / "datasets"
BACKFILLS = Path(backfill_assets.__file__).parents[1] / "backfills"
NOON = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)
UTC = ZoneInfo("UTC")
# For each day: the value with the tax in it, the right value, and the value with the tax subtracted twice.
FIGURES = """
WITH lines AS (
    SELECT o_orderdate AS day, CAST(l_extendedprice * (1 - l_discount) AS DECIMAL(18, 4)) AS net, l_tax AS tax,
        l_quantity * ps_supplycost AS cost
    FROM '{0}/lineitem.parquet' JOIN '{0}/orders.parquet' ON l_orderkey = o_orderkey
    JOIN '{0}/partsupp.parquet' ON ps_partkey = l_partkey AND ps_suppkey = l_suppkey
    WHERE o_orderdate BETWEEN DATE '{1}' AND DATE '{2}'
)
SELECT day, sum(net), sum(net * (1 + tax)), sum(cost), count(*) FROM lines GROUP BY day ORDER BY day
"""


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dt.date, Decimal, Decimal, Decimal, int]]:
    tables = generate_orders(tmp_path_factory.mktemp("tpch"), 0.01)
    return duckdb.sql(FIGURES.format(tables, FIRST, LAST)).fetchall()


@pytest.fixture
def draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `backfill new` writes for the story."""
    monkeypatch.chdir(tmp_path)
    for name in ("LEDGER_URL", "DATASETS", "WAREHOUSE"):
        monkeypatch.delenv(f"BACKFILL_ASSETS_{name}", raising=False)
    monkeypatch.setenv("BACKFILL_ASSETS_STATE", str(tmp_path / "state"))
    done = CliRunner().invoke(app, list(drafting()))
    assert done.exit_code == 0, done.output
    return (tmp_path / "backfills" / f"{CAMPAIGN}.yaml").read_text(encoding="utf-8")


def changes(net: Decimal, gross: Decimal, cost: Decimal) -> dict[str, tuple[Decimal, Decimal]]:
    """Each metric with its old value, the tax in it, and its new value."""
    return {"net_revenue": (gross, net), "margin": (gross - cost, net - cost)}


def band(metric: str) -> Change:
    return parse_change(BANDS[metric], metric)


def parsed(text: str) -> Specification:
    loaded = read_specification(text, Path("story.yaml"))
    assert isinstance(loaded, LoadedSpecification), loaded
    return loaded.specification


def test_the_right_correction_lies_within_the_bands_on_every_day_of_real_order_lines(
    days: list[tuple[dt.date, Decimal, Decimal, Decimal, int]],
) -> None:
    assert len(days) == 546
    for day, net, gross, cost, _ in days:
        for metric, (old, new) in changes(net, gross, cost).items():
            assert band(metric).allows(old, new), (day, metric, (new - old) / old)


def test_the_bands_leave_little_room_on_real_order_lines(
    days: list[tuple[dt.date, Decimal, Decimal, Decimal, int]],
) -> None:
    for metric in BANDS:
        pairs = [changes(net, gross, cost)[metric] for _, net, gross, cost, _ in days]
        found = [(new - old) / old for old, new in pairs]
        low, high = band(metric).low, band(metric).high
        assert Decimal("-0.013") < low - min(found) <= 0
        assert 0 <= high - max(found) < Decimal("0.013")


def test_the_first_correction_leaves_the_bands_on_the_canaries(
    days: list[tuple[dt.date, Decimal, Decimal, Decimal, int]],
) -> None:
    largest = max(days, key=lambda row: row[4])
    outside = [
        day
        for day, net, gross, cost, _ in (days[0], days[-1], largest)
        if not all(band(m).allows(old, new) for m, (old, new) in changes(net - (gross - net), gross, cost).items())
    ]
    assert outside


def test_the_model_goes_through_three_versions_and_ends_as_it_is_shipped(tmp_path: Path) -> None:
    put_datasets(tmp_path)
    shipped = load_folder(SHIPPED).datasets[DATASET]
    seen = []
    for version in (Version.as_it_was, Version.first_correction, Version.today):
        difference = put_version(tmp_path, version)
        catalog = load_folder(tmp_path)
        assert catalog.problems == ()
        assert set(catalog.datasets) == {DATASET, UPSTREAM}
        seen.append(catalog.datasets[DATASET].code_version)
        # The names of its checks stay, so that Dagster need not reload the definitions.
        assert catalog.datasets[DATASET].dataset.checks.reconciliation.totals.keys() == (
            shipped.dataset.checks.reconciliation.totals.keys()
        )
        assert ("fact.sql" in difference) is (version is not Version.as_it_was)
    assert len(set(seen)) == 3
    assert seen[-1] == shipped.code_version


def test_the_completed_draft_asks_for_more_than_is_kept_and_then_fits_the_shipped_datasets(draft: str) -> None:
    asks = completed(draft, NOON)
    catalog = load_folder(SHIPPED)
    loaded = read_specification(asks, Path("story.yaml"))
    assert isinstance(loaded, LoadedSpecification)
    (problem,) = misfits(loaded, catalog, now=NOON, computes={})
    assert "rollback.keep_for = 90d" in str(problem)
    good = read_specification(replaced(asks, TOO_LONG, KEEP_FOR), Path("story.yaml"))
    assert isinstance(good, LoadedSpecification)
    assert misfits(good, catalog, now=NOON, computes={}) == ()


def test_the_story_asks_for_what_the_shipped_specification_asks_for(draft: str) -> None:
    story = parsed(replaced(completed(draft, NOON), TOO_LONG, KEEP_FOR))
    file = BACKFILLS / f"{CAMPAIGN}.yaml"
    shipped = load_specification(file)
    assert isinstance(shipped, LoadedSpecification), shipped
    for key in ("backfill_id", "owner", "source_range", "target", "reason", "scope", "publish_window", "rollback"):
        assert getattr(story, key) == getattr(shipped.specification, key), key
    metrics = {m: c for clause in shipped.specification.contract((DATASET,)).clauses for m, c in clause.metrics.items()}
    assert {metric: metrics[metric] for metric in BANDS} == {metric: band(metric) for metric in BANDS}


def test_a_draft_that_has_changed_is_refused(draft: str) -> None:
    with pytest.raises(StoryError, match="adapt the story"):
        completed(draft.replace("min_progress", "floor"), NOON)


@given(st.times())
def test_both_windows_are_closed_during_the_hour_of_the_story_at_any_time_of_day(time: dt.time) -> None:
    now = dt.datetime.combine(NOON.date(), time, dt.UTC)
    publish, blackout = map(parse_window, windows(now))
    for minutes in range(61):
        moment = now + dt.timedelta(minutes=minutes)
        assert not publish.contains(moment, UTC)
        assert not blackout.contains(moment, UTC)


def test_published_figures_are_added_up_exactly_by_day_and_month(tmp_path: Path) -> None:
    one, two = dt.date(1995, 1, 31), dt.date(1995, 2, 1)
    rows = duckdb.sql(
        "SELECT * FROM (VALUES (DATE '1995-01-31', 0.1000::DECIMAL(24,4), -1.5::DECIMAL(24,4)),"
        " (DATE '1995-01-31', 0.2000, 1.0), (DATE '1995-02-01', 7.0001, 2.0)) AS t(order_date, net_revenue, margin)"
    )
    write_deltalake(str(tmp_path / "sales"), rows.to_arrow_table())
    found = published_sales(OnDisk(tmp_path / "sales"))
    assert found == {one: Sales(Decimal("0.3"), Decimal("-0.5")), two: Sales(Decimal("7.0001"), Decimal(2))}
    assert by_month(found) == {"1995-01": found[one], "1995-02": found[two]}
    assert differing(found, {one: found[one]}, day_range(one, two)) == [two]
    assert differing(found, found, day_range(dt.date(1995, 1, 1), two)) == []
