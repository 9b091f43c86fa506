"""Which fault is injected by which test, and how it ends: the table of `docs/reliability-faults.md`.

Written by `python -m backfill_assets_tests.faults`; a test compares it with the existing tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backfill_assets_tests.nightly import Run, run_of

ROOT: Final = Path(__file__).resolve().parents[1]
DOCUMENT: Final = ROOT / "docs" / "reliability-faults.md"
UNIT: Final = "unit/faults"


@dataclass(frozen=True)
class Fault:
    """One fault: what is injected, how it ends, and the tests that show it, as `file::test` below this folder."""

    injected: str
    outcome: str
    tests: tuple[str, ...]


def _of(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{file}.py::test_{name}" for name in names)


_CRASHES, _CAMPAIGN = "unit/release/test_crashes", "unit/control/test_campaign_crashes"
_LIVES, _POWER, _DISK = "dagster/test_campaign_faults", f"{UNIT}/test_power_cut", f"{UNIT}/test_refusing_disk"
_OTHERS, _CLOCKS, _HOSTS = f"{UNIT}/test_others_at_the_table", f"{UNIT}/test_clocks", f"{UNIT}/test_hosts_and_postgres"
_SERVERS, _BETWEEN = "dagster/test_server_deaths", f"{UNIT}/test_in_between"
_TWO, _PUBLISH = "unit/control/test_two_at_once", "unit/release/test_publish"
_ADOPT = "unit/release/test_adopt"
_DEATHS = "dagster/test_worker_deaths"
_TABLES, _ON_SPARK = f"{UNIT}/test_source_tables", "spark/pipeline/test_source_table"
_SCRIPT, _DATABASE = "unit/extracts/test_script", "unit/extracts/test_database"
_STORE, _STILL, _CLUSTER = f"{UNIT}/test_object_store", f"{UNIT}/test_standing_still", "spark/test_on_a_cluster"
_RESTORED, _ANY = f"{UNIT}/test_restored_ledgers", f"{UNIT}/test_any_interruption"
_TWICE, _MEANWHILE = "dagster/test_launched_twice", "unit/orchestration/test_released_meanwhile"

FAULTS: Final[Mapping[str, tuple[Fault, ...]]] = {
    "kill -9": (
        Fault(
            "a publication, after each of: manifest, intent, Delta commit, finalized, sealed",
            "Readers see all of it or nothing; the next `backfill publish` or `backfill reconcile` finishes what is in the "
            "Delta log and gives up what is not.",
            _of(
                _CRASHES,
                "a_publication_is_true_exactly_when_it_is_in_the_delta_log",
                "publishing_again_after_a_crash_needs_no_other_command",
                "a_complete_unit_of_two_datasets_is_finished",
            ),
        ),
        Fault(
            "a rollback, after each of: intent, Delta commit, finalized",
            "The same; its days are on hold if, and only if, it is in the log.",
            _of(_CRASHES, "a_rollback_is_true_exactly_when_it_is_in_the_delta_log"),
        ),
        Fault(
            "an adoption of a table, after each of: mark and link, manifest, intent, Delta commit; and while a table is given back",
            "The table and its rows stay as they are; the same command, or `backfill reconcile`, finishes it.",
            _of(
                _ADOPT,
                "an_adoption_that_was_interrupted_is_finished_by_the_same_command",
                "a_table_that_was_half_given_back_is_given_back_by_the_same_command",
            ),
        ),
        Fault(
            "a publication of several tables between two of their commits, and again while they are taken back",
            "What was committed is taken back, downstream first; the unit stays open, and the next command publishes it.",
            _of(
                _CRASHES,
                "half_a_unit_is_taken_back",
                "a_crash_while_half_a_unit_is_taken_back_changes_nothing_about_the_end",
                "what_was_committed_of_a_chain_is_taken_back_downstream_first",
            ),
        ),
        Fault(
            "launch, resume, pause, approve, publish, rollback and the conductor of a campaign, before each of their changes",
            "The repeated command reaches the same end; every day is launched, built and reported once.",
            _of(
                _CAMPAIGN,
                "a_launch_that_dies_claims_and_launches_its_days_once",
                "a_resume_that_dies_launches_missing_days_once",
                "a_pause_that_dies_leaves_no_run_in_the_queue",
                "a_conductor_that_dies_after_the_canaries_launches_the_rest_once",
                "a_conductor_that_dies_while_it_stops_a_campaign_cancels_its_runs_next_time",
                "an_approval_that_dies_is_stored_with_its_journal_or_not_at_all",
                "a_publication_that_dies_is_complete_and_made_once_after_it_is_repeated",
                "a_rollback_that_dies_is_done_once_after_it_is_repeated",
            ),
        ),
        Fault(
            "the command line and a run worker of a campaign that is running",
            "Nothing has to be done: the lease of the worker runs out, its run is retried, only its batch is built again.",
            (
                *_of(_LIVES, "a_killed_command_and_a_killed_run_worker_need_no_command"),
                *_of(
                    "dagster/test_workers",
                    "a_killed_worker_is_noticed_by_its_lease_and_its_run_is_failed_and_retried",
                ),
                *_of("dagster/test_killed_worker", "the_run_of_a_killed_worker_is_failed_retried_and_released"),
            ),
        ),
        Fault(
            "a run worker between any two of: raw, staging, shadow, checks, evidence, manifest, intent, Delta commit, finalized, "
            "sealed",
            "Its run is retried and released automatically; only a shadow without evidence is built again.",
            _of(_DEATHS, "a_run_worker_dies_between_two_steps_of_the_pipeline"),
        ),
        Fault(
            "the daemon and the Spark server of a campaign that is running",
            "The daemon's runs continue without it; a batch without Spark fails by name, and the campaign builds that batch "
            "again after a minute.",
            _of(_LIVES, "after_a_killed_daemon_and_a_killed_spark_server_only_missing_days_are_built"),
        ),
        Fault(
            "the Spark server while it writes, when some files of a shadow are written and nothing is committed, and while it "
            "checks",
            "The run fails by name, `backfill resume` builds only its days again; half-written files are in no release.",
            _of(
                _SERVERS,
                "the_server_is_killed_while_it_writes_a_shadow",
                "the_server_is_killed_while_it_checks_a_shadow",
            ),
        ),
        Fault(
            "the webserver before and after it has stored a launch, while another backfill is running",
            "The daemon continues without it; a restarted webserver shows what was stored. A user who got no answer launches "
            "again: each day is built and released once in either case.",
            _of(_TWICE, "the_webserver_dies_with_a_launch_in_it_while_another_is_running"),
        ),
        Fault(
            "the Spark server under an open session; its watcher",
            "The error names the session and what to do; the next use starts a server, with another token.",
            _of(
                "spark/test_server_lifecycle",
                "a_killed_server_is_named_and_then_replaced_although_its_process_id_is_reused",
                "a_lost_watcher_is_replaced_without_a_new_server",
            ),
        ),
        Fault(
            "the client of a query that Spark continues, or a run that is cancelled while Spark plans its query",
            "A server that works without any connection is stopped within half a minute; the next use starts another.",
            (
                *_of(
                    "spark/test_server_lifecycle",
                    "a_server_that_works_without_a_connection_is_stopped_and_then_replaced",
                ),
                *_of(
                    "unit/test_engine_watcher",
                    "a_busy_server_is_stopped_only_after_ten_seconds_without_a_connection",
                ),
            ),
        ),
        Fault(
            "Postgres with the ledger and Dagster's storage on it, from before the Delta commit of a run worker until it is made",
            "The commit needs no Postgres: readers see the release. Once Postgres is back, `backfill publish` finishes it; "
            "each day is released once.",
            _of("dagster/test_postgres_deaths", "postgres_is_killed_under_a_worker_that_commits"),
        ),
        Fault(
            "Postgres for longer than any process retries, so that the worker ends without reporting: before its evidence, its "
            "commit",
            "Once Postgres is back, `dead_workers` ends the run and it is retried, or its backfill has failed: then `backfill "
            "resume` continues, or `backfill publish` finishes what was committed; each day is released once.",
            _of("dagster/test_postgres_deaths", "postgres_is_away_for_longer_than_all_retries_take"),
        ),
        Fault(
            "a run worker while it writes a batch of events",
            "Dagster's storage is usable; no event is stored twice.",
            _of(
                "../packages/dagster-batched-events/tests/test_broken_batches",
                "a_worker_killed_in_mid_batch_leaves_a_usable_storage",
            ),
        ),
        Fault(
            "Postgres before each step of a publication and of a rollback",
            "The command says that the ledger is away; once it is back, the same command continues.",
            _of(_HOSTS, "postgres_is_killed_before_a_step_of_a_release"),
        ),
    ),
    "Power cut": (
        Fault(
            "before each step of a publication and of a rollback; files that were not flushed to disk are gone, empty, half, "
            "zeros, or their first two lines",
            "Nothing that the ledger says is lost: data files are on disk before evidence names them, the commit is on disk "
            "before its release counts.",
            _of(_POWER, "the_power_fails_before_a_step_of_a_release"),
        ),
        Fault(
            "while the Delta commit is written, with the same five losses",
            "The commit counts as never made: the next publication, rollback or `backfill reconcile` moves it to `_set_aside/`;"
            " until then, a table whose log no engine can read fails with an error that says so.",
            _of(
                _POWER, "the_power_fails_while_the_commit_is_written", "a_commit_that_was_cut_needs_no_command_of_its_own"
            ),
        ),
        Fault(
            "temporary files left in every folder of a table",
            "They are ignored.",
            _of(_POWER, "unknown_files_change_nothing"),
        ),
        Fault(
            "a data file or the log of a shadow that had passed is damaged",
            "The release is refused and names the day; only that day is built again.",
            _of(
                _POWER,
                "a_shadow_that_the_disk_lost_is_refused_by_name_and_built_again",
                "a_shadow_whose_log_the_disk_lost_is_refused_and_built_again",
            ),
        ),
        Fault(
            "a manifest beside the table is truncated",
            "Publishing and rolling back continue (the ledger has the manifest); `backfill reconcile` and `backfill doctor` "
            "name the file.",
            _of(_POWER, "a_damaged_manifest_prevents_no_publication_and_is_named"),
        ),
        Fault(
            "after a kill before the flush to disk: of a commit, of a commit with its checkpoint, of what was landed and staged",
            "Nothing counts before it is on disk: a commit with its checkpoint, raw, staging, and what reconcile finds.",
            _of(
                _BETWEEN,
                "a_release_is_on_the_disk_before_reconcile_finalizes_it",
                "a_checkpoint_is_synced_to_disk_with_its_commit_and_set_aside_with_it",
                "a_checkpoint_that_cannot_be_read_is_set_aside_where_the_commits_contain_all_of_it",
                "a_checkpoint_that_the_log_depends_on_needs_a_person",
                "every_file_that_a_block_writes_to_a_table_is_synced_to_disk",
            ),
        ),
    ),
    "Disk and permissions": (
        Fault(
            "the disk is full from each step of a publication and of a rollback on (a small tmpfs; a file size limit of zero "
            "where none can be mounted)",
            "The command says what it could not write; with space again, the same command continues.",
            _of(_DISK, "the_disk_is_full_from_a_step_of_a_release_on"),
        ),
        Fault(
            "the disk is full before Spark writes raw, staging or a shadow, or has space for the data files and none for their "
            "commit (the same)",
            "The error names the table and what to free space for; the table is unchanged, and with space again the same call "
            "writes each row once.",
            _of(
                "spark/pipeline/test_full_disk",
                "the_disk_is_full_before_the_first_day_is_written",
                "the_disk_has_room_for_the_data_of_a_day_and_none_for_its_commit",
            ),
        ),
        Fault(
            "the disk is full while Spark does anything else (the same)",
            "The error names the work and what to free space for.",
            _of("spark/pipeline/test_full_disk", "the_disk_is_full_while_spark_is_busy_with_anything_else"),
        ),
        Fault(
            "the manifests, the Delta log, the shadow or the ledger are not writable (as another user where this one is root)",
            "The same.",
            _of(_DISK, "a_publication_or_rollback_has_no_permission_to_a_folder"),
        ),
        Fault(
            "an input/output error when a commit is flushed to disk",
            "The command says that the commit is made and not confirmed; repeated, the command finishes.",
            _of(_DISK, "the_disk_does_not_confirm_a_commit"),
        ),
        Fault(
            "an input/output error when raw, staging, a shadow or a new table is flushed to disk",
            "The error names the table; nothing in it counts before the same call has flushed it. (If a disk loses data that it"
            " confirms the second time, the doctor finds the loss.)",
            (
                *_of(_DISK, "the_disk_does_not_confirm_a_shadow", "the_disk_does_not_confirm_a_new_table"),
                *_of(
                    "spark/pipeline/test_unconfirmed_writes",
                    "a_write_of_spark_that_the_disk_does_not_confirm_is_completed_by_the_same_call",
                ),
            ),
        ),
        Fault(
            "any other error after the commit of a publication or a rollback, such as too many open files; a release that is in"
            " the log is given up in the ledger",
            "Nothing that readers see is given up: `backfill reconcile` finalizes it, and the doctor reports it.",
            _of(
                _BETWEEN,
                "an_error_after_the_commit_never_gives_up_what_readers_see",
                "a_release_that_was_given_up_although_it_is_in_the_log_is_found_and_finalized",
            ),
        ),
    ),
    "Object store": (
        Fault(
            "any request of a publication or a rollback: its answer is lost or cut off, the connection is cut, 409, 503, slow, "
            "expired credentials",
            "The release goes through, or is refused by name and said again; readers see the old state or the new one, whole.",
            _of(_STORE, "a_request_goes_wrong", "any_request_goes_wrong", "credentials_expire_from_some_request_on"),
        ),
        Fault(
            "the sealing of a shadow ends in the middle of its copy, or of the removal",
            "Readers see the release; the doctor finds the shadow and seals it.",
            _of(_STORE, "a_seal_that_is_cut_off_is_found_and_repaired"),
        ),
        Fault(
            "the credentials expire at a look at the place of an adopted table in a bucket, while it is released to or rolled back",
            "Readers see the old state or the new one; a commit that was made does not count as a failed one, and the same command "
            "finishes it.",
            _of(_STORE, "the_store_refuses_from_some_look_at_the_place_of_an_adopted_table_on"),
        ),
        Fault(
            "the store makes the second commit of a publication after its client gave up and took the first one back; also of a "
            "unit that was discarded by then",
            "The doctor finds the late commit; `backfill reconcile`, or the next release of its table, takes it back, and the same "
            "unit can be published.",
            (
                *_of(_STORE, "a_commit_that_the_store_makes_when_its_client_has_given_up_is_taken_back"),
                *_of(
                    _STILL,
                    "a_commit_that_lands_after_its_unit_was_taken_back_is_taken_back_too",
                    "the_next_release_of_a_table_takes_a_late_commit_back_first",
                    "a_late_commit_beside_a_table_that_cannot_be_read_waits_for_reconcile",
                    "days_that_were_built_again_are_released_although_the_first_commit_came_late",
                    "a_late_commit_of_a_discarded_unit_is_taken_back",
                ),
            ),
        ),
        Fault(
            "the store says that it copied the log of a shadow, and did not",
            "The log is not removed, and the publication, which is made, says so; the same command finishes it.",
            _of(_STORE, "a_store_that_copies_nothing_loses_no_log"),
        ),
    ),
    "Cluster": (
        Fault(
            "an executor, again and again, while days are landed, staged and built",
            "Spark tries again, and the days are published. If it gives up, the run says that workers were lost, and a campaign "
            "tries that batch again.",
            (
                *_of(_CLUSTER, "executors_that_are_killed_while_they_work_lose_nothing"),
                *_of("spark/test_session", "workers_that_spark_gave_up_on_are_named"),
            ),
        ),
        Fault(
            "the Spark Connect server, started again at its address",
            "The run fails by name; the next launch publishes what is missing.",
            _of(_CLUSTER, "a_driver_that_is_killed_and_started_again_goes_on"),
        ),
        Fault(
            "all workers leave; one worker has another folder where the warehouse is",
            "The operation is interrupted and named; the worker is named, and nothing is written.",
            _of(
                _CLUSTER,
                "a_cluster_without_free_cores_is_named",
                "a_worker_that_has_another_folder_under_the_path_of_the_warehouse_is_named",
            ),
        ),
        Fault(
            "twenty minutes of kill -9 of run workers, Spark's server and executors, commands, daemon, webserver and readers, "
            "with tables and files in a bucket, Spark on a cluster, and the rest on Postgres",
            "No row is lost, no read is mixed, and nothing is left over.",
            _of("dagster/test_soak", "nothing_is_lost_and_nothing_is_mixed_on_store_cluster_and_postgres"),
        ),
    ),
    "Sources": (
        Fault(
            "OPTIMIZE, VACUUM, INSERT, UPDATE, DELETE, RESTORE or an overwrite by the owner of a source table between the checks "
            "of its days and their release",
            "Where the rows of a day stay the same, its release is made. Otherwise it is refused, and only days with other rows "
            "are built again.",
            (
                *_of(
                    _TABLES,
                    "rows_of_a_source_table_that_stay_the_same_keep_no_unit_from_being_released",
                    "other_rows_in_a_source_table_make_their_days_stale_and_nothing_is_released",
                ),
                *_of(
                    _ON_SPARK, "a_row_makes_its_day_stale_until_it_is_released_and_optimize_makes_none_stale"
                ),
            ),
        ),
        Fault(
            "the same after the last check before a commit",
            "What was checked is released, and the changed day is late.",
            _of(_TABLES, "what_happens_to_a_source_table_after_the_last_look_at_it_is_seen_as_late"),
        ),
        Fault(
            "the same while a day is built",
            "The day is built again: its evidence is about the rows that it has.",
            _of(
                _ON_SPARK,
                "a_day_is_built_again_with_rows_that_arrive_while_it_is_staged",
                "rows_that_go_and_come_back_while_a_day_is_built_leave_no_evidence_of_other_rows",
            ),
        ),
        Fault(
            "a source table is dropped, replaced by one of another shape or with other days, its log is cut, zeros or gone, or a "
            "link leads out of the sources: between the checks of its days and their release, or while they are built; VACUUM of "
            "what a day is built from",
            "The launch or the release is refused and names the table; published days stay, and none is called late. Once the "
            "table is back, the same command continues.",
            (
                *_of(
                    _TABLES,
                    "without_a_readable_source_table_nothing_is_released_and_once_it_is_back_nothing_is_built_again",
                ),
                *_of(
                    _ON_SPARK,
                    "a_table_that_is_lost_while_its_days_are_staged_fails_them_until_it_is_back",
                    "a_pinned_version_that_was_vacuumed_is_refused_by_key_and_its_published_days_stay",
                ),
            ),
        ),
        Fault(
            "kill -9 of a worker that has written half of the file of an extract; of the Postgres that it reads",
            "No landing finds half a file. The error names the database; the next extract removes what is left and writes all "
            "rows.",
            _of(
                _DATABASE,
                "an_extract_that_is_killed_leaves_nothing_that_counts_and_the_next_one_is_exact",
                "a_database_that_dies_in_the_middle_of_a_query_is_named_and_the_next_extract_is_exact",
            ),
        ),
        Fault(
            "others change rows while an extract reads them; two launches extract the same day",
            "The file has the rows of one moment, and all of them.",
            _of(
                _DATABASE,
                "rows_that_change_while_they_are_read_are_those_of_one_moment",
                "two_launches_that_extract_the_same_day_leave_one_whole_file",
            ),
        ),
        Fault(
            "`extract.py` hangs, never ends, crashes, calls `exit`, or fails after some rows",
            "The launch fails and says where and why; nothing is written, and no secret is shown.",
            _of(_SCRIPT, "a_file_that_fails_in_any_way_writes_nothing_and_says_why"),
        ),
        Fault(
            "the disk is full, at once or after some rows, while an extract writes the file of a day (a small tmpfs; a file size "
            "limit of zero where none can be mounted)",
            "The error names the disk, and the file that was there stays; with space again, the same command writes all rows.",
            _of(_SCRIPT, "a_disk_without_room_for_a_file_is_named_and_the_file_before_stays"),
        ),
        Fault(
            "a file in `.gz` or `.zst` is cut after any of its bytes, damaged, or followed by other bytes",
            "It is refused by name before anything of its batch lands.",
            _of("unit/hostile/test_source_files", "an_archive_that_is_cut_anywhere_is_refused"),
        ),
    ),
    "Clocks and calendars": (
        Fault(
            "the clock is set back by a minute, an hour, 40 days before each release and rollback",
            "Releases keep their order, by their numbers. No window gets shorter; the doctor names times in the future.",
            _of(_CLOCKS, "a_clock_set_back_confuses_no_release", "a_clock_set_back_shortens_no_window"),
        ),
        Fault(
            "a clock is ten years ahead during one release, or while a process holds a lock, an attempt or a day",
            "It dates no other release, later launches find their work, the release can be rolled back, and its window ends. "
            "The doctor names it.",
            _of(
                _CLOCKS,
                "one_release_by_a_clock_that_was_ahead_dates_no_other",
                "a_release_by_a_clock_that_was_ahead_goes_back",
                "a_release_of_the_future_keeps_no_later_launch_from_its_work",
                "the_lock_of_a_clock_that_was_ahead_blinds_no_doctor",
            ),
        ),
        Fault(
            "the clock is set back while the holder of a lock is dead, or alive",
            "A dead holder is noticed after one lease of watching; a living holder keeps its lock.",
            _of(
                _CLOCKS,
                "a_dead_holder_of_a_lock_is_noticed_though_the_clock_was_set_back",
                "a_living_holder_keeps_its_lock_though_the_clock_was_set_back",
            ),
        ),
        Fault(
            "the clock is set back between two attempts",
            "The later attempt counts.",
            _of(_CLOCKS, "the_newest_attempt_counts_though_the_clock_was_set_back"),
        ),
        Fault(
            "leap day, a century without one, year end, New York days of 23 and 25 hours",
            "Each is a day like any other: released, rolled back alone, staged from its own local hours, scheduled.",
            (
                *_of(_CLOCKS, "a_range_over_an_odd_day_is_released_and_goes_back_day_by_day"),
                *_of("spark/test_golden_cases", "the_models_make_of_a_golden_case_what_it_expects"),
                *_of(
                    "unit/orchestration/test_live", "the_schedule_takes_yesterday_in_the_datasets_time_zone"
                ),
            ),
        ),
    ),
    "Others at the same table": (
        Fault(
            "a publication of several tables stands still between its commits, for longer than its lease, while another process "
            "takes the first one back, or discards the unit; then it goes on",
            "It takes back what it committed and says so. The unit, if it is not discarded, can be published again.",
            _of(
                _STILL,
                "half_a_unit_is_never_published_by_a_process_that_stood_still_between_its_commits",
                "nothing_of_a_discarded_unit_stays_published_by_a_process_that_stood_still",
            ),
        ),
        Fault(
            "whoever takes back what was committed dies before any of its steps; others publish, discard the unit or claim its "
            "days before that is finished",
            "`backfill reconcile`, or the next release of a table whose undo was announced, takes the rest back; until then the "
            "doctor names it. The unit stays as it is.",
            _of(
                _STILL,
                "whoever_dies_while_it_takes_back_leaves_the_rest_to_the_next",
                "whoever_dies_while_it_takes_back_a_discarded_unit_leaves_the_rest_to_the_next",
                "a_release_of_a_neighbour_gives_no_undo_up",
                "what_is_taken_back_leaves_a_unit_discarded_that_was_discarded_meanwhile",
                "days_that_are_claimed_meanwhile_do_not_keep_half_a_publication",
                "a_unit_that_nobody_can_release_can_be_discarded",
                "an_undo_that_an_earlier_version_abandoned_is_completed",
                "an_undo_whose_release_the_log_no_longer_has_blocks_only_its_own_table",
                "half_a_publication_that_was_rewritten_ends_with_the_next_publication_of_its_unit",
                "a_publisher_whose_unit_others_published_again_meanwhile_finds_it_published",
                "a_publication_that_the_ledger_cannot_finalize_keeps_its_days",
                "a_late_commit_that_others_have_published_over_needs_no_one",
                "a_late_commit_of_a_unit_that_was_rolled_back_before_is_taken_back",
                "days_that_were_built_beside_a_late_commit_are_stale",
                "a_commit_that_cannot_be_read_back_keeps_its_days",
            ),
        ),
        Fault(
            "whoever takes half a publication back, or sweeps, stands still for longer than its lease, while another process "
            "publishes; a unit is discarded while it is released",
            "What is published stays. A unit whose files a sweep may delete is not published again; a discard waits for the "
            "release, and is refused.",
            _of(
                _STILL,
                "a_process_that_stood_still_takes_nothing_back_that_was_published_meanwhile",
                "a_sweep_that_stood_still_deletes_nothing_that_is_published_again",
                "days_that_were_rolled_back_at_different_times_are_kept_from_the_first_on",
                "a_unit_that_is_being_released_is_not_discarded",
            ),
        ),
        Fault(
            "any of publishing, rolling back, discarding and reconciling, by several processes, each interrupted by the "
            "others, killed, refused or not answered at any step",
            "After a reconciliation each unit counts in both tables or in neither, as the ledger says, and open units can be "
            "published.",
            _of(_ANY, "readers_see_a_unit_whole_or_not_at_all_whatever_interrupts_whom"),
        ),
        Fault(
            "a release between the doctor's check and its repair; the death of another process after its commit while one waits"
            " for its lock; a running release of two tables while reconcile looks for lost ones; two rollbacks of one unit at "
            "the same time",
            "Each checks again once it holds the lock: a commit that is now complete stays, and running work is left alone.",
            _of(
                _BETWEEN,
                "a_repair_leaves_a_commit_alone_that_is_complete_since_the_examination",
                "a_command_that_waited_for_one_that_died_after_its_commit_finds_it_done",
                "a_running_release_of_two_datasets_is_not_called_lost",
                "two_datasets_of_a_unit_go_back_one_after_the_other",
            ),
        ),
        Fault(
            "OPTIMIZE, VACUUM, DELETE, RESTORE or an INSERT by another user between the checks of a publication and its commit",
            "Outside of the range, and where the content is equal, the publication goes through and loses nothing of the other "
            "user; otherwise it is refused and names the rewritten days, which are checked again.",
            _of(
                _OTHERS,
                "another_writer_changes_the_table_while_a_unit_is_published",
            ),
        ),
        Fault(
            "the same between the plan of a rollback and its commit",
            "Days that another user has rewritten stay and are listed for consent; all others go back.",
            _of(_OTHERS, "another_writer_changes_the_table_while_a_release_is_rolled_back"),
        ),
        Fault(
            "a commit of another writer to an adopted table: while it is adopted, between releases, and in the middle of one",
            "The adoption or the release is refused and names the commit; releases wait until a person has accepted it.",
            _of(
                _ADOPT,
                "another_writer_in_the_middle_of_an_adoption_stops_it",
                "no_release_is_made_after_another_writer_until_a_person_accepts_its_commits",
                "another_writer_in_the_middle_of_a_release_stops_it",
            ),
        ),
        Fault(
            "the folder of an adopted table is out of reach: for the sweep, for reconcile, and after half of a unit was released",
            "All other tables are done, and this one is named; the unfinished releases wait for it.",
            _of(
                _ADOPT,
                "a_table_that_is_out_of_reach_is_named_by_the_sweep_which_does_all_others",
                "a_table_that_is_out_of_reach_is_named_by_reconcile_which_settles_all_others",
                "half_a_unit_waits_for_the_table_of_the_other_half",
            ),
        ),
        Fault(
            "a publisher against a publisher, a rollback, a live writer",
            "One at a time under the table's lock; a process that waits without success gets an error that says who holds the "
            "lock. The version of the table shows a writer that bypassed the lock.",
            (
                *_of(
                    _OTHERS,
                    "two_publishers_of_overlapping_history_leave_one_content_of_each_day",
                    "a_rollback_during_a_publication_of_the_same_days_waits_or_is_refused",
                ),
                *_of(
                    _CRASHES,
                    "two_processes_release_a_unit_once",
                    "two_processes_release_disjoint_units_at_once",
                ),
                *_of(_PUBLISH, "a_live_day_published_between_checks_and_commit_is_kept"),
            ),
        ),
        Fault(
            "two operators launch, approve or roll back the same at the same time",
            "One wins; the other gets a message that says who did what.",
            _of(
                _TWO,
                "one_of_two_launches_wins_and_the_campaign_is_announced_once",
                "one_of_two_approvals_counts_and_the_other_is_refused",
                "one_of_two_rollbacks_undoes_the_release_and_the_other_is_refused",
            ),
        ),
        Fault(
            "the same days from the UI and by `dagster asset materialize` at the same time: both before the first claim, both "
            "before the first build; one held until the other has published",
            "Both end well, and each day is built and released once: the later launch waits for what is being built, and finds "
            "done what was released since it was launched, unless something has moved.",
            (
                *_of(
                    _TWICE,
                    "two_launches_that_reach_the_same_step_together_build_and_release_once",
                    "a_command_that_reaches_its_shadow_after_the_backfill_has_published_has_nothing_to_do",
                    "a_backfill_whose_last_run_begins_after_the_command_has_published_leaves_no_unit_open",
                ),
                *_of(
                    _MEANWHILE,
                    "a_launch_that_reaches_its_days_after_another_has_released_them_does_nothing",
                    "released_days_stay_current_until_a_delivery_a_file_or_another_release_moves_them",
                ),
            ),
        ),
        Fault(
            "the days of a campaign from the UI as well: before `backfill launch`, and after it",
            "One of them has the days: the other is refused, and names the owner of the days and the command that continues.",
            _of(
                _TWICE,
                "a_backfill_from_the_ui_that_comes_after_the_launch_of_a_campaign_leaves_its_days_alone",
                "a_campaign_is_not_launched_over_days_that_a_backfill_from_the_ui_is_building",
            ),
        ),
        Fault(
            "processes of two hosts, each in a network of its own, on one Postgres ledger (under one name where no namespaces "
            "can be made)",
            "Each unit is released once; the other host finds it done.",
            _of(_HOSTS, "two_hosts_publish_the_same_units_on_one_postgres_ledger_each_once"),
        ),
        Fault(
            "a second host on a SQLite ledger",
            "Refused; the error names both hosts and the way out.",
            _of("unit/ledger/test_opening", "a_second_host_is_refused_a_sqlite_ledger_until_it_adopts_it"),
        ),
    ),
    "Changes in the middle": (
        Fault(
            "a specification is edited",
            "Neither approved nor published until a resume; the journal names the keys.",
            _of(
                "unit/control/test_drift",
                "a_specification_that_moved_after_the_last_batch_is_not_approved",
                "a_specification_that_moved_after_the_approval_is_not_published_in_any_way",
            ),
        ),
        Fault(
            "a model's code is changed",
            "The campaign stops, its evidence is stale; a resume freezes a new plan.",
            (
                *_of(
                    "unit/control/test_campaign_control",
                    "changed_code_stops_the_campaign_and_resume_freezes_a_new_plan",
                ),
                *_of(_PUBLISH, "changed_code_makes_all_days_stale"),
            ),
        ),
        Fault(
            "the Spark server is replaced by one of another configuration (memory, shuffle, ANSI mode, time zone, file formats) "
            "while a unit is open and its checks run",
            "What had passed stays valid, `backfill resume` builds the rest, and the result is the model's.",
            _of(_SERVERS, "the_server_is_replaced_by_one_of_another_configuration_in_the_middle_of_a_unit"),
        ),
        Fault(
            "the Spark server is started again at the same address under an open session, with other settings",
            "The session does no more work, and its error says why and how to continue.",
            _of(
                "spark/test_server_restart",
                "no_session_continues_in_a_restarted_embedded_server",
                "no_session_continues_in_a_restarted_remote_server",
            ),
        ),
        Fault(
            "an upstream is published again, or another user writes into it",
            "Days built from other content are stale; equal content in other files makes none so.",
            _of(
                "unit/evidence/test_upstream",
                "no_upstream_can_be_released_between_the_verification_and_the_commit",
                "a_compacted_upstream_makes_nothing_stale",
                "foreign_rows_in_an_upstream_make_its_downstream_stale",
            ),
        ),
        Fault(
            "a ledger of each earlier revision, with data",
            "It is migrated when it is opened, keeps its content, and continues to work, on SQLite and Postgres.",
            _of(
                "unit/ledger/test_migration",
                "an_old_ledger_is_migrated_and_keeps_its_rows",
                "an_old_ledger_keeps_its_campaigns_their_journals_and_approvals",
                "an_old_ledger_keeps_its_comparisons_and_certificates",
                "a_campaign_of_an_old_ledger_continues_where_it_was",
                "an_old_ledger_takes_campaigns_once_it_is_migrated",
            ),
        ),
        Fault(
            "a ledger that is restored from a backup, or begun anew, while a publication of two tables is half made, half "
            "taken back, or made in several rounds",
            "What is whole stays, and what is half is taken back, also by the next release of the table; rollbacks that the "
            "ledger does not know are brought back first.",
            _of(
                _RESTORED,
                "a_restored_ledger_learns_what_was_taken_back",
                "a_restored_ledger_does_not_take_half_a_publication_for_all_of_it",
                "a_restored_ledger_takes_half_a_publication_back_before_it_publishes_others",
                "half_a_publication_of_a_unit_that_a_restored_ledger_does_not_know_is_taken_back",
                "a_late_commit_that_a_restored_ledger_does_not_know_is_taken_back",
                "a_restored_ledger_learns_of_rollbacks_before_it_judges_half_a_publication",
                "a_new_ledger_keeps_a_publication_whose_first_round_failed",
                "a_new_ledger_keeps_what_was_published_over_half_a_publication",
                "a_damaged_manifest_of_another_table_blocks_nobody",
            ),
        ),
        Fault(
            "a published table goes back to an older state, or a copy of the warehouse is used, and the ledger knows more",
            "Nothing is released to it, nor to what is built from it; message and doctor name the release that its log lacks.",
            _of(
                _RESTORED,
                "nothing_is_released_to_a_table_that_is_older_than_its_ledger",
                "nothing_is_released_that_was_built_from_a_table_that_is_older_than_its_ledger",
            ),
        ),
        Fault(
            "the ledger is lost; a manifest is forged",
            "`backfill reconcile` brings the releases back from the manifests, and accepts no manifest that was not committed.",
            (
                *_of(_CRASHES, "a_lost_ledger_is_rebuilt_from_the_manifests", "a_forged_manifest_is_not_used"),
                *_of(_POWER, "every_commit_that_a_rebuilt_ledger_counts_on_is_on_the_disk"),
            ),
        ),
    ),
}  # fmt: skip


_HEAD: Final = (
    "`python -m backfill_assets_tests.faults` writes this page from the tests that inject the faults. `make test-faults` prints",
    "what each case injected and found. `make test-all`, each night, runs all of them; the last column says",
    "what `make test` runs. After each fault readers see the complete last good state, the doctor finds nothing that it cannot",
    "explain, and one command continues without repeating what had passed. If a machine can show a fault only in a weaker",
    "form, the end of every test run names that fault.",
)


def document() -> str:
    """The document: a table for each kind of fault."""
    lines = ["# Faults and how they end", "", *_HEAD]
    for kind, faults in FAULTS.items():
        lines += ["", f"## {kind}", "", "| injected | outcome | shown by | runs in |", "|---|---|---|---|"]
        for fault in faults:
            files = list(dict.fromkeys(test.split("::")[0] for test in fault.tests))
            shown = ", ".join(f"`{file.split('/')[-1]}` ({_names(fault, file)})" for file in files)
            lines.append(f"| {fault.injected} | {fault.outcome} | {shown} | {runs_in(fault)} |")
    return "\n".join(lines) + "\n"


def runs_in(fault: Fault) -> str:
    """Which part of a fault `make test` injects, in words."""
    runs = {run_of(test) for test in fault.tests}
    if len(runs) == 1:
        return runs.pop()
    return Run.in_part


def _names(fault: Fault, file: str) -> str:
    names = [test.split("::test_")[1] for test in fault.tests if test.startswith(f"{file}::")]
    return "; ".join(name.replace("_", " ") for name in names)


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
