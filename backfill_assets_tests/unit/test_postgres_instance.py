"""The Dagster configuration for Postgres is the ordinary one, except for Dagster's storage."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
ORDINARY = ROOT / "dagster.yaml"
ON_POSTGRES = ROOT / "deploy" / "postgres" / "dagster.yaml"
AFTER_STORAGE = "\nlocal_artifact_storage:"


def test_both_agree_in_everything_but_the_storage() -> None:
    ordinary, on_postgres = (yaml.safe_load(file.read_text(encoding="utf-8")) for file in (ORDINARY, ON_POSTGRES))
    assert ordinary.pop("storage") != on_postgres.pop("storage")
    assert ordinary == on_postgres


def test_both_give_the_same_reasons() -> None:
    ordinary, on_postgres = (file.read_text(encoding="utf-8") for file in (ORDINARY, ON_POSTGRES))
    assert ordinary.split("\n\n")[0] == on_postgres.split("\n\n")[0]
    assert ordinary.split(AFTER_STORAGE)[1] == on_postgres.split(AFTER_STORAGE)[1]


def test_no_address_and_no_password_is_written_down() -> None:
    storage = yaml.safe_load(ON_POSTGRES.read_text(encoding="utf-8"))["storage"]
    assert storage["custom"]["config"] == {"postgres_url": {"env": "BACKFILL_ASSETS_DAGSTER_URL"}}
    document = (ROOT / "docs" / "postgres.md").read_text(encoding="utf-8")
    assert "export BACKFILL_ASSETS_DAGSTER_URL=" in document
