"""Specifications from a generator: each is read as intended, or refused with file, line, key and remedy."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

import backfill_assets
from backfill_assets.campaign.load import (
    LoadedSpecification,
    load_specification,
    misfits,
    read_specification,
)
from backfill_assets.core.days import EARLIEST, LATEST, MOST_DAYS
from backfill_assets.core.text import NAME_PATTERN, hidden_in
from backfill_assets.dataset.load import load_folder
from backfill_assets.dataset.yaml import MOST_PROBLEMS, FileProblem
from backfill_assets_tests.unit.campaign.test_specifications import YAML
from backfill_assets_tests.unit.hostile.strategies import BOMBS, as_yaml, broken, often, spoiled
from backfill_assets_tests.unit.hostile.watch import helpful, little_read, nothing_written, observed, showable

pytestmark = pytest.mark.slow

CATALOG = load_folder(Path(backfill_assets.__file__).parent / "datasets")
PROMISED = YAML.replace(
    "  row_count_tolerance: 0\n",
    "  row_count_tolerance: 0\n  certificate: required\n"
    '  expected_row_change: {net_revenue: "-8% to 0%", daily_capacity: {net_revenue: any}}\n',
)
GOOD = json.loads(json.dumps(yaml.safe_load(PROMISED), default=str))
FILE = Path("fix.yaml")


def judged(found: LoadedSpecification | tuple[FileProblem, ...], file: str = "fix.yaml") -> None:
    faults = misfits(found, CATALOG) if isinstance(found, LoadedSpecification) else found
    assert len(faults) <= MOST_PROBLEMS
    for fault in faults:
        text = observed(str(fault))
        showable(text)
        helpful(text, file)
    if not isinstance(found, LoadedSpecification):
        assert faults
        return
    made = found.specification
    assert EARLIEST <= made.source_range.start <= made.source_range.end <= LATEST
    assert made.source_range.count <= MOST_DAYS
    assert NAME_PATTERN.fullmatch(made.target.dataset)
    assert hidden_in(json.dumps(made.to_plain(), ensure_ascii=False)) is None


@often
@given(spoiled(GOOD))
def test_a_specification_with_hostile_values_is_read_or_refused_with_its_place(document: object) -> None:
    judged(read_specification(as_yaml(document), FILE))


@often
@given(spoiled(GOOD["validation"]))
def test_an_expectation_with_hostile_values_is_read_or_refused_with_its_place(validation: object) -> None:
    judged(read_specification(as_yaml({**GOOD, "validation": validation}), FILE))


@often
@given(broken(PROMISED))
@example(BOMBS[0].encode())
def test_a_broken_file_is_read_or_refused_and_nothing_is_written(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "fix.yaml"
    file.write_bytes(content)
    with nothing_written(tmp_path), little_read():
        found = load_specification(file)
        judged(found, str(file))


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_no_bomb_goes_off(bomb: str, tmp_path: Path) -> None:
    file = tmp_path / "fix.yaml"
    file.write_text(PROMISED + bomb, encoding="utf-8")
    with nothing_written(tmp_path), little_read():
        found = load_specification(file)
    assert not isinstance(found, LoadedSpecification)
    judged(found, str(file))


@pytest.mark.parametrize(
    "endless", ["!" + "a" * 900_000 + " x", "&" + "a" * 900_000 + " x", "*" + "a" * 900_000,
                "owner: " + "jdbc" * 200_000, 'owner: "' + "://" * 300_000 + '"', "a" * 900_000 + ": 1"],
    ids=["tag", "anchor", "alias", "jdbc", "://", "key"],
)  # fmt: skip
def test_the_check_of_a_file_always_ends(endless: str) -> None:
    began = time.process_time()
    found = read_specification(endless + "\n", FILE)
    assert not isinstance(found, LoadedSpecification)
    assert all(len(observed(str(fault))) < 1_000 for fault in found)
    # It was once quadratic, and took seconds to hours; now it takes a tenth of a second.
    assert time.process_time() - began < 10


@pytest.mark.parametrize("blank", ["\u034f", "\u3164", "\u200d", "\ufe0f", "\u2800", "\u115f", "\u17b4", " "])
@pytest.mark.parametrize("who", ["finance-data", "finance-controller"])
def test_a_name_with_an_invisible_character_is_refused(who: str, blank: str) -> None:
    found = read_specification(PROMISED.replace(who, f'"{who}{blank}"'), FILE)
    assert not isinstance(found, LoadedSpecification)
    (fault,) = found
    assert "remove it" in observed(str(fault))
    assert ("owner" if who == "finance-data" else "approval.by") in str(fault)


def test_a_path_that_is_no_ordinary_file_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as out:
        out.truncate(1 << 40)
    files = ["pipe.yaml", "folder.yaml", "loop.yaml", "huge.yaml", "none.yaml", "x" * 300, "a\0b"]
    for file in [*(tmp_path / name for name in files), Path("/dev/zero"), Path("/proc/self/mem")]:
        with little_read():
            found = load_specification(file)
        assert not isinstance(found, LoadedSpecification)
        assert any(word in str(found[0]) for word in ("name one", "larger than 1024 KiB")), str(found[0])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("start: 1995-01-01", "start: 0001-01-01", "fix.yaml:3: source_range.start = '0001-01-01': write a day from 1900"),
        ("end: 1996-06-30", "end: 9999-12-31", "fix.yaml:3: source_range.end = '9999-12-31': write a day from 1900-01-01"),
        ("end: 1996-06-30", "end: 2199-12-31", "these are 74,875 days; write at most 36,600"),
        ("owner: finance-data", "owner: \u0430nna", "owner = '\u0430nna': it mixes Cyrillic and Latin letters"),
        ("finance-controller", "fin\u0430nce", "approval.by[0] = 'fin\u0430nce': it mixes Cyrillic and Latin letters"),
        ("finance-data", "ann\u200ba", "this line contains the invisible character U+200B (ZERO WIDTH SPACE); remove it"),
        ("owner: finance-data", 'owner: "ann\\u202Ea"', "fix.yaml:2: owner contains the invisible character U+202E (RIGHT-TO-LEFT"),
        ("keep_for: 30d", "keep_for: \u0663\u0660d", "write a duration as a number and s, m, h or d"),
        ("07:00-09:30", "0\u0667:00-09:30", "write a window as two times of day"),
        ("500GB", "\u0665GB", "write a size with its unit"),
        ("row_count_tolerance: 0", "row_count_tolerance: \u0665%", "write a percentage"),
        ("-1.5% to -0.8%", "-\u0661% to 0%", "is not a change"),
        ("1 batch per hour", "\u0661 batch per hour", "write a pace"),
        ("-8% to 0%", "-\u0668% to 0%", "validation.expected_row_change.net_revenue: '-\u0668% to 0%' is not a change"),
        ('{net_revenue: "-8%', '{net_r\u0435venue: "-8%', "'net_r\u0435venue' cannot be the name of a column or a dataset"),
        ("daily_capacity: {net_revenue", '"\\u202Ex": {net_revenue', "'\\u202ex' cannot be the name of a column or a dataset"),
        ("daily_capacity: {net_revenue", "daily_capacity: {" + "x" * 900, "cannot be the name of a column or a dataset; use a-z"),
        ("certificate: required", "certificate: r\u0435quired", "validation.certificate = 'r\u0435quired': use"),
        ("compute: backfill", "spark: {spark.sql.x.password: hunter2}", "a campaign may only set what affects Spark's speed"),
    ],
)  # fmt: skip
def test_subtle_mistakes_are_refused(old: str, new: str, message: str) -> None:
    assert PROMISED.count(old) == 1
    found = read_specification(PROMISED.replace(old, new), FILE)
    assert not isinstance(found, LoadedSpecification)
    assert any(message in observed(str(fault)) for fault in found), [str(fault) for fault in found]


@pytest.mark.parametrize(
    "text",
    [
        "a: !https://x/T0SECRET 1", "b: &https://x/T0SECRET 1", "https://x/T0SECRET: 1",
        "execution: {spark: {https://x/T0SECRET: 1}}",
        "validation: {https://x/T0SECRET_delta_expected: 1}", "execution: {query_timeout: https://x/T0SECRET}",
    ],
)  # fmt: skip
def test_no_url_is_shown_in_any_place(text: str) -> None:
    found = read_specification(text + "\n", FILE)
    assert not isinstance(found, LoadedSpecification)
    assert "T0SECRET" not in "\n".join(map(str, found))


@given(st.sampled_from(["https://hooks.example.org/T0SECRET", "T0SECRET", "sc://h:1/;token=T0SECRET"]), st.data())
def test_a_secret_in_the_wrong_place_is_refused_without_being_shown(secret: str, data: st.DataObject) -> None:
    url = "://" in secret
    keys = ["notify", "compute", "owner", "time_zone", "stray"] if url else ["notify"]
    key = data.draw(st.sampled_from(keys))
    wrong = {
        "notify": secret,
        "compute": {"compute": secret},
        "owner": [secret],
        "stray": {secret: 1},
        "time_zone": secret,
    }
    document = {**GOOD, **({"execution": wrong[key]} if key == "compute" else {key: wrong[key]})}
    document |= {secret: 1} if url and key == "stray" else {}
    found = read_specification(as_yaml(document), FILE)
    assert not isinstance(found, LoadedSpecification)
    assert "T0SECRET" not in "\n".join(map(str, found))
