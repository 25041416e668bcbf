"""The snapshot of a swap: its manifests, its summary, and the commit.

This is the only module that uses internals of PyIceberg 0.12 to write. PyIceberg has no writer for
manifests of delete files. Its own `overwrite()` retries without our check, writes every file under
the default spec, and never drops manifests without live files (pitfalls 33, 34, 39, 47).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
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
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache
from lakehouse_backfill.adapters.iceberg.metadata import (
    NEVER_EXPIRES_MS,
    PUBLICATION_PROPERTY,
    has_live_files,
)
from lakehouse_backfill.adapters.iceberg.schema import schema_id_after, schema_updates
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.fault_points import commit_window

_DATA_FILE_FIELD_ID, _EQUALITY_IDS_FIELD_ID, _ELEMENT_FIELD_ID = 2, 135, 136


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
        return Schema(
            *(
                _with_int_equality_ids(each) if each.field_id == _DATA_FILE_FIELD_ID else each
                for each in fields
            )
        )


def _with_int_equality_ids(field: NestedField) -> NestedField:
    kind = field.field_type
    if not isinstance(kind, StructType):
        return field
    fields = [
        _int_list_field(each) if each.field_id == _EQUALITY_IDS_FIELD_ID else each
        for each in kind.fields
    ]
    return field.model_copy(update={"field_type": StructType(*fields)})


def _int_list_field(field: NestedField) -> NestedField:
    ints = ListType(element_id=_ELEMENT_FIELD_ID, element_type=IntegerType(), element_required=True)
    return field.model_copy(update={"field_type": ints})


#: Every engine can read this codec, so the table's own property for Avro data is ignored.
_AVRO_COMPRESSION: Final = "deflate"


@dataclass(frozen=True)
class SnapshotChange:
    """The swap of one attempt on `head`: removed entries and added entries.

    Removed entries are data files and delete files, added ones are data files with the sequence
    numbers to keep. `operation` is the operation in the snapshot's summary.
    """

    head: Snapshot | None
    manifests: tuple[ManifestFile, ...]
    removed: dict[str, ManifestEntry]
    added: dict[str, ManifestEntry]
    operation: Operation = Operation.OVERWRITE
    #: The table's columns after the swap; None: unchanged.
    schema: Schema | None = None


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
    ) -> Snapshot:
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
        return Snapshot.model_validate(
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
                    _entry_with_status(entry, ManifestEntryStatus.ADDED, self.snapshot_id)
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
        entries = self._cache.cached_entries(manifest)
        removed_paths = frozenset(e.data_file.file_path for e in entries if _is_removed(removed, e))
        if not removed_paths:
            return manifest
        key = (manifest.manifest_path, removed_paths)
        if key not in self._rewritten:
            live = [e for e in entries if e.status != ManifestEntryStatus.DELETED]
            self._rewritten[key] = self._write_manifest(
                table,
                manifest.partition_spec_id,
                [
                    _entry_with_status(e, ManifestEntryStatus.DELETED, self.snapshot_id)
                    if e.data_file.file_path in removed_paths
                    else _entry_with_status(e, ManifestEntryStatus.EXISTING, e.snapshot_id)
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


def commit_snapshot(
    table: Table,
    snapshot: Snapshot,
    tags: dict[str, int],
    token: str,
    schema: Schema | None = None,
) -> None:
    """Commit columns, snapshot, tags and property in one commit.

    The commit requires that head, schema, default spec and uuid are those that were loaded. It does
    not retry, and it leaves the user's table properties as they are.
    """
    metadata = table.metadata
    updates: tuple[TableUpdate, ...] = (
        *schema_updates(metadata, schema),
        AddSnapshotUpdate(snapshot=snapshot),
        _set_ref_update(MAIN_BRANCH, SnapshotRefType.BRANCH, snapshot.snapshot_id, None),
        *(_set_ref_update(n, SnapshotRefType.TAG, i, NEVER_EXPIRES_MS) for n, i in tags.items()),
        SetPropertiesUpdate(updates={PUBLICATION_PROPERTY: token}),
    )
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate(
            {"ref": MAIN_BRANCH, "snapshot-id": snapshot.parent_snapshot_id}
        ),
        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        AssertLastAssignedFieldId.model_validate(
            {"last-assigned-field-id": metadata.last_column_id}
        ),
    )
    with commit_window("Publisher.swap"):
        table._do_commit(updates=updates, requirements=requirements)


def without_sequence_numbers(entry: ManifestEntry) -> ManifestEntry:
    """Remove the sequence numbers of another table: the commit assigns new ones."""
    return ManifestEntry.from_args(
        status=entry.status,
        snapshot_id=entry.snapshot_id,
        sequence_number=None,
        file_sequence_number=None,
        data_file=entry.data_file,
    )


def _set_ref_update(
    name: str, kind: str, snapshot_id: int, max_ref_age_ms: int | None
) -> TableUpdate:
    return SetSnapshotRefUpdate.model_validate(
        {
            "ref-name": name,
            "type": kind,
            "snapshot-id": snapshot_id,
            "max-ref-age-ms": max_ref_age_ms,
        }
    )


def _is_removed(removed: dict[str, ManifestEntry], entry: ManifestEntry) -> bool:
    return entry.status != ManifestEntryStatus.DELETED and entry.data_file.file_path in removed


def _entry_with_status(
    entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None
) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _summary(table: Table, change: SnapshotChange, properties: dict[str, str]) -> Summary:
    """Count what the swap does; the totals are derived from the head's totals."""
    limit = table.metadata.properties.get(TableProperties.WRITE_PARTITION_SUMMARY_LIMIT, "0")
    collector = SnapshotSummaryCollector(partition_summary_limit=int(limit))
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
        before["operation"] = Operation.OVERWRITE.value
    return update_snapshot_summaries(
        Summary(operation=change.operation, **{**properties, **collector.build()}), before
    )


def _data_files(entries: Iterable[ManifestEntry]) -> list[DataFile]:
    return [entry.data_file for entry in entries]
