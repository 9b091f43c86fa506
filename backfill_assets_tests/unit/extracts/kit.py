"""A dataset with an extract in a warehouse of its own, and what its files hold."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, create_engine, text

from backfill_assets.application import Application
from backfill_assets.extracts.take import Extracts
from backfill_assets.settings import Settings
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.harness import ledgers, postgres

D1, D2, D3 = (dt.date(2024, 3, number) for number in (1, 2, 3))
COLUMNS = {"id": "long", "at": "timestamp", "amount": "decimal(12,2)"}
QUERY = "SELECT id, at, amount FROM orders WHERE at >= :day AND at < :day + 1 ORDER BY id"
URL = "ORDERS_URL"


def orders(
    root: Path, extract: Mapping[str, object], script: str = "", name: str = "orders", **source: object
) -> Application:
    """An application whose dataset has this extract; times are those of Berlin."""
    folder = root / "datasets" / name
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "name": name, "partition_column": "day", "time_zone": "Europe/Berlin", "start": str(D1), "key": ["day", "id"],
        "columns": {"day": {"type": "date"}, "id": {"type": "long"}, "amount": {"type": "decimal(12,2)"}},
        "source": {"columns": COLUMNS, **source, "extract": extract},
    }  # fmt: skip
    (folder / "dataset.yaml").write_text(json.dumps(document), encoding="utf-8")
    day = "to_date(from_utc_timestamp(at, 'Europe/Berlin')) AS day"
    (folder / "staging.sql").write_text(f"SELECT {day}, id, amount, _lineage FROM raw", encoding="utf-8")
    (folder / "fact.sql").write_text("SELECT day, id, amount FROM staging", encoding="utf-8")
    if script:
        (folder / "extract.py").write_text(script, encoding="utf-8")
    environ = {"BACKFILL_ASSETS_STATE": str(root), "BACKFILL_ASSETS_DATASETS": str(root / "datasets")}
    application = Application(Settings.from_env(environ))
    assert not application.catalog.problems, application.catalog.problems
    return application


def database(query: str = QUERY, **more: object) -> dict[str, object]:
    return {"database": f"env:{URL}", "query": query, **more}


@contextmanager
def shop_database(cluster: str) -> Iterator[Engine]:
    """A database with the empty table `orders`, whose sessions are in New York unless they say otherwise."""
    engine = create_engine(ledgers.new_database(cluster, "shop"), isolation_level="AUTOCOMMIT")
    run(engine, "CREATE TABLE orders (id bigint, at timestamptz, amount numeric(12,2))")
    run(engine, "ALTER DATABASE shop SET timezone = 'America/New_York'")
    yield engine
    engine.dispose()
    ledgers.drop_database(cluster, "shop")


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def run(engine: Engine, statement: str) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        found = connection.execute(text(statement))
        return [tuple(row) for row in found] if found.returns_rows else []


def take(application: Application, *days: dt.date, name: str = "orders") -> None:
    Extracts(application.warehouse).take(name, days)


def file_of(application: Application, day: dt.date, name: str = "orders") -> Path:
    return path_of(application.layout.sources) / "extracts" / name / f"{day}.parquet"


def rows_in(application: Application, day: dt.date) -> Sequence[Mapping[str, object]]:
    rows: list[Mapping[str, object]] = pq.read_table(file_of(application, day)).to_pylist()
    return rows


def names_in(application: Application) -> list[str]:
    """All files of the sources folder, also hidden ones."""
    return sorted(path.name for path in path_of(application.layout.sources).rglob("*") if path.is_file())


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    with postgres.cluster() as url:
        yield url


@pytest.fixture
def shop(cluster: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A database of its own, whose URL is in the environment."""
    with shop_database(cluster) as engine:
        monkeypatch.setenv(URL, url_of(engine))
        yield engine
