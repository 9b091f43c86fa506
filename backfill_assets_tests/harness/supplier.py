"""A supplier who delivers, corrects and restores files that may be withdrawn, and a plain Python model of what then counts."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from hypothesis import strategies as st

from backfill_assets.core.delivery import Deed, Delivery, Place
from backfill_assets.dataset.definition import Dataset
from backfill_assets.dataset.deliveries import heads, in_order, received

D7, D8, D9 = (dt.date(2024, 1, day) for day in (7, 8, 9))
PATHS = ((D7, "7/a"), (D7, "7/b"), (D8, "8/a"), (D9, "9/a"))
CONTENTS: Mapping[str, Mapping[int, str]] = {
    "A": {1: "a", 2: "a"}, "B": {1: "b"}, "C": {2: "c", 3: "c"}, "empty": {},
}  # fmt: skip
"""Rows of the day before, by key: files of several days may hold the same ones."""
_NOON = dt.datetime(2024, 2, 1, 12, tzinfo=dt.UTC)


class Put(NamedTuple):
    """A file is at a path, with a time of change, which may be older than before."""

    place: Place
    content: str
    hour: int


class Land(NamedTuple):
    """A launch of some delivery days."""

    days: frozenset[dt.date]


class Take(NamedTuple):
    """A user withdraws the newest file of a path, or undoes that."""

    place: Place
    deed: Deed


class Reland(NamedTuple):
    """The file at a path is read again, if it is still there as it was landed."""

    place: Place


Act = Put | Land | Take | Reland
_places = st.sampled_from(PATHS)
an_act: st.SearchStrategy[Act] = st.one_of(
    st.builds(Put, _places, st.sampled_from(sorted(CONTENTS)), st.integers(0, 5)),
    st.builds(Land, st.frozensets(st.sampled_from([D7, D8, D9]), min_size=1)),
    st.builds(Take, _places, st.sampled_from([Deed.withdrawn, Deed.restored])),
    st.builds(Reland, _places),
)
acts: st.SearchStrategy[list[Act]] = st.lists(an_act, max_size=16)


class Book(Protocol):
    """What a ledger does for deliveries."""

    def add(self, found: Sequence[Delivery], seen: Mapping[Place, int]) -> None:
        """Record a landing."""
        ...

    def change(self, changed: Collection[Delivery], deed: Deed) -> None:
        """Withdraw, restore, or read again."""
        ...

    def known(self) -> tuple[Delivery, ...]:
        """All deliveries."""
        ...


class Pages:
    """The domain's own rules, without a database."""

    def __init__(self) -> None:
        self._known: dict[tuple[dt.date, str, str], Delivery] = {}

    def add(self, found: Sequence[Delivery], seen: Mapping[Place, int]) -> None:
        for one in received(self.known(), found, seen):
            self._known[one.content] = one

    def change(self, changed: Collection[Delivery], deed: Deed) -> None:
        for one in changed:
            out = one.withdrawn if deed is Deed.read else deed is Deed.withdrawn
            again = one.landings + (deed is Deed.read)
            self._known[one.content] = replace(one, withdrawn=out, landings=again)

    def known(self) -> tuple[Delivery, ...]:
        return tuple(self._known.values())


@dataclass
class Model:
    """What the sources say after launches and withdrawals: no numbers, and no fingerprints."""

    files: dict[Place, tuple[str, int]] = field(default_factory=dict)
    last: dict[Place, str] = field(default_factory=dict)
    turn: dict[Place, tuple[dt.date, int, int]] = field(default_factory=dict)
    out: set[tuple[Place, str]] = field(default_factory=set)
    days: set[dt.date] = field(default_factory=set)
    turns: int = 0

    def land(self, days: Collection[dt.date]) -> None:
        """The file at a path is now its content: in its day's place if it is there from the beginning, else after all others."""
        first = set(days) - self.days
        found = sorted((hour, path, day) for (day, path), (_, hour) in self.files.items() if day in days)
        for _, path, day in found:
            place = (day, path)
            content, known = self.files[place][0], self.last.get(place)
            self.days.add(day)
            if content == known:
                continue
            self.turns += 1
            behind = (max(self.days), 1, self.turns)
            self.turn[place] = (day, 0, self.turns) if day in first and known is None else behind
            self.last[place] = content

    def take(self, place: Place, deed: Deed) -> bool:
        """Withdraw the newest file of a path, or restore every withdrawn one there; returns whether there was any."""
        if deed is Deed.withdrawn:
            self.out |= {(place, self.last[place])} if place in self.last else set()
            return place in self.last
        back = {one for one in self.out if one[0] == place}
        self.out -= back
        return bool(back)

    def counts(self) -> list[tuple[Place, str]]:
        """The contents that count, oldest first."""
        places = sorted(self.last, key=lambda place: self.turn[place])
        return [(place, self.last[place]) for place in places if (place, self.last[place]) not in self.out]

    def rows(self) -> dict[int, str]:
        """The rows by key, the newest delivery's."""
        found: dict[int, str] = {}
        for _, content in self.counts():
            found |= CONTENTS[content]
        return found


@dataclass
class Supplier:
    """Acts on a book as a pipeline does, and on the model."""

    dataset: Dataset
    book: Book
    model: Model = field(default_factory=Model)

    def act(self, act: Act) -> None:
        """One thing that happens."""
        known = self.book.known()
        last = heads(known)
        match act:
            case Put(place, content, hour):
                self.model.files[place] = (content, hour)
            case Land(days):
                found = [self._delivery(place) for place in self.model.files if place[0] in days]
                new = [one for one in found if last.get((one.day, one.path), one).fingerprint != one.fingerprint]
                new += [one for one in found if (one.day, one.path) not in last]
                self.book.add(in_order(self.dataset, new), {place: one.order for place, one in last.items()})
                self.model.land(days)
            case Take(place, Deed.withdrawn):
                if self.model.take(place, Deed.withdrawn):
                    self.book.change([last[place]], Deed.withdrawn)
            case Take(place, _):
                self.book.change(
                    [one for one in known if (one.day, one.path) == place and one.withdrawn], Deed.restored
                )
                self.model.take(place, Deed.restored)
            case Reland(place):
                if (
                    place in last
                    and place in self.model.files
                    and self._delivery(place).fingerprint == last[place].fingerprint
                ):
                    self.book.change([last[place]], Deed.read)

    def _delivery(self, place: Place) -> Delivery:
        content, hour = self.model.files[place]
        at = _NOON + dt.timedelta(hours=hour)
        return Delivery(self.dataset.name, *place, print_of(content), 1, at, _NOON, len(CONTENTS[content]))


def print_of(content: str) -> str:
    """The fingerprint of a content."""
    return hashlib.sha256(content.encode()).hexdigest()


def merged(force: Sequence[Delivery]) -> dict[int, str]:
    """What staging makes of deliveries in force: for each key, the row with the highest number."""
    contents, found = {print_of(name): rows for name, rows in CONTENTS.items()}, dict[int, tuple[int, str]]()
    for one in force:
        for key, value in contents[one.fingerprint].items():
            found[key] = max(found.get(key, (0, "")), (one.order, value))
    return {key: value for key, (_, value) in found.items()}
