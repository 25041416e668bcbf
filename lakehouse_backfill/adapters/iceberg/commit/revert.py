"""Plans of a rollback: partitions that are restored by re-adding files, and those to rewrite.

A re-added file keeps its data sequence number, so that later delete files still apply to it, and
earlier ones do not (pitfall 14). Engines disagree about files that are re-added while delete files
are live, and an expiry may delete files that were removed and re-added (pitfalls 41, 42): such
partitions are rewritten instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import Table

from lakehouse_backfill.adapters.iceberg.commit.candidate import ShadowCandidate
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import SwapPart, plan_swap
from lakehouse_backfill.adapters.iceberg.manifests import scope_files
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import column_ids, find_snapshot, is_tagged
from lakehouse_backfill.domain.partitions import Scope, ScopeField, label_sort_key
from lakehouse_backfill.domain.tables.commits import (
    AdoptRequest,
    PartitionRestore,
    RequiredRewrite,
    RevertRequest,
    RewrittenShadow,
)
from lakehouse_backfill.errors import Unsupported

_NOTHING_ROLLED_BACK = "nothing was rolled back; readers see what they saw before"


class RevertPlanner:
    """Plans the rollback of one table, against its head as it was loaded."""

    def __init__(
        self,
        table: Table,
        name: str,
        field: ScopeField,
        cache: ManifestCache,
        *,
        by_rows: bool = False,
    ) -> None:
        """Set `by_rows` where partitions are restored as rows, so that no file is re-added."""
        self._writes_rows = by_rows
        self._table = table
        self._name = name
        self._field = field
        self._cache = cache

    def required_rewrites(
        self, restores: tuple[PartitionRestore, ...]
    ) -> tuple[RequiredRewrite, ...]:
        """Return the partitions that have to be rewritten, grouped by reason."""
        labels_by_reason: dict[str, list[str]] = {}
        for restore in restores:
            for label, reason in self._rewrite_reasons(restore).items():
                labels_by_reason.setdefault(reason, []).append(label)
        return tuple(
            RequiredRewrite(
                partitions=tuple(sorted(labels, key=label_sort_key(self._field))), because=reason
            )
            for reason, labels in labels_by_reason.items()
        )

    def restored_parts(self, request: RevertRequest) -> tuple[SwapPart, ...]:
        """Return the partitions that are restored by their own files.

        Raises Unsupported if a partition has to be rewritten instead.
        """
        rewritten = frozenset(request.rewritten.partitions if request.rewritten else ())
        parts = []
        for restore in request.restores:
            labels = tuple(label for label in restore.partitions if label not in rewritten)
            if not labels:
                continue
            reader = self._reader(labels)
            then = self._restored_files(restore, reader)
            for label, reason in self._delete_file_reasons(restore, reader, then).items():
                raise Unsupported(
                    f"{self._name}: partition {label} has to be rewritten: {reason}",
                    state=_NOTHING_ROLLED_BACK,
                    fix="repeat the command: it looks again which partitions it rewrites",
                )
            number = restore.restore_snapshot_id
            source = None if number is None else (self._name, number)
            parts.append(SwapPart(reader.scope, restore.since_snapshot_id, then.data, source))
        return tuple(parts)

    def rewritten_parts(
        self, restores: tuple[PartitionRestore, ...], candidate: ShadowCandidate
    ) -> tuple[SwapPart, ...]:
        """Return the partitions that get the files of their shadow."""
        files = candidate.files_to_adopt(self._table)
        parts = []
        for restore in restores:
            rewritten = candidate.scope.partitions
            labels = tuple(label for label in restore.partitions if label in rewritten)
            if labels:
                reader = self._reader(labels)
                part_files = {path: entry for path, entry in files.items() if reader.holds(entry)}
                since_id = restore.since_snapshot_id
                parts.append(SwapPart(reader.scope, since_id, part_files, candidate.source))
        return tuple(parts)

    def _reader(self, labels: tuple[str, ...]) -> ScopedReader:
        scope = Scope(field=self._field, partitions=labels)
        return ScopedReader(self._table, scope, self._cache)

    def _rewrite_reasons(self, restore: PartitionRestore) -> dict[str, str]:
        if restore.restore_snapshot_id is None:
            return {}
        reader = self._reader(restore.partitions)
        then = self._restored_files(restore, reader)
        changed_columns = self._changed_columns_reason(restore) if self._writes_rows else ""
        reason = changed_columns or self._untagged_reason(restore)
        if reason and then.data:
            return dict.fromkeys(restore.partitions, reason)
        return self._delete_file_reasons(restore, reader, then)

    def _restored_files(
        self, restore: PartitionRestore, reader: ScopedReader
    ) -> scope_files.ScopeFiles:
        snapshot_id, state = restore.restore_snapshot_id, None
        if snapshot_id is not None:
            state = find_snapshot(self._table.metadata, snapshot_id, self._name)
        return reader.scope_files(state)

    def _delete_file_reasons(
        self,
        restore: PartitionRestore,
        reader: ScopedReader,
        then: scope_files.ScopeFiles,
    ) -> dict[str, str]:
        """Return, by partition, why delete files hid rows then or would hide rows now."""
        reasons: dict[str, str] = {}
        for label, path in _label_paths(reader, then):
            if then.deletes_by_file[path]:
                count = len(then.deletes_by_file[path])
                reasons[label] = (
                    f"delete files hid rows of it in snapshot {restore.restore_snapshot_id}, "
                    f"{count} of {path.rpartition('/')[2]} for one"
                )
        now = reader.scope_files(self._table.metadata.current_snapshot())
        swapped = plan_swap(now, then.data)
        live_deletes = {p: e for p, e in now.deletes.items() if p not in swapped.removed}
        hiding = scope_files.applicable_deletes(then.data, live_deletes)
        for label, path in _label_paths(reader, then):
            if path in swapped.ambiguous or hiding[path]:
                reasons.setdefault(label, "delete files are live that may hide rows of its files")
        return reasons

    def _changed_columns_reason(self, restore: PartitionRestore) -> str:
        """Return why rows cannot be read with the current columns; empty when they can."""
        state = find_snapshot(self._table.metadata, restore.restore_snapshot_id or 0, self._name)
        then = self._table.schemas().get(state.schema_id or 0)
        if then is None or column_ids(then) != column_ids(self._table.schema()):
            return f"the columns changed since snapshot {restore.restore_snapshot_id}"
        return ""

    def _untagged_reason(self, restore: PartitionRestore) -> str:
        """Return which snapshot none of our tags holds; empty when both sides are tagged."""
        for snapshot_id in (restore.restore_snapshot_id, restore.since_snapshot_id):
            if snapshot_id is not None and not is_tagged(self._table.metadata, snapshot_id):
                is_proof = self._writes_rows
                what = "what its rows are proven by" if is_proof else "files that come back"
                return (
                    f"no tag holds snapshot {snapshot_id} any more, so that an expiry could delete "
                    f"{what}"
                )
        return ""


def rewritten_adopt_request(request: RevertRequest, rewritten: RewrittenShadow) -> AdoptRequest:
    """Build the adopt request of a rollback's shadow, to check it as a run's shadow."""
    return AdoptRequest(
        **rewritten.model_dump(exclude={"partitions"}),
        target=request.target,
        scope=Scope(field=request.scope.field, partitions=rewritten.partitions),
        token=request.token,
        tags=request.tags,
        properties={},
    )


def _label_paths(
    reader: ScopedReader, content: scope_files.ScopeFiles
) -> Iterator[tuple[str, str]]:
    for path, entry in content.data.items():
        for label in sorted(reader.labels.labels_spanned(entry.data_file)):
            yield label, path
