"""Zero-copy clones of tables: tables of their own that list the files of a base snapshot.

A clone shares its base snapshot's files with the target; uuid, location and history are its own.
A clone of an interrupted process is checked, and never dropped here: the process that registered it
may still be active, and would drop a clone that is created again.

Where a catalog can register metadata, a clone is the target's metadata, edited as text: this needs
no JVM, and works for formats that PyIceberg reads but cannot write. On other catalogs
`create_table` makes a plain table, and one commit then adds the columns, specs and sort orders of
the target under their own ids, and the base snapshot unchanged. Readers cannot distinguish the two.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table, update
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.update import AssertTableUUID, AssignUUIDUpdate, SetPropertiesUpdate
from sqlalchemy.orm import Session

from lakehouse_backfill.adapters.iceberg.catalog import (
    first_error_line,
    load_table,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.metadata import (
    BEING_BUILT_PROPERTY,
    BUILT_BECAUSE_PROPERTY,
    DROP_DELETES_PROPERTY,
    EPOCH_PROPERTY,
    PROPERTY_PREFIX,
    PUBLICATION_PROPERTY,
)
from lakehouse_backfill.adapters.iceberg.rest.answers import is_unsupported_by_server
from lakehouse_backfill.core.planning.target.write_path import clone_metadata
from lakehouse_backfill.domain.labels.names import table_text
from lakehouse_backfill.domain.tables.commits import CloneCommit, NewSchema
from lakehouse_backfill.errors import Conflict, TooBusy, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.tables import CloneCommitter

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
            raise TooBusy(f"{table_text(table.name())} moved meanwhile", fix="try again")


def _catalog_row_update(catalog: SqlCatalog, table: Table, file: str) -> Any:
    """Return the SQL statement that PyIceberg's own commits end with."""
    namespace = Catalog.namespace_to_string(Catalog.namespace_from(table.name()))
    return (
        sqlalchemy.update(IcebergTables)
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


#: Parts that a plain table has of its own, or that are compared separately here.
_OWN_PARTS = ("uuid", "location", "snapshot", "sequence number", "properties")


class BuiltClone:
    """Builds clones in one catalog; `made` is called with each table that it creates."""

    def __init__(self, catalog: Catalog, made: Callable[[Table], None] | None = None) -> None:
        self._catalog = catalog
        self._on_created = made

    def build(self, shadow: str, wanted: TableMetadata, because: str) -> Table:
        """Create the table `shadow` with the content that `wanted` describes, and compare it.

        An interrupted build is continued: until the second commit the table is marked as being
        built. What a drop does to files is probed before, on a separate table. Raises Unsupported,
        and drops the table, when the catalog does not keep the committed state.
        """
        table = self._load_or_create(shadow, wanted, because)
        if BEING_BUILT_PROPERTY in table.metadata.properties:
            table = self._fill_table(shadow, table, wanted)
        if EPOCH_PROPERTY in table.metadata.properties:
            # Another process drives the run with this clone now, so it is not compared here.
            return table
        faults = _metadata_differences(table.metadata, wanted)
        if faults:
            raise self._abandon_clone(
                shadow, table, f"{', '.join(faults)} differ from the target's"
            )
        return table

    def _load_or_create(self, shadow: str, wanted: TableMetadata, because: str) -> Table:
        with suppress(NoSuchTableError):
            return self._catalog.load_table(shadow)
        try:
            marks = {BUILT_BECAUSE_PROPERTY: because, BEING_BUILT_PROPERTY: "yes"}
            deletes = "yes" if self._probe_drop_deletes(shadow, wanted) else "no"
            return self._create_table(shadow, wanted, {**marks, DROP_DELETES_PROPERTY: deletes})
        except TableAlreadyExistsError:
            return self._catalog.load_table(shadow)
        except Exception as error:
            if not is_unsupported_by_server(error):
                raise
            why = f"create_table: {first_error_line(error)}"
            raise _clone_error(shadow, because, why) from error

    def _create_table(self, name: str, wanted: TableMetadata, marks: dict[str, str]) -> Table:
        format_property = {"format-version": str(wanted.format_version)}
        with commit_window("Shadows.create"):
            table = self._catalog.create_table(
                name,
                min(wanted.schemas, key=lambda schema: schema.schema_id),
                partition_spec=min(wanted.partition_specs, key=lambda spec: spec.spec_id),
                properties={**wanted.properties, **marks, **format_property},
            )
        if self._on_created is not None:
            self._on_created(table)
        return table

    def _probe_drop_deletes(self, shadow: str, wanted: TableMetadata) -> bool:
        """Return whether a drop deletes files, by a test on a new table that lists none.

        SeaweedFS deletes everything under the table's location: once files of a shadow are
        published, the shadow must not be dropped. An interrupted test leaves a scratch table.
        """
        name = f"{shadow}__drop_{uuid4().hex[:8]}"
        table = self._create_table(name, wanted, {})
        with commit_window("Shadows.drop"):
            self._catalog.drop_table(name)
        if not table.io.new_input(table.metadata_location).exists():
            return True
        # No table lists the file, so a failed deletion leaves only a harmless file.
        with suppress(OSError):
            table.io.delete(table.metadata_location)
        return False

    def _fill_table(self, shadow: str, table: Table, wanted: TableMetadata) -> Table:
        """Commit the state of `wanted` to the table, unless another process already did."""
        requirements = (
            update.AssertTableUUID(uuid=table.metadata.table_uuid),
            update.AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None),
        )
        try:
            with commit_window("Shadows.fill"):
                self._catalog.commit_table(
                    table, requirements, _missing_updates(table.metadata, wanted)
                )
        except CommitFailedException:
            pass
        except Exception as error:
            if not is_unsupported_by_server(error):
                raise
            raise self._abandon_clone(shadow, table, first_error_line(error)) from error
        return self._catalog.load_table(shadow)

    def _abandon_clone(self, shadow: str, table: Table, why: str) -> Unsupported:
        """Drop the table where that deletes no file that the target may list, and build the error.

        The table is kept when another process drives it, and when it is unknown what a drop does.
        """
        current = self._catalog.load_table(shadow).metadata
        is_same = (
            current.table_uuid == table.metadata.table_uuid
            and EPOCH_PROPERTY not in current.properties
        )
        if is_same and current.properties.get(DROP_DELETES_PROPERTY) == "no":
            with commit_window("Shadows.drop"):
                self._catalog.drop_table(shadow)
        because = str(table.metadata.properties.get(BUILT_BECAUSE_PROPERTY, ""))
        return _clone_error(shadow, because, why)


def _missing_updates(found: TableMetadata, wanted: TableMetadata) -> tuple[update.TableUpdate, ...]:
    """Return what the table lacks, with the ids of `wanted`, which servers assign in order."""
    schemas = {schema.schema_id for schema in found.schemas if schema in wanted.schemas}
    specs = {spec.spec_id for spec in found.partition_specs}
    orders = {order.order_id for order in found.sort_orders}
    new_schemas = [s for s in wanted.schemas if s.schema_id not in schemas]
    new_specs = [spec for spec in wanted.partition_specs if spec.spec_id not in specs]
    new_orders = [order for order in wanted.sort_orders if order.order_id not in orders]
    new_schemas.sort(key=lambda schema: schema.schema_id)
    new_specs.sort(key=lambda spec: spec.spec_id)
    new_orders.sort(key=lambda order: order.order_id)
    return (
        *(update.AddSchemaUpdate(schema_=schema) for schema in new_schemas),
        update.SetCurrentSchemaUpdate(schema_id=wanted.current_schema_id),
        *(update.AddPartitionSpecUpdate(spec=spec) for spec in new_specs),
        update.SetDefaultSpecUpdate(spec_id=wanted.default_spec_id),
        *(update.AddSortOrderUpdate(sort_order=order) for order in new_orders),
        update.SetDefaultSortOrderUpdate(sort_order_id=wanted.default_sort_order_id),
        # A server may derive properties of its own from the columns at creation.
        update.SetPropertiesUpdate(updates=wanted.properties),
        update.RemovePropertiesUpdate(removals=[BEING_BUILT_PROPERTY]),
        *_base_snapshot_updates(wanted),
    )


def _base_snapshot_updates(wanted: TableMetadata) -> tuple[update.TableUpdate, ...]:
    """Return the base snapshot with its id, number and manifest list, committed now."""
    base = wanted.current_snapshot()
    if base is None:
        return ()
    # Servers refuse a time before the table's own; the parent is not a snapshot of this table.
    changes = {"timestamp_ms": int(time.time() * 1000), "parent_snapshot_id": None}
    return (
        update.AddSnapshotUpdate(snapshot=base.model_copy(update=changes)),
        update.SetSnapshotRefUpdate.model_validate(
            {"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": base.snapshot_id}
        ),
    )


def _metadata_differences(kept: TableMetadata, wanted: TableMetadata) -> list[str]:
    """Return the parts in which a commit that moves files between the tables could fail."""
    faults = differing_parts(kept, wanted, _OWN_PARTS)
    is_same_head = kept.current_snapshot_id == wanted.current_snapshot_id
    if not is_same_head or snapshot_identities(kept) != snapshot_identities(wanted):
        faults.append("snapshot")
    if any(kept.properties.get(key) != text for key, text in wanted.properties.items()):
        faults.append("properties")
    return faults


def _clone_error(shadow: str, because: str, why: str) -> Unsupported:
    return Unsupported(
        f"{shadow} can be neither registered nor built: {because}; as a plain table: {why}",
        fix="use a catalog with register_table; lakehouse-backfill doctor tries it out",
    )
