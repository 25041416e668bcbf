"""reconcile: count and checksum of the partitions of any two states of tables."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.core.comparison import fingerprinting
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.domain.checks import PartitionBalance
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.table import TableInfo, TableRef
from lakehouse_backfill.errors import Unsupported


@dataclass(frozen=True)
class TableSides:
    """Two table states to compare, with the contract of the product if there is one."""

    old: TableRef
    new: TableRef
    contract: Contract | None = None


def reconcile(bench: Context, sides: TableSides) -> tuple[PartitionBalance, ...]:
    """Set count and checksum of each partition side by side.

    Sums over files: what is known of them is not read again, and Spark starts for the rest only.
    """
    old, new = bench.tables.resolve(sides.old), bench.tables.resolve(sides.new)
    info = bench.tables.describe(sides.new.table)
    scope = _all_partitions(bench, sides, info, (old.snapshot_id, new.snapshot_id))
    left = fingerprinting.partition_checksums(bench, sides.old.table, old.snapshot_id, scope)
    right = fingerprinting.partition_checksums(bench, sides.new.table, new.snapshot_id, scope)
    found = [*left.values(), *right.values()]
    return gates.partition_balances(scope.partitions, left, right, found[0].shape if found else "")


def _all_partitions(
    bench: Context, sides: TableSides, info: TableInfo | None, snapshots: tuple[int, int]
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
