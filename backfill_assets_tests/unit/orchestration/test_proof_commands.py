"""`backfill prove`, the job of the same name, and `backfill diff-history`, as people and CI call them."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

import dagster as dg
import pytest
from click.testing import Result
from typer.testing import CliRunner

from backfill_assets.application import Application
from backfill_assets.cli.app import app
from backfill_assets.core.delivery import Delivery
from backfill_assets.core.errors import DatasetError, LayoutError, ProofError
from backfill_assets.orchestration.jobs import operation_jobs
from backfill_assets.proof.certificate import Prover
from backfill_assets_tests.harness.git import git
from backfill_assets_tests.harness.specifications import NAME
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import BOTH, House
from backfill_assets_tests.unit.proof.test_certificates import Engine

pytestmark = pytest.mark.slow

DAYS = [day(0), day(1)]


@pytest.fixture
def engine(house: House, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine without Spark, behind every application that is opened."""
    found = Engine(house.world)

    def prover(self: Application) -> Prover:
        return Prover(self.warehouse, self.basis, lambda _: found)

    made = cached_property(prover)
    made.__set_name__(Application, "prover")
    monkeypatch.setattr(Application, "prover", made)
    at = house.world.clock.now()
    house.world.ledger.add_deliveries(Delivery("sales", d, f"{d}.csv", "f", 1, at, at, 1, 0) for d in DAYS)
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def sentence(house: House, unit: str) -> str:
    """The last written report of a unit."""
    text = (house.application.settings.reports / unit / "review.json").read_text(encoding="utf-8")
    return str(json.loads(text)["judgement"]["sentence"])


@pytest.mark.usefixtures("engine")
def test_a_unit_that_is_reproduced_is_certified_day_by_day(house: House) -> None:
    unit = house.unit({d: [2] for d in DAYS}, ("sales",))
    done = run("prove", unit.id)
    assert done.exit_code == 0
    lines = [line.split("│") for line in done.output.splitlines() if "│" in line]
    ways = [line[1].strip() for line in lines]
    assert list(dict.fromkeys(ways)) == ["as configured", "again", "another engine", "as built"]
    assert [line[4].strip() for line in lines] == ["-", "-", *["equal"] * 6]
    (certificate,) = house.world.ledger.certificates(unit=unit.id)
    assert f"certificate {certificate.id} of sales 2026-01-01..2026-01-02 passed" in done.output


def test_differences_are_shown_with_their_rows_and_end_with_exit_code_1(house: House, engine: Engine) -> None:
    house.released({d: [2] for d in DAYS}, ("sales",))
    engine.otherwise["another engine"] = (3,)
    done = run("prove", "sales", "--partitions", "2026-01-02..2026-01-02")
    assert done.exit_code == 1
    assert "differs" in done.output
    assert "2026-01-02: old is 'as configured', new is 'another engine'" in done.output
    assert "did not pass" in done.output
    observed = json.loads(run("prove", "sales", "--partitions", "2026-01-02", "--json").output)
    assert [(one["passed"], one["days"], len(one["disagreements"])) for one in observed] == [(False, ["2026-01-02"], 1)]
    assert observed[0]["hash"]


@pytest.mark.usefixtures("engine")
def test_the_job_fails_where_anything_differs(house: House, engine: Engine) -> None:
    house.released({d: [2] for d in DAYS}, ("sales",))
    config = {"ops": {"prove_op": {"config": {"target": "sales", "partitions": str(DAYS[0])}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        (job,) = [one for one in operation_jobs(house.application) if one.name == "prove"]
        assert job.execute_in_process(config, instance=instance).success
        engine.otherwise["again"] = (3,)
        assert not job.execute_in_process(config, instance=instance, raise_on_error=False).success
    assert [one.passed for one in house.world.ledger.certificates("sales")].count(False) == 1


def test_history_is_compared_only_with_models_of_a_commit(house: House, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"is not in a git repository|has no such commit"):
        run("diff-history", "--models", "no-such-commit")
    for command in (["init", "-q", str(tmp_path)], ["add", "datasets"], ["commit", "-qm", "first"]):
        git(tmp_path, *command)
    with pytest.raises(ProofError, match="nothing of sales is published"):
        run("diff-history", "--models", "HEAD", "--dataset", "sales")
    with pytest.raises(DatasetError, match="there is no dataset 'sails'"):
        run("diff-history", "--models", "HEAD", "--dataset", "sails")
    house.released({DAYS[0]: [2]}, ("sales",))
    out = tmp_path / "history.md"
    assert run("diff-history", "--models", "HEAD", "--out", str(out)).output == ""
    text = out.read_text(encoding="utf-8")
    with pytest.raises(LayoutError, match=r"cannot be written to .* \(Is a directory\); name another file with --out"):
        run("diff-history", "--models", "HEAD", "--out", str(tmp_path))
    assert "**Nothing changes.**" in text
    assert "Same code as the published days: `sales`." in text
    assert "Not published yet: `totals`." in text


@pytest.mark.usefixtures("engine")
def test_prove_and_approve_write_the_report_of_the_unit_again(house: House) -> None:
    rule = {"required": True, "by": [house.application.identity.name()]}
    asked = {"validation": {"certificate": "required"}, "approval": rule}
    _, unit = house.world.launched(dict.fromkeys(BOTH, DAYS), **asked)
    for name in BOTH:
        house.world.build(unit, name, {d: [2] for d in DAYS})
    assert "no certificate" in run("report", unit.id).output
    proven = run("prove", NAME)
    assert "recomputing 4 of 4 days gives the same rows; waits for an approval" in sentence(house, unit.id)
    assert sentence(house, unit.id) in proven.output
    approved = run("approve", NAME, "--evidence", house.application.reviews.of(NAME).pending)
    assert sentence(house, unit.id) in approved.output
    assert "waits for" not in sentence(house, unit.id)


def test_the_job_writes_the_report_even_where_the_rows_differ(house: House, engine: Engine) -> None:
    unit = house.unit({d: [2] for d in DAYS}, ("sales",))
    engine.otherwise["again"] = (3,)
    config = {"ops": {"prove_op": {"config": {"target": unit.id}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        (job,) = [one for one in operation_jobs(house.application) if one.name == "prove"]
        assert not job.execute_in_process(config, instance=instance, raise_on_error=False).success
    assert "came out differently (again)" in sentence(house, unit.id)


def test_changed_models_are_not_reported_as_no_change_where_no_day_could_be_compared(
    house: House, tmp_path: Path
) -> None:
    house.released({DAYS[0]: [2]}, ("sales",))
    with (tmp_path / "datasets" / "sales" / "fact.sql").open("a") as model:
        model.write(" WHERE amount > 0")
    for command in (["init", "-q", str(tmp_path)], ["add", "datasets"], ["commit", "-qm", "changed"]):
        git(tmp_path, *command)
    text = run("diff-history", "--models", "HEAD", "--partitions", "2026-02-01").output
    assert "Nothing changes" not in text
    assert "`sales` changed, but was not compared: nothing of it is published on 2026-02-01." in text
    # Its deliveries are unknown: that is a problem of this dataset, and the comment continues.
    done = run("diff-history", "--models", "HEAD")
    assert done.exit_code == 1
    assert "### `sales`: could not be computed" in done.output
    assert "`totals`" in done.output
