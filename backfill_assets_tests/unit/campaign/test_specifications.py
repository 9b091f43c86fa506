"""Loading specifications: all problems together with their lines, and specifications that do not fit the catalog."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

import backfill_assets
from backfill_assets.campaign.load import LoadedSpecification, load_specification, misfits, read_specification, scoped
from backfill_assets.campaign.specification import Specification
from backfill_assets.core.canonical import canonical_json
from backfill_assets.core.expected_change import parse_change
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.loaded import Catalog
from backfill_assets_tests.harness.dataset_folders import write_dataset

ROOT = Path(__file__).resolve().parents[3]
DATASETS = Path(backfill_assets.__file__).parent / "datasets"
YAML = """\
backfill_id: revenue-tax-fix-2026-06
owner: finance-data
source_range: {start: 1995-01-01, end: 1996-06-30}
target: {dataset: daily_sales, partition_key: order_date}
reason: {issue: FIN-2841, change: Correct tax-inclusive revenue calculation}
scope: {from: staging, downstream: all}
time_zone: Europe/Berlin
execution:
  partitions_per_batch: 7
  max_concurrency: 2
  pause_during_live_pipeline: true
  blackout_windows: ["07:00-09:30"]
  canary: {partitions: 3}
  query_timeout: 30m
  budget: {bytes_read_per_day: 500GB, wall_time: 6h}
  min_progress: 1 batch per hour
  on_failure: stop
  compute: backfill
validation:
  row_count_tolerance: 0
  expected_change: {net_revenue: "-1.5% to -0.8%", quantity: unchanged}
approval: {required: true, by: [finance-controller]}
publish_window: ["22:00-05:00"]
rollback: {keep_for: 30d}
notify: {webhook: env:BACKFILL_WEBHOOK, on: [announced, launched, stopped, validated, published, rolled_back]}
"""


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_folder(DATASETS)


def read(text: str) -> LoadedSpecification:
    loaded = read_specification(text, Path("fix.yaml"))
    assert isinstance(loaded, LoadedSpecification), "\n".join(map(str, loaded))
    return loaded


def refused(text: str) -> list[str]:
    problems = read_specification(text, Path("fix.yaml"))
    assert not isinstance(problems, LoadedSpecification), "the specification was accepted"
    return [str(problem) for problem in problems]


def changed(*changes: tuple[str, str]) -> str:
    text = YAML
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} must stand exactly once in the sample"
        text = text.replace(old, new)
    return text


def spoiled(*changes: tuple[str, str]) -> list[str]:
    return refused(changed(*changes))


def misfit(catalog: Catalog, *changes: tuple[str, str]) -> list[str]:
    return [str(problem) for problem in misfits(read(changed(*changes)), catalog)]


def test_the_specification_of_the_documentation_is_accepted_completely(catalog: Catalog) -> None:
    loaded = read(YAML)
    assert loaded.text == YAML
    assert misfits(loaded, catalog, now=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), computes={"backfill"}) == ()
    assert scoped(loaded.specification, catalog) == ("daily_sales",)


@pytest.mark.parametrize("file", sorted((ROOT / "backfills").glob("*.yaml")), ids=lambda file: file.name)
def test_every_specification_of_this_project_fits_its_datasets(file: Path, catalog: Catalog) -> None:
    loaded = load_specification(file)
    assert isinstance(loaded, LoadedSpecification), "\n".join(map(str, loaded))
    assert misfits(loaded, catalog, now=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), computes=()) == ()
    assert file.stem == loaded.specification.backfill_id


def test_all_problems_are_reported_together_in_the_order_of_their_lines() -> None:
    problems = spoiled(
        ("backfill_id: revenue-tax-fix-2026-06", "backfill_id: Revenue"),
        ("end: 1996-06-30", "end: 1994-06-30"),
        ("time_zone: Europe/Berlin", "time_zone: Berlin"),
        ("max_concurrency: 2", "max_concurrency: 0"),
        ('["07:00-09:30"]', "[7-9]"),
        ("500GB", "0GB"),
        ("row_count_tolerance: 0", "row_count_tolerance: little"),
        ('"-1.5% to -0.8%", quantity: unchanged', "more, quantity: same"),
        ("rollback: {keep_for: 30d}", "rollback: {keep_for: 0d}\nretention: 3d"),
    )
    assert [problem.split(" ")[0] for problem in problems] == [
        f"fix.yaml:{line}:" for line in (1, 3, 7, 10, 12, 15, 20, 21, 21, 24, 25)
    ]
    assert "end = '1994-06-30': it is before start 1995-01-01; swap them" in problems[1]
    assert "blackout_windows[0] = '7-9': write a window as two times of day" in problems[4]
    assert "unknown key retention; did you mean execution? There are: backfill_id, owner" in problems[-1]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("partitions: 3", "partitions: 547", 13, "the range has 547 days and some must remain; write at most 546, or leave"),
        ('"07:00-09:30"', '"07:00-19:00", "18:00-07:00"', 12, "together they cover the entire day"),
        ('"07:00-09:30"', '"00:00-24:00"', 12, "this window would be the entire day"),
        ("pipeline: true", "pipeline: false", 16, "it only matters with pause_during_live_pipeline: true"),
        ("1 batch per hour", "0 batches per hour", 16, "write a pace such as 1 batch per hour"),
        ('["22:00-05:00"]', "[]", 23, "publish_window = an empty list: it never opens"),
        ("by: [finance-controller]", "by: []", 22, "approval.by is empty, but approval is required"),
        (", by: [finance-controller]", "", 22, "approval.by is empty, but approval is required"),
        ("[finance-controller]", "[finance-data], not_owner: true", 22, "by names only the owner 'finance-data'"),
        ("500GB", "0B", 15, "a budget of 0 lets no batch start"),
        ("500GB", "500", 15, "write a size with its unit, such as 500GB"),
        ("wall_time: 6h", "wall_time: 0h", 15, "wall_time = '0h': give a duration above zero"),
        ("query_timeout: 30m", "query_timeout: 30", 14, "write a duration"),
        ("on_failure: stop", "on_failure: go on", 17, "on_failure = 'go on': use 'stop'"),
        ("compute: backfill", "compute: Big Cluster", 18, "use a name of a-z, 0-9 and _"),
        ("env:BACKFILL_WEBHOOK", "https://hooks.example.org/x", 25, "notify.webhook: write env: and the variable"),
        ("[announced, launched,", "[anounced, launched,", 25, "notify.on[0] = 'anounced': use 'announced'"),
        ("from: staging", "from: published", 6, "scope.from = 'published': use 'raw', 'staging' or 'shadow'"),
        ("downstream: all", "downstream: some", 6, "write none, all, or a list"),
        ("downstream: all", "downstream: []", 6, "write none, all, or a list"),
        ("downstream: all", "upstream: all", 6, "unknown key scope.upstream; did you mean downstream? There are: from, "),
        ("owner: finance-data", "owner: ' '", 2, "write one line of text"),
        ("owner: finance-data\n", "", 1, "owner is missing; add it"),
        ("row_count_tolerance: 0", "row_count_tolerance: -1", 20, "write a percentage such as 2%"),
        ("{net_revenue:", "{row_count: any, net_revenue:", 20, "row_count contradict each other; keep one"),
        ("{net_revenue:", "{daily_sales: {quantity: any}, net_revenue:", 21, "the target's quantity is also set outside of it"),
        ("{net_revenue:", "{daily_margins: {}, net_revenue:", 21, "expected_change.daily_margins names no metric"),
        ("compute: backfill", "spark: {spark.master: local}", 18, "execution.spark.spark.master: a campaign may only set what"),
        ("compute: backfill", "spark: {spark.sql.session.timeZone: CET}", 18, "spark.sql.session.timeZone: a campaign may"),
        ("compute: backfill", "spark: {spark.sql.files.ignoreMissingFiles: true}", 18, "not which rows it finds; drop it"),
        ("compute: backfill", "spark: {spark.sql.legacy.sizeOfNull: true}", 18, "such as spark.sql.shuffle.partitions"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_with_a_remedy(old: str, new: str, line: int, message: str) -> None:
    problems = spoiled((old, new))
    assert len(problems) == 1, problems
    assert problems[0].startswith(f"fix.yaml:{line}: ")
    assert message in problems[0]


def test_a_contradiction_is_reported_although_another_key_is_wrong() -> None:
    problems = spoiled(("owner: finance-data", "owner: 7"), ("partitions: 3", "partitions: 600"))
    assert ["fix.yaml:2: owner = 7" in problems[0], "fix.yaml:13: execution.canary" in problems[1]] == [True, True]


def test_a_range_of_one_day_has_no_canary() -> None:
    (problem,) = spoiled(("end: 1996-06-30", "end: 1995-01-01"), ("partitions: 3", "partitions: 1"))
    assert problem.endswith("the range has 1 day and some must remain; leave canary out")


def test_both_spellings_of_an_expected_change_are_the_same_specification() -> None:
    other = changed(
        ('  expected_change: {net_revenue: "-1.5% to -0.8%", quantity: unchanged}',
         '  net_revenue_delta_expected: "-1.5% to -0.8%"\n  quantity_delta_expected: unchanged'),
    )  # fmt: skip
    assert read(other).specification == read(YAML).specification
    assert read(other).specification.hash == read(YAML).specification.hash


def test_both_spellings_may_be_used_together() -> None:
    both = changed(("  expected_change: {", "  tax_delta_expected: +3%\n  expected_change: {"))
    metrics = read(both).specification.contract(["daily_sales"]).clauses[0].metrics
    assert metrics["tax"] == parse_change("3%", "")
    assert metrics["quantity"] == parse_change("unchanged", "")


def test_a_problem_in_the_short_spelling_has_its_own_key_and_line() -> None:
    problems = spoiled(
        ("  row_count_tolerance: 0\n", "  tax_delta_expected: a little\n  quantity_delta_expected: any\n")
    )
    remedy = "write unchanged, any, -50% or '-1.5% to -0.8%'"
    twice = "is also in validation.expected_change; keep one of them"
    assert problems == [
        f"fix.yaml:20: validation.tax_delta_expected: 'a little' is not a change; {remedy}",
        f"fix.yaml:21: validation.quantity_delta_expected: the change of quantity {twice}",
    ]


@pytest.mark.parametrize("nothing", ["", " 5%"])
def test_the_short_spelling_is_checked_where_the_other_is_no_mapping(nothing: str) -> None:
    problems = spoiled(
        (
            '  expected_change: {net_revenue: "-1.5% to -0.8%", quantity: unchanged}',
            f"  expected_change:{nothing}\n  tax_delta_expected: a little\n  quantity_delta_expected: any",
        )
    )
    drop_it = "write a mapping from metric to change, or drop it and keep tax_delta_expected, quantity_delta_expected"
    remedy = "write unchanged, any, -50% or '-1.5% to -0.8%'"
    assert problems == [
        f"fix.yaml:21: validation.expected_change: {drop_it}",
        f"fix.yaml:22: validation.tax_delta_expected: 'a little' is not a change; {remedy}",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (YAML.replace("owner: finance-data", "owner: &owner finance-data"), "&owner is an anchor"),
        (YAML.replace("by: [finance-controller]", "by: [*owner]"), "*owner is an alias"),
        (YAML.replace("owner: finance-data", "owner: !!python/object/apply:os.system [ls]"), "is a tag; remove it"),
        (YAML + "owner: somebody-else\n", "owner is already set in line 2"),
        (YAML + "---\nowner: x\n", "a second document begins here"),
        ("a: " + "[" * 100_000, "nested deeper than 32 levels"),
        ("#" * (1024 * 1024 + 1), "larger than 1024 KiB; such a file is a page long"),
        ("l0: &l0 x\n" + "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 30)), "is an alias"),
        ("- a\n", "the file has no mapping of key: value lines"),
        ("", "the file has no mapping of key: value lines"),
        ("owner: [", "this is not valid YAML"),
    ],
)  # fmt: skip
def test_hostile_yaml_is_refused(text: str, message: str) -> None:
    assert any(message in problem for problem in refused(text))


def test_a_file_that_cannot_be_read_is_a_problem_like_others(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"owner: M\xfcller\n")
    observed = [load_specification(tmp_path / name) for name in ("none.yaml", "latin.yaml", ".")]
    texts = [str(problems[0]) for problems in observed if not isinstance(problems, LoadedSpecification)]
    assert [text.split(": ", 1)[1].split(";")[0] for text in texts] == [
        "the file cannot be read: No such file or directory",
        "byte 8 is not valid UTF-8",
        "the file cannot be read: Is a directory",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("dataset: daily_sales", "dataset: daily_sale", 4, "there is no dataset 'daily_sale'; choose one of: daily_capa"),
        ("key: order_date", "key: sale_date", 4, "daily_sales is partitioned by order_date; write that"),
        ("start: 1995-01-01", "start: 1991-12-31", 3, "the history of daily_sales begins on 1992-01-01"),
        ("end: 1996-06-30", "end: 1998-08-03", 3, "the newest partition of daily_sales is 1998-08-02"),
        ("downstream: all", "downstream: [flights]", 6, "'flights', which is not built from daily_sales; nothing is; write none"),
        ("{net_revenue:", "{revenue:", 21, "has no metric 'revenue'; did you mean net_revenue? It has row_count, orders"),
        ("{net_revenue:", "{flights: {row_count: any}, net_revenue:", 21, "the scope has no such dataset; it has daily_sales"),
        ("keep_for: 30d", "keep_for: 31d", 24, "keep_for = 31d: daily_sales keeps releases for 30d; write at most that, or raise"),
    ],
)  # fmt: skip
def test_a_specification_that_does_not_fit_the_catalog_is_refused(
    catalog: Catalog, old: str, new: str, line: int, message: str
) -> None:
    problems = misfit(catalog, (old, new))
    assert len(problems) == 1, problems
    assert problems[0].startswith(f"fix.yaml:{line}: ")
    assert message in problems[0]


def test_all_misfits_are_reported_together(catalog: Catalog) -> None:
    problems = misfit(
        catalog,
        ("key: order_date", "key: day"),
        ("start: 1995-01-01, end: 1996-06-30", "start: 1990-01-01, end: 2000-01-01"),
        ("keep_for: 30d", "keep_for: 99d"),
    )
    assert [problem.split(" ")[0] for problem in problems] == [f"fix.yaml:{line}:" for line in (3, 3, 4, 24)]


def test_the_name_of_a_compute_must_be_known_where_it_runs(catalog: Catalog) -> None:
    loaded = read(YAML)
    (problem,) = misfits(loaded, catalog, computes={"big", "small"})
    text = "BACKFILL_ASSETS_SPARK_URL_BACKFILL is not set where this runs; set it, or choose one of big, small"
    assert str(problem) == f"fix.yaml:18: execution.compute = 'backfill': {text}"
    assert misfits(loaded, catalog, computes={"backfill"}) == ()


GROWING = """\
name: trips
partition_column: trip_date
time_zone: Asia/Tokyo
start: 2024-01-01
end_offset: {offset}
key: [trip_date, trip]
columns:
  trip_date: {{type: date}}
  trip: {{type: long}}
source: {{format: csv, path: "{{day}}.csv", columns: {{trip: long}}}}
retention: {{keep_for: 60d}}
"""
DERIVED = """\
name: {name}
partition_column: trip_date
time_zone: Asia/Tokyo
start: 2024-01-01
key: [trip_date]
columns:
  trip_date: {{type: date}}
  trips: {{type: long}}
upstream: {{{upstream}: {{}}}}
measures: {{trips: {{}}}}
retention: {{keep_for: {keep_for}}}
"""


def trips(**changes: str) -> LoadedSpecification:
    keys = {"end": "2024-01-31", "downstream": "all", "keep_for": "30d", "changes": "{}"} | changes
    return read(
        f"backfill_id: trips-fix\nowner: ann\nsource_range: {{start: 2024-01-01, end: {keys['end']}}}\n"
        "target: {dataset: trips, partition_key: trip_date}\nreason: {change: x}\n"
        f"scope: {{downstream: {keys['downstream']}}}\nvalidation: {{expected_change: {keys['changes']}}}\n"
        f"approval: {{required: false}}\nrollback: {{keep_for: {keys['keep_for']}}}\n"
    )


@pytest.mark.parametrize(("offset", "newest"), [(0, "2024-01-09"), (1, "2024-01-10"), (-1, "2024-01-08")])
def test_a_dataset_that_grows_has_partitions_up_to_yesterday_in_its_own_time_zone(
    tmp_path: Path, offset: int, newest: str
) -> None:
    write_dataset(tmp_path, yaml=GROWING.format(offset=offset))
    catalog = load_folder(tmp_path)
    now = dt.datetime(2024, 1, 9, 16, tzinfo=dt.UTC)  # in Tokyo it is the tenth already
    (problem,) = misfits(trips(end="2024-01-11"), catalog, now=now)
    assert f"the newest partition of trips is {newest}" in str(problem)
    assert misfits(trips(end=newest), catalog, now=now) == ()
    assert misfits(trips(end="2024-01-11"), catalog) == ()


def test_a_dataset_that_looks_ahead_names_the_newest_day_that_can_be_published(tmp_path: Path) -> None:
    write_dataset(tmp_path, yaml=GROWING.format(offset=0) + "lookahead_days: 1\n")
    now = dt.datetime(2024, 1, 9, 16, tzinfo=dt.UTC)
    (problem,) = misfits(trips(end="2024-01-09"), load_folder(tmp_path), now=now)
    newest = "the newest partition of trips that can be published when the day after it is over (lookahead_days) is 2024-01-08"
    assert newest in str(problem)


@pytest.fixture
def chain(tmp_path: Path) -> Catalog:
    """trips -> totals -> report, the last of which keeps its releases for two weeks only."""
    write_dataset(tmp_path, yaml=GROWING.format(offset=0))
    for name, upstream, keep_for in (("totals", "trips", "60d"), ("report", "totals", "14d")):
        folder = write_dataset(tmp_path, name, DERIVED.format(name=name, upstream=upstream, keep_for=keep_for))
        (folder / "staging.sql").unlink()
    catalog = load_folder(tmp_path)
    assert catalog.problems == ()
    return catalog


@pytest.mark.parametrize(
    ("downstream", "names"),
    [
        ("none", ("trips",)),
        ("all", ("trips", "totals", "report")),
        ("[totals]", ("trips", "totals")),
        ("[report, totals]", ("trips", "totals", "report")),
    ],
)
def test_the_scope_is_the_target_and_what_is_built_from_it_upstream_first(
    chain: Catalog, downstream: str, names: tuple[str, ...]
) -> None:
    assert scoped(trips(downstream=downstream).specification, chain) == names


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("start: 2024-01-01", "start: 2024-03-01", "'report', whose history begins on 2024-03-01, after source_range"),
        ("key:", "state: draft\nkey:", ""),
    ],
)
@pytest.mark.usefixtures("chain")
def test_what_begins_later_or_is_a_draft_is_built_only_if_it_is_named(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    file = tmp_path / "report" / "dataset.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    catalog = load_folder(tmp_path)
    assert catalog.problems == ()
    assert scoped(trips(downstream="all").specification, catalog) == ("trips", "totals")
    named = trips(downstream="[totals, report]", keep_for="1d")
    found = misfits(named, catalog)
    assert [problem in str(one) for one in found] == ([True] if problem else [])
    assert ("report" in scoped(named.specification, catalog)) is not bool(problem)


@pytest.mark.usefixtures("chain")
def test_what_is_built_from_a_dataset_that_begins_later_needs_it_not_in_the_scope(tmp_path: Path) -> None:
    totals, report = (tmp_path / name / "dataset.yaml" for name in ("totals", "report"))
    totals.write_text(totals.read_text(encoding="utf-8").replace("2024-01-01", "2024-03-01"), encoding="utf-8")
    report.write_text(
        report.read_text(encoding="utf-8").replace("{totals: {}}", "{totals: {}, trips: {}}"), encoding="utf-8"
    )
    catalog = load_folder(tmp_path)
    assert catalog.problems == ()
    assert misfits(trips(downstream="[report]", keep_for="1d"), catalog) == ()


def test_a_scope_with_a_gap_is_refused(chain: Catalog) -> None:
    (problem,) = misfits(trips(downstream="[report]", keep_for="1d"), chain)
    assert "fix.yaml:6: scope.downstream names 'report', which is built from totals; add that" in str(problem)


def test_every_dataset_of_the_scope_must_keep_its_releases_long_enough(chain: Catalog) -> None:
    (problem,) = misfits(trips(), chain)
    assert "rollback.keep_for = 30d: report keeps releases for 14d" in str(problem)
    assert misfits(trips(downstream="[totals]"), chain) == ()


def test_a_downstream_dataset_has_its_own_expected_changes(chain: Catalog) -> None:
    loaded = trips(downstream="[totals]", changes="{row_count: -50%, totals: {trips: -50%}}")
    assert misfits(loaded, chain) == ()
    contract = loaded.specification.contract(scoped(loaded.specification, chain))
    assert [(clause.dataset, list(clause.metrics)) for clause in contract.clauses] == [
        ("trips", ["row_count"]),
        ("totals", ["trips"]),
    ]
    (problem,) = misfits(trips(downstream="[totals]", changes="{totals: {trip: any}}"), chain)
    assert "fix.yaml:7: validation.expected_change.totals.trip: totals has no metric 'trip'; did you mean" in str(
        problem
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "{fair: any}",
            "expected_row_change.fair: trips has no non-key column 'fair'; did you mean fare? It has fare, city",
        ),
        ("{city: -50%}", "expected_row_change.city: a string such as city cannot change by a percentage; write any or"),
        (
            "{totals: {tripz: any}}",
            "expected_row_change.totals.tripz: totals has no non-key column 'tripz'; did you mean trips",
        ),
        ("{nothing: {a: any}}", "expected_row_change.nothing: the scope has no such dataset; it has trips, totals"),
    ],
)
def test_rows_are_promised_of_columns_that_are_there(tmp_path: Path, chain: Catalog, rows: str, message: str) -> None:
    wide = GROWING.format(offset=0).replace(
        "columns:\n", "columns:\n  fare: {type: double}\n  city: {type: string}\n", 1
    )
    (tmp_path / "trips" / "dataset.yaml").write_text(wide)
    catalog = load_folder(tmp_path)
    loaded = trips(downstream="[totals]", changes=f"{{}}, expected_row_change: {rows}")
    (problem,) = misfits(loaded, catalog)
    assert f"fix.yaml:7: validation.{message}" in str(problem)


def test_a_target_whose_folder_is_faulty_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    write_dataset(tmp_path, yaml="name: trips\n")
    (problem,) = misfits(trips(), load_folder(tmp_path))
    assert "target.dataset = 'trips': dataset trips cannot be used" in str(problem)
    assert "start is missing" in str(problem)


def test_a_specification_is_the_same_after_it_was_stored(catalog: Catalog) -> None:
    before = read(YAML).specification
    assert Specification.from_json(canonical_json(before.to_plain())) == before
