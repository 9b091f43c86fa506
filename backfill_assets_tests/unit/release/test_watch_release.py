"""The figures of consumers around a release, and the rollback when they drift."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

import pytest

from backfill_assets.core.errors import DatasetError, TimeTravelError, UnitError
from backfill_assets.core.measured import Figures
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.dataset.sources import Consumer
from backfill_assets.release.watch import WatchRelease
from backfill_assets_tests.harness.actors import Post
from backfill_assets_tests.harness.specifications import DAYS, NAME
from backfill_assets_tests.harness.tables import content, day, loaded
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

FINANCE = {"finance": Consumer.model_validate({"sql": "SELECT sum(amount) AS total FROM sales", "tolerance": "10%"})}
EXPECTED = {
    "validation": {"expected_change": {"row_count": "-50%"}},
    "notify": {"webhook": "env:HOOK", "on": ["drifted"]},
}


class Sums:
    """Adds up the amounts that delta-rs reads, as the consumers' query would."""

    def __init__(self, campaigns: World) -> None:
        self.campaigns = campaigns

    def figures(self, dataset: str, versions: Sequence[int], through: dt.date) -> Mapping[int, Mapping[str, Figures]]:
        return {version: {"finance": {"total": self._sum(dataset, version, through)}} for version in versions}

    def _sum(self, dataset: str, version: int, through: dt.date) -> Decimal | None:
        rows = content(self.campaigns.homes[dataset], version)
        amounts = [amount for d, amounts in rows.items() if d <= through for amount in amounts]
        return Decimal(sum(amounts)) if amounts else None


def watcher(campaigns: World, consumers: Mapping[str, Consumer] = FINANCE) -> WatchRelease:
    dataset = campaigns.datasets["sales"].model_copy(update={"consumers": dict(consumers)})
    own = replace(campaigns.warehouse(), catalog=Catalog({"sales": loaded(dataset, campaigns.folder)}))
    return WatchRelease(own, Sums(campaigns), campaigns.notifier().notify)


def corrected(campaigns: World, **changes: object) -> str:
    """Six rows of 10 before, three of 10 after."""
    campaigns.released({d: [10, 10] for d in DAYS})
    campaigns.approved(amount=10, **changes)
    return campaigns.release().publish(NAME).outcome.release


def test_an_expected_change_is_shown_and_is_no_drift(campaigns: World) -> None:
    release = corrected(campaigns, **EXPECTED)
    seen = watcher(campaigns).watch(release)
    (figure,) = seen.figures
    assert (figure.before, figure.after, figure.now) == (Decimal(60), Decimal(30), Decimal(30))
    assert seen.change_expected
    assert seen.drifted == ()
    assert str(seen) == f"{release} (sales): no consumer's figures have drifted"
    assert isinstance(campaigns.post, Post)
    assert campaigns.post.sent == []


def test_without_an_expected_change_a_release_must_not_move_a_figure(campaigns: World) -> None:
    seen = watcher(campaigns).watch(corrected(campaigns))
    assert not seen.change_expected
    assert [w.figure for w in seen.drifted] == ["total"]


def test_days_that_came_after_the_release_are_no_drift(campaigns: World) -> None:
    release = corrected(campaigns, **EXPECTED)
    campaigns.released({day(9): [500]})
    seen = watcher(campaigns).watch(release)
    assert seen.through == DAYS[-1]
    assert seen.drifted == ()


def test_a_drift_is_reported_with_the_command_that_undoes_the_release_and_until_when(campaigns: World) -> None:
    release = corrected(campaigns, **EXPECTED)
    campaigns.released({DAYS[1]: [40]})
    seen = watcher(campaigns).watch(release)
    (figure,) = seen.drifted
    assert (figure.before, figure.after, figure.now) == (Decimal(60), Decimal(30), Decimal(60))
    assert seen.rollback == f"backfill rollback {release} --reason '…'"
    assert seen.until == campaigns.clock.now() + dt.timedelta(days=30)
    assert isinstance(campaigns.post, Post)
    ((webhook, text),) = campaigns.post.sent
    assert webhook == "HOOK"
    assert text.startswith(f"{NAME}: {release} (sales): figures that consumers read have drifted")
    assert "finance total: before 60, after 30, now 60" in text
    assert f"until 2026-03-31 12:00 UTC with: {seen.rollback}" in text


def test_receivers_of_the_publication_are_notified_of_its_drift(campaigns: World) -> None:
    release = corrected(campaigns, **EXPECTED | {"notify": {"webhook": "env:HOOK", "on": ["published"]}})
    campaigns.released({DAYS[1]: [40]})
    watcher(campaigns).watch(release)
    assert isinstance(campaigns.post, Post)
    assert "have drifted" in campaigns.post.sent[-1][1]


def test_a_drift_within_the_tolerance_is_not_reported(campaigns: World) -> None:
    release = corrected(campaigns, **EXPECTED)
    campaigns.released({DAYS[1]: [12]})
    assert watcher(campaigns).watch(release).drifted == ()


def test_no_rollback_is_offered_after_the_window(campaigns: World) -> None:
    release = corrected(campaigns, **EXPECTED)
    campaigns.released({DAYS[1]: [40]})
    campaigns.clock.advance(dt.timedelta(days=30))
    seen = watcher(campaigns).watch(release)
    assert seen.rollback == ""
    assert "could be undone until 2026-03-31 12:00 UTC: build the days again" in str(seen)


def test_a_dataset_without_consumers_says_where_to_list_them(campaigns: World) -> None:
    release = corrected(campaigns)
    with pytest.raises(DatasetError, match=r"dataset\.yaml: consumers is empty"):
        watcher(campaigns, {}).watch(release)


def test_a_rollback_is_not_watched_but_what_it_undid(campaigns: World) -> None:
    release = corrected(campaigns)
    back = campaigns.campaign_rollback().execute(release, "odd").release
    with pytest.raises(UnitError, match=f"is a rollback; watch the release that it undid: {release}"):
        watcher(campaigns).watch(back)
    assert [w.now for w in watcher(campaigns).watch(release).figures] == [Decimal(60)]


def test_files_that_were_cleaned_up_leave_nothing_to_compare_with(campaigns: World) -> None:
    release = corrected(campaigns)
    gone = campaigns.ledger.release(release).manifest.removed[0]
    (campaigns.homes["sales"] / gone.path).unlink()
    with pytest.raises(TimeTravelError, match=r"can no longer be read completely \(2026-01-01 cleaned up\)"):
        watcher(campaigns).watch(release)
