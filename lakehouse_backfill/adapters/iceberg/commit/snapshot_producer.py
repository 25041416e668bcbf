"""The one file on PyIceberg internals: manifests, summary, commit.

Writing manifests of delete files, which PyIceberg 0.12 has no writer for.

Writing the snapshot of a swap. The only file that uses internals of PyIceberg 0.12.

PyIceberg's own `overwrite()` retries without our check, writes every file under the default spec,
and keeps manifests without live files for ever (pitfalls 33, 34, 39, 47).
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

    PyIceberg says that equality ids are longs. The format says ints, and Iceberg's Java library
    fails on the whole table when it meets others (Iceberg spec, manifests).
    """

    def content(self) -> ManifestContent:
        """Say what the manifest lists."""
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


#: Every engine reads it, whatever the table's property for Avro data says.
_AVRO_COMPRESSION: Final = "deflate"


@dataclass(frozen=True)
class SnapshotChange:
    """One attempt's swap on `head`: entries out, entries in (with the sequence numbers to keep).

    What goes may be data files and delete files; what comes are data files. `operation` is what
    readers of the snapshot are told.
    """

    head: Snapshot | None
    manifests: tuple[ManifestFile, ...]
    removed: dict[str, ManifestEntry]
    added: dict[str, ManifestEntry]
    operation: Operation = Operation.OVERWRITE
    #: The columns that the table has from then on; None: those that it has.
    schema: Schema | None = None


class SwapProducer:
    """Makes one snapshot, over as many attempts as it takes.

    Rewritten manifests and the snapshot id are kept over attempts, so that a retry only writes the
    manifest list again.
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
        """Write what the snapshot needs, for the table as it was just loaded."""
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
            # The writer sets sequence numbers on the very records it is given, whereas a later
            # attempt needs them unset: so it gets copies.
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
        """Give the head's manifests without the removed files.

        Manifests without live files are dropped: they would slow every read for ever.
        """
        kept = filter(has_live_files, change.manifests)
        return [self._rewrite_without(table, manifest, change.removed) for manifest in kept]

    def _rewrite_without(
        self, table: Table, manifest: ManifestFile, removed: dict[str, ManifestEntry]
    ) -> ManifestFile:
        entries = self._cache.cached_entries(manifest)
        gone = frozenset(e.data_file.file_path for e in entries if _is_removed(removed, e))
        if not gone:
            return manifest
        key = (manifest.manifest_path, gone)
        if key not in self._rewritten:
            live = [e for e in entries if e.status != ManifestEntryStatus.DELETED]
            self._rewritten[key] = self._write_manifest(
                table,
                manifest.partition_spec_id,
                [
                    _entry_with_status(e, ManifestEntryStatus.DELETED, self.snapshot_id)
                    if e.data_file.file_path in gone
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
        lost = [field.name for field in spec.fields if field.source_id not in schema.field_ids]
        if lost:
            raise Unsupported(
                f"partition spec {spec_id} has fields of dropped columns: {', '.join(lost)}",
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
    """Commit columns, snapshot, tags and property at once, or nothing.

    Holds only while head, schema, default spec and uuid are those that were loaded. There is no
    retry in here, and the user's table properties stay as they are.
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
    """Take the sequence numbers of another table off: the commit gives its own."""
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
    """Count what the swap does; totals follow from the head's."""
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
