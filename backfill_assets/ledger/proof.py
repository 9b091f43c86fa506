"""Comparisons of days, and certificates of idempotency."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from functools import cache

from pydantic import ConfigDict, TypeAdapter
from sqlalchemy import ColumnElement, func, insert, select, true

from backfill_assets.core.canonical import canonical_json
from backfill_assets.core.certificate import Certificate
from backfill_assets.core.errors import UnitError
from backfill_assets.core.evidence import DatasetDay
from backfill_assets.core.measured import DayComparison
from backfill_assets.ledger.attempts import living
from backfill_assets.ledger.database import span, upsert
from backfill_assets.ledger.proof_schema import certificates, comparisons
from backfill_assets.ledger.rows import Rows

_COMPARISONS = comparisons
_CERTIFICATES = certificates


class ProofRows(Rows):
    """The proof of the ledger."""

    def add_comparisons(self, attempt: int, comparisons: Iterable[DayComparison]) -> None:
        """Store what an attempt's days differ in, replacing older comparisons of these days.

        Raises:
            LeaseLostError: the attempt is not running, or its lease is over.
            UnitError: a comparison is not of this attempt's dataset and days.
        """
        given = tuple(comparisons)
        with self._database.write() as connection:
            held = living(connection, attempt, self._clock.now())
            for one in given:
                if (one.dataset, one.attempt) != (held.dataset, held.number) or one.day not in held.days:
                    raise UnitError(
                        f"the comparison of {one.dataset} {one.day}, attempt {one.attempt}, does not belong to attempt "
                        f"{attempt} ({held.dataset}); give each attempt its own"
                    )
            rows = [
                {"unit": held.unit, "dataset": one.dataset, "day": one.day, "attempt": attempt}
                | {"body": canonical_json(one)}
                for one in given
            ]
            upsert(connection, _COMPARISONS, rows, replace=["attempt", "body"])

    def comparisons(
        self, unit: str, dataset: str | None = None, days: Collection[dt.date] | None = None
    ) -> Mapping[DatasetDay, DayComparison]:
        """The newest comparison of each day of a unit, optionally only of one dataset or of some days."""
        wanted = _COMPARISONS.c.unit == unit
        if dataset is not None:
            wanted &= _COMPARISONS.c.dataset == dataset
        if days is not None:
            wanted &= span(_COMPARISONS.c.day, days)
        query = select(_COMPARISONS.c.body).where(wanted).order_by(_COMPARISONS.c.dataset, _COMPARISONS.c.day)
        with self._database.read() as connection:
            bodies = connection.execute(query).scalars().all()
        asked = None if days is None else frozenset(days)
        found = (_comparison().validate_json(f"[{body}]")[0] for body in bodies)
        return {(one.dataset, one.day): one for one in found if asked is None or one.day in asked}

    def add_certificate(self, certificate: Certificate) -> None:
        """Store a certificate; one that is there already changes nothing."""
        row = {name: getattr(certificate, name) for name in ("id", "dataset", "unit", "at")}
        with self._database.write() as connection:
            known = select(_CERTIFICATES.c.id).where(_CERTIFICATES.c.id == certificate.id)
            if connection.execute(known).one_or_none() is None:
                newest = connection.execute(select(func.max(_CERTIFICATES.c.number))).scalar_one() or 0
                body = canonical_json(certificate)
                connection.execute(insert(_CERTIFICATES).values(**row, body=body, number=newest + 1))

    def certificates(self, dataset: str | None = None, unit: str | None = None) -> tuple[Certificate, ...]:
        """Certificates, newest first, optionally only those of one dataset or of one unit."""
        wanted: ColumnElement[bool] = true()
        if dataset is not None:
            wanted &= _CERTIFICATES.c.dataset == dataset
        if unit is not None:
            wanted &= _CERTIFICATES.c.unit == unit
        # Those of before they were counted have no number; among them the time decides.
        newest = (_CERTIFICATES.c.number.desc(), _CERTIFICATES.c.at.desc(), _CERTIFICATES.c.id.desc())
        query = select(_CERTIFICATES.c.body).where(wanted).order_by(*newest)
        with self._database.read() as connection:
            bodies = connection.execute(query).scalars().all()
        return tuple(_certificate().validate_json(f"[{body}]")[0] for body in bodies)


@cache
def _comparison() -> TypeAdapter[tuple[DayComparison]]:
    # A tuple, because a dataclass cannot be told to take NaN from outside.
    return TypeAdapter(tuple[DayComparison], config=ConfigDict(allow_inf_nan=True))


@cache
def _certificate() -> TypeAdapter[tuple[Certificate]]:
    return TypeAdapter(tuple[Certificate], config=ConfigDict(allow_inf_nan=True))
