"""Arguments from a generator for every command: one message, no trace, and nothing written when it is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets_tests.harness.examples import EXAMPLES
from backfill_assets_tests.harness.tables import day
from backfill_assets_tests.unit.hostile.commands import Said, commands, run
from backfill_assets_tests.unit.hostile.strategies import DATES, arguments, often
from backfill_assets_tests.unit.hostile.watch import observed, showable, state_of
from backfill_assets_tests.unit.orchestration.house import House

pytestmark = pytest.mark.slow

ALL = commands()
D1, D2 = day(1), day(2)


FOLDERS = ("backfills", "x" * 300, "a\nb", "\u202e", " ")
"""A user may name any folder; here only folders below the test's own."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One released unit and one that is open; a refusal changes nothing of it."""
    folder = tmp_path_factory.mktemp("hostile") / "house"
    with pytest.MonkeyPatch.context() as environ:
        found = House(folder, environ)
        found.released({D1: [1]})
        found.unit({D2: [2]})
        environ.chdir(folder)
        environ.setenv("BACKFILL_ASSETS_WEBSERVER", "")
        for name in ALL:
            run(*name.split(" "), "--help")
        run("status"), run("status", "nobody")  # loads the modules that commands load late
        yield found
        found.close()


def judged(said: Said, folder: Path) -> None:
    observed(said.text or "nothing is a message too")
    showable(said.err)
    assert "Traceback" not in said.text
    assert "failed:" not in said.err, said.err
    assert not (folder / "state" / "errors.log").exists()


@st.composite
def calls(draw: st.DrawFn, name: str, known: tuple[str, ...]) -> list[str]:
    """A call with hostile values; sometimes with existing names and days, so that it gets further."""
    if name == "prove":
        known = tuple(word for word in known if word != "totals")  # this would start Spark: it needs no delivery
    value = st.one_of(arguments(), st.sampled_from(known), st.sampled_from(DATES))
    words = name.split(" ")
    for parameter in ALL[name]:
        option = max(parameter.opts, key=len)
        if isinstance(parameter, click.Argument):
            words += [draw(value)]
        elif parameter.name == "watch" or (not parameter.required and not draw(st.booleans())):
            continue  # watching is no value
        elif getattr(parameter, "is_flag", False):
            words += [option]
        else:
            words += [f"{option}={draw(st.sampled_from(FOLDERS) if parameter.name in {'folder', 'out'} else value)}"]
    return words


@pytest.mark.parametrize("name", sorted(ALL))
@settings(often, max_examples=max(2, EXAMPLES // 5))
@given(st.data())
def test_no_argument_of_a_command_does_harm(house: House, name: str, data: st.DataObject) -> None:
    release = house.world.ledger.releases()[0].manifest.release
    words = data.draw(calls(name, ("sales", "totals", release, "2026-01-01", "2026-01-05")))
    folder = Path.cwd()
    before = state_of(folder)
    said = run(*words)
    # A project that init writes here would give all later commands its own settings.
    (folder / ".env").unlink(missing_ok=True)
    judged(said, folder)
    # Refused and read-only commands write nothing; the others do their work.
    assert state_of(folder) == before or (
        said.code == 0
        and (words[0] in {"backup", "init", "new", "hold", "sweep", "reconcile", "report"} or "--repair" in words)
    )


def test_an_argument_that_is_no_utf8_is_refused(house: House) -> None:
    said = run("status", os.fsdecode(b"u_\xff"))
    assert (said.code, said.err) == (1, "refused: the argument 'u_\\udcff' is not valid UTF-8; encode it as UTF-8\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["hold", "lift", "sales", "0001-01-01..9999-12-31"],
            "days '0001-01-01': write a day from 1900-01-01 to 2199-12-31",
        ),
        (
            ["hold", "lift", "sales", "2026-01-05..2026-01-02"],
            "the range is empty: 2026-01-05 is after 2026-01-02; swap them",
        ),
        (["hold", "lift", "sales", "1999-01-01..2026-01-02"], "1999-01-01 is outside the history of sales"),
        (["prove", "sales", "--partitions", "1900-01-01..2199-12-31"], "name at most 36,600"),
        (["prove", "sales", "--partitions", ",".join(["1900-01-01..1999-12-31"] * 5_000)], "more than 36,600 days"),
        (
            ["prove", "sales", "--partitions", "2026-01-05..2026-01-02"],
            "the range is empty: 2026-01-05 is after 2026-01-02",
        ),
        (["prove", "sales", "--partitions", "2026-01-0\u0661"], "is not an ISO date"),
        (["history", "sales", "--day", "0001-01-01"], "day '0001-01-01': write a day from 1900-01-01"),
    ],
)
def test_days_that_no_dataset_can_have_are_refused(house: House, words: list[str], message: str) -> None:
    said = run(*words)
    assert said.code == 1
    assert message in said.err


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_a_giant_path_is_truncated_in_the_message(house: House, command: str) -> None:
    said = run(command, "files=" + "x" * 100_000)
    assert said.code != 0
    assert "files=xxx" in observed(said.text)


def test_no_number_is_too_large_to_be_refused(house: House) -> None:
    said = run("sweep", "--grace", "9" * 17)
    assert said.code != 0
    assert "minutes are outside 0.." in said.err
    assert "failed:" not in said.err


def test_a_range_that_is_upside_down_is_no_rollback(house: House) -> None:
    release = house.world.ledger.releases()[0].manifest.release
    said = run("rollback", release, "--reason", "x", "--first", "2026-01-09", "--last", "2026-01-01")
    assert said.code == 1, said
    assert "the range is empty: 2026-01-09 is after 2026-01-01; swap them" in said.err


def test_the_digits_of_other_scripts_turn_no_knob(house: House) -> None:
    said = run("set", "tax-fix", "max_concurrency=\u0661")
    assert (said.code, "write max_concurrency=N" in said.err) == (2, True)


@pytest.mark.parametrize(
    "ref", ["-x", "--upload-pack=touch pwned", "a\nb", "\u202eHEAD", "", "x" * 100_000, "HEAD\x1b[2J"], ids=range(7)
)
def test_a_name_that_cannot_be_a_commit_reaches_no_program(ref: str, house: House) -> None:
    said = run("diff-history", f"--models={ref}")
    assert (said.code, "cannot be a commit; name a branch, tag or commit" in said.err) == (1, True), said.err
    judged(said, Path.cwd())


@pytest.mark.parametrize("out", ["/dev/null/x", "x" * 300, "settled"], ids=range(3))
def test_a_folder_that_cannot_be_written_to_is_refused_with_its_name(out: str, house: House) -> None:
    Path("settled").touch()
    unit = house.world.ledger.units()[0].id
    for words in (["report", unit, "--out", out], ["report", "--index", "--out", out]):
        said = run(*words)
        assert (said.code, "name another folder with --out" in said.err) == (1, True), said.err
        judged(said, Path.cwd())


@pytest.mark.parametrize("home", ["/nowhere/at/all", "relative", "broken", "garbage"])
def test_an_instance_of_dagster_that_is_none_is_refused(
    home: str, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("broken", "storage: [\n"), ("garbage", "storage: {nothing: {}}\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dagster.yaml").write_text(text)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / home) if (tmp_path / home).exists() else home)
    said = run("list")
    assert said.code == 1
    assert said.err.startswith("refused: DAGSTER_HOME="), said.err


def test_text_of_a_user_does_not_reach_the_terminal_as_a_command(house: House) -> None:
    said = run("status", "\x1b]0;gone\x07")
    assert said.code == 1
    assert "\x1b" not in said.text


def test_an_unexpected_error_is_one_message_and_a_trace_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_ASSETS_STATE", str(tmp_path))
    monkeypatch.setenv("BACKFILL_WEBHOOK", "https://hooks.example.org/services/T0SECRET99")

    def fails() -> None:
        raise RuntimeError("nobody answers at https://hooks.example.org/services/T0SECRET99")

    monkeypatch.setattr("backfill_assets.cli.app.app", fails)
    said = run("status")
    log = tmp_path / "errors.log"
    assert said.code == 1
    assert said.err.startswith(
        "failed: RuntimeError: nobody answers at ***; unexpected error. Please report it with its trace: "
    )
    assert said.err.count("\n") == 1
    assert "Traceback" in log.read_text(encoding="utf-8")
    assert "T0SECRET" not in log.read_text(encoding="utf-8")
    assert log.stat().st_mode & 0o077 == 0
