"""The suites of `tests/contract`, each test on each of these catalogs.

The whole of them runs on SQLite. Here is left out what cannot depend on the catalog, to be done in
minutes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from tests.stack import catalog_rules
from tests.stack.catalogs import Catalogs

#: PostgreSQL with local files; Iceberg's REST catalog with local files; SQLite with S3.
#: Each with the suites that it adds something to.
SUITES = {
    "postgres": (
        "adopt", "revert", "shadow_fence", "lake_ports", "control_ports", "control_fences",
        "control_races", "adopt_races", "adopt_together",
    ),
    "rest": (
        "adopt", "revert", "shadow_fence", "lake_ports", "control_ports", "control_fences",
        "control_races", "adopt_races", "adopt_together",
    ),
    "s3": ("adopt", "revert", "lake_ports"),
    # On S3, with credentials that end at each table, so that shadows are branches. One gives a
    # table no new UUID; the other is busy and forbids data paths.
    "lakekeeper": (
        "on_branches", "deletes_on_branches", "branch_shadow", "lake_ports", "control_ports",
        "control_fences", "control_races", "adopt_races", "adopt_together",
    ),
    "polaris": (
        "on_branches", "deletes_on_branches", "branch_shadow", "lake_ports", "control_ports",
        "control_fences", "control_races", "adopt_races", "adopt_together",
    ),
    # The same server on local files, where it hands out no credentials: shadows are clones.
    "polaris_files": ("adopt", "revert", "shadow_fence"),
    # They register no clone: one says so, and is busy and forbids data paths as Polaris does; one
    # gives an empty table. Shadows are built there.
    "refusing": ("adopt", "revert", "shadow_fence", "lake_ports"),
    "seaweed": ("adopt", "revert", "lake_ports"),
}  # fmt: skip
#: Tests that are about something else than the catalog, by what it is.
ELSEWHERE = {
    "about SQLite": ("test_writers_of_the_embedded_catalog_wait_for_each_other",),
    "opens no catalog": (
        "test_a_wrong_catalog_profile_is_a_configuration_error",
        "test_a_catalog_that_does_not_answer_is_said_so",
        "test_a_wrong_column_type_is_a_configuration_error",
        "test_a_wrong_partition_is_a_configuration_error",
    ),
}
#: Decided from a declaration, a loaded schema, or what metadata and manifests say, before anything
#: is asked of the catalog again: on one server, beside SQLite's.
ON_ONE = {
    "test_a_chunk_that_is_missing_is_refused",
    "test_a_shadow_of_another_base_is_refused",
    "test_a_table_that_is_no_shadow_is_refused",
    "test_a_wrong_type_is_a_configuration_error",
    "test_a_scope_needs_a_field_that_tells_its_values_apart",
    "test_a_changed_column_is_named",
    "test_texts_are_told_apart_from_the_null_partition",
    "test_a_reference_that_names_nothing_says_what_there_is",
}
#: Decided in this process from rows of control tables, which are read and written by the calls of
#: the rules that run on all: on one server, beside SQLite's.
FROM_ROWS = {
    "test_a_closed_run_can_open_again",
    "test_a_decision_sees_the_pointer_and_may_leave_it_alone",
    "test_a_document_is_found_by_its_digest_within_its_run",
    "test_a_document_that_came_back_is_the_newest_again",
    "test_a_fence_is_only_ever_raised",
    "test_a_lease_that_is_over_or_somebody_elses_is_not_renewed",
    "test_a_move_writes_rows_of_its_own_product_only",
    "test_a_note_keeps_the_driver_and_a_move_without_one_clears_it",
    "test_a_run_begins_with_its_own_first_event",
    "test_an_event_is_refused_unless_it_is_the_next",
    "test_an_unknown_run_cannot_be_moved",
    "test_closed_runs_are_listed_only_with_the_others_and_keep_their_status",
    "test_each_action_moves_the_pointer_as_the_port_says",
    "test_no_run_is_a_draft_once_its_first_event_is_there",
    "test_nothing_is_known_before_the_first_run",
    "test_products_do_not_touch_each_other",
    "test_rows_of_a_table_are_those_of_all_its_products_newest_first",
    "test_the_newest_document_is_the_newest_that_was_not_edited",
    "test_the_newest_document_of_a_kind_is_found_under_its_digest",
    "test_the_newest_documents_of_several_runs_are_found_at_once",
    "test_the_newest_ledger_row_of_a_chunk_says_how_many_rows_it_rejected",
    "test_the_newest_row_of_each_chunk_counts_in_chunk_order",
    "test_the_newest_runs_are_read_with_their_logs_and_ledgers_in_their_order",
    "test_the_reservations_of_all_products_are_listed",
    "test_the_rows_of_every_product_lead_to_its_pointer",
    "test_what_a_decision_raises_comes_out_and_nothing_is_written",
}
THE_ONE = "rest"
#: Conflicts decided from metadata: on "rest", and on what is emulated of Lakekeeper and Polaris.
CONFLICTS = {
    "test_a_first_publication_conflicts_with_rows_that_came_meanwhile",
    "test_a_live_append_to_the_partition_is_a_conflict_that_names_it",
    "test_a_spec_that_changed_while_the_run_was_open_is_refused",
}
#: Of SQLite with S3: decided from files, which lie on S3 on "seaweed" as well.
AS_ON_SQLITE = {
    *CONFLICTS,
    "test_runs_of_other_partitions_both_land",
    "test_a_live_append_to_another_partition_survives",
    "test_a_compacted_partition_is_no_conflict",
    "test_an_empty_partition_removes_the_old_files",
    "test_each_group_goes_back_to_its_own_state",
    "test_restored_files_keep_their_sequence_numbers",
}
#: Decided after a shadow was made: the server and what is asked of it are those of "rest"; of "s3"
#: the catalog is SQLite, on which all run, and the store is that of "seaweed"; of "postgres" the
#: catalog's code is that of SQLite, and its swaps are those of the rules that run there.
AS_ON_REST = {
    "test_a_compaction_since_is_no_conflict",
    "test_a_file_that_the_run_left_alone_may_be_compacted",
    "test_a_file_to_adopt_of_another_size_is_refused",
    "test_a_file_to_restore_that_is_missing_is_refused",
    "test_a_live_delete_of_another_partition_survives",
    "test_a_publication_is_found_after_the_history_behind_it_expired",
    "test_a_publication_that_was_rolled_back_is_no_conflict_after_a_compaction",
    "test_a_state_that_expired_is_refused",
    "test_a_tag_of_the_publication_that_is_taken_is_a_conflict",
    "test_an_append_that_was_compacted_since_is_a_conflict",
    "test_history_that_expired_in_between_is_refused_only_when_the_partition_changed",
    "test_manifests_without_live_files_are_dropped",
    "test_swaps_are_values_that_add_up",
    "test_the_tagged_states_survive_expiry",
    "test_unchanged_files_are_left_alone",
    "test_weak_isolation_of_the_users_table_lets_no_append_slip_in",
}
BESIDE_REST = ("postgres", "refusing", "s3", "polaris_files")
#: The catalogs whose credentials end at each table.
VENDED = ("lakekeeper", "polaris")
TAKEN_UP = "test_what_was_registered_and_not_compared_is_taken_up_also_when_the_target_moved_on"
#: Control tables of an older release, and long races: on PostgreSQL, where statements of our own
#: decide.
AS_ON_POSTGRES = {
    "test_moves_of_many_processes_are_neither_lost_nor_doubled",
    "test_neither_an_event_nor_a_renewal_at_the_same_time_is_lost",
    "test_tables_of_an_older_release_are_read_as_they_are",
    "test_the_first_writer_adds_the_missing_columns_to_all_tables",
    "test_events_of_an_older_release_are_no_fault_and_are_covered_from_the_next_event_on",
    "test_a_closed_run_of_an_older_release_goes_on_with_its_chain",
    "test_many_processes_may_add_the_columns_at_once",
}
#: Of "rest" on the two that are the same server behind a proxy.
AS_ON_VENDED = {
    "test_a_row_that_was_ready_before_the_fence_is_refused",
    "test_the_pointer_and_other_runs_go_on_over_a_fence",
    "test_a_fence_in_place_costs_no_commit",
}
#: Of shadows that are tables of their own, or of files beside the table that doctor tries out: not
#: where credentials end at each table (what is refused there: `tests/stack/test_vended.py`).
BESIDE_THE_TABLE = {
    "test_a_shadow_shows_the_base_and_leaves_the_target_alone",
    "test_column_ids_of_a_shadow_are_the_targets_even_after_drop_and_add",
    "test_places_of_the_target_are_not_inherited_and_given_ones_are_kept",
    "test_the_chunk_ledger_is_the_shadows_snapshot_log",
    "test_a_retired_shadow_is_gone_and_its_files_stay",
    "test_where_a_catalog_keeps_something_else_the_shadow_is_built",
    "test_what_was_registered_and_not_compared_is_compared_by_the_next",
    TAKEN_UP,
    "test_a_crash_before_the_registration_leaves_only_a_stray_metadata_file",
    "test_what_doctor_tries_out_leaves_nothing_behind",
    "test_an_open_shadow_is_given_back_and_another_runs_is_refused",
}
SET_BACK = "test_a_publication_that_main_was_set_back_from_has_not_landed_after_expiry_either"
#: What a kind of catalog does in its own way, and why the rule cannot hold there.
NOT_ON = {
    # Iceberg's Java code cuts the snapshot log where a snapshot expired: that main was set back in
    # between cannot be seen any more. PyIceberg's own metadata keeps it.
    ("rest", SET_BACK),
    ("refusing", SET_BACK),
    ("seaweed", SET_BACK),
    ("polaris_files", SET_BACK),
    # It measures time, which the busy server spends.
    ("polaris_files", "test_a_writer_that_always_wins_ends_in_too_busy"),
    # These lie in wait for a call of register_table, which is not made or not kept there.
    ("refusing", "test_format_v3_is_refused"),
    # It takes no other place for files of a table.
    ("refusing", "test_places_of_the_target_are_not_inherited_and_given_ones_are_kept"),
    ("seaweed", "test_format_v3_is_refused"),
    ("refusing", "test_what_was_registered_and_not_compared_is_compared_by_the_next"),
    ("refusing", TAKEN_UP),
    # What it kept of a clone is an empty table: the next one says so, and takes up nothing.
    ("seaweed", TAKEN_UP),
    *((kind, name) for kind in ("postgres", "refusing", "seaweed") for name in CONFLICTS),
    *((kind, name) for kind in BESIDE_REST for name in AS_ON_REST),
    *(("s3", name) for name in AS_ON_SQLITE),
    *(("rest", name) for name in AS_ON_VENDED),
    *((kind, name) for kind in VENDED for name in BESIDE_THE_TABLE),
    *((kind, name) for kind in ("rest", *VENDED) for name in AS_ON_POSTGRES),
    ("refusing", "test_whoever_made_the_shadow_and_was_overtaken_does_not_drop_it"),
    # It deletes the files of a table that is dropped.
    ("seaweed", "test_a_table_that_was_made_again_is_refused"),
    ("seaweed", "test_a_retired_shadow_is_gone_and_its_files_stay"),
    # It numbers nested columns in an order of its own.
    ("seaweed", "test_create_makes_the_table_of_the_contract_once"),
    # It decides itself where tables lie.
    ("seaweed", "test_a_shadow_inside_its_target_is_refused"),
    ("seaweed", "test_what_doctor_tries_out_leaves_nothing_behind"),
}
#: Of the partitionings of this test: one of each kind of file layout.
SHAPES = "test_only_rows_of_the_partition_are_replaced"
KEPT_SHAPES = ("identity-date", "bucket", "null-string")
_LEFT_OUT = frozenset(name for names in ELSEWHERE.values() for name in names)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    suite = metafunc.module.__name__.rpartition("test_on_servers_")[2]
    kinds = [kind for kind, suites in SUITES.items() if suite in suites]
    metafunc.parametrize("kind", kinds, indirect=True)


@pytest.fixture(autouse=True)
def kind(request: pytest.FixtureRequest, named, catalogs: Catalogs) -> Iterator[str]:
    """Let the test's folder mean a catalog of this kind; no request leaves its key's place."""
    named(request.param)
    if request.param in ("polaris", "polaris_files"):
        catalogs.proxy.faults += catalog_rules.unknown_swaps()
        catalogs.proxy.faults += catalog_rules.unknown_control_commits()
    yield request.param
    if request.param in VENDED:
        assert catalogs.door.refused() == []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    out = [item for item in items if "test_on_servers_" in str(item.path) and _is_out(item)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def _is_out(item: pytest.Item) -> bool:
    parameters, name = item.callspec.params, item.originalname
    is_old_format = parameters.get("version") == 1 or parameters.get("days") == 1
    is_spare_shape = name == SHAPES and _shape(item) not in KEPT_SHAPES
    return (
        parameters.get("control") == "fake"
        or is_old_format
        or is_spare_shape
        or name in _LEFT_OUT
        or (name in ON_ONE | FROM_ROWS and parameters.get("kind") != THE_ONE)
        or _is_by_the_other_way(item)
        or (parameters.get("kind"), name) in NOT_ON
    )


def _is_by_the_other_way(item: pytest.Item) -> bool:
    """Of these suites, each rule goes by one of two ways to one server.

    By both ways go what is made there, a shadow on a branch, and what is lost there: fences, races.
    """
    kind, suite = item.callspec.params.get("kind"), item.path.stem
    if kind not in VENDED or not suite.endswith(("_ports", "_on_branches", "_together")):
        return False
    return zlib.crc32(item.originalname.encode()) % 2 != VENDED.index(kind)


def _shape(item: pytest.Item) -> str:
    """Name the partitioning, which stands between catalog and version of the format."""
    return str(item.callspec.id).partition("-")[2].rpartition("-")[0]
