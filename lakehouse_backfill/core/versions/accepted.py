"""Resolves the table and snapshot that readers of a product get, and whether they still hold."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.errors import NotFound, TargetChanged


@dataclass(frozen=True)
class AcceptedSnapshot:
    """The table and snapshot to read; `drifted` partitions differ from the accepted rows."""

    table: str
    snapshot_id: int
    version: int | None
    drifted: tuple[str, ...]


def resolve_accepted_together(
    context: Context, contracts: tuple[Contract, ...], *, strict: bool
) -> dict[str, AcceptedSnapshot]:
    """Resolve several products by pointers that are read at one moment.

    Pointers that moved by one commit are seen together. For followed products readers get the table
    itself, each as it is when it is inspected.
    """
    pointers = context.versions.pointers(tuple(contract.product for contract in contracts))
    return {
        contract.product: _accepted_by_pointer(contract, pointers[contract.product].accepted)
        if contract.publication == "pinned"
        else resolve_accepted(context, contract, strict=strict)
        for contract in contracts
    }


def resolve_accepted(context: Context, contract: Contract, *, strict: bool) -> AcceptedSnapshot:
    """Resolve what readers of the product get.

    pinned: the snapshot in the pointer. follow: the head of the table, with a check by metadata
    that the partitions of the accepted publication still hold the accepted rows; with `strict` a
    difference raises TargetChanged. A publication or rollback in progress is no difference: readers
    get its rows from the moment at which they are in the table. Raises NotFound.
    """
    while True:
        pointer = context.versions.pointer(contract.product)
        if contract.publication == "pinned":
            return _accepted_by_pointer(contract, pointer.accepted)
        snapshot = _accepted_on_table(context, contract, pointer)
        # If the pointer moved meanwhile, its publication may be the change that was found.
        if not snapshot.drifted or context.versions.pointer(contract.product) == pointer:
            break
    if strict and snapshot.drifted:
        base = (
            "its first publication" if snapshot.version is None else f"version {snapshot.version}"
        )
        raise TargetChanged(
            f"{contract.product}: {partitions.describe_labels(snapshot.drifted)} changed since "
            f"{base} "
            f"{'landed' if snapshot.version is None else 'was accepted'}",
            state="the table holds later live writes; nothing was changed now",
            fix="read with strict=False, or plan a new restatement",
        )
    return snapshot


def _accepted_by_pointer(contract: Contract, row: Publication | None) -> AcceptedSnapshot:
    if row is None or row.snapshot_id is None:
        raise NotFound(f"{contract.product} has no accepted version yet")
    return AcceptedSnapshot(row.table, row.snapshot_id, row.version, ())


def _accepted_on_table(context: Context, contract: Contract, pointer: Pointer) -> AcceptedSnapshot:
    row = pointer.accepted
    info = context.tables.describe(contract.table)
    if info is None or info.snapshot_id is None:
        raise NotFound(f"{contract.table} holds nothing yet")
    if row is None or row.snapshot_id is None or row.scope is None:
        # The first publication may have crashed after its swap landed in the table.
        first = pointer.pending if row is None else None
        changed = (
            _without_pending_changes(context, contract, first, info.snapshot_id, ())
            if first
            else ()
        )
        return AcceptedSnapshot(contract.table, info.snapshot_id, None, changed)
    if row.table != contract.table:
        # Correction events: the accepted rows are in another table, so this one cannot drift.
        return AcceptedSnapshot(contract.table, info.snapshot_id, row.version, ())
    drifted = _drifted_partitions(context, row, info.snapshot_id, row.scope)
    if drifted and pointer.pending is not None:
        drifted = _without_pending_changes(
            context, contract, pointer.pending, info.snapshot_id, drifted
        )
    return AcceptedSnapshot(contract.table, info.snapshot_id, row.version, drifted)


def _without_pending_changes(
    context: Context, contract: Contract, pending: Publication, now: int, drifted: tuple[str, ...]
) -> tuple[str, ...]:
    """Remove the partitions that differ only by a pending publication or rollback.

    Its swap may land before its pointer moves.
    """
    swap = context.publisher.find(contract.table, pending.token, finalise=False)
    if swap is None or pending.scope is None:
        return drifted
    landed = pending.model_copy(update={"snapshot_id": swap.snapshot_id, "table": swap.table})
    others = tuple(label for label in drifted if label not in pending.scope.partitions)
    return others + _drifted_partitions(context, landed, now, pending.scope)


def _drifted_partitions(
    context: Context, row: Publication, now: int, scope: Scope
) -> tuple[str, ...]:
    """List the partitions whose rows are no longer the accepted ones.

    Other files alone are no drift: compaction writes the same rows to other files. Only manifests
    that may hold the scope are read, whatever else the table holds.
    """
    accepted_id, labels = row.snapshot_id, scope.partitions
    if (
        accepted_id is None
        or accepted_id == now
        or not _has_changed(context, row.table, accepted_id, scope, labels)
    ):
        return ()
    touched = set(labels)
    with suppress(TargetChanged):  # no commit can be named: check each partition
        drifts = context.publisher.drifts(row.table, scope, accepted_id)
        touched = {label for drift in drifts for label in drift.partitions}
    return tuple(
        label
        for label in labels
        if label in touched and _has_changed(context, row.table, accepted_id, scope, (label,))
    )


def _has_changed(
    context: Context, table: str, since: int, scope: Scope, labels: tuple[str, ...]
) -> bool:
    part = Scope(field=scope.field, partitions=labels)
    return context.publisher.changes(table, part, since) is not None
