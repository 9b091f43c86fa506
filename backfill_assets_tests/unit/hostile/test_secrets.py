"""No token, password or secret URL of the environment reaches a message, Dagster's event log, a command's output or a file."""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.application import Application
from backfill_assets.cli.output import noted
from backfill_assets.core.errors import BackfillError, LedgerError, SettingsError
from backfill_assets.ledger.open import open_ledger
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets.settings import Settings
from backfill_assets.spark.client import channel_builder
from backfill_assets.spark.registration import Endpoint
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.hostile.commands import run
from backfill_assets_tests.unit.hostile.strategies import often
from backfill_assets_tests.unit.orchestration.house import House

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
TOKEN, HEADER, PASSWORD, HOOK = "T0SECRET-token", "T0SECRET-header", "T0SECRET-password", "T0SECRET-hook"
MARK = "T0SECRET"
SPARK = f"sc://localhost:1/;token={TOKEN};x-api-key={HEADER}"
LEDGER = f"postgresql+psycopg2://me:{PASSWORD}@127.0.0.1:1/ledger"
SPECIFICATION = """\
backfill_id: tax-fix
owner: ann
source_range: {start: 2026-01-01, end: 2026-01-02}
target: {dataset: sales, partition_key: day}
reason: {change: Correct the tax}
scope: {from: shadow, downstream: none}
execution: {compute: big}
approval: {required: false}
notify: {webhook: env:BACKFILL_WEBHOOK}
"""
COMMANDS = (
    "status", "status --json", "status nobody --json", "releases --json", "doctor --json", "history sales --json",
    "path sales --json", "sweep --dry-run --json", "plan fix.yaml --json", "plan fix.yaml", "validate fix.yaml", "list --json",
    "status tax-fix --json", "spark status", "spark stop", "sql SELECT", "publish tax-fix", "approve tax-fix --evidence x",
    "refresh", "stale", "stale --json", "reconcile", "hold list sales",
    "report --index", "report tax-fix", "metrics --json", "diff-history --models HEAD",
)  # fmt: skip


def everything_of(error: BaseException) -> str:
    """The error with its causes, as a log would show it."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    found = House(tmp_path / "house", monkeypatch)
    found.released({day(1): [1]})
    (tmp_path / "home").mkdir()
    variables = {
        "BACKFILL_ASSETS_SPARK_URL": SPARK, "BACKFILL_ASSETS_SPARK_URL_BIG": SPARK, "DAGSTER_HOME": str(tmp_path / "home"),
        "BACKFILL_WEBHOOK": f"http://127.0.0.1:1/services/{HOOK}", "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN,
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path / "house")
    Path("fix.yaml").write_text(SPECIFICATION, encoding="utf-8")
    yield found
    found.close()


def kept_of(application: Application, *layers: str) -> str:
    """Everything that Dagster stores about a run for a day of these layers, which must fail."""
    job = definitions_of(application).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(
            asset_selection=[dg.AssetKey(["sales", layer]) for layer in layers],
            partition_key="2026-01-02", instance=instance, raise_on_error=False,
        )  # fmt: skip
        assert not done.success
        return "\n".join(str(record.event_log_entry) for record in instance.get_records_for_run(done.run_id).records)


def test_no_secret_reaches_the_output_of_commands_or_a_file(house: House) -> None:
    for line in COMMANDS:
        said = run(*line.split(" "))
        assert MARK not in said.text, line
        assert "Traceback" not in said.text, said.text
        assert "failed:" not in said.err, said.err
    for file in Path.cwd().parent.rglob("*"):
        assert not file.is_file() or MARK.encode() not in file.read_bytes(), file


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg2://me:T0@{PASSWORD}@127.0.0.1:1/d", f"postgresql+psycopg2://me:{PASSWORD}",
        f"postgresql+psycopg2://me:{PASSWORD}@127.0.0.1:1/d",
    ],
    ids=["an @ in the password", "no host", "the server is down"],
)  # fmt: skip
def test_no_secret_of_dagsters_database_reaches_output_or_log(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    shutil.copyfile(ROOT / "deploy" / "postgres" / "dagster.yaml", tmp_path / "home" / "dagster.yaml")
    monkeypatch.setenv("BACKFILL_ASSETS_DAGSTER_URL", url)
    monkeypatch.setenv("BACKFILL_ASSETS_DAGSTER_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between Dagster's tries
    for line in ("doctor", "doctor --json", "list", "pause tax-fix --reason x"):
        said = run(*line.split(" "))
        assert said.code == 1, said.text
        assert MARK not in said.text, line
        assert "unexpected error" not in said.text, said.text
    log = house.application.settings.state / "errors.log"
    assert not log.exists() or MARK not in log.read_text()


@pytest.mark.parametrize("command", ["list", "doctor", "publish UNIT"])
def test_a_url_of_dagsters_database_that_cannot_be_read_is_refused_by_the_name_of_its_variable(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    unit = house.released({day(2): [2]})
    shutil.copyfile(ROOT / "deploy" / "postgres" / "dagster.yaml", tmp_path / "home" / "dagster.yaml")
    monkeypatch.setenv("BACKFILL_ASSETS_DAGSTER_URL", f"postgresql+psycopg2://me:T0@{PASSWORD}@127.0.0.1:1/d")
    monkeypatch.setenv("BACKFILL_ASSETS_DAGSTER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "500")
    said = run(*command.replace("UNIT", unit.id).split(" "))
    assert said.code == 1, said.text
    assert "takes it from BACKFILL_ASSETS_DAGSTER_URL" in said.text
    assert "failed:" not in said.err
    assert MARK not in said.text


def test_no_secret_reaches_the_event_log_when_spark_is_not_there(house: House) -> None:
    kept = kept_of(Application.from_env(), "raw")
    assert "The Spark server at sc://localhost:1 gave no session" in kept
    assert MARK not in kept


def test_no_secret_reaches_the_event_log_when_the_ledger_is_not_there(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_ASSETS_LEDGER_URL", LEDGER)
    kept = kept_of(Application.from_env(), "shadow")
    assert "ledger ledger on 127.0.0.1:1" in kept
    assert MARK not in kept
    said = run("status", "--json")
    assert said.code == 1
    assert MARK not in said.text


def test_no_secret_reaches_the_report_or_the_event_log_of_what_goes_well(house: House) -> None:
    unit = house.unit({day(2): [2]})
    application = Application.from_env()
    job = definitions_of(application).get_job_def("unit_publish")
    config = {"unit": unit.id, "evidence": application.publisher.evidence_hash(unit.id), "reason": "they asked for it"}
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(run_config={"ops": {"unit_publish_op": {"config": config}}}, instance=instance)
        kept = "\n".join(str(record.event_log_entry) for record in instance.get_records_for_run(done.run_id).records)
    assert f"unit {unit.id} is released as" in kept
    assert MARK not in kept
    for target in (unit.id, house.world.ledger.releases(unit=unit.id)[0].manifest.release):
        said = run("report", target)
        assert said.code == 0, said
        assert MARK not in said.text + run("report", target, "--json").text
    pages = [*Path.cwd().rglob("*.html"), *Path.cwd().rglob("reports/**/*.json")]
    assert len(pages) > 1
    assert not [page for page in pages if MARK.encode() in page.read_bytes()]


def test_a_notice_that_cannot_be_sent_leaves_no_url_behind(house: House) -> None:
    run("plan", "fix.yaml")
    campaign = house.application.ledger.campaign("tax-fix")
    with pytest.raises(BackfillError) as refused:
        Application.from_env().notifier.send(campaign.specification.notify.variable, "x")  # type: ignore[union-attr]
    assert MARK not in everything_of(refused.value)


secrets = st.sampled_from(
    ["T0SECRET", "T0SECRET/x", "T0SECRET#", "T0SECRET[", "T0SECRET\u2100", "T0SECRET%", "T0SECRET:x@"]
)
shapes = (
    "sc://h:1/;token={}", "sc://h:1;token={}", "sc://h/;x-key={}", "sc://h:1/;token={};;", "sc://u:{}@h:1", "sc://h:{}/", "sc://[{}]:1",
    "sc://[h:1/;token={}", "sc://h:99999/;token={}", "sc://h:1/?token={}", "sc://h:1/;{}", "http://h/{}", "sc://h:1/{}", "sc:{}",
    "sc://h:1/;token=a;use_ssl=true;authorization={}", "sc://;token={}", "sc://h:1/;token={}=b",
)  # fmt: skip


@often
@given(st.sampled_from(shapes), secrets, st.sampled_from(["SPARK_URL", "SPARK_URL_BIG"]))
def test_a_url_of_spark_is_used_or_refused_and_its_secrets_are_never_shown(shape: str, secret: str, name: str) -> None:
    try:
        settings = Settings.from_env({f"BACKFILL_ASSETS_{name}": shape.format(secret)})
    except SettingsError as refused:
        assert MARK not in everything_of(refused)  # noqa: PT017
        assert f"BACKFILL_ASSETS_{name}" in str(refused)  # noqa: PT017
        return
    endpoint = Endpoint.remote(settings.spark_url or settings.computes["big"])
    assert MARK not in f"{settings!r} {endpoint!r} {endpoint.url}"
    # Spark's own client accepts it, with everything that it needs.
    builder = channel_builder(endpoint, "00000000-0000-0000-0000-000000000000")
    assert MARK in str(builder.metadata()) + str(builder.token)


@often
@given(
    st.sampled_from(
        [
            "postgresql://me:{}@127.0.0.1:1/x",
            "postgresql://me:{}/x",
            "postgresql+psycopg2://me@127.0.0.1:1/x?password={}",
            "mysql://me:{}@h/x",
            "postgresql+nobody://me:{}@h/x",
            "sqlite:///{}?x=1",
        ]
    ),
    secrets,
)
def test_a_url_of_a_ledger_is_used_or_refused_and_its_secrets_are_never_shown(shape: str, secret: str) -> None:
    try:
        settings = Settings.from_env({"BACKFILL_ASSETS_LEDGER_URL": shape.format(secret)})
        open_ledger(settings.ledger_url, SystemClock())
    except (SettingsError, LedgerError) as refused:
        assert MARK not in everything_of(refused)  # noqa: PT017
    else:
        pytest.fail("there is no such ledger")


@pytest.mark.parametrize(
    "url",
    [
        f"https://me:{MARK}@h/x",
        f"https://h/x?token={MARK}",
        f"https://h/x#{MARK}",
        f"ftp://h/{MARK}",
        f"http://[{MARK}",
        f"http://h/{MARK}\u2100",
    ],
)
def test_an_address_of_reports_that_may_hold_a_secret_is_refused_and_never_shown(url: str) -> None:
    with pytest.raises(SettingsError, match="BACKFILL_ASSETS_REPORTS_URL") as refused:
        Settings.from_env({"BACKFILL_ASSETS_REPORTS_URL": url})
    assert MARK not in everything_of(refused.value)


def test_headers_of_a_url_go_with_each_call_and_are_not_shown() -> None:
    endpoint = Endpoint.remote(f"sc://h:443/;use_ssl=true;token={TOKEN};x-api-key={HEADER}")
    assert (endpoint.url, endpoint.token) == ("sc://h:443/;use_ssl=true", TOKEN)
    assert ("x-api-key", HEADER) in list(channel_builder(endpoint, "00000000-0000-0000-0000-000000000000").metadata())
    assert MARK not in repr(endpoint)


def test_the_log_of_failures_holds_no_part_of_a_secret(tmp_path: Path) -> None:
    environ = {
        "BACKFILL_ASSETS_STATE": str(tmp_path), "BACKFILL_ASSETS_SPARK_URL": SPARK, "BACKFILL_ASSETS_LEDGER_URL": LEDGER,
        "BACKFILL_WEBHOOK": f"https://hooks.example.org/services/{HOOK}", "MY_PASSWORD": "T0SECRET-mine",
    }  # fmt: skip
    observed = noted(RuntimeError(f"{TOKEN} {HEADER} {PASSWORD} /services/{HOOK} T0SECRET-mine {SPARK}"), environ)
    assert MARK not in observed + (tmp_path / "errors.log").read_text(encoding="utf-8")
