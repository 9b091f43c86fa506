"""Run config and tags from a generator, as the Dagster UI takes them: refused by an error of our own, before any work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.campaign.state import CAMPAIGN_TAG
from backfill_assets.core.errors import BackfillError, ContractError, LayoutError, UnitError
from backfill_assets.core.expected_change import parse_contract
from backfill_assets.core.unit import CONTRACT_TAG, LIVE_TAG, UNIT_TAG
from backfill_assets.dataset.definition import Dataset
from backfill_assets.orchestration import backfills
from backfill_assets.orchestration.backfills import LaunchError, graphql
from backfill_assets.orchestration.definitions import definitions_of
from backfill_assets.orchestration.launches import Context, contract_of
from backfill_assets_tests.harness.examples import EXAMPLES
from backfill_assets_tests.unit.hostile.strategies import BOMBS, broken, days, often, texts, values
from backfill_assets_tests.unit.hostile.watch import calls_of, little_read, nothing_written, observed, state_of
from backfill_assets_tests.unit.orchestration.house import House

pytestmark = pytest.mark.slow

SECRET = "T0SECRET99"
# A run of Dagster takes longer than all the parsing.
FEW = max(1, EXAMPLES // 10)
FILE = "expected_change:\n  amount: -1.5% to -0.8%\n"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("launches") / "house"
    with pytest.MonkeyPatch.context() as environ:
        found = House(folder, environ)
        environ.chdir(folder)
        environ.setenv("BACKFILL_ASSETS_A_TOKEN", SECRET)
        yield found
        found.close()


@pytest.fixture
def sales(house: House) -> Dataset:
    return house.application.dataset("sales")


def launch(config: object = None, tag: str | None = None) -> Context:
    run_config: dict[str, Any] = (
        {"ops": {"shadow__sales": {"config": {"expected_change": config}}}} if config is not None else {}
    )
    return cast(
        "Context",
        SimpleNamespace(run=SimpleNamespace(run_config=run_config, tags={} if tag is None else {CONTRACT_TAG: tag})),
    )


def tried(context: Context, dataset: Dataset) -> None:
    folder = Path.cwd()
    with nothing_written(folder), little_read():
        try:
            contract_of(context, [dataset])
        except BackfillError as refusal:
            observed(refusal)


clauses = st.fixed_dictionaries(
    {
        "metrics": st.dictionaries(
            st.sampled_from(["amount", "row_count"]), st.sampled_from(["any", "-50%"]) | texts(), min_size=1
        )
    },
    optional={
        "days": st.lists(days(), max_size=3) | st.fixed_dictionaries({"start": days(), "end": days()}) | values()
    },
)


@often
@given(values() | st.lists(clauses, max_size=5) | st.dictionaries(st.sampled_from(["amount", "row_count"]), values()))
def test_an_expected_change_of_run_config_is_understood_or_refused(sales: Dataset, config: object) -> None:
    tried(launch(config), sales)


@often
@given(
    texts()
    | values().map(json.dumps)
    | st.lists(clauses).map(json.dumps)
    | st.sampled_from(["../../x.yaml", "/etc/x.yaml", "a\0.yaml"])
)
def test_an_expected_change_of_a_tag_is_understood_or_refused(sales: Dataset, tag: str) -> None:
    tried(launch(tag=tag), sales)


@often
@given(broken(FILE))
def test_an_expected_change_of_a_broken_file_is_understood_or_refused(sales: Dataset, content: bytes) -> None:
    Path("fix.yaml").write_bytes(content)
    tried(launch(tag="fix.yaml"), sales)


@pytest.mark.parametrize("bomb", [*BOMBS, "\namount: 2024-13-45\n"], ids=range(len(BOMBS) + 1))
def test_no_bomb_in_a_file_goes_off(bomb: str, sales: Dataset) -> None:
    Path("fix.yaml").write_text(FILE + bomb, encoding="utf-8")
    with pytest.raises(ContractError, match=r"fix\.yaml"), little_read():
        contract_of(launch(tag="fix.yaml"), [sales]) or pytest.fail("it was taken")


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("[" * 100_000, "is not JSON"),
        ('{"amount": "any", "amount": "-50%"}', "a key appears twice"),
        ("a\0b.yaml", "must name a .yaml file below"),
        ("loop.yaml", "must name a .yaml file below"),
        (
            '[{"days": {"start": "0001-01-01", "end": "9999-12-31"}, "metrics": {"amount": "any"}}]',
            "write a day from 1900",
        ),
        (
            '[{"days": {"start": "1900-01-01", "end": "2199-12-31"}, "metrics": {"amount": "any"}}]',
            "name at most 36,600",
        ),
        ('{"amount": "-\u0665%"}', "is not a change"),
        (json.dumps([{"metrics": {"amount": "any"}}] * 20_000), "amount is already expected on these days by"),
        (json.dumps({"amount": "x" * 100_000}), "is not a change"),
        (json.dumps({"rows": {"x" * 100_000: "any"}}), "unknown column 'xxx"),
        (json.dumps({"rows": {"amount": "-\u0665%"}}), "is not a change"),
        (json.dumps([{"rows": {"amount": "any"}}] * 20_000), "amount is already expected on these days by"),
    ],
    ids=range(12),
)
def test_a_forbidden_value_of_a_tag_is_refused(tag: str, message: str, sales: Dataset) -> None:
    if not Path("loop.yaml").is_symlink():
        Path("loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(ContractError, match=message) as refused:
        contract_of(launch(tag=tag), [sales])
    observed(refused.value)


def test_many_clauses_are_checked_once_each() -> None:
    def clauses(years: int) -> list[dict[str, object]]:
        days = (f"20{y:02}-{m:02}-{d:02}" for y in range(years) for m in range(1, 13) for d in range(1, 29))
        return [{"days": [day], "metrics": {"amount": "any"}, "rows": {"fee": "any"}} for day in days]

    def calls(years: int) -> int:
        return calls_of(lambda: parse_contract(clauses(years), ["amount"], columns={"fee": "double"}))

    assert calls(4) < 5 * calls(1)


def job_refused(house: House, name: str, config: dict[str, object]) -> tuple[str, str]:
    """The class of the error that ended a job, and everything that Dagster stores about its run."""
    job = definitions_of(house.application).get_job_def(name)
    (op,) = [node.name for node in job.nodes]
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(
            run_config={"ops": {op: {"config": config}}}, instance=instance, raise_on_error=False
        )
        assert not done.success
        kept = "\n".join(str(record.event_log_entry) for record in instance.get_records_for_run(done.run_id).records)
        error = next(e.event_specific_data.error for e in done.all_events if e.is_step_failure)  # type: ignore[union-attr]
    return str(error.cause.cls_name if error.cause else error.cls_name), kept


JOBS = {
    "campaign_plan": {"file": "'; DROP TABLE units; --.yaml"}, "campaign_launch": {"campaign": "x' OR '1'='1"},
    "campaign_pause": {"campaign": "${jndi:ldap://x}", "reason": "\x1b[2J"}, "campaign_resume": {"campaign": "\u0430nn\u0430"},
    "campaign_stop": {"campaign": "", "reason": "x" * 100_000}, "campaign_discard": {"campaign": "../../etc/passwd"},
    "campaign_approve": {"campaign": "\u202eabc", "evidence": "../..", "reason": "\n"},
    "campaign_publish": {"campaign": "x" * 10_000, "evidence": "\x00"},
    "release_rollback": {"release": "%s", "reason": "[/]", "first": "0001-01-01", "last": "\u0661"},
    "campaign_sign_off": {"campaign": "a\nb"},
    "campaign_set": {"campaign": "none", "max_concurrency": -5}, "campaign_cleanup": {"campaign": "{0.__class__}"},
    "unit_publish": {"unit": "`", "evidence": ""}, "release_watch": {"release": "*"},
    "prove": {"target": "sales", "partitions": "1900-01-01..2199-12-31"},
}  # fmt: skip


def test_every_job_that_takes_config_gets_hostile_config(house: House) -> None:
    jobs = definitions_of(house.application).resolve_all_job_defs()
    assert {job.name for job in jobs if job.name[:2] != "__"} - {"live_sales", "sweep"} == {*JOBS}


@pytest.mark.parametrize("name", sorted(JOBS))
def test_a_job_with_hostile_config_ends_with_an_error_of_ours_and_writes_nothing(name: str, house: House) -> None:
    before = state_of(Path.cwd())
    kind, _ = job_refused(house, name, JOBS[name])
    known = {kind.__name__ for kind in _all_of(BackfillError)}
    assert kind in known
    assert state_of(Path.cwd()) == before


@pytest.mark.parametrize("name", sorted(JOBS))
@settings(often, max_examples=FEW)
@given(st.data())
def test_a_job_with_generated_config_ends_with_an_error_of_ours(name: str, house: House, data: st.DataObject) -> None:
    asked = {key: data.draw(_like(value), label=key) for key, value in JOBS[name].items()}
    before = state_of(Path.cwd())
    kind, _ = job_refused(house, name, asked)
    assert kind in {kind.__name__ for kind in _all_of(BackfillError)}
    assert state_of(Path.cwd()) == before


def _like(value: object) -> st.SearchStrategy[Any]:
    return st.integers(-(2**31), 2**31 - 1) if isinstance(value, int) else texts() | days()


def _all_of(root: type[BackfillError]) -> Iterator[type[BackfillError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _all_of(kind)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("unit_publish", "unit"),
        ("prove", "target"),
        ("prove", "partitions"),
        ("campaign_pause", "campaign"),
        ("release_watch", "release"),
    ],
)
def test_no_job_shows_a_variable_to_the_user_who_launches_it(name: str, key: str, house: House) -> None:
    others = {"unit_publish": {"evidence": "x"}, "prove": {"target": "x"}}.get(name, {})
    config = {**others, key: {"env": "BACKFILL_ASSETS_A_TOKEN"}}
    job = definitions_of(house.application).get_job_def(name)
    (op,) = [node.name for node in job.nodes]
    with pytest.raises(dg.DagsterInvalidConfigError) as refused:
        job.execute_in_process(run_config={"ops": {op: {"config": config}}}, raise_on_error=False)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("file", ["/etc/passwd", "../../../../etc/passwd", "out.yaml", "a\0b"])
def test_no_job_reads_a_file_outside_of_its_folder(file: str, house: House) -> None:
    if not Path("out.yaml").is_symlink():
        Path("out.yaml").symlink_to("/etc/passwd")
    kind, kept = job_refused(house, "campaign_plan", {"file": file})
    assert kind == LayoutError.__name__
    assert "root:" not in kept


@pytest.mark.parametrize(
    "tags",
    [
        {UNIT_TAG: "x' OR '1'='1"},
        {UNIT_TAG: "\u202eabc"},
        {UNIT_TAG: "../.."},
        {UNIT_TAG: "x" * 2_000, CAMPAIGN_TAG: "`"},
    ],
)
def test_a_launch_for_an_unknown_unit_is_refused_before_any_work(tags: dict[str, str], house: House) -> None:
    before = state_of(Path.cwd())
    assert _errors_of_a_launch(house, tags) == {UnitError.__name__}
    assert state_of(Path.cwd()) == before


@settings(often, max_examples=FEW)
@given(texts().filter(str.strip), st.dictionaries(st.sampled_from([CAMPAIGN_TAG, CONTRACT_TAG, LIVE_TAG]), texts()))
def test_a_launch_with_tags_from_a_generator_is_refused_before_any_work(
    house: House, unit: str, others: dict[str, str]
) -> None:
    before = state_of(Path.cwd())
    assert _errors_of_a_launch(house, {**others, UNIT_TAG: unit}) <= {kind.__name__ for kind in _all_of(BackfillError)}
    assert state_of(Path.cwd()) == before


def _errors_of_a_launch(house: House, tags: dict[str, str]) -> set[str]:
    """The classes of the errors that end a launch of a day of sales."""
    job = definitions_of(house.application).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        keys = [dg.AssetKey(["sales", "raw"]), dg.AssetKey(["sales", "shadow"])]
        done = job.execute_in_process(
            asset_selection=keys, partition_key="2026-01-02", tags=tags, instance=instance, raise_on_error=False
        )
    assert not done.success
    errors = [e.event_specific_data.error for e in done.all_events if e.is_step_failure]  # type: ignore[union-attr]
    return {error.cause.cls_name if error.cause else error.cls_name for error in errors}


@pytest.mark.parametrize("answer", [b"[]", b"null", b"{}", b'{"data": null}', b"<html>", b'{"data": []}'])
def test_an_answer_that_is_not_from_a_webserver_of_dagster_is_refused(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answers:
        def json(self) -> object:
            return json.loads(answer)

    monkeypatch.setattr(backfills.requests, "post", lambda *_, **__: Answers())
    with pytest.raises(LaunchError):
        graphql("query", {}, "http://localhost:1")


@pytest.mark.parametrize("url", [f"http://me:{SECRET}@localhost:1", f"http://me:{SECRET}@[", f"me:{SECRET}@x"])
def test_the_password_of_a_webserver_is_in_no_message(url: str) -> None:
    with pytest.raises(LaunchError, match="no Dagster webserver answers") as refused:
        graphql("query", {}, url)
    assert SECRET not in f"{refused.value!r} {refused.value.__cause__!r}"


def test_a_launch_of_a_century_fits_into_the_question_to_dagster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workspace.yaml").write_text("load_from: []\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    given = {"yes": True, "days": [f"2024-{number}" for number in range(36_600)]}
    assert set(graphql("query Q($yes: Boolean!) { version @include(if: $yes) }", given)) == {"version"}
