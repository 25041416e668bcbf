"""Whether the diff adds up both sides decides who else reads them, and when."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.comparison.diff import DiffPreview
from lakehouse_backfill.domain.comparison.partition_sums import PartitionSums
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.ports.comparison import DiffRequest, SummedDiff
from lakehouse_backfill.ports.compute import MeasuredSides
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, declared, lake
from tests.support.fakes.steps import published_run, staged_run, state_of


@dataclasses.dataclass
class Adding(FakeCompute):
    """Its diff says that it adds up its sides, and does."""

    says: bool = True
    does: bool = True
    asked: list[str] = dataclasses.field(default_factory=list)

    def preview(self, request: DiffRequest) -> DiffPreview:
        says = self.says and request.read_sides is not None
        return super().preview(request).model_copy(update={"adds_up": says})

    def diff_and_sum(self, request: DiffRequest) -> SummedDiff:
        self.asked.append("diff")
        found, wanted = super().diff(request), request.read_sides
        if wanted is None or not self.does:
            return SummedDiff(found, None)
        old, new = PartitionSums(), PartitionSums()
        sides = (new, request.states[1]), (old, request.states[0])
        for sums, side in sides if wanted.old == "hashed" else sides[:1]:
            for (label, path), one in self.by_file(*side, request.scope).items():
                sums.add_group(label, path, one.rows, one, {})
        return SummedDiff(found, new, old)

    def measure(self, *sides: Any, **known: Any) -> MeasuredSides:
        self.asked.append("measure")
        return super().measure(*sides, **known)


@pytest.mark.req("P2", "Q5")
@pytest.mark.parametrize(
    ("says", "does", "wanted"),
    [
        (True, True, ["diff"]),
        (True, False, ["diff", "measure"]),
        (False, False, ["diff", "measure"]),
    ],
)
def test_the_candidate_is_measured_where_the_diff_does_not_add_it_up(
    says: bool, does: bool, wanted: list[str]
) -> None:
    where = lake()
    engine = Adding(where, says=says, does=does)
    found = context(where, engine)
    published_run(found)
    run = staged_run(found, declared("2020-01-02", "2020-01-03"))
    engine.asked.clear()
    validate(found, run, "bob")
    assert sorted(engine.asked) == wanted
    assert state_of(found, run) is RunState.VALIDATED
