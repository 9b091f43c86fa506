"""What the ledger stores comes back exactly: equal values, equal hashes."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.campaign.plan import Estimate, Plan, PlannedDataset, Step, StepKind
from backfill_assets.core.canonical import canonical_json, from_json, to_json
from backfill_assets.core.certificate import Certificate, Disagreement, Prints, Recomputation
from backfill_assets.core.evidence import Basis, DayEvidence, Severity, Verdict
from backfill_assets.core.expected_change import ANY, Change, Clause, Contract
from backfill_assets.core.layers import Layer
from backfill_assets.core.measured import (
    DayComparison,
    DayMeasurement,
    RowChange,
    Share,
    Side,
    SourceState,
    UpstreamState,
)
from backfill_assets.core.release import DataFile, DaySwap, Manifest, ReleaseKind
from backfill_assets.ledger.codec import evidence_from_text

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
edges = st.decimals(allow_nan=False, allow_infinity=False)
changes = st.builds(Change, edges, edges) | st.just(ANY)
by_name = st.dictionaries(texts, changes, max_size=3)
clauses = st.builds(Clause, st.lists(days, max_size=3).map(tuple), by_name, rows=by_name)
contracts = st.builds(Contract, st.lists(clauses, max_size=3).map(tuple))
text_by_name = st.dictionaries(texts, texts, max_size=2)
sums = st.dictionaries(texts, decimals, max_size=2)
keys = st.dictionaries(texts, values, max_size=2)
row_changes = st.builds(RowChange, texts, days, keys, st.none() | decimals, st.none() | decimals)
comparisons = st.builds(
    DayComparison,
    *(texts, days, counts, counts, counts, sums),
    st.lists(row_changes, max_size=2).map(tuple),
    st.lists(st.builds(Share, texts, texts, counts, counts, sums), max_size=2).map(tuple),
)
some_days = st.lists(days, max_size=3).map(tuple)
prints = st.builds(Prints, counts, counts, text_by_name, text_by_name, texts)
disagreements = st.builds(
    Disagreement, days, texts, st.lists(texts, max_size=2).map(tuple), st.lists(keys, max_size=2).map(tuple)
)
certificates = st.builds(
    Certificate,
    *(texts, texts, texts, some_days, texts, st.dictionaries(days, texts, max_size=2)),
    st.lists(st.builds(Recomputation, texts, text_by_name), max_size=2).map(tuple),
    st.dictionaries(texts, st.dictionaries(days, prints, max_size=2), max_size=2),
    st.lists(disagreements, max_size=2).map(tuple),
    *(st.lists(texts, max_size=2).map(tuple), moments, texts),
)
sorted_days = st.sets(days, max_size=4).map(sorted).map(tuple)
planned = st.builds(
    PlannedDataset,
    *(texts, st.lists(st.sampled_from(Layer), max_size=2).map(tuple), sorted_days, texts),
    *(st.dictionaries(days, texts, max_size=2), counts, counts),
)
plans = st.builds(
    Plan,
    *(texts, texts, moments, st.lists(planned, max_size=2).map(tuple), some_days),
    st.lists(st.builds(Step, counts, st.sampled_from(StepKind), texts, sorted_days), max_size=2).map(tuple),
    st.builds(Estimate, counts, counts, counts, st.floats(0, 1e9), texts),
    st.lists(texts, max_size=2).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(evidences)
def test_evidence_keeps_its_hash(evidence: DayEvidence) -> None:
    text = canonical_json(evidence)
    back = evidence_from_text(text)
    assert back.hash == evidence.hash
    assert back.recorded_at == evidence.recorded_at
    assert back.recorded_at.utcoffset() == dt.timedelta(0)
    assert canonical_json(back) == text
    for side in (back.measured.shadow, back.measured.published, back.measured.staging):
        assert all(value is None or isinstance(value, Decimal) for value in side.metrics.values())


@settings(max_examples=20, deadline=None)
@given(evidences)
def test_whether_evidence_is_altered_is_decided_for_each_reading(evidence: DayEvidence) -> None:
    text = canonical_json(evidence)
    assert evidence_from_text(text, "another").altered
    vars(evidence_from_text(text, evidence.hash))["altered"] = True
    assert not evidence_from_text(text, evidence.hash).altered
    assert not evidence_from_text(text).altered


@settings(max_examples=60, deadline=None)
@given(manifests)
def test_a_manifest_keeps_its_hash(manifest: Manifest) -> None:
    back = from_json(Manifest, manifest.to_json())
    assert back == manifest
    assert back.hash == manifest.hash


@settings(max_examples=60, deadline=None)
@given(contracts)
def test_a_contract_keeps_every_digit(contract: Contract) -> None:
    back = from_json(Contract, canonical_json(contract))
    assert back == contract
    assert canonical_json(back) == canonical_json(contract)


@settings(max_examples=60, deadline=None)
@given(comparisons | certificates)
def test_a_proof_comes_back_to_the_letter(record: DayComparison | Certificate) -> None:
    text = canonical_json(record)
    assert canonical_json(from_json(type(record), text)) == text


@settings(max_examples=60, deadline=None)
@given(plans)
def test_a_plan_keeps_its_days_although_they_are_stored_as_ranges(plan: Plan) -> None:
    back = from_json(Plan, to_json(plan))
    assert back == plan
    assert (back.fingerprint, to_json(back)) == (plan.fingerprint, to_json(plan))


def test_the_stored_text_is_plain_json() -> None:
    contract = Contract((Clause((dt.date(2013, 3, 1),), {"row_count": Change(Decimal("-0.50"), Decimal(0))}),))
    stored = json.loads(canonical_json(contract))
    changes = {"row_count": {"low": "-0.50", "high": "0"}}
    assert stored == {"clauses": [{"dataset": "", "days": ["2013-03-01"], "metrics": changes, "rows": {}}]}
