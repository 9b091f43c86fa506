"""Reviews of real units: a SQLite ledger and Delta tables, before and after the release, and after its rollback."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import write_deltalake

from backfill_assets.campaign.plan import Price
from backfill_assets.campaign.state import Action, Phase
from backfill_assets.cli.campaign_status import next_step
from backfill_assets.core.days import day_range
from backfill_assets.core.errors import CampaignError, UnitError
from backfill_assets.core.evidence import unit_hash
from backfill_assets.core.unit import Launch, ReleaseMode, Unit, UnitState
from backfill_assets.dataset.checks import Level
from backfill_assets.dataset.loaded import Catalog
from backfill_assets.evidence.readiness import next_command
from backfill_assets.report.causes import made_reach
from backfill_assets.report.facts import all_seams, of_reaches, place_of, subject_of
from backfill_assets.report.judgement import Outcome
from backfill_assets.report.review import Reviews, as_plain
from backfill_assets.report.series import DayState, Point, Series
from backfill_assets_tests.harness.specifications import DAYS, NAME
from backfill_assets_tests.harness.tables import day, rows_of
from backfill_assets_tests.harness.world import World

pytestmark = pytest.mark.slow

PRICE = Price(Decimal(3600), "EUR")


def reviews(world: World) -> Reviews:
    return Reviews(world.warehouse(), world.publisher(), PRICE)


def built(world: World, *days: int, passed: bool = True) -> Unit:
    """Two days outside of it are published; the unit has new rows of its own."""
    world.released({day(n): [1, 2] for n in range(4)})
    unit = world.open_unit({"sales": [day(n) for n in days]})
    world.build(unit, "sales", {day(n): [5, 6] for n in days}, passed=passed)
    return unit


def test_a_good_unit_is_ready_and_its_review_names_the_command_that_publishes_exactly_that(world: World) -> None:
    unit = built(world, 1, 2)
    review = reviews(world).of(unit.id)
    assert review.judgement.outcome is Outcome.ready
    assert review.judgement.sentence == (
        "Ready to publish: 2 of 2 days pass all 2 checks; no metric changes; no file of another day is touched."
    )
    evidence = unit_hash(world.ledger.evidence(unit.id).values())
    assert review.evidence == evidence
    assert review.commands[0].text == f"backfill publish {unit.id} --evidence {evidence}"
    assert {d.state for d in review.days} == {DayState.passed}


def test_before_the_release_the_blast_radius_is_what_would_be_swapped(world: World) -> None:
    (reach,) = reviews(world).of(built(world, 1, 2).id).reaches
    assert (reach.days, reach.removed, reach.added, reach.outside, reach.outside_days) == (2, 2, 2, 2, 2)
    assert reach.held is True
    assert reach.words == (
        "Publishing sales brings 2 files for 2 days in place of 2 files: exactly the files that these days have now. "
        "The 2 files of the 2 other days are not touched."
    )


def test_after_the_release_it_is_read_from_the_delta_log(world: World) -> None:
    unit = built(world, 1, 2)
    release = world.publisher().release(unit.id).releases["sales"]
    review = reviews(world).of(release)
    assert review.unit == unit.id
    assert review.judgement.outcome is Outcome.published
    assert review.judgement.sentence.startswith("Published 2026-03-01 12:00 UTC by ada: 2 of 2 days pass all 2 checks")
    (reach,) = review.reaches
    assert (reach.held, reach.altered, reach.outside) == (True, (), 2)
    assert "Version 2 against version 1 of the Delta log: the 2 files of the 2 other days are unchanged." in reach.words
    assert [c.text for c in review.commands] == [f"backfill rollback {release} --reason '…'"]
    assert {d.state for d in review.days} == {DayState.published}


def test_a_commit_that_touched_another_day_is_reported_at_the_structural_level(world: World) -> None:
    unit = built(world, 1, 2)
    world.publisher().release(unit.id)
    write_deltalake(world.homes["sales"], rows_of({day(3): [9]}), mode="append", partition_by=["day"])
    (record,) = world.ledger.releases(unit=unit.id)
    # No release can do that; the test treats this commit as its own.
    reach = made_reach(world.tables, replace(record, version=3))
    assert reach is not None
    assert (reach.held, reach.altered) == (False, (day(3),))
    (concern,) = of_reaches([reach])
    assert (concern.level, concern.day, concern.blocks) == (Level.structural, day(3), True)
    assert f"outside of its days, {day(3)} differ before and after" in concern.found


def test_it_says_after_a_rollback_who_took_it_back_and_why(world: World) -> None:
    unit = built(world, 1, 2)
    release = world.publisher().release(unit.id).releases["sales"]
    back = world.rollback().execute(release, "finance saw a gap")
    review = reviews(world).of(back.release)
    assert review.judgement.outcome is Outcome.rolled_back
    assert review.judgement.sentence == (
        "Rolled back 2026-03-01 12:00 UTC by ada (finance saw a gap): readers see 2 days as they were before."
    )
    assert {d.state for d in review.days} == {DayState.rolled_back}
    assert len(review.reaches) == 2
    assert all(reach.held for reach in review.reaches)


def test_days_that_a_later_release_has_rewritten_are_reported(world: World) -> None:
    unit = built(world, 1, 2)
    world.publisher().release(unit.id)
    world.released({day(2): [7]})
    review = reviews(world).of(unit.id)
    assert [d.state for d in review.days] == [DayState.published, DayState.rewritten]
    assert "1 day rewritten since" in review.judgement.sentence


def test_a_failed_check_is_named_first_with_level_day_found_and_expected(world: World) -> None:
    review = reviews(world).of(built(world, 1, 2, passed=False).id)
    assert review.judgement.outcome is Outcome.not_ready
    assert review.judgement.sentence == (
        "Not ready: structural check unique_key of sales fails on 2 of 2 days, first on 2026-01-02: found what is there, "
        "expected no duplicate."
    )
    assert [c.text.split()[1] for c in review.commands] == ["resume", "discard"]


def test_days_that_are_not_built_or_stale_keep_it_from_being_ready(world: World) -> None:
    world.released({day(0): [1]})
    unit = world.open_unit({"sales": [day(1), day(2), day(3)]})
    world.build(unit, "sales", {day(1): [5], day(2): [6]})
    world.basis.changed["sales", day(2)] = "delivered again"  # type: ignore[union-attr]
    review = reviews(world).of(unit.id)
    assert [d.state for d in review.days] == [DayState.passed, DayState.stale, DayState.missing]
    assert review.judgement.sentence.startswith(
        "Not ready: of 3 days 1 not built yet, 1 stale; first sales 2026-01-03: is stale"
    )


def test_neighbours_come_with_what_was_measured_of_them_and_live_days_are_marked(world: World) -> None:
    unit = built(world, 1, 2)
    live = world.open_unit({"sales": [day(4)]}, live=True)
    world.build(live, "sales", {day(4): [1, 2, 3]})
    world.publisher().release(live.id)
    review = reviews(world).of(unit.id)
    series = {one.metric: one for one in review.series}["row_count"]
    found = [(p.day, p.inside, p.live, p.old, p.new) for p in series.points]
    assert found == [
        (day(0), False, False, 2, None), (day(1), True, False, 2, 2), (day(2), True, False, 2, 2),
        (day(3), False, False, 2, None), (day(4), False, True, 3, None),
    ]  # fmt: skip


def test_a_campaign_waits_for_its_approval_and_is_reviewed_by_its_name(campaigns: World) -> None:
    campaign, unit = campaigns.validated()
    made = replace(reviews(campaigns), publisher=campaigns.campaign_publisher())
    review = made.of(campaign.id)
    assert review.name == NAME
    assert review.pending == review.evidence
    assert f"waits for an approval of evidence {review.pending[:12]}" in review.judgement.sentence
    assert review.commands[0].text == f"backfill approve {NAME} --evidence {review.pending}"
    assert review.subject.specification["reason"] == {"issue": "FIN-2841", "change": "Correct the tax"}
    campaigns.approve(campaign)
    assert made.of(unit.id).pending == ""
    campaigns.release().publish(campaign.id)
    assert "approved by anna as finance-controller" in made.of(campaign.id).judgement.sentence


def test_a_required_certificate_that_is_not_there_keeps_a_campaign_from_being_ready(campaigns: World) -> None:
    campaign, _ = campaigns.validated(validation={"certificate": "required"})
    sentence = reviews(campaigns).of(campaign.id).judgement.sentence
    assert sentence.startswith("Not ready: certificate check recomputation of sales fails: found no certificate")
    assert f"backfill prove {NAME}" in sentence


def test_a_campaign_without_a_launch_and_an_unknown_name_are_refused_with_a_remedy(campaigns: World) -> None:
    campaigns.planned({"sales": DAYS})
    with pytest.raises(CampaignError, match=r"has not been launched.*backfill status"):
        reviews(campaigns).of(NAME)
    with pytest.raises(UnitError, match="no campaign, no unit and no release 'nobody'"):
        reviews(campaigns).of("nobody")


def test_a_dataset_that_is_not_loaded_keeps_its_unit_from_being_ready(tmp_path: Path) -> None:
    world = World(tmp_path, ["orders", "totals<orders"])
    unit = world.open_unit({"orders": DAYS[:1], "totals": DAYS[:1]})
    for name in ("orders", "totals"):
        world.build(unit, name, {DAYS[0]: [2]})
    whole = world.warehouse()
    left = whole.of(Catalog({"orders": whole.catalog.datasets["orders"]}))
    review = Reviews(left, replace(world.publisher(), warehouse=left), PRICE).of(unit.id)
    assert review.judgement.sentence.startswith("Not ready: structural check loaded of totals fails: found no dataset")
    assert "put its folder back, or repair its dataset.yaml" in review.judgement.sentence
    world.close()


def test_a_unit_that_was_given_up_says_so(world: World) -> None:
    unit = built(world, 1)
    world.ledger.move(unit.id, {UnitState.open}, UnitState.discarded)
    review = reviews(world).of(unit.id)
    assert review.judgement.sentence == "Given up: nothing of its 1 day is published."
    assert review.reaches == ()


def test_a_step_that_a_check_has_judged_is_not_reported_twice() -> None:
    numbers = {d: Decimal(100 + d.day % 3) for d in day_range(day(0), day(40))}
    points = tuple(
        Point(d, old, old * 3 if d >= day(31) else old, inside=d >= day(20)) for d, old in numbers.items()
    )  # fmt: skip
    series = [Series("sales", "amount", None, points)]
    found = {place_of(seam): seam for seam in all_seams(series, {})}
    place = ("sales", "amount", day(31))
    assert found[place].introduced is True
    assert [d for (_, _, d), seam in found.items() if seam.introduced] == [day(31)]
    judged = {place: replace(found[place], introduced=False)}
    assert [seam for seam in all_seams(series, judged) if seam.introduced] == []


def test_days_published_again_after_a_rollback_are_reported_and_no_refused_command_is_offered(
    world: World,
) -> None:
    unit = built(world, 1, 2)
    world.rollback().execute(world.publisher().release(unit.id).releases["sales"], "a gap")
    world.clock.advance(dt.timedelta(minutes=5))
    world.released({day(2): [7]})
    review = reviews(world).of(unit.id)
    assert review.judgement.sentence.endswith("readers see 1 day as they were before; 1 day rewritten since.")
    assert review.commands == ()


def test_what_can_go_back_is_offered_until_all_of_it_has_gone_back(world: World) -> None:
    unit = built(world, 1, 2)
    release = world.publisher().release(unit.id).releases["sales"]
    world.rollback().execute(release, "a gap", days=frozenset({day(1)}))
    review = reviews(world).of(unit.id)
    assert review.state == "published"
    assert [c.text for c in review.commands] == [f"backfill rollback {release} --reason '…'"]
    world.rollback().execute(release, "a gap")
    review = reviews(world).of(unit.id)
    assert release not in " ".join(c.text for c in review.commands)


def test_no_rollback_is_offered_once_the_releases_window_is_over(world: World) -> None:
    unit = built(world, 1, 2)
    world.publisher().release(unit.id)
    world.clock.advance(world.tables["sales"].keep_for + dt.timedelta(seconds=1))
    assert reviews(world).of(unit.id).commands == ()


def guarded(campaigns: World) -> Reviews:
    return replace(reviews(campaigns), publisher=campaigns.campaign_publisher(), obstacles=campaigns.guard().obstacles)


def test_a_campaign_that_the_guard_refuses_is_not_ready_and_its_publication_is_not_offered(
    campaigns: World,
) -> None:
    campaigns.approved(rollback={"keep_for": "4000d"})
    review = guarded(campaigns).of(NAME)
    assert review.judgement.outcome is Outcome.not_ready
    assert "rollback.keep_for is 4000d, but sales keeps releases for" in review.judgement.sentence
    assert [c.text for c in review.commands] == [f"backfill status {NAME}", f"backfill discard {NAME}"]


@pytest.mark.parametrize("what", ["stopped", "no way back", "at work", "to release", "to approve", "to prove"])
def test_report_and_status_name_the_same_command(campaigns: World, what: str) -> None:
    rollback = {"rollback": {"keep_for": "4000d"}} if what == "no way back" else {}
    if what == "at work":
        campaigns.launched()
    elif what == "to approve":
        campaigns.validated()
    elif what == "to prove":
        campaigns.validated(validation={"certificate": "required"})
    else:
        campaign, _ = campaigns.approved(**rollback)
        if what == "stopped":
            campaigns.turned(campaign, Phase.stopped, Action.stopped)
    review, standing = guarded(campaigns).of(NAME), campaigns.standings.of(NAME)
    offered, following = [c.text.partition(" --")[0] for c in review.commands], next_step(standing, campaigns.datasets)
    assert offered[0] == f"backfill {_VERBS[what]} {NAME}"
    if what in {"no way back", "at work"}:
        # The status says it in words, and neither of them offers what would be refused.
        assert "4000d" in following if what == "no way back" else following.startswith("wait")
        assert not {f"backfill {verb} {NAME}" for verb in ("publish", "resume")} & set(offered)
    else:
        assert offered[0] in following
    listed = next_command(campaigns.campaign_publisher().survey(campaigns.ledger.campaign(NAME).unit))
    assert listed == f"backfill status {NAME}"


_VERBS = {
    "stopped": "resume", "no way back": "status", "at work": "status", "to release": "publish", "to approve": "approve",
    "to prove": "prove",
}  # fmt: skip


def test_a_closed_window_does_not_make_a_campaign_unready_but_is_reported(campaigns: World) -> None:
    campaigns.approved(publish_window=["22:00-04:00"])
    review = guarded(campaigns).of(NAME)
    assert review.judgement.outcome is Outcome.ready
    assert "; but not now: campaign" in review.judgement.sentence
    assert review.commands[0].text == f"backfill publish {NAME}"
    said = next_step(campaigns.standings.of(NAME), campaigns.datasets)
    assert re.match(rf"backfill publish {NAME}; but not now: campaign .*22:00-04:00", said)


def test_a_unit_whose_launch_died_is_launched_again(campaigns: World) -> None:
    campaign, opened_by, days = campaigns.planned({"sales": DAYS}), f"campaign:{NAME}", {"sales": tuple(DAYS)}
    proposal = Unit(campaigns.ids.new("u"), opened_by, campaigns.clock.now(), "ada", days, ReleaseMode.manual)
    unit = campaigns.ledger.assign(Launch({"sales": frozenset(DAYS)}, opened_by), proposal)
    assert campaigns.ledger.campaign_of(unit.id) is None
    (offered, *_) = guarded(campaigns).of(unit.id).commands
    assert offered.text == f"backfill launch {campaign.id}"
    assert next_step(campaigns.standings.of(NAME), campaigns.datasets) == offered.text


def test_the_folder_of_the_specification_and_the_machines_of_batches_are_left_out(campaigns: World) -> None:
    campaign, _ = campaigns.validated()
    review = reviews(campaigns).of(NAME)
    assert (
        subject_of(campaigns.ledger.unit(campaign.unit), replace(campaign, file="/srv/work/b/tax.yaml")).file
        == "tax.yaml"
    )
    (first, *_) = as_plain(review)["batches"]  # type: ignore[misc]
    assert "worker" not in first
    assert first["layer"] == "shadow"
