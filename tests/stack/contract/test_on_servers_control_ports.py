"""The rules of `tests/contract/test_control_ports.py`, on the catalogs of this folder."""

from tests.contract.test_control_ports import *  # noqa: F403 (the same tests, not a copy of them)
