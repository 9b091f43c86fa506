"""What Dagster is told of evidence: one asset-check result per check and day, with the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dagster as dg

from backfill_assets.core.evidence import DayEvidence, Severity, Verdict
from backfill_assets.orchestration.materializations import last_materializations
from backfill_assets.orchestration.names import asset_key
from dagster_batched_events import batched_events


def evaluations(
    instance: dg.DagsterInstance, name: str, evidence: Sequence[DayEvidence]
) -> Iterator[dg.AssetCheckEvaluation]:
    """One result per check and day, each naming the materialization that it judged; refused days last."""
    key = asset_key("shadow", name)
    targets = last_materializations(instance, key, [e.day for e in evidence])
    with batched_events(instance):
        # Refused days last: Dagster shows the newest result as the state of the whole check.
        for day in sorted(evidence, key=lambda e: (not e.passed, e.day)):
            for verdict in day.verdicts:
                yield dg.AssetCheckEvaluation(
                    asset_key=key,
                    check_name=verdict.check,
                    passed=verdict.passed,
                    partition=day.day.isoformat(),
                    severity=_severity(verdict),
                    blocking=verdict.blocks,
                    description=f"expected {verdict.expected}, found {verdict.found}"
                    + (f" ({verdict.note})" if verdict.note else ""),
                    metadata=_metadata(verdict, day),
                    target_materialization_data=targets.get(day.day),
                )


def _severity(verdict: Verdict) -> dg.AssetCheckSeverity:
    return dg.AssetCheckSeverity.ERROR if verdict.severity is Severity.error else dg.AssetCheckSeverity.WARN


def _metadata(verdict: Verdict, day: DayEvidence) -> dict[str, dg.MetadataValue]:
    metadata: dict[str, dg.MetadataValue] = {
        "expected": dg.MetadataValue.text(verdict.expected),
        "found": dg.MetadataValue.text(verdict.found),
        "tolerance": dg.MetadataValue.text(verdict.tolerance or "none"),
        "unit": dg.MetadataValue.text(day.unit),
        # As text: Dagster would draw a chart of a number, and this one means nothing over time.
        "attempt": dg.MetadataValue.text(str(day.attempt)),
        "evidence": dg.MetadataValue.text(day.hash),
    }
    if verdict.note:
        metadata["note"] = dg.MetadataValue.text(verdict.note)
    if verdict.sample:
        metadata["sample"] = dg.MetadataValue.table(
            [dg.TableRecord({k: _cell(v) for k, v in r.items()}) for r in verdict.sample]
        )
    return metadata


def _cell(value: object) -> str | int | float | bool | None:
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
