"""The part of a rollback that rewrites: earlier rows into a shadow, to be adopted from there.

Needed where files cannot come back by metadata alone: delete files hid rows of them, or nothing
keeps them from expiring. Readers see nothing of it until the one commit of the rollback.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from lakehouse_backfill.core.publication.staying_deleted import (
    exclude_deleted_rows,
    require_no_tombstoned_rollback,
)
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.versions.publications import RollbackTarget
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.publication import (
    PartitionRestore,
    Publication,
    RequiredRewrite,
    RewrittenShadow,
)
from lakehouse_backfill.domain.restoring import RestoreChunk
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.table import Column, TableInfo, TableRef
from lakehouse_backfill.errors import BackfillError, NotFound, Unsupported

#: Nested types are compared as a whole, these are widened by reading.
_WIDENED = {("int", "long"), ("float", "double")}


def plan_rewrites(bench: Context, contract: Contract, way: RollbackTarget) -> RollbackTarget:
    """Say which partitions of a way back are rewritten, and why; nothing is changed."""
    if contract.publication == "pinned":
        require_no_tombstoned_rollback(bench, contract, way)
        return way
    way = exclude_deleted_rows(bench, contract, way)
    found = bench.publisher.rewrites(contract.table, way.scope.field, way.restores)
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


def rollback_shadow_name(bench: Context, row: Publication) -> str:
    """Name the shadow of a rollback: the same for everybody who goes on with it."""
    name = row.table.rpartition(".")[2]
    return f"{bench.profile.shadow_namespace}.{name}__rollback_{row.token[:12]}"


def write_rollback_shadow(
    bench: Context, way: RollbackTarget, row: Publication
) -> RewrittenShadow | None:
    """Write the partitions that cannot go back by themselves into a shadow; None: there are none.

    Order: shadow opened at the head; per earlier snapshot one overwrite. A chunk that is there
    already is not written again, so one that was cut off goes on. Raises NotFound when the earlier
    content is gone, Unsupported when its columns cannot be read as the table's.
    """
    if not way.rewrites:
        return None
    base, shadow = _open_rollback_shadow(bench, row)
    done = {chunk.chunk_id: chunk.snapshot_id for chunk in bench.shadows.chunks(shadow.table)}
    chunks = _restore_chunks(bench, way, row, shadow)
    for chunk in chunks:
        if chunk.chunk_id not in done:
            done[chunk.chunk_id] = bench.compute().restoring.restore(chunk)
    head = bench.tables.describe(shadow.table)
    labels = tuple(label for chunk in chunks for label in chunk.scope.partitions)
    return RewrittenShadow(
        shadow=shadow.table,
        base_snapshot_id=base,
        shadow_snapshot_id=_require_snapshot_id(head),
        chunk_ids=tuple(chunk.chunk_id for chunk in chunks),
        partitions=labels,
    )


def drop_rollback_shadow(bench: Context, row: Publication) -> None:
    """Drop the shadow of a rollback from the catalog, if it has one; its files stay."""
    with suppress(BackfillError):
        # What is left of it hides nothing and is found by `maintain`.
        if bench.tables.describe(rollback_shadow_name(bench, row)) is not None:
            bench.shadows.retire(rollback_shadow_name(bench, row))


def _require_snapshot_id(info: TableInfo | None) -> int:
    if info is None or info.snapshot_id is None:
        raise NotFound("the shadow of the rollback is gone", fix="repeat the command")
    return info.snapshot_id


def _open_rollback_shadow(bench: Context, row: Publication) -> tuple[int, TableInfo]:
    """Open the shadow at the head; one that is there keeps the base that it has."""
    name = rollback_shadow_name(bench, row)
    found = bench.tables.describe(name)
    info = bench.tables.describe(row.table)
    if info is None or info.snapshot_id is None:
        raise NotFound(f"{row.table} holds nothing to roll back")
    base = info.snapshot_id
    if found is not None:
        base = int(found.properties.get("lakehouse-backfill.base-snapshot-id", base))
    marks = {"lakehouse-backfill.rollback": row.token}
    return base, bench.shadows.open(row.table, base, name, marks)


def _restore_chunks(
    bench: Context, way: RollbackTarget, row: Publication, shadow: TableInfo
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
                columns=_column_pairs(bench, row.table, restore.restore_snapshot_id, shadow),
                left_out=way.left_out,
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
    bench: Context, table: str, snapshot_id: int | None, shadow: TableInfo
) -> tuple[tuple[str, str], ...]:
    """Pair the columns of now with their names then, by field id; raises Unsupported."""
    if snapshot_id is None:
        return ()
    then = bench.tables.resolve(TableRef(table=table, at=str(snapshot_id))).columns
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
