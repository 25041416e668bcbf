"""Tuples by ranges, by parts of times and truncations, and chunks along any partition field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.errors import TargetChanged
from tests.chaos.lab import DAYS as LAB_DAYS
from tests.chaos.lab import TARGET
from tests.contract.test_partition_tuples import (
    TupleLake,
    require_one_row_and_put_back,
    restated,
)
from tests.support.lakes.deletes import hide_rows
from tests.support.lakes.retention import WHO
from tests.support.lakes.tables import DAYS, Kit, field_of, row

REGION = field_of("region")


def by_number(lake: TupleLake, days: str, name: str = "a") -> Any:
    """Plan a run of two numbers, and of the days that the predicate names."""
    file = lake.lab.manifest(f"{name}.yaml", LAB_DAYS[1], LAB_DAYS[3])
    path = lake.lab.folder / file
    text = path.read_text(encoding="utf-8")
    old = f"partitions: {{column: d, from: {LAB_DAYS[1]}, to: {LAB_DAYS[3]}}}\n"
    assert old in text
    new = f"partitions: {{column: k, values: [1, 3]}}\n  row_predicate: {{d: {days}}}\n"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return lake.project.plan(file, by=WHO)


@pytest.mark.req("U1b", "U1", "U11", "U12")
@pytest.mark.parametrize("days", [
    f"{{from: {LAB_DAYS[1]}, to: {LAB_DAYS[3]}}}", f"[{LAB_DAYS[1]}, {LAB_DAYS[2]}]",
], ids=["range", "list"])  # fmt: skip
def test_chunks_are_cut_along_any_partition_field(tmp_path: Path, days: str) -> None:
    lake = TupleLake(tmp_path)
    # Rows of a file of the run's own tuple were deleted before, by a position delete file.
    lake.live((LAB_DAYS[1], 1, 5), (LAB_DAYS[1], 1, 6))
    hide_rows(lake.catalog.load_table(TARGET), "v", {5})
    before = lake.held()
    assert before[LAB_DAYS[1], 1] == [6, 100]
    plan = by_number(lake, days)
    run = str(plan.run_id)
    (note,) = [one for one in plan.notes if "only rows with" in one]
    assert "told apart by partition (d): 4 tuples of partition values with 6 rows" in note
    assert "are carried over" not in note
    lake.project.approve(run, WHO)
    found = lake.project.run(run, WHO).to_dict()
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    ledger = lake.project.wiring.context.runs.chunks(run)
    assert [one.partitions for one in ledger] == [("1",), ("3",)]
    assert [(one.output_rows, one.carried_rows) for one in ledger] == [(2, 0), (2, 0)]
    lake.project.accept(run, WHO)
    lake.live((LAB_DAYS[4], 1, 7), (LAB_DAYS[1], 2, 8))  # other tuples of its numbers and days
    lake.project.publish(run, WHO)
    live = {(LAB_DAYS[4], 1): [7, 100], (LAB_DAYS[1], 2): [8, 200]}
    assert lake.held() == restated(before, 1, 3) | live
    assert lake.faults(run) == []
    lake.project.rollback(TARGET, reason="wrong", by=WHO)
    assert lake.held() == before | live


@pytest.mark.req("U11")
def test_a_live_commit_to_a_day_of_the_range_is_a_conflict(tmp_path: Path) -> None:
    lake = TupleLake(tmp_path)
    run = str(by_number(lake, f"{{from: {LAB_DAYS[1]}, to: {LAB_DAYS[3]}}}").run_id)
    lake.project.approve(run, WHO)
    lake.project.run(run, WHO)
    lake.project.accept(run, WHO)
    lake.live((LAB_DAYS[2], 3, 7))
    with pytest.raises(TargetChanged, match="changed 3"):
        lake.project.publish(run, WHO)
    assert lake.held()[LAB_DAYS[2], 3] == [7, 300]


TEN = "2013-02-02T10"
#: Column and transform of the other field, its partitions in the scope, and the rows in them.
UNITS: dict[str, tuple[str, str, tuple[str, ...], set[int]]] = {
    "days": ("ts", "day", DAYS[:2], {0, 1, 2, 3}),
    "hours": ("ts", "hour", (TEN,), {1}),
    "months": ("ts", "month", ("2013-02",), {0, 1, 2, 3, 4}),
    "rows without a time": ("ts", "year", ("null",), {5}),
    "truncated text": ("v", "truncate[1]", ("b",), {2, 4}),
    "truncated numbers": ("id", "truncate[2]", ("0", "4"), {0, 1, 4, 5}),
}
HELD = [
    row(0, DAYS[0], "a"), row(1, DAYS[1], "a", hour=10), row(2, DAYS[1], "b"),
    row(3, DAYS[1], "c", hour=11), row(4, DAYS[2], "bc"), row(5, None, "a"),
]  # fmt: skip


@pytest.mark.req("U1b", "U11", "U12")
@pytest.mark.parametrize("case", UNITS.values(), ids=UNITS)
def test_tuples_by_units_and_truncations_are_swapped_and_put_back(
    tmp_path: Path, case: Any
) -> None:
    column, transform, labels, own = case
    kit = Kit(tmp_path)
    kit.create(("region", "identity"), (column, transform))
    kit.append(*HELD, row(6, DAYS[1], "b", region="US"))
    kind = {"ts": "timestamptz", "v": "string", "id": "long"}[column]
    by = ScopeField(column=column, transform=transform, type=kind)
    other = Scope(field=by, partitions=labels)
    field = REGION.model_copy(update={"only": (other,)})
    first = next(one for one in HELD if one["id"] in own)
    request = kit.stage(field, {"EU": [first | {"v": f"{first['v']} new"}]})
    beside = next((one for one in HELD if one["id"] not in own), row(0, DAYS[0], region="US"))
    kit.append(beside)
    before = kit.rows()
    swap = kit.publisher.adopt(request)
    assert [one[0] for one in kit.rows()] == sorted(
        [one["id"] for one in HELD if one["id"] not in own]
        + [first["id"], beside["id"], 6]
    )  # fmt: skip
    require_one_row_and_put_back(kit, request.scope, swap)
    assert kit.rows() == before
    again = kit.stage(request.scope.field, {"EU": [first]}, run="r2")
    kit.append(first)
    with pytest.raises(TargetChanged, match="changed EU"):
        kit.publisher.adopt(again)
