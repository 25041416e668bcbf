"""Clones of tables that PyIceberg reads but cannot write, without a JVM.

A clone has no manifest of its own, so that its metadata can be edited as text. Only a server, or
an SQL catalog, which is a column in a table, takes such a text.
"""

from __future__ import annotations

import json
import uuid as uuids
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID, AssignUUIDUpdate, SetPropertiesUpdate
from sqlalchemy import update
from sqlalchemy.orm import Session

from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.core.planning.cloning import clone_metadata
from lakehouse_backfill.domain.table_commit import CloneCommit, NewSchema
from lakehouse_backfill.errors import TooBusy, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.table_commits import CloneCommitter


class FileCloneCommitter(CloneCommitter):
    """Clones in one catalog, by their metadata files."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def write_clone(self, order: CloneCommit) -> None:
        """Write the metadata file of a clone; no catalog knows of it yet."""
        io = load_table(self._catalog, order.table).io
        with translate_errors():
            metadata = clone_metadata(_read_metadata_file(io, order.metadata_location), order)
            with commit_window("Shadows.metadata_file"):
                _write_metadata_file(io, order.file, metadata)

    def fence(self, table: str, found_uuid: str, uuid: str, properties: dict[str, str]) -> None:
        """Give the table another UUID and set properties, unless its UUID is not `found_uuid`.

        Raises Unsupported on catalogs that are neither REST nor SQL.
        """
        # Every command wires this, and few need the HTTP client that comes with it.
        from pyiceberg.catalog.rest import RestCatalog

        loaded = load_table(self._catalog, table)
        if str(loaded.metadata.table_uuid) != found_uuid:
            raise TooBusy(f"{table} has another UUID by now", fix="try again")
        if isinstance(self._catalog, RestCatalog):
            updates = (
                AssignUUIDUpdate(uuid=uuids.UUID(uuid)), SetPropertiesUpdate(updates=properties),
            )  # fmt: skip
            requirement = AssertTableUUID(uuid=uuids.UUID(found_uuid))
            with commit_window("Shadows.fence"):
                self._catalog.commit_table(loaded, (requirement,), updates)
        elif isinstance(self._catalog, SqlCatalog):
            self._replace(self._catalog, loaded, uuid, properties)
        else:
            raise Unsupported(
                f"{table} has a table format whose shadows need a REST or an SQL catalog where "
                "Spark is reached through Spark Connect",
                fix="run this command with a Spark of its own: remove spark.remote",
            )

    def set_columns(self, table: str, found_uuid: str, columns: NewSchema) -> None:  # noqa: ARG002
        """Refuse: rows of such tables are written anew, by commits that carry no columns."""
        raise Unsupported(
            f"{table} is written row by row, by commits that carry no change of columns",
            state="no chunk was written; the target was not touched",
            fix="run this command with a Spark of its own: remove spark.remote",
        )

    def _replace(
        self, catalog: SqlCatalog, table: Table, uuid: str, properties: dict[str, str]
    ) -> None:
        """Point the catalog to an edited copy of the metadata, unless it moved meanwhile."""
        found = table.metadata_location
        with translate_errors():
            metadata = _read_metadata_file(table.io, found)
            held = {**metadata.get("properties", {}), **properties}
            metadata |= {"table-uuid": uuid, "properties": held}
            file = table.location_provider().new_table_metadata_file_location()
            _write_metadata_file(table.io, file, metadata)
            with commit_window("Shadows.fence"), Session(catalog.engine) as session:
                done = session.execute(_catalog_row_update(catalog, table, file))
                session.commit()
        if not done.rowcount:  # type: ignore[attr-defined]
            raise TooBusy(f"{'.'.join(table.name())} moved meanwhile", fix="try again")


def _catalog_row_update(catalog: SqlCatalog, table: Table, file: str) -> Any:
    """Give the statement that PyIceberg's own commits end in."""
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


def _read_metadata_file(io: FileIO, location: str) -> dict[str, Any]:
    opening = Compressor.get_compressor(location).stream_decompressor
    with io.new_input(location).open() as raw, opening(raw) as text:
        found: dict[str, Any] = json.loads(text.read())
    return found


def _write_metadata_file(io: FileIO, location: str, metadata: dict[str, Any]) -> None:
    text = json.dumps(metadata).encode()
    with io.new_output(location).create() as file:
        file.write(Compressor.get_compressor(location).bytes_compressor()(text))
