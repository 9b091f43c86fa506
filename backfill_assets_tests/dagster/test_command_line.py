"""What CI does: materialize from the `dagster` command line, publish, roll back and publish again with `backfill`."""

from __future__ import annotations

import datetime as dt
import json
import re
from functools import partial

from backfill_assets.core.days import day_range
from backfill_assets_tests.dagster.lab import Lab, amounts
from backfill_assets_tests.harness.waiting import wait_for

MODULE = ("-m", "backfill_assets.definitions")
DAYS = day_range(dt.date(2024, 6, 1), dt.date(2024, 6, 4))


def healthy(lab: Lab) -> bool:
    """Whether the doctor finds only running work of other tests, and its exit code says so, too."""
    done = lab.backfill("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == int(any(one["severity"] == "error" for one in found)), done.stdout
    others = {folder.name for folder in lab.datasets.iterdir()} - {"orders"}
    named = {one["what"]: set(re.findall(r"\w+", one["what"])) for one in found}
    return not [what for what, words in named.items() if "orders" in words or not words & others]


def test_one_partition_from_the_command_line_is_released(lab: Lab) -> None:
    lab.deliver("orders", dt.date(2024, 7, 1), [(1, 10)])
    command = ("dagster", "asset", "materialize", *MODULE, "--select", "group:orders", "--partition", "2024-07-01")
    done = lab.run(*command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert amounts(lab, "orders", [dt.date(2024, 7, 1)]) == {dt.date(2024, 7, 1): 10}


def test_a_failed_check_gives_an_exit_code_and_says_which_day_which_check_and_what_was_found(lab: Lab) -> None:
    lab.deliver("orders", dt.date(2024, 7, 2), [(1, -10)])
    command = ("dagster", "asset", "materialize", *MODULE, "--select", "group:orders", "--partition", "2024-07-02")
    done = lab.run(*command)
    assert done.returncode != 0
    assert "2024-07-02 rule_not_negative: expected no failing rows, found 1 failing row" in done.stdout + done.stderr
    assert amounts(lab, "orders", [dt.date(2024, 7, 2)]) == {}


def test_a_range_is_one_run_then_published_rolled_back_and_published_again(lab: Lab) -> None:
    for day in DAYS:
        lab.deliver("orders", day, [(1, 10)])
    span = f"{DAYS[0]}...{DAYS[-1]}"
    command = ("dagster", "asset", "materialize", *MODULE, "--select", "group:orders", "--partition-range", span)
    built = lab.run(*command, BACKFILL_ASSETS_CHUNK="all")
    assert built.returncode == 0, built.stderr[-3000:]
    assert amounts(lab, "orders", DAYS) == dict.fromkeys(DAYS, 10)

    listed = lab.backfill("releases", "orders", "--json")
    release = re.findall(r"r_\d{8}_\d{6}_\w{6}", listed.stdout)[0]
    unit = lab.application.ledger.release(release).manifest.unit
    back = lab.run("backfill", "rollback", release, "--reason", "finance saw it at noon")
    assert back.returncode == 0, back.stderr
    assert amounts(lab, "orders", DAYS) == {}
    assert "backfill hold lift orders" in back.stdout

    again = lab.backfill("publish", unit)
    assert again.returncode == 0, again.stderr
    assert amounts(lab, "orders", DAYS) == dict.fromkeys(DAYS, 10)
    # The runs of other tests may be between two steps during the examination.
    doctor = partial(lab.backfill, "doctor")
    wait_for(lambda: healthy(lab), "the doctor to find nothing", 300, every=15, instead=doctor)


def test_a_missing_day_fails_by_name_and_is_no_silent_success(lab: Lab) -> None:
    command = ("dagster", "asset", "materialize", *MODULE, "--select", "group:orders", "--partition", "2024-08-01")
    done = lab.run(*command)
    assert done.returncode != 0
    assert "2024-08-01 source_present: expected a delivery, found none" in done.stdout + done.stderr


def test_a_delivery_without_a_row_is_no_silent_success(lab: Lab) -> None:
    lab.deliver("orders", dt.date(2024, 8, 2), [])
    command = ("dagster", "asset", "materialize", *MODULE, "--select", "group:orders", "--partition", "2024-08-02")
    done = lab.run(*command)
    assert done.returncode != 0
    assert (
        "2024-08-02 source_present: expected a delivery, found 1 deliveries without a row" in done.stdout + done.stderr
    )


def test_a_faulty_dataset_is_named_and_the_others_still_load(lab: Lab) -> None:
    broken = lab.datasets / "broken"
    broken.mkdir()
    try:
        (broken / "dataset.yaml").write_text("name: broken\nkeyy: [a]\n", encoding="utf-8")
        done = lab.run("backfill", "status")
    finally:
        (broken / "dataset.yaml").unlink()
        broken.rmdir()
    assert done.returncode == 1, done.stderr
    assert "keyy" in done.stdout
    assert "tickets" in done.stdout
