"""diff and reconcile: any two states of tables."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.errors import NotFound, Unsupported
from lakehouse_backfill.model.checks import Diff, PartitionBalance
from lakehouse_backfill.model.contract import Contract
from lakehouse_backfill.model.lineage import LINEAGE_NAMES
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.scope import Scope
from lakehouse_backfill.model.table import TableInfo, TableRef
from lakehouse_backfill.ports.compute import DiffRequest
from lakehouse_backfill.rules import gates, schema_change
from lakehouse_backfill.stages import fingerprinting
from lakehouse_backfill.stages.workbench import Workbench


@dataclass(frozen=True)
class Sides:
    """Two table states to compare, with the contract of the product if there is one."""

    old: TableRef
    new: TableRef
    contract: Contract | None = None


def diff_run(bench: Workbench, run_id: str, where: str | None, engine: str, samples: int) -> Diff:
    """Compare a run's candidate with what it replaces, in the run's partitions."""
    plan = bench.runs.plan(run_id)
    shadow = bench.tables.describe(plan.shadow_table)
    if shadow is None:
        raise NotFound(f"{run_id} has no staged candidate", fix=f"lakehouse-backfill run {run_id}")
    return run_differ(bench, candidate_request(plan, shadow, samples, where), engine)


def candidate_request(
    plan: Plan, shadow: TableInfo, samples: int, where: str | None = None
) -> DiffRequest:
    """Ask for a run's candidate against what it replaces, in the run's partitions."""
    return DiffRequest(
        old_table=plan.resolved.target.table,
        old_snapshot_id=plan.resolved.target.snapshot_id,
        new_table=shadow.table,
        new_snapshot_id=shadow.snapshot_id,
        key=plan.resolved.contract.key,
        scope=plan.resolved.scope,
        ignore=LINEAGE_NAMES,
        samples=samples,
        where=where,
        change=schema_change.of_plan(plan),
        distributions=plan.resolved.contract.watch.distributions != "off",
    )


def run_differ(bench: Workbench, request: DiffRequest, engine: str) -> Diff:
    """Diff with the engine asked for; `auto` chooses by the bytes that must be read.

    What the engine in this process cannot read, equality deletes for one, Spark does.
    """
    if engine == "auto":
        try:
            engine = choose_engine(bench.differ("local").weigh(request), limit_of(bench))
        except Unsupported:
            engine = "spark"
    return bench.differ(engine).diff(request)


def limit_of(bench: Workbench) -> int:
    """Tell up to how many bytes of changed files the engine in this process compares them."""
    return bench.profile.local_diff_limit_mib * 1024 * 1024


def choose_engine(bytes_to_read: int, limit_bytes: int) -> str:
    """Choose the diff engine by how much must be read."""
    return "local" if bytes_to_read <= limit_bytes else "spark"


def reconcile(bench: Workbench, sides: Sides) -> tuple[PartitionBalance, ...]:
    """Set count and checksum of each partition side by side.

    Sums over files: what is known of them is not read again, and Spark starts for the rest only.
    """
    old, new = bench.tables.resolve(sides.old), bench.tables.resolve(sides.new)
    info = bench.tables.describe(sides.new.table)
    scope = _all_partitions(bench, sides, info, (old.snapshot_id, new.snapshot_id))
    left = fingerprinting.checksums_of(bench, sides.old.table, old.snapshot_id, scope)
    right = fingerprinting.checksums_of(bench, sides.new.table, new.snapshot_id, scope)
    found = [*left.values(), *right.values()]
    return gates.balances(scope.partitions, left, right, found[0].shape if found else "")


def _all_partitions(
    bench: Workbench, sides: Sides, info: TableInfo | None, snapshots: tuple[int, int]
) -> Scope:
    if info is None or not info.partitioning:
        raise Unsupported(
            f"{sides.new.table} has no partitions to reconcile",
            fix="use diff, which compares whole tables",
        )
    field = bench.tables.scope_field(info, info.partitioning[0].column)
    labels = {
        file.partition
        for table, snapshot in zip((sides.old.table, sides.new.table), snapshots, strict=True)
        for file in bench.tables.files(table, snapshot, field)
    }
    ordered = sorted(label for label in labels if label is not None)
    return Scope(field=field, partitions=tuple(ordered))
