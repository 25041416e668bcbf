"""The rules of `tests/contract/test_control_fences.py`, on the catalogs of this folder."""

from tests.contract.test_control_fences import *  # noqa: F403 (the same tests, not a copy of them)
