"""Exactly the cases of the table are left to the night, and each night runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from backfill_assets_tests.faults import FAULTS
from backfill_assets_tests.nightly import NIGHTLY, ON_POSTGRES, PART, Run, in_part, is_nightly, run_of

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "backfill_assets_tests"
WHOLE_FILES_AT_NIGHT = {
    "dagster/test_campaign_faults.py",
    "dagster/test_launched_twice.py",
    "dagster/test_postgres_deaths.py",
    "dagster/test_server_deaths.py",
    "dagster/test_soak.py",
    "dagster/test_worker_deaths.py",
    "spark/test_on_a_cluster.py",
    "spark/test_server_restart.py",
}
"""Each of their tests has an installation or a server of its own, and takes minutes."""
_ITEM = re.compile(r"^(\S+\.py)::(\w+)(?:\[(.*)\])?$", re.MULTILINE)


@pytest.fixture(scope="module")
def cases() -> dict[str, list[str]]:
    """The cases of each test in the files that the table names; a test without parameters has one, without a name."""
    files = sorted({test.partition("::")[0] for test in NIGHTLY} | {"unit/ledger"})
    listed = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            *(str(TESTS / f) for f in files),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTEST_ADDOPTS": "", PART: ""},
        check=True,
        capture_output=True,
        text=True,
    )
    found = defaultdict[str, list[str]](list)
    for file, name, case in _ITEM.findall(listed.stdout):
        found[f"{os.path.relpath(ROOT / file, TESTS)}::{name}"].append(case)
    return found


@pytest.mark.slow  # a pytest of its own
def test_the_table_names_only_existing_tests_and_cases(cases: dict[str, list[str]]) -> None:
    names = {test.partition("::")[2] for test in cases if test.startswith("unit/ledger/")}
    assert ON_POSTGRES - names == set()
    for entry, kept in NIGHTLY.items():
        found = [
            (test, case) for test, each in cases.items() if entry in {test, test.partition("::")[0]} for case in each
        ]
        nightly = [case for test, case in found if is_nightly(test, case)]
        assert nightly, f"{entry}: no test, or none of its cases is left to the night"
        assert (len(nightly) < len(found)) is bool(kept), f"{entry}: {kept} names no case"


def test_parts_of_a_night_have_each_file_once() -> None:
    files = sorted(str(path) for path in TESTS.rglob("test_*.py"))
    for parts in (1, 2, 3):
        shares = [in_part(reversed(files), f"{number}/{parts}") for number in range(1, parts + 1)]
        assert sorted(file for share in shares for file in share) == files
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_two_parts_share_the_longest_files() -> None:
    longest = ["dagster/test_soak.py", "unit/release/test_commit_stress.py", "unit/faults/test_object_store.py"]
    files = [*longest, *(f"unit/test_{n}.py" for n in range(9))]
    assert {len(in_part(files, part) & {*longest}) for part in ("1/2", "2/2")} == {1, 2}


@pytest.mark.parametrize("part", ["2", "0/2", "3/2", "1/", "a/b", "-1/2"])
def test_a_part_that_there_is_not_is_refused(part: str) -> None:
    with pytest.raises(pytest.UsageError, match=rf"{PART} is '{part}'"):
        in_part(["a.py"], part)


def test_only_these_faults_have_all_of_their_tests_at_night() -> None:
    at_night = [f.tests for faults in FAULTS.values() for f in faults if {run_of(t) for t in f.tests} == {Run.at_night}]
    assert {test.partition("::")[0] for tests in at_night for test in tests} == WHOLE_FILES_AT_NIGHT
    assert len(at_night) == 12


@pytest.mark.parametrize(
    ("target", "selected"),
    [("test", "not nightly"), ("test-all", None), ("test-faults", "faults")],
    ids=str,
)
def test_a_target_runs_each_lane_with_its_cases(target: str, selected: str | None) -> None:
    lines = subprocess.run(
        ["make", "-n", target], cwd=ROOT, env=os.environ | {"MAKEFLAGS": ""}, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    lanes = [line for line in lines if "-m pytest " in line]
    folders = [*TESTS.iterdir(), *(ROOT / "packages").glob("*/tests")]
    assert {folder.relative_to(ROOT).as_posix() for folder in folders if list(folder.rglob("test_*.py"))} == {
        folder for lane in lanes for folder in re.findall(r"backfill_assets_tests/\w+|packages/\S+/tests", lane)
    }
    marks = {
        (re.findall(r' -m "?(not nightly|faults)"? ', lane.partition(" pytest")[2]) or [None])[0] for lane in lanes
    }
    assert marks == {selected}
