"""The rules of `tests/contract/test_adopt.py`, on the catalogs of this folder."""

from tests.contract.test_adopt import *  # noqa: F403 (the same tests, not a copy of them)
