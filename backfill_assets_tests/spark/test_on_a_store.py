"""Sources and warehouse in a bucket, from files to releases and back, on a Spark server and an object store of their own."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame
from typer.testing import CliRunner

from backfill_assets.application import Application
from backfill_assets.cli.app import app
from backfill_assets.core.errors import (
    BackfillError,
    EngineError,
    LayoutError,
    PreconditionError,
    SourceError,
    StorageError,
)
from backfill_assets.delta.opening import is_table, table_at
from backfill_assets.pipeline import land
from backfill_assets.settings import Settings
from backfill_assets.spark.server import SparkServer
from backfill_assets.storage.disk import OnDisk
from backfill_assets_tests.harness.bad_network import OF_A_GOOD_STORE, BadNetwork, Fault, Rule, bad_network
from backfill_assets_tests.harness.objects import ObjectStore, object_store
from backfill_assets_tests.harness.without_dagster import built, publish
from backfill_assets_tests.observed import Observed

NAME = "tickets"
D1, D2, D3 = (dt.date(2024, 3, number) for number in (1, 2, 3))
DATASETS = Path(__file__).parents[1] / "dagster" / "datasets"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("objects")) as running:
        yield running


@pytest.fixture(scope="module")
def network(store: ObjectStore) -> Iterator[BadNetwork]:
    with bad_network(store.environ["AWS_ENDPOINT_URL"]) as between:
        yield between


@pytest.fixture(scope="module")
def application(
    tmp_path_factory: pytest.TempPathFactory, store: ObjectStore, network: BadNetwork
) -> Iterator[Application]:
    root = tmp_path_factory.mktemp("on a store")
    shutil.copytree(DATASETS / NAME, root / "datasets" / NAME)
    environ = {
        **store.environ,
        "AWS_ENDPOINT_URL": network.url,
        "BACKFILL_ASSETS_STATE": str(root / "state"),
        "BACKFILL_ASSETS_DATASETS": str(root / "datasets"),
        "BACKFILL_ASSETS_WAREHOUSE": f"{store.url}/ware/house",
        "BACKFILL_ASSETS_SOURCES": f"{store.url}/delivered",
        "BACKFILL_ASSETS_SPARK_MEMORY": "1g",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        made = Application.from_env()
        yield made
        made.ledger.close()
        SparkServer(made.settings).stop()


def deliver(application: Application, day: dt.date, *amounts: int, name: str = "sold.csv", first: int = 1) -> None:
    lines = [f"{day},{number},{amount}" for number, amount in enumerate(amounts, start=first)]
    file = application.settings.sources / f"{NAME}/{day}/{name}"
    file.write("\n".join(["day,ticket,amount", *lines, ""]))


def published(application: Application) -> dict[dt.date, list[int]]:
    """The published amounts by day, as a reader with delta-rs finds them."""
    home = application.layout.published_path(NAME)
    if not is_table(home):
        return {}
    rows = table_at(home).to_pyarrow_table(columns=["day", "ticket", "amount"])
    found: dict[dt.date, list[int]] = {}
    for row in sorted(rows.to_pylist(), key=lambda row: (row["day"], row["ticket"])):
        found.setdefault(row["day"], []).append(row["amount"])
    return found


def say(*words: str) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def test_days_are_published_corrected_previewed_and_taken_back(application: Application, store: ObjectStore) -> None:
    for day, amounts in {D1: (10, 20), D2: (30,), D3: (40,)}.items():
        deliver(application, day, *amounts)
    with application.session("first") as spark:
        publish(application, spark, NAME, (D1, D2, D3))
    first = {D1: [10, 20], D2: [30], D3: [40]}
    assert published(application) == first

    deliver(application, D2, 31, 32)
    with application.session("correction") as spark:
        unit = built(application, spark, NAME, (D2,), {"row_count": "any", "amount": "any"})
        say("preview", unit.id)
        assert [tuple(row) for row in spark.sql(f"SELECT sum(amount) FROM preview.{NAME}").collect()] == [(133,)]
        assert published(application) == first
        release = application.publisher.release(unit.id).release
    corrected = first | {D2: [31, 32]}
    assert published(application) == corrected
    application.refresh_views()
    assert "133" in say("sql", f"SELECT sum(amount) AS total FROM published.{NAME}")

    say("rollback", release, "--reason", "not yet")
    assert published(application) == first
    say("sweep", "--grace", "0")
    assert json.loads(say("doctor", "--json")) == []
    assert published(application) == first
    # Everything of the tables is in the bucket, and everything of this host beside it.
    assert not [name for name in ("warehouse", "sources") if (application.settings.state / name).exists()]
    assert {path.name for path in (store.folder / "lake" / "ware" / "house").iterdir()} >= {"_owner", "raw", "staging"}
    assert not list((store.folder / "lake").rglob("server.json"))


def test_a_file_is_landed_whatever_its_name(application: Application) -> None:
    day, names = dt.date(2024, 3, 9), ("a b.csv", "50%25+ü.csv", "a#b&c=d;e.csv", "[x]{y}*.csv", "it's.csv")
    for number, name in enumerate(names, start=1):
        deliver(application, day, 10 * number, name=name, first=number)
    with application.session("names") as spark:
        publish(application, spark, NAME, (day,))
    assert published(application)[day] == [10, 20, 30, 40, 50]
    assert {one.path.rpartition("/")[2] for one in application.ledger.deliveries(NAME, [day])} == set(names)


def test_a_file_that_is_replaced_while_it_is_landed_is_not_kept(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = dt.date(2024, 3, 10)
    deliver(application, day, 1)
    honest = land.delivered_rows

    def meanwhile(*of: object) -> DataFrame:
        deliver(application, day, 2)
        return honest(*of)  # type: ignore[arg-type]

    monkeypatch.setattr(land, "delivered_rows", meanwhile)
    with application.session("replaced") as spark, pytest.raises(SourceError, match=r"sold\.csv changed or vanished"):
        publish(application, spark, NAME, (day,))
    monkeypatch.undo()
    with application.session("complete") as spark:
        publish(application, spark, NAME, (day,))
    assert published(application)[day] == [2]


def test_published_days_are_proven_from_the_bucket(application: Application) -> None:
    assert "certificate" in say("prove", NAME, "--partitions", "2024-03-01..2024-03-01")


def test_a_table_in_another_bucket_is_adopted_corrected_taken_back_and_given_back(
    application: Application, store: ObjectStore, tmp_path: Path
) -> None:
    (store.folder / "old").mkdir()
    with application.session("a former job") as spark:
        place = "delta.`s3a://old/team/sales`"
        spark.sql(f"CREATE TABLE {place} (day DATE, id BIGINT, amount BIGINT) USING delta PARTITIONED BY (day)")
        spark.sql(f"INSERT INTO {place} VALUES (DATE'{D1}', 1, 10), (DATE'{D2}', 2, 20), (DATE'{D3}', 3, 30)")
    say("adopt", "sales", "--from", "s3://old/team/sales", "--key", "id")
    assert "nothing was changed" in say("adopt", "sales", "--from", "s3://old/team/sales")
    assert "names 3 files, 2024-03-01..2024-03-03" in say(
        "adopt", "sales", "--from", "s3://old/team/sales", "--drained"
    )

    rows = pa.table({"day": [D2], "id": pa.array([2], pa.int64()), "amount": pa.array([25], pa.int64())})
    parquet.write_table(rows, tmp_path / "day.parquet")
    (application.settings.sources / f"sales/{D2}.parquet").copy_from(OnDisk(tmp_path / "day.parquet"))
    ours = Application.from_env()
    with application.session("a correction") as spark:

        def total(table: str) -> int:
            return int(spark.sql(f"SELECT sum(amount) FROM {table}").collect()[0][0])

        unit = built(ours, spark, "sales", (D2,), {"amount": "+25%"})
        release = ours.publisher.release(unit.id).releases["sales"]
        ours.refresh_views()
        assert (total("published.sales"), total(place)) == (65, 65)
        say("rollback", release, "--reason", "not yet")
        assert (total(place), json.loads(say("doctor", "--json"))) == (60, [])
        spark.sql(f"INSERT INTO {place} VALUES (DATE'{D3}', 4, 40)")
        late = built(ours, spark, "sales", (D2,), {"amount": "+25%"})
        with pytest.raises(PreconditionError, match="1 commit of another writer since its baseline"):
            ours.publisher.release(late.id)
        say("discard", late.id)
        say("unadopt", "sales")
        assert total(place) == 100
    ours.ledger.close()
    assert (application.layout.is_adopted("sales"), application.layout.link("sales").is_there()) == (False, False)
    shutil.rmtree(application.settings.datasets / "sales")


def test_a_server_that_was_started_for_a_folder_is_refused(spark_server: SparkServer, application: Application) -> None:
    server = SparkServer(application.settings.model_copy(update={"spark_folder": spark_server.folder.root.parent}))
    spark_server.ensure()
    with pytest.raises(EngineError, match=r"does not know their store.*backfill spark stop"):
        server.ensure()


def test_an_installation_with_another_ledger_is_refused(application: Application, tmp_path: Path) -> None:
    other = application.settings.model_copy(update={"ledger_url": f"sqlite:///{tmp_path / 'ledger.db'}"})
    assert isinstance(other, Settings)
    with pytest.raises(LayoutError, match="belongs to another ledger"):
        assert Application(other).warehouse


_NEXT = itertools.count()
OF_SPARK = {
    "the list of what is delivered": ("LIST", r"^delivered"),
    "a delivered file": ("GET", r"delivered/tickets/.*csv"),
    "rows of raw": ("PUT", r"raw/tickets/.*parquet"),
    "a commit of raw": ("PUT", r"raw/tickets/_delta_log/\d+\.json"),
    "a commit of staging": ("PUT", r"staging/tickets/.*/_delta_log/\d+\.json"),
    "a commit of a shadow": ("PUT", r"_shadow/.*/_delta_log/\d+\.json"),
    "the log of staging": ("LIST", r"staging/tickets/.*/_delta_log"),
}


@pytest.mark.faults
@pytest.mark.parametrize("fault", OF_A_GOOD_STORE, ids=lambda fault: fault.name)
@pytest.mark.parametrize("what", OF_SPARK)
def test_whatever_goes_wrong_at_a_request_of_spark_the_next_launch_is_enough(
    application: Application, network: BadNetwork, observed: Observed, what: str, fault: Fault
) -> None:
    day = dt.date(2024, 4, 1) + dt.timedelta(days=next(_NEXT))
    deliver(application, day, 7, day.day)
    observed.injected(f"{what}: {fault}")
    answer = "it goes through"
    with network.under(Rule(fault, *OF_SPARK[what])) as hit:
        try:
            with application.session(f"{what} {fault.name}") as spark:
                publish(application, spark, NAME, (day,))
        except BackfillError as error:
            answer = str(error)
    assert hit, "the fault was not met"
    observed.found(answer)
    if day not in published(application):
        with application.session(f"again {what} {fault.name}") as spark:
            publish(application, spark, NAME, (day,))
    assert published(application)[day] == [7, day.day]
    say("doctor", "--repair")
    assert not [one for one in application.doctor.examine() if day.isoformat() in one.what]


def test_keys_that_expire_are_named_with_the_variables_to_change(application: Application, network: BadNetwork) -> None:
    day = dt.date(2024, 5, 31)
    deliver(application, day, 1)
    expired = Rule(Fault.expired, "PUT", r"raw/tickets/", for_good=True)
    told = r"raw/tickets: Spark cannot use the store: .*AWS_SESSION_TOKEN, which may have expired.*backfill spark stop"
    with network.under(expired), application.session("expired") as spark, pytest.raises(StorageError, match=told):
        publish(application, spark, NAME, (day,))
