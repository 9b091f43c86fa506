"""Whether stale days really come out differently: some of them are computed again and compared with what is published."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from backfill_assets.campaign.execution import Execution
from backfill_assets.campaign.plan import choose_canaries
from backfill_assets.core.certificate import Prints, Recomputation, differing_columns
from backfill_assets.core.days import Days
from backfill_assets.core.errors import EvidenceError, ModelError, SourceError
from backfill_assets.core.release import SHADOW
from backfill_assets.evidence.basis import PUBLISHED
from backfill_assets.evidence.stale import DATA, StaleCause, StaleDays
from backfill_assets.proof.certificate import Recomputations, remove_scratch
from backfill_assets.proof.subjects import RecomputedDays, Subjects
from backfill_assets.warehouse import OnWarehouse

_ROWS: Final = "rows"
_OF_ROWS: Final = frozenset({StaleCause.code, StaleCause.reading, StaleCause.columns, StaleCause.contract})


@dataclass(frozen=True)
class StaleSample:
    """Some of the `of` days whose rows only people's decisions may have changed, computed again by the code of now.

    `different` has the days that came out differently, with the columns; `rows` stands for another number of rows. `problem` says
    why nothing could be computed.
    """

    dataset: str
    of: int = 0
    days: Days = ()
    different: Mapping[dt.date, tuple[str, ...]] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class StaleSamples(OnWarehouse):
    """Computes samples; writes only a scratch shadow, which it removes. No sample makes a day current.

    `recomputing` gives the engine.
    """

    recomputing: Callable[[Execution | None], Recomputations]

    def of(self, stale: StaleDays, count: int, among: Collection[StaleCause] = _OF_ROWS) -> StaleSample:
        """At most `count` of the days that are stale because of the code, for causes `among` these, the most telling first.

        None that data made stale as well: these are built again anyway. And none whose checks alone changed: no check runs.
        """
        name, wanted = stale.dataset, _OF_ROWS.intersection(among)
        days = [day for day in stale.refreshable if DATA.isdisjoint(stale.causes[day]) and wanted & stale.causes[day]]
        if not days:
            return StaleSample(name)
        sizes = {day: sum(file.size for file in files) for day, files in self.tables[name].active(days).items()}
        chosen = tuple(sorted(choose_canaries(days, sizes, count)))
        scratch, engine = f"{SHADOW}/{self.ids.new('s')}", self.recomputing(None)
        try:
            sampled = Subjects(self.warehouse).sampled(RecomputedDays(name, chosen))
            engine.recompute(sampled, f"{scratch}/1", Recomputation("as configured", {}))
            old, new = (engine.prints(name, chosen, place) for place in (PUBLISHED, f"{scratch}/1"))
        except (EvidenceError, ModelError, SourceError) as error:
            return StaleSample(name, len(days), problem=str(error))
        finally:
            remove_scratch(self.tables[name], scratch)
        different = {day: _difference(old[day], new[day]) for day in chosen if old[day] != new[day]}
        return StaleSample(name, len(days), chosen, different)


def _difference(old: Prints, new: Prints) -> tuple[str, ...]:
    rows = (_ROWS,) if old.rows != new.rows else ()
    return (*rows, *differing_columns(old, new)) or (_ROWS,)
