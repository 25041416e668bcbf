"""Metadata of zero-copy clones, and clones of formats that PyIceberg reads but cannot write.

A clone shares its base snapshot's files with the target; uuid, location and history are its own.

A clone has no manifest of its own, so its metadata can be edited as text, without a JVM. Only a
REST catalog, or an SQL catalog, which stores the location in a column, accepts such a text.

An existing clone of an interrupted process is checked, and never dropped here: the process that
registered it may still be active, and would drop a clone that is created again.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any
from uuid import UUID, uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.update import AssertTableUUID, AssignUUIDUpdate, SetPropertiesUpdate
from sqlalchemy import update
from sqlalchemy.orm import Session

from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.adapters.iceberg.metadata import (
    EPOCH_PROPERTY,
    PROPERTY_PREFIX,
    PUBLICATION_PROPERTY,
)
from lakehouse_backfill.core.planning.target.write_path import clone_metadata
from lakehouse_backfill.domain.publication import CloneCommit, NewSchema
from lakehouse_backfill.errors import Conflict, TooBusy, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.table_writer import CloneCommitter

#: Properties that every clone has.
CLONE_PROPERTIES = {
    # Expiry or a purge of the shadow would delete files that the target lists.
    "gc.enabled": "false",
    # With the default of 4, parallel chunks lose commits.
    "commit.retry.num-retries": "30",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
}
#: Properties that would put the shadow's files into the target's folders.
LOCATION_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


def build_clone_metadata(
    metadata: TableMetadata, snapshot_id: int | None, location: str, marks: dict[str, str]
) -> TableMetadata:
    """Return the metadata of a table that shares the snapshot's files and nothing else.

    Field ids, specs, sort orders and sequence numbers stay the target's own, so that files move
    between the two by metadata alone.
    """
    snapshots = [s for s in metadata.snapshots if s.snapshot_id == snapshot_id]
    # The epoch belongs to the run that wrote the cloned table, not to the run that clones it.
    dropped = {*LOCATION_PROPERTIES, PUBLICATION_PROPERTY, EPOCH_PROPERTY}
    inherited = {k: v for k, v in metadata.properties.items() if k not in dropped}
    main_ref = {"snapshot-id": snapshot_id, "type": "branch"}
    return metadata.model_copy(
        update={
            "table_uuid": uuid4(),
            "location": location,
            "snapshots": snapshots,
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {MAIN_BRANCH: SnapshotRef.model_validate(main_ref)} if snapshots else {},
            "current_snapshot_id": snapshot_id,
            "statistics": [],
            "partition_statistics": [],
            "properties": {**inherited, **CLONE_PROPERTIES, **marks},
        }
    )


def snapshot_identities(metadata: TableMetadata) -> list[tuple[object, ...]]:
    """Return the part of the snapshots that decides which rows are read."""
    return [(s.snapshot_id, s.sequence_number, s.manifest_list) for s in metadata.snapshots]


def metadata_identity(metadata: TableMetadata) -> dict[str, object]:
    """Return the parts that the catalog must return as they were registered."""
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


def differing_parts(
    kept: TableMetadata, wanted: TableMetadata, ignored: Collection[str] = ()
) -> list[str]:
    """Return the parts, except the ignored ones, that the catalog did not keep."""
    kept_parts, wanted_parts = metadata_identity(kept), metadata_identity(wanted)
    compared = [part for part in wanted_parts if part not in ignored]
    return [part for part in compared if kept_parts[part] != wanted_parts[part]]


def commit_fence(catalog: Catalog, table: Table, new_uuid: UUID, marks: dict[str, str]) -> None:
    """Assign another UUID to the table and set properties, unless its UUID has changed."""
    # No transaction is used: PyIceberg rejects an answer with another table UUID as wrong.
    updates = (AssignUUIDUpdate(uuid=new_uuid), SetPropertiesUpdate(updates=marks))
    with commit_window("Shadows.fence"):
        catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), updates)


class FileCloneCommitter(CloneCommitter):
    """Commits clones in one catalog by their metadata files."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def write_clone(self, order: CloneCommit) -> None:
        """Write the metadata file of a clone, which no catalog lists yet."""
        io = load_table(self._catalog, order.table).io
        with translate_errors():
            metadata = clone_metadata(read_metadata_file(io, order.metadata_location), order)
            with commit_window("Shadows.metadata_file"):
                write_metadata_file(io, order.file, metadata)

    def fence(self, table: str, found_uuid: str, uuid: str, properties: dict[str, str]) -> None:
        """Assign another UUID to the table and set properties, unless its UUID is not `found_uuid`.

        Raises Unsupported on catalogs that are neither REST nor SQL.
        """
        # Imported here: every command loads this module, and few need the HTTP client.
        from pyiceberg.catalog.rest import RestCatalog

        loaded = load_table(self._catalog, table)
        if str(loaded.metadata.table_uuid) != found_uuid:
            raise TooBusy(f"{table} has another UUID by now", fix="try again")
        if isinstance(self._catalog, RestCatalog):
            commit_fence(self._catalog, loaded, UUID(uuid), properties)
        elif isinstance(self._catalog, SqlCatalog):
            self._swap_metadata_file(self._catalog, loaded, uuid, properties)
        else:
            raise Unsupported(
                f"{table} has a table format whose shadows need a REST or an SQL catalog where "
                "Spark is reached through Spark Connect",
                fix="run this command with a Spark of its own: remove spark.remote",
            )

    def set_columns(self, table: str, found_uuid: str, columns: NewSchema) -> None:  # noqa: ARG002
        """Refuse: such tables are written as rows, by commits that cannot change columns."""
        raise Unsupported(
            f"{table} is written row by row, by commits that carry no change of columns",
            state="no chunk was written; nothing was published",
            fix="run this command with a Spark of its own: remove spark.remote",
        )

    def _swap_metadata_file(
        self, catalog: SqlCatalog, table: Table, uuid: str, properties: dict[str, str]
    ) -> None:
        """Point the catalog to an edited copy of the metadata, unless the location has changed."""
        location = table.metadata_location
        with translate_errors():
            metadata = read_metadata_file(table.io, location)
            new_properties = {**metadata.get("properties", {}), **properties}
            metadata |= {"table-uuid": uuid, "properties": new_properties}
            file = table.location_provider().new_table_metadata_file_location()
            write_metadata_file(table.io, file, metadata)
            with commit_window("Shadows.fence"), Session(catalog.engine) as session:
                outcome = session.execute(_catalog_row_update(catalog, table, file))
                session.commit()
        if not outcome.rowcount:  # type: ignore[attr-defined]
            raise TooBusy(f"{'.'.join(table.name())} moved meanwhile", fix="try again")


def _catalog_row_update(catalog: SqlCatalog, table: Table, file: str) -> Any:
    """Return the SQL statement that PyIceberg's own commits end with."""
    namespace = Catalog.namespace_to_string(Catalog.namespace_from(table.name()))
    return (
        update(IcebergTables)
        .where(
            IcebergTables.catalog_name == catalog.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == Catalog.table_name_from(table.name()),
            IcebergTables.metadata_location == table.metadata_location,
        )
        .values(metadata_location=file, previous_metadata_location=table.metadata_location)
    )


def read_metadata_file(io: FileIO, location: str) -> dict[str, Any]:
    """Return a metadata file as it stands, whatever its format version."""
    decompressor = Compressor.get_compressor(location).stream_decompressor
    with io.new_input(location).open() as raw, decompressor(raw) as text:
        metadata: dict[str, Any] = json.loads(text.read())
    return metadata


def write_metadata_file(io: FileIO, location: str, metadata: dict[str, Any]) -> None:
    """Write a metadata file; raises FileExistsError where one is."""
    text = json.dumps(metadata).encode()
    with io.new_output(location).create() as file:
        file.write(Compressor.get_compressor(location).bytes_compressor()(text))


def require_marks(shadow: str, kept: TableMetadata) -> None:
    """Raise Conflict for an empty table without our marks, which some catalogs leave behind."""
    if not kept.snapshots and not any(key.startswith(PROPERTY_PREFIX) for key in kept.properties):
        raise _leftover_conflict(shadow, "it is empty, and nothing in it says what for")


def require_clone(shadow: str, kept: TableMetadata, wanted: TableMetadata) -> None:
    """Raise Conflict when the catalog kept something other than a clone like `wanted`.

    The clone may lack what the target gained or changed after it was made.
    """
    parts: tuple[tuple[str, list[Any], list[Any]], ...] = (
        ("schemas", kept.schemas, wanted.schemas),
        ("specs", kept.partition_specs, wanted.partition_specs),
        ("sort orders", kept.sort_orders, wanted.sort_orders),
        ("snapshot", snapshot_identities(wanted), snapshot_identities(kept)),
    )
    faults = [
        part for part, present, allowed in parts if any(value not in allowed for value in present)
    ]
    if any(kept.properties.get(key) != text for key, text in CLONE_PROPERTIES.items()):
        faults.append("properties")
    if faults:
        raise _leftover_conflict(shadow, f"other {', '.join(faults)} than what it was cloned from")


def _leftover_conflict(shadow: str, why: str) -> Conflict:
    return Conflict(
        f"{shadow} is already there, and is no clone: {why}. A command that was cut off leaves "
        "this on a catalog that does not keep what is registered",
        fix="unless somebody else made it, and when no command of this run is at work: "
        f"DROP TABLE {shadow} (in Spark SQL, without PURGE), then repeat the same command",
    )
