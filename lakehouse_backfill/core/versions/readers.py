"""What readers get now of the partitions that a run published, compared with its rows.

Only metadata is read: the head of the table and, if others committed since, the manifests of these
partitions. A row in the control tables is what was accepted; it does not prove what readers get.

Resolves the table and snapshot that readers of a product get, and whether they still hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from lakehouse_backfill import errors
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import Drift
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.spans import are_apart
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import NotFound, TargetChanged


@dataclass
class ReaderView:
    """Partitions by what readers get: the rows of the publication, other rows, or not known.

    `heads` are the snapshots that were looked at, by table. `changed` and `unknown` give the reason
    of each partition.
    """

    heads: dict[str, int | None] = field(default_factory=dict)
    same: tuple[str, ...] = ()
    changed: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    def exceptions(self) -> str:
        """Describe the partitions that readers do not get, or may not get; empty without any."""
        texts = []
        for lead, reasons in (("not", self.changed), ("it is not known for", self.unknown)):
            for reason in dict.fromkeys(reasons.values()):
                labels = tuple(label for label, other in reasons.items() if other == reason)
                texts.append(f"{lead} {partitions.describe_labels(labels)}: {reason}")
        return "; ".join(texts)


def look_at_readers(context: Context, history: tuple[Publication, ...], run_id: str) -> ReaderView:
    """Compare the head of the table with the rows by which the run is visible, or is not any more.

    Of a published run these are its own rows; of partitions that were rolled back, the rows of the
    rollback. Partitions that another run has replaced since are left out. Commits of the product's
    own history are no difference, nor are compactions.
    """
    own = frozenset(row.snapshot_id for row in history)
    view = ReaderView()
    for row, labels in _rows_by_partition(history, run_id):
        _compare_row(context, row, labels, own, view, is_target=row.table == history[-1].table)
    return view


def why_not_restorable(
    context: Context, history: tuple[Publication, ...], run_id: str, *, is_pinned: bool = False
) -> str:
    """Return why what the run replaced cannot be restored; empty if its snapshots are held.

    `is_pinned`: readers get the snapshot of a pointer; earlier versions are tables of their own.
    Raises Unsupported where the table, or what it replaced in it, cannot be read.
    """
    for row in pointer.published_rows(history, run_id):
        held: Publication | None = row
        if is_pinned:
            accepted = pointer.accepted_rows(history)
            held = next((one for one in accepted if one.version == row.supersedes), None)
        if held is None:
            continue  # nothing was replaced
        snapshot_id = held.snapshot_id if is_pinned else held.before_snapshot_id
        if snapshot_id is None:
            continue
        fault = _metadata_fault(context, held.table, snapshot_id, row.scope)
        if fault:
            return fault
        tag = row.tags["before"]
        if not is_pinned and context.pins.pinned(row.table, tag) != snapshot_id:
            return f"tag {tag}, which keeps snapshot {snapshot_id} of {row.table}, is gone"
    return ""


def _rows_by_partition(
    history: tuple[Publication, ...], run_id: str
) -> Iterable[tuple[Publication, tuple[str, ...]]]:
    """Yield the rows that decide on the run's partitions now, newest first, each with its labels.

    A rollback is compared with what it restored by its own snapshot.
    """
    seen = pointer.run_visibility(history, run_id)
    made = next((row.scope for row in pointer.published_rows(history, run_id) if row.scope), None)
    rolled_back = seen.published - seen.visible - seen.replaced
    wanted = (("publish", seen.visible), ("rollback", rolled_back))
    for action, labels in wanted:
        left = set(labels)
        for row in history:
            is_own = row.run_id == run_id or action == "rollback"
            if row.action != action or not is_own or made is None:
                continue
            changed = pointer.changed_labels(row, made.field)
            mine = tuple(label for label in changed if label in left)
            left -= set(mine)
            if mine:
                yield row, mine


def _compare_row(
    context: Context,
    row: Publication,
    labels: tuple[str, ...],
    own: frozenset[int | None],
    view: ReaderView,
    *,
    is_target: bool,
) -> None:
    """Add to `view` what readers get of the partitions that `row` published or restored."""
    try:
        info = context.tables.describe(row.table)
    except (errors.EnvironmentDown, errors.Unsupported) as error:
        view.unknown |= dict.fromkeys(labels, error.problem)
        return
    except errors.NotFound as error:
        view.changed |= dict.fromkeys(labels, error.problem)
        return
    if info is None:
        view.changed |= dict.fromkeys(labels, f"{row.table} does not exist any more")
        return
    view.heads[row.table] = info.snapshot_id
    if row.scope is not None and row.snapshot_id is not None:
        scope = Scope(field=row.scope.field, partitions=labels)
        if is_target and info.snapshot_id != row.snapshot_id:
            _compare_partitions(context, row, scope, own, view)
        else:
            # Where columns or specs cannot name the partitions any more, the snapshot is the same.
            with suppress(errors.Unsupported):
                if fault := _metadata_fault(context, row.table, row.snapshot_id, scope):
                    view.changed |= dict.fromkeys(labels, fault)
    differing = {**view.changed, **view.unknown}
    view.same += tuple(label for label in labels if label not in differing)


def _metadata_fault(context: Context, table: str, snapshot_id: int, scope: Scope | None) -> str:
    """Return why a snapshot's partitions cannot be read, as far as its metadata says; else empty.

    Its manifest list and the manifests that may list files of the partitions are opened. In a table
    of its own (a kept version, correction events) later commits take nothing from the snapshot.
    Raises Unsupported where the table's columns and specs cannot tell the partitions apart.
    """
    try:
        context.tables.resolve(TableRef(table=table, at=str(snapshot_id)))
        if scope is not None:
            context.stored_files.files(table, snapshot_id, scope)
    except (errors.NotFound, errors.EnvironmentDown) as error:
        return error.problem
    return ""


def _compare_partitions(
    context: Context, row: Publication, scope: Scope, own: frozenset[int | None], view: ReaderView
) -> None:
    """Add, by partition, what changed its rows, or why that cannot be known."""
    for label in _touched_labels(context, row, scope, own):
        part = Scope(field=scope.field, partitions=(label,))
        try:
            drifts = _foreign_drifts(context, row, part, own)
        except (errors.LostFile, errors.TargetChanged) as error:
            known = view.unknown if isinstance(error, errors.HistoryGone) else view.changed
            known[label] = error.problem
        except (errors.NotFound, errors.Unsupported) as error:
            view.unknown[label] = error.problem
        else:
            if drifts:
                view.changed[label] = f"{drifts[-1]} changed its rows since"


def _foreign_drifts(
    context: Context, row: Publication, scope: Scope, own: frozenset[int | None]
) -> list[Drift]:
    drifts = context.publisher.drifts(row.table, scope, row.snapshot_id)
    return [drift for drift in drifts if drift.snapshot_id not in own]


def _touched_labels(
    context: Context, row: Publication, scope: Scope, own: frozenset[int | None]
) -> tuple[str, ...]:
    """Return the partitions to look at one by one: all of them if no commit can be named."""
    with suppress(errors.TargetChanged, errors.NotFound, errors.Unsupported):
        drifts = _foreign_drifts(context, row, scope, own)
        touched = {label for drift in drifts for label in drift.partitions}
        return tuple(label for label in scope.partitions if label in touched)
    return scope.partitions


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
    pending = pointer.pending
    is_beside = pending and pending.scope and are_apart(pending.scope.field, row.scope.field)
    if drifted and pending is not None and not is_beside:
        drifted = _without_pending_changes(context, contract, pending, info.snapshot_id, drifted)
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


def accepted_versions(context: Context, product: str) -> list[Publication]:
    """List the accepted versions of a product, newest first; raises NotFound when there is none."""
    rows = list(pointer.accepted_rows(context.versions.history(product)))
    if not rows:
        raise NotFound(
            f"{product} has no accepted version yet",
            fix="lakehouse-backfill status   # shows what waits for publication",
        )
    return rows
