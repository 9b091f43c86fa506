"""What `make test` leaves to `make test-all`, which runs each night: the one place for this list. Works as a pytest plugin.

`make test` may take a quarter of an hour on two cores. Each slow subject keeps a case in it, and its other cases run at night.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pytest

PART: Final = "BACKFILL_ASSETS_TEST_PART"
"""Says which part of the files this machine runs; without it, all."""
_FOLDER: Final = Path(__file__).parent
_EVENTS: Final = "../packages/dagster-batched-events/tests"
_STRANGERS: Final = ("OPTIMIZE-in the range", "VACUUM-in the range", "DELETE-*", "an INSERT-outside of it")
_OLD: Final = ("*-0001", "*-0005")
_TYPES: Final = ("a_string", "a_wide_decimal", "a_timestamp")
_FIRST: Final = (
    "dagster/test_campaign.py",
    "unit/release/test_commit_stress.py",
    "unit/faults/test_object_store.py",
    "dagster/test_soak.py",
)
"""Begin before all others, as the longest of `make test` and of `make test-all`: the last to end decides how long a run takes.

Parts of a night share them evenly.
"""

NIGHTLY: Final[Mapping[str, tuple[str, ...]]] = {
    # Tests that need no JVM
    "unit/benchmarks/test_history.py": (),
    "unit/control/test_campaign_crashes.py::test_a_publication_that_dies_is_complete_and_made_once_after_it_is_repeated": (),
    "unit/release/test_crashes.py::test_a_crash_while_half_a_unit_is_taken_back_changes_nothing_about_the_end": ("1",),
    "unit/release/test_crashes.py::test_a_repair_is_enough_after_a_crash_whatever_the_step": ("commit:1", "seal:1"),
    "unit/release/test_crashes.py::test_publishing_again_after_a_crash_needs_no_other_command": (
        "intend:1",
        "commit:1",
    ),
    "unit/doctor/test_repair.py::test_a_repair_that_dies_is_finished_by_the_next": ("1", "4"),
    "unit/consumers/test_carrier_report.py::test_only_an_installation_with_flights_has_the_report": (),
    "unit/orchestration/test_component.py::test_dg_lists_scaffolds_and_checks_datasets": (),
    "unit/project/test_install.py": (),
    "unit/demo/test_orders.py::test_every_order_line_lands_in_the_file_of_its_day_and_nowhere_else": (),
    "unit/faults/test_hosts_and_postgres.py::test_postgres_is_killed_before_a_step_of_a_release": ("*-commit",),
    "unit/faults/test_object_store.py::test_a_request_goes_wrong": (
        "publish-the manifest-lost_answer",
        "publish-the commit-*",
        "rollback-the commit-lost_answer",
        "publish-a copy of the shadow's log-cut",
    ),
    "unit/faults/test_object_store.py::test_a_commit_that_the_store_makes_when_its_client_has_given_up_is_taken_back": (),
    "unit/faults/test_object_store.py::test_any_request_goes_wrong": (),
    "unit/faults/test_object_store.py::test_the_store_refuses_from_some_look_at_the_place_of_an_adopted_table_on": (
        "publish",
    ),
    "unit/faults/test_others_at_the_table.py::test_another_writer_changes_the_table_while_a_release_is_rolled_back": _STRANGERS,
    "unit/faults/test_others_at_the_table.py::test_another_writer_changes_the_table_while_a_unit_is_published": _STRANGERS,
    "unit/faults/test_power_cut.py::test_a_shadow_that_the_disk_lost_is_refused_by_name_and_built_again": (
        "half",
        "gone",
    ),
    "unit/faults/test_power_cut.py::test_a_shadow_whose_log_the_disk_lost_is_refused_and_built_again": ("half", "gone"),
    "unit/faults/test_power_cut.py::test_the_power_fails_before_a_step_of_a_release": (
        "publish-commit-half",
        "rollback-commit-gone",
    ),
    "unit/faults/test_power_cut.py::test_the_power_fails_while_the_commit_is_written": (
        "publish-half",
        "publish-zeros",
        "rollback-gone",
    ),
    "unit/faults/test_refusing_disk.py::test_a_publication_or_rollback_has_no_permission_to_a_folder": (
        "publish-_delta_log",
        "publish-ledger.db",
        "rollback-_shadow",
    ),
    "unit/faults/test_refusing_disk.py::test_the_disk_is_full_from_a_step_of_a_release_on": (
        "publish-commit",
        "publish-seal",
        "rollback-commit",
    ),
    "unit/hostile/test_arguments.py::test_a_folder_that_cannot_be_written_to_is_refused_with_its_name": ("0",),
    "unit/hostile/test_launches.py::test_a_job_with_generated_config_ends_with_an_error_of_ours": (
        "unit_publish",
        "release_rollback",
    ),
    "unit/hostile/test_launches.py::test_a_launch_of_a_century_fits_into_the_question_to_dagster": (),
    "unit/ledger/test_campaign_races.py::test_exactly_one_of_several_processes_that_change_a_campaign_together_wins": (
        "postgres",
    ),
    "unit/ledger/test_campaign_races.py::test_each_process_that_lost_knows_who_won": (),
    "unit/ledger/test_migration.py::test_an_old_ledger_is_migrated_and_keeps_its_rows": _OLD,
    "unit/ledger/test_migration.py::test_an_old_ledger_keeps_its_campaigns_their_journals_and_approvals": _OLD,
    "unit/ledger/test_migration.py::test_an_old_ledger_keeps_its_comparisons_and_certificates": _OLD,
    "unit/ledger/test_migration.py::test_an_old_ledger_takes_campaigns_once_it_is_migrated": _OLD,
    "unit/ledger/test_races.py::test_a_fresh_ledger_is_migrated_once_and_each_launch_opens_one_unit": ("sqlite",),
    "unit/ledger/test_races.py::test_one_of_overlapping_launches_opens_and_the_others_join_or_are_refused": (
        "postgres",
    ),
    "unit/delta/test_filtered_reads.py::test_files_of_another_writer_with_bounds_hide_no_row_of_ours": ("a_double",),
    "unit/delta/test_filtered_reads.py::test_polars_finds_the_same_rows": _TYPES,
    "unit/delta/test_filtered_reads.py::test_pyarrow_finds_the_same_rows": _TYPES,
    "unit/delta/test_readers.py::test_duckdb_finds_the_same_rows_by_a_filter_that_it_passes_on": _TYPES,
    "unit/report/test_page.py::test_the_verdict_is_on_top_in_one_sentence": ("wish0-*", "wish1-*", "wish6-*"),
    "unit/report/test_page.py::test_two_thousand_days_fit_into_a_few_megabytes_and_tables_say_what_is_left_out": (),
    "unit/test_nightly.py::test_the_table_names_only_existing_tests_and_cases": (),
    "unit/test_repository.py::test_a_skipped_test_fails_ci_and_needs_a_reason_elsewhere": (
        "*network')-true-1",
        "@pytest.mark.skip?ndef*--1",
    ),
    "unit/test_repository.py::test_results_that_a_machine_shows_in_a_weaker_way_are_printed_after_every_run": (),
    f"{_EVENTS}/test_broken_batches.py::test_a_run_that_is_cancelled_while_a_batch_is_written_loses_nothing": (
        "*-in a full batch",
    ),
    f"{_EVENTS}/test_broken_batches.py::test_a_worker_killed_in_mid_batch_leaves_a_usable_storage": (
        "between the commits",
    ),
    f"{_EVENTS}/test_event_storage.py::test_a_run_shows_the_same_as_in_dagsters_own_storage": ("",),
    f"{_EVENTS}/test_event_storage.py::test_another_storage_is_left_as_it_is": (),
    f"{_EVENTS}/test_event_storage.py::test_ten_thousand_partitions_can_be_planned_and_judged": (),
    f"{_EVENTS}/test_event_storage.py::test_two_processes_write_at_once": (),
    # Tests on one Spark server
    "spark/pipeline/test_compare.py::test_differing_rows_are_those_that_datacompy_finds": (),
    "spark/pipeline/test_deliveries_in_force.py::test_published_rows_follow_the_sources_whatever_happens": (),
    "spark/pipeline/test_stale.py::test_what_is_current_comes_out_the_same_after_any_sequence_of_changes_and_releases": (),
    "spark/pipeline/test_full_disk.py::test_the_disk_has_room_for_the_data_of_a_day_and_none_for_its_commit": (),
    "spark/pipeline/test_full_disk.py::test_the_disk_is_full_before_the_first_day_is_written": ("raw",),
    "spark/pipeline/test_golden.py::test_a_delta_table_is_a_golden_source_as_it_is_now": (),
    "spark/pipeline/test_golden_day.py::test_a_golden_file_that_is_corrected_makes_the_days_stale_and_then_they_pass": (),
    "spark/pipeline/test_golden_day.py::test_a_golden_source_that_only_warns_lets_the_day_pass": (),
    "spark/pipeline/test_hostile_files.py::test_every_dialect_that_is_not_refused_can_be_read": ("csv0", "csv3"),
    "spark/pipeline/test_landing.py::test_json_lines_land_and_corrupt_ones_are_quarantined": (),
    "spark/pipeline/test_landing.py::test_the_same_content_under_another_name_is_a_delivery_of_its_own": (),
    "spark/pipeline/test_measure.py::test_a_column_that_is_not_published_yet_has_no_metrics_and_counts_as_null": (),
    "spark/pipeline/test_measure.py::test_a_reference_with_duplicate_and_null_keys_adds_no_rows": (),
    "spark/pipeline/test_parts.py::test_the_deepest_type_is_read_hashed_and_compared": (),
    "spark/pipeline/test_recompute.py::test_a_deterministic_model_passes_and_leaves_no_trace": (),
    "spark/pipeline/test_recompute.py::test_changed_models_of_a_commit_are_compared_with_what_is_published": (),
    "spark/pipeline/test_recompute.py::test_days_of_a_derived_dataset_are_computed_from_what_is_published_or_from_the_shadows_of_its_unit": (),  # noqa: E501
    "spark/pipeline/test_recompute.py::test_other_code_or_other_inputs_are_not_compared_with_what_was_built": (),
    "spark/pipeline/test_recompute.py::test_rewrites_by_others_meanwhile_are_named_and_those_of_a_live_run_are_not": (),
    "spark/pipeline/test_shadow.py::test_a_python_model_builds_the_same_shadow": (),
    "spark/pipeline/test_shadow.py::test_building_again_replaces_the_days_and_another_batch_of_the_attempt_keeps_them": (),
    "spark/pipeline/test_extracts.py::test_a_young_day_follows_its_rows_and_a_day_without_rows_or_of_other_days_is_refused": (),
    "spark/pipeline/test_months.py::test_rows_that_landed_by_day_are_not_lost_when_the_path_names_months": (),
    "spark/pipeline/test_source_table.py::test_a_golden_case_of_a_table_is_laid_out_as_the_table_is": (),
    "spark/pipeline/test_source_table.py::test_a_proof_recomputes_the_days_of_a_table": (),
    "spark/pipeline/test_source_table.py::test_a_table_that_is_lost_while_its_days_are_staged_fails_them_until_it_is_back": (
        "DELETE and VACUUM",
        "its folder is gone",
    ),
    "spark/pipeline/test_source_table.py::test_a_table_is_read_from_the_folder_that_is_named_whatever_its_name": (),
    "spark/pipeline/test_source_table.py::test_days_that_are_text_are_read_by_day": (),
    "spark/pipeline/test_source_table.py::test_later_delivery_days_bring_rows_of_a_day_and_the_newest_day_counts": (),
    "spark/pipeline/test_source_table.py::test_rows_behind_deletion_vectors_do_not_count": (),
    "spark/pipeline/test_staging.py::test_batching_does_not_matter": (),
    "spark/pipeline/test_wrong_and_green.py::test_a_step_between_two_batches_that_are_checked_at_the_same_time_is_refused": (
        "the days before it",
    ),
    "spark/pipeline/test_unconfirmed_writes.py::test_a_write_of_spark_that_the_disk_does_not_confirm_is_completed_by_the_same_call": (  # noqa: E501
        "raw",
    ),
    "spark/test_adopted_table.py::test_a_rule_of_the_table_that_the_new_rows_break_keeps_the_days_from_being_released": (),
    "spark/test_attribution.py": (),
    "spark/test_floor.py": (),
    # `make test` checks the settings that refuse them (`test_server.py`).
    "spark/test_internal_ports.py": (),
    "spark/test_golden_cases.py": ("flights/summer_*", "order_items/revenue_*", "daily_sales/*"),
    "spark/test_planted_faults.py": (),
    "spark/test_published_reads.py::test_spark_finds_the_same_rows": ("a_timestamp",),
    "spark/test_server_lifecycle.py::test_a_server_that_works_without_a_connection_is_stopped_and_then_replaced": (),
    "spark/test_server_lifecycle.py::test_an_idle_server_stops_but_never_under_a_client_even_if_that_is_frozen": (),
    "spark/test_server_restart.py": (),
    "spark/test_on_a_store.py::test_whatever_goes_wrong_at_a_request_of_spark_the_next_launch_is_enough": (
        "a commit of staging-lost_answer",
    ),
    "spark/test_on_a_cluster.py::test_a_cluster_without_free_cores_is_named": (),
    "spark/test_on_a_cluster.py::test_a_driver_that_is_killed_and_started_again_goes_on": (),
    "spark/test_on_a_cluster.py::test_a_worker_that_has_another_folder_under_the_path_of_the_warehouse_is_named": (),
    "spark/test_on_a_cluster.py::test_workers_need_no_keys_of_their_own": (),
    "spark/test_on_a_cluster.py::test_executors_that_are_killed_while_they_work_lose_nothing": (),
    "spark/test_two_servers.py": (),
    # Tests on whole installations with Dagster, and in the browser
    "dagster/test_approval.py": (),
    "dagster/test_benchmark.py::test_a_small_benchmark_accounts_for_all_of_its_time_and_leaves_nothing_behind": (),
    "dagster/test_by_commands_alone.py": (),
    "dagster/test_campaign.py::test_a_paused_campaign_holds_no_run_and_continues_where_it_was": (),
    "dagster/test_campaign_faults.py": (),
    "dagster/test_command_line.py::test_one_partition_from_the_command_line_is_released": (),
    "dagster/test_command_line.py::test_a_missing_day_fails_by_name_and_is_no_silent_success": (),
    "dagster/test_command_line.py::test_a_delivery_without_a_row_is_no_silent_success": (),
    "dagster/test_derived_datasets.py::test_a_downstream_that_fails_keeps_its_upstream_from_being_released": (),
    "dagster/test_derived_datasets.py::test_an_upstream_released_alone_leaves_its_downstream_behind_until_it_is_refreshed": (),
    "dagster/test_extracts.py": (),
    "dagster/test_failed_chunk.py::test_retry_failed_from_the_ui_never_publishes_unproven_days": (),
    "dagster/test_failed_chunk.py::test_a_resume_builds_again_what_the_disk_has_lost_of_the_days_that_had_passed": (),
    # In `make test` a run of one good day is refused for the same reason.
    "dagster/test_failed_chunk.py::test_published_alone_on_unproven_days_is_refused_with_the_list_of_what_is_missing": (),
    "dagster/test_launched_twice.py": (),
    "dagster/test_live_days.py": (),
    "dagster/test_live_first.py": (),
    "dagster/test_postgres_deaths.py": (),
    "dagster/test_server_deaths.py": (),
    "dagster/test_on_a_store.py": (),
    "dagster/test_soak.py": (),
    "dagster/test_worked_cases.py": (),
    "dagster/test_worker_deaths.py": (),
    "dagster/test_tutorial.py": (),
    "dagster/test_windows.py": (),
    "dagster/test_workers.py": (),
    "dagster/test_wrong_and_green_by_commands.py": (),
    "ui/test_backfill_in_the_browser.py::test_a_good_range_ends_green_and_its_days_are_published": (),
    "ui/test_report_in_the_browser.py::test_it_opens_without_network_draws_its_charts_and_fits_the_window": (
        "360-light-ready",
        "1280-dark-not_ready",
    ),
}
"""A file, or a test of a file; and which of its cases `make test` still runs, as patterns of their names."""

ON_POSTGRES: Final = frozenset(
    {
        "test_a_change_is_stored_with_its_entry_and_a_new_revision",
        "test_a_failure_in_the_middle_of_a_write_leaves_nothing",
        "test_a_launch_of_claimed_and_free_days_is_refused_and_leaves_nothing",
        "test_a_release_is_intended_and_then_true_and_its_unit_moves_with_it",
        "test_an_old_ledger_is_migrated_and_keeps_its_rows",
        "test_migrations_lead_to_exactly_the_declared_tables",
        "test_no_release_is_taken_back_and_no_evidence_rewritten",
        "test_only_one_of_a_launch_and_a_concurrent_plan_wins",
        "test_the_database_itself_refuses_to_rewrite_history",
        "test_the_lease_of_a_dead_process_is_taken_over_when_it_is_over",
        "test_the_newest_evidence_of_a_day_counts",
    }
)
"""Tests of the ledger's contract that `make test` runs on both Postgres and SQLite; `make test-all` runs all of them on both."""


class Run(StrEnum):
    """Where a test runs; `make test-all` runs all of them."""

    by_day = "`make test`"
    in_part = "`make test`: some cases"
    at_night = "`make test-all`"


def run_of(test: str) -> Run:
    """Where a test runs, given as `file::test` below this folder."""
    kept = _kept(test)
    if kept is None:
        return Run.by_day
    return Run.in_part if kept else Run.at_night


def _kept(test: str) -> tuple[str, ...] | None:
    return NIGHTLY.get(test, NIGHTLY.get(test.partition("::")[0]))


def is_nightly(test: str, case: str = "") -> bool:
    """Whether `make test` leaves out a case of a test, given as `file::test` below this folder; without cases, the test."""
    file, _, name = test.partition("::")
    if file.startswith("unit/ledger/") and "postgres_url" in case.split("-") and name not in ON_POSTGRES:
        return True
    kept = _kept(test)
    return kept is not None and not any(fnmatchcase(case, pattern) for pattern in kept)


def in_part(files: Iterable[str], part: str) -> set[str]:
    """The files of tests that run in a part, `1/2` or `2/2` for example; the whole is each file once.

    Raises:
        pytest.UsageError: there is no such part.
    """
    number, _, parts = part.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise pytest.UsageError(f"{PART} is {part!r}, and a part is named as 1/2 and 2/2 are")
    return set(sorted(set(files), key=lambda file: (_turn(file), file))[int(number) - 1 :: int(parts)])


def _turn(file: str) -> int:
    return _FIRST.index(file) if file in _FIRST else len(_FIRST)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    files = {item: os.path.relpath(item.path, _FOLDER) for item in items}
    here = in_part(files.values(), os.environ.get(PART) or "1/1")
    config.hook.pytest_deselected(items=[item for item in items if files[item] not in here])
    items[:] = [item for item in items if files[item] in here]
    items.sort(key=lambda item: _turn(files[item]))
    for item in items:
        file = files[item]
        callspec = getattr(item, "callspec", None)
        name = getattr(item, "originalname", None) or item.name
        if is_nightly(f"{file}::{name}", callspec.id if callspec else ""):
            item.add_marker(pytest.mark.nightly)
