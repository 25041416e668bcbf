"""What a diff adds up of its new side is what measuring the side gives, whatever way it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakehouse_backfill.adapters.local.diff import tally
from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.adapters.local.measuring.measuring import LocalMeasurer
from lakehouse_backfill.core.validation.partition_totals import measured_sides
from lakehouse_backfill.domain.comparison.partition_sums import NO_ROWS, PartitionSums
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import (
    WHOLE_TABLE_FIELD,
    WHOLE_TABLE_LABEL,
    Scope,
)
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.comparison import DiffRequest, NewSide
from tests.contract.differ_cases import BY_DAY, Built, Case, Maker, append, day, days
from tests.contract.test_differ import LOCAL_CASES, parts_differ

pytestmark = pytest.mark.req("P2", "Q5")
WAYS: dict[str, Callable[[SqlCatalog], Any]] = {
    "in this process": LocalDiffer,
    "in buckets of keys": lambda catalog: LocalDiffer(catalog, 1, large_rows=1),
    "on workers": parts_differ,
}


#: Names of cases, by what became of their sums.
SEEN: dict[str, set[str]] = {"added up": set(), "left to others": set()}


def measured(catalog: SqlCatalog, request: DiffRequest, wanted: NewSide) -> Any:
    """Checksums by file, and totals, of the new side; None where Spark would have to measure."""
    assert request.scope
    of = request.new_table, request.new_snapshot_id
    try:
        return LocalMeasurer(catalog).measure(
            (request.old_table, None), of, request.scope, wanted.measures, wanted.ignore
        )
    except Unsupported:
        return None


#: Measures of columns that most cases have; others are counted as columns without values.
MEASURES = (Measure(name="ids", count="id"), Measure(name="v", sum="v"))


@pytest.mark.parametrize(
    ("case", "way"),
    # Each way takes a third of the cases.
    [
        pytest.param(*case.values, way, id=f"{case.id}, {way}")
        for case, way in zip(LOCAL_CASES, cycle(WAYS), strict=False)
    ],
)
def test_a_diff_adds_up_its_new_side(
    catalog: SqlCatalog, kept: Callable[[Case], Built], case: Case, way: str
) -> None:
    request = kept(case).request
    whole = Scope(field=WHOLE_TABLE_FIELD, partitions=(WHOLE_TABLE_LABEL,))
    request = replace(request, scope=request.scope or whole)
    for measures in (MEASURES, ()):
        wanted = NewSide(measures, request.ignore)
        found, asked = measured(catalog, request, wanted), replace(request, new_side=wanted)
        _, sums = WAYS[way](catalog).diff_and_sum(asked)
        # Whoever is told so before the diff measures the side beside it, not behind it.
        assert LocalDiffer(catalog).preview(asked).adds_up or sums is None
        if sums is None:
            SEEN["left to others"].add(case.name)
            continue
        SEEN["added up"].add(case.name)
        assert found is not None
        assert sums.checksums == found.new
        assert sums.file_checksums == found.new_files
        sides = measured_sides(
            measures, request.scope or whole, NO_ROWS, sums, has_old=False, has_new=True
        )
        assert sides.totals == found.totals
        return


def test_most_cases_are_added_up() -> None:
    assert len(SEEN["added up"]) > len(SEEN["left to others"] - SEEN["added up"])


@pytest.mark.parametrize("way", WAYS)
def test_counted_values_that_spark_refuses_are_not_all_held(
    catalog: SqlCatalog, make: Maker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    rows = [{"d": day(n // 20), "k": n, "s": f"value {n}"} for n in range(100)]
    table = make.table({"d": "date", "k": "long", "s": "string"}, BY_DAY)
    heads = [append(table, rows[first : first + 10]) for first in range(0, 100, 10)]
    request = make.request(table, None, heads[-1], ("k",), scope=days(*range(5)))
    monkeypatch.setattr(tally, "MAX_GROUPS", 25)
    held: list[int] = []
    add = PartitionSums.add_group

    def noted(sums: PartitionSums, label: str, file: str | None, *others: Any) -> None:
        add(sums, label, file, *others)
        held.append(sums.groups)

    monkeypatch.setattr(PartitionSums, "add_group", noted)
    wanted = NewSide((Measure(name="by", counts_by="s"),), ())
    assert WAYS[way](catalog).diff_and_sum(replace(request, new_side=wanted)).new_side is None
    assert max(held) <= 50
    # Plain measures are one sum of a partition each, however many there are.
    many = NewSide(tuple(Measure(name=f"m{n}", count="k") for n in range(30)), ())
    sums = WAYS[way](catalog).diff_and_sum(replace(request, new_side=many)).new_side
    assert sums is not None
    assert sums.groups == 5 * 30
