"""How values are spread, as the local engine counts it: the same however its batches are cut."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from tests.contract.differ_cases import CASES, Case, Maker

LOCAL_CASES = [pytest.param(case, id=case.name) for case in CASES if "local" in case.engines]


@pytest.mark.req("Q5")
@pytest.mark.parametrize("case", LOCAL_CASES)
def test_distributions_do_not_depend_on_batches(
    catalog: SqlCatalog, make: Maker, case: Case
) -> None:
    request = case.build(make).request
    one, whole = (LocalDiffer(catalog, rows).diff(request).columns for rows in (1, 1_000_000))
    assert [c.distribution for c in one] == [c.distribution for c in whole]
    for column in whole:
        found = column.distribution
        if found is not None and found.bars:
            assert found.value >= 0
            for side in ("old", "new"):
                assert math.isclose(sum(getattr(b, side) for b in found.bars), 1.0, abs_tol=1e-4)


@pytest.mark.req("Q5")
def test_a_diff_that_is_not_asked_for_distributions_has_none(
    catalog: SqlCatalog, make: Maker
) -> None:
    request = CASES.named("duplicate keys").build(make).request
    found = LocalDiffer(catalog).diff(replace(request, distributions=False)).columns
    assert [column.distribution for column in found] == [None] * len(found)
