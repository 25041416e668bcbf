"""What a rollback brings back: rewrites, and rows that stay deleted.

What a way back must not bring back: rows that were deleted live since, or that tombstones name.

Live commits lie between the acts on a product: from each act to the next one, and from the newest
act to the head. Both ends of each stretch are kept by the tags of the acts.

The part of a rollback that rewrites: earlier rows into a shadow, to be adopted from there.

Needed where files cannot come back by metadata alone: delete files hid rows of them, or nothing
keeps them from expiring. Readers see nothing of it until the one commit of the rollback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.validation import deletions
from lakehouse_backfill.core.validation.deletions import current_tombstones
from lakehouse_backfill.core.versions.pointer import RollbackTarget
from lakehouse_backfill.domain.catch_up import (
    DeletedRows,
    Drift,
    Erasure,
    ExcludedRows,
    RestoreChunk,
    TableState,
    TombstonedRows,
)
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.publication import (
    PartitionRestore,
    Publication,
    RequiredRewrite,
    RewrittenShadow,
)
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.table import Column, TableInfo, TableRef
from lakehouse_backfill.errors import BackfillError, NotFound, TargetChanged, Unsupported

_EXCLUDED_REASON = "rows that were deleted since are left out"


@dataclass
class _DeletionFindings:
    """What was found of all parts of a way back."""

    restores: list[PartitionRestore] = field(default_factory=list)
    erasures: list[Erasure] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    deleted: list[DeletedRows] = field(default_factory=list)
    tombstoned: list[TombstonedRows] = field(default_factory=list)
    drifts: list[Drift] = field(default_factory=list)


def exclude_deleted_rows(
    context: Context, contract: Contract, way: RollbackTarget
) -> RollbackTarget:
    """Let the way back leave out what was deleted live; nothing is changed in the lake.

    Raises TargetChanged when rows would come back and the contract says `deletions: block`, or has
    no key by which they could be left out.
    """
    info = context.tables.describe(contract.table)
    if info is None or info.snapshot_id is None:
        return way
    names = tuple(column.name for column in info.columns if column.name not in LINEAGE_NAMES)
    look = _DeletionScan(context, contract, way, info.snapshot_id, contract.key or names)
    found = _DeletionFindings()
    for restore in way.restores:
        look.scan_restore(restore, found)
    _require_reapply_allowed(contract, found)
    if not found.rewritten and not found.erasures:
        return replace(way, restores=tuple(found.restores))
    left_out = ExcludedRows(
        field=way.scope.field, tombstones=look.tombstones, erasures=tuple(found.erasures)
    )
    labels = tuple(label for label in way.scope.partitions if label in found.rewritten)
    rewrites = (RequiredRewrite(partitions=labels, because=_EXCLUDED_REASON),) if labels else ()
    return replace(way, restores=tuple(found.restores), rewrites=rewrites, excluded_rows=left_out)


def require_no_tombstoned_rollback(
    context: Context, contract: Contract, way: RollbackTarget
) -> None:
    """Raise TargetChanged when a pinned product would go back to rows that tombstones name.

    Its pointer moves to a whole earlier table: nothing can be left out of that.
    """
    left_out = ExcludedRows(field=way.scope.field, tombstones=current_tombstones(context, contract))
    if left_out.is_empty:
        return
    seen = TableState(table=way.publication.table, snapshot_id=way.publication.snapshot_id)
    named = context.erasing.named(seen, way.scope.partitions, left_out)
    if named.rows:
        error = deletions.tombstones_blocked_error(
            contract, named.rows, named.partitions, "rolled back"
        )
        error.fix = "restate the partitions instead: staging leaves these rows out"
        raise error


def _require_reapply_allowed(contract: Contract, found: _DeletionFindings) -> None:
    if deletions.may_reapply_deletions(contract):
        return
    lost = [one for one in found.deleted if one.rows]
    if lost:
        together = DeletedRows(
            rows=sum(one.rows for one in lost),
            partitions=tuple(dict.fromkeys(label for one in lost for label in one.partitions)),
            samples=tuple(key for one in lost for key in one.samples)[: deletions.MAX_SAMPLE_KEYS],
            is_only_deletion=all(one.is_only_deletion for one in lost),
        )
        raise deletions.deletions_blocked_error(contract, together, found.drifts, "rolled back")
    rows = sum(one.rows for one in found.tombstoned)
    if rows:
        labels = tuple(label for one in found.tombstoned for label in one.partitions)
        raise deletions.tombstones_blocked_error(contract, rows, labels, "rolled back")


class _DeletionScan:
    """Looks at the parts of one way back, against the head as it is now."""

    def __init__(
        self,
        context: Context,
        contract: Contract,
        way: RollbackTarget,
        head: int,
        key: tuple[str, ...],
    ) -> None:
        self._context = context
        self._table = contract.table
        self._target = way
        self._head = head
        self._key = key
        self.tombstones = current_tombstones(context, contract)

    def scan_restore(self, restore: PartitionRestore, found: _DeletionFindings) -> None:
        """Find what one part would bring back; its partitions may be told apart by that."""
        if restore.restore_snapshot_id is None:
            found.restores.append(restore)
            return
        lost = self._windows_with_deletions(restore)
        for label in restore.partitions:
            mine = [(window, gone) for window, gone in lost if label in gone.partitions]
            self._scan_partition(restore, label, mine, found)
        moved = {label for one in found.restores for label in one.partitions}
        rest = tuple(label for label in restore.partitions if label not in moved)
        if rest:
            found.restores.append(restore.model_copy(update={"partitions": rest}))

    def _scan_partition(
        self,
        restore: PartitionRestore,
        label: str,
        lost: list[tuple[tuple[int, int], DeletedRows]],
        found: _DeletionFindings,
    ) -> None:
        erasures = tuple(
            Erasure(
                table=self._table,
                before_snapshot_id=before,
                after_snapshot_id=after,
                partitions=(label,),
                key=self._key,
            )
            for (before, after), _ in lost
        )
        state = TableState(table=self._table, snapshot_id=restore.restore_snapshot_id)
        left_out = ExcludedRows(
            field=self._target.scope.field, tombstones=self.tombstones, erasures=erasures
        )
        if left_out.is_empty:
            return
        named = self._context.erasing.named(state, (label,), left_out)
        newest = [gone for window, gone in lost if window[1] == self._head]
        if newest and all(gone.is_only_deletion for gone in newest):
            # Deleting rows is the only thing that happened since: no commit is lost by going on.
            found.restores.append(
                restore.model_copy(update={"partitions": (label,), "since_snapshot_id": self._head})
            )
        if named.rows:
            found.tombstoned.append(named)
            found.rewritten.append(label)
            found.erasures += erasures
        if named.rows or newest:
            found.deleted += [gone for _, gone in lost]
            for (before, _), _ in lost:
                self._note_drifts(before, label, found)

    def _note_drifts(self, since: int, label: str, found: _DeletionFindings) -> None:
        """Remember which live commits changed the partition, as far as history still tells."""
        scope = Scope(field=self._target.scope.field, partitions=(label,))
        with suppress(TargetChanged, NotFound):
            for drift in self._context.publisher.drifts(self._table, scope, since):
                if not drift.writer.startswith("run ") and drift not in found.drifts:
                    found.drifts.append(drift)

    def _windows_with_deletions(
        self, restore: PartitionRestore
    ) -> list[tuple[tuple[int, int], DeletedRows]]:
        """Give the stretches of live commits in which partitions lost rows; one entry for each."""
        scope = Scope(field=self._target.scope.field, partitions=restore.partitions)
        found = []
        for window in self._live_windows(restore):
            if self._deleted_rows(window, scope).rows:
                for label in restore.partitions:
                    one = Scope(field=scope.field, partitions=(label,))
                    found.append((window, self._deleted_rows(window, one)))
        return [(window, gone) for window, gone in found if gone.rows]

    def _deleted_rows(self, window: tuple[int, int], scope: Scope) -> DeletedRows:
        old, new = (TableState(table=self._table, snapshot_id=at) for at in window)
        return self._context.erasing.gone(old, new, scope, self._key)

    def _live_windows(self, restore: PartitionRestore) -> Iterator[tuple[int, int]]:
        """Give the stretches between the acts on the partitions, and up to the head."""
        # Correction events went to a table of their own, whose snapshots say nothing here.
        own = [row for row in self._target.undone if row.table == self._table]
        acts = [row for row in reversed(own) if _is_touching(row, restore)]
        starts = [row.snapshot_id for row in acts]
        ends = [*(row.before_snapshot_id for row in acts[1:]), self._head]
        for start, end in zip(starts, ends, strict=True):
            if start is not None and end is not None and start != end:
                yield start, end


def _is_touching(row: Publication, restore: PartitionRestore) -> bool:
    return row.scope is not None and not set(row.scope.partitions).isdisjoint(restore.partitions)


#: Nested types are compared as a whole, these are widened by reading.
_WIDENED = {("int", "long"), ("float", "double")}


def plan_rewrites(context: Context, contract: Contract, way: RollbackTarget) -> RollbackTarget:
    """Say which partitions of a way back are rewritten, and why; nothing is changed."""
    if contract.publication == "pinned":
        require_no_tombstoned_rollback(context, contract, way)
        return way
    way = exclude_deleted_rows(context, contract, way)
    found = context.publisher.rewrites(contract.table, way.scope.field, way.restores)
    return replace(way, rewrites=(*found, *_other_rewrites(way.rewrites, found)))


def _other_rewrites(
    more: tuple[RequiredRewrite, ...], found: tuple[RequiredRewrite, ...]
) -> tuple[RequiredRewrite, ...]:
    """Give what is rewritten for another reason alone: a partition is named once."""
    named = {label for item in found for label in item.partitions}
    rest = (
        item.model_copy(update={"partitions": tuple(x for x in item.partitions if x not in named)})
        for item in more
    )
    return tuple(item for item in rest if item.partitions)


def rollback_shadow_name(context: Context, row: Publication) -> str:
    """Name the shadow of a rollback: the same for everybody who goes on with it."""
    name = row.table.rpartition(".")[2]
    return f"{context.profile.shadow_namespace}.{name}__rollback_{row.token[:12]}"


def write_rollback_shadow(
    context: Context, way: RollbackTarget, row: Publication
) -> RewrittenShadow | None:
    """Write the partitions that cannot go back by themselves into a shadow; None: there are none.

    Order: shadow opened at the head; per earlier snapshot one overwrite. A chunk that is there
    already is not written again, so one that was cut off goes on. Raises NotFound when the earlier
    content is gone, Unsupported when its columns cannot be read as the table's.
    """
    if not way.rewrites:
        return None
    base, shadow = _open_rollback_shadow(context, row)
    done = {chunk.chunk_id: chunk.snapshot_id for chunk in context.shadows.chunks(shadow.table)}
    chunks = _restore_chunks(context, way, row, shadow)
    for chunk in chunks:
        if chunk.chunk_id not in done:
            done[chunk.chunk_id] = context.compute().restoring.restore(chunk)
    head = context.tables.describe(shadow.table)
    labels = tuple(label for chunk in chunks for label in chunk.scope.partitions)
    return RewrittenShadow(
        shadow=shadow.table,
        base_snapshot_id=base,
        shadow_snapshot_id=_require_snapshot_id(head),
        chunk_ids=tuple(chunk.chunk_id for chunk in chunks),
        partitions=labels,
    )


def drop_rollback_shadow(context: Context, row: Publication) -> None:
    """Drop the shadow of a rollback from the catalog, if it has one; its files stay."""
    with suppress(BackfillError):
        # What is left of it hides nothing and is found by `maintain`.
        if context.tables.describe(rollback_shadow_name(context, row)) is not None:
            context.shadows.retire(rollback_shadow_name(context, row))


def _require_snapshot_id(info: TableInfo | None) -> int:
    if info is None or info.snapshot_id is None:
        raise NotFound("the shadow of the rollback is gone", fix="repeat the command")
    return info.snapshot_id


def _open_rollback_shadow(context: Context, row: Publication) -> tuple[int, TableInfo]:
    """Open the shadow at the head; one that is there keeps the base that it has."""
    name = rollback_shadow_name(context, row)
    found = context.tables.describe(name)
    info = context.tables.describe(row.table)
    if info is None or info.snapshot_id is None:
        raise NotFound(f"{row.table} holds nothing to roll back")
    base = info.snapshot_id
    if found is not None:
        base = int(found.properties.get("lakehouse-backfill.base-snapshot-id", base))
    marks = {"lakehouse-backfill.rollback": row.token}
    return base, context.shadows.open(row.table, base, name, marks)


def _restore_chunks(
    context: Context, way: RollbackTarget, row: Publication, shadow: TableInfo
) -> tuple[RestoreChunk, ...]:
    """Cut what is rewritten into one chunk per earlier snapshot."""
    found: list[RestoreChunk] = []
    for restore in way.restores:
        labels = _rewritten_labels(restore, way.rewrites)
        if not labels:
            continue
        found.append(
            RestoreChunk(
                chunk_id=f"restore-{len(found) + 1}",
                table=row.table,
                snapshot_id=restore.restore_snapshot_id,
                shadow=shadow.table,
                scope=Scope(field=way.scope.field, partitions=labels),
                columns=_column_pairs(context, row.table, restore.restore_snapshot_id, shadow),
                left_out=way.excluded_rows,
                properties={
                    "lakehouse-backfill.rollback": row.token,
                    "lakehouse-backfill.reason": row.reason,
                },
            )
        )
    return tuple(found)


def _rewritten_labels(
    restore: PartitionRestore, rewrites: tuple[RequiredRewrite, ...]
) -> tuple[str, ...]:
    wanted = {label for item in rewrites for label in item.partitions}
    return tuple(label for label in restore.partitions if label in wanted)


def _column_pairs(
    context: Context, table: str, snapshot_id: int | None, shadow: TableInfo
) -> tuple[tuple[str, str], ...]:
    """Pair the columns of now with their names then, by field id; raises Unsupported."""
    if snapshot_id is None:
        return ()
    then = context.tables.resolve(TableRef(table=table, at=str(snapshot_id))).columns
    if not then:  # a port that does not say how the snapshot is read
        return tuple((column.name, column.name) for column in shadow.columns)
    old = {column.field_id: column for column in then}
    return tuple(
        (column.name, _require_readable(table, snapshot_id, old[column.field_id], column).name)
        for column in shadow.columns
        if column.field_id in old
    )


def _require_readable(table: str, snapshot_id: int, old: Column, new: Column) -> Column:
    is_decimal = old.type.startswith("decimal") and new.type.startswith("decimal")
    if old.type != new.type and (old.type, new.type) not in _WIDENED and not is_decimal:
        raise Unsupported(
            f"{table}@{snapshot_id}: column {new.name} was {old.type} and is {new.type} now",
            state="nothing was rolled back; readers see what they saw before",
            fix="restate the partitions instead",
        )
    return old
