"""`backfill backup` and `backfill restore`, as people call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from backfill_assets.core.errors import ArgumentError, BackupError, LayoutError, LedgerError
from backfill_assets_tests.harness.console import Run

pytestmark = pytest.mark.slow


def test_a_backup_is_made_listed_and_restored_elsewhere(
    run: Run, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("adopt", "orders", "--from", str(lake), "--key", "order_id")
    assert run("adopt", "orders", "--from", str(lake), "--drained", "--reason", "it was there before").exit_code == 0
    place = str(tmp_path / "backups")
    made = run("backup", place).output
    assert f"restore it with: backfill restore {place} --backup b_" in made.replace("\n", " ").replace("  ", " ")
    assert "of 2 tables, and the ledger" in made.replace("\n", " ")
    again = json.loads(run("backup", place, "--keep", "1", "--json").output)
    assert (again["new"], len(again["removed"])) == (0, 1)
    assert [table["place"] for table in again["backup"]["tables"]] == ["raw/orders", "published/orders"]
    (listed,) = json.loads(run("restore", place, "--list", "--json").output)
    assert listed == again["backup"]
    assert listed["id"] in run("restore", place, "--list").output
    with pytest.raises(LedgerError, match="is not empty"):
        run("restore", place)
    assert run("restore", place, "--verify").output.replace("\n", " ").rstrip().endswith(": whole")
    file = next(file for file in (tmp_path / "backups" / "files").rglob("*") if file.is_file())
    before = file.read_bytes()
    file.write_bytes(b"x" * len(before))
    damaged = run("restore", place, "--verify", "--backup", listed["id"])
    assert damaged.exit_code == 1
    assert "damaged: 1 file" in damaged.output
    assert file.name in damaged.output.replace("\n", "")
    as_json = run("restore", place, "--verify", "--json")
    assert (as_json.exit_code, json.loads(as_json.output)) == (1, {listed["id"]: [str(file)]})
    file.write_bytes(before)
    summary = tmp_path / "backups" / "backups" / listed["id"] / "backup.json"
    described = summary.read_text()
    summary.write_text("{")
    as_json = run("restore", place, "--verify", "--json")
    assert (as_json.exit_code, json.loads(as_json.output)) == (1, {listed["id"]: [str(summary)]})
    summary.write_text(described)

    monkeypatch.setenv("BACKFILL_ASSETS_STATE", str(tmp_path / "new"))
    with pytest.raises(BackupError, match="no backup b_1; it has: b_"):
        run("restore", place, "--backup", "b_1")
    told = run("restore", place).output
    assert f"restored backup {listed['id']}" in told
    (release,) = json.loads(run("releases", "orders", "--json").output)
    assert (release["kind"], release["state"]) == ("baseline", "finalized")
    folder = run("path", "orders").output.strip()
    assert Path(folder).is_relative_to(tmp_path / "new")
    assert DeltaTable(folder).to_pyarrow_table().num_rows == 2
    assert run("doctor").output.strip() == "everything that was compared agrees"
    with pytest.raises(BackupError, match=f"backup {listed['id']} has been restored into ledger .+ already"):
        run("restore", place)


def test_a_restore_in_place_of_a_ledger_has_to_be_said(
    run: Run, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("adopt", "orders", "--from", str(lake), "--key", "order_id").exit_code == 0
    assert run("adopt", "orders", "--from", str(lake), "--drained", "--reason", "it was there before").exit_code == 0
    place = str(tmp_path / "backups")
    run("backup", place)
    monkeypatch.setenv("BACKFILL_ASSETS_LEDGER_URL", f"sqlite:///{tmp_path / 'new.db'}")
    with pytest.raises(LayoutError, match=r"ledger\.db, as its file _owner says.*--instead-of-its-ledger"):
        run("restore", place)
    assert "restored backup b_" in run("restore", place, "--instead-of-its-ledger").output
    assert "copied: 0 new data files" in run("backup", place).output.replace("\n", " ")
    monkeypatch.delenv("BACKFILL_ASSETS_LEDGER_URL")
    with pytest.raises(LayoutError, match="belongs to another ledger"):
        run("backup", place)


@pytest.mark.parametrize("place", ["gs://bucket/backups", "s3://UPPER/x", "ftp://host/x"])
def test_a_place_that_cannot_hold_backups_is_refused_by_name(run: Run, place: str) -> None:
    for words in (("backup", place), ("restore", place)):
        with pytest.raises(ArgumentError, match=f"'{place}' cannot be used; "):
            run(*words)


def test_there_is_nothing_to_restore_from_an_empty_folder(run: Run, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="has no complete backup; make one: backfill backup"):
        run("restore", str(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists()
    assert not (tmp_path / ".state" / "ledger.db").exists()
