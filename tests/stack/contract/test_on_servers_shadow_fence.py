"""The rules of `tests/contract/test_shadow_fence.py`, on the catalogs of this folder."""

from tests.contract.test_shadow_fence import *  # noqa: F403 (the same tests, not a copy of them)
