"""Hashes, ledger rows, texts, commands, what they print, Dagster's names: unchanged, whatever code moves."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from backfill_assets_tests.golden_values import FOLDER, all_of, as_text


@pytest.fixture(scope="module")
def now() -> Mapping[str, object]:
    return all_of()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hashes", "ledger", "texts", "commands", "printed", "dagster"])
def test_it_is_as_it_was(now: Mapping[str, object], name: str) -> None:
    assert as_text(now[name]) == (FOLDER / f"{name}.json").read_text(), (
        "if that is meant: `python -m backfill_assets_tests.golden_values`, in a commit of its own"
    )
