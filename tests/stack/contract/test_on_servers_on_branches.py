"""The rules of `tests/contract/test_on_branches.py`, on the catalogs of this folder."""

from tests.contract.test_on_branches import *  # noqa: F403 (the same tests, not a copy of them)
from tests.contract.test_on_branches import days, kit  # noqa: F401 (fixtures)
