"""The rules of `tests/contract/test_deletes.py`, where the shadow is a branch of its target (X12).

Delete files of the target are on the branch from its beginning, as it starts at the target's own
snapshot.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.test_deletes import (
    test_a_rewrite_notices_what_a_live_writer_did_since_the_publication,
    test_delete_files_of_the_partition_go_with_its_files_and_others_stay,
    test_deletes_of_the_run_itself_are_refused,
    test_equality_deletes_of_the_partition_go_with_its_files,
    test_partitions_with_deleted_rows_are_rewritten_and_rows_stay_deleted,
    test_rows_deleted_merge_on_read_elsewhere_are_none,
    test_rows_deleted_merge_on_read_since_the_base_are_a_conflict,
)
from tests.support.lakes.tables import Kit

__all__ = [
    "test_a_rewrite_notices_what_a_live_writer_did_since_the_publication",
    "test_delete_files_of_the_partition_go_with_its_files_and_others_stay",
    "test_deletes_of_the_run_itself_are_refused",
    "test_equality_deletes_of_the_partition_go_with_its_files",
    "test_partitions_with_deleted_rows_are_rewritten_and_rows_stay_deleted",
    "test_rows_deleted_merge_on_read_elsewhere_are_none",
    "test_rows_deleted_merge_on_read_since_the_base_are_a_conflict",
]
pytestmark = pytest.mark.req("X12")


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """Three days with two rows each; ids 0 to 5."""
    kit = Kit(tmp_path, isolation="branch")
    kit.create_days(each=2)
    return kit
