"""What a transform is told of the partitions that it computes."""

from __future__ import annotations

from datetime import date

import pytest

from lakehouse_backfill.adapters.spark.staging.transform import _context
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from tests.support.examples.plans import a_plan


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    ("transform", "kind", "labels", "bounds"),
    [
        ("identity", "date", ("2024-01-01", "2024-01-02"), (date(2024, 1, 1), date(2024, 1, 3))),
        ("truncate[10]", "int", ("10", "50"), (None, None)),
        ("bucket[4]", "int", ("0", "3"), (None, None)),
    ],
)
def test_only_partitions_with_an_order_have_bounds(transform, kind, labels, bounds) -> None:
    field = ScopeField(column="c", transform=transform, type=kind)
    found = _context(a_plan(), Scope(field=field, partitions=labels))
    assert (found.publish_from, found.publish_to) == bounds
