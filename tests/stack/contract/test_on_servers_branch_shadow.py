"""The rules of `tests/contract/test_branch_shadow.py`, on the catalogs of this folder."""

from tests.contract.test_branch_shadow import *  # noqa: F403 (the same tests, not a copy of them)
from tests.contract.test_branch_shadow import kit  # noqa: F401 (a fixture)
