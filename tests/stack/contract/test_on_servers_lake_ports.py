"""The rules of `tests/contract/test_lake_ports.py`, on the catalogs of this folder."""

from tests.contract.test_lake_ports import *  # noqa: F403 (the same tests, not a copy of them)
