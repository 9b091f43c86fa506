"""What dataset.yaml may say about the consumers of the table."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from backfill_assets_tests.harness.dataset_folders import YAML, loaded, problems, write_dataset

CONSUMERS = """\
consumers:
  finance_export: {sql: SELECT sum(fare) FROM trips, tolerance: 1%}
  dashboard:
    sql: |
      WITH cities AS (SELECT city, sum(fare) AS fares FROM trips GROUP BY city)
      SELECT max(fares) AS most, count(*) AS cities FROM cities
"""


def test_consumers_are_read_with_their_tolerance(tmp_path: Path) -> None:
    found = loaded(write_dataset(tmp_path, yaml=YAML + CONSUMERS)).dataset.consumers
    assert list(found) == ["finance_export", "dashboard"]
    assert (found["finance_export"].tolerance, found["dashboard"].tolerance) == (Decimal("0.01"), Decimal(0))


def test_a_dataset_without_consumers_has_none(tmp_path: Path) -> None:
    assert loaded(write_dataset(tmp_path)).dataset.consumers == {}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("DROP TABLE trips", "consumers.bi.sql: the statement begins with 'DROP'; a consumer's query is one SELECT"),
        ("SELECT 1; SELECT 2", "something follows the semicolon; a consumer's query is one SELECT"),
        ("SELECT sum(fare) FROM published.trips", "it reads the view published.trips; write trips alone"),
        ("SELECT sum(fare) FROM PUBLISHED . `trips`", "write trips alone"),
        ('""', "consumers.bi.sql"),
    ],
)
def test_a_wrong_query_is_refused_with_its_line(tmp_path: Path, query: str, message: str) -> None:
    yaml = f"{YAML}consumers:\n  bi: {{tolerance: 1%, sql: {query}}}\n"
    (problem,) = problems(write_dataset(tmp_path, yaml=yaml))
    assert message in str(problem)
    assert f"dataset.yaml:{len(yaml.splitlines())}: " in str(problem)


def test_the_view_of_another_dataset_may_be_joined(tmp_path: Path) -> None:
    query = "SELECT sum(fare) FROM trips JOIN published.trips_by_city USING (city)"
    loaded(write_dataset(tmp_path, yaml=f"{YAML}consumers:\n  bi: {{sql: {query}}}\n"))


def test_no_dataset_is_called_like_the_table_of_releases(tmp_path: Path) -> None:
    yaml = YAML.replace("name: trips", "name: data_releases")
    (problem,) = problems(write_dataset(tmp_path, "data_releases", yaml))
    assert "name 'data_releases' is taken by the table of releases; rename the dataset" in str(problem)
