"""What every engine of the ports Staging, Measuring and Inspecting does.

`tests/contract/test_compute_rules.py` runs these rules on the stand-in that tests of the core use,
`tests/lake/test_compute_rules.py` on Spark. Each gives a fixture `world`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import pytest

from lakehouse_backfill.domain.catch_up import RestoreChunk
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import RunMoved


@dataclass
class ComputeWorld:
    """An engine, and a plan of two chunks with one partition each; its shadow exists."""

    staging: Any
    measuring: Any
    inspecting: Any
    plan: Plan
    #: A partition of target and shadow that the run does not change.
    other: str
    #: The snapshot of a table, its head.
    head: Callable[[str], int | None]
    fence: Callable[[int], None]
    #: The plan with a transform that rejects one row of each chunk.
    rejecting: Callable[[], Plan]

    def scope(self, *labels: str) -> Scope:
        return Scope(field=self.plan.resolved.scope.field, partitions=labels)

    def sums(self, *labels: str) -> dict[str, Any]:
        shadow = self.plan.shadow_table
        found: dict[str, Any] = self.measuring.checksums(
            shadow, self.head(shadow), self.scope(*labels)
        )
        return found

    def stage(self, number: int = 0, epoch: int = 1) -> Any:
        return self.staging.stage(self.plan, self.plan.resolved.chunks[number], epoch)


def test_a_staged_chunk_is_one_commit_and_its_ledger_row_counts_it(world: ComputeWorld) -> None:
    chunk, before = world.plan.resolved.chunks[0], world.head(world.plan.shadow_table)
    record = world.stage()
    assert record.snapshot_id == world.head(world.plan.shadow_table) != before
    assert (record.run_id, record.chunk_id) == (world.plan.run_id, chunk.chunk_id)
    assert (record.partitions, record.status, record.epoch) == (chunk.partitions, "done", 1)
    total = reduce(add, world.sums(*chunk.partitions).values())
    assert (record.output_rows, record.checksum) == (total.rows, total.text)


def test_a_staged_chunk_changes_no_other_partition(world: ComputeWorld) -> None:
    first, second = (chunk.partitions[0] for chunk in world.plan.resolved.chunks)
    before = world.sums(first, second, world.other)
    world.stage(1)
    after = world.sums(first, second, world.other)
    assert [after[label] == before[label] for label in (first, second, world.other)] == [
        True, False, True,
    ]  # fmt: skip


@pytest.mark.req("T2", "X2")
def test_a_chunk_that_is_staged_or_measured_again_has_the_same_sums(world: ComputeWorld) -> None:
    chunk = world.plan.resolved.chunks[0]
    first, second = world.stage(), world.stage()
    again = world.staging.remeasure(world.plan, chunk, second.snapshot_id, 1)
    found = {(one.chunk_id, one.output_rows, one.checksum) for one in (first, second, again)}
    assert len(found) == 1


def test_a_driver_of_an_earlier_epoch_stages_nothing(world: ComputeWorld) -> None:
    world.fence(5)
    before = world.head(world.plan.shadow_table)
    with pytest.raises(RunMoved):
        world.stage(epoch=4)
    assert world.head(world.plan.shadow_table) == before


def test_sums_of_files_and_of_both_sides_add_up(world: ComputeWorld) -> None:
    world.stage()
    labels = tuple(chunk.partitions[0] for chunk in world.plan.resolved.chunks)
    table, shadow = world.plan.resolved.target.table, world.plan.shadow_table
    sides = [(name, world.head(name)) for name in (table, shadow)]
    found = world.measuring.measure(*sides, world.scope(*labels), ())
    by_table = [world.measuring.checksums(*side, world.scope(*labels)) for side in sides]
    assert [found.old, found.new] == by_table
    for files, sums in ((found.old_files, by_table[0]), (found.new_files, by_table[1])):
        added: dict[str, Any] = {}
        for (label, _), one in files.items():
            added[label] = added[label] + one if label in added else one
        assert added == sums
    known = world.measuring.measure(*sides, world.scope(*labels), (), old_is_known=True)
    assert (known.old, known.new) == ({}, by_table[1])


def test_a_partition_without_rows_has_no_sum(world: ComputeWorld) -> None:
    assert set(world.sums(world.other, "2031-12-31")) == {world.other}


def test_the_facts_of_a_chunk_are_those_of_its_partitions(world: ComputeWorld) -> None:
    chunk, record = world.plan.resolved.chunks[0], world.stage()
    facts = world.inspecting.chunk(world.plan, chunk, record.snapshot_id)
    sums = world.sums(*chunk.partitions)
    assert facts.rows == {label: one.rows for label, one in sums.items()}
    assert (not any(facts.null_keys.values()), facts.duplicate_keys) == (True, 0)


@pytest.mark.req("T13", "X5")
def test_rejected_rows_of_a_chunk_are_counted_by_reason_and_come_again_when_asked_again(
    world: ComputeWorld,
) -> None:
    plan = world.rejecting()
    for chunk in plan.resolved.chunks:
        record = world.staging.stage(plan, chunk, 1)
        found = world.staging.rejects(plan, chunk)
        assert found is not None
        assert (found.rows, sum(found.reasons.values())) == (1, 1)
        (row,) = found.records
        assert {row.reason} == found.reasons.keys()
        assert row.key.keys() == set(plan.resolved.contract.key)
        assert row.key.items() <= row.record.items()
        # Read again, as after a crash: the same rows, and the chunk's rows are as they were.
        again = world.staging.rejects(plan, chunk)
        assert again == found
        repeated = world.staging.remeasure(plan, chunk, record.snapshot_id, 1)
        assert repeated.output_rows == record.output_rows


@pytest.mark.req("T13", "X5")
def test_a_transform_that_declares_no_rejects_has_none(world: ComputeWorld) -> None:
    world.stage()
    assert world.staging.rejects(world.plan, world.plan.resolved.chunks[0]) is None


def test_edges_have_one_result_for_each_partition_in_order(world: ComputeWorld) -> None:
    around = {"before": ("2024-01-04",), "after": ("2024-01-07", "2024-01-08")}
    found = world.staging.edges(world.plan, around)
    assert [(each.side, each.partition) for each in found] == [
        ("before", "2024-01-04"), ("after", "2024-01-07"), ("after", "2024-01-08"),
    ]  # fmt: skip


def test_restored_partitions_have_their_earlier_rows_and_others_keep_theirs(
    world: ComputeWorld,
) -> None:
    first, second = (chunk.partitions[0] for chunk in world.plan.resolved.chunks)
    before = world.sums(first, second)
    world.stage(0)
    staged = world.stage(1)
    target = world.plan.resolved.target
    chunk = RestoreChunk(
        chunk_id="restore-1", table=target.table, snapshot_id=target.snapshot_id,
        shadow=world.plan.shadow_table, scope=world.scope(first),
        columns=tuple((each.name, each.name) for each in world.plan.resolved.contract.columns),
        properties={"lakehouse-backfill.rollback": "token"},
    )  # fmt: skip
    after = world.sums(first, second)
    restored = world.staging.restore(chunk)
    assert restored == world.head(world.plan.shadow_table) != staged.snapshot_id
    found = world.sums(first, second)
    assert (found[first].rows, found[second]) == (before[first].rows, after[second])
