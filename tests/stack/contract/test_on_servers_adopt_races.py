"""The rules of `tests/contract/test_adopt_races.py`, on the catalogs of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.test_adopt_races import DAYS, DISJOINT, OVERLAPPING, race, workers
from tests.support.lakes.tables import Kit

__all__ = ["workers"]


@pytest.mark.req("U11", "T8")
def test_overlapping_scopes_have_one_winner_and_disjoint_ones_both_land(
    tmp_path: Path, workers, kind: str
):
    is_vended = kind in ("lakekeeper", "polaris")
    kit = Kit(tmp_path, isolation="branch" if is_vended else "clone")
    kit.create_days(DAYS)
    for days, outcomes in (OVERLAPPING, DISJOINT):
        # On PostgreSQL our own statements decide; a REST server takes one request or refuses it.
        race(kit, workers, days, outcomes, rounds=10 if kind == "postgres" else 2)
