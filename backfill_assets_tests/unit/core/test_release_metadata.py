"""A release says more than it used to, and old releases still say exactly the same."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from backfill_assets.core.canonical import from_json
from backfill_assets.core.release import Manifest, ReleaseKind, ReleaseState
from backfill_assets.core.unit import ReleaseRecord
from backfill_assets.delta.releases_table import ReleaseRow, differing, projection

BEFORE = (
    '{"by":"ada","code_version":"c0de","created_at":"2026-03-01T12:00:00+00:00","dataset":"sales","days":[{"add":[{"day":'
    '"2026-01-01","modified":1772366400000,"path":"_shadow/u_1/1/b.parquet","size":812,"stats":"{\\"numRecords\\":1}"}],'
    '"day":"2026-01-01","evidence":"ev","remove":[{"day":"2026-01-01","modified":1772366400000,"path":'
    '"_shadow/u_0/1/a.parquet","size":812,"stats":"{\\"numRecords\\":1}"}]}],"evidence":"e","kind":"publish","reason":'
    '"tax fix","release":"r_0002","undoes":"","unit":"u_0001"}'
)
"""A manifest from before releases named campaigns."""
HASH = "fbcc25396c9994cd5894a5190ae49aa8ef78fe7c86e962a4c552331867ff6e80"
NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def test_an_old_manifest_keeps_its_text_and_its_hash() -> None:
    manifest = from_json(Manifest, BEFORE)
    assert manifest.to_json() == BEFORE
    assert manifest.hash == HASH
    assert (manifest.campaign, manifest.approved_by, manifest.source_range) == ("", "", "")
    assert {"campaign", "approved_by", "source_range"} & manifest.metadata().keys() == set()


def test_what_a_campaign_adds_is_stored_hashed_and_committed() -> None:
    added = {"campaign": "tax-fix", "approved_by": "anna", "source_range": "1995-01-01..1996-06-30"}
    manifest = replace(from_json(Manifest, BEFORE), **added)  # type: ignore[arg-type]
    assert manifest.hash != HASH
    assert from_json(Manifest, manifest.to_json()) == manifest
    observed = manifest.metadata()
    assert {key: observed[key] for key in added} == added
    assert observed["published_at"] == "2026-03-01T12:00:00+00:00"
    assert observed["manifest"] == manifest.hash


def test_only_a_publication_says_when_it_was_published() -> None:
    back = replace(from_json(Manifest, BEFORE), kind=ReleaseKind.rollback)
    assert "published_at" not in back.metadata()


def test_the_row_of_a_release_holds_null_where_nothing_applies() -> None:
    (row,) = projection([ReleaseRecord(from_json(Manifest, BEFORE), ReleaseState.finalized, 7, NOW)])
    assert row == ReleaseRow(
        dataset="sales", release="r_0002", kind="publish", state="finalized", published_at=NOW,
        first_day=dt.date(2026, 1, 1), last_day=dt.date(2026, 1, 1), days=1, source_range=None, code_version="c0de",
        released_by="ada", approved_by=None, evidence="e", campaign=None, unit="u_0001", undoes=None, reason="tax fix",
        version=7,
    )  # fmt: skip


def test_missing_surplus_and_different_rows_are_named() -> None:
    record = ReleaseRecord(from_json(Manifest, BEFORE), ReleaseState.finalized, 7, NOW)
    (row,) = projection([record])
    assert differing([row], [row]) == ()
    assert differing([row], []) == differing([], [row]) == differing([row], [replace(row, version=8)]) == ("r_0002",)
