"""`backfill sql`: rows of a query, and whether there are more."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from backfill_assets.cli.app import app
from backfill_assets.settings import Settings
from backfill_assets_tests.engine import engine_environment


@pytest.mark.parametrize(("rows", "said"), [(2, "the first 2 rows; ask for more with --rows"), (3, "3 rows")])
def test_sql_says_whether_a_query_has_more_rows_than_it_shows(
    spark_settings: Settings, monkeypatch: pytest.MonkeyPatch, rows: int, said: str
) -> None:
    for name, value in engine_environment(spark_settings.state).items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["sql", "SELECT id + 70 AS shown FROM range(3)", "--rows", str(rows)])
    assert done.exit_code == 0, done.output
    assert [str(70 + row) in done.output for row in range(3)] == [row < rows for row in range(3)]
    assert done.output.splitlines()[-1] == said
