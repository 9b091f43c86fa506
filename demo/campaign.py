"""The story of a campaign over 18 months of daily sales, from the first version of its specification to its clean-up."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backfill_assets.application import Application
from backfill_assets.cli.output import say, table
from backfill_assets.core.days import ONE_DAY, day_range, format_days
from backfill_assets.storage.disk import path_of
from demo.campaign_figures import Sales, by_month, differing, published_sales
from demo.campaign_models import DATASET, UPSTREAM, Version, difference, put_version
from demo.campaign_specification import (
    APPROVER,
    CAMPAIGN,
    FIRST,
    KEEP_FOR,
    LAST,
    TOO_LONG,
    StoryError,
    completed,
    drafting,
    replaced,
)
from demo.campaign_stage import Stage, narrate
from demo.campaign_work import build_history, pause_on_the_way, run_live_day
from demo.daemon import running_daemon
from demo.orders import generate_orders, land_orders
from demo.run import Watch

LIVE = LAST + ONE_DAY
"""The day that the live pipeline publishes in between."""
_DAYS = day_range(FIRST, LAST)
_WRONG_HASH = "0" * 64


@dataclass
class _Story:
    """What the story remembers: the stage, and the figures that readers saw before."""

    stage: Stage
    tables: Path
    watch: Watch = field(default_factory=Watch)
    before: Mapping[dt.date, Sales] = field(default_factory=dict)

    def published(self, dataset: str = DATASET) -> Mapping[dt.date, Sales]:
        return published_sales(self.stage.application.layout.published_path(dataset))

    def require(self, expected: Mapping[dt.date, Sales], days: tuple[dt.date, ...], what: str) -> None:
        wrong = differing(self.published(), expected, days)
        if wrong:
            raise StoryError(f"{DATASET} {format_days(wrong, most=5)}: readers should see {what}, and do not")
        shown = f"all {len(days)} days show" if len(days) > 1 else f"{days[0]} shows"
        say(f"read back from the published table: {shown} {what}")

    @property
    def evidence(self) -> str:
        """The evidence hash that waits for an approval."""
        return str(json.loads(self.stage.quietly("status", CAMPAIGN, "--json"))["evidence"])

    @property
    def release(self) -> str:
        """The newest release that the campaign made."""
        return self.stage.application.ledger.releases(DATASET)[0].manifest.release


def run_campaign_demo(scale: float) -> None:
    """Play the story at a scale factor of TPC-H (0.01: 13,000 order lines in its 547 days); begins from scratch each time.

    Raises:
        StoryError: a command ended in an unexpected way, or the published figures are not the expected ones.
    """
    stage = Stage(Application.from_env().settings.state / "demo-campaign")
    stage.set_up()
    story = _Story(stage, stage.folder / "tables")
    with story.watch.stage("1. Deliver order lines day by day"):
        story.tables = generate_orders(stage.folder / "tables", scale)
        report = land_orders(path_of(stage.application.settings.sources), story.tables, FIRST, LAST)
        say(f"{report.rows:,} order lines of {FIRST}..{LAST} in {report.files} files of TPC-H, scale factor {scale:g}")
        stage.run("spark", "start")
    try:
        with running_daemon(stage.log, {}):
            _play(story)
    finally:
        stage.stop_spark()
    _finish(story)


def _play(story: _Story) -> None:
    with story.watch.stage("2. A native backfill builds and publishes the history, with the mistake"):
        build_history(story.stage, _DAYS)
        story.before = story.published()
        story.stage.run("status")
    with story.watch.stage("3. Write, complete and check a specification"):
        _specify(story.stage)
    with story.watch.stage("4. Correct the model and plan the campaign"):
        narrate("The first correction is wrong. It subtracts the tax from a revenue that is already without tax:")
        say(put_version(story.stage.datasets, Version.first_correction))
        story.stage.run("plan", f"backfills/{CAMPAIGN}.yaml", "--explain")
    with story.watch.stage("5. Launch: the canaries fail and stop the campaign"):
        story.stage.run("launch", CAMPAIGN, "--watch", refused=True)
        story.require(story.before, _DAYS, "what they showed before")
    with story.watch.stage("6. Fix the model and resume; pause in between"):
        _go_on(story)
    with story.watch.stage("7. Review, approve, publish"):
        _approve(story)
        _publish(story)
    with story.watch.stage("8. The live pipeline publishes the next day"):
        land_orders(path_of(story.stage.application.settings.sources), story.tables, LIVE, LIVE)
        run_live_day(story.stage, LIVE)
        story.require(story.published(UPSTREAM), (*_DAYS, LIVE), "net revenue and margin without tax")
    with story.watch.stage("9. Roll back, because finance wants to wait, and publish again"):
        _roll_back(story)
        _publish_again(story)
    with story.watch.stage("10. Watch, sign off, and list what the clean-up will delete"):
        _close(story)


def _specify(stage: Stage) -> None:
    stage.run(*drafting())
    file = stage.folder / "backfills" / f"{CAMPAIGN}.yaml"
    draft = file.read_text(encoding="utf-8")
    text = completed(draft, stage.application.clock.now())
    file.write_text(text, encoding="utf-8")
    narrate("The draft, completed by hand. One person plays all parts here; a real campaign keeps `not_owner: true`:")
    say(difference(file.name, draft, text))
    stage.run("validate", f"backfills/{CAMPAIGN}.yaml", refused=True)
    narrate(f"A release of {DATASET} can be undone for 30 days, so the campaign cannot ask for more:")
    good = replaced(text, TOO_LONG, KEEP_FOR)
    file.write_text(good, encoding="utf-8")
    say(difference(file.name, text, good))
    stage.run("validate", f"backfills/{CAMPAIGN}.yaml")


def _go_on(story: _Story) -> None:
    stage = story.stage
    narrate("The net revenue of each order line is already correct. The model only has to sum it:")
    say(put_version(stage.datasets, Version.today))
    narrate("What would run, and why:")
    stage.run("resume", CAMPAIGN, "--explain")
    pause_on_the_way(stage)
    stage.run("set", CAMPAIGN, "partitions_per_batch=92", "--reason", "larger batches, now that the canaries are good")
    stage.run("resume", CAMPAIGN, "--reason", "the month is closed", "--watch")
    story.require(story.before, _DAYS, "what they showed before")


def _approve(story: _Story) -> None:
    stage = story.stage
    narrate("Analysts and dashboards can try the result before readers see it:")
    stage.run("preview", CAMPAIGN)
    figures = "sum(net_revenue) AS net_revenue, sum(margin) AS margin, sum(lines) AS lines"
    stage.run(
        "sql",
        f"SELECT 'published' AS seen, {figures} FROM published.{DATASET} "
        f"UNION ALL SELECT 'preview', {figures} FROM preview.{DATASET}",
    )
    narrate("Nothing is published without approval, and an approval names the evidence that was reviewed:")
    stage.run("publish", CAMPAIGN, refused=True)
    stage.run("approve", CAMPAIGN, "--by", APPROVER, "--evidence", _WRONG_HASH, refused=True)
    stage.run("approve", CAMPAIGN, "--by", APPROVER, "--evidence", story.evidence)


def _publish(story: _Story) -> None:
    stage, why = story.stage, "finance closes the quarter today"
    narrate("The publish window is closed now:")
    stage.run("publish", CAMPAIGN, refused=True)
    stage.run("publish", CAMPAIGN, "--outside-window", why, "--dry-run")
    stage.run("publish", CAMPAIGN, "--outside-window", why)
    story.require(story.published(UPSTREAM), _DAYS, "net revenue and margin without tax")


def _roll_back(story: _Story) -> None:
    stage = story.stage
    unit = stage.application.ledger.campaign(CAMPAIGN).unit
    (record,) = stage.application.ledger.releases(unit=unit)
    name = record.manifest.release
    stage.run("releases", DATASET)
    stage.run("rollback", name, "--reason", "the auditors look at the old figures first", "--dry-run")
    stage.run("rollback", name, "--reason", "the auditors look at the old figures first")
    story.require(story.before, _DAYS, "what they showed before")
    story.require(story.published(UPSTREAM), (LIVE,), "net revenue and margin without tax")
    narrate("The history of a day:")
    stage.run("history", DATASET, "--day", str(FIRST))


def _publish_again(story: _Story) -> None:
    stage = story.stage
    narrate("The rollback withdrew the approval. The evidence is still valid, so nothing is computed again:")
    stage.run("status", CAMPAIGN)
    stage.run("approve", CAMPAIGN, "--by", APPROVER, "--evidence", story.evidence, "--reason", "the auditors are done")
    stage.run("publish", CAMPAIGN, "--outside-window", "the auditors are done")
    story.require(story.published(UPSTREAM), (*_DAYS, LIVE), "net revenue and margin without tax")
    narrate(
        "The rollback put its days on hold, so that no live run published them again. The publication ended the hold:"
    )
    stage.run("hold", "list", DATASET)


def _close(story: _Story) -> None:
    stage = story.stage
    narrate("What the readers' queries returned before the release, after it, and now:")
    stage.run("watch-release", story.release)
    stage.run("sign-off", CAMPAIGN, "--reason", "finance's totals agree")
    narrate("The files of the old figures stay as long as the release can be rolled back, even after the sign-off:")
    stage.run("cleanup", CAMPAIGN, refused=True)
    narrate("The story ends here. When the rollback window has ended, the clean-up will delete:")
    stage.run("cleanup", CAMPAIGN, "--dry-run")
    stage.run("list")


def _finish(story: _Story) -> None:
    expected, found = story.published(UPSTREAM), story.published()
    sides = [by_month(side) for side in (story.before, found, expected)]
    rows = [
        (
            month,
            *(f"{side[month].net_revenue:,.2f}" for side in sides),
            *(f"{side[month].margin:,.2f}" for side in sides),
        )
        for month in sides[0]
    ]
    whens = ("before", "published", "expected")
    columns = ("month", *(f"{what} {when}" for what in ("net revenue", "margin") for when in whens))
    table(columns, rows, "Read back from the published table, beside the sums over order_items")
    seconds = [(name, f"{taken:.1f}") for name, taken in story.watch.stages.items()]
    table(("stage", "seconds"), seconds, "How long it took")
    story.require(expected, (*_DAYS, LIVE), "exactly the expected figures")
    say(f"explore the installation in {story.stage.folder}, after: . ./environment.sh")
