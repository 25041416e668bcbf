"""The gates that a row predicate or a merge adds to a result."""

from __future__ import annotations

from functools import reduce

from lakehouse_backfill.core.planning import merging, row_predicate
from lakehouse_backfill.core.runs.workbench import ComputePorts, Context
from lakehouse_backfill.domain.checks import CheckResult, PartitionBalance
from lakehouse_backfill.domain.composed import ChunkCounts
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.errors import NotFound


def publish_mode_checks(
    bench: Context,
    compute: ComputePorts,
    plan: Plan,
    shadow_snapshot_id: int | None,
    balances: tuple[PartitionBalance, ...],
) -> list[CheckResult]:
    """Prove that rows which the run does not name are as they were, and that changes add up."""
    found = []
    if plan.resolved.manifest.target.row_predicate:
        found.append(_check_other_rows(bench, compute, plan, shadow_snapshot_id))
    # Those that were taken over from an earlier shadow were counted there.
    merged = {label for chunk in _counted_chunks(bench, plan) for label in chunk.partitions}
    old = sum(balance.old_count for balance in balances if balance.partition in merged)
    new = sum(balance.new_count for balance in balances if balance.partition in merged)
    added_up = merging.check_changes_add_up(plan, sum_chunk_counts(bench, plan), old, new)
    return [*found, *([added_up] if added_up else [])]


def sum_chunk_counts(bench: Context, plan: Plan) -> ChunkCounts:
    """Add up what the chunks of the run carried over and merged."""
    records = _counted_chunks(bench, plan)
    return reduce(
        ChunkCounts.__add__, (ChunkCounts.of(record) for record in records), ChunkCounts()
    )


def _counted_chunks(bench: Context, plan: Plan) -> list[ChunkRecord]:
    records = bench.ledger.chunks(plan.run_id)
    return [record for record in records if ChunkCounts.of(record).known]


def _check_other_rows(
    bench: Context, compute: ComputePorts, plan: Plan, shadow_snapshot_id: int | None
) -> CheckResult:
    """Compare the rows beside the predicate, all columns of them, base against candidate."""
    target, scope = plan.resolved.target, plan.resolved.scope
    info = bench.tables.describe(plan.shadow_table)
    if info is None:
        raise NotFound(f"shadow {plan.shadow_table} is gone")
    types = {column.name: column.type for column in info.columns}
    beside = row_predicate.resolve_row_predicate(plan.resolved.manifest.target, types)
    checksums = compute.measuring.checksums
    old = checksums(target.table, target.snapshot_id, scope, (), beside)
    new = checksums(plan.shadow_table, shadow_snapshot_id, scope, (), beside)
    return row_predicate.check_other_rows_unchanged(scope, old, new)
