"""`backfill adopt` and `backfill unadopt`, as people call them: from a table to its dataset folder to its baseline."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.application import Application
from backfill_assets.core.errors import ArgumentError, BackfillError, LayoutError, PreconditionError
from backfill_assets.core.release import CommitKind, TableCommit
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.releasing import AuditTrail
from backfill_assets.delta.adoptable import FoundColumn, FoundTable, look_at
from backfill_assets.delta.commit import GENERATED, LENGTH
from backfill_assets.project.adopted_dataset import draft_of
from backfill_assets.storage.disk import OnDisk
from backfill_assets.storage.layout import OWNER
from backfill_assets_tests.harness.clocks import START
from backfill_assets_tests.harness.console import Run
from backfill_assets_tests.harness.objects import object_store

DAY = dt.date(2024, 1, 1)


def test_a_table_is_drafted_adopted_and_given_back(run: Run, lake: Path, tmp_path: Path) -> None:
    run("adopt", "orders", "--from", str(lake), "--key", "order_id")
    catalog = load_folder(tmp_path / "datasets")
    assert catalog.problems == ()
    dataset = catalog.datasets["orders"].dataset
    assert (dataset.partition_column, dataset.start, dataset.end) == ("day", DAY, DAY)
    assert dataset.key == ("day", "order_id")
    assert dataset.enforces("amount > 0")
    assert dict(dataset.audit_columns) == {}

    version = DeltaTable(lake).version()
    asked = run("adopt", "orders", "--from", str(lake))
    assert "nothing was changed; stop the job that writes this table" in asked.output
    assert DeltaTable(lake).version() == version
    assert not (lake / OWNER).exists()

    done = run("adopt", "orders", "--from", str(lake), "--drained", "--reason", "ours now")
    assert re.search(r"r_\w+: the baseline of orders names 1 file, 2024-01-01; version \d+", done.output)
    (record,) = Application.from_env().ledger.releases("orders")
    assert record.manifest.reason == "ours now"

    asked = run("unadopt", "orders", "--dry-run")
    assert (asked.exit_code, "nothing was changed; before it is given back, run `backfill sweep`" in asked.output) == (
        0,
        True,
    )
    assert (lake / OWNER).exists()
    given = run("unadopt", "orders").output
    assert "is a plain Delta table again" in given
    assert "next: remove datasets/orders, and restart Dagster" in given
    assert not (lake / OWNER).exists()


def test_a_table_that_grows_is_not_adopted_with_the_end_of_its_draft(run: Run, lake: Path, tmp_path: Path) -> None:
    """Its job goes on until it is drained, so the last day of the draft may be an earlier one than that of the baseline."""
    run("adopt", "orders", "--from", str(lake), "--key", "order_id")
    assert Application.from_env().dataset("orders").newest_day(START) == DAY
    newer = pa.table({"day": [DAY + dt.timedelta(1)], "order_id": [3], "amount": [1.5], "city": [""]})
    write_deltalake(lake, newer, mode="append")
    with pytest.raises(
        PreconditionError, match=r"rows of 2024-01-02, outside of 2024-01-01\.\.2024-01-01.* remove end"
    ):
        run("adopt", "orders", "--from", str(lake), "--drained")
    file = tmp_path / "datasets" / "orders" / "dataset.yaml"
    file.write_text("".join(line for line in file.open() if not line.startswith("end:")))
    assert "2024-01-01..2024-01-02" in run("adopt", "orders", "--from", str(lake), "--drained").output
    assert Application.from_env().dataset("orders").newest_day(START) > DAY


def test_a_dry_run_says_what_has_to_be_done_before_a_table_is_given_back(run: Run, lake: Path, tmp_path: Path) -> None:
    run("adopt", "orders", "--from", str(lake), "--key", "order_id")
    run("adopt", "orders", "--from", str(lake), "--drained")
    copy = shutil.copytree(tmp_path / "datasets" / "orders", tmp_path / "datasets" / "copied")
    text = (copy / "dataset.yaml").read_text().replace("name: orders", "name: copied")
    (copy / "dataset.yaml").write_text(f"{text}upstream: {{orders: {{}}}}\n")
    assert load_folder(tmp_path / "datasets").problems == ()
    asked = run("unadopt", "orders", "--dry-run")
    assert asked.exit_code == 1
    assert "would be refused: copied is built from it" in asked.output
    assert "nothing was changed; before it is given back, run `backfill sweep`" in asked.output


def test_commands_about_all_tables_end_with_an_error_if_one_is_out_of_reach(run: Run, lake: Path) -> None:
    run("adopt", "orders", "--from", str(lake), "--key", "order_id")
    run("adopt", "orders", "--from", str(lake), "--drained")
    lake.rename(lake.with_name("unmounted"))
    for words, said in (
        (("sweep",), r"orders: left alone: .*mount the folder"),
        (("sweep", "--dry-run"), r"orders: left alone: .*mount the folder"),
        (("reconcile",), r"the published table \(orders\) left alone: .*mount the folder"),
    ):
        done = run(*words)
        assert done.exit_code == 1
        assert re.search(said, " ".join(done.output.split()))
    lake.with_name("unmounted").rename(lake)
    assert [run(*words).exit_code for words in (("sweep",), ("reconcile",))] == [0, 0]


def test_the_draft_has_the_length_of_a_text_as_a_rule_that_blocks(run: Run, lake: Path, tmp_path: Path) -> None:
    for commit in (lake / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        for found in (line["metaData"] for line in lines if "metaData" in line):
            schema = json.loads(found["schemaString"])
            schema["fields"][-1]["metadata"] = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(20)"}
            found["schemaString"] = json.dumps(schema)
        commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("adopt", "orders", "--from", str(lake), "--key", "order_id")
    dataset = load_folder(tmp_path / "datasets").datasets["orders"].dataset
    assert dataset.checks.rules["length_city"].sql == "city IS NULL OR length(city) <= 20"
    run("adopt", "orders", "--from", str(lake), "--drained")
    file = tmp_path / "datasets" / "orders" / "dataset.yaml"
    file.write_text(file.read_text().replace("<= 20", "<= 21"))
    with pytest.raises(PreconditionError, match=r"column city __CHAR_VARCHAR_TYPE_STRING \(city IS NULL OR .* <= 20\)"):
        Application.from_env().tables["orders"].prepare("_shadow/u/1")


def test_a_draft_overwrites_nothing_and_a_dry_run_writes_nothing(run: Run, lake: Path, tmp_path: Path) -> None:
    shown = run("adopt", "orders", "--from", str(lake), "--key", "order_id", "--dry-run").output
    assert "constraint_1_is_positive" in shown
    assert list((tmp_path / "datasets").iterdir()) == []
    (tmp_path / "datasets" / "orders").mkdir()
    (tmp_path / "datasets" / "orders" / "fact.sql").write_text("mine")
    with pytest.raises(BackfillError):
        run("adopt", "orders", "--from", str(lake), "--key", "order_id")
    assert (tmp_path / "datasets" / "orders" / "fact.sql").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), r"say which table: --from PATH"),
        (("--from", "nowhere/at/all", "--key", "id"), r"there is no Delta table"),
        (("--from", "lake/orders"), r"--key names nothing, and the table has day, order_id, amount, city"),
        (("--from", "lake/orders", "--key", "order_id,total"), r"--key names total"),
        (
            ("--from", "gs://lake/orders", "--key", "order_id"),
            r"gs://lake/orders.* nobody has tried that kind of store",
        ),
        (("--again",), r"needs a --reason"),
        (("--again", "--from", "lake/orders", "--reason", "x"), r"no --from"),
    ],
)
def test_an_incomplete_command_says_what_is_missing(
    run: Run, lake: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises((ArgumentError, PreconditionError), match=message):
        run("adopt", "orders", *words)
    assert list((tmp_path / "datasets").iterdir()) == []
    assert DeltaTable(lake).version() == 1


def test_a_table_in_a_bucket_is_adopted_into_a_warehouse_in_a_bucket(
    run: Run, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store(tmp_path / "store") as store:
        for name, value in store.environ.items():
            monkeypatch.setenv(name, value)
        shutil.copytree(lake, table := tmp_path / "store" / "old" / "team" / "orders")
        shutil.copytree(lake, table.with_name("other"))
        with pytest.raises(
            LayoutError, match=r"adopts tables in folders, and one in a bucket tables in buckets of its store"
        ):
            run("adopt", "orders", "--from", "s3://old/team/orders", "--key", "order_id")
        assert list((tmp_path / "datasets").iterdir()) == []
        monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", f"{store.url}/warehouse")
        run("adopt", "orders", "--from", "s3://old/team/orders", "--key", "order_id")
        with pytest.raises(
            LayoutError, match=r"adopts tables in folders, and one in a bucket tables in buckets of its store"
        ):
            run("adopt", "orders", "--from", str(lake))
        run("adopt", "orders", "--from", "s3://old/team/orders", "--drained")
        assert run("path", "orders").output.strip() == "s3://old/team/orders"
        assert (table / OWNER).exists()
        with pytest.raises(LayoutError, match="has an adopted table, s3://old/team/orders"):
            run("adopt", "orders", "--from", "s3://old/team/other")
        assert run("doctor").exit_code == 0
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("BACKFILL_ASSETS_STATE", str(tmp_path / ".other"))
            elsewhere.setenv("BACKFILL_ASSETS_WAREHOUSE", f"{store.url}/other")
            with pytest.raises(LayoutError, match=r"is adopted already, as .*one table has one owner"):
                run("adopt", "orders", "--from", "s3://old/team/orders", "--drained")
        shutil.move(tmp_path / "store" / "old", tmp_path / "store" / "gone")
        assert "orders: left alone: " in " ".join((swept := run("sweep")).output.split())
        assert swept.exit_code == 1
        assert any(OWNER in line for line in run("doctor").output.splitlines())
        shutil.move(tmp_path / "store" / "gone", tmp_path / "store" / "old")
        link = tmp_path / "store" / "lake" / "warehouse" / "published" / "orders"
        link.unlink()
        assert "no longer leads to s3://old/team/orders" in " ".join(run("sweep").output.split())
        for words, said in ((("--dry-run",), "would lead to it again"), ((), "leads to it again")):
            assert said in run("adopt", "orders", "--from", "s3://old/team/orders", *words).output
        with pytest.raises(ArgumentError, match="orders is adopted already"):
            run("adopt", "orders", "--from", "s3://old/team/orders", "--drained")
        assert "s3://old/team/orders is a plain Delta table again" in run("unadopt", "orders").output
        assert not (table / OWNER).exists()
        assert not Application.from_env().layout.is_adopted("orders")


TYPES = st.sampled_from(
    ["string", "boolean", "integer", "long", "float", "double", "date", "timestamp", "decimal(12,2)"]
)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,62}", fullmatch=True)
RULES = st.sampled_from([{}, {GENERATED: "k <=> (k + 1)"}, {LENGTH: "k IS NULL OR length(k) <= 3"}])
COLUMNS = st.builds(FoundColumn, NAMES, TYPES, st.booleans(), st.text(max_size=20), RULES)


@given(
    st.lists(COLUMNS, min_size=1, max_size=5, unique_by=lambda column: column.name),
    st.dictionaries(st.text(min_size=1, max_size=80), st.sampled_from(["k > 0", "k % 2 = 0 -- odd", "'a: b' <> ''"])),
    st.text(max_size=30),
)
def test_the_draft_of_any_table_is_a_dataset_without_problems(
    tmp_path_factory: pytest.TempPathFactory, columns: list[FoundColumn], constraints: dict[str, str], comment: str
) -> None:
    taken = {"p", "k"}
    own = tuple(column for column in columns if column.name not in taken)
    found = FoundTable(
        OnDisk(Path("lake")), (FoundColumn("p", "date", nullable=False), FoundColumn("k", "long", nullable=False), *own),
        "p", comment, constraints, (DAY,), 1, 1, 0, TableCommit(0, START, CommitKind.foreign, "WRITE"), (),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("drafts")
    (folder / "orders").mkdir()
    for name, text in draft_of(found, "orders", ("k", "p"), AuditTrail.ledger).items():
        (folder / "orders" / name).write_text(text, encoding="utf-8")
    catalog = load_folder(folder)
    assert [str(problem) for problem in catalog.problems] == []
    dataset = catalog.datasets["orders"].dataset
    assert (dataset.key, dataset.start, dataset.end) == (("p", "k"), DAY, DAY)
    assert all(dataset.enforces(sql) for sql in constraints.values())
    assert all(dataset.enforces(f"{column.name} IS NOT NULL") for column in own if not column.nullable)
    assert all(dataset.enforces(sql) for column in own for sql in column.rules.values())


def test_a_table_shows_what_it_has(lake: Path) -> None:
    found = look_at(OnDisk(lake))
    assert (found.days, found.rows, found.files, found.version, found.comment) == ((DAY,), 2, 1, 1, "Orders by day.")
    assert found.constraints == {"Is Positive": "amount > 0"}
    assert found.problems == ()
