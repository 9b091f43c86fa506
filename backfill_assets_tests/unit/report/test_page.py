"""The page of a review: it says what its JSON says, needs no network, and no value can break out of it."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import re
from dataclasses import replace
from decimal import Decimal
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from backfill_assets.core.days import ONE_DAY, day_range
from backfill_assets.core.errors import LayoutError
from backfill_assets.core.unit import UnitState
from backfill_assets.report import tables
from backfill_assets.report.charts import metric_chart, spread_chart
from backfill_assets.report.judgement import Outcome
from backfill_assets.report.metrics import (
    CampaignMetrics,
    DatasetMetrics,
    LastSuccess,
    Metrics,
    RollbackWindow,
    SecondsPerPartition,
    Watermark,
)
from backfill_assets.report.page import Reports, render_review
from backfill_assets.report.review import Review, as_plain, review_as_json
from backfill_assets.report.series import MOST_POINTS, Point, Series, thinned
from backfill_assets.report.tables import Sums, metrics_of, months_of
from backfill_assets_tests.unit.report.sample import NOW, START, Wish, sample_review

pytestmark = pytest.mark.slow

HOSTILE = "</script></code>\"'><img src=x onerror=alert(1)><script>alert(2)</script>&amp;{{ 7*7 }}"
MEGABYTE = 1_000_000
SMALL = Wish(days=40, wrong=(10, 11), unbooked=(12,), flaky=True)


class Page(HTMLParser):
    """What a browser would find: text outside of scripts, elements, and the contents of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._within = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag if tag in {"script", "style"} else ""
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._within = "" if tag == self._within else self._within

    def handle_data(self, data: str) -> None:
        if self._within == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif not self._within:
            self.text += data

    @property
    def charts(self) -> dict[str, Any]:
        return {str(a["id"]): json.loads(text) for a, text in self.scripts if a.get("type") == "application/json"}


@cache
def shown(wish: Wish) -> tuple[Review, str, Page]:
    review = sample_review(wish)
    html = render_review(review)
    return review, html, Page(html)


@pytest.mark.parametrize(
    ("wish", "outcome", "words"),
    [
        (Wish(days=40), Outcome.ready, "Ready to publish: 40 of 40 days pass all"),
        (Wish(days=40, wrong=(10,)), Outcome.not_ready, "Not ready: structural check change_row_count"),
        (Wish(days=40, unbooked=(12,)), Outcome.not_ready, "Not ready: golden check golden_finance_totals"),
        (Wish(days=240, seam_from=212), Outcome.warning, "aggregate check discount_seam of daily_sales warns"),
        (
            Wish(days=40, flaky=True),
            Outcome.warning,
            "certificate check recomputation of daily_sales warns on 1995-01-01",
        ),
        (Wish(days=40, state=UnitState.published), Outcome.published, "Published 2026-03-01 11:40 UTC by ada"),
        (Wish(days=40, state=UnitState.rolled_back), Outcome.rolled_back, "Rolled back 2026-03-01 12:00 UTC by ben"),
    ],
)
def test_the_verdict_is_on_top_in_one_sentence(wish: Wish, outcome: Outcome, words: str) -> None:
    review, _, page = shown(wish)
    assert review.judgement.outcome is outcome
    assert words in review.judgement.sentence
    assert page.text.index(review.judgement.sentence) < page.text.index("What was asked for")


def test_the_page_says_what_the_json_says() -> None:
    review, _, page = shown(SMALL)
    found = json.loads(review_as_json(review))
    text = re.sub(r"\s+", " ", page.text)
    assert found["judgement"]["sentence"] in text
    assert found["evidence"] in text
    for command in found["commands"]:
        assert command["text"] in text
    for reach in found["reaches"]:
        assert reach["words"] in text
    for concern in found["concerns"]:
        assert concern["found"] in text
        assert concern["day"] in text
    for change in found["largest"][0]["changes"]:
        assert tables.figure(Decimal(change["new"])) in text
    for entry in found["journal"]:
        assert entry["action"] in text
    recomputed = sum(len(proof.certificate.days) for proof in review.certificates)
    assert f"{recomputed} of {len(review.days)} days computed again" in text


def test_the_charts_draw_the_points_of_the_json() -> None:
    review, _, page = shown(SMALL)
    series = next(one for one in as_plain(review)["series"] if one["metric"] == "net_revenue")  # type: ignore[union-attr]
    drawn = [c["datasets"]["points"] for name, c in page.charts.items() if name.startswith("chart-metric-")]
    wanted = [(p["day"], round(float(p["new"]))) for p in series["points"] if p["new"] is not None]
    assert wanted in [[(row["d"], round(row["n"])) for row in rows if "n" in row] for rows in drawn]
    (calendar,) = [c for name, c in page.charts.items() if name.startswith("chart-calendar")]
    assert len(calendar["datasets"]["days"]) == SMALL.days


def test_tables_have_sums_of_old_new_and_source_with_their_difference_for_what_adds_up() -> None:
    review, html, _ = shown(SMALL)
    rows = {row.series.metric: row.sums for row in metrics_of(review.series)}
    revenue = next(one for one in review.series if one.metric == "net_revenue")
    inside = [point for point in revenue.points if point.inside]
    old, new = sum(p.old or 0 for p in inside), sum(p.new or 0 for p in inside)
    assert rows["net_revenue"] == Sums(Decimal(old), Decimal(new))
    assert f'<td class="n">{old:,.0f}</td><td class="n">{new:,.0f}</td><td class="n">{new - old:+,.0f}</td>' in html
    assert rows["row_count"].source == sum(p.source or 0 for p in review.series[0].points)
    assert rows["p50_net_revenue"] == rows["distinct_store"] == Sums()
    months = months_of(revenue)
    assert sum(month.sums.new or 0 for month in months) == new
    for month in months:
        assert f'<td class="n">{month.sums.old:,.0f}</td>' in html


def test_a_sum_that_is_known_for_some_days_only_or_is_no_number_has_no_difference() -> None:
    def sums(*points: Point) -> Sums:
        return metrics_of([Series("trips", "fare", None, points, adds_up=True)])[0].sums

    one, two = Decimal(1), Decimal(2)
    assert sums(Point(START, one, two, two), Point(START, one, two)).source is None
    assert sums(Point(START, None, two, two)).delta is None
    assert sums(Point(START, Decimal("inf"), two), Point(START, Decimal("-inf"), two)).delta is None


def test_a_point_shows_its_source_and_its_difference() -> None:
    point = Point(START, Decimal(10), Decimal(7), Decimal(8))
    spec = metric_chart(Series("trips", "fare", None, (point,)), ())
    (row,) = spec["datasets"]["points"]
    assert (row["x"], row["s"]) == (-3, 8)
    assert {"delta", "source"} <= {tip["title"] for tip in spec["layer"][-1]["encoding"]["tooltip"]}


def test_a_metric_that_comes_from_nothing_counts_as_moved() -> None:
    (row,) = metrics_of([Series("trips", "refunds", None, (Point(START, Decimal(0), Decimal(9)),))])
    assert row.moved


def test_nothing_of_the_page_is_loaded_from_anywhere() -> None:
    _, html, page = shown(SMALL)
    loading = {"src", "srcset", "data", "poster", "action", "formaction", "background", "ping"}
    assert [(tag, a) for tag, a in page.tags if loading & set(a)] == []
    assert [a for tag, a in page.tags if tag in {"link", "iframe", "object", "embed", "base", "img"}] == []
    assert {str(a["href"]) for tag, a in page.tags if tag == "a" and not str(a["href"]).startswith("#")} == {
        "review.json"
    }
    style = html[html.index("<style>") : html.index("</style>")]
    assert re.findall(r"url\(|@import", style) == []
    assert "http" not in json.dumps(page.charts)


def test_only_the_scripts_that_were_written_for_it_may_run() -> None:
    _, _, page = shown(SMALL)
    policy = next(str(a["content"]) for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    running = [text for a, text in page.scripts if "type" not in a]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running]
    assert len(hashes) == 2
    assert all(f"'sha256-{one}'" in policy for one in hashes)
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
    assert policy.startswith("default-src 'none'")


def test_hostile_words_stay_words() -> None:
    _, html, page = shown(replace(SMALL, reason=HOSTILE, value=HOSTILE))
    assert HOSTILE in page.text
    assert [tag for tag, _ in page.tags if tag == "img"] == []
    assert len([a for a, _ in page.scripts if "type" not in a]) == 2
    assert page.charts["chart-timeline"]["datasets"]["events"][0]["w"] == HOSTILE
    assert "alert(2)</script>" not in html


def test_every_chart_has_a_description_and_a_table_that_says_the_same() -> None:
    _, html, page = shown(SMALL)
    charts = [a for tag, a in page.tags if "data-chart" in a]
    assert len(charts) == len(page.charts) > 5
    assert all(a["role"] == "img" and a["aria-label"] for a in charts)
    assert all(re.search(r"<table", html[html.index(f'data-chart="{a["data-chart"]}"') :]) for a in charts)
    assert all("scope" in a for tag, a in page.tags if tag == "th")


def test_the_keyboard_finds_every_part() -> None:
    _, _, page = shown(SMALL)
    ids = [str(a["id"]) for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    targets = {str(a["href"])[1:] for tag, a in page.tags if tag == "a" and str(a.get("href")).startswith("#")}
    assert targets <= set(ids)
    assert next(a["href"] for tag, a in page.tags if tag == "a") == "#main"


@pytest.mark.slow
def test_two_thousand_days_fit_into_a_few_megabytes_and_tables_say_what_is_left_out() -> None:
    review, html, page = shown(Wish(days=2000, wrong=tuple(range(0, 2000, 9))))
    assert len(html.encode()) < 4 * MEGABYTE
    assert len(review.days) == 2000
    assert "more concerns; review.json has all of them" in re.sub(r"\s+", " ", page.text)
    assert len([tag for tag, _ in page.tags if tag == "tr"]) < 2000


def test_more_days_than_a_chart_can_show_become_means_of_weeks() -> None:
    days = day_range(START, START + dt.timedelta(days=MOST_POINTS + 100))
    series = Series("trips", "fare", None, tuple(Point(day, Decimal(1), Decimal(n)) for n, day in enumerate(days)))
    points = thinned(series.points)
    assert len(points) < MOST_POINTS / 6
    assert [p.day for p in points] == sorted(p.day for p in points)
    assert len(metric_chart(series, ())["datasets"]["points"]) == len(points)


def test_figures_that_are_no_numbers_are_not_drawn_and_do_not_stop_the_page() -> None:
    review = sample_review(Wish(days=20))
    points = [
        replace(p, new=Decimal("NaN"), old=Decimal("Infinity"), change=None, passed=False)
        for p in review.series[0].points
    ]
    broken = replace(review.series[0], points=tuple(points))
    review = replace(review, series=(broken, *review.series[1:]))
    assert [row.keys() & {"o", "n", "v"} for row in metric_chart(broken, ())["datasets"]["points"]] == [set()] * len(
        points
    )
    assert spread_chart(broken) is None
    assert '"NaN"' in review_as_json(review)
    assert "<h1>" in render_review(review)


def test_a_review_without_anything_built_has_a_page(tmp_path: Path) -> None:
    review = sample_review(Wish(days=3))
    bare = replace(
        review, series=(), seams=(), concerns=(), rows=(), largest=(), attributions=(), certificates=(), golden=(), batches=(),
        journal=(), reaches=(), releases=(), commands=(), evidence="",
    )  # fmt: skip
    page = Page(Reports(tmp_path).write(bare).read_text())
    assert "There is none for this evidence" in page.text
    assert "not checked" in page.text


def test_page_and_json_are_complete_in_the_units_folder(tmp_path: Path) -> None:
    review = sample_review(Wish(days=5))
    reports = Reports(tmp_path / "reports", "https://reports.example.org/all/")
    path = reports.write(review)
    assert path == tmp_path / "reports" / review.unit / "index.html"
    assert json.loads((path.parent / "review.json").read_text()) == json.loads(review_as_json(review))
    assert sorted(p.name for p in path.parent.iterdir()) == ["index.html", "review.json"]
    assert reports.address(path) == f"https://reports.example.org/all/{review.unit}/index.html"
    assert Reports(tmp_path / "reports").address(path) == ""
    elsewhere = reports.write(review, tmp_path / "elsewhere")
    assert elsewhere.parent.name == "elsewhere"
    assert reports.address(elsewhere) == ""


def test_a_folder_that_cannot_be_written_to_and_a_unit_outside_of_it_are_refused(tmp_path: Path) -> None:
    review = sample_review(Wish(days=3))
    (tmp_path / "file").write_text("")
    with pytest.raises(LayoutError, match=r"cannot be written to .*--out"):
        Reports(tmp_path / "file").write(review)
    with pytest.raises(LayoutError, match="cannot be the name of a folder"):
        Reports(tmp_path).write(replace(review, unit="../../etc"))


def test_the_index_of_nothing_is_a_page_too(tmp_path: Path) -> None:
    page = Page(Reports(tmp_path).write_index(Metrics(NOW, (), ()), {"u_1": "u_1"}).read_text())
    assert "No dataset is loaded." in page.text
    assert page.scripts == []
    policy = next(str(a["content"]) for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert "script-src 'none';" in policy


def test_the_index_shows_every_figure_of_datasets_and_campaigns_and_leads_to_their_reports(tmp_path: Path) -> None:
    day = NOW.date()
    sales = DatasetMetrics(
        "daily_sales", 1234, 98765, 3, 2, 1, Watermark(day, day - ONE_DAY, day + ONE_DAY, 1, 30.0),
        SecondsPerPartition(0.25, 0.75, 40), LastSuccess("r_1", NOW, 2.0),
        (RollbackWindow("r_1", 547, day - ONE_DAY, day, NOW),), ("tax-fix",),
    )  # fmt: skip
    fresh = DatasetMetrics("new", 0, 0, 0, 0, 0, Watermark(None, None, None, None, None), None, None, (), ())
    campaign = CampaignMetrics(
        "tax-fix", "running", ("daily_sales",), 100, 547, 5, NOW, "live run at work", 1.5, gave_up=2
    )
    reports = Reports(tmp_path)
    reports.write(replace(sample_review(Wish(days=3)), unit="u_1"))
    units = {"r_1": "u_1", "tax-fix": "u_1"}
    page = Page(reports.write_index(Metrics(NOW, (sales, fresh), (campaign,)), units).read_text())
    links = [attributes.get("href") for tag, attributes in page.tags if tag == "a"]
    assert links.count("u_1/index.html") >= 2
    for observed in (
        "1 day late",
        "nothing published",
        "0.25 s / 0.75 s",
        "100 of 547",
        "live run at work",
        "547 from",
    ):
        assert observed in page.text
    assert f"without gaps: {day - ONE_DAY}" in page.text
