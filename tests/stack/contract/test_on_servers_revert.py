"""The rules of `tests/contract/test_revert.py`, on the catalogs of this folder."""

from tests.contract.test_revert import *  # noqa: F403 (the same tests, not a copy of them)
