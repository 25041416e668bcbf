"""The snapshot of a swap: its manifests, its summary, and the commit.

This is the only module that uses internals of PyIceberg 0.12 to write. PyIceberg has no writer for
manifests of delete files. Its own `overwrite()` retries without our check, writes every file under
the default spec, and never drops manifests without live files (pitfalls 33, 34, 39, 47).

What a swap changes: the request, the files of each part, and the wording of its errors.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, snapshots, update
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IcebergType, IntegerType, ListType, NestedField, StructType

from lakehouse_backfill.adapters.iceberg.manifests.scope_files import (
    LiveEntries,
    ScopeFiles,
    applicable_deletes,
    changed_entry,
    is_global_delete,
    is_live_entry,
)
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ManifestCache
from lakehouse_backfill.adapters.iceberg.metadata import (
    ATTEMPTS_PROPERTY,
    NEVER_EXPIRES_MS,
    PUBLICATION_PROPERTY,
    ColumnIds,
    has_live_files,
)
from lakehouse_backfill.adapters.iceberg.schema import (
    SchemaEvolution,
    schema_id_after,
    schema_updates,
)
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.commits import PartitionContent, SwapRequest
from lakehouse_backfill.errors import TargetChanged, Unsupported
from lakehouse_backfill.fault_points import commit_window

_DATA_FILE_FIELD_ID, _EQUALITY_IDS_FIELD_ID, _ELEMENT_FIELD_ID = 2, 135, 136


@dataclass(frozen=True)
class FileSwap:
    """The files that a swap removes and adds.

    `ambiguous`: re-added files, with the live delete files that may hide their rows. Engines differ
    on such files: some compare sequence numbers, some do not.
    """

    removed: LiveEntries
    added: LiveEntries
    ambiguous: dict[str, frozenset[str]]


def plan_swap(now: ScopeFiles, wanted: LiveEntries) -> FileSwap:
    """Plan the swap of a scope's files for `wanted`.

    Delete files that apply to no remaining file are removed too; those that also apply elsewhere
    stay. Adopted files are newer than all delete files.
    """
    removed = {path: now.data[path] for path in now.data.keys() - wanted.keys()}
    added = {path: wanted[path] for path in wanted.keys() - now.data.keys()}
    stays = {path: entry for path, entry in now.data.items() if path not in removed}
    after = ScopeFiles({**stays, **added}, now.deletes)
    stale = {
        path: entry
        for path, entry in now.deletes.items()
        if path not in after.effective_deletes and not is_global_delete(entry.data_file)
    }
    remaining = {path: entry for path, entry in now.deletes.items() if path not in stale}
    re_added = {path: entry for path, entry in added.items() if entry.sequence_number is not None}
    ambiguous = {
        path: names for path, names in possible_deletes(re_added, remaining).items() if names
    }
    return FileSwap({**removed, **stale}, added, ambiguous)


def possible_deletes(data: LiveEntries, deletes: LiveEntries) -> dict[str, frozenset[str]]:
    """Return which delete files may name rows of which data files, at any sequence number."""
    oldest = {path: changed_entry(entry, sequence_number=-1) for path, entry in data.items()}
    return applicable_deletes(oldest, deletes)


class DeleteManifestWriter(ManifestWriterV2):
    """Writes a manifest of delete files of format 2, as other engines read it.

    PyIceberg declares equality ids as longs. The format declares ints, and Iceberg's Java library
    fails on the whole table when it meets other types (Iceberg spec, manifests).
    """

    def content(self) -> ManifestContent:
        """Return the kind of content that the manifest lists."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        fields = super()._with_partition(format_version).fields
        return Schema(*map(_with_int_equality_ids, fields))


def _with_int_equality_ids(field: NestedField) -> NestedField:
    """Declare the list of equality ids, inside of the data file's fields, as ints."""
    kind: IcebergType = field.field_type
    if field.field_id == _EQUALITY_IDS_FIELD_ID:
        kind = ListType(_ELEMENT_FIELD_ID, IntegerType(), element_required=True)
    elif field.field_id == _DATA_FILE_FIELD_ID and isinstance(kind, StructType):
        kind = StructType(*map(_with_int_equality_ids, kind.fields))
    return field.model_copy(update={"field_type": kind})


#: Every engine can read this codec, so the table's own property for Avro data is ignored.
_AVRO_COMPRESSION: Final = "deflate"


@dataclass(frozen=True)
class SnapshotChange:
    """The swap of one attempt on `head`: removed entries and added entries.

    Removed entries are data files and delete files, added ones are data files with the sequence
    numbers to keep. `operation` is the operation in the snapshot's summary.
    """

    head: snapshots.Snapshot | None
    manifests: tuple[ManifestFile, ...]
    removed: dict[str, ManifestEntry]
    added: dict[str, ManifestEntry]
    operation: snapshots.Operation = snapshots.Operation.OVERWRITE
    #: The table's columns after the swap; None: unchanged.
    schema: Schema | None = None
    #: The tag that the commit sets on the head.
    before_tags: dict[str, int] = field(default_factory=dict)


class SwapProducer:
    """Makes one snapshot, in one or more attempts.

    Rewritten manifests and the snapshot id are kept between attempts, so that a retry writes only
    the manifest list again.
    """

    def __init__(self, cache: ManifestCache) -> None:
        self._cache = cache
        self._commit_uuid = uuid.uuid4()
        self._manifest_count = 0
        self._rewritten: dict[tuple[str, frozenset[str]], ManifestFile] = {}
        self._added: dict[frozenset[str], list[ManifestFile]] = {}
        self.snapshot_id: int | None = None

    def write_snapshot(
        self, table: Table, change: SnapshotChange, properties: dict[str, str], attempt: int
    ) -> snapshots.Snapshot:
        """Write the manifests and the manifest list for the table as it was loaded last."""
        if self.snapshot_id is None:
            self.snapshot_id = table.metadata.new_snapshot_id()
        manifests = self._added_manifests(table, change.added) + self._kept_manifests(table, change)
        sequence_number = table.metadata.next_sequence_number()
        name = f"snap-{self.snapshot_id}-{attempt}-{self._commit_uuid}.avro"
        path = table.location_provider().new_metadata_location(name)
        parent_id = change.head.snapshot_id if change.head else None
        with write_manifest_list(
            format_version=table.metadata.format_version,
            output_file=table.io.new_output(path),
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=sequence_number,
            avro_compression=_AVRO_COMPRESSION,
        ) as writer:
            # The writer sets sequence numbers on the records that it gets. A later attempt needs
            # them unset, so the writer gets copies.
            writer.add_manifests([ManifestFile(*manifest._data) for manifest in manifests])
        return snapshots.Snapshot.model_validate(
            {
                "snapshot-id": self.snapshot_id,
                "parent-snapshot-id": parent_id,
                "sequence-number": sequence_number,
                "manifest-list": path,
                "summary": _summary(table, change, properties),
                "schema-id": schema_id_after(table.metadata, change.schema),
            }
        )

    def _added_manifests(self, table: Table, added: dict[str, ManifestEntry]) -> list[ManifestFile]:
        """Write one manifest per spec: under another spec, filtered reads would miss the files."""
        paths = frozenset(added)
        if paths not in self._added:
            by_spec: dict[int, list[ManifestEntry]] = {}
            for entry in added.values():
                by_spec.setdefault(entry.data_file.spec_id, []).append(
                    changed_entry(
                        entry, status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id
                    )
                )
            self._added[paths] = [
                self._write_manifest(table, spec_id, entries)
                for spec_id, entries in by_spec.items()
            ]
        return self._added[paths]

    def _kept_manifests(self, table: Table, change: SnapshotChange) -> list[ManifestFile]:
        """Return the head's manifests without the removed files.

        Manifests without live files are dropped, because they slow down every read.
        """
        kept = filter(has_live_files, change.manifests)
        return [self._rewrite_without(table, manifest, change.removed) for manifest in kept]

    def _rewrite_without(
        self, table: Table, manifest: ManifestFile, removed: dict[str, ManifestEntry]
    ) -> ManifestFile:
        removed_paths = frozenset(removed.keys() & self._cache.cached_paths(manifest))
        if not removed_paths:
            return manifest
        key = (manifest.manifest_path, removed_paths)
        if key not in self._rewritten:
            live = filter(is_live_entry, self._cache.cached_entries(manifest))
            self._rewritten[key] = self._write_manifest(
                table,
                manifest.partition_spec_id,
                [
                    changed_entry(
                        e, status=ManifestEntryStatus.DELETED, snapshot_id=self.snapshot_id
                    )
                    if e.data_file.file_path in removed_paths
                    else changed_entry(e, status=ManifestEntryStatus.EXISTING)
                    for e in live
                ],
                manifest.content,
            )
        return self._rewritten[key]

    def _write_manifest(
        self,
        table: Table,
        spec_id: int,
        entries: list[ManifestEntry],
        content: ManifestContent = ManifestContent.DATA,
    ) -> ManifestFile:
        spec, schema = table.specs()[spec_id], table.schema()
        dropped = [field.name for field in spec.fields if field.source_id not in schema.field_ids]
        if dropped:
            raise Unsupported(
                f"partition spec {spec_id} has fields of dropped columns: {', '.join(dropped)}",
                fix="rewrite its files to the current spec first: CALL system.rewrite_data_files",
            )
        path = table.location_provider().new_metadata_location(
            f"{self._commit_uuid}-m{self._manifest_count}.avro"
        )
        self._manifest_count += 1
        output, snapshot_id = table.io.new_output(path), self.snapshot_id or 0
        with (
            DeleteManifestWriter(spec, schema, output, snapshot_id, _AVRO_COMPRESSION)
            if content == ManifestContent.DELETES
            else write_manifest(
                table.metadata.format_version, spec, schema, output, snapshot_id, _AVRO_COMPRESSION
            )
        ) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()


@dataclass(frozen=True)
class TableChange:
    """A commit that is written and not made: the table as it was loaded, and what changes.

    `requirements` is what the table must still be; the catalog refuses the commit otherwise.
    """

    table: Table
    requirements: tuple[update.TableRequirement, ...]
    updates: tuple[update.TableUpdate, ...]

    def land(self) -> None:
        """Commit it; it is not tried again.

        By the table, not by `catalog.commit_table`: a branch puts itself in the place of main, and
        the table refuses an answer about another table and removes metadata files that it no longer
        keeps.
        """
        with commit_window("Publisher.swap"):
            self.table._do_commit(updates=self.updates, requirements=self.requirements)


def snapshot_change(
    table: Table,
    snapshot: snapshots.Snapshot,
    tags: dict[str, int],
    token: str,
    schema: Schema | None = None,
) -> TableChange:
    """Return the commit of columns, snapshot, tags and property.

    It requires that head, schema, default spec and uuid are those that were loaded, and leaves the
    user's table properties as they are.
    """
    metadata = table.metadata
    updates: tuple[update.TableUpdate, ...] = (
        *schema_updates(metadata, schema),
        update.AddSnapshotUpdate(snapshot=snapshot),
        update.SetSnapshotRefUpdate.model_validate(
            {"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": snapshot.snapshot_id}
        ),
        *(set_tag_update(name, snapshot_id) for name, snapshot_id in tags.items()),
        update.SetPropertiesUpdate(updates={PUBLICATION_PROPERTY: token}),
    )
    requirements: tuple[update.TableRequirement, ...] = (
        update.AssertTableUUID(uuid=metadata.table_uuid),
        update.AssertRefSnapshotId.model_validate(
            {"ref": MAIN_BRANCH, "snapshot-id": snapshot.parent_snapshot_id}
        ),
        update.AssertCurrentSchemaId.model_validate(
            {"current-schema-id": metadata.current_schema_id}
        ),
        update.AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        update.AssertLastAssignedFieldId.model_validate(
            {"last-assigned-field-id": metadata.last_column_id}
        ),
    )
    return TableChange(table, requirements, updates)


def set_tag_update(name: str, snapshot_id: int) -> update.TableUpdate:
    """Return the update that sets a tag which never expires."""
    return update.SetSnapshotRefUpdate.model_validate(
        {
            "ref-name": name,
            "type": "tag",
            "snapshot-id": snapshot_id,
            "max-ref-age-ms": NEVER_EXPIRES_MS,
        }
    )


def without_sequence_numbers(entry: ManifestEntry) -> ManifestEntry:
    """Remove the sequence numbers of another table: the commit assigns new ones."""
    return changed_entry(entry, sequence_number=None, file_sequence_number=None)


def _summary(table: Table, change: SnapshotChange, properties: dict[str, str]) -> snapshots.Summary:
    """Count what the swap does; the totals are derived from the head's totals."""
    limit = table.metadata.properties.get(TableProperties.WRITE_PARTITION_SUMMARY_LIMIT, "0")
    collector = snapshots.SnapshotSummaryCollector(partition_summary_limit=int(limit))
    specs, schema = table.specs(), table.schema()
    for file in _data_files(change.added.values()):
        collector.add_file(file, schema=schema, partition_spec=specs[file.spec_id])
    for file in _data_files(change.removed.values()):
        collector.remove_file(file, schema=schema, partition_spec=specs[file.spec_id])
    before: dict[str, str] | None = None
    if change.head is not None:
        # A head without totals must not count as an empty table.
        summary = change.head.summary
        before = dict(summary.additional_properties) if summary else {}
        before["operation"] = snapshots.Operation.OVERWRITE.value
    return snapshots.update_snapshot_summaries(
        snapshots.Summary(operation=change.operation, **{**properties, **collector.build()}), before
    )


def _data_files(entries: Iterable[ManifestEntry]) -> list[DataFile]:
    return [entry.data_file for entry in entries]


@dataclass(frozen=True)
class ErrorWording:
    """Wording for error messages: the attempted action, the state of the data, the fix."""

    name: str
    state: str
    fix: str

    def target_changed(
        self, table: str, problem: str, kind: type[TargetChanged] = TargetChanged
    ) -> TargetChanged:
        """Build the error for a table on which the action is no longer possible."""
        return kind(f"{table} cannot be {self.name}: {problem}", state=self.state, fix=self.fix)


@dataclass(frozen=True)
class SwapPart:
    """Partitions that get the files `wanted`, unless changed since `since_id` (None: empty).

    `source` is the table and snapshot that list these files; None: the part is empty.
    """

    scope: Scope
    since_id: int | None
    wanted: LiveEntries
    source: tuple[str, int] | None = None

    @property
    def row_content(self) -> PartitionContent:
        """The same content as rows of the source; no table where nothing is read."""
        if self.source is None or not self.wanted:
            return PartitionContent(scope=self.scope)
        return PartitionContent(scope=self.scope, table=self.source[0], snapshot_id=self.source[1])


@dataclass(frozen=True)
class Swap:
    """A swap to commit: the request, its parts, and what the table must still be."""

    request: SwapRequest
    uuid: str
    parts: tuple[SwapPart, ...]
    wording: ErrorWording
    #: The columns that the table must still have; None: any.
    columns: ColumnIds | None = None
    #: The default spec that the table must still have; None: any.
    spec_id: int | None = None
    #: The new columns that the same commit sets; None: unchanged.
    schema_evolution: SchemaEvolution | None = None

    def summary(self, attempt: int) -> dict[str, str]:
        """Return what the snapshot of an attempt records apart from its files."""
        own = {PUBLICATION_PROPERTY: self.request.token, ATTEMPTS_PROPERTY: str(attempt)}
        return {**self.request.properties, **own}
