"""Attempts with their leases, and the evidence, which only a running attempt may add."""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, func, insert, select, update

from backfill_assets.core.canonical import canonical_json, digest
from backfill_assets.core.content import Content, KeptDay
from backfill_assets.core.days import format_days, slices
from backfill_assets.core.errors import LeaseLostError, LedgerError, UnitError
from backfill_assets.core.evidence import DatasetDay, DayEvidence
from backfill_assets.core.release import layout_digest
from backfill_assets.core.unit import Attempt, AttemptState, DayFindings, Unit, UnitState, Work
from backfill_assets.ledger.codec import attempt_from_row, evidence_from_text, findings_from_text, work_columns
from backfill_assets.ledger.database import matching, span, upsert, worker_name
from backfill_assets.ledger.deliveries import DeliveryRows
from backfill_assets.ledger.schema import attempt_days, attempts, codes, contents, evidence, kept_days
from backfill_assets.ledger.units import load_unit, lose_attempts

_TABLE = attempts
_EVIDENCE = evidence
_CONTENTS = contents
_KEPT = kept_days
_MEASURED: Final = ("fingerprint", "upstream", "inputs", "deliveries", "references", "parts")
_RUNNING = attempts.c.state == AttemptState.running.value
_DIGITS: Final = 16
_PAGE = 1000
"""How many rows one query requests; databases limit the values of a query."""
_AT_THE_START = ("unit", "dataset", "run", "worker", "state", "started_at", "lease_until")


class WorkRows(DeliveryRows):
    """The attempts, evidence, contents and kept days of the ledger."""

    def start_attempt(
        self, unit: str, dataset: str, days: Sequence[dt.date], run: str, lease: dt.timedelta,
        work: Work | None = None, beside: Collection[int] = (),
    ) -> Attempt:  # fmt: skip
        """Begin an attempt with a lease; older running attempts of its run, or on its days, are lost.

        Its cost, as far as it is known as `work`, counts however it ends. Attempts of its run that are `beside` it, by their
        numbers, stay as they are: the same step works on them now.

        Raises:
            UnitError: there is no such unit, it is not open, or the days are not its own.
        """
        now, chosen = self._clock.now(), tuple(sorted(set(days)))
        begun = Attempt(0, unit, dataset, chosen, run, worker_name(), AttemptState.running, now, now + lease)
        row = {name: getattr(begun, name) for name in _AT_THE_START} | (work_columns(work) if work else {})
        with self._database.write() as connection:
            _refuse_foreign_days(load_unit(connection, unit), dataset, chosen)
            older = (_TABLE.c.run == run) & (_TABLE.c.dataset == dataset) & _TABLE.c.number.not_in(beside)
            lose_attempts(connection, older | _works_on(connection, unit, dataset, chosen), now)
            number = connection.execute(insert(_TABLE).values(row).returning(_TABLE.c.number)).scalar_one()
            connection.execute(insert(attempt_days), [{"attempt": number, "day": day} for day in chosen])
        return replace(begun, number=number, **(vars(work) if work else {}))

    def renew(self, number: int, lease: dt.timedelta) -> None:
        """Extend the lease; `LeaseLostError` if the attempt is no longer running."""
        own = (_TABLE.c.number == number) & _RUNNING
        with self._database.write() as connection:
            changed = update(_TABLE).where(own).values(lease_until=self._clock.now() + lease)
            if not connection.execute(changed).rowcount:
                raise LeaseLostError(_lost(connection, number))

    def end_attempt(self, number: int, state: AttemptState, work: Work | None = None) -> None:
        """End a running attempt, with its cost if known; does nothing if it is not running."""
        if state is AttemptState.running:
            raise UnitError(f"attempt {number} cannot end as running; end it as done, failed or lost")
        taken = work_columns(work) if work else {}
        own = (_TABLE.c.number == number) & _RUNNING
        with self._database.write() as connection:
            end = update(_TABLE).where(own).values(state=state.value, ended_at=self._clock.now(), **taken)
            connection.execute(end)

    def attempts(
        self, unit: str | None = None, state: AttemptState | None = None, run: str | None = None
    ) -> tuple[Attempt, ...]:
        """Attempts by number; the lease of a running one may have ended (compare `lease_until`)."""
        wanted = matching(_TABLE, unit=unit, state=state and state.value, run=run)
        with self._database.read() as connection:
            return _load(connection, wanted)

    def add_evidence(self, attempt: int, evidence: Iterable[DayEvidence]) -> None:
        """Store evidence; the newest of a (unit, dataset, day) counts.

        Raises:
            LeaseLostError: the attempt is not running, or its lease has ended.
            UnitError: evidence is not of this attempt's unit, dataset and days.
        """
        given = tuple(evidence)
        rows = [
            {name: getattr(e, name) for name in ("unit", "attempt", "dataset", "day", "recorded_at")}
            | {"body": canonical_json(e), "hash": e.hash}
            for e in given
        ]
        with self._database.write() as connection:
            _refuse_foreign_evidence(living(connection, attempt, self._clock.now()), given)
            if rows:
                connection.execute(insert(_EVIDENCE), rows)
            measured = [_content(e) for e in given if e.verdicts]
            upsert(connection, _CONTENTS, measured, replace=_MEASURED)

    def contents(self, dataset: str, layouts: Mapping[dt.date, str]) -> Mapping[dt.date, Content]:
        """The known content of each day's files, given their layout digests."""
        asked = (_CONTENTS.c.dataset == dataset) & span(_CONTENTS.c.day, layouts)
        with self._database.read() as connection:
            rows = connection.execute(select(_CONTENTS).where(asked)).all()
        return {row.day: _content_of(row) for row in rows if layouts.get(row.day) == row.layout}

    def add_contents(self, dataset: str, contents: Mapping[dt.date, tuple[str, Content]]) -> None:
        """Store the measured content of files that other writers wrote; existing entries stay as they are."""
        rows = [
            {"dataset": dataset, "day": day, "layout": layout, **_columns_of(content)}
            for day, (layout, content) in contents.items()
        ]
        with self._database.write() as connection:
            upsert(connection, _CONTENTS, rows)

    def add_code(self, dataset: str, digests: Mapping[str, str]) -> str:
        """Store the digests of the parts of a dataset's code, and return the name for all of them (16 hex digits)."""
        parts = digest(digests)[:_DIGITS]
        row = {"dataset": dataset, "parts": parts, "digests": canonical_json(digests)}
        with self._database.write() as connection:
            upsert(connection, codes, [row])
        return parts

    def codes(self, dataset: str) -> Mapping[str, Mapping[str, str]]:
        """The digests of the parts of all code that ever built a day of a dataset, by name."""
        with self._database.read() as connection:
            rows = connection.execute(select(codes).where(codes.c.dataset == dataset)).all()
        return {row.parts: json.loads(row.digests) for row in rows}

    def keep(self, words: Iterable[KeptDay]) -> None:
        """Record that somebody keeps published days as they are, or takes that back."""
        plain = ("dataset", "day", "about", "by", "at", "reason")
        rows = [
            {name: getattr(word, name) for name in plain}
            | _columns_of(word.content)
            | {"causes": " ".join(word.causes)}
            for word in words
        ]
        if rows:
            with self._database.write() as connection:
                connection.execute(insert(_KEPT), rows)

    def kept_days(self, dataset: str, days: Collection[dt.date] | None = None) -> tuple[KeptDay, ...]:
        """All that was said about keeping days of a dataset, newest first; optionally about some days only."""
        these = _KEPT.c.dataset == dataset
        if days is not None:
            these &= span(_KEPT.c.day, days)
        asked = None if days is None else frozenset(days)
        with self._database.read() as connection:
            rows = connection.execute(select(_KEPT).where(these).order_by(_KEPT.c.number.desc())).all()
        return tuple(
            KeptDay(
                row.dataset, row.day, row.about, None if row.fingerprint is None else _content_of(row),
                tuple(row.causes.split()), row.by, row.at, row.reason,
            )
            for row in rows
            if asked is None or row.day in asked
        )  # fmt: skip

    def evidence(
        self, unit: str, dataset: str | None = None, days: Collection[dt.date] | None = None
    ) -> Mapping[DatasetDay, DayEvidence]:
        """The evidence that counts, by dataset and day; optionally of one dataset or some days only.

        Computes its hash again: evidence that differs from what was recorded is `altered`.

        Raises:
            LedgerError: stored evidence cannot be read; names the day.
        """
        of_unit = matching(_EVIDENCE, unit=unit, dataset=dataset)
        if days is not None:
            of_unit &= span(_EVIDENCE.c.day, days)
        newest = select(func.max(_EVIDENCE.c.number)).where(of_unit).group_by(_EVIDENCE.c.dataset, _EVIDENCE.c.day)
        query = (
            select(_EVIDENCE)
            .where(of_unit, _EVIDENCE.c.number.in_(newest))
            .order_by(_EVIDENCE.c.dataset, _EVIDENCE.c.day)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        asked = None if days is None else frozenset(days)
        return {(row.dataset, row.day): _evidence(row) for row in rows if asked is None or row.day in asked}

    def findings(self, dataset: str, units: Mapping[dt.date, str]) -> Mapping[dt.date, DayFindings]:
        """The findings of each day in its given unit, by the evidence that counts; leaves out days without any."""
        wanted = _EVIDENCE.c.dataset == dataset
        if len(named := set(units.values())) == 1:
            wanted &= _EVIDENCE.c.unit == next(iter(named))
        newest = (
            select(_EVIDENCE.c.unit, _EVIDENCE.c.day, func.max(_EVIDENCE.c.number).label("number"))
            .where(wanted)
            .group_by(_EVIDENCE.c.unit, _EVIDENCE.c.day)
        )
        found: dict[dt.date, DayFindings] = {}
        with self._database.read() as connection:
            numbers = [row.number for row in connection.execute(newest) if units.get(row.day) == row.unit]
            for some in slices(numbers, _PAGE):
                bodies = select(_EVIDENCE.c.day, _EVIDENCE.c.body).where(_EVIDENCE.c.number.in_(some))
                found |= {row.day: findings_from_text(row.body) for row in connection.execute(bodies)}
        return found


def living(connection: Connection, number: int, now: dt.datetime) -> Attempt:
    """The attempt, if it may still store results.

    Raises:
        LeaseLostError: it is not running, or its lease has ended.
    """
    held = next(iter(_load(connection, (_TABLE.c.number == number) & _RUNNING)), None)
    if held is None or held.lease_until <= now:
        raise LeaseLostError(_lost(connection, number))
    return held


def _evidence(row: Row[Any]) -> DayEvidence:
    try:
        found = evidence_from_text(row.body, row.hash)
    except ValueError as error:
        raise LedgerError(
            f"evidence {row.number} of unit {row.unit}, {row.dataset} {row.day}, cannot be read: it was changed "
            "directly in the database; restore the ledger from a backup"
        ) from error
    if (found.unit, found.attempt, found.dataset, found.day) != (row.unit, row.attempt, row.dataset, row.day):
        vars(found)["altered"] = True
    return found


def _content(evidence: DayEvidence) -> dict[str, object]:
    return {
        "dataset": evidence.dataset,
        "day": evidence.day,
        "layout": layout_digest(evidence.shadow_files),
        "fingerprint": evidence.measured.shadow.fingerprint,
        "upstream": evidence.basis.upstream,
        "inputs": evidence.basis.inputs,
        "deliveries": _as_text(evidence.deliveries),
        "references": canonical_json(evidence.references),
        "parts": evidence.parts or None,
    }


def _content_of(row: Row[Any]) -> Content:
    return Content(
        row.fingerprint,
        row.upstream,
        row.inputs,
        _deliveries(row.deliveries),
        _references(row.references),
        row.parts,
    )


def _columns_of(content: Content | None) -> dict[str, object]:
    """A content, as columns of its row; all of them null for none."""
    if content is None:
        return dict.fromkeys(_MEASURED)
    return {
        **vars(content),
        "deliveries": None if content.deliveries is None else _as_text(content.deliveries),
        "references": None if content.references is None else canonical_json(content.references),
    }


def _as_text(deliveries: tuple[str, ...]) -> str:
    return " ".join(deliveries)


def _deliveries(stored: str | None) -> tuple[str, ...] | None:
    return None if stored is None else tuple(stored.split())


def _references(stored: str | None) -> Mapping[str, str] | None:
    return None if stored is None else json.loads(stored)


def _load(connection: Connection, wanted: ColumnElement[bool]) -> tuple[Attempt, ...]:
    days: dict[int, list[dt.date]] = defaultdict(list)
    own = select(attempt_days).where(attempt_days.c.attempt.in_(select(_TABLE.c.number).where(wanted)))
    for attempt, day in connection.execute(own):
        days[attempt].append(day)
    rows = connection.execute(select(_TABLE).where(wanted).order_by(_TABLE.c.number)).mappings()
    return tuple(attempt_from_row(row, days[row["number"]]) for row in rows)


def _works_on(connection: Connection, unit: str, dataset: str, days: Sequence[dt.date]) -> ColumnElement[bool]:
    asked = frozenset(days)
    query = (
        select(_TABLE.c.number, attempt_days.c.day)
        .join(attempt_days, attempt_days.c.attempt == _TABLE.c.number)
        .where(_TABLE.c.unit == unit, _TABLE.c.dataset == dataset, _RUNNING, span(attempt_days.c.day, asked))
    )
    return _TABLE.c.number.in_({number for number, day in connection.execute(query) if day in asked})


def _refuse_foreign_days(unit: Unit, dataset: str, days: Sequence[dt.date]) -> None:
    if unit.state is not UnitState.open:
        raise UnitError(f"unit {unit.id} is {unit.state.value}, not open; launch the days again for a new unit")
    if not days or not unit.holds(dataset, frozenset(days)):
        raise UnitError(
            f"unit {unit.id} holds {format_days(unit.targets.get(dataset, ()))} of {dataset}, but "
            f"the attempt requests {format_days(days)}; attempt only days of the unit"
        )


def _refuse_foreign_evidence(attempt: Attempt, evidence: Iterable[DayEvidence]) -> None:
    days = frozenset(attempt.days)
    for e in evidence:
        if (e.unit, e.attempt, e.dataset) != (
            attempt.unit,
            attempt.number,
            attempt.dataset,
        ) or e.day not in days:
            raise UnitError(
                f"evidence of unit {e.unit}, attempt {e.attempt}, {e.dataset} {e.day} does not belong to "
                f"attempt {attempt.number} (unit {attempt.unit}, {attempt.dataset} {format_days(days)}); "
                "store it with its own attempt"
            )


def _lost(connection: Connection, number: int) -> str:
    row = connection.execute(select(_TABLE).where(_TABLE.c.number == number)).one_or_none()
    if row is None:
        return f"there is no attempt {number}; start one first"
    expired = row.state == AttemptState.running
    why = f"its lease ended at {row.lease_until.isoformat()}" if expired else f"it is {row.state}"
    return (
        f"attempt {number} (unit {row.unit}, {row.dataset}, run {row.run}, {row.worker}) may not continue: "
        f"{why}; what it built has no effect. Launch the days again, or leave them to the newer attempt"
    )
