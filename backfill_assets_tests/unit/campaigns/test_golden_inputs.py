"""A day rests on the golden sources that it was compared with, and only the day's fact does."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill_assets.campaigns.building.basis import CurrentBasis
from backfill_assets.domain.dataset import Dataset
from backfill_assets.domain.errors import SourceError
from backfill_assets.domain.files import Format, Reference
from backfill_assets.domain.golden import Golden
from backfill_assets.domain.inputs import fact_inputs
from backfill_assets_tests.unit.campaigns.world import World, loaded
from backfill_assets_tests.unit.published.tables import day, layout

BOOKED = Golden(file=Reference(format=Format.csv, path="golden/booked.csv", columns={"day": "date"}), key=("day",))


def basis(world: World, dataset: Dataset) -> CurrentBasis:
    return CurrentBasis({"sales": loaded(dataset, world.folder)}, world.ledger, layout(world.folder), world.tables)


def with_golden(world: World) -> CurrentBasis:
    return basis(world, world.datasets["sales"].model_copy(update={"golden": {"booked": BOOKED}}))


def book(folder: Path, text: str) -> None:
    file = layout(folder).sources / "golden" / "booked.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_golden_file_that_changes_makes_days_stale_but_stages_none_anew(world: World) -> None:
    book(world.folder, "day\n")
    found = with_golden(world)
    before, staged = found.inputs("sales", [day(0)]), found.staged_inputs("sales", [day(0)])
    assert found.inputs("sales", [day(0)]) == before
    book(world.folder, "day\n2024-01-01\n")
    assert found.inputs("sales", [day(0)]) != before
    assert found.staged_inputs("sales", [day(0)]) == staged


def test_digests_of_datasets_without_golden_sources_are_what_they_were(world: World) -> None:
    plain = world.datasets["sales"]
    found = basis(world, plain).inputs("sales", [day(0)])
    assert found == {day(0): fact_inputs(plain, day(0), {}, {})}


def test_a_golden_file_that_is_gone_is_told_by_key(world: World) -> None:
    with pytest.raises(
        SourceError, match=r"golden\.booked: the file golden/booked\.csv is not in .*; put it there, or"
    ):
        with_golden(world).inputs("sales", [day(0)])
