from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from backfill_assets.core.errors import PreconditionError, TableMovedError
from backfill_assets.core.release import DaySwap, Manifest, ReleaseKind
from backfill_assets.delta.table import PublishedTable
from backfill_assets_tests.harness.clocks import FixedClock
from backfill_assets_tests.harness.tables import (
    actions,
    content,
    dataset,
    day,
    layout,
    manifest,
    only,
    publish,
    rows_of,
    write_shadow,
)

SHADOW = "_shadow/u/1"
DAYS = [day(0), day(1), day(2)]


@pytest.fixture
def published(table: PublishedTable, home: Path) -> PublishedTable:
    """Three days published, and a second shadow for them."""
    write_shadow(home, SHADOW, rows_of({d: [10, 20] for d in DAYS}))
    publish(table, SHADOW, DAYS, "r_first")
    write_shadow(home, "_shadow/u/2", rows_of({d: [30] for d in DAYS}))
    return table


def planned(table: PublishedTable, release: str = "r_second") -> Manifest:
    active, new = table.active(DAYS), table.shadow_files("_shadow/u/2", DAYS)
    return manifest(release, [DaySwap(d, active[d], new[d]) for d in DAYS])


def with_day(plan: Manifest, swap: DaySwap) -> Manifest:
    return replace(plan, days=tuple(swap if s.day == swap.day else s for s in plan.days))


def refused(table: PublishedTable, plan: Manifest, match: str) -> None:
    version = table.version()
    with pytest.raises(PreconditionError, match=match):
        table.commit(plan, version)
    assert table.version() == version
    assert table.committed(plan.release) is None


def test_a_release_swaps_all_days_in_one_commit(published: PublishedTable, home: Path) -> None:
    before = published.version()
    assert published.commit(planned(published), before) == before + 1
    assert content(home) == {d: [30] for d in DAYS}
    assert published.committed("r_second") == before + 1


def test_the_commit_says_what_it_is(published: PublishedTable, home: Path) -> None:
    plan = planned(published)
    version = published.commit(plan, published.version())
    entry = DeltaTable(home).history(1)[0]
    assert {key: entry[key] for key in plan.metadata()} == plan.metadata()
    assert json.loads(entry["userMetadata"]) == plan.metadata()
    newest = published.history()[0]
    assert (newest.version, newest.release, newest.manifest) == (version, "r_second", plan.hash)


def test_committing_a_release_again_changes_nothing(published: PublishedTable) -> None:
    plan = planned(published)
    version = published.commit(plan, published.version())
    assert published.commit(plan, published.version()) == version
    assert published.version() == version


def test_days_without_data_make_a_release_too(published: PublishedTable, home: Path) -> None:
    plan = manifest("r_empty", [DaySwap(day(7), (), ())])
    assert published.commit(plan, published.version()) == published.version()
    assert published.committed("r_empty") == published.version()
    assert content(home) == {d: [10, 20] for d in DAYS}


def test_a_day_that_has_no_data_any_more_is_emptied(published: PublishedTable, home: Path) -> None:
    plan = manifest("r_less", [DaySwap(day(1), published.active()[day(1)], ())])
    published.commit(plan, published.version())
    assert content(home) == {day(0): [10, 20], day(2): [10, 20]}


def test_a_changed_table_is_refused_even_where_other_days_changed(published: PublishedTable, home: Path) -> None:
    plan, base = planned(published), published.version()
    write_deltalake(home, rows_of({day(9): [1]}), mode="append")
    with pytest.raises(TableMovedError, match=f"expected version {base}, found {base + 1}"):
        published.commit(plan, base)


def test_a_commit_in_the_very_last_moment_is_refused(
    published: PublishedTable, home: Path, clock: FixedClock, tmp_path: Path
) -> None:
    class Racing(FixedClock):
        """The adapter asks for the time right before it commits."""

        def now(self) -> object:  # type: ignore[override]
            write_deltalake(home, rows_of({day(9): [1]}), mode="append")
            return super().now()

    racing = PublishedTable(layout(tmp_path), dataset(), Racing())
    with pytest.raises(TableMovedError):
        racing.commit(planned(published), published.version())
    assert published.committed("r_second") is None


def test_a_late_row_in_a_day_of_the_release_is_named(published: PublishedTable, home: Path) -> None:
    plan = planned(published)
    write_deltalake(home, rows_of({day(1): [99]}), mode="append")
    version = published.version()
    with pytest.raises(PreconditionError, match="2026-01-02: expected") as refusal:
        published.commit(plan, version)
    assert "2026-01-01" not in str(refusal.value).replace("day=2026-01-01", "")


def test_a_file_that_is_gone_is_refused(published: PublishedTable, home: Path) -> None:
    plan = planned(published)
    (home / plan.added[0].path).unlink()
    refused(published, plan, "missing or altered")


def test_a_file_of_another_size_is_refused(published: PublishedTable, home: Path) -> None:
    plan = planned(published)
    with (home / plan.added[0].path).open("ab") as out:
        out.write(b"x")
    refused(published, plan, "missing or altered")


def test_a_file_behind_a_link_is_refused(published: PublishedTable, home: Path, tmp_path: Path) -> None:
    plan = planned(published)
    path = home / plan.added[0].path
    path.rename(tmp_path / "elsewhere.parquet")
    path.symlink_to(tmp_path / "elsewhere.parquet")
    refused(published, plan, "missing or altered")


def test_a_folder_behind_a_link_is_refused(published: PublishedTable, home: Path, tmp_path: Path) -> None:
    plan = planned(published)
    folder = (home / plan.added[0].path).parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    refused(published, plan, "missing or altered")


@pytest.mark.parametrize("path", ["/etc/passwd", "_shadow/u/../../x.parquet", "_shadow/u/1/a%20b.parquet", ""])
def test_a_path_that_leads_elsewhere_is_refused(published: PublishedTable, path: str) -> None:
    plan = planned(published)
    swap = plan.days[0]
    refused(published, with_day(plan, replace(swap, add=(replace(swap.add[0], path=path),))), "plain relative path")


def test_a_file_of_another_unit_is_refused(published: PublishedTable) -> None:
    refused(published, replace(planned(published), unit="other"), "expected a file of the unit")


def test_a_published_file_is_refused(published: PublishedTable) -> None:
    plan = planned(published)
    refused(published, with_day(plan, replace(plan.days[0], add=plan.days[0].remove)), "it is already active")


def test_a_file_that_is_added_twice_is_refused(published: PublishedTable) -> None:
    plan = planned(published)
    swap = plan.days[0]
    refused(published, with_day(plan, replace(swap, add=(*swap.add, *swap.add))), "it is added twice")


def test_removing_less_than_the_day_holds_is_refused(published: PublishedTable) -> None:
    plan = planned(published)
    refused(published, with_day(plan, replace(plan.days[0], remove=())), "expected no file, found day=|_shadow")


def test_removing_a_file_that_is_not_there_is_refused(published: PublishedTable) -> None:
    plan = planned(published)
    swap = plan.days[0]
    stranger = replace(swap.remove[0], path=f"{SHADOW}/stranger.parquet")
    refused(published, with_day(plan, replace(swap, remove=(*swap.remove, stranger))), "stranger.parquet")


def test_a_file_of_another_day_is_refused(published: PublishedTable) -> None:
    plan = planned(published)
    swap = plan.days[0]
    refused(
        published, with_day(plan, replace(swap, add=plan.days[1].add)), "expected the day 2026-01-01, found 2026-01-02"
    )


def test_a_day_that_is_swapped_twice_is_refused(published: PublishedTable) -> None:
    plan = planned(published)
    refused(published, replace(plan, days=(*plan.days, plan.days[0])), "2026-01-01 twice")


def test_a_release_without_a_day_is_refused(published: PublishedTable) -> None:
    with pytest.raises(PreconditionError, match="at least one day"):
        published.commit(manifest("r_none", []), published.version())


def test_a_manifest_of_another_dataset_is_refused(published: PublishedTable) -> None:
    refused(
        published, replace(planned(published), dataset="orders"), "expected a manifest of sales, found one of orders"
    )


def test_a_shadow_without_log_is_refused(published: PublishedTable, home: Path) -> None:
    plan = planned(published)
    (home / "_shadow/u/2/_delta_log").rename(home / "elsewhere_log")
    refused(published, plan, "expected its log, found none")


def test_a_wider_shadow_is_refused(published: PublishedTable, home: Path) -> None:
    plan = planned(published)
    DeltaTable(home / "_shadow/u/2").alter.add_columns([Field("extra", PrimitiveType("string"))])
    refused(published, plan, "column extra: expected no such column, found string")


def test_a_shadow_with_deletion_vectors_is_refused(published: PublishedTable, home: Path) -> None:
    plan = planned(published)
    log = home / "_shadow/u/2/_delta_log/00000000000000000000.json"
    features = '"readerFeatures":["deletionVectors"],"writerFeatures":["deletionVectors"]'
    protocol = f'{{"protocol":{{"minReaderVersion":3,"minWriterVersion":7,{features}}}}}'
    lines = [protocol if line.startswith('{"protocol"') else line for line in log.read_text().splitlines()]
    log.write_text("\n".join(lines) + "\n")
    refused(published, plan, "found deletionVectors")


def test_a_shadow_with_column_mapping_is_refused(published: PublishedTable, home: Path) -> None:
    plan = planned(published)
    log = home / "_shadow/u/2/_delta_log/00000000000000000000.json"
    text = log.read_text()
    assert '"configuration":{}' in text
    log.write_text(text.replace('"configuration":{}', '"configuration":{"delta.columnMapping.mode":"name"}'))
    refused(published, plan, "found columnMapping")


def test_a_published_table_with_deletion_vectors_is_refused(published: PublishedTable, home: Path) -> None:
    from deltalake import TableFeatures

    plan = planned(published)
    DeltaTable(home).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    refused(published, plan, "published table .* found deletionVectors")


def test_a_published_table_with_a_constraint_is_refused(published: PublishedTable, home: Path) -> None:
    """No constraint was ever checked against the rows that a release swaps in."""
    plan = planned(published)
    DeltaTable(home).alter.add_constraint({"small": "amount < 25"})
    refused(
        published, plan, r"declares the table's own rules, found constraint small \(amount < 25\); .* DROP CONSTRAINT"
    )
    with pytest.raises(PreconditionError, match=r"checks\.rules"):
        published.prepare("_shadow/u/2")
    DeltaTable(home).alter.drop_constraint("small")
    published.commit(plan, published.version())
    assert content(home) == {d: [30] for d in DAYS}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"nullable": False}, "column amount NOT NULL"),
        ({"metadata": {"delta.invariants": "{}"}}, r"column amount delta\.invariants"),
        (
            {"metadata": {"delta.generationExpression": "id"}},
            r"column amount delta\.generationExpression \(amount <=> \(id\)\)",
        ),
    ],
)
def test_a_published_table_with_a_rule_for_a_column_is_refused(
    published: PublishedTable, home: Path, change: dict[str, object], found: str
) -> None:
    plan = planned(published)
    (metadata,) = actions(home, 0, "metaData")
    columns = json.loads(str(metadata["schemaString"]))
    next(field for field in columns["fields"] if field["name"] == "amount").update(change)
    # As ALTER TABLE … ALTER COLUMN writes it.
    altered = json.dumps({"metaData": {**metadata, "schemaString": json.dumps(columns)}})
    (home / f"_delta_log/{published.version() + 1:020}.json").write_text(altered + "\n", encoding="utf-8")
    refused(published, plan, f"published table .*, found {found};")


def test_a_table_that_was_never_prepared_is_refused(table: PublishedTable, home: Path) -> None:
    with pytest.raises(PreconditionError, match="prepare it first"):
        table.commit(manifest("r", [DaySwap(day(0), (), ())]), -1)


def test_a_rollback_is_the_same_commit_reversed(published: PublishedTable, home: Path) -> None:
    plan = planned(published)
    published.commit(plan, published.version())
    back = [DaySwap(s.day, s.add, s.remove) for s in plan.days[:2]]
    undo = manifest("r_back", back, kind=ReleaseKind.rollback, undoes="r_second")
    published.commit(undo, published.version())
    assert content(home) == {day(0): [10, 20], day(1): [10, 20], day(2): [30]}


def test_a_release_is_still_known_after_the_log_was_cleaned_up(published: PublishedTable, home: Path) -> None:
    version = published.commit(planned(published), published.version())
    DeltaTable(home).create_checkpoint()
    for commit in (home / "_delta_log").glob("*.json"):
        if commit.stem.isdigit() and int(commit.stem) < version:
            commit.unlink()
    assert published.committed("r_first") == 1
    assert published.committed("r_second") == version
    assert only(published.active()[day(0)]).path.startswith("_shadow/u/2/")


def test_statistics_are_the_shadows_own_counts(published: PublishedTable, home: Path) -> None:
    version = published.commit(planned(published), published.version())
    shadow = {f"_shadow/u/2/{a['path']}": json.loads(str(a["stats"])) for a in actions(home / "_shadow/u/2", 0, "add")}
    for added in actions(home, version, "add"):
        theirs = shadow[str(added["path"])]
        assert json.loads(str(added["stats"])) == {k: theirs[k] for k in ("numRecords", "nullCount")}
    texts = {a["stats"] for a in actions(home, version, "add")}
    assert {only(files).stats for files in published.active().values()} == texts


def test_a_table_restored_from_a_backup_is_read_again(published: PublishedTable, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "backup")
    published.commit(planned(published), published.version())
    seen, version = published.active(), published.version()
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "backup", home)
    write_shadow(home, "_shadow/u/3", rows_of({d: [40, 50] for d in DAYS}))
    publish(published, "_shadow/u/3", DAYS, "r_other")
    assert published.version() == version
    assert published.active() != seen
    assert content(home) == {d: [40, 50] for d in DAYS}


def test_a_recreated_table_is_read_again(published: PublishedTable, home: Path) -> None:
    before, version = published.active(), published.version()
    shutil.rmtree(home / "_delta_log")
    publish(published, "_shadow/u/2", DAYS, "r_first")
    assert published.version() == version
    assert published.active() != before
    assert published.active(DAYS[:1]) == {DAYS[0]: published.shadow_files("_shadow/u/2", DAYS)[DAYS[0]]}
