"""What the ledger stores comes back to the letter: equal values, equal hashes."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.core.canonical import canonical_json
from backfill_assets.core.evidence import Basis, DayEvidence, Severity, Verdict
from backfill_assets.core.expected_change import Change, Clause, Contract
from backfill_assets.core.measured import DayMeasurement, Side, SourceState, UpstreamState
from backfill_assets.core.release import DataFile, DaySwap, Manifest, ReleaseKind
from backfill_assets.ledger.codec import contract_from_text, contract_to_text, evidence_from_text, evidence_to_text

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
counts = st.integers(0, 2**63 - 1)
days = st.dates(dt.date(1970, 1, 1), dt.date(2100, 1, 1))
moments = st.datetimes(timezones=st.just(dt.UTC))
decimals = st.decimals() | st.sampled_from([Decimal(t) for t in ("NaN", "-NaN", "1E+40", "-0", "0E-12", "1.500")])
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
files = st.builds(DataFile, texts, counts, days, counts, texts)
sides = st.builds(
    Side,
    st.dictionaries(texts, st.none() | decimals, max_size=3),
    st.dictionaries(texts, counts, max_size=3),
    texts,
)
sources = st.builds(SourceState, counts, counts, counts, counts, st.none() | moments, counts)
upstreams = st.builds(
    UpstreamState,
    st.dictionaries(texts, counts, max_size=3),
    st.dictionaries(texts, st.none() | decimals, max_size=3),
    absent=st.dictionaries(texts, st.lists(days, max_size=2).map(tuple), max_size=2),
)
rows = st.dictionaries(texts, values | st.lists(values, max_size=2), max_size=2)
verdicts = st.builds(
    Verdict,
    *(texts, days, st.booleans(), st.sampled_from(Severity), st.booleans(), texts, texts, texts, texts),
    st.lists(rows, max_size=2).map(tuple),
)
evidences = st.builds(
    DayEvidence,
    *(texts, counts, texts, days, st.builds(Basis, texts, texts, texts, texts, texts)),
    st.lists(files, max_size=2).map(tuple),
    st.builds(DayMeasurement, days, sides, sides, sides, sources, upstreams),
    st.lists(verdicts, max_size=2).map(tuple),
    moments,
)
swaps = st.builds(DaySwap, days, st.lists(files, max_size=2).map(tuple), st.lists(files, max_size=2).map(tuple), texts)
manifests = st.builds(
    Manifest,
    *(texts, st.sampled_from(ReleaseKind), texts, texts, texts, moments, texts, texts),
    st.lists(swaps, max_size=3).map(tuple),
    *(texts, texts),
)
changes = st.builds(
    Change, st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False, allow_infinity=False)
)
by_name = st.dictionaries(texts, changes, max_size=3)
clauses = st.builds(Clause, st.lists(days, max_size=3).map(tuple), by_name, rows=by_name)
contracts = st.builds(Contract, st.lists(clauses, max_size=3).map(tuple))


@settings(max_examples=60, deadline=None)
@given(evidences)
def test_evidence_keeps_its_hash(evidence: DayEvidence) -> None:
    text = evidence_to_text(evidence)
    assert text == canonical_json(evidence)
    back = evidence_from_text(text)
    assert back.hash == evidence.hash
    assert back.recorded_at == evidence.recorded_at
    assert back.recorded_at.utcoffset() == dt.timedelta(0)
    assert evidence_to_text(back) == text
    for side in (back.measured.shadow, back.measured.published, back.measured.staging):
        assert all(value is None or isinstance(value, Decimal) for value in side.metrics.values())


@settings(max_examples=20, deadline=None)
@given(evidences)
def test_what_is_said_of_evidence_is_said_of_this_reading_alone(evidence: DayEvidence) -> None:
    text = evidence_to_text(evidence)
    assert evidence_from_text(text, "another").altered
    vars(evidence_from_text(text, evidence.hash))["altered"] = True
    assert not evidence_from_text(text, evidence.hash).altered
    assert not evidence_from_text(text).altered


@settings(max_examples=60, deadline=None)
@given(manifests)
def test_a_manifest_keeps_its_hash(manifest: Manifest) -> None:
    back = Manifest.from_json(manifest.to_json())
    assert back == manifest
    assert back.hash == manifest.hash


@settings(max_examples=60, deadline=None)
@given(contracts)
def test_a_contract_keeps_every_digit(contract: Contract) -> None:
    back = contract_from_text(contract_to_text(contract))
    assert back == contract
    assert canonical_json(back) == canonical_json(contract)


def test_the_stored_text_is_plain_json() -> None:
    contract = Contract((Clause((dt.date(2013, 3, 1),), {"row_count": Change(Decimal("-0.50"), Decimal(0))}),))
    stored = json.loads(contract_to_text(contract))
    changes = {"row_count": {"low": "-0.50", "high": "0"}}
    assert stored == {"clauses": [{"dataset": "", "days": ["2013-03-01"], "metrics": changes, "rows": {}}]}
