"""`backfill run`, `resume` and `refresh`: what they launch with which tags, and what they do without a launch."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from backfill_assets.cli.app import app
from backfill_assets.control.conductor import BackfillRequest
from backfill_assets.core.errors import (
    ArgumentError,
    BackfillError,
    CampaignError,
    ClaimedDaysError,
    ContractError,
    DatasetError,
    InvalidDayError,
    LayoutError,
    UnitError,
)
from backfill_assets.core.unit import CONTRACT_TAG, REASON_TAG, UNIT_TAG, UnitState
from backfill_assets.orchestration import backfills
from backfill_assets.system import SystemClock
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.orchestration.house import House

D1, D2, D3 = day(1), day(2), day(3)


class Dagster:
    """Takes the place of Dagster's launch of backfills, and keeps what it was given."""

    def __init__(self) -> None:
        self.taken: list[BackfillRequest] = []

    def launch(self, backfill: BackfillRequest, webserver: str | None = None) -> str:
        assert webserver is None
        self.taken.append(backfill)
        return f"b_{len(self.taken)}"

    def asked(self) -> list[tuple[list[str], list[str]]]:
        """The assets and the partitions of each backfill."""
        params = [backfills.params_of(backfill) for backfill in self.taken]
        return [(["/".join(key["path"]) for key in p["assetSelection"]], p["partitionNames"]) for p in params]


@pytest.fixture
def dagster(monkeypatch: pytest.MonkeyPatch) -> Dagster:
    found = Dagster()
    monkeypatch.setattr(backfills, "launch_backfill", found.launch)
    return found


def _run(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    if done.exception is not None:
        raise done.exception
    return done.output


def test_a_complete_unit_is_released_without_a_launch(house: House, dagster: Dagster) -> None:
    unit = house.unit({D1: [1]})
    assert f"totals {D1} is published" in _run("resume", unit.id)
    assert dagster.taken == []
    assert house.world.content("totals") == {D1: [1]}
    with pytest.raises(UnitError, match="is published, not open"):
        _run("resume", unit.id)


def test_a_complete_unit_that_needs_approval_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dagster: Dagster
) -> None:
    house = House(tmp_path, monkeypatch, publication="approval")
    unit = house.unit({D1: [1]})
    said = _run("resume", unit.id)
    assert f"backfill publish {unit.id} --evidence {house.world.publisher().evidence_hash(unit.id)}" in said
    assert dagster.taken == []
    assert house.world.ledger.unit(unit.id).state is UnitState.open
    house.close()


def test_missing_days_of_a_unit_are_launched_in_it(house: House, dagster: Dagster) -> None:
    unit = house.world.open_unit({"sales": [D1, D2], "totals": [D1, D2]})
    house.world.build(unit, "sales", {D1: [1], D2: [2]})
    house.world.build(unit, "totals", {D1: [1]})
    said = _run("resume", unit.id)
    assert dagster.asked() == [(["totals/shadow", "totals/published"], [str(D2)])]
    assert dagster.taken[0].tags == {UNIT_TAG: unit.id}
    assert f"launched backfill b_1: totals {D2} in unit {unit.id}" in said


def test_an_expected_change_has_all_days_of_its_dataset_checked_again(house: House, dagster: Dagster) -> None:
    unit = house.world.open_unit({"sales": [D1, D2], "totals": [D1, D2]})
    house.world.build(unit, "sales", {D1: [1], D2: [2]})
    house.world.build(unit, "totals", {D1: [1]})
    house.world.build(unit, "totals", {D2: [2]}, passed=False)
    words = ("resume", unit.id, "--expected-change", '{"totals": {"amount": "-50%"}}')
    why = (
        f"totals {RANGE}: all shadows are built and checked again, because the expected change is part of the evidence"
    )
    assert why in _run(*words, "--explain")
    assert why in _run(*words)
    assert why not in _run("resume", unit.id)
    assert dagster.asked()[:1] == [(["totals/shadow", "totals/published"], [str(D1), str(D2)])]
    assert json.loads(dagster.taken[0].tags[CONTRACT_TAG]) == {"totals": {"amount": "-50%"}}


def test_only_published_days_are_refreshed_with_what_is_expected_of_each_dataset(
    house: House, dagster: Dagster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.released({D1: [1], D2: [2]})
    house.released({D2: [20], D3: [30]}, names=("sales",))
    monkeypatch.chdir(tmp_path)
    text = "expected_change:\n  totals:\n    - {days: [2026-01-03], metrics: {amount: any}}\n"
    (tmp_path / "fix.yaml").write_text(text, encoding="utf-8")
    _run("refresh", "--expected-change", "fix.yaml")
    assert dagster.asked() == [(["totals/shadow", "totals/published"], [str(D2)])]
    (tag,) = dagster.taken[0].tags.values()
    assert json.loads(tag) == {"totals": [{"days": ["2026-01-03"], "metrics": {"amount": "any"}}]}


@pytest.mark.usefixtures("clock_of_the_house")
def test_stale_days_on_hold_are_named_and_only_the_others_are_refreshed(house: House, dagster: Dagster) -> None:
    house.released({D1: [1], D2: [2]})
    wrong = house.released({D1: [10], D2: [20]})
    (release,) = (r.manifest.release for r in house.world.ledger.releases("totals", wrong.id))
    _run("rollback", release, "--reason", "wrong totals", "--first", str(D1), "--last", str(D1))
    house.released({D2: [30]}, names=("sales",))
    said = _run("status")
    assert f"totals {D1} (on hold: wrong totals): stale because of upstream. Refresh would publish again" in said
    assert f"totals {D2}: bring up to date: backfill refresh totals\n" in said
    assert f"totals {D1} (on hold: wrong totals): left out" in _run("refresh")
    assert dagster.asked() == [(["totals/shadow", "totals/published"], [str(D2)])]


def test_an_expected_change_that_cannot_be_understood_launches_nothing(house: House, dagster: Dagster) -> None:
    house.released({D1: [1]})
    house.released({D1: [2]}, names=("sales",))
    with pytest.raises(ContractError, match="unknown metric 'profit'"):
        _run("refresh", "--expected-change", '{"totals": {"profit": "any"}}')
    assert dagster.taken == []


ALL = ["sales/raw", "sales/staging", "sales/shadow", "sales/published"]
TOTALS = ["totals/shadow", "totals/published"]
RANGE = f"{D1}..{D2}"


def test_a_run_launches_all_layers_of_a_dataset_over_the_days(house: House, dagster: Dagster) -> None:
    said = _run("run", "sales", RANGE, "--reason", "the tax was counted twice")
    assert dagster.asked() == [(ALL, [str(D1), str(D2)])]
    (taken,) = dagster.taken
    assert (taken.tags, taken.title) == ({REASON_TAG: "the tax was counted twice"}, f"run sales {RANGE}")
    assert f"launched backfill b_1: sales {D1}..{D2}; the Dagster daemon runs it" in said


@pytest.mark.parametrize(
    "words", [("sales", "totals", RANGE), ("totals", "sales", RANGE), ("sales", RANGE, "--downstream")]
)
def test_a_run_of_several_datasets_is_one_backfill_upstream_first(
    house: House, dagster: Dagster, words: tuple[str, ...]
) -> None:
    _run("run", *words)
    assert dagster.asked() == [([*ALL, *TOTALS], [str(D1), str(D2)])]


def test_each_dataset_of_a_run_takes_part_from_its_own_start_on(house: House, dagster: Dagster) -> None:
    house.rewrite("totals", "start: 2026-01-01", f"start: {D2}")
    said = _run("run", "sales", RANGE, "--downstream")
    assert dagster.asked() == [([*ALL, *TOTALS], [str(D1), str(D2)])]
    assert f"totals: from {D2} on, where its history begins" in said
    _run("run", "sales", str(D1), "--downstream")
    assert dagster.asked()[1:] == [(ALL, [str(D1)])]
    for words in (("totals", RANGE), ("sales", "totals", str(D1)), ("sales", "totals", "2025-12-31..2026-01-05")):
        with pytest.raises(InvalidDayError, match="is outside the history of"):
            _run("run", *words)
    assert len(dagster.taken) == 2


def test_a_draft_is_launched_by_its_name_and_not_published(house: House, dagster: Dagster) -> None:
    house.rewrite("totals", "publication: auto", "publication: auto\nstate: draft")
    _run("run", "sales", RANGE, "--downstream")
    _run("run", "totals", RANGE)
    said = _run("run", "sales", "totals", RANGE)
    days = [str(D1), str(D2)]
    assert dagster.asked() == [(ALL, days), (["totals/shadow"], days), ([*ALL[:3], "totals/shadow"], days)]
    assert "totals: a draft, so the runs publish nothing; when they are done: backfill status UNIT" in said
    unit = house.world.open_unit({"sales": [D1], "totals": [D1]})
    _run("resume", unit.id)
    assert dagster.asked()[3:] == [([*ALL[:3], "totals/shadow"], [str(D1)])]


def test_a_run_of_one_layer_launches_that_layer_alone(house: House, dagster: Dagster) -> None:
    _run("run", "sales", str(D1), "--only", "shadow")
    assert dagster.asked() == [(["sales/shadow"], [str(D1)])]
    with pytest.raises(ArgumentError, match="--only raw: totals cannot launch it; it has shadow and published"):
        _run("run", "totals", str(D1), "--only", "raw")


def test_a_run_declares_what_must_change(house: House, dagster: Dagster) -> None:
    _run("run", "sales", RANGE, "--expect", "amount=-50%", "--expect", "row_count = unchanged")
    _run("run", "sales", "totals", RANGE, "--expect", "totals.amount=any")
    _run("run", "totals", RANGE, "--expected-change", '{"amount": "any"}')
    _run("run", "sales", RANGE, "--expect", "sales.amount=any")
    assert [json.loads(taken.tags[CONTRACT_TAG]) for taken in dagster.taken] == [
        {"sales": {"amount": "-50%", "row_count": "unchanged"}},
        {"totals": {"amount": "any"}},
        {"totals": {"amount": "any"}},
        {"sales": {"amount": "any"}},
    ]


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("sales",), ArgumentError, "'sales': name a dataset and its days, such as: backfill run flights"),
        (("nothing", RANGE), DatasetError, "nothing"),
        (("sales", "totals"), InvalidDayError, "totals"),
        (("sales", "1999-01-01"), InvalidDayError, "1999-01-01 is outside the history of sales"),
        (
            ("sales", RANGE, "--expect", "amount"),
            ContractError,
            "'amount' names no change of sales; write it as revenue=",
        ),
        (
            ("sales", "totals", RANGE, "--expect", "amount=any"),
            ContractError,
            r"sales and totals; write it as sales\.revenue=",
        ),
        (
            ("sales", RANGE, "--expect", "amount=any", "--expect", "amount=-50%"),
            ContractError,
            "amount of sales is already expected to change by any",
        ),
        (("sales", RANGE, "--expect", "profit=any"), ContractError, "--expect.*unknown metric 'profit'"),
        (("sales", RANGE, "--expect", "tills.amount=any"), ContractError, r"unknown metric 'tills\.amount'"),
        (("sales", RANGE, "--expected-change", "{}x"), ContractError, "--expected-change: '{}x' is not JSON"),
        (("sales", RANGE, "--expect", "amount=any", "--expected-change", "x.yaml"), ContractError, "give only one"),
        (("sales", RANGE, "--only", "published", "--expect", "amount=any"), ContractError, "--only published checks"),
        (("sales", RANGE, "--reason", "x" * 501), ArgumentError, "--reason has 501 characters; write at most 500"),
        (("sales", RANGE, "--watch"), CampaignError, "DAGSTER_HOME is not set: backfills run through Dagster"),
    ],
)
def test_a_run_that_cannot_be_meant_launches_nothing(
    house: House, dagster: Dagster, words: tuple[str, ...], error: type[BackfillError], message: str
) -> None:
    with pytest.raises(error, match=message):
        _run("run", *words)
    assert dagster.taken == []


def test_days_that_another_unit_has_claimed_are_refused_before_anything_is_launched(
    house: House, dagster: Dagster
) -> None:
    unit = house.world.open_unit({"sales": [D1, D2], "totals": [D1, D2]})
    more = f"{D1}..{D3}"
    for words in ((more,), (more, "--downstream"), (more, "--only", "shadow")):
        with pytest.raises(ClaimedDaysError, match=f"claimed by open unit {unit.id}"):
            _run("run", "sales", *words)
    assert dagster.taken == []
    # These build no unit, or are the unit's own days.
    _run("run", "sales", more, "--only", "staging")
    _run("run", "sales", RANGE, "--downstream")
    assert len(dagster.taken) == 2


def test_an_expected_change_that_is_too_long_for_a_tag_launches_nothing(house: House, dagster: Dagster) -> None:
    clauses = [
        {"days": {"start": str(day(n)), "end": str(day(n))}, "metrics": {"amount": "any", "row_count": "any"}}
        for n in range(1, 29)
    ]
    with pytest.raises(ContractError, match="bytes as a run tag, of which Postgres takes 2,500; launch fewer"):
        _run("run", "sales", RANGE, "--expected-change", json.dumps(clauses))
    assert dagster.taken == []


def test_a_day_that_is_not_there_yet_is_not_launched(
    house: House, dagster: Dagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemClock, "now", lambda _: dt.datetime(2026, 1, 3, 12, tzinfo=dt.UTC))
    with pytest.raises(InvalidDayError, match="2026-01-04 is after 2026-01-02, the newest partition of sales; choose"):
        _run("run", "sales", f"{D1},{D3}")
    house.rewrite("sales", "publication: auto", "publication: auto\nlookahead_days: 2")
    words = "2026-01-02 is after 2025-12-31, the newest partition of sales that can be published when the 2 days after it are over"
    with pytest.raises(InvalidDayError, match=words):
        _run("run", "sales", str(D1))
    assert dagster.taken == []
    # What only lands need not wait.
    _run("run", "sales", str(D1), "--only", "raw")
    assert len(dagster.taken) == 1


def test_the_title_of_a_run_is_no_longer_than_dagster_accepts(house: House, dagster: Dagster) -> None:
    _run("run", "sales", ",".join(str(day(n)) for n in range(1, 10)))
    (taken,) = dagster.taken
    assert (len(taken.title), taken.title[-1]) == (100, "…")


def test_the_reason_to_resume_a_unit_is_kept_in_its_history(house: House, dagster: Dagster) -> None:
    unit = house.world.open_unit({"totals": [D1]})
    _run("resume", unit.id, "--reason", "the file came")
    assert dagster.taken[0].tags == {UNIT_TAG: unit.id, REASON_TAG: "the file came"}
    house.world.build(unit, "totals", {D1: [1]})
    _run("resume", unit.id, "--reason", "the file came")
    (record,) = house.world.ledger.releases(unit=unit.id)
    assert record.manifest.reason == "the file came"


def test_datasets_of_two_release_groups_are_one_backfill_with_one_expected_change(
    house: House, dagster: Dagster
) -> None:
    house.settle("tills")
    _run("run", "sales", "tills", RANGE, "--expect", "tills.amount=any")
    (taken,) = dagster.taken
    assert {key["path"][0] for key in backfills.params_of(taken)["assetSelection"]} == {"sales", "tills"}
    assert json.loads(taken.tags[CONTRACT_TAG]) == {"tills": {"amount": "any"}}


def test_datasets_whose_partitions_differ_are_not_launched_together(house: House, dagster: Dagster) -> None:
    house.settle("tills", start="2025-12-01")
    with pytest.raises(ArgumentError, match="differ in the start of their release group, end, end_offset or time_zone"):
        _run("run", "sales", "tills", RANGE)
    assert dagster.taken == []


def _words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_the_status_of_a_unit_has_one_line_for_all_days_in_the_same_state(house: House) -> None:
    days = {day(n): [n] for n in range(1, 8)}
    unit = house.world.open_unit({"sales": list(days), "totals": [D1]})
    house.world.build(unit, "sales", {d: amounts for d, amounts in days.items() if d <= D3})
    house.world.build(unit, "sales", {day(5): [5]}, passed=False)
    said = _run("status", unit.id)
    table, rest = said.split("└")
    rows = [_words(line) for line in table.splitlines() if line.startswith("│")]
    assert any(row.startswith(f"sales {D1}..{D3} 3 0 ") and row.endswith(" good") for row in rows), said
    assert any(row.startswith(f"sales {day(5)} 1 0 ") and row.endswith("failed its checks") for row in rows), said
    assert f"sales {day(4)}, {day(6)}..{day(7)} - - - is not built yet" in rows, said
    assert f"totals {D1} - - - is not built yet" in rows, said
    assert f"next: backfill resume {unit.id}   (or give it up: backfill discard {unit.id})" in rest
    by_day = json.loads(_run("status", unit.id, "--json"))["days"]
    assert [row["day"] for row in by_day if row["dataset"] == "sales"] == [str(d) for d in days]


def test_a_table_that_cannot_be_read_does_not_hide_the_status_of_the_others(house: House) -> None:
    house.released({D1: [1], D2: [2]})
    unit = house.unit({D3: [3]})
    layout = house.application.layout
    layout.note("sales").parent.make_folder()
    layout.note("sales").write(str(house.world.folder / "gone"))
    shown, as_json = (CliRunner().invoke(app, words) for words in (["status"], ["status", "--json"]))
    assert (shown.exit_code, as_json.exit_code) == (1, 1)
    said = _words(shown.output)
    assert "not loaded: the published table of sales:" in said
    assert "backfill adopt sales" in said
    assert f"totals {D1}..{D2}" in said
    assert f"{unit.id}: next: correct this:" in said
    found = json.loads(as_json.stdout)
    assert [one["dataset"] for one in found["datasets"]] == ["totals"]
    (problem,) = found["not_loaded"]
    assert "no longer leads" in problem
    with pytest.raises(LayoutError, match="no longer leads"):
        _run("status", "sales")


def test_the_status_of_a_dataset_is_about_that_one_alone_and_says_what_is_next(house: House) -> None:
    house.released({D1: [1], D2: [2]})
    house.released({D1: [3]}, ("sales",))
    building = house.world.open_unit({"totals": [D2]})
    ready = house.unit({D3: [3]}, ("sales",))
    said = _run("status", "totals")
    assert f"totals {D1}..{D2}" in _words(said)
    assert f"{building.id}: next: backfill resume {building.id}" in said
    assert ready.id not in said
    assert json.loads(_run("status", "totals", "--json"))["stale"][0]["days"] == [str(D1)]
    said = _run("status", "sales")
    evidence = house.world.publisher().evidence_hash(ready.id)
    assert f"{ready.id}: next: backfill publish {ready.id} --evidence {evidence}" in said
    assert "totals" not in said
    assert {f"{unit.id}: next:" in _run("status") for unit in (building, ready)} == {True}
    (house.world.folder / "datasets" / "sales" / "fact.sql").unlink()
    with pytest.raises(DatasetError, match="dataset sales cannot be used"):
        _run("status", "sales")
    with pytest.raises(UnitError, match="there is no unit 'nothing'; see: backfill status"):
        _run("status", "nothing")
