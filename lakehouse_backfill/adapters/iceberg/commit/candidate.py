"""A run's shadow as the candidate of an adopt, and the proof that it is what was planned."""

from __future__ import annotations

from functools import cached_property

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill import errors
from lakehouse_backfill.adapters.iceberg import metadata
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import (
    ErrorWording,
    Swap,
    SwapPart,
    without_sequence_numbers,
)
from lakehouse_backfill.adapters.iceberg.manifests import scope_files
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.schema import SchemaEvolution, verify_schema_evolution
from lakehouse_backfill.command_lines import RUN_PLACEHOLDER, plan_command
from lakehouse_backfill.domain.partitions import Scope, describe_labels, label_sort_key
from lakehouse_backfill.domain.tables.branch_shadow import table_of_snapshots
from lakehouse_backfill.domain.tables.commits import AdoptRequest

_NOTHING_PUBLISHED = "nothing was published; readers see what they saw before; the shadow is kept"


class ShadowCandidate:
    """The shadow at the accepted snapshot."""

    def __init__(self, shadow: Table, request: AdoptRequest, cache: ManifestCache) -> None:
        self._shadow = shadow
        self._request = request
        self._reader = ScopedReader(shadow, request.scope, cache)
        self._allowed_reader = ScopedReader(shadow, request.within or request.scope, cache)
        self._run = request.properties.get(metadata.RUN_ID_PROPERTY, RUN_PLACEHOLDER)
        self.wording = ErrorWording("published", _NOTHING_PUBLISHED, plan_command(revise=self._run))

    @property
    def scope(self) -> Scope:
        """The partitions to adopt."""
        return self._request.scope

    @property
    def source(self) -> tuple[str, int] | None:
        """The table and snapshot that list the files; None: there are none."""
        snapshot_id = self._request.shadow_snapshot_id
        if snapshot_id is None:
            return None
        return table_of_snapshots(self._request.shadow), snapshot_id

    @property
    def columns(self) -> metadata.ColumnIds:
        """The columns that the shadow's files are read with."""
        return metadata.column_ids(self._shadow.schema())

    @cached_property
    def schema_evolution(self) -> SchemaEvolution | None:
        """The columns before and after; raises Unsupported when they are not as declared."""
        return verify_schema_evolution(self._shadow, self._request)

    def swap(self, target: Table) -> Swap:
        """Return the swap that adopts the files; raises what `files_to_adopt` raises."""
        request, files = self._request, self.files_to_adopt(target)
        evolution = self.schema_evolution
        return Swap(
            request=request,
            uuid=self._target_uuid(),
            parts=(SwapPart(request.scope, request.base_snapshot_id, files, self.source),),
            wording=self.wording,
            columns=evolution.before if evolution else self.columns,
            spec_id=self._shadow.metadata.default_spec_id,
            schema_evolution=evolution,
        )

    def _target_uuid(self) -> str:
        """Return the UUID of the table that the shadow was cloned from."""
        uuid = self._shadow.metadata.properties.get(metadata.TARGET_UUID_PROPERTY)
        if uuid is None:
            raise errors.Unsupported(
                f"{self._request.shadow} is not a shadow of ours",
                state=_NOTHING_PUBLISHED,
                fix=self.wording.fix,
            )
        return uuid

    def files_to_adopt(self, target: Table) -> scope_files.LiveEntries:
        """Return the files to adopt; files that are new to the target have no sequence numbers.

        Raises ChecksFailed when base or chunks are missing, WriteForbidden when something outside
        the scope changed, Unsupported when a file's spec or sort order is not the target's.
        """
        self._refuse_incomplete()
        _ = self.schema_evolution
        old, new = self._differing_manifests()
        self._refuse_outside(old, new)
        before = self._reader.scope_files(self._base).data
        after = self._reader.scope_files(self._head).data
        self._refuse_foreign_specs(target, after)
        return {
            path: e if path in before else without_sequence_numbers(e) for path, e in after.items()
        }

    @cached_property
    def _head(self) -> Snapshot | None:
        return self._find_state(self._request.shadow_snapshot_id)

    @cached_property
    def _base(self) -> Snapshot | None:
        return self._find_state(self._request.base_snapshot_id)

    def _find_state(self, snapshot_id: int | None) -> Snapshot | None:
        if snapshot_id is None:
            return None
        return metadata.find_snapshot(self._shadow.metadata, snapshot_id, self._request.shadow)

    def _refuse_incomplete(self) -> None:
        """Check that the shadow's history holds the base and every chunk of the plan."""
        history = list(
            metadata.snapshot_ancestors(self._shadow.metadata, self._request.shadow_snapshot_id)
        )
        chunks = {
            metadata.snapshot_summary(snapshot).get(metadata.CHUNK_ID_PROPERTY)
            for snapshot in history
        }
        missing = [chunk for chunk in self._request.chunk_ids if chunk not in chunks]
        problem = ""
        if self._base and self._base.snapshot_id not in {s.snapshot_id for s in history}:
            problem = f"does not descend from its base {self._base.snapshot_id}"
        elif missing:
            problem = f"lacks {len(missing)} of {len(self._request.chunk_ids)} chunks: {missing[0]}"
        if problem:
            raise errors.ChecksFailed(
                f"{self._request.shadow} at {self._request.shadow_snapshot_id} {problem}",
                state=_NOTHING_PUBLISHED,
                fix=f"lakehouse-backfill stage {self._run}",
            )

    def _differing_manifests(self) -> tuple[list[ManifestFile], list[ManifestFile]]:
        """Return the manifests that only base or only shadow has; shared ones list the same files.

        Returns all manifests if delete files were removed that may have hidden rows outside the
        scope.
        """
        old = [m for m in self._reader.manifests(self._base) if metadata.has_live_files(m)]
        new = [m for m in self._reader.manifests(self._head) if metadata.has_live_files(m)]
        shared = {m.manifest_path for m in old} & {m.manifest_path for m in new}
        own_old = [m for m in old if m.manifest_path not in shared]
        own_new = [m for m in new if m.manifest_path not in shared]
        return (old, new) if self._has_lost_deletes(own_old, own_new) else (own_old, own_new)

    def _refuse_outside(self, old: list[ManifestFile], new: list[ManifestFile]) -> None:
        """Check that files outside the scope are those of the base, under the same delete files."""
        self._refuse_own_deletes(old, new)
        before, after = self._files_outside(old), self._files_outside(new)
        changed = {
            path
            for path in before.deletes_by_file.keys() | after.deletes_by_file.keys()
            if before.deletes_by_file.get(path) != after.deletes_by_file.get(path)
        }
        if changed:
            files = {**before.data, **after.data}
            key = label_sort_key(self._request.scope.field)
            labels = sorted(
                {self._reader.labels.file_label(files[p].data_file) for p in changed}, key=key
            )
            raise errors.WriteForbidden(
                f"{self._request.shadow} changed {len(changed)} files outside the run's "
                f"partitions: {describe_labels(tuple(labels))}",
                state=_NOTHING_PUBLISHED,
                fix="correct the transform so that it writes the run's partitions only",
            )

    def _refuse_own_deletes(self, old: list[ManifestFile], new: list[ManifestFile]) -> None:
        """Refuse delete files of this run.

        Only data files are adopted, so rows that the delete files hide would reappear.
        """
        own = self._deletes(new).keys() - self._deletes(old).keys()
        if own:
            raise errors.Unsupported(
                f"{self._request.shadow} has {len(own)} delete files (merge-on-read) of this run, "
                f"{min(own)} for one",
                state=_NOTHING_PUBLISHED,
                fix="set write.delete.mode and write.update.mode to copy-on-write, and restage",
            )

    def _has_lost_deletes(self, old: list[ManifestFile], new: list[ManifestFile]) -> bool:
        before, after = self._deletes(old), self._deletes(new)
        can_label = self._reader.labels.can_label
        lost = (before[path] for path in before.keys() - after.keys())
        return any(not can_label(e.data_file.spec_id) or not self._reader.holds(e) for e in lost)

    def _deletes(self, listed: list[ManifestFile]) -> scope_files.LiveEntries:
        deletes: scope_files.LiveEntries = {}
        for manifest in listed:
            if manifest.content == ManifestContent.DELETES:
                live = self._reader.listed_deletes(manifest)
                deletes.update(
                    (scope_files.unique_file_name(entry.data_file), entry) for entry in live
                )
        return deletes

    def _files_outside(self, listed: list[ManifestFile]) -> scope_files.ScopeFiles:
        """Return these manifests' data files outside the scope, and all their delete files."""
        outside = scope_files.ScopeFiles(deletes=self._deletes(listed))
        for manifest in listed:
            if manifest.content == ManifestContent.DATA:
                for entry in self._reader.live_entries(manifest):
                    if not self._allowed_reader.holds(entry):
                        outside.data[entry.data_file.file_path] = entry
        return outside

    def _refuse_foreign_specs(self, target: Table, files: scope_files.LiveEntries) -> None:
        """Check specs and sort orders: numbers are per table, and must mean the same in both."""
        target_specs, shadow_specs = target.specs(), self._shadow.specs()
        target_orders, shadow_orders = target.sort_orders(), self._shadow.sort_orders()
        for path, entry in files.items():
            spec_id, order_id = entry.data_file.spec_id, entry.data_file.sort_order_id or 0
            if target_specs.get(spec_id) != shadow_specs[spec_id]:
                problem = f"partition spec {spec_id}"
            elif order_id and target_orders.get(order_id) != shadow_orders.get(order_id):
                problem = f"sort order {order_id}"
            else:
                continue
            raise errors.Unsupported(
                f"{problem} of {path} is not the target's",
                state=_NOTHING_PUBLISHED,
                fix=self.wording.fix,
            )
