"""Publication, rollback and carry-over of the other suites, where the shadow is a branch (X12)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.test_adopt import (
    test_a_commit_on_another_branch_in_between_is_a_race_that_is_run_again,
    test_a_compacted_partition_is_no_conflict,
    test_a_first_publication_conflicts_with_rows_that_came_meanwhile,
    test_a_live_append_to_another_partition_survives,
    test_a_live_append_to_the_partition_is_a_conflict_that_names_it,
    test_a_live_commit_to_the_partition_between_check_and_commit_is_a_conflict,
    test_a_shadow_that_changed_other_partitions_is_refused,
    test_a_spec_that_changed_while_the_run_was_open_is_refused,
    test_adopting_twice_changes_nothing,
    test_an_empty_partition_removes_the_old_files,
    test_runs_of_other_partitions_both_land,
)
from tests.contract.test_append import test_rows_that_came_to_other_partitions_stay
from tests.contract.test_carrying import (
    test_a_carried_partition_is_the_accepted_one_and_the_rest_is_the_new_base,
    test_a_driver_that_is_overtaken_on_the_way_carries_nothing_over,
    test_a_revision_lands_what_the_first_run_could_not,
)
from tests.contract.test_revert import (
    test_each_group_goes_back_to_its_own_state,
    test_later_live_commits_elsewhere_survive,
    test_publish_roll_back_publish_again_is_legal,
    test_restored_files_keep_their_sequence_numbers,
)
from tests.support.lakes.tables import Kit

__all__ = [
    "test_a_carried_partition_is_the_accepted_one_and_the_rest_is_the_new_base",
    "test_a_commit_on_another_branch_in_between_is_a_race_that_is_run_again",
    "test_a_compacted_partition_is_no_conflict",
    "test_a_driver_that_is_overtaken_on_the_way_carries_nothing_over",
    "test_a_first_publication_conflicts_with_rows_that_came_meanwhile",
    "test_a_live_append_to_another_partition_survives",
    "test_a_live_append_to_the_partition_is_a_conflict_that_names_it",
    "test_a_live_commit_to_the_partition_between_check_and_commit_is_a_conflict",
    "test_a_revision_lands_what_the_first_run_could_not",
    "test_a_shadow_that_changed_other_partitions_is_refused",
    "test_a_spec_that_changed_while_the_run_was_open_is_refused",
    "test_adopting_twice_changes_nothing",
    "test_an_empty_partition_removes_the_old_files",
    "test_each_group_goes_back_to_its_own_state",
    "test_later_live_commits_elsewhere_survive",
    "test_publish_roll_back_publish_again_is_legal",
    "test_restored_files_keep_their_sequence_numbers",
    "test_rows_that_came_to_other_partitions_stay",
    "test_runs_of_other_partitions_both_land",
]
pytestmark = pytest.mark.req("X12")


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path, isolation="branch")


@pytest.fixture
def days(kit: Kit) -> Kit:
    """A table by day with three days of one row each, in one manifest."""
    kit.create_days()
    return kit
