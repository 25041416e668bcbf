"""What a rollback would change, from the files of the snapshots; nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lakehouse_backfill.core.guards.outside.effect_log import messages_not_sent_again
from lakehouse_backfill.core.publication import rollback
from lakehouse_backfill.core.publication.expose import is_rollback_of_events
from lakehouse_backfill.core.publication.rollback_content import plan_rewrites, restate_on_top
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.core.versions.pointer import RollbackTarget
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import Scope, describe_labels
from lakehouse_backfill.domain.tables.commits import RevertRequest
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.errors import NotFound, TargetChanged, Unsupported


@dataclass(frozen=True)
class RollbackPreview:
    """A rollback that would be allowed: `unchanged` partitions hold what they would get already.

    `columns_stay` are changes of columns that it does not undo, `messages_lost` those of runs that
    readers get again, which their sinks lack.
    """

    target: RollbackTarget
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    columns_stay: tuple[str, ...]
    messages_lost: tuple[str, ...]


def preview_rollback(
    context: Context, contract: Contract, way: RollbackTarget, by: str
) -> RollbackPreview:
    """Check a rollback as `rollback` does, and compare the files before and after it.

    Raises NotAllowed, ApprovalMissing, Unsupported, TargetChanged (deleted rows would come back, or
    live commits changed the partitions since), NotFound (files that come back are missing).
    """
    rollback.require_rollback_role(context, contract, by)
    pointer.require_whole_grains_back(contract, way)
    rollback.require_kept_history(context, contract.product, way)
    rollback.require_rollback_allowed(context, contract, way)
    way = plan_rewrites(context, contract, way)
    _refuse_live_changes(context, contract, way)
    same = set(_unchanged_partitions(context, contract, way))
    labels = way.scope.partitions
    return RollbackPreview(
        target=way,
        changed=tuple(label for label in labels if label not in same),
        unchanged=tuple(label for label in labels if label in same),
        columns_stay=rollback.remaining_column_changes(context, way),
        messages_lost=messages_not_sent_again(context, way.runs_reinstated),
    )


def _refuse_live_changes(context: Context, contract: Contract, way: RollbackTarget) -> None:
    """Raise TargetChanged where the commit of the rollback would be refused for live commits.

    NotFound for missing files. One that was interrupted may have landed already, and is a change
    itself. Partitions that are rewritten have no files yet.
    """
    is_by_files = contract.publication != "pinned" and not is_rollback_of_events(
        way, contract.table
    )
    if not is_by_files or context.versions.pointer(contract.product).pending is not None:
        return
    rewritten = _rewritten(way)
    for restore in way.restores:
        scope = Scope(field=way.scope.field, partitions=restore.partitions)
        drifts = context.publisher.drifts(contract.table, scope, restore.since_snapshot_id)
        if drifts:
            raise TargetChanged(
                f"{contract.table} cannot be rolled back: {drifts[-1]} changed "
                f"{describe_labels(drifts[-1].partitions)}",
                state="nothing was changed",
                fix=restate_on_top(contract),
            )
        labels = tuple(one for one in restore.partitions if one not in rewritten)
        if labels:
            kept = restore.model_copy(update={"partitions": labels})
            request = RevertRequest(
                target=contract.table, scope=scope, restores=(kept,), token="", tags={},
                properties={},
            )  # fmt: skip
            context.publisher.preview(request)


def _rewritten(way: RollbackTarget) -> frozenset[str]:
    return frozenset(label for rewrite in way.rewrites for label in rewrite.partitions)


def _unchanged_partitions(
    context: Context, contract: Contract, way: RollbackTarget
) -> Iterator[str]:
    """Yield the partitions whose files are the same before and after; none where that is unknown.

    Rows of a partition that is rewritten always count as changed.
    """
    rewritten = _rewritten(way)
    for labels, before, after in _sides(context, contract, way):
        scope = Scope(field=way.scope.field, partitions=labels)
        try:
            old, new = (_files(context, side, scope) for side in (before, after))
        except (NotFound, Unsupported):
            continue
        touched = _labels(old ^ new)
        yield from (label for label in labels if label not in touched | rewritten)


_Side = tuple[str, "int | None"]


def _sides(
    context: Context, contract: Contract, way: RollbackTarget
) -> Iterator[tuple[tuple[str, ...], _Side, _Side]]:
    """Yield partitions with the table state that readers get now, and the one that they would."""
    if contract.publication == "pinned":
        now, then = way.undone[0], way.publication
        yield way.scope.partitions, (now.table, now.snapshot_id), (then.table, then.snapshot_id)
    elif not is_rollback_of_events(way, contract.table):
        table = contract.table
        info = context.tables.describe(table)
        head = info.snapshot_id if info else None
        for restore in way.restores:
            yield restore.partitions, (table, head), (table, restore.restore_snapshot_id)


_FileKey = tuple[str, tuple[str, ...], tuple[str, ...]]


def _files(context: Context, side: _Side, scope: Scope) -> set[_FileKey]:
    """Return the live files of the scope: path, delete files, partitions."""
    table, snapshot_id = side
    if snapshot_id is None:
        return set()
    return {
        (file.path, tuple(sorted(file.deletes)), _partitions_of(file))
        for file in context.stored_files.files(table, snapshot_id, scope)
    }


def _partitions_of(file: LiveFile) -> tuple[str, ...]:
    return file.spans or ((file.partition,) if file.partition is not None else ())


def _labels(files: Iterable[_FileKey]) -> set[str]:
    return {label for _, _, labels in files for label in labels}
