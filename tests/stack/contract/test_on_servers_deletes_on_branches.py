"""The rules of `tests/contract/test_deletes_on_branches.py`, on the catalogs of this folder."""

from tests.contract.test_deletes_on_branches import *  # noqa: F403 (the same tests, not a copy)
from tests.contract.test_deletes_on_branches import kit  # noqa: F401 (a fixture)
