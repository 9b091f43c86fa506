"""Releases in the ledger (if they differ, the Delta log wins), and what is locked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from sqlalchemy import Connection, Row, RowMapping, delete, func, insert, select, update

from backfill_assets.core.canonical import digest, from_json
from backfill_assets.core.days import slices
from backfill_assets.core.errors import TakenBackError, UnitError
from backfill_assets.core.release import UNDO, Manifest, ReleaseKind, ReleaseState, corrected, is_ahead
from backfill_assets.core.unit import Lock, ReleaseHead, ReleaseRecord, UnitState, holds_of
from backfill_assets.ledger.codec import release_from_row
from backfill_assets.ledger.database import Rows, matching, read_meta, upsert
from backfill_assets.ledger.leases import DRIVER_WAIT, ENDED, DriverLease, IsOver, LeasedLock
from backfill_assets.ledger.schema import holds, locks, meta, releases, units
from backfill_assets.ledger.units import holds_on, load_unit, set_state

_TABLE = releases
_FEW: Final = 10


class ReleaseRows(Rows):
    """The releases of the ledger."""

    def intend(self, manifest: Manifest) -> None:
        """Store the intent of a release before its commit; safe to repeat with the same manifest.

        Raises:
            UnitError: a release of this name already exists, with another manifest or abandoned.
        """
        text = manifest.to_json()
        row = {
            "release": manifest.release, "dataset": manifest.dataset, "unit": manifest.unit,
            "state": ReleaseState.intent, "created_at": manifest.created_at, "manifest": text,
        }  # fmt: skip
        with self._database.write() as connection:
            known = select(_TABLE.c.state, _TABLE.c.manifest).where(_TABLE.c.release == manifest.release)
            found = connection.execute(known).one_or_none()
            if found is None:
                connection.execute(insert(_TABLE).values(row))
            elif found.manifest != text or found.state == ReleaseState.abandoned:
                raise UnitError(
                    f"release {manifest.release} exists ({found.state}) with "
                    f"{'this' if found.manifest == text else 'another'} manifest; give the new one a fresh id"
                )

    def intend_undo(self, undo: Manifest, version: int) -> None:
        """Mark the release that it undoes as finalized in its `version`, and store the intent of the undo; safe to repeat.

        In one transaction, and it leaves the unit as it is: the publication of the unit sees both or none. An undo that an earlier
        version abandoned stays so until its commit.

        Raises:
            UnitError: there is no such release, or its unit is published.
        """
        row = {
            "release": undo.release, "dataset": undo.dataset, "unit": undo.unit,
            "state": ReleaseState.intent.value, "created_at": undo.created_at, "manifest": undo.to_json(),
        }  # fmt: skip
        ours = _TABLE.c.release == undo.release
        with self._database.write() as connection:
            found = connection.execute(select(_TABLE.c.state).where(ours)).scalar_one_or_none()
            if found == ReleaseState.finalized:
                self._finalize(connection, undo.undoes, version, None)
                return
            if _unit_state(connection, undo.unit) is UnitState.published:
                raise UnitError(
                    f"unit {undo.unit} is published: no part of it is taken back alone; all of it: backfill rollback "
                    f"{undo.undoes} --reason '…'"
                )
            self._finalize(connection, undo.undoes, version, None)
            if found is None:
                connection.execute(insert(_TABLE).values(row))

    def finalize(self, release: str, version: int, committed_at: dt.datetime, unit_state: UnitState | None) -> None:
        """Mark a release as finalized and move its unit, unless that is None, in one transaction; safe to repeat.

        If it completes the publication of a unit, it ends the holds that older rollbacks put on its days, because these
        days are published again. Holds set by users stay.

        A commit finalizes even an abandoned intent. A unit that this ledger does not know is skipped (a
        ledger rebuilt from manifests).

        Raises:
            UnitError: there is no such release.
        """
        with self._database.write() as connection:
            self._finalize(connection, release, version, unit_state, committed_at)

    def finalize_publication(self, versions: Mapping[str, int]) -> None:
        """Mark all releases of a unit's publication as finalized and the unit as published, in one transaction, as `finalize` does.

        `versions` are those of the committed releases, by name. A publication that was finalized before, and maybe rolled back
        since, does not move the unit.

        Raises:
            UnitError: there is no such release.
            TakenBackError: a part of it is taken back, or the unit is discarded: nothing was changed.
        """
        undone = _TABLE.c.release.in_([release + UNDO for release in versions])
        with self._database.write() as connection:
            unit = _state(connection, next(iter(versions))).unit
            if _unit_state(connection, unit) is UnitState.discarded:
                raise TakenBackError(
                    f"unit {unit} was discarded while it was released; launch its days again for a new unit"
                )
            if connection.execute(select(_TABLE.c.release).where(undone).limit(1)).one_or_none() is not None:
                raise TakenBackError(
                    f"unit {unit}: another process found it half released and took that back, while this one stood still; "
                    f"nothing of it is published now: backfill publish {unit}"
                )
            left = [r for r in versions if _state(connection, r).state != ReleaseState.finalized]
            for release in left:
                state = UnitState.published if release == left[-1] else None
                self._finalize(connection, release, versions[release], state)

    def _finalize(
        self, connection: Connection, release: str, version: int, unit_state: UnitState | None,
        committed_at: dt.datetime | None = None,
    ) -> None:  # fmt: skip
        found = _state(connection, release)
        if found.state == ReleaseState.finalized:
            return
        manifest = from_json(Manifest, found.manifest)
        at = committed_at or manifest.created_at
        done = {"state": ReleaseState.finalized.value, "version": version, "committed_at": at}
        connection.execute(update(_TABLE).where(_TABLE.c.release == release).values(**done))
        targets = {manifest.dataset: tuple(swap.day for swap in manifest.days)}
        if _unit_state(connection, found.unit) is not None:
            unit = load_unit(connection, found.unit)
            set_state(connection, unit, unit_state or unit.state, self._clock.now())
            targets = dict(unit.targets)
        if unit_state is UnitState.published and manifest.kind is ReleaseKind.publish:
            _end_holds(connection, targets, found.number)

    def abandon(self, release: str) -> None:
        """Abandon an intent that was never committed; `UnitError` if it was, or if there is none."""
        with self._database.write() as connection:
            found = _state(connection, release)
            if found.state == ReleaseState.finalized:
                raise UnitError(f"release {release} is committed; undo it: backfill rollback {release} --reason '…'")
            ours = _TABLE.c.release == release
            connection.execute(update(_TABLE).where(ours).values(state=ReleaseState.abandoned.value))

    def returned(self, dataset: str, releases: Collection[str] | None = None) -> None:
        """Mark all finalized releases of a dataset, or these, as those of a table that is no longer there; safe to repeat."""
        ours = (_TABLE.c.dataset == dataset) & (_TABLE.c.state == ReleaseState.finalized.value)
        if releases is not None:
            ours &= _TABLE.c.release.in_(releases)
        with self._database.write() as connection:
            connection.execute(update(_TABLE).where(ours).values(state=ReleaseState.returned.value))

    def release(self, release: str) -> ReleaseRecord:
        """The release, or `UnitError`, which names the newest existing ones."""
        with self._database.read() as connection:
            row = connection.execute(select(_TABLE).where(_TABLE.c.release == release)).mappings().one_or_none()
            if row is None:
                raise _unknown(connection, release)
            return release_from_row(row, self._corrected(connection, [row]))

    def releases(
        self, dataset: str | None = None, unit: str | None = None, states: Collection[ReleaseState] = (), most: int | None = None
    ) -> tuple[ReleaseRecord, ...]:  # fmt: skip
        """Releases, newest first by number; optionally of one dataset, of one unit, in some states, or the newest ones only."""
        wanted = matching(_TABLE, dataset=dataset, unit=unit)
        if states:
            wanted &= _TABLE.c.state.in_([state.value for state in states])
        query = select(_TABLE).where(wanted).order_by(_TABLE.c.number.desc()).limit(most)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
            times = self._corrected(connection, rows)
        return tuple(release_from_row(row, times) for row in rows)

    def newest_release(self, dataset: str) -> str:
        """The newest finalized release of a dataset; empty if there is none."""
        ours = (_TABLE.c.dataset == dataset) & (_TABLE.c.state == ReleaseState.finalized.value)
        query = select(_TABLE.c.release).where(ours).order_by(_TABLE.c.number.desc()).limit(1)
        with self._database.read() as connection:
            return connection.execute(query).scalar() or ""

    def known_releases(self, names: Collection[str]) -> frozenset[str]:
        """Those of these releases that the ledger knows; at most a few hundred may be asked for."""
        with self._database.read() as connection:
            return frozenset(connection.execute(select(_TABLE.c.release).where(_TABLE.c.release.in_(names))).scalars())

    def states(self) -> Mapping[str, ReleaseState]:
        """The state of every release by name."""
        with self._database.read() as connection:
            rows = connection.execute(select(_TABLE.c.release, _TABLE.c.state)).all()
        return {row.release: ReleaseState(row.state) for row in rows}

    def heads(self) -> Mapping[str, ReleaseHead]:
        """The state, version and commit time of every release by name, without the manifests, which are long."""
        query = select(_TABLE.c.release, _TABLE.c.state, _TABLE.c.version, _TABLE.c.committed_at)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return {row.release: ReleaseHead(ReleaseState(row.state), row.version, row.committed_at) for row in rows}

    def knows_releases(self) -> bool:
        """Whether there is any release, finished or not."""
        with self._database.read() as connection:
            return connection.execute(select(_TABLE.c.number).limit(1)).first() is not None

    def _corrected(self, connection: Connection, rows: Sequence[RowMapping]) -> Mapping[str, dt.datetime]:
        """What `corrected` says of these releases, and maybe of others; looks at all of them only if it must."""
        number, at, now = _TABLE.c.number, _TABLE.c.committed_at, self._clock.now()
        newest = connection.execute(select(func.max(at))).scalar_one()
        if newest is None:
            return {}
        if is_ahead(newest, now):
            query = select(_TABLE.c.release, at).where(at.is_not(None)).order_by(number)
            return corrected([(row.release, row.committed_at) for row in connection.execute(query)], now)
        # None is in the future: what is dated before an earlier one counts as made at the time of that one.
        if len(rows) <= _FEW:
            own = [row for row in rows if row["committed_at"] is not None]
            before = [
                connection.execute(select(func.max(at)).where(number < row["number"])).scalar_one() for row in own
            ]
            return {
                row["release"]: high
                for row, high in zip(own, before, strict=True)
                if high is not None and row["committed_at"] < high
            }
        times = select(number, at, func.max(at).over(order_by=number).label("high")).where(at.is_not(None)).subquery()
        wrong = (
            select(_TABLE.c.release, times.c.high)
            .join(times, times.c.number == number)
            .where(times.c.committed_at < times.c.high)
        )
        return {row.release: row.high for row in connection.execute(wrong)}

    def lock(self, name: str, wait: dt.timedelta) -> AbstractContextManager[int]:
        """Hold a named lock (a lease that is renewed while held); yields its fencing token.

        The lease of a dead holder ends by itself. `LedgerError` names the holder if the lock is not free
        within `wait`.
        """
        return LeasedLock(self._database, self._clock, self._lock_pace, name).held(wait)

    def driver(
        self, place: str, driver: str, wait: dt.timedelta = DRIVER_WAIT, over: IsOver = ENDED
    ) -> AbstractContextManager[int]:
        """Let a Spark driver write the table at a place such as `raw/sales`; all others wait, in order of their arrival.

        Sessions of one driver write it at the same time. It is a lease like `lock`, so it does not stop a driver that hangs and
        comes back: whoever writes reads its commit back. `LedgerError` names the other driver if it is not free within `wait`.
        After an error, `over` says whether Spark has stopped working for the session; if not, others wait for the lease to end.
        """
        return DriverLease(self._database, self._clock, self._lock_pace, place, driver).held(wait, over)

    def turn(self, name: str, interval: dt.timedelta) -> dt.timedelta:
        """Take the turn of a name if the last one was taken at least an `interval` ago; otherwise, how long to wait for it."""
        with self._database.write() as connection:
            # A name may be longer than a key.
            key = f"turn {digest(name)[:32]}"
            now, last = self._clock.now(), read_meta(connection, meta, key)
            wait = dt.datetime.fromisoformat(last) + interval - now if last else dt.timedelta(0)
            # A longer wait would mean that the clock was set back.
            if dt.timedelta(0) < wait <= interval:
                return wait
            upsert(connection, meta, [{"key": key, "value": now.isoformat()}], replace=["value"])
        return dt.timedelta(0)

    def locks(self) -> tuple[Lock, ...]:
        """Locks that are held, or whose holder died before it released them, by name."""
        held = select(locks).where(locks.c.until.is_not(None)).order_by(locks.c.name)
        with self._database.read() as connection:
            return tuple(Lock(row.name, row.holder, row.until) for row in connection.execute(held))


def _end_holds(connection: Connection, targets: Mapping[str, Collection[dt.date]], number: int) -> None:
    """Delete the holds on these days that rollbacks before the release `number` made."""
    for dataset, days in targets.items():
        held = holds_on(connection, dataset, days)
        made = {hold.since for hold in held}
        older = (_TABLE.c.dataset == dataset) & _TABLE.c.created_at.in_(made) & (_TABLE.c.number < number)
        texts = connection.execute(select(_TABLE.c.manifest).where(older)).scalars() if held else ()
        of_rollbacks = {hold for text in texts for hold in holds_of(from_json(Manifest, text))}
        ended = [hold.target[1] for hold in held if hold in of_rollbacks]
        for some in slices(ended, 1000):
            connection.execute(delete(holds).where((holds.c.dataset == dataset) & holds.c.day.in_(some)))


def _state(connection: Connection, release: str) -> Row[int, str, str, str]:
    query = select(_TABLE.c.number, _TABLE.c.state, _TABLE.c.unit, _TABLE.c.manifest).where(_TABLE.c.release == release)
    found = connection.execute(query).one_or_none()
    if found is None:
        raise _unknown(connection, release)
    return found


def _unit_state(connection: Connection, unit: str) -> UnitState | None:
    """The state of a unit; None if this ledger does not know it."""
    found = connection.execute(select(units.c.state).where(units.c.id == unit)).scalar_one_or_none()
    return None if found is None else UnitState(found)


def _unknown(connection: Connection, release: str) -> UnitError:
    newest = select(_TABLE.c.release).order_by(_TABLE.c.number.desc()).limit(5)
    known = connection.execute(newest).scalars().all()
    there = f"the newest are {', '.join(known)}" if known else "none exists yet"
    return UnitError(f"there is no release {release!r}; {there}; see: backfill releases")
