"""The metadata of a zero-copy clone: what it shares with its target, and what is its own."""

from __future__ import annotations

import uuid

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg.names import EPOCH_PROPERTY, PUBLICATION_PROPERTY

#: Properties that every clone has.
CLONE_PROPERTIES = {
    # Expiry or a purge of the shadow would delete files that the target lists.
    "gc.enabled": "false",
    # With the default of 4, parallel chunks lose commits.
    "commit.retry.num-retries": "30",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
}
#: They would put the shadow's files into the target's folders.
_LOCATION_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


def build_clone_metadata(
    metadata: TableMetadata, snapshot_id: int | None, location: str, marks: dict[str, str]
) -> TableMetadata:
    """Give the metadata of a table that shares the snapshot's files and nothing else.

    Field ids, specs, sort orders and sequence numbers stay the target's own, so that files move
    between the two by metadata alone.
    """
    snapshots = [s for s in metadata.snapshots if s.snapshot_id == snapshot_id]
    # An epoch is that of the run which wrote the cloned table, not of the one that clones it.
    dropped = {*_LOCATION_PROPERTIES, PUBLICATION_PROPERTY, EPOCH_PROPERTY}
    inherited = {k: v for k, v in metadata.properties.items() if k not in dropped}
    return metadata.model_copy(
        update={
            "table_uuid": uuid.uuid4(),
            "location": location,
            "snapshots": snapshots,
            "snapshot_log": [],
            "metadata_log": [],
            "refs": _main_ref(snapshots),
            "current_snapshot_id": snapshot_id,
            "statistics": [],
            "partition_statistics": [],
            "properties": {**inherited, **CLONE_PROPERTIES, **marks},
        }
    )


def _main_ref(snapshots: list[Snapshot]) -> dict[str, SnapshotRef]:
    if not snapshots:
        return {}
    main = {"snapshot-id": snapshots[0].snapshot_id, "type": SnapshotRefType.BRANCH.value}
    return {MAIN_BRANCH: SnapshotRef.model_validate(main)}


def snapshot_identities(metadata: TableMetadata) -> list[tuple[object, ...]]:
    """Give what of the snapshots decides which rows are read."""
    return [(s.snapshot_id, s.sequence_number, s.manifest_list) for s in metadata.snapshots]


def metadata_identity(metadata: TableMetadata) -> dict[str, object]:
    """Give what must come back as it was registered."""
    return {
        "uuid": metadata.table_uuid,
        "location": metadata.location.rstrip("/"),
        "format version": metadata.format_version,
        "schemas": (metadata.schemas, metadata.current_schema_id, metadata.last_column_id),
        "specs": (metadata.partition_specs, metadata.default_spec_id),
        "sort orders": (metadata.sort_orders, metadata.default_sort_order_id),
        "snapshot": (metadata.current_snapshot_id, [s.manifest_list for s in metadata.snapshots]),
        "sequence number": getattr(metadata, "last_sequence_number", 0),
        "properties": metadata.properties,
    }
