"""Every differing row, in process: as many of each kind as the diff counts."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from tests.contract.differ_cases import CASES, Case, Maker

#: A publication has no condition.
LOCAL = [
    pytest.param(case, id=case.name)
    for case in CASES
    if "local" in case.engines and "condition" not in case.name
]


@pytest.mark.req("U9")
@pytest.mark.parametrize("case", LOCAL)
def test_the_rows_are_those_that_the_diff_counts(
    catalog: SqlCatalog, make: Maker, case: Case
) -> None:
    built = case.build(make)
    assert built.request.where is None
    differ = LocalDiffer(catalog)
    rows, diff = list(differ.differing(built.request)), differ.diff(built.request)
    kinds = [(row.old is None, row.new is None) for row in rows]
    counted = diff.summary
    assert (kinds.count((True, False)), kinds.count((False, True))) == (
        counted.added, counted.removed,
    )  # fmt: skip
    assert kinds.count((False, False)) == counted.changed
