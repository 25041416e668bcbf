"""What a way back must not bring back: rows that were deleted live since, or that tombstones name.

Live commits lie between the acts on a product: from each act to the next one, and from the newest
act to the head. Both ends of each stretch are kept by the tags of the acts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.validation import erasing
from lakehouse_backfill.core.validation.stages_erasing import current_tombstones
from lakehouse_backfill.core.versions.publications import RollbackTarget
from lakehouse_backfill.domain.carrying import TableState
from lakehouse_backfill.domain.catch_up import DeletedRows, Erasure, ExcludedRows, TombstonedRows
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.drift import Drift
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.publication import PartitionRestore, Publication, RequiredRewrite
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.errors import NotFound, TargetChanged

_EXCLUDED_REASON = "rows that were deleted since are left out"


@dataclass
class _DeletionFindings:
    """What was found of all parts of a way back."""

    restores: list[PartitionRestore] = field(default_factory=list)
    erasures: list[Erasure] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    gone: list[DeletedRows] = field(default_factory=list)
    named: list[TombstonedRows] = field(default_factory=list)
    drifts: list[Drift] = field(default_factory=list)


def exclude_deleted_rows(bench: Context, contract: Contract, way: RollbackTarget) -> RollbackTarget:
    """Let the way back leave out what was deleted live; nothing is changed in the lake.

    Raises TargetChanged when rows would come back and the contract says `deletions: block`, or has
    no key by which they could be left out.
    """
    info = bench.tables.describe(contract.table)
    if info is None or info.snapshot_id is None:
        return way
    names = tuple(column.name for column in info.columns if column.name not in LINEAGE_NAMES)
    look = _DeletionScan(bench, contract, way, info.snapshot_id, contract.key or names)
    found = _DeletionFindings()
    for restore in way.restores:
        look.at(restore, found)
    _require_reapply_allowed(contract, found)
    if not found.rewritten and not found.erasures:
        return replace(way, restores=tuple(found.restores))
    left_out = ExcludedRows(
        field=way.scope.field, tombstones=look.tombstones, erasures=tuple(found.erasures)
    )
    labels = tuple(label for label in way.scope.partitions if label in found.rewritten)
    rewrites = (RequiredRewrite(partitions=labels, because=_EXCLUDED_REASON),) if labels else ()
    return replace(way, restores=tuple(found.restores), rewrites=rewrites, left_out=left_out)


def require_no_tombstoned_rollback(bench: Context, contract: Contract, way: RollbackTarget) -> None:
    """Raise TargetChanged when a pinned product would go back to rows that tombstones name.

    Its pointer moves to a whole earlier table: nothing can be left out of that.
    """
    left_out = ExcludedRows(field=way.scope.field, tombstones=current_tombstones(bench, contract))
    if left_out.is_empty:
        return
    seen = TableState(table=way.established.table, snapshot_id=way.established.snapshot_id)
    named = bench.erasing.named(seen, way.scope.partitions, left_out)
    if named.rows:
        error = erasing.tombstones_blocked_error(
            contract, named.rows, named.partitions, "rolled back"
        )
        error.fix = "restate the partitions instead: staging leaves these rows out"
        raise error


def _require_reapply_allowed(contract: Contract, found: _DeletionFindings) -> None:
    if erasing.may_reapply_deletions(contract):
        return
    lost = [one for one in found.gone if one.rows]
    if lost:
        together = DeletedRows(
            rows=sum(one.rows for one in lost),
            partitions=tuple(dict.fromkeys(label for one in lost for label in one.partitions)),
            samples=tuple(key for one in lost for key in one.samples)[: erasing.MAX_SAMPLE_KEYS],
            is_only_deletion=all(one.is_only_deletion for one in lost),
        )
        raise erasing.deletions_blocked_error(contract, together, found.drifts, "rolled back")
    rows = sum(one.rows for one in found.named)
    if rows:
        labels = tuple(label for one in found.named for label in one.partitions)
        raise erasing.tombstones_blocked_error(contract, rows, labels, "rolled back")


class _DeletionScan:
    """Looks at the parts of one way back, against the head as it is now."""

    def __init__(
        self,
        bench: Context,
        contract: Contract,
        way: RollbackTarget,
        head: int,
        key: tuple[str, ...],
    ) -> None:
        self._bench = bench
        self._table = contract.table
        self._way = way
        self._head = head
        self._key = key
        self.tombstones = current_tombstones(bench, contract)

    def at(self, restore: PartitionRestore, found: _DeletionFindings) -> None:
        """Find what one part would bring back; its partitions may be told apart by that."""
        if restore.restore_snapshot_id is None:
            found.restores.append(restore)
            return
        lost = self._lost(restore)
        for label in restore.partitions:
            mine = [(window, gone) for window, gone in lost if label in gone.partitions]
            self._label(restore, label, mine, found)
        moved = {label for one in found.restores for label in one.partitions}
        rest = tuple(label for label in restore.partitions if label not in moved)
        if rest:
            found.restores.append(restore.model_copy(update={"partitions": rest}))

    def _label(
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
            field=self._way.scope.field, tombstones=self.tombstones, erasures=erasures
        )
        if left_out.is_empty:
            return
        named = self._bench.erasing.named(state, (label,), left_out)
        newest = [gone for window, gone in lost if window[1] == self._head]
        if newest and all(gone.is_only_deletion for gone in newest):
            # Deleting rows is the only thing that happened since: no commit is lost by going on.
            found.restores.append(
                restore.model_copy(update={"partitions": (label,), "since_snapshot_id": self._head})
            )
        if named.rows:
            found.named.append(named)
            found.rewritten.append(label)
            found.erasures += erasures
        if named.rows or newest:
            found.gone += [gone for _, gone in lost]
            for (before, _), _ in lost:
                self._name(before, label, found)

    def _name(self, since: int, label: str, found: _DeletionFindings) -> None:
        """Remember which live commits changed the partition, as far as history still tells."""
        scope = Scope(field=self._way.scope.field, partitions=(label,))
        with suppress(TargetChanged, NotFound):
            for drift in self._bench.publisher.drifts(self._table, scope, since):
                if not drift.writer.startswith("run ") and drift not in found.drifts:
                    found.drifts.append(drift)

    def _lost(self, restore: PartitionRestore) -> list[tuple[tuple[int, int], DeletedRows]]:
        """Give the stretches of live commits in which partitions lost rows; one entry for each."""
        scope = Scope(field=self._way.scope.field, partitions=restore.partitions)
        found = []
        for window in self._windows(restore):
            if self._gone(window, scope).rows:
                for label in restore.partitions:
                    one = Scope(field=scope.field, partitions=(label,))
                    found.append((window, self._gone(window, one)))
        return [(window, gone) for window, gone in found if gone.rows]

    def _gone(self, window: tuple[int, int], scope: Scope) -> DeletedRows:
        old, new = (TableState(table=self._table, snapshot_id=at) for at in window)
        return self._bench.erasing.gone(old, new, scope, self._key)

    def _windows(self, restore: PartitionRestore) -> Iterator[tuple[int, int]]:
        """Give the stretches between the acts on the partitions, and up to the head."""
        # Correction events went to a table of their own, whose snapshots say nothing here.
        own = [row for row in self._way.undone if row.table == self._table]
        acts = [row for row in reversed(own) if _is_touching(row, restore)]
        starts = [row.snapshot_id for row in acts]
        ends = [*(row.before_snapshot_id for row in acts[1:]), self._head]
        for start, end in zip(starts, ends, strict=True):
            if start is not None and end is not None and start != end:
                yield start, end


def _is_touching(row: Publication, restore: PartitionRestore) -> bool:
    return row.scope is not None and not set(row.scope.partitions).isdisjoint(restore.partitions)
