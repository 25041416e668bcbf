"""Putting partitions back: which by their own files again, and which have to be rewritten.

A file that comes back keeps its data sequence number, so that delete files that came after it
still apply, and those from before do not (pitfall 14). Engines differ on files that come back
beside live delete files, and an expiry may delete files that were removed and came again
(pitfalls 41, 42): such partitions are rewritten instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType

from lakehouse_backfill.adapters.iceberg.commit.swap import SwapPart
from lakehouse_backfill.adapters.iceberg.manifests import (
    LiveEntries,
    ManifestCache,
    ScopedReader,
    ScopeFiles,
    applicable_deletes,
    plan_swap,
)
from lakehouse_backfill.adapters.iceberg.metadata import TAG_PREFIX, column_ids, find_snapshot
from lakehouse_backfill.domain.partitions import Scope, ScopeField, label_sort_key
from lakehouse_backfill.domain.publication import (
    AdoptRequest,
    PartitionRestore,
    RequiredRewrite,
    RevertRequest,
    RewrittenShadow,
)
from lakehouse_backfill.errors import Unsupported

_NOTHING_ROLLED_BACK = "nothing was rolled back; readers see what they saw before"


class RevertPlanner:
    """Works out what a rollback of one table takes, against its head as it was loaded."""

    def __init__(
        self,
        table: Table,
        name: str,
        field: ScopeField,
        cache: ManifestCache,
        *,
        by_rows: bool = False,
    ) -> None:
        """`by_rows`: what goes back is written as rows, and no file comes back."""
        self._writes_rows = by_rows
        self._table = table
        self._name = name
        self._field = field
        self._cache = cache

    def required_rewrites(
        self, restores: tuple[PartitionRestore, ...]
    ) -> tuple[RequiredRewrite, ...]:
        """Say which partitions have to be rewritten, grouped by why."""
        found: dict[str, list[str]] = {}
        for restore in restores:
            for label, why in self._rewrite_reasons(restore).items():
                found.setdefault(why, []).append(label)
        return tuple(
            RequiredRewrite(
                partitions=tuple(sorted(labels, key=label_sort_key(self._field))), because=why
            )
            for why, labels in found.items()
        )

    def restored_parts(self, request: RevertRequest) -> tuple[SwapPart, ...]:
        """Give the partitions that go back by their own files; raises Unsupported if one cannot."""
        done = frozenset(request.rewritten.partitions if request.rewritten else ())
        found = []
        for restore in request.restores:
            labels = tuple(label for label in restore.partitions if label not in done)
            if not labels:
                continue
            scope = Scope(field=self._field, partitions=labels)
            then = self._restored_files(restore, scope)
            for label, why in self._delete_file_reasons(restore, scope, then).items():
                raise Unsupported(
                    f"{self._name}: partition {label} has to be rewritten: {why}",
                    state=_NOTHING_ROLLED_BACK,
                    fix="repeat the command: it looks again which partitions it rewrites",
                )
            found.append(
                SwapPart(scope, restore.since_snapshot_id, then.data, self._restore_source(restore))
            )
        return tuple(found)

    def rewritten_parts(self, request: RevertRequest, files: LiveEntries) -> tuple[SwapPart, ...]:
        """Give the partitions that get the files of their shadow."""
        done = frozenset(request.rewritten.partitions if request.rewritten else ())
        found = []
        for restore in request.restores:
            labels = tuple(label for label in restore.partitions if label in done)
            if labels and request.rewritten is not None:
                scope = Scope(field=self._field, partitions=labels)
                reader = ScopedReader(self._table, scope, self._cache)
                mine = {path: entry for path, entry in files.items() if reader.holds(entry)}
                source = (request.rewritten.shadow, request.rewritten.shadow_snapshot_id)
                found.append(SwapPart(scope, restore.since_snapshot_id, mine, source))
        return tuple(found)

    def _restore_source(self, restore: PartitionRestore) -> tuple[str, int] | None:
        number = restore.restore_snapshot_id
        return None if number is None else (self._name, number)

    def _rewrite_reasons(self, restore: PartitionRestore) -> dict[str, str]:
        if restore.restore_snapshot_id is None:
            return {}
        scope = Scope(field=self._field, partitions=restore.partitions)
        then = self._restored_files(restore, scope)
        renamed = self._changed_columns_reason(restore) if self._writes_rows else ""
        why = renamed or self._untagged_reason(restore)
        if why and then.data:
            return dict.fromkeys(restore.partitions, why)
        return self._delete_file_reasons(restore, scope, then)

    def _restored_files(self, restore: PartitionRestore, scope: Scope) -> ScopeFiles:
        if restore.restore_snapshot_id is None:
            return ScopeFiles()
        state = find_snapshot(self._table.metadata, restore.restore_snapshot_id, self._name)
        return ScopedReader(self._table, scope, self._cache).scope_files(state)

    def _delete_file_reasons(
        self, restore: PartitionRestore, scope: Scope, then: ScopeFiles
    ) -> dict[str, str]:
        """Say of which partitions delete files hid rows then, or would hide rows now."""
        reader = ScopedReader(self._table, scope, self._cache)
        found: dict[str, str] = {}
        for label, path in _label_paths(reader, then):
            if then.deletes_by_file[path]:
                count = len(then.deletes_by_file[path])
                found[label] = (
                    f"delete files hid rows of it in snapshot {restore.restore_snapshot_id}, "
                    f"{count} of {path.rpartition('/')[2]} for one"
                )
        now = reader.scope_files(self._table.metadata.current_snapshot())
        swapped = plan_swap(now, then.data)
        left = {p: e for p, e in now.deletes.items() if p not in swapped.removed}
        would = applicable_deletes(then.data, left)
        for label, path in _label_paths(reader, then):
            if path in swapped.ambiguous or would[path]:
                found.setdefault(label, "delete files are live that may hide rows of its files")
        return found

    def _changed_columns_reason(self, restore: PartitionRestore) -> str:
        """Say that rows cannot be read under the columns of now; empty when they can."""
        state = find_snapshot(self._table.metadata, restore.restore_snapshot_id or 0, self._name)
        then = self._table.schemas().get(state.schema_id or 0)
        if then is None or column_ids(then) != column_ids(self._table.schema()):
            return f"the columns changed since snapshot {restore.restore_snapshot_id}"
        return ""

    def _untagged_reason(self, restore: PartitionRestore) -> str:
        """Say which snapshot no tag of ours holds; empty when both sides are held."""
        for snapshot_id in (restore.restore_snapshot_id, restore.since_snapshot_id):
            if snapshot_id is not None and not _is_tagged(self._table.metadata, snapshot_id):
                what = (
                    "what its rows are proven by" if self._writes_rows else "files that come back"
                )
                return (
                    f"no tag holds snapshot {snapshot_id} any more, so that an expiry could delete "
                    f"{what}"
                )
        return ""


def rewritten_adopt_request(request: RevertRequest, rewritten: RewrittenShadow) -> AdoptRequest:
    """Ask for the shadow of a rollback as for a run's: proven to be what it should be."""
    return AdoptRequest(
        target=request.target,
        base_snapshot_id=rewritten.base_snapshot_id,
        shadow=rewritten.shadow,
        shadow_snapshot_id=rewritten.shadow_snapshot_id,
        chunk_ids=rewritten.chunk_ids,
        scope=Scope(field=request.scope.field, partitions=rewritten.partitions),
        token=request.token,
        tags=request.tags,
        properties={},
    )


def _label_paths(reader: ScopedReader, content: ScopeFiles) -> Iterator[tuple[str, str]]:
    for path, entry in content.data.items():
        for label in sorted(reader.labels.labels_spanned(entry.data_file)):
            yield label, path


def _is_tagged(metadata: TableMetadata, snapshot_id: int) -> bool:
    return any(
        ref.snapshot_id == snapshot_id
        and ref.snapshot_ref_type == SnapshotRefType.TAG
        and name.startswith(TAG_PREFIX)
        for name, ref in metadata.refs.items()
    )
