"""A state machine over campaigns and their journals: the ledger returns everything that was planned, changed and noted."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backfill_assets.campaign.state import Action, Campaign, JournalEntry, Knobs, Phase
from backfill_assets.core.errors import CampaignError
from backfill_assets.ledger.open import Ledger
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.ledgers import opened_ledger
from backfill_assets_tests.unit.ledger.campaign_samples import a_campaign, a_plan, an_entry
from backfill_assets_tests.unit.ledger.samples import NOON, a_launch, a_unit, march

IDS = ("fix-1", "fix-2")
ids = st.sampled_from(IDS)
phases = st.sampled_from(Phase)
codes = st.sampled_from(["c0de", "0ther"])
actions = st.sampled_from(Action)
knobs = st.builds(Knobs, st.integers(1, 4), st.integers(1, 31))


class CampaignsAndJournals(RuleBasedStateMachine):
    """Operators with fresh and with stale knowledge act in any order; the model is a dictionary and a list for each."""

    ledger: Ledger
    folder: Path

    @initialize()
    def open_a_fresh_ledger(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-"))
        self.ledger = opened_ledger(f"sqlite:///{self.folder}/ledger.db", FixedClock(NOON))
        self.units = {
            campaign: self.ledger.assign(a_launch(days, campaign), a_unit(days, campaign)).id
            for campaign, days in zip(IDS, (march(1, 9), march(11, 19)), strict=True)
        }
        self.now: dict[str, Campaign] = {}
        self.known: list[Campaign] = []
        self.journals: dict[str, list[JournalEntry]] = {}
        self.changed: dict[str, JournalEntry] = {}
        self.moved: dict[str, JournalEntry] = {}
        self.users = 0

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            shutil.rmtree(self.folder)

    def entry(self, campaign: str, action: Action) -> JournalEntry:
        self.users += 1
        return an_entry(action, f"user-{self.users}", "because", campaign, number=self.users)

    def took(self, campaign: Campaign, entry: JournalEntry) -> None:
        before = self.now.get(campaign.id)
        if before is None or before.phase is not campaign.phase or entry.action is Action.planned:
            self.moved[campaign.id] = entry
        self.changed[campaign.id] = entry
        self.now[campaign.id] = campaign
        self.known.append(campaign)
        self.journals.setdefault(campaign.id, []).append(entry)

    @rule(campaign=ids, code=codes, turned=knobs)
    def plan(self, campaign: str, code: str, turned: Knobs) -> None:
        planned = a_campaign(campaign, knobs=turned)
        planned = replace(planned, plan=a_plan(planned.specification, code=code))
        before, entry = self.now.get(campaign), self.entry(campaign, Action.planned)
        if before is not None and before.phase is not Phase.planned:
            with pytest.raises(CampaignError) as refused:
                self.ledger.add_campaign(planned, entry)
            assert str(self.moved[campaign]) in str(refused.value)
            return
        added = self.ledger.add_campaign(planned, entry)
        assert added == replace(planned, revision=before.revision + 1 if before else 0)
        self.took(added, entry)

    @precondition(lambda self: bool(getattr(self, "known", None)))
    @rule(data=st.data(), allowed=st.sets(phases, min_size=1), to=phases, turned=knobs, code=codes)
    def change(self, data: st.DataObject, allowed: set[Phase], to: Phase, turned: Knobs, code: str) -> None:
        # Half of the operators have just read the campaign, the others use what they once read.
        seen = data.draw(st.sampled_from(sorted(self.now.values(), key=lambda c: c.id)) | st.sampled_from(self.known))
        now = self.now[seen.id]
        action = data.draw(actions.filter(lambda action: action is not Action.planned))
        entry = self.entry(seen.id, action)
        wanted = replace(seen, phase=to, knobs=turned, plan=a_plan(seen.specification, code=code))
        wanted = replace(wanted, unit="" if to is Phase.planned else self.units[seen.id])
        if now.phase in allowed and now.revision == seen.revision:
            changed = self.ledger.change_campaign(wanted, allowed, entry)
            assert changed == replace(wanted, revision=now.revision + 1)
            self.took(changed, entry)
            return
        blamed = self.changed if now.phase in allowed else self.moved
        with pytest.raises(CampaignError) as refused:
            self.ledger.change_campaign(wanted, allowed, entry)
        assert f"({blamed[seen.id]})" in str(refused.value)

    @rule(campaign=ids, action=actions)
    def note(self, campaign: str, action: Action) -> None:
        entry = self.entry(campaign, action)
        if campaign in self.now:
            self.ledger.note(entry)
            self.journals[campaign].append(entry)
        else:
            with pytest.raises(CampaignError, match="there is no campaign"):
                self.ledger.note(entry)

    @invariant()
    def the_ledger_says_the_same(self) -> None:
        if not hasattr(self, "ledger"):
            return
        assert {campaign.id: campaign for campaign in self.ledger.campaigns()} == self.now
        for campaign, now in self.now.items():
            assert self.ledger.campaign(campaign) == now
            assert self.ledger.journal(campaign) == tuple(self.journals[campaign])
            assert self.ledger.campaign_of(self.units[campaign]) == (now if now.unit else None)


CampaignsAndJournals.TestCase.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
TestCampaignsAndJournals = CampaignsAndJournals.TestCase
