"""Freezing a plan: a specification's file becomes a planned campaign, in the ledger and in a file of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from backfill_assets.campaign.load import LoadedSpecification, load_specification, misfits
from backfill_assets.campaign.specification import Specification
from backfill_assets.campaign.state import Action, Campaign, JournalEntry, Knobs
from backfill_assets.campaigns.planning.planner import Planner, write_plan
from backfill_assets.core.errors import SpecificationError
from backfill_assets.core.ports import Identity


@dataclass(frozen=True)
class Freezer:
    """Plans campaigns and freezes their plans.

    `computes` are the names of endpoints that this process knows, `state` is the folder below which plans are kept.
    """

    planner: Planner
    identity: Identity
    computes: Collection[str]
    state: Path

    def freeze(self, file: Path) -> tuple[Campaign, Path]:
        """Plan the specification in a file and freeze the plan; the campaign, and the file of its plan.

        Raises:
            SpecificationError: names every fault of the specification with its line.
            CampaignError: the campaign was launched before.
            ClaimedDaysError: an open unit that is not this campaign's has claimed some of the days.
            SourceError: the file of a reference is missing.
        """
        planner, specification = self.planner, self._checked(file)
        plan, now = planner.plan(specification), planner.clock.now()
        campaign = Campaign(
            specification=specification,
            plan=plan,
            knobs=Knobs(specification.execution.max_concurrency, specification.execution.partitions_per_batch),
            created_at=now,
            # Absolute: whoever looks for it later, such as the daemon, works in another folder.
            file=str(file.absolute()),
        )
        detail = {"plan": plan.fingerprint, "specification": specification.hash}
        entry = JournalEntry(campaign.id, now, self.identity.name(), Action.planned, "", detail)
        return planner.ledger.add_campaign(campaign, entry), write_plan(self.state, plan)

    def _checked(self, file: Path) -> Specification:
        loaded, planner = load_specification(file), self.planner
        if isinstance(loaded, LoadedSpecification):
            faults = misfits(loaded, planner.catalog, now=planner.clock.now(), computes=self.computes)
            if not faults:
                return loaded.specification
        else:
            faults = loaded
        raise SpecificationError("\n".join(str(fault) for fault in faults))
