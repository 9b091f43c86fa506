"""Somebody's word, with a reason, that published days stay as they are although the code changed since they were built."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from backfill_assets.core.content import Content, KeptDay
from backfill_assets.core.days import Days, format_days, grouped_by_text
from backfill_assets.core.errors import ArgumentError
from backfill_assets.core.text import in_words
from backfill_assets.dataset.parts import CodePart, code_parts
from backfill_assets.evidence.basis import Behind
from backfill_assets.evidence.inputs import GOLDEN
from backfill_assets.evidence.stale import StaleCause, StaleDays, Staleness
from backfill_assets.warehouse import OnWarehouse

OF_CODE = frozenset(StaleCause(part.value) for part in CodePart)
"""The causes that a word can end. All others come with data: only a new build says what it does to a day."""


@dataclass(frozen=True)
class Keeping(OnWarehouse):
    """Records who keeps published days as they are, and why. Nothing is built, and no row changes.

    From then on a day counts as built by the code and from the inputs of that moment, as long as it has the same content: what
    changes later makes it stale.
    """

    staleness: Staleness

    def keep(self, name: str, days: Days, among: Collection[StaleCause], reason: str) -> Mapping[dt.date, str]:
        """Keep some days, if all causes that make them stale are the code's and `among` these; returns why others are not kept.

        Raises:
            ArgumentError: there is no reason, a cause is not the code's, something cannot be compared, or no day can be kept.
            SourceError: a reference or golden file cannot be read.
        """
        self._require(name, days, reason)
        if not among or (others := frozenset(among) - OF_CODE):
            named = f"{in_words(sorted(others))} cannot be kept" if among else "no cause is named"
            raise ArgumentError(
                f"--because: {named}; name what does not matter, some of {', '.join(sorted(OF_CODE))}. What comes with data is "
                f"built again (backfill refresh {name}), or its delivery is withdrawn"
            )
        # Before it is asked what is stale: what changes meanwhile makes the day stale again.
        behind, upstream = self.staleness.basis.behind(name, days), self.staleness.basis.supposed_upstream(name, days)
        found = self.staleness.of(name, days=days, look=True)
        if found.problems:
            # What cannot be compared may hide data that has changed.
            raise ArgumentError(f"{name} {format_days(days)}: no day can be kept; {'; '.join(found.problems)}")
        refusals = {day: why for day in days if (why := _refusal(day, found, behind[day], among))}
        if len(refusals) == len(days):
            texts = "; ".join(grouped_by_text((day, f"{day}: {why}") for day, why in refusals.items()))
            raise ArgumentError(f"{name} {format_days(days)}: no day can be kept; {texts}; see: backfill stale {name}")
        parts = self.ledger.add_code(name, code_parts(self.datasets[name]))
        by, at = self.identity.name(), self.clock.now()
        self.ledger.keep(
            KeptDay(
                name, day, found.contents[day].origin, _built_now(found.contents[day], behind[day], upstream[day], parts),
                tuple(sorted(found.causes[day])), by, at, reason,
            )
            for day in days if day not in refusals
        )  # fmt: skip
        return refusals

    def take_back(self, name: str, days: Days, reason: str) -> Days:
        """Take back what was said about keeping these days; returns those that were kept.

        Raises:
            ArgumentError: there is no reason.
        """
        self._require(name, days, reason)
        newest = {one.day: one for one in reversed(self.ledger.kept_days(name, days))}
        chosen = tuple(sorted(day for day, one in newest.items() if one.content is not None))
        by, at = self.identity.name(), self.clock.now()
        self.ledger.keep(KeptDay(name, day, "", None, (), by, at, reason) for day in chosen)
        return chosen

    def _require(self, name: str, days: Days, reason: str) -> None:
        self.datasets[name].dataset.check_days(days)
        if not reason.strip():
            raise ArgumentError("--reason is empty; say why the days stay as they are: the history shows it")


def _refusal(day: dt.date, found: StaleDays, behind: Behind, among: Collection[StaleCause]) -> str:
    """Why a day is not kept; empty if it is."""
    if day in found.unknown:
        return "it is not known which code built it"
    causes, content = found.causes.get(day, frozenset()), found.contents.get(day)
    if not causes or content is None:
        return "not stale"
    if others := causes - frozenset(among):
        return f"stale because of {in_words(sorted(others))} as well"
    then, golden = content.references or {}, [name for name in behind.references if name.startswith(GOLDEN)]
    if fresh := [name.removeprefix(GOLDEN) for name in golden if name not in then]:
        return f"it was never compared with golden source {fresh[0]}"
    if any(then[name] != behind.references[name] for name in golden):
        return "stale because a golden source changed, which is data"
    return ""


def _built_now(content: Content, behind: Behind, upstream: str, parts: str) -> Content:
    return replace(
        content, upstream=upstream, inputs=behind.inputs, deliveries=behind.deliveries, references=behind.references,
        parts=parts,
    )  # fmt: skip
