"""Units with their claims, and holds."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, assert_never

from sqlalchemy import ColumnElement, Connection, delete, insert, select, true, update

from backfill_assets.core.canonical import canonical_json
from backfill_assets.core.days import format_days, slices
from backfill_assets.core.errors import ClaimedDaysError, UnitError
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.expected_change import Contract
from backfill_assets.core.release import AHEAD, ReleaseState
from backfill_assets.core.unit import (
    AttemptState,
    Hold,
    Join,
    LateData,
    Launch,
    Open,
    ReleaseMode,
    Unit,
    UnitState,
    assign_unit,
    shown_days,
)
from backfill_assets.ledger.codec import unit_from_row
from backfill_assets.ledger.database import Rows, span, upsert
from backfill_assets.ledger.schema import attempts, claims, holds, releases, unit_days, units


class UnitRows(Rows):
    """The units of the ledger."""

    def assign(self, launch: Launch, proposal: Unit) -> Unit:
        """Join or open a unit for a launch (`assign_unit`), including its claims, in one transaction.

        A joined unit may no longer be open if this launch opened it before, or if it was released after the launch with
        all days of the launch: the other of two launches of the same days has done the work.

        Raises:
            UnitError: the launch's tag names no suitable unit, or `proposal` does not fit the launch.
            ClaimedDaysError: days of the launch or of the proposal are claimed by another unit.
            HeldDaysError: a live launch requests days on hold.
        """
        _refuse_misfit(launch, proposal)
        with self._database.write() as connection:
            named, before = units.c.id == launch.named_unit, units.c.opened_by == launch.opened_by
            opened = next(iter(_load(connection, named if launch.named_unit else before)), None)
            taken = _taken(connection, launch.targets)
            if opened is None and not taken:
                opened = _released_since(connection, launch, self._clock.now())
            held = {
                h.target: h.reason for name, days in launch.targets.items() for h in holds_on(connection, name, days)
            }
            live = {u for u in set(taken.values()) if launch.live and load_unit(connection, u).live}
            match assign_unit(launch, opened, taken, held, frozenset(live)):
                case Join(unit):
                    return load_unit(connection, unit)
                case Open(claim):
                    return _open(connection, proposal, _to_claim(connection, launch, proposal, claim))
                case never:
                    assert_never(never)

    def unit(self, unit_id: str) -> Unit:
        """The unit, or `UnitError` if there is none."""
        with self._database.read() as connection:
            return load_unit(connection, unit_id)

    def units(
        self, dataset: str | None = None, states: Collection[UnitState] = (), launch: str | None = None
    ) -> tuple[Unit, ...]:
        """Units, newest first; optionally of one dataset, in some states or opened by one launch only."""
        wanted: ColumnElement[bool] = true()
        if launch is not None:
            opened = units.c.opened_by
            wanted &= (opened == launch) | opened.startswith(f"{launch}/", autoescape=True)
        if dataset is not None:
            wanted &= units.c.id.in_(select(unit_days.c.unit).where(unit_days.c.dataset == dataset))
        if states:
            wanted &= units.c.state.in_([state.value for state in states])
        with self._database.read() as connection:
            return _load(connection, wanted)

    def claims(self, dataset: str, days: Collection[dt.date]) -> Mapping[dt.date, str]:
        """The claimed days among these, and the unit that claims each."""
        with self._database.read() as connection:
            return _claims(connection, dataset, days)

    def set_contract(self, unit_id: str, contract: Contract) -> Unit:
        """Replace the contract of an open unit; `UnitError` if it is not open."""
        return self._change(unit_id, replace_with={"contract": canonical_json(contract)})

    def set_mode(self, unit_id: str, mode: ReleaseMode) -> Unit:
        """Change who releases an open unit; `UnitError` if it is not open."""
        return self._change(unit_id, replace_with={"mode": mode.value})

    def move(self, unit_id: str, allowed: Collection[UnitState], to: UnitState) -> Unit:
        """Change a unit's state if it is in one of the allowed states.

        Leaving `open` releases the claims and loses running attempts; returning to `open` takes the claims again.

        Raises:
            UnitError: there is no such unit, or it is in another state, which the message names.
            ClaimedDaysError: it should be open again, but another open unit has claimed some of its days.
        """
        with self._database.write() as connection:
            unit = load_unit(connection, unit_id)
            if unit.state not in allowed:
                wanted = " or ".join(sorted(state.value for state in allowed)) or "in any allowed state"
                raise UnitError(f"unit {unit_id} is {unit.state.value}, not {wanted}; see: backfill status")
            set_state(connection, unit, to, self._clock.now())
            return unit.moved(to)

    def hold(self, holds: Iterable[Hold]) -> None:
        """Put days on hold; a day that is already on hold gets the new reason, user and time."""
        rows = [
            {"dataset": h.target[0], "day": h.target[1], "reason": h.reason, "by": h.by, "since": h.since}
            for h in holds
        ]
        with self._database.write() as connection:
            upsert(connection, _HOLDS, rows, replace=["reason", "by", "since"])

    def lift(self, dataset: str, days: Collection[dt.date]) -> int:
        """Lift holds; returns the number of days that were on hold."""
        lifted = 0
        with self._database.write() as connection:
            for some in slices(sorted(set(days)), 1000):
                these = (holds.c.dataset == dataset) & holds.c.day.in_(some)
                lifted += connection.execute(delete(holds).where(these)).rowcount
        return lifted

    def holds(self, dataset: str, days: Collection[dt.date] | None = None) -> tuple[Hold, ...]:
        """Holds of a dataset by day; optionally on some days only."""
        with self._database.read() as connection:
            return holds_on(connection, dataset, days)

    def _change(self, unit_id: str, replace_with: Mapping[str, Any]) -> Unit:
        with self._database.write() as connection:
            unit = load_unit(connection, unit_id)
            if unit.state is not UnitState.open:
                raise UnitError(
                    f"unit {unit_id} is {unit.state.value}, not open: its {' and '.join(replace_with)} cannot "
                    "be changed; launch the days again for a new unit"
                )
            connection.execute(update(units).where(units.c.id == unit_id).values(**replace_with))
            return load_unit(connection, unit_id)


# The method `holds` hides the table of that name inside the class.
_HOLDS = holds


def load_unit(connection: Connection, unit_id: str) -> Unit:
    """The unit, or `UnitError` if there is none."""
    found = _load(connection, units.c.id == unit_id)
    if not found:
        raise UnitError(f"there is no unit {unit_id!r}; see: backfill status")
    return found[0]


def set_state(connection: Connection, unit: Unit, to: UnitState, now: dt.datetime) -> None:
    """Move a unit and its claims; if it is no longer open, its running attempts are lost.

    Raises:
        ClaimedDaysError: it should be open again, but another unit has claimed some of its days since.
    """
    if to is unit.state:
        return
    connection.execute(update(units).where(units.c.id == unit.id).values(state=to.value))
    if to is UnitState.open:
        mine = (unit_days.c.unit == unit.id) & unit_days.c.claimed
        own = connection.execute(select(unit_days.c.dataset, unit_days.c.day).where(mine))
        _claim(connection, unit.id, [(dataset, day) for dataset, day in own])
    elif unit.state is UnitState.open:
        connection.execute(delete(claims).where(claims.c.unit == unit.id))
        lose_attempts(connection, attempts.c.unit == unit.id, now)


def lose_attempts(connection: Connection, which: ColumnElement[bool], now: dt.datetime) -> None:
    """End the running ones of these attempts: whatever they still do has no effect."""
    running = which & (attempts.c.state == AttemptState.running.value)
    connection.execute(update(attempts).where(running).values(state=AttemptState.lost.value, ended_at=now))


def _load(connection: Connection, wanted: ColumnElement[bool]) -> tuple[Unit, ...]:
    ids = select(units.c.id).where(wanted)
    targets: dict[str, dict[str, list[dt.date]]] = defaultdict(lambda: defaultdict(list))
    own = select(unit_days.c.unit, unit_days.c.dataset, unit_days.c.day).where(unit_days.c.unit.in_(ids))
    for unit, dataset, day in connection.execute(own):
        targets[unit][dataset].append(day)
    rows = connection.execute(select(units).where(wanted).order_by(units.c.opened_at.desc(), units.c.id.desc()))
    return tuple(unit_from_row(row, targets[row["id"]]) for row in rows.mappings())


def _released_since(connection: Connection, launch: Launch, now: dt.datetime) -> Unit | None:
    """The unit that released all days of a launch after it was made; None for live launches, which always build.

    Ignores releases dated in the future: their real time is unknown.
    """
    if launch.since is None or launch.live or launch.named_unit is not None:
        return None
    done = (releases.c.state == ReleaseState.finalized.value) & releases.c.created_at.between(launch.since, now + AHEAD)
    wanted = (units.c.state == UnitState.published.value) & units.c.id.in_(select(releases.c.unit).where(done))
    return next((unit for unit in _load(connection, wanted) if launch.days <= set(unit.days)), None)


def _claims(connection: Connection, dataset: str, days: Collection[dt.date]) -> dict[dt.date, str]:
    asked = frozenset(days)
    these = (claims.c.dataset == dataset) & span(claims.c.day, asked)
    rows = connection.execute(select(claims.c.day, claims.c.unit).where(these).order_by(claims.c.day))
    return {day: unit for day, unit in rows if day in asked}


def _taken(connection: Connection, targets: Mapping[str, Collection[dt.date]]) -> dict[DatasetDay, str]:
    return {
        (name, day): unit for name, days in targets.items() for day, unit in _claims(connection, name, days).items()
    }


def holds_on(connection: Connection, dataset: str, days: Collection[dt.date] | None) -> tuple[Hold, ...]:
    """Holds of a dataset by day; optionally on some days only."""
    these = holds.c.dataset == dataset
    if days is not None:
        these &= span(holds.c.day, days)
    asked = None if days is None else frozenset(days)
    rows = connection.execute(select(holds).where(these).order_by(holds.c.day))
    found = (Hold((row.dataset, row.day), row.reason, row.by, row.since) for row in rows)
    return tuple(h for h in found if asked is None or h.target[1] in asked)


def _refuse_misfit(launch: Launch, proposal: Unit) -> None:
    if proposal.opened_by != launch.opened_by or proposal.state is not UnitState.open:
        raise UnitError(
            f"the proposed unit {proposal.id} is {proposal.state.value} and opened by "
            f"{proposal.opened_by!r}; propose an open unit of the launch {launch.opened_by!r}"
        )
    strangers = launch.days - set(proposal.days)
    if not launch.days or strangers:
        raise UnitError(
            f"the proposed unit {proposal.id} holds {shown_days(proposal.days) or 'nothing'}, but "
            f"the launch requests {shown_days(launch.days) or 'nothing'}; propose at least these days"
        )


def _to_claim(
    connection: Connection, launch: Launch, proposal: Unit, claim: frozenset[DatasetDay]
) -> frozenset[DatasetDay]:
    """What the proposal should claim: the decided days of the launch, and all free days outside of it."""
    passes = launch.live and launch.late_data is LateData.publish
    others = set(proposal.days) - launch.days
    taken = _taken(connection, {name: {d for n, d in others if n == name} for name in proposal.targets})
    if taken and not passes:
        dataset = min(taken)[0]
        raise _claimed_elsewhere(dataset, {day: unit for (name, day), unit in taken.items() if name == dataset})
    return claim | frozenset(others - set(taken))


def _open(connection: Connection, proposal: Unit, claimed: frozenset[DatasetDay]) -> Unit:
    contract = canonical_json(proposal.contract)
    columns = ("id", "opened_by", "opened_at", "by", "mode", "state", "live")
    row = {name: getattr(proposal, name) for name in columns}
    connection.execute(insert(units).values(**row, contract=contract))
    days = [
        {"unit": proposal.id, "dataset": target[0], "day": target[1], "claimed": target in claimed}
        for target in sorted(set(proposal.days))
    ]
    connection.execute(insert(unit_days), days)
    _claim(connection, proposal.id, claimed)
    return load_unit(connection, proposal.id)


def _claim(connection: Connection, unit: str, wanted: Collection[DatasetDay]) -> None:
    by_dataset: dict[str, list[dt.date]] = defaultdict(list)
    for dataset, day in sorted(wanted):
        by_dataset[dataset].append(day)
    for dataset, days in by_dataset.items():
        taken = _claims(connection, dataset, days)
        if taken:
            raise _claimed_elsewhere(dataset, taken)
        connection.execute(insert(claims), [{"dataset": dataset, "day": day, "unit": unit} for day in days])


def _claimed_elsewhere(dataset: str, taken: Mapping[dt.date, str]) -> ClaimedDaysError:
    owner = min(taken.values())
    days = format_days(day for day, unit in taken.items() if unit == owner)
    return ClaimedDaysError(
        f"{dataset} {days}: claimed by open unit {owner}; publish it (backfill publish {owner}) "
        f"or give it up (backfill discard {owner}) first"
    )
