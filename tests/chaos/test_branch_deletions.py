"""The rules of `test_deletions.py` where the run writes to a branch of its target (X12)."""

from __future__ import annotations

import pytest

from tests.chaos.test_branch_kills import BranchLab
from tests.chaos.test_deletions import (
    accepted,
    test_a_row_that_was_deleted_live_is_not_brought_back_by_publish,
    test_a_row_that_was_deleted_live_is_not_brought_back_by_rollback,
)

__all__ = [
    "accepted",
    "test_a_row_that_was_deleted_live_is_not_brought_back_by_publish",
    "test_a_row_that_was_deleted_live_is_not_brought_back_by_rollback",
]
pytestmark = pytest.mark.req("X12")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> BranchLab:
    lab = BranchLab(tmp_path_factory.mktemp("deletions"))
    lab.make()
    lab.save("new")
    return lab


@pytest.fixture
def policy() -> str:
    """Rows that were deleted live are left out: what was accepted is carried to a new branch."""
    return "reapply"
