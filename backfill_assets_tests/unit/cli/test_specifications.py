"""`backfill validate` and `backfill new`, as people and pre-commit call them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import backfill_assets
from backfill_assets.campaign.draft import Draft, draft_text
from backfill_assets.campaign.load import LoadedSpecification, load_specification, misfits, read_specification
from backfill_assets.campaign.specification import FirstLayer
from backfill_assets.cli.app import app
from backfill_assets.core.errors import BackfillError
from backfill_assets.core.unit import Launch, ReleaseMode, Unit
from backfill_assets.dataset.load import load_folder
from backfill_assets.project.scaffold import dataset_files
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.ledgers import opened_ledger

CATALOG = load_folder(Path(backfill_assets.__file__).parent / "datasets")
GOOD = """\
backfill_id: {id}
owner: ann
source_range: {{start: 1995-01-01, end: 1995-01-31}}
target: {{dataset: daily_sales, partition_key: order_date}}
reason: {{change: Correct the tax}}
approval: {{required: true, by: [ben]}}
"""
COMPLETE = [
    "--dataset", "daily_sales", "--start", "1995-01-01", "--end", "1996-06-30", "--id", "tax-fix",
    "--change", "Correct the tax", "--approver", "finance-controller",
]  # fmt: skip
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The console script in an empty folder, with its state below it."""
    monkeypatch.chdir(tmp_path)
    for name in ("LEDGER_URL", "DATASETS", "WAREHOUSE"):
        monkeypatch.delenv(f"BACKFILL_ASSETS_{name}", raising=False)
    monkeypatch.setenv("BACKFILL_ASSETS_STATE", str(tmp_path / ".state"))

    def invoke(*arguments: str, answers: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=answers)

    return invoke


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def open_unit(opened_by: str) -> None:
    days = tuple(dt.date(1995, 1, day) for day in (30, 31))
    ledger = opened_ledger(f"sqlite:///{Path('.state/ledger.db').absolute()}", SystemClock())
    targets = {"daily_sales": days}
    unit = Unit("u_other", opened_by, SystemClock().now(), "carl", targets, ReleaseMode.manual)
    ledger.assign(Launch({"daily_sales": frozenset(days)}, opened_by), unit)


def test_good_files_pass_and_nothing_is_written(run: Run) -> None:
    done = run("validate", write("a.yaml", GOOD.format(id="fix-a")), write("b.yaml", GOOD.format(id="fix-b")))
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "a.yaml: good; daily_sales 1995-01-01..1995-01-31, 31 days",
        "b.yaml: good; daily_sales 1995-01-01..1995-01-31, 31 days",
    ]
    assert sorted(path.name for path in Path().iterdir()) == ["a.yaml", "b.yaml"]


def test_every_problem_of_all_files_is_reported_with_its_line(run: Run) -> None:
    shape = GOOD.format(id="Fix").replace("owner: ann\n", "owner: 7\n")
    catalog = GOOD.format(id="fix-b").replace("order_date", "day").replace("end: 1995-01-31", "end: 2001-01-31")
    files = [write("a.yaml", shape), write("b.yaml", catalog), write("c.yaml", GOOD.format(id="fix-c")), "none.yaml"]
    done = run("validate", *files)
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert [line.split(" ")[0] for line in lines[:6]] == [
        "a.yaml:1:", "a.yaml:2:", "b.yaml:3:", "b.yaml:4:", "none.yaml:", "c.yaml:",
    ]  # fmt: skip
    assert lines[-1] == "5 problems in 3 of 4 files"


def test_a_dataset_is_checked_by_its_folder_or_any_of_its_yaml_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "datasets" / "sales"
    home.mkdir(parents=True)
    for name, text in dataset_files("sales").items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
    good = write("a.yaml", GOOD.format(id="fix-a"))
    done = run("validate", "datasets/sales/dataset.yaml", good, "datasets/sales", "datasets/sales/defs.yaml")
    assert done.output.splitlines()[0] == "datasets/sales: good"
    assert done.exit_code == 0, done.output
    text = (home / "dataset.yaml").read_text(encoding="utf-8")
    (home / "dataset.yaml").write_text(text + "upstream: {nothing: {}}\n", encoding="utf-8")
    done = run("validate", "datasets/sales/dataset.yaml", good)
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == "1 problem in 1 of 2 files"
    assert "upstream 'nothing' is not loaded; correct its name or its folder" in done.output
    (home / "dataset.yaml").write_text(text.replace("\nkey:", "\nkeys:") + "colour: red\n", encoding="utf-8")
    monkeypatch.chdir(home)
    done = run("validate", "dataset.yaml")
    assert done.exit_code == 1
    lines = [line.split(": ") for line in done.output.splitlines()]
    wrong = [
        n for n, line in enumerate((home / "dataset.yaml").read_text().splitlines(), 1) if line[:4] in {"keys", "colo"}
    ]
    assert {place for place, *_ in lines[:-1]} >= {f"dataset.yaml:{n}" for n in wrong}, done.output
    assert lines[-1][0].endswith("in 1 of 1 file")


def test_two_files_may_not_be_the_same_campaign(run: Run) -> None:
    done = run("validate", write("a.yaml", GOOD.format(id="fix")), write("b.yaml", GOOD.format(id="fix")))
    assert done.exit_code == 1
    assert "b.yaml:1: backfill_id = 'fix': a.yaml has the same; give each campaign its own" in done.output


def test_a_compute_is_known_by_its_environment_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("a.yaml", GOOD.format(id="fix") + "execution: {compute: big}\n")
    assert "BACKFILL_ASSETS_SPARK_URL_BIG is not set where this runs" in run("validate", file).output
    monkeypatch.setenv("BACKFILL_ASSETS_SPARK_URL_BIG", "sc://spark.example.org:15002")
    assert run("validate", file).exit_code == 0


def test_days_that_another_open_unit_has_claimed_are_a_warning_that_names_it(run: Run) -> None:
    file = write("a.yaml", GOOD.format(id="fix"))
    open_unit("backfill:abc")
    done = run("validate", file)
    assert done.exit_code == 0
    assert "a.yaml:3: warning: daily_sales 1995-01-30..1995-01-31: claimed by open unit u_other" in done.output
    assert "backfill discard u_other" in done.output


def test_the_unit_of_the_campaign_itself_is_no_reason_to_warn(run: Run) -> None:
    file = write("a.yaml", GOOD.format(id="fix"))
    open_unit("campaign:fix")
    assert "warning" not in run("validate", file).output


def test_a_ledger_that_cannot_be_opened_is_a_warning_only(run: Run) -> None:
    Path(".state").mkdir()
    write(".state/ledger.db", "this is no database, and longer than the header of one " * 40)
    done = run("validate", write("a.yaml", GOOD.format(id="fix")))
    assert done.exit_code == 0
    assert "warning: could not check whether its days are claimed" in done.output


def test_a_new_specification_validates(run: Run) -> None:
    done = run("new", *COMPLETE, "--expect", "net_revenue=-1.5% to -0.8%", "--expect", "row_count=unchanged")
    assert done.exit_code == 0, done.output
    assert done.output == "wrote backfills/tax-fix.yaml; complete it, then: backfill validate backfills/tax-fix.yaml\n"
    loaded = load_specification(Path("backfills/tax-fix.yaml"))
    assert isinstance(loaded, LoadedSpecification)
    specification = loaded.specification
    assert (specification.owner, specification.source_range.count) == ("sales-controlling", 547)
    assert specification.execution.canary is not None
    assert len(specification.contract(["daily_sales"]).clauses[0].metrics) == 2
    assert run("validate", "backfills/tax-fix.yaml").exit_code == 0


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ([], "shadow"),  # daily_sales is built from another dataset
        (["--mistake", "ingestion"], "raw"),
        (["--mistake", "transformation"], "staging"),
        (["--mistake", "reference"], "staging"),
        (["--from", "shadow"], "shadow"),
    ],
)
def test_where_the_mistake_was_made_decides_which_layers_run_again(run: Run, options: list[str], first: str) -> None:
    done = run("new", *COMPLETE, *options)
    assert done.exit_code == 0, done.output
    loaded = load_specification(Path("backfills/tax-fix.yaml"))
    assert isinstance(loaded, LoadedSpecification)
    assert loaded.specification.scope.from_.value == first


def test_two_options_that_say_which_layers_run_again_are_refused(run: Run) -> None:
    message = refused(run("new", *COMPLETE, "--mistake", "reference", "--from", "shadow"))
    assert message == "--from and --mistake both say which layers run again; give only one"


def test_every_commented_line_of_a_new_specification_may_be_used(run: Run) -> None:
    run("new", *COMPLETE, "--expect", "tax=any")
    file = Path("backfills/tax-fix.yaml")
    lines = file.read_text(encoding="utf-8").splitlines()
    keys = ("min_progress:", "blackout_windows:", "query_timeout:", "budget:", "publish_window:", "notify:")
    used = [line.replace("# ", "", 1) if any(f"# {key}" in line for key in keys) else line for line in lines]
    assert sum(a != b for a, b in zip(lines, used, strict=True)) == len(keys)
    file.write_text("\n".join(used), encoding="utf-8")
    done = run("validate", str(file))
    assert done.exit_code == 0, done.output


def test_a_value_without_an_option_is_asked_for_until_it_can_be_read(run: Run) -> None:
    answers = [
        "models", "transformation",
        "sales", "order_items", "1995", "1995-01-01", "1999-01-01", "1995-01-02", "Fix: the #1 bug", "", "a fix",
        "tax-fix", "", "ann",
        "ben, finance-controller", "revenue=-1%", "net_revenue=little", "net_revenue=-1%",
    ]  # fmt: skip
    run("new", *COMPLETE)
    done = run("new", answers="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    assert "there is no dataset 'sales'; choose one of: " in done.output
    problems = (
        "'models' is not a place of a mistake; choose ingestion, transformation, reference",
        "'1995' is not an ISO date",
        "1999-01-01 is outside the history",
        "'a fix': use a-z",
        "already exists",
        "unknown metric 'revenue'",
        "'little' is not a change",
    )
    assert [problem for problem in problems if problem not in done.output] == []
    loaded = load_specification(Path("backfills/order-items-1995-01.yaml"))
    assert isinstance(loaded, LoadedSpecification)
    assert loaded.specification.reason.change == "Fix: the #1 bug"
    assert loaded.specification.scope.from_ is FirstLayer.staging
    assert loaded.specification.approval.by == ("ben", "finance-controller")
    assert loaded.specification.execution.canary is not None
    assert loaded.specification.execution.canary.partitions == 1


def refused(done: Result) -> str:
    assert isinstance(done.exception, BackfillError), done.output
    return str(done.exception)


def test_a_file_is_never_overwritten(run: Run) -> None:
    run("new", *COMPLETE)
    before = Path("backfills/tax-fix.yaml").read_text(encoding="utf-8")
    again = run("new", *COMPLETE, "--issue", "FIN-1")
    assert "backfills/tax-fix.yaml already exists; choose another --id" in refused(again)
    assert Path("backfills/tax-fix.yaml").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--id", "../tax", "use a-z, 0-9 and -"),
        ("--end", "1999-01-01", "the newest partition of daily_sales is 1998-08-02"),
        ("--end", "1994-01-01", "it is before start 1995-01-01"),
        ("--expect", "revenue=-1%", "unknown metric 'revenue'; this dataset has row_count"),
        ("--expect", "revenue", "write metric=change"),
        ("--from", "published", "use 'raw', 'staging' or 'shadow'"),
        ("--downstream", "flights", "which is not built from daily_sales"),
        ("--change", "one\ntwo", "write one line of text"),
    ],
)
def test_what_would_not_validate_is_not_written(run: Run, option: str, value: str, message: str) -> None:
    assert message in refused(run("new", *COMPLETE, option, value))
    assert list(Path().iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(run: Run) -> None:
    write("backfills", "a file")
    assert "choose another --folder" in refused(run("new", *COMPLETE))


people = st.text(
    st.characters(codec="latin-1", exclude_categories=("Cc", "Cf"), exclude_characters="\xa0"), min_size=1, max_size=80
).map(str.strip)
"""Characters of one script, and none invisible: names that look like others are refused."""
lines = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), min_size=1, max_size=80
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(lines.filter(str.strip), people.filter(bool), st.integers(0, 400), st.sampled_from(sorted(CATALOG.datasets)))
def test_every_value_that_is_written_into_a_draft_is_read_back(
    change: str, owner: str, more: int, dataset: str
) -> None:
    start = CATALOG.datasets[dataset].dataset.start
    end = min(start + dt.timedelta(days=more), CATALOG.datasets[dataset].dataset.end or dt.date(2013, 12, 31))
    draft = Draft(
        "some-fix",
        dataset,
        start,
        end,
        change,
        owner,
        (owner, "ben"),
        issue=change[:40] if change.isprintable() else "",
    )
    loaded = read_specification(draft_text(draft, CATALOG, "backfills/some-fix.yaml"), Path("some-fix.yaml"))
    assert isinstance(loaded, LoadedSpecification), "\n".join(map(str, loaded))
    assert misfits(loaded, CATALOG) == ()
    specification = loaded.specification
    assert (specification.reason.change, specification.owner) == (change, owner)
    assert specification.approval.by == (owner, "ben")
    assert (specification.source_range.start, specification.source_range.end) == (start, end)


def test_pre_commit_validates_the_specifications() -> None:
    root = Path(__file__).resolve().parents[3]
    config = yaml.safe_load((root / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (hook,) = [hook for repo in config["repos"] for hook in repo["hooks"] if hook["id"] == "backfill-validate"]
    assert hook["entry"].endswith("backfill validate")
    assert hook["files"] == r"^backfills/.*\.yaml$"
