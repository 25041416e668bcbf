"""The rules of `tests/contract/test_adopt_together.py`, on the catalogs of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.test_adopt_together import *  # noqa: F403 (the same tests, not a copy of them)
from tests.contract.test_adopt_together import pair  # noqa: F401 (a fixture)
from tests.support.lakes.tables import Kit


@pytest.fixture
def kit(tmp_path: Path, kind: str) -> Kit:
    """Where rights end at each table, the shadow is a branch."""
    return Kit(tmp_path, isolation="branch" if kind in ("lakekeeper", "polaris") else "clone")
