"""The rows that a rollback restores: partitions to rewrite, and deleted rows to exclude.

A rollback does not restore rows that were deleted live since, or that tombstones name. Live commits
lie between two publications or rollbacks of a product, and between the newest one and the head.
Their tags keep both ends of each such window readable.

Partitions are rewritten into a shadow and adopted from there when their files cannot come back by
metadata alone: delete files hide rows of them, no tag keeps them from expiring, or deleted rows are
excluded. Readers see nothing of the shadow before the single commit of the rollback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.validation import deletions
from lakehouse_backfill.core.versions.pointer import RollbackTarget
from lakehouse_backfill.domain.catch_up import (
    DeletedRows,
    Drift,
    Erasure,
    ExcludedRows,
    RestoreChunk,
    TableState,
    TombstonedRows,
    TombstonePin,
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
    """What was found in all parts of a rollback."""

    restores: list[PartitionRestore] = field(default_factory=list)
    erasures: list[Erasure] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    deleted: list[DeletedRows] = field(default_factory=list)
    tombstoned: list[TombstonedRows] = field(default_factory=list)
    drifts: list[Drift] = field(default_factory=list)


def exclude_deleted_rows(
    context: Context, contract: Contract, way: RollbackTarget
) -> RollbackTarget:
    """Return the rollback target that excludes rows which were deleted live; the lake is unchanged.

    Raises TargetChanged when deleted rows would come back and the contract declares `deletions:
    block`, or has no key by which they could be excluded.
    """
    info = context.tables.describe(contract.table)
    if info is None or info.snapshot_id is None:
        return way
    names = tuple(column.name for column in info.columns if column.name not in LINEAGE_NAMES)
    tombstones = deletions.current_tombstones(context, contract)
    key = contract.key or names
    scan = _DeletionScan(context, contract, way, info.snapshot_id, key, tombstones)
    findings = _DeletionFindings()
    for restore in way.restores:
        scan.scan_restore(restore, findings)
    _require_reapply_allowed(contract, findings)
    if not findings.rewritten and not findings.erasures:
        return replace(way, restores=tuple(findings.restores))
    excluded = ExcludedRows(
        field=way.scope.field, tombstones=tombstones, erasures=tuple(findings.erasures)
    )
    labels = tuple(label for label in way.scope.partitions if label in findings.rewritten)
    rewrites = (RequiredRewrite(partitions=labels, because=_EXCLUDED_REASON),) if labels else ()
    return replace(
        way, restores=tuple(findings.restores), rewrites=rewrites, excluded_rows=excluded
    )


def require_no_tombstoned_rollback(
    context: Context, contract: Contract, way: RollbackTarget
) -> None:
    """Raise TargetChanged when a rollback of a pinned product would restore tombstoned rows.

    Its pointer moves to a whole earlier table, from which no row can be excluded.
    """
    excluded = ExcludedRows(
        field=way.scope.field, tombstones=deletions.current_tombstones(context, contract)
    )
    if excluded.is_empty:
        return
    target = TableState(table=way.publication.table, snapshot_id=way.publication.snapshot_id)
    tombstoned = context.erasing.named(target, way.scope.partitions, excluded)
    if tombstoned.rows:
        error = deletions.tombstones_blocked_error(
            contract, tombstoned.rows, tombstoned.partitions, "rolled back"
        )
        error.fix = "restate the partitions instead: staging leaves these rows out"
        raise error


def _require_reapply_allowed(contract: Contract, found: _DeletionFindings) -> None:
    if deletions.may_reapply_deletions(contract):
        return
    total = deletions.sum_deleted(found.deleted)
    if total.rows:
        raise deletions.deletions_blocked_error(contract, total, found.drifts, "rolled back")
    rows = sum(finding.rows for finding in found.tombstoned)
    if rows:
        labels = tuple(label for finding in found.tombstoned for label in finding.partitions)
        raise deletions.tombstones_blocked_error(contract, rows, labels, "rolled back")


@dataclass(frozen=True)
class _DeletionScan:
    """Compares the parts of one rollback with the head of the table."""

    context: Context
    contract: Contract
    target: RollbackTarget
    head: int
    key: tuple[str, ...]
    tombstones: tuple[TombstonePin, ...]

    def scan_restore(self, restore: PartitionRestore, found: _DeletionFindings) -> None:
        """Find deleted rows that one part would restore; split off partitions that need it."""
        if restore.restore_snapshot_id is None:
            found.restores.append(restore)
            return
        deletion_windows = self._windows_with_deletions(restore)
        for label in restore.partitions:
            label_windows = [
                (window, deleted)
                for window, deleted in deletion_windows
                if label in deleted.partitions
            ]
            self._scan_partition(restore, label, label_windows, found)
        separate = {label for restored in found.restores for label in restored.partitions}
        rest = tuple(label for label in restore.partitions if label not in separate)
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
                table=self.contract.table,
                before_snapshot_id=before,
                after_snapshot_id=after,
                partitions=(label,),
                key=self.key,
            )
            for (before, after), _ in lost
        )
        state = TableState(table=self.contract.table, snapshot_id=restore.restore_snapshot_id)
        excluded = ExcludedRows(
            field=self.target.scope.field, tombstones=self.tombstones, erasures=erasures
        )
        if excluded.is_empty:
            return
        tombstoned = self.context.erasing.named(state, (label,), excluded)
        newest = [deleted for window, deleted in lost if window[1] == self.head]
        if newest and all(deleted.is_only_deletion for deleted in newest):
            # Live commits since then only deleted rows: the rollback loses no other change.
            found.restores.append(
                restore.model_copy(update={"partitions": (label,), "since_snapshot_id": self.head})
            )
        if tombstoned.rows:
            found.tombstoned.append(tombstoned)
            found.rewritten.append(label)
            found.erasures += erasures
        if tombstoned.rows or newest:
            found.deleted += [deleted for _, deleted in lost]
            for (before, _), _ in lost:
                self._note_drifts(before, label, found)

    def _note_drifts(self, since: int, label: str, found: _DeletionFindings) -> None:
        """Collect the live commits that changed the partition, as far as history still has them."""
        scope = Scope(field=self.target.scope.field, partitions=(label,))
        with suppress(TargetChanged, NotFound):
            for drift in self.context.publisher.drifts(self.contract.table, scope, since):
                if not drift.writer.startswith("run ") and drift not in found.drifts:
                    found.drifts.append(drift)

    def _windows_with_deletions(
        self, restore: PartitionRestore
    ) -> list[tuple[tuple[int, int], DeletedRows]]:
        """List the windows of live commits in which partitions lost rows, one entry a partition."""
        scope = Scope(field=self.target.scope.field, partitions=restore.partitions)
        results = []
        for window in self._live_windows(restore):
            if self._deleted_rows(window, scope).rows:
                for label in restore.partitions:
                    partition = Scope(field=scope.field, partitions=(label,))
                    results.append((window, self._deleted_rows(window, partition)))
        return [(window, deleted) for window, deleted in results if deleted.rows]

    def _deleted_rows(self, window: tuple[int, int], scope: Scope) -> DeletedRows:
        old, new = (TableState(table=self.contract.table, snapshot_id=at) for at in window)
        return self.context.erasing.gone(old, new, scope, self.key)

    def _live_windows(self, restore: PartitionRestore) -> Iterator[tuple[int, int]]:
        """Yield the windows of live commits on the partitions, up to the head.

        A window is the interval between two publications or rollbacks that touched them.
        """
        # Correction events are in another table, whose snapshots do not belong to this one.
        wanted = set(restore.partitions)
        own = [row for row in self.target.undone if row.table == self.contract.table]
        touching = [row for row in reversed(own) if row.scope and wanted & {*row.scope.partitions}]
        starts = [row.snapshot_id for row in touching]
        ends = [*(row.before_snapshot_id for row in touching[1:]), self.head]
        for start, end in zip(starts, ends, strict=True):
            if start is not None and end is not None and start != end:
                yield start, end


#: Types that readers widen. Nested types are compared as a whole.
_WIDENED = {("int", "long"), ("float", "double")}


def plan_rewrites(context: Context, contract: Contract, way: RollbackTarget) -> RollbackTarget:
    """Add to a rollback target the partitions to rewrite, and why; the lake is unchanged."""
    if contract.publication == "pinned":
        require_no_tombstoned_rollback(context, contract, way)
        return way
    way = exclude_deleted_rows(context, contract, way)
    required = context.publisher.rewrites(contract.table, way.scope.field, way.restores)
    return replace(way, rewrites=(*required, *_other_rewrites(way.rewrites, required)))


def _other_rewrites(
    more: tuple[RequiredRewrite, ...], found: tuple[RequiredRewrite, ...]
) -> tuple[RequiredRewrite, ...]:
    """Return the rewrites in `more` without the partitions that `found` names already."""
    named = {label for rewrite in found for label in rewrite.partitions}
    rest = (
        rewrite.model_copy(
            update={"partitions": tuple(x for x in rewrite.partitions if x not in named)}
        )
        for rewrite in more
    )
    return tuple(rewrite for rewrite in rest if rewrite.partitions)


def rollback_shadow_name(context: Context, row: Publication) -> str:
    """Return the name of the rollback's shadow: each process derives the same from the token."""
    name = row.table.rpartition(".")[2]
    return f"{context.profile.shadow_namespace}.{name}__rollback_{row.token[:12]}"


def write_rollback_shadow(
    context: Context, way: RollbackTarget, row: Publication
) -> RewrittenShadow | None:
    """Write the partitions that metadata alone cannot restore into a shadow.

    Order: open the shadow at the head; one overwrite for each earlier snapshot. A chunk that is
    written already is not written again, so a retry continues. Returns None when there is nothing
    to rewrite. Raises NotFound when the earlier content is expired, Unsupported when its columns
    cannot be read as the table's.
    """
    if not way.rewrites:
        return None
    base, shadow = _open_rollback_shadow(context, row)
    snapshot_ids = {
        chunk.chunk_id: chunk.snapshot_id for chunk in context.shadows.chunks(shadow.table)
    }
    chunks = _restore_chunks(context, way, row, shadow)
    for chunk in chunks:
        if chunk.chunk_id not in snapshot_ids:
            snapshot_ids[chunk.chunk_id] = context.compute().restoring.restore(chunk)
    info = context.tables.describe(shadow.table)
    labels = tuple(label for chunk in chunks for label in chunk.scope.partitions)
    return RewrittenShadow(
        shadow=shadow.table,
        base_snapshot_id=base,
        shadow_snapshot_id=_require_snapshot_id(info),
        chunk_ids=tuple(chunk.chunk_id for chunk in chunks),
        partitions=labels,
    )


def drop_rollback_shadow(context: Context, row: Publication) -> None:
    """Drop the shadow of a rollback from the catalog, if it has one; its files stay."""
    with suppress(BackfillError):
        # A remaining shadow is harmless, and `maintain` finds it.
        if context.tables.describe(rollback_shadow_name(context, row)) is not None:
            context.shadows.retire(rollback_shadow_name(context, row))


def _require_snapshot_id(info: TableInfo | None) -> int:
    if info is None or info.snapshot_id is None:
        raise NotFound("the shadow of the rollback is gone", fix="repeat the command")
    return info.snapshot_id


def _open_rollback_shadow(context: Context, row: Publication) -> tuple[int, TableInfo]:
    """Open the shadow at the head; an existing one keeps its base."""
    name = rollback_shadow_name(context, row)
    existing = context.tables.describe(name)
    info = context.tables.describe(row.table)
    if info is None or info.snapshot_id is None:
        raise NotFound(f"{row.table} holds nothing to roll back")
    base = info.snapshot_id
    if existing is not None:
        base = int(existing.properties.get("lakehouse-backfill.base-snapshot-id", base))
    marks = {"lakehouse-backfill.rollback": row.token}
    return base, context.shadows.open(row.table, base, name, marks)


def _restore_chunks(
    context: Context, way: RollbackTarget, row: Publication, shadow: TableInfo
) -> tuple[RestoreChunk, ...]:
    """Build one chunk for each earlier snapshot from which partitions are rewritten."""
    chunks: list[RestoreChunk] = []
    rewritten = {label for rewrite in way.rewrites for label in rewrite.partitions}
    for restore in way.restores:
        labels = tuple(label for label in restore.partitions if label in rewritten)
        if not labels:
            continue
        chunks.append(
            RestoreChunk(
                chunk_id=f"restore-{len(chunks) + 1}",
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
    return tuple(chunks)


def _column_pairs(
    context: Context, table: str, snapshot_id: int | None, shadow: TableInfo
) -> tuple[tuple[str, str], ...]:
    """Pair current column names with their earlier names, by field id; raises Unsupported."""
    if snapshot_id is None:
        return ()
    old_columns = context.tables.resolve(TableRef(table=table, at=str(snapshot_id))).columns
    if not old_columns:  # the port does not know the columns of the snapshot
        return tuple((column.name, column.name) for column in shadow.columns)
    old_by_id = {column.field_id: column for column in old_columns}
    return tuple(
        (
            column.name,
            _require_readable(table, snapshot_id, old_by_id[column.field_id], column).name,
        )
        for column in shadow.columns
        if column.field_id in old_by_id
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
