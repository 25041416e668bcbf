"""accepted: which table and snapshot readers of a product get, and whether it still holds."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.errors import NotFound, TargetChanged
from lakehouse_backfill.model.contract import Contract
from lakehouse_backfill.model.publication import Publication
from lakehouse_backfill.model.scope import Scope
from lakehouse_backfill.rules import partitions
from lakehouse_backfill.stages.workbench import Workbench


@dataclass(frozen=True)
class Accepted:
    """The table and snapshot to read; `drifted` partitions differ from what was accepted."""

    table: str
    snapshot_id: int
    version: int | None
    drifted: tuple[str, ...]


def resolve_accepted(bench: Workbench, contract: Contract, *, strict: bool) -> Accepted:
    """Resolve what readers of the product get.

    pinned: the snapshot in the pointer. follow: the head of the table, with a check by metadata
    that the partitions of the accepted publication still hold what was accepted; with `strict` a
    difference raises TargetChanged.
    """
    row = bench.versions.pointer(contract.product).accepted
    if contract.publication == "pinned":
        if row is None or row.snapshot_id is None:
            raise NotFound(f"{contract.product} has no accepted version yet")
        return Accepted(row.table, row.snapshot_id, row.version, ())
    info = bench.tables.describe(contract.table)
    if info is None or info.snapshot_id is None:
        raise NotFound(f"{contract.table} holds nothing yet")
    if row is None or row.snapshot_id is None or row.scope is None:
        return Accepted(contract.table, info.snapshot_id, None, ())
    drifted = _drifted(bench, row, info.snapshot_id, row.scope)
    if strict and drifted:
        raise TargetChanged(
            f"{contract.product}: {partitions.describe(drifted)} changed since version "
            f"{row.version} was accepted",
            state="the table holds later live writes; nothing was changed now",
            fix="read with strict=False, or plan a new restatement",
        )
    return Accepted(contract.table, info.snapshot_id, row.version, drifted)


def _drifted(bench: Workbench, row: Publication, now: int, scope: Scope) -> tuple[str, ...]:
    """Name the partitions whose rows are no longer those that were accepted.

    Other files alone are no drift: compaction makes other files of the same rows.
    """
    then = row.snapshot_id
    if then is None or then == now:
        return ()
    old: dict[str | None, set[str]] = {}
    new: dict[str | None, set[str]] = {}
    for found, snapshot in ((old, then), (new, now)):
        for file in bench.tables.files(row.table, snapshot, scope.field):
            found.setdefault(file.partition, set()).add(file.path)
    other = tuple(label for label in scope.partitions if old.get(label) != new.get(label))
    if not other or not _has_changed(bench, row.table, then, scope, other):
        return ()
    return tuple(label for label in other if _has_changed(bench, row.table, then, scope, (label,)))


def _has_changed(
    bench: Workbench, table: str, since: int, scope: Scope, labels: tuple[str, ...]
) -> bool:
    part = Scope(field=scope.field, partitions=labels)
    return bench.publisher.changes(table, part, since) is not None
