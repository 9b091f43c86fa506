"""`backfill rollback --dry-run` says what the rollback would do, and everything that would refuse it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from backfill_assets.cli.app import app
from backfill_assets.core.errors import RollbackError
from backfill_assets_tests.harness.tables import day, rows_of
from backfill_assets_tests.unit.orchestration.house import House

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clock_of_the_house")]

DAYS = [day(0), day(1)]
RANGE = "2026-01-01..2026-01-02"


def released(house: House, amount: int, days: Sequence[dt.date] = DAYS) -> str:
    unit = house.released({d: [amount] for d in days}, ("sales",))
    return house.world.ledger.releases(unit=unit.id)[0].manifest.release


def tried(release: str, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["rollback", release, "--reason", "no", "--dry-run", *options])
    return done.exit_code, " ".join(done.output.split())


def refused(release: str, *options: str) -> str:
    """The refusal of the rollback itself."""
    done = CliRunner().invoke(app, ["rollback", release, "--reason", "no", *options])
    assert isinstance(done.exception, RollbackError)
    return f"would be refused: {' '.join(str(done.exception).split())}"


def overwritten(house: House) -> None:
    write_deltalake(
        house.world.homes["sales"], rows_of({DAYS[1]: [99]}), mode="overwrite", predicate=f"day = '{DAYS[1]}'"
    )


def test_a_dry_run_names_the_days_that_would_go_back_with_and_without_consent(house: House) -> None:
    released(house, 1)
    second = released(house, 2)
    assert tried(second) == (0, f"would put back: {RANGE}")
    overwritten(house)
    code, said = tried(second)
    assert (code, said.endswith("would put back: 2026-01-01")) == (0, True)
    assert "rewritten since, left alone (without --include-rewritten): 2026-01-02" in said
    code, said = tried(second, "--include-rewritten")
    assert (code, said) == (0, f"rewritten since, put back too: 2026-01-02 would put back: {RANGE}")
    assert house.world.content("sales") == {DAYS[0]: [2], DAYS[1]: [99]}


def test_missing_files_are_reported_before_a_rollback(house: House) -> None:
    released(house, 1)
    second = released(house, 2)
    (lost,) = house.world.ledger.release(second).manifest.days[0].remove
    (house.world.homes["sales"] / lost.path).unlink()
    code, said = tried(second)
    assert code == 1
    assert refused(second) in said


@pytest.mark.parametrize("options", [(), ("--include-rewritten",)])
def test_a_later_release_has_to_go_first_and_is_named(house: House, options: tuple[str, ...]) -> None:
    first, second = released(house, 1), released(house, 2)
    code, said = tried(first, *options)
    assert code == 1
    assert f"backfill rollback {second}" in refused(first, *options)
    assert refused(first, *options) in said


def test_nothing_to_roll_back_and_days_that_need_consent_are_refusals(house: House) -> None:
    released(house, 1)
    second = released(house, 2, DAYS[1:])
    overwritten(house)
    code, said = tried(second)
    assert code == 1
    assert "consent to each of them (--include-rewritten)" in refused(second)
    assert refused(second) in said
    house.application.rollback.execute(second, "no", consent_rewritten=frozenset(DAYS))
    code, said = tried(second)
    assert code == 1
    assert "are already as they were before it" in refused(second)
    assert refused(second) in said
