"""The rows that a rollback restores: partitions to rewrite, and deleted rows to exclude.

A rollback does not restore rows that were deleted live since, or that tombstones name. Live commits
lie between two publications or rollbacks of a product, and between the newest one and the head.
Their tags keep both ends of each such window readable.

Partitions are rewritten into a shadow and adopted from there when their files cannot come back by
metadata alone: delete files hide rows of them, no tag keeps them from expiring, or deleted rows are
excluded. Readers see nothing of the shadow before the single commit of the rollback.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lakehouse_backfill.core.planning.target.isolation import is_on_branch
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.validation import deletions
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.core.versions.pointer import RollbackTarget
from lakehouse_backfill.domain import catch_up, publication
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.domain.tables.branch_shadow import branch_shadow
from lakehouse_backfill.domain.tables.commits import (
    PartitionRestore,
    RequiredRewrite,
    RewrittenShadow,
)
from lakehouse_backfill.domain.tables.table import Column, TableInfo, TableRef
from lakehouse_backfill.errors import BackfillError, NotFound, TargetChanged, Unsupported

#: What is written, shown as progress and not written again after a kill, at a time.
_PARTITIONS_IN_CHUNK = 50
_EXCLUDED_REASON = "rows that were deleted since are left out"


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
    scan = _DeletionScan(
        context, contract, way, info.snapshot_id, contract.key or names, tombstones
    )
    total = sum(len(restore.partitions) for restore in way.restores)
    with context.progress.within("rollback, looking for deleted rows", total, "partitions"):
        for restore in way.restores:
            scan.scan_restore(restore)
    scan.require_reapply_allowed()
    way = replace(way, restores=tuple(scan.restores))
    if not scan.rewritten and not scan.erasures:
        return way
    labels = tuple(label for label in way.scope.partitions if label in scan.rewritten)
    rewrite = RequiredRewrite(partitions=labels, because=_EXCLUDED_REASON)
    return replace(
        way, rewrites=(rewrite,) if labels else (), excluded_rows=scan.excluded(scan.erasures)
    )


def require_no_tombstoned_rollback(
    context: Context, contract: Contract, way: RollbackTarget
) -> None:
    """Raise TargetChanged when a rollback of a pinned product would restore tombstoned rows.

    Its pointer moves to a whole earlier table, from which no row can be excluded.
    """
    excluded = catch_up.ExcludedRows(
        field=way.scope.field, tombstones=deletions.current_tombstones(context, contract)
    )
    if excluded.is_empty:
        return
    target = catch_up.TableState(
        table=way.publication.table, snapshot_id=way.publication.snapshot_id
    )
    tombstoned = context.row_reader.tombstoned_rows(target, way.scope.partitions, excluded)
    if tombstoned.rows:
        raise deletions.tombstones_blocked_error(
            contract, tombstoned.rows, tombstoned.partitions, "rolled back"
        )


@dataclass
class _DeletionScan:
    """Compares the parts of one rollback with the head of the table; the lists are its findings."""

    context: Context
    contract: Contract
    target: RollbackTarget
    head: int
    key: tuple[str, ...]
    tombstones: tuple[catch_up.TombstonePin, ...]
    restores: list[PartitionRestore] = field(default_factory=list)
    erasures: list[catch_up.Erasure] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    deleted: list[catch_up.DeletedRows] = field(default_factory=list)
    tombstoned: list[catch_up.TombstonedRows] = field(default_factory=list)
    drifts: list[catch_up.Drift] = field(default_factory=list)

    def excluded(self, erasures: Iterable[catch_up.Erasure]) -> catch_up.ExcludedRows:
        """Return what names rows that the rollback must not restore."""
        return catch_up.ExcludedRows(
            field=self.target.scope.field, tombstones=self.tombstones, erasures=tuple(erasures)
        )

    def require_reapply_allowed(self) -> None:
        """Raise TargetChanged when rows were found and the contract does not exclude them."""
        if deletions.may_reapply_deletions(self.contract):
            return
        total = deletions.sum_deleted(self.deleted)
        if total.rows:
            raise deletions.deletions_blocked_error(
                self.contract, total, self.drifts, "rolled back"
            )
        rows = sum(found.rows for found in self.tombstoned)
        if rows:
            labels = tuple(label for found in self.tombstoned for label in found.partitions)
            raise deletions.tombstones_blocked_error(self.contract, rows, labels, "rolled back")

    def scan_restore(self, restore: PartitionRestore) -> None:
        """Find deleted rows that one part would restore; split off partitions that need it."""
        if restore.restore_snapshot_id is None:
            self.restores.append(restore)
            self.context.progress.advance(len(restore.partitions))
            return
        windows = self._windows_with_deletions(restore)
        for label in restore.partitions:
            lost = [(window, rows) for window, rows in windows if label in rows.partitions]
            self._scan_partition(restore, label, lost)
            self.context.progress.advance()
        separate = {label for restored in self.restores for label in restored.partitions}
        rest = tuple(label for label in restore.partitions if label not in separate)
        if rest:
            self.restores.append(restore.model_copy(update={"partitions": rest}))

    def _scan_partition(
        self,
        restore: PartitionRestore,
        label: str,
        lost: list[tuple[tuple[int, int], catch_up.DeletedRows]],
    ) -> None:
        table = self.contract.table
        erasures = [
            catch_up.Erasure(
                table=table,
                before_snapshot_id=before,
                after_snapshot_id=after,
                partitions=(label,),
                key=self.key,
            )
            for (before, after), _ in lost
        ]
        excluded = self.excluded(erasures)
        if excluded.is_empty:
            return
        state = catch_up.TableState(table=table, snapshot_id=restore.restore_snapshot_id)
        tombstoned = self.context.row_reader.tombstoned_rows(state, (label,), excluded)
        newest = [rows for window, rows in lost if window[1] == self.head]
        if newest and all(rows.is_only_deletion for rows in newest):
            # Live commits since then only deleted rows: the rollback loses no other change.
            self.restores.append(
                restore.model_copy(update={"partitions": (label,), "since_snapshot_id": self.head})
            )
        if tombstoned.rows:
            self.tombstoned.append(tombstoned)
            self.rewritten.append(label)
            self.erasures += erasures
        if tombstoned.rows or newest:
            self.deleted += [rows for _, rows in lost]
            for (before, _), _ in lost:
                self._note_drifts(before, label)

    def _note_drifts(self, since: int, label: str) -> None:
        """Collect the live commits that changed the partition, as far as history still has them."""
        scope = Scope(field=self.target.scope.field, partitions=(label,))
        with suppress(TargetChanged, NotFound):
            for drift in self.context.publisher.drifts(self.contract.table, scope, since):
                if not drift.writer.startswith("run ") and drift not in self.drifts:
                    self.drifts.append(drift)

    def _windows_with_deletions(
        self, restore: PartitionRestore
    ) -> list[tuple[tuple[int, int], catch_up.DeletedRows]]:
        """List the windows of live commits in which partitions lost rows, one entry a partition."""
        results = []
        # Correction events are in another table, whose snapshots do not belong to this one. What
        # changed other tuples ends no window: live commits to these lie on both sides of it.
        own = [row for row in reversed(self.target.changes) if row.table == self.contract.table]
        for window in pointer.live_windows(own, restore.partitions, self.head):
            if self._deleted_rows(window, restore.partitions).rows:
                by_label = (self._deleted_rows(window, (label,)) for label in restore.partitions)
                results += [(window, deleted) for deleted in by_label if deleted.rows]
        return results

    def _deleted_rows(
        self, window: tuple[int, int], labels: tuple[str, ...]
    ) -> catch_up.DeletedRows:
        old, new = (catch_up.TableState(table=self.contract.table, snapshot_id=at) for at in window)
        scope = Scope(field=self.target.scope.field, partitions=labels)
        return self.context.row_reader.deleted_rows(old, new, scope, self.key)


def require_no_restored_live_rows(
    context: Context, contract: Contract, way: RollbackTarget
) -> None:
    """Raise TargetChanged for live rows that an earlier rollback restored and this one removes.

    They came between the version that is undone and a later one, which was undone before.
    """
    own = [row for row in reversed(way.changes) if row.table == contract.table]
    windows = ((x, w) for x in way.scope.partitions for w in pointer.restored_windows(own, x))
    for label, window in windows:
        then, now = (catch_up.TableState(table=contract.table, snapshot_id=at) for at in window)
        scope = Scope(field=way.scope.field, partitions=(label,))
        added = context.row_reader.deleted_rows(now, then, scope, ())
        if added.rows:
            raise TargetChanged(
                f"{contract.table} cannot be rolled back: {added.rows} live rows came to {label} "
                f"between snapshots {window[0]} and {window[1]}, and an earlier rollback "
                "restored them",
                state="nothing was rolled back; readers see what they saw before",
                fix=restate_on_top(contract),
            )


def restate_on_top(contract: Contract) -> str:
    """Return what to do where a rollback would take live rows away."""
    return (
        "restate the partitions on top of what came: lakehouse-backfill new "
        f"{contract.product} --from P --to P --reason TEXT"
    )


#: Types that readers widen. Nested types are compared as a whole.
_WIDENED = {("int", "long"), ("float", "double")}


def plan_rewrites(context: Context, contract: Contract, way: RollbackTarget) -> RollbackTarget:
    """Add to a rollback target the partitions to rewrite, and why; the lake is unchanged."""
    if contract.publication == "pinned":
        require_no_tombstoned_rollback(context, contract, way)
        return way
    require_no_restored_live_rows(context, contract, way)
    way = exclude_deleted_rows(context, contract, way)
    required = context.publisher.rewrites(contract.table, way.scope.field, way.restores)
    named = {label for rewrite in required for label in rewrite.partitions}
    others = [
        rewrite.model_copy(
            update={"partitions": tuple(x for x in rewrite.partitions if x not in named)}
        )
        for rewrite in way.rewrites
    ]
    return replace(way, rewrites=(*required, *(other for other in others if other.partitions)))


def _shadow_names(context: Context, row: publication.Publication) -> dict[str, str]:
    """Return the names that the rollback's shadow can have, by kind: they follow from the token."""
    target, mark = row.table, f"rollback_{row.token[:12]}"
    name = f"{names.unique_plain_name(names.last_part(target))}__{mark}"
    return {
        "clone": f"{context.profile.shadow_namespace}.{name}",
        "branch": branch_shadow(target, mark.replace("_", "-")).name,
    }


def _open_names(context: Context, row: publication.Publication) -> list[str]:
    found = _shadow_names(context, row).values()
    return [name for name in found if context.tables.describe(name) is not None]


def rollback_shadow_name(context: Context, row: publication.Publication) -> str:
    """Return the name of the rollback's shadow: one that is open, whatever was chosen since."""
    names, opened = _shadow_names(context, row), _open_names(context, row)
    kind = "branch" if "branch" in names and not opened and is_on_branch(context) else "clone"
    return opened[0] if opened else names[kind]


def write_rollback_shadow(
    context: Context, way: RollbackTarget, row: publication.Publication
) -> RewrittenShadow | None:
    """Write the partitions that metadata alone cannot restore into a shadow.

    Order: open the shadow at the head; overwrites of some partitions each, those of one earlier
    snapshot after the other. A chunk that is written already is not written again, so a retry
    continues. Returns None when there is nothing
    to rewrite. Raises NotFound when the earlier content is expired, Unsupported when its columns
    cannot be read as the table's.
    """
    if not way.rewrites:
        return None
    base, shadow = _open_rollback_shadow(context, row)
    chunks = _restore_chunks(context, way, row, shadow)
    _write_chunks(context, shadow.table, chunks)
    info = context.tables.describe(shadow.table)
    if info is None or info.snapshot_id is None:
        raise NotFound("the shadow of the rollback is gone", fix="repeat the command")
    labels = tuple(label for chunk in chunks for label in chunk.scope.partitions)
    return RewrittenShadow(
        shadow=shadow.table,
        base_snapshot_id=base,
        shadow_snapshot_id=info.snapshot_id,
        chunk_ids=tuple(chunk.chunk_id for chunk in chunks),
        partitions=labels,
    )


def _write_chunks(context: Context, shadow: str, chunks: tuple[catch_up.RestoreChunk, ...]) -> None:
    """Write those that the shadow lacks."""
    progress, total = context.progress, sum(len(chunk.scope.partitions) for chunk in chunks)
    rows = {one.chunk_id: one.added_rows for one in context.shadows.chunks(shadow)}
    known = frozenset(rows)
    progress.start("rollback, rewriting", total, "partitions")
    for chunk in chunks:
        if chunk.chunk_id not in known:
            context.compute().staging.restore(chunk)
            rows = {one.chunk_id: one.added_rows for one in context.shadows.chunks(shadow)}
        was_done = chunk.chunk_id in known
        progress.advance(
            len(chunk.scope.partitions), rows.get(chunk.chunk_id, 0), was_done=was_done
        )
    progress.finish()


def drop_rollback_shadow(context: Context, row: publication.Publication) -> None:
    """Drop the shadow of a rollback from the catalog, if it has one; its files stay."""
    with suppress(BackfillError):
        # A remaining shadow is harmless, and `maintain` finds it.
        for name in _open_names(context, row):
            context.shadows.retire(name)


def _open_rollback_shadow(context: Context, row: publication.Publication) -> tuple[int, TableInfo]:
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
    context: Context, way: RollbackTarget, row: publication.Publication, shadow: TableInfo
) -> tuple[catch_up.RestoreChunk, ...]:
    """Build the chunks of each earlier snapshot from which partitions are rewritten."""
    chunks: list[catch_up.RestoreChunk] = []
    rewritten = {label for rewrite in way.rewrites for label in rewrite.partitions}
    for restore in way.restores:
        labels = tuple(label for label in restore.partitions if label in rewritten)
        if not labels:
            continue
        pairs = _column_pairs(context, row.table, restore.restore_snapshot_id, shadow)
        chunks += (
            catch_up.RestoreChunk(
                chunk_id=_restore_id(restore.restore_snapshot_id, some, way.excluded_rows),
                table=row.table,
                snapshot_id=restore.restore_snapshot_id,
                shadow=shadow.table,
                scope=Scope(field=way.scope.field, partitions=some),
                columns=pairs,
                left_out=way.excluded_rows,
                properties={
                    "lakehouse-backfill.rollback": row.token,
                    "lakehouse-backfill.reason": row.reason,
                    publication.MODE_PROPERTY: context.mode_of(way.run_id),
                },
            )
            for some in _cut(labels)
        )
    return tuple(chunks)


def _restore_id(
    snapshot_id: int | None, labels: tuple[str, ...], excluded: catch_up.ExcludedRows | None
) -> str:
    """Return the id of a chunk, which says what it writes.

    What a retry has to write may be other than what was begun: rows were deleted since.
    """
    rows = excluded and excluded.model_dump(mode="json")
    return f"restore-{digest([snapshot_id, labels, rows])[:16]}"


def _cut(labels: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    size = _PARTITIONS_IN_CHUNK
    return tuple(labels[at : at + size] for at in range(0, len(labels), size))


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
